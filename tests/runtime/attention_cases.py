"""Schedules, tensors and dense attention to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from charm_sched.errors import CharmSchedError
from charm_sched.masks.mask import Mask, parse_mask
from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.proof.verifier import verify
from charm_sched.runtime.backends.choice import choose_kernel
from charm_sched.runtime.kernels import Kernel, Need
from charm_sched.runtime.memory import Slots
from charm_sched.runtime.numerics import DTYPES
from charm_sched.runtime.passes import Worker, set_up_backward, set_up_forward
from charm_sched.runtime.prepare import prepare
from charm_sched.runtime.rebinding import rebound_plan
from charm_sched.runtime.sharding import join, shard
from charm_sched.runtime.tiles import Cutter
from charm_sched.runtime.together import Exchange, run_together
from charm_sched.workload import Workload

Planner = Callable[..., None]
Results = tuple[Tensor, Tensor, Tensor, Tensor]
NAMES = ("out", "dq", "dk", "dv")


def make_schedule(
    planner: str | Planner,
    workload: Workload,
    partition: str | Partition,
    ranks: int,
    params: Mapping[str, Any] | None = None,
) -> Schedule:
    """Let a planner write both plans, and prove them."""
    write = PLANNERS[planner] if isinstance(planner, str) else planner
    if isinstance(partition, str):
        partition = Partition.of(partition, workload, ranks)
    plans: list[Plan] = []
    saved: list[Any] = []
    for direction in ("forward", "backward"):
        builder = Builder(workload, partition, direction=direction, saved=saved)
        write(builder, **(params or {}))
        plans.append(builder.build("test", params))
        verify(plans[-1], workload)
        kept = plans[-1].saved
        saved = [
            (int(rank), plans[-1].items[int(item)], int(slot))
            for rank, item, slot in zip(kept.rank, kept.item, kept.slot, strict=True)
        ]
    return Schedule(forward=plans[0], backward=plans[1])


def heads_for(planner: str, ranks: int, heads: int) -> int:
    """Give ``heads``, or more in steps of four where a planner needs as many as ranks."""
    return heads if planner != "ulysses" or ranks <= heads else -(-ranks // 4) * 4


def need_for(
    dtype: torch.dtype, head_dim: int = 8, value_dim: int = 8, *, windows: bool = True
) -> Need:
    """Give a need for processors."""
    return Need(
        device=torch.device("cpu"), dtype=dtype, head_dim=head_dim, value_dim=value_dim,
        windows=windows,
    )  # fmt: skip


def kernel_for(backend: str | None, dtype: torch.dtype) -> Kernel:
    """Give a kernel for processors, by name or the automatic one."""
    return choose_kernel(backend, need_for(dtype))


def make_tensors(work: Workload, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw whole q, k, v and the gradient of the output."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (work.heads, work.head_dim),
        (work.num_kv_heads, work.head_dim),
        (work.num_kv_heads, work.value_dim),
        (work.heads, work.value_dim),
    )
    q, k, v, dout = (
        torch.randn(
            work.batch, heads, work.seq_len, size, dtype=torch.float64, generator=generator
        ).to(DTYPES[work.dtype])
        for heads, size in shapes
    )
    return q, k, v, dout


def dense_mask(work: Workload) -> Tensor:
    """Give which keys each query sees, ``[seq_len, seq_len]``, from each mask's definition."""
    row, key = torch.arange(work.seq_len).unsqueeze(1), torch.arange(work.seq_len)
    mask = work.mask_rule
    if mask.kind == "full":
        return torch.ones(work.seq_len, work.seq_len, dtype=torch.bool)
    if mask.kind == "causal":
        return key <= row
    if mask.kind == "window":
        assert mask.window is not None
        return (key <= row) & (key > row - mask.window)
    if mask.kind == "blocks":
        seen = torch.zeros(work.seq_len, work.seq_len, dtype=torch.bool)
        for block in mask.blocks:
            (q, q_end), (k, k_end) = block.rows, block.keys
            ahead = (key - k_end) - (row - q_end)  # of the diagonal through the last row and key
            here = (q <= row) & (row < q_end) & (k <= key) & (key < k_end)
            if block.causal:
                here &= (ahead <= 0) & (ahead > -(block.window or work.seq_len * 2))
            seen |= here
        return seen
    document = torch.repeat_interleave(torch.tensor(mask.documents))
    same = document.unsqueeze(1) == document
    return same if mask.kind == "docs-full" else same & (key <= row)


