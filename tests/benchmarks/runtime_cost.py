"""What the executor costs per op: programs run with kernels and transfers that cost nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.runtime.execution import Execution
from charm_sched.runtime.kernels import Reference
from charm_sched.runtime.memory import Memory, Slots
from charm_sched.runtime.numerics import DTYPES
from charm_sched.runtime.passes import Worker, set_up_backward, set_up_forward
from charm_sched.runtime.prepare import prepare
from charm_sched.runtime.program import Program
from charm_sched.runtime.threads import run_in_threads
from charm_sched.runtime.transport import Done
from charm_sched.workload import Workload


class Nowhere:
    """A transport whose transfers end at once."""

    memory: Callable[..., Memory] = Memory

    def send(self, message: Tensor, *, peer: int, lane: int, tag: int, done: Done) -> None:
        done(None)

    def receive(self, message: Tensor, *, peer: int, lane: int, tag: int, done: Done) -> None:
        done(None)

    def drive(self, execution: Execution) -> None:
        run_in_threads(execution, self)

    def abort(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a plan costs its rank 0.

    Attributes:
        ops: Ops of the rank.
        seconds: Per op: the whole pass over its ops, the median run.
        least: The fastest run, likewise.
    """

    ops: int
    seconds: float
    least: float


def plans(strategy: str, ranks: int) -> list[Plan]:
    """Give both plans of a strategy, on few numbers."""
    work = Workload(seq_len=2 * ranks, heads=ranks, head_dim=2, dtype="fp32", mask="full")
    shards = Partition.of("zigzag", work, ranks)
    found = []
    for direction in ("forward", "backward"):
        builder = Builder(work, shards, direction=direction)
        PLANNERS[strategy](builder)
        found.append(builder.build(strategy))
    return found


def set_up(plan: Plan, program: Program, slots: Slots) -> Execution:
    """Set up a pass that computes nothing."""
    work = plan.workload
    rows = sum(last - first for first, last in plan.partition.shards[0])

    def zeros(heads: int) -> Tensor:
        return torch.zeros((1, heads, rows, work.head_dim), dtype=DTYPES[work.dtype])

    q, k, v, dout = (
        zeros(work.heads),
        zeros(work.num_kv_heads),
        zeros(work.num_kv_heads),
        zeros(work.heads),
    )
    worker = Worker(program=program, slots=slots, transport=Nowhere())
    pace = [0.0] * len(plan)
    if plan.direction == "forward":
        return set_up_forward(worker, q, k, v, kernel=Reference(), scale=1.0, pace=pace).execution
    lse = torch.zeros(q.shape[:3])
    return set_up_backward(
        worker, (q, k, v, dout, lse, dout), kernel=Reference(), scale=1.0, residents={}, pace=pace
    ).execution


def cost_of(plan: Plan, repeat: int = 30) -> Cost:
    """Measure one plan."""
    program = prepare(plan, 0)
    slots = Slots(program.slots)
    times = []
    for _ in range(repeat + 3):
        execution = set_up(plan, program, slots)
        begin = time.perf_counter()
        run_in_threads(execution, Nowhere())
        times.append(time.perf_counter() - begin)
    ops = len(program.steps)
    return Cost(ops=ops, seconds=statistics.median(times[3:]) / ops, least=min(times[3:]) / ops)


def main() -> None:
    """Print the cost of a few strategies."""
    torch.set_num_threads(1)
    for strategy, ranks in (("ring", 16), ("charm", 16), ("mesh", 16), ("ulysses", 16)):
        for plan in plans(strategy, ranks):
            cost = cost_of(plan)
            print(  # noqa: T201
                f"{strategy:10} {plan.direction:8} {cost.ops:5} ops  "
                f"{cost.seconds * 1e6:6.1f} us per op (least {cost.least * 1e6:.1f})"
            )


if __name__ == "__main__":
    main()
