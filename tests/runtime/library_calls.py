"""Tasks of `ranks`: the adapters for Megatron-Core and torchtitan, on stand-ins for their parts.

The stand-ins call what an adapter gives them with the arguments, and in the layouts, of
``SelfAttention`` (Megatron-Core 0.16) and ``GQAttention`` (torchtitan 0.3).
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import attention_cases as cases
import torch
import torch.distributed as dist
from differing_calls import WAIT
from torch import Tensor, nn
from training_calls import heard

from charm_sched.partition import Partition
from charm_sched.plans.plan import Schedule
from charm_sched.runtime import shard, unshard
from charm_sched.runtime.integrations.megatron import core_attention
from charm_sched.runtime.integrations.torchtitan import replace_inner_attention
from charm_sched.workload import Workload

LENGTH, DOCUMENTS = 48, (0, 16, 48)


class MaskType(Enum):
    """As ``megatron.core.transformer.enums.AttnMaskType``."""

    padding = 1
    causal = 2
    no_mask = 3
    padding_causal = 4
    arbitrary = 5


def config(ranks: int, **other: Any) -> SimpleNamespace:
    known = {
        "attention_dropout": 0.0, "softmax_type": "vanilla", "context_parallel_size": ranks,
        "window_size": None, "window_attn_skip_freq": None,
    }  # fmt: skip
    return SimpleNamespace(**known | other)


def made(ranks: int, *, mask: str = "causal", documents: tuple[int, ...] = ()) -> Schedule:
    work = Workload(
        seq_len=LENGTH, batch=1 if documents else 2, heads=4, kv_heads=2, head_dim=8, dtype="fp64",
        mask=mask,
    )  # fmt: skip
    if not documents:
        return cases.make_schedule("charm", work, "zigzag", ranks)
    lengths = [last - first for first, last in pairwise(documents)]
    return cases.make_schedule("charm", work, Partition.per_document(lengths, ranks), ranks)


def layer(schedule: Schedule, ranks: int, mask_type: MaskType, **other: Any) -> Any:
    """Build a layer's core attention as Megatron does."""
    build = core_attention(schedule, timeout=WAIT)
    given: dict[str, Any] = {
        "config": config(ranks), "layer_number": 1, "attn_mask_type": mask_type,
        "attention_type": "self", "cp_comm_type": None, "softmax_scale": None,
        "pg_collection": SimpleNamespace(cp=dist.group.WORLD),
    }  # fmt: skip
    return build(**given | other)


def megatron(rank: int, ranks: int) -> dict[str, Any]:
    """Give the errors of dense and packed calls, and what is refused."""
    found: dict[str, Any] = {}
    for name, documents in (("dense", ()), ("packed", DOCUMENTS)):
        schedule = made(ranks, documents=documents)
        work = schedule.forward.workload
        tensors = cases.make_tensors(work)
        q, k, v, dout = (shard(x, schedule).permute(2, 0, 1, 3).contiguous() for x in tensors)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        packed = None
        if documents:
            offsets = torch.tensor(documents, dtype=torch.int32)
            packed = SimpleNamespace(
                qkv_format="thd", cu_seqlens_q=offsets, cu_seqlens_q_padded=None
            )
            bound = Workload(**work.to_document() | {"mask": "docs:16,32"})  # type: ignore[arg-type]
        else:
            bound = work
        given = [x[:, 0] if documents else x for x in inputs]
        attend = layer(schedule, ranks, MaskType.causal)
        out = attend(
            *given, None, attn_mask_type=MaskType.causal, attention_bias=None,
            packed_seq_params=packed,
        )  # fmt: skip
        assert out.shape[1:] == ((4, 8) if documents else (2, 32))
        rows = out.reshape(out.shape[0], -1, 4, 8)
        results = [rows, *torch.autograd.grad(rows, inputs, dout)]
        whole = [unshard(x.permute(1, 2, 0, 3).contiguous(), schedule) for x in results]
        found[name] = max(cases.errors(whole, cases.dense_attention(bound, *tensors)).values())
    return found | {"refused": _refused_by_megatron(ranks)}


