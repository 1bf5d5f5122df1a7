"""Tasks of `ranks`: attention as a training team puts it into a model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attention_cases as cases
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from attention_cases import heard
from composed_calls import furthest, schedule_for
from differing_calls import WAIT, make
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import scaled_dot_product_attention as own_name
from torch.utils.checkpoint import checkpoint

from charm_sched.plans.plan import Schedule
from charm_sched.runtime import (
    attention,
    context_parallel,
    positions,
    shard,
    shard_batch,
    unshard,
)
from charm_sched.runtime.backends.choice import choose_kernel

WORDS, WIDTH, HEADS, SIZE, LENGTH = 32, 32, 4, 8, 42
BATCH = 2
DOCUMENTS = (0, 11, 15, 42)


class Layer(nn.Module):
    """Attention with a residual; how it attends is given."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.k = nn.Linear(WIDTH, HEADS * SIZE // 2, bias=False)
        self.v = nn.Linear(WIDTH, HEADS * SIZE // 2, bias=False)
        self.o = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for y in (self.q, self.k, self.v))
        return x + self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Tokens and positions, two layers, and scores of the next token."""

    def __init__(self, attend: Callable[..., Tensor], dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer(attend) for _ in range(2))
        self.scores = nn.Linear(WIDTH, WORDS, bias=False)
        self.to(dtype)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(places)
        for layer in self.layers:
            x = layer(x)
        return self.scores(x)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def by_another_name(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return own_name(q, k, v, is_causal=True, enable_gqa=True)


def make_tokens() -> Tensor:
    return torch.randint(WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(3))


def work_for(ranks: int, planner: str = "charm", save: bool = False, **other: Any) -> Schedule:
    shape = {"seq_len": LENGTH, "batch": BATCH, "heads": HEADS, "kv_heads": 2, "head_dim": SIZE,
             "dtype": "fp64"}  # fmt: skip
    return make(
        {"workload": shape | other, "planner": planner, "partition": "zigzag",
         "params": {"save": True} if save else {}},
        ranks,
    )[1]  # fmt: skip


def loss_of(model: nn.Module, tokens: Tensor, places: Tensor, labels: Tensor, items: int) -> Tensor:
    scores = model(tokens, places)
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum") / items


@functools.cache
def expected() -> tuple[float, dict[str, Tensor]]:
    """Give the loss and the gradients of one process."""
    model, tokens = Model(plain), make_tokens()
    labels = F.pad(tokens[:, 1:], (0, 1), value=-100)
    items = int((labels != -100).sum())
    loss = loss_of(model, tokens, torch.arange(LENGTH).expand(BATCH, -1), labels, items)
    loss.backward()
    return loss.item(), {name: w.grad for name, w in model.named_parameters() if w.grad is not None}


def compared(loss: Tensor, gradients: dict[str, Tensor], group: Any = None) -> float:
    """Give the largest difference from one process, after sums over the ranks of a group."""
    total = loss.detach().clone()
    dist.all_reduce(total, group=group)
    want_loss, want = expected()
    assert set(gradients) == set(want)
    wrong = [abs(float(total) - want_loss)]
    return max(wrong + [furthest([gradients[name]], [want[name]]) for name in want])


def summed(model: nn.Module, group: Any = None) -> dict[str, Tensor]:
    found = {}
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        found[name] = weight.grad.clone()
        dist.all_reduce(found[name], group=group)
    return found


def in_context(rank: int, ranks: int) -> dict[str, Any]:
    """Train a model that knows nothing of plans inside `context_parallel`."""
    found: dict[str, Any] = {}
    torch._dynamo.reset()
    for name, attend, save in (
        ("plain", plain, False), ("recompute", plain, False), ("recompute saved", plain, True),
        ("by another name", by_another_name, False), ("compiled", plain, False),
        ("compiled by another name", by_another_name, True),
    ):  # fmt: skip
        schedule, model = work_for(ranks, save=save), Model(attend)
        if name.startswith("recompute"):
            recomputed(model)
        called = model
        if name.startswith("compiled"):
            called = torch.compile(model, fullgraph=True, backend="aot_eager")
        tokens = make_tokens()
        labels = F.pad(tokens[:, 1:], (0, 1), value=-100)
        places = torch.arange(LENGTH).repeat(BATCH, 1)
        items = int((labels != -100).sum())
        before = [x.clone() for x in (tokens, labels, places)]
        with context_parallel(
            schedule, buffers=[tokens, labels, places], buffer_seq_dims=[1, 1, -1], timeout=WAIT
        ):
            assert torch.equal(places[0], positions(schedule))
            loss = loss_of(called, tokens, places, labels, items)
            loss.backward()
        found[name] = compared(loss, summed(model))
        for x, y in zip((tokens, labels, places), before, strict=True):
            assert torch.equal(x, y)
    found["after"] = furthest([plain(*_three())], [_expected_plain()])
    found["refused"] = _refused_in_context(rank, ranks)
    return found


def recomputed(model: Model) -> None:
    """Compute the activations of each layer again in the backward."""
    for layer in model.layers:
        layer.forward = functools.partial(  # type: ignore[method-assign]
            checkpoint, layer.forward, use_reentrant=False
        )


def _three() -> list[Tensor]:
    work = schedule_for(1)[0]
    return list(cases.make_tensors(work)[:3])


def _expected_plain() -> Tensor:
    q, k, v = _three()
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    rows = torch.arange(q.shape[2])
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return torch.softmax(scores.masked_fill(rows > rows.unsqueeze(1), -torch.inf), -1) @ v


def _refused_in_context(rank: int, ranks: int) -> dict[str, str]:
    schedule = work_for(ranks)
    tokens = shard(make_tokens(), schedule, dim=1).shape[1]
    q = torch.zeros(BATCH, HEADS, tokens, SIZE, dtype=torch.float64)
    k = q[:, :2]
    calls: dict[str, Callable[[], Any]] = {
        "attn_mask": lambda: F.scaled_dot_product_attention(
            q, k, k, attn_mask=torch.ones(tokens, tokens), enable_gqa=True
        ),
        "two-way": lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
        "cross": lambda: F.scaled_dot_product_attention(q, k[:, :, 1:], k[:, :, 1:]),
        "heads": lambda: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        "dropout": lambda: F.scaled_dot_product_attention(
            q, k, k, is_causal=True, enable_gqa=True, dropout_p=0.1
        ),
        "by another name": lambda: own_name(q, k, k, enable_gqa=True),
        "repeated": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
    }
    said = {}
    kept = torch.zeros(1, LENGTH)
    with context_parallel(
        schedule, buffers=[kept], buffer_seq_dims=[1], no_restore_buffers=[kept], timeout=WAIT
    ):
        said = {name: heard(call) for name, call in calls.items()}
        wrong = rank == 1
        said["one rank"] = heard(
            lambda: F.scaled_dot_product_attention(q, k, k, is_causal=not wrong, enable_gqa=True)
        )
    assert kept.shape[1] == tokens
    whole = torch.zeros(LENGTH, 2)
    buffers: dict[str, dict[str, Any]] = {
        "dims": {"buffers": [whole], "buffer_seq_dims": []},
        "type": {"buffers": [None], "buffer_seq_dims": [0]},
        "length": {"buffers": [whole], "buffer_seq_dims": [1]},
        "no dim": {"buffers": [whole], "buffer_seq_dims": [2]},
        "view": {"buffers": [whole.T], "buffer_seq_dims": [1]},
        "gradient": {"buffers": [nn.Parameter(whole)], "buffer_seq_dims": [0]},
        "twice": {"buffers": [whole, whole], "buffer_seq_dims": [0, 0]},
        "kept": {"buffers": [whole], "buffer_seq_dims": [0], "no_restore_buffers": [whole.clone()]},
    }
    for name, given in buffers.items():
        said[name] = heard(lambda given=given: context_parallel(schedule, **given).__enter__())
        assert whole.shape == (LENGTH, 2)
    return said


def fully_sharded(rank: int, ranks: int) -> dict[str, float]:
    """Shard weights over all ranks (FSDP2), and the sequence over one dimension of the mesh."""
    found = {}
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp", "cp"))
    flat = mesh._flatten("dp_cp") if hasattr(mesh, "_flatten") else mesh["dp", "cp"]
    inner = mesh["cp"]
    schedule = work_for(ranks // 2, batch=1)
    attend = functools.partial(attention, plan=schedule, group=inner, timeout=WAIT)
    for name, recompute in (("fsdp", False), ("fsdp recompute", True)):
        model = Model(attend)
        if recompute:
            recomputed(model)
        for part in (*model.layers, model):
            fully_shard(part, mesh=flat)
            part.set_gradient_divide_factor(1.0)  # sums: the loss is divided already
        # Each data-parallel rank has one row of the batch, each context-parallel one its tokens.
        row = mesh.get_local_rank("dp")
        batch = shard_batch(make_tokens()[row : row + 1], schedule, group=inner)
        loss = loss_of(
            model, batch.input_ids, batch.position_ids, batch.labels, 2 * batch.num_items
        )
        loss.backward()
        gradients = {n: w.grad.full_tensor() for n, w in model.named_parameters()}  # type: ignore[union-attr]
        found[name] = compared(loss, gradients)
    return found


def tensor_parallel(rank: int, ranks: int) -> float:
    """Split heads over one dimension of the mesh, and the sequence over the other."""
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("cp", "tp"))
    schedule = work_for(ranks // 2, heads=HEADS // 2, kv_heads=1)
    attend = functools.partial(attention, plan=schedule, group=mesh["cp"], timeout=WAIT)
    model = Model(attend)
    style = {name: ColwiseParallel() for name in "qkv"} | {"o": RowwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], style)
    batch = shard_batch(make_tokens(), schedule, group=mesh["cp"])
    loss = loss_of(model, batch.input_ids, batch.position_ids, batch.labels, batch.num_items)
    loss.backward()
    gradients = {}
    for name, weight in model.named_parameters():
        whole = weight.grad.full_tensor() if hasattr(weight.grad, "full_tensor") else weight.grad  # type: ignore[union-attr]
        gradients[name] = whole.clone()
        dist.all_reduce(gradients[name], group=mesh["cp"].get_group())
    return compared(loss, gradients, mesh["cp"].get_group())


def distributed_tensors(rank: int, ranks: int) -> str:
    """Give what is said about a DTensor."""
    schedule, mesh = work_for(ranks), init_device_mesh("cpu", (ranks,))
    tokens = shard(make_tokens(), schedule, dim=1).shape[1]
    q = torch.zeros(BATCH, HEADS, tokens, SIZE, dtype=torch.float64)
    wrapped = DTensor.from_local(q, mesh, [Replicate()])
    return heard(lambda: attention(wrapped, q[:, :2], q[:, :2], plan=schedule, timeout=WAIT))


def precise(rank: int, ranks: int) -> dict[str, Any]:
    """Train under autocast, accumulate gradients, and attend without them."""
    schedule, half = work_for(ranks, dtype="fp32"), work_for(ranks, dtype="bf16")
    attend = functools.partial(attention, plan=half, timeout=WAIT)
    exact = functools.partial(attention, plan=schedule, timeout=WAIT)
    batch = shard_batch(make_tokens(), half)
    given = (batch.input_ids, batch.position_ids, batch.labels, batch.num_items)
    with torch.inference_mode():  # before any training: buffers are kept from it
        for attending in (attend, exact):
            dtype = torch.bfloat16 if attending is attend else torch.float32
            loss_of(Model(attending, dtype), *given)
    losses = []
    for autocast in (True, False):
        model = Model(attend if autocast else exact, torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = loss_of(model, *given)
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total))
        assert all(w.grad is not None and w.grad.dtype == torch.float32 for w in model.parameters())
    model = Model(exact, torch.float32)
    for _ in range(2):  # two backwards before one step
        loss_of(model, *given[:3], 2 * batch.num_items).backward()
    loss = loss_of(model, *given)
    with torch.no_grad():
        silent = loss_of(model, *given)
    return {
        "autocast": abs(losses[0] - losses[1]),
        "fp32": compared(loss, summed(model)),
        "silent": float((loss.detach() - silent).abs()),
    }


def compiled(rank: int, ranks: int) -> dict[str, Any]:
    """Compile a model around attention as one graph, saved items and changing masks included."""
    found: dict[str, Any] = {}
    for name, save, planner in (("charm", False, "charm"), ("saved", True, "charm")):
        torch._dynamo.reset()
        schedule = work_for(ranks, planner, save)
        model = Model(functools.partial(attention, plan=schedule, timeout=WAIT))
        batch = shard_batch(make_tokens(), schedule)
        fast = torch.compile(model, fullgraph=True, backend="aot_eager")
        loss = loss_of(fast, batch.input_ids, batch.position_ids, batch.labels, batch.num_items)
        loss.backward()
        found[name] = compared(loss, summed(model))
        with torch.no_grad():
            silent = loss_of(
                fast, batch.input_ids, batch.position_ids, batch.labels, batch.num_items
            )
        found[f"{name} silent"] = float((silent - loss.detach()).abs())
    return found | _changing(ranks)


def machine_code(rank: int, ranks: int) -> float:
    """Compile a function around attention with inductor; compilers may end at different times."""
    schedule = work_for(ranks, save=True)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(torch.sin(q), k * 2, v, plan=schedule, timeout=85.0) * 3

    tensors = cases.make_tensors(schedule.forward.workload)
    q, k, v, dout = (shard(x, schedule) for x in tensors)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    results = []
    for call in (function, torch.compile(function, fullgraph=True)):
        out = call(*inputs)
        results.append([out, *torch.autograd.grad(out, inputs, dout)])
    return furthest(*results)


def _changing(ranks: int) -> dict[str, Any]:
    """Change the documents, and then the plan, under one compiled function."""
    first, second = work_for(ranks), work_for(ranks, "ring", heads=2, kv_heads=2)
    compiles = []

    def counting(graph: Any, inputs: Any) -> Any:
        compiles.append(graph)
        return graph.forward

    def function(
        q: Tensor, k: Tensor, v: Tensor, plan: Schedule, offsets: Tensor | None = None
    ) -> Tensor:
        return attention(q * 2, k, v, plan=plan, cu_seqlens=offsets, timeout=WAIT) * 3

    fast = torch.compile(function, fullgraph=True, backend=counting, dynamic=False)
    wrong = []
    tensors = [shard(x, first) for x in cases.make_tensors(first.forward.workload)[:3]]
    for offsets in ([0, 11, 15, 42], [0, 1, 20, 42], [0, 30, 40, 42]):
        given = torch.tensor(offsets)
        wrong.append(furthest([fast(*tensors, first, given)], [function(*tensors, first, given)]))
    same = len(compiles)
    other = [shard(x, second) for x in cases.make_tensors(second.forward.workload)[:3]]
    wrong.append(furthest([fast(*other, second)], [function(*other, second)]))
    wrong.append(furthest([fast(*tensors, first)], [function(*tensors, first)]))
    said = ""
    try:
        fast(*tensors, second)
    except Exception as error:
        said = str(error)
    return {"changing": max(wrong), "compiles": same, "wrong plan": said}


def operator_checked(rank: int, ranks: int) -> dict[str, str]:
    """Let torch check the operator: its schema, its autograd and its fake version."""
    from charm_sched.runtime import custom_op

    work, schedule = make(
        {"workload": {"seq_len": 12, "heads": 2, "head_dim": 4, "dtype": "fp64"},
         "planner": "charm", "partition": "zigzag", "params": {"save": True}},
        ranks,
    )  # fmt: skip
    inputs = [shard(x, schedule).requires_grad_() for x in cases.make_tensors(work)[:3]]
    options = (None, None, None, 0.0, WAIT, None, True, None)
    number = custom_op._number_of(schedule, None, options)
    assert custom_op._number_of(schedule, None, options) == number
    # The fourth check compares two calls to the bit, and each call has another number.
    return torch.library.opcheck(
        torch.ops.charm_sched.attention.default,
        (*inputs, None, number, True, custom_op._sizes_of(number)),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


def flexible(rank: int, ranks: int) -> float:
    """Run FlexAttention's backend on all ranks; give the largest error."""
    work, schedule = schedule_for(ranks, mask="window:7")
    assert choose_kernel("flex", cases.need_for(torch.float64)).name == "flex"
    tensors = cases.make_tensors(work)
    q, k, v, dout = (shard(x, schedule) for x in tensors)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = attention(*inputs, plan=schedule, backend="flex", timeout=WAIT)
    found = [out, *torch.autograd.grad(out, inputs, dout)]
    whole = [unshard(x, schedule) for x in found]
    return max(cases.errors(whole, cases.dense_attention(work, *tensors)).values())


def training(rank: int, ranks: int) -> dict[str, Any]:
    """Do all of it in one process."""
    from library_calls import megatron, torchtitan

    tasks = (
        in_context, fully_sharded, tensor_parallel, distributed_tensors, precise, flexible,
        compiled, operator_checked, megatron, torchtitan,
    )  # fmt: skip
    return {task.__name__: task(rank, ranks) for task in tasks}
