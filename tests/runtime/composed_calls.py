"""Tasks of `ranks` in which attention is one part of something larger: masks, models, autograd."""

from __future__ import annotations

import time
from typing import Any

import attention_cases as cases
import torch
from differing_calls import WAIT, make, run
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

from charm_sched.errors import CharmSchedError
from charm_sched.plans.plan import Schedule
from charm_sched.runtime import attention, packed_mask, positions, shard, unshard
from charm_sched.workload import Workload

LENGTH = 48
MASKS = (
    "causal", "window:7", "docs:10,1,37", "blocks:0:20x0:20c,24:48x24:48c5", "causal",
    "blocks:3:9x0:4",
)  # fmt: skip


def schedule_for(ranks: int, planner: str = "charm", **other: Any) -> tuple[Workload, Schedule]:
    shape = {"seq_len": LENGTH, "batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 8,
             "v_head_dim": 6, "dtype": "fp64"}  # fmt: skip
    return make({"workload": shape | other, "planner": planner, "partition": "zigzag"}, ranks)


def changing_masks(rank: int, ranks: int) -> list[float]:
    """Change the mask with every batch, under one plan; give the errors and what all refuse."""
    found = []
    for planner, params in (("ring", {}), ("charm", {"save": True})):
        work, schedule = make(
            {"workload": schedule_for(ranks)[0].to_document(), "planner": planner,
             "partition": "zigzag", "params": params},
            ranks,
        )  # fmt: skip
        tensors = cases.make_tensors(work)
        for mask in MASKS:
            bound = Workload(**work.to_document() | {"mask": mask})  # type: ignore[arg-type]
            results = run(schedule, tensors, mask=mask)
            found.append(
                max(cases.errors(results, cases.dense_attention(bound, *tensors)).values())
            )
        offsets = torch.tensor([0, 5, 5, 30], dtype=torch.int32)
        padded = packed_mask(offsets, LENGTH)
        bound = Workload(**work.to_document() | {"mask": str(padded)})  # type: ignore[arg-type]
        exact = cases.dense_attention(bound, *tensors)
        for options in ({"cu_seqlens": offsets}, {"mask": padded}):
            results = run(schedule, tensors, **options)
            found.append(max(cases.errors(results, exact).values()))
    return found


def refused_masks(rank: int, ranks: int) -> list[str]:
    """Give what this rank hears of calls that rank 1, or every rank, makes wrongly."""
    _, schedule = schedule_for(ranks)
    work = schedule.forward.workload
    q, k, v, _ = (shard(x, schedule) for x in cases.make_tensors(work))
    other = {"mask": "docs:24,24"} if rank == 1 else {"mask": "docs:24,12,12"}
    heard = []
    for options in ({"mask": "full"}, other, {"dropout_p": 0.1}, {"cu_seqlens": [0, 99]}):
        began = time.monotonic()
        try:
            attention(q, k, v, plan=schedule, timeout=WAIT, **options)  # type: ignore[arg-type]
        except CharmSchedError as error:
            heard.append(str(error))
        assert time.monotonic() - began < WAIT / 2
    attention(q, k, v, plan=schedule, timeout=WAIT)  # the group can still be used
    return heard


def layer(x: Tensor, weights: Tensor, work: Workload, schedule: Schedule) -> Tensor:
    """Project, attend, project back, with a residual: ``[batch, tokens, model]`` to the same."""
    heads, kv_heads, size = work.heads, work.num_kv_heads, work.head_dim
    projected = x @ weights
    q, k, v = projected.split([heads * size, kv_heads * size, kv_heads * size], -1)
    split = (y.unflatten(-1, (-1, size)).transpose(1, 2) for y in (q, k, v))
    out = attention(*split, plan=schedule, timeout=WAIT)
    return x + out.transpose(1, 2).flatten(2) @ weights[:, : heads * size].T


def composed(rank: int, ranks: int, save: str) -> dict[str, float]:
    """Give how far two layers composed in several ways are from the plain ones."""
    params = {"save": True} if save == "yes" else {}
    shape = {"seq_len": 40, "batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "dtype": "fp32"}
    work, schedule = make(
        {"workload": shape, "planner": "charm", "partition": "zigzag", "params": params}, ranks
    )
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(2, 1, 40, 16, generator=generator)
    first = (0.2 * torch.randn(16, 64, generator=generator)).requires_grad_()
    second = (0.2 * torch.randn(16, 64, generator=generator)).requires_grad_()
    x = shard(whole, schedule)[:, 0]

    def model(x: Tensor, *, recompute: bool = False) -> Tensor:
        for weights in (first, second):
            if recompute:
                x = checkpoint(layer, x, weights, work, schedule, use_reentrant=False)
            else:
                x = layer(x, weights, work, schedule)
        return x

    def gradients(loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss, (first, second)))

    plain_out = model(x)
    plain = gradients(plain_out.square().sum())
    recomputed = gradients(model(x, recompute=True).square().sum())
    halves = [gradients(model(x).square().sum() / 2) for _ in range(2)]
    accumulated = [one + other for one, other in zip(*halves, strict=True)]
    with torch.no_grad():
        silent = model(x)
    with torch.inference_mode():
        inferred = model(x)
    return {
        "checkpoint": furthest(recomputed, plain),
        "accumulation": furthest(accumulated, plain),
        "no_grad": furthest([silent], [plain_out]),
        "inference_mode": furthest([inferred], [plain_out]),
        "one device": furthest(
            [whole_of(plain_out, schedule)], [on_one(whole, first, second, work)]
        ),
    }


def furthest(found: list[Tensor], expected: list[Tensor]) -> float:
    pairs = zip(found, expected, strict=True)
    return max(float((x.detach() - y.detach()).abs().max()) for x, y in pairs)


def whole_of(x: Tensor, schedule: Schedule) -> Tensor:
    return unshard(x.detach().unsqueeze(1), schedule)[:, 0]


def on_one(whole: Tensor, first: Tensor, second: Tensor, work: Workload) -> Tensor:
    """Give the layers of a user with one device."""
    x = whole[:, 0]
    for weights in (first.detach(), second.detach()):
        q, k, v = (x @ weights).split([32, 16, 16], -1)
        q, k, v = (y.unflatten(-1, (-1, 8)).transpose(1, 2) for y in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=work.scale, enable_gqa=True
        )
        x = x + out.transpose(1, 2).flatten(2) @ weights[:, :32].T
    return x


def meshed(rank: int, ranks: int) -> dict[str, Any]:
    """Attend over one dimension of a mesh, each row of it on a batch of its own."""
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp", "cp"))
    work, schedule = schedule_for(ranks // 2)
    tensors = cases.make_tensors(work, seed=mesh.get_local_rank("dp"))
    inner = mesh["cp"]
    parts = [shard(x, schedule, group=inner) for x in tensors]
    inputs = [x.requires_grad_() for x in parts[:3]]
    out = attention(*inputs, plan=schedule, group=inner, timeout=WAIT)
    out.backward(parts[3])
    results = [unshard(x, schedule, group=inner) for x in (out, *(x.grad for x in inputs))]  # type: ignore[arg-type]
    assert len(positions(schedule, group=inner)) == out.shape[2]
    refused = ""
    try:
        attention(*inputs, plan=schedule, group=mesh, timeout=WAIT)
    except CharmSchedError as error:
        refused = str(error)
    exact = cases.dense_attention(work, *tensors)
    return {"errors": cases.errors(results, exact), "refused": refused}
