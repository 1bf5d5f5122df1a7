"""Tries a plan out: runs it on drawn tensors, times it, and compares it with dense attention."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from charm_sched.errors import RuntimeFailure
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.runtime.autograd import TIMEOUT, attention
from charm_sched.runtime.checks import forward_of
from charm_sched.runtime.numerics import DTYPES
from charm_sched.runtime.recording import Recorder
from charm_sched.runtime.sharding import shard, unshard
from charm_sched.timelines.timeline import Timeline
from charm_sched.workload import Workload

MOST_CHECKED_FLOPS = 1e12  # about a minute on one core
SLACK = 4.0  # times the error of one device; docs/training.md has what was measured
_BLOCK = 256  # query rows at once, so that memory grows with the length and not its square


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """What a trial found.

    Attributes:
        timelines: Measured timelines of each direction, one per repetition; on rank 0.
        max_error: Largest absolute difference from dense attention in fp64, per direction: of the
            output, and of the gradients; on rank 0, None where it was not compared.
        exact: Whether no row is further off than `SLACK` times what one device is off; likewise.
    """

    timelines: Mapping[str, list[Timeline]]
    max_error: Mapping[str, float] | None
    exact: Mapping[str, bool] | None = None


def join_world(timeout: float = TIMEOUT) -> tuple[int, int]:
    """Join the processes that torchrun started; give this rank and their number.

    Raises:
        RuntimeFailure: Not started by torchrun, or the others do not come.
    """
    if not dist.is_torchelastic_launched():
        raise RuntimeFailure(
            "charm-run runs under torchrun: torchrun --nproc-per-node N -m charm_sched.run ..."
        )
    try:
        store, rank, ranks = next(rendezvous("env://"))
        # PyTorch 2.13 keeps the store over a restart, with addresses of processes that have ended.
        store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=timeout)
        )
    except RuntimeError as error:
        raise RuntimeFailure(f"the processes do not find each other: {error}") from error
    return dist.get_rank(), dist.get_world_size()


def leave_world() -> None:
    """Part from the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


def broadcast(content: bytes | None) -> bytes:
    """Give all ranks what rank 0 has."""
    length = torch.tensor([len(content or b"")])
    dist.broadcast(length, src=0)
    data = torch.zeros(int(length), dtype=torch.uint8)
    if content:
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    if len(data):
        dist.broadcast(data, src=0)
    return data.numpy().tobytes()


def try_out(
    plan: Schedule | Plan,
    *,
    repeat: int = 5,
    timeout: float = TIMEOUT,
    backend: str | None = None,
    seed: int = 0,
    yardstick: Yardstick | None = None,
) -> Trial:
    """Run a plan on drawn tensors; all ranks must call.

    Args:
        plan: A schedule, or a forward plan.
        repeat: How often it is timed, after one run that is not.
        timeout: Seconds that a transfer may take.
        backend: Kernel; see `attention`.
        seed: Draws the tensors.
        yardstick: What results are compared with, where that is known from an earlier trial of the
            same workload and seed.

    Raises:
        RuntimeFailure: A run failed.
    """
    work = forward_of(plan).workload
    tensors = draw_tensors(work, seed)
    parts = [shard(x, plan) for x in tensors]
    recorder = Recorder()
    results = _once(plan, parts, timeout, backend, None)
    for _ in range(repeat):
        results = _once(plan, parts, timeout, backend, recorder)
    timelines: dict[str, list[Timeline]] = {}
    for line in recorder.timelines():
        timelines.setdefault(line.plan.direction, []).append(line)
    found = [unshard(x, plan) for x in results]
    if dist.get_rank() or not checkable(work):
        return Trial(timelines=timelines, max_error=None)
    yardstick = yardstick or Yardstick(work)
    wrong, exact = yardstick.compare(tensors, found)
    return Trial(timelines=timelines, max_error=wrong, exact=exact)


def _once(
    plan: Schedule | Plan,
    parts: list[Tensor],
    timeout: float,
    backend: str | None,
    recorder: Recorder | None,
) -> list[Tensor]:
    """Give this rank's output and, under a schedule, its gradients."""
    differentiable = isinstance(plan, Schedule)
    inputs = [x.detach().requires_grad_(differentiable) for x in parts[:3]]
    q, k, v = inputs
    out = attention(q, k, v, plan=plan, timeout=timeout, backend=backend, recorder=recorder)
    if not differentiable:
        return [out]
    return [out.detach(), *torch.autograd.grad(out, inputs, parts[3])]


def checkable(work: Workload) -> bool:
    """Say whether a workload is small enough to be compared with dense attention."""
    pairs = work.heads * work.seq_len**2
    flops = pairs * (work.flops_per_pair("forward") + work.flops_per_pair("backward"))
    return flops <= MOST_CHECKED_FLOPS