def dense_attention(
    work: Workload, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, scale: float | None = None
) -> Results:
    """Attend on one device in fp64; give the output and the gradients of q, k and v."""
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(work.heads_per_kv, 1) for x in wide[1:])
    scores = wide[0] @ keys.transpose(-1, -2) * (scale or work.scale)
    seen = dense_mask(work)
    p = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
    out = p.masked_fill(~seen.any(1, keepdim=True), 0) @ values  # rows that see nothing give 0
    dq, dk, dv = torch.autograd.grad(out, wide, dout.double())
    return out.detach(), dq, dk, dv


def run_in_process(
    schedule: Schedule,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    *,
    backend: str | None = None,
    seed: int | None = None,
    mask: str | Mask | None = None,
) -> Results:
    """Run both plans, maybe under another mask, all ranks in this process; give whole results."""
    forward, backward = schedule.plans
    ranks, scale = range(forward.num_ranks), forward.workload.scale
    kernel = kernel_for(backend, tensors[0].dtype)
    parts = [tuple(shard(x, schedule, rank=rank) for x in tensors) for rank in ranks]
    exchange = Exchange()

    def worker(plan: Plan, rank: int) -> Worker:
        program = prepare(plan, rank)
        if mask is not None:
            rule = parse_mask(mask) if isinstance(mask, str) else mask
            cut = Cutter(rule, plan.workload.seq_len)
            program = program.rebound(rebound_plan(plan, rule, check=True), cut)
        return Worker(program=program, slots=Slots(program.slots), transport=exchange.port(rank))

    first = [
        set_up_forward(worker(forward, rank), *parts[rank][:3], kernel=kernel, scale=scale)
        for rank in ranks
    ]
    run_together([ready.execution for ready in first], exchange, seed)
    outs = [ready.result() for ready in first]
    second = []
    for rank, (out, lse, residents) in enumerate(outs):
        q, k, v, dout = parts[rank]
        second.append(
            set_up_backward(
                worker(backward, rank), (q, k, v, out, lse, dout),
                kernel=kernel, scale=scale, residents=residents,
            )
        )  # fmt: skip
    run_together([ready.execution for ready in second], exchange, seed)
    gradients = [ready.result() for ready in second]
    out = join([out for out, _, _ in outs], schedule)
    dq, dk, dv = (join(list(column), schedule) for column in zip(*gradients, strict=True))
    return out, dq, dk, dv


def log_sum_exps(schedule: Schedule, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Run the forward, all ranks in this process; give each rank's log-sum-exp."""
    plan, exchange = schedule.forward, Exchange()
    kernel, runs = kernel_for(None, tensors[0].dtype), []
    for rank in range(plan.num_ranks):
        program = prepare(plan, rank)
        worker = Worker(program=program, slots=Slots(program.slots), transport=exchange.port(rank))
        q, k, v = (shard(x, schedule, rank=rank) for x in tensors[:3])
        runs.append(set_up_forward(worker, q, k, v, kernel=kernel, scale=plan.workload.scale))
    run_together([run.execution for run in runs], exchange, None)
    return [run.result()[1] for run in runs]


def errors(found: Sequence[Tensor], expected: Sequence[Tensor]) -> dict[str, float]:
    """Give the largest absolute difference of the output and each gradient."""
    return {
        name: float((have.double() - want.double()).abs().max())
        for name, have, want in zip(NAMES, found, expected, strict=True)
    }


def heard(call: Callable[[], Any]) -> str:
    """Give what a call refuses with."""
    try:
        call()
    except CharmSchedError as error:
        return str(error)
    return "nothing was refused"
