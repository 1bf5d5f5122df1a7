"""A stored plan, judged like a fresh one: verified, simulated, compared with Ring-Attention."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from charm_sched.bounds.limits import Limits, check
from charm_sched.cost import op_seconds
from charm_sched.errors import PlanError
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.proof.verifier import verify
from charm_sched.search.planning import SECONDS, plan_all
from charm_sched.search.results import Comparison, Result, fits
from charm_sched.simulator import simulate

if TYPE_CHECKING:
    from charm_sched.topology.graph import Topology


def assess(
    stored: Plan | Schedule,
    topology: Topology | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Verify and simulate a plan or schedule, beside Ring-Attention on the same devices.

    Args:
        stored: What `load_plan` gave.
        topology: The machine; None for the one that the plan was made for.
        progress: Called with a word before each step.

    Raises:
        PlanError: The plan is not exactly attention, or names no machine.
        TopologyError: The machine lacks a device of the plan.
    """
    plans = stored.plans if isinstance(stored, Schedule) else (stored,)
    machine = topology or plans[0].topology
    if machine is None or not plans[0].devices:
        raise PlanError("plan: expected a machine and the device of each rank, found none in it")
    say = progress or (lambda text: None)
    clock = _Clock()
    say("Ring-Attention")
    baseline = plan_all(
        machine,
        plans[0].workload,
        strategies=("ring",),
        directions=tuple(plan.direction for plan in plans),
        devices=plans[0].devices,
    )
    results = []
    limits = Limits(machine, plans[0].workload, plans[0].devices)
    for plan in plans:
        say(plan.direction)
        ring = next(r.timeline.makespan for r in baseline.results if r.direction == plan.direction)
        results.append(_result(plan, machine, ring, limits, clock))
    notes = [note for plan in plans for note in op_seconds(plan, machine).notes]
    return Comparison(
        topology=machine,
        workload=plans[0].workload,
        results=tuple(results),
        refused=(),
        chosen={result.direction: result for result in results},
        seconds=clock.seconds,
        assumptions=tuple(dict.fromkeys([*machine.basic_assumptions, *notes])),
    )


def _result(plan: Plan, machine: Topology, ring: float, limits: Limits, clock: _Clock) -> Result:
    with clock.timed("verify"):
        peaks = verify(plan).peak_bytes
    with clock.timed("simulate"):
        timeline = simulate(plan, machine)
    with clock.timed("bound"):
        limit, class_limit = limits.of(plan)
        check(plan, plan.params, timeline.makespan, limit, class_limit)
    return Result(
        strategy=plan.strategy,
        params=plan.params,
        direction=plan.direction,
        partition=plan.partition.kind,
        plan=plan,
        timeline=timeline,
        peak_bytes=int(peaks.max()),
        fits=fits(peaks.tolist(), plan, machine),
        bound=limit,
        class_bound=class_limit,
        speedup_vs_ring=ring / timeline.makespan,
    )


class _Clock:
    """Adds up the seconds of each kind of work."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(SECONDS, 0.0)

    @property
    def seconds(self) -> Mapping[str, float]:
        return dict(self._seconds)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._seconds[what] += time.perf_counter() - start
