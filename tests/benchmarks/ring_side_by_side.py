"""Our ring, a ring written by hand, and PyTorch's context parallelism: same shapes, same kernel.

Processes on this machine talk over gloo. The loop by hand does what public implementations do and
nothing else: no plan, no check, no threads. All take turns in one run, so that what else happens on
the machine hits all alike.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from charm_sched.partition import Partition
from charm_sched.planners.ring import ring
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Schedule
from charm_sched.runtime import attention, shard
from charm_sched.runtime.trial import draw_tensors
from charm_sched.workload import Workload

SHAPES = {
    "small": Workload(seq_len=256, heads=4, kv_heads=2, head_dim=64, dtype="fp32", mask="full"),
    "large": Workload(seq_len=4096, heads=8, kv_heads=8, head_dim=64, dtype="fp32", mask="full"),
}
RANKS, REPEAT, WARM = 2, 15, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Median seconds of the slowest rank.

    Attributes:
        ours: `charm_sched.runtime.attention` with a ring plan.
        by_hand: The loop below.
        difference: Largest difference of their results.
        torch: PyTorch's context parallelism; None where it does not run.
        reason: Why not.
    """

    ours: float
    by_hand: float
    difference: float
    torch: float | None
    reason: str | None


def by_hand(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attend over all ranks' keys, which go round."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    held = torch.stack([k, v])
    spare = torch.empty_like(held)
    out = lse = None
    for step in range(ranks):
        works: list[Any] = []
        if step < ranks - 1:
            works = [dist.irecv(spare, left), dist.isend(held, right)]
        part, part_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, held[0], held[1], 0.0, False, scale=scale
        )
        if out is None or lse is None:
            out, lse = part.float(), part_lse
        else:
            weight = torch.sigmoid(part_lse - lse).unsqueeze(-1)
            out = out + weight * (part - out)
            lse = torch.logaddexp(lse, part_lse)
        for work in works:
            work.wait()
        held, spare = spare, held
    assert out is not None
    return out.to(q.dtype)


def _schedule(work: Workload, ranks: int) -> Schedule:
    plans = []
    for direction in ("forward", "backward"):
        builder = Builder(work, Partition.contiguous(work.seq_len, ranks), direction=direction)
        ring(builder)
        plans.append(builder.build("ring"))
    return Schedule(forward=plans[0], backward=plans[1])


def _timed(call: Callable[[], Any]) -> float:
    dist.barrier()
    begin = time.perf_counter()
    call()
    took = torch.tensor([time.perf_counter() - begin])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)


def _torchs_own(whole: list[Tensor]) -> tuple[float | None, str | None]:
    """Try PyTorch's context parallelism, on whole tensors, as it wants them."""
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.tensor.experimental import context_parallel

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        with context_parallel(mesh, buffers=whole, buffer_seq_dims=[2] * 3):
            call = torch.nn.functional.scaled_dot_product_attention
            times = [_timed(lambda: call(*whole)) for _ in range(WARM + REPEAT)]
    except Exception as error:  # whatever it does not serve
        return None, f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"
    return statistics.median(times[WARM:]), None


def _rank(rank: int, ranks: int, folder: str, name: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    work = SHAPES[name]
    schedule = _schedule(work, ranks)
    q, k, v = (shard(x, schedule).contiguous() for x in draw_tensors(work, 0)[:3])
    whole = [x.repeat_interleave(work.heads // x.shape[1], 1) for x in draw_tensors(work, 0)[:3]]
    results: dict[str, Tensor] = {}

    def ours() -> None:
        results["ours"] = attention(q, k, v, plan=schedule.forward, timeout=60)

    def hand() -> None:
        results["hand"] = by_hand(q, k, v, work.scale)

    times: dict[str, list[float]] = {"ours": [], "hand": []}
    with torch.no_grad():
        for _ in range(WARM + REPEAT):
            times["ours"].append(_timed(ours))
            times["hand"].append(_timed(hand))
        own, reason = _torchs_own(whole)
    if rank == 0:
        found = Found(
            ours=statistics.median(times["ours"][WARM:]),
            by_hand=statistics.median(times["hand"][WARM:]),
            difference=float((results["ours"] - results["hand"]).abs().max()),
            torch=own, reason=reason,
        )  # fmt: skip
        Path(folder, "found.json").write_text(json.dumps(asdict(found)))
    dist.barrier()


def measure(name: str, ranks: int = RANKS) -> Found:
    """Measure one shape; torch is imported once and the ranks are forked."""
    forked = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        crew = [
            forked.Process(target=_rank, args=(rank, ranks, folder, name), daemon=True)
            for rank in range(ranks)
        ]
        for process in crew:
            process.start()
        for process in crew:
            process.join(100)
        for process in crew:
            process.kill()
        return Found(**json.loads(Path(folder, "found.json").read_text()))


def main() -> None:
    """Print what was found, as JSON."""
    print(json.dumps({name: asdict(measure(name)) for name in SHAPES}, indent=1))  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