def _refused_by_megatron(ranks: int) -> dict[str, str]:
    schedule, full = made(ranks), made(ranks, mask="full")
    tokens = LENGTH // ranks
    q = torch.zeros(tokens, 2, 4, 8, dtype=torch.float64)
    k = q[:, :, :2]
    causal, said = MaskType.causal, {}
    for name, other in {
        "dropout": {"config": config(ranks, attention_dropout=0.1)},
        "sinks": {"config": config(ranks, softmax_type="learnable")},
        "ranks": {"config": config(ranks + 1)},
        "cross": {"attention_type": "cross"},
        "window": {"config": config(ranks, window_size=(7, 0))},
        "unknown": {"k_channels": 8},
    }.items():
        said[name] = heard(lambda other=other: layer(schedule, ranks, causal, **other))
    calls = {
        "two-way": (full, causal, {}),
        "arbitrary": (schedule, MaskType.arbitrary, {}),
        "padding": (schedule, MaskType.padding_causal, {}),
        "bias": (schedule, causal, {"attention_bias": torch.zeros(1)}),
        "format": (schedule, causal, {"packed_seq_params": SimpleNamespace(qkv_format="bshd")}),
    }
    for name, (plan, kind, other) in calls.items():
        attend = layer(plan, ranks, kind)
        said[name] = heard(lambda attend=attend, other=other: attend(q, k, k, None, **other))
    offsets = torch.tensor([0, 24, 48])
    packed = SimpleNamespace(qkv_format="thd", cu_seqlens_q=offsets, cu_seqlens_q_padded=None)
    odd = layer(made(ranks, documents=DOCUMENTS), ranks, causal)
    said["cut"] = heard(lambda: odd(q[:, 0], k[:, 0], k[:, 0], None, packed_seq_params=packed))
    said["zigzag"] = heard(lambda: odd(q, k, k, None))
    windowed = made(ranks, mask="window:8")
    layer(windowed, ranks, causal, config=config(ranks, window_size=(7, 0)))
    return said


class Holder(nn.Module):
    """Calls its inner attention as ``GQAttention`` does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner_attention: Any = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = self.inner_attention(
            q, k, v, attention_masks=None, scale=8**-0.5, enable_gqa=q.shape[2] > k.shape[2]
        )
        return out.contiguous().flatten(2)


def torchtitan(rank: int, ranks: int) -> dict[str, Any]:
    """Give the error of a call, and what is refused."""
    schedule = made(ranks)
    work = schedule.forward.workload
    model = nn.ModuleList([Holder(), Holder()])
    assert replace_inner_attention(model, schedule, timeout=WAIT) == 2
    tensors = cases.make_tensors(work)
    q, k, v, dout = (shard(x, schedule).transpose(1, 2).contiguous() for x in tensors)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    found: dict[str, Any] = {}
    for name, offsets, mask in (("causal", None, "causal"), ("packed", [0, 16, 48], "docs:16,32")):
        model[1].inner_attention.cu_seqlens = offsets
        out = model[1](*inputs).unflatten(2, (4, 8))
        results = [out, *torch.autograd.grad(out, inputs, dout)]
        whole = [unshard(x.transpose(1, 2).contiguous(), schedule) for x in results]
        bound = Workload(**work.to_document() | {"mask": mask})  # type: ignore[arg-type]
        found[name] = max(cases.errors(whole, cases.dense_attention(bound, *tensors)).values())
    inner, given = model[0].inner_attention, [x.detach() for x in inputs]
    found["refused"] = {
        "masks": heard(lambda: inner(*given, attention_masks=object(), enable_gqa=True)),
        "unknown": heard(lambda: inner(*given, out_transform=len, enable_gqa=True)),
        "two-way": heard(lambda: inner(*given, enable_gqa=True, is_causal=False)),
        "groups": heard(lambda: inner(*given)),
        "none": heard(lambda: replace_inner_attention(nn.Linear(1, 1), schedule)),
    }
    return found