class Yardstick:
    """Dense attention in fp64, and how far one device is off it in the workload's dtype.

    A row's error is the largest absolute difference in it, over the root mean square of what is
    right, so that a row that averages many keys is held to its own small numbers.
    """

    def __init__(self, work: Workload) -> None:
        self._work = work
        self._known: tuple[list[Tensor], list[float]] | None = None

    def compare(
        self, tensors: tuple[Tensor, ...], found: Sequence[Tensor]
    ) -> tuple[dict[str, float], dict[str, bool]]:
        """Give the largest error, and whether all is exact, per direction.

        Args:
            tensors: Whole q, k, v and the gradient of the output; the same in every call.
            found: The whole output, and maybe the gradients of q, k and v.
        """
        if self._known is None:
            exact = list(dense_attention(self._work, *tensors))
            single = one_device(self._work, *tensors)
            self._known = exact, list(map(row_error, single, exact))
        exact, allowed = self._known
        least = torch.finfo(DTYPES[self._work.dtype]).eps
        wrong = [float((a.double() - b).abs().max()) for a, b in zip(found, exact, strict=False)]
        right = [
            row_error(a, b) <= SLACK * limit + least
            for a, b, limit in zip(found, exact, allowed, strict=False)
        ]
        largest, all_right = {"forward": wrong[0]}, {"forward": right[0]}
        if wrong[1:]:
            largest["backward"], all_right["backward"] = max(wrong[1:]), all(right[1:])
        return largest, all_right


def row_error(found: Tensor, exact: Tensor) -> float:
    """Give the largest error of any row, over the root mean square of the row.

    Rows of zeros count as they are, so that they have to be zeros.
    """
    size = exact.square().mean(-1, keepdim=True).sqrt()
    error = (found.double() - exact).abs() / torch.where(size == 0, torch.ones_like(size), size)
    return float(error.max()) if error.numel() else 0.0


def one_device(work: Workload, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> list[Tensor]:
    """Attend on this device with PyTorch's own attention, in the dtype of the tensors."""
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(work.heads_per_kv, 1) for x in inputs[1:])
    seen = _visible(work, 0, work.seq_len)
    out = F.scaled_dot_product_attention(inputs[0], keys, values, attn_mask=seen, scale=work.scale)
    out = out.masked_fill(~seen.any(1).unsqueeze(-1), 0)
    return [out.detach(), *torch.autograd.grad(out, inputs, dout)]


def draw_tensors(work: Workload, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw whole q, k, v and the gradient of the output from a normal distribution."""
    generator = torch.Generator().manual_seed(seed)

    def draw(heads: int, size: int) -> Tensor:
        shape = (work.batch, heads, work.seq_len, size)
        return torch.randn(shape, generator=generator).to(DTYPES[work.dtype])

    q, k = draw(work.heads, work.head_dim), draw(work.num_kv_heads, work.head_dim)
    return q, k, draw(work.num_kv_heads, work.value_dim), draw(work.heads, work.value_dim)


def dense_attention(
    work: Workload, q: Tensor, k: Tensor, v: Tensor, dout: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend on this device in fp64, straight from the definition.

    Returns:
        The output and the gradients of q, k and v, each of its whole shape.
    """
    q, k, v, dout = (x.double() for x in (q, k, v, dout))
    out, dq, dk, dv = (torch.zeros_like(x) for x in (dout, q, k, v))
    for first in range(0, work.seq_len, _BLOCK):
        rows = slice(first, first + _BLOCK)
        seen = _visible(work, first, min(first + _BLOCK, work.seq_len))
        empty = ~seen.any(1, keepdim=True)
        for head in range(work.heads):
            at, shared = (slice(None), head, rows), (slice(None), head // work.heads_per_kv)
            scores = (q[at] @ k[shared].mT) * work.scale
            p = torch.softmax(scores.masked_fill_(~seen, -torch.inf), -1).masked_fill_(empty, 0)
            out[at] = p @ v[shared]
            dp = dout[at] @ v[shared].mT
            ds = p * (dp - (dout[at] * out[at]).sum(-1, keepdim=True)) * work.scale
            dq[at] = ds @ k[shared]
            dk[shared] += ds.mT @ q[at]
            dv[shared] += p.mT @ dout[at]
    return out, dq, dk, dv


def _visible(work: Workload, first: int, last: int) -> Tensor:
    """Give which keys the rows ``first .. last - 1`` see, ``[rows, seq_len]``."""
    row, key = torch.arange(first, last).unsqueeze(1), torch.arange(work.seq_len)
    seen = torch.zeros((last - first, work.seq_len), dtype=torch.bool)
    for segment in work.mask_rule.segments_of(work.seq_len, ((first, last),)):
        lower, upper = (
            limit.offset + row * limit.slides for limit in (segment.lower, segment.upper)
        )
        rows = (segment.first <= row) & (row < segment.last)
        seen |= rows & (lower <= key) & (key < upper)
    return seen
