"""Trials of the search: one plan built, bounded, simulated, and proved if it leaves.

Three prices: to build a plan, to simulate it, to prove it. So a plan is bounded from below once it
is built, simulated only as far as it may still win, and proved only if it is handed out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from charm_sched.bounds.limits import Limits, check
from charm_sched.cost import op_seconds
from charm_sched.errors import PlanError
from charm_sched.partition import Partition
from charm_sched.planners.external import is_external
from charm_sched.planners.strategies import KEY_MOVERS, build
from charm_sched.plans.items import Item
from charm_sched.plans.plan import TRANSFER
from charm_sched.proof.hazards import find_hazards
from charm_sched.proof.memory import peak_bytes
from charm_sched.search.results import Result, fits

if TYPE_CHECKING:
    from charm_sched.planners.external import Planner
    from charm_sched.plans.plan import Plan
    from charm_sched.timelines.timeline import Timeline
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload

SECONDS = ("plan", "verify", "bound", "simulate")
Saved = Sequence[tuple[int, Item, int]]


class PlannerError(AssertionError):
    """A plan of a strategy of this package fails its proof: a mistake of this program."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Candidate:
    """What may be planned.

    Attributes:
        strategy: Its name.
        planner: Its function.
        params: Its parameters.
        direction: ``forward`` or ``backward``.
        partition: Name of the partition.
        saved: Residents that a backward starts from.
        origin: Names the forward that keeps them; empty where nothing is kept resident.
    """

    strategy: str
    planner: Planner
    params: Mapping[str, Any]
    direction: str
    partition: str
    saved: Saved = ()
    origin: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """A candidate that was planned and simulated.

    Attributes:
        candidate: What was planned.
        plan: The plan.
        timeline: Its simulation.
        peak_bytes: Largest peak memory of any rank.
        fits: Whether each rank's peak fits; None where some memory is unknown.
        origin: Names the forward whose residents it keeps or starts from; empty for none.
    """

    candidate: Candidate
    plan: Plan
    timeline: Timeline
    peak_bytes: int
    fits: bool | None
    origin: str

    @property
    def seconds(self) -> float:
        """How long the plan takes."""
        return self.timeline.makespan

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return self.candidate.strategy

    @property
    def direction(self) -> str:
        """``forward`` or ``backward``."""
        return self.candidate.direction

    @property
    def partition(self) -> str:
        """Name of the partition."""
        return self.candidate.partition


class Bench:
    """Builds, bounds, simulates and proves plans for one machine and workload; keeps the time."""

    def __init__(
        self,
        topology: Topology,
        workload: Workload,
        devices: Sequence[str],
        memory: float | None = None,
    ) -> None:
        self.topology, self.workload, self.devices = topology, workload, tuple(devices)
        self.memory = memory
        self.seconds = dict.fromkeys(SECONDS, 0.0)
        self.simulated = 0
        self._limits = Limits(topology, workload, self.devices)
        self._partitions: dict[str, Partition] = {}
        self._settled: dict[int, Result] = {}

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - start

    def partition(self, kind: str) -> Partition:
        """Give a partition by its name.

        Raises:
            WorkloadError: The name is unknown.
        """
        if kind not in self._partitions:
            self._partitions[kind] = Partition.of(kind, self.workload, len(self.devices))
        return self._partitions[kind]

    def floors(self, strategy: str, direction: str, kind: str) -> Iterator[float]:
        """Yield seconds that no plan of a strategy without residents beats, the cheapest first."""
        floors = self._limits.floors(direction, self.partition(kind), keys=strategy in KEY_MOVERS)
        while True:
            with self._timed("bound"):
                floor = next(floors, None)
            if floor is None:
                return
            yield floor

    def any_floor(self, direction: str, kind: str) -> float:
        """Give seconds that no schedule without residents beats."""
        with self._timed("bound"):
            return self._limits.any_schedule(direction, self.partition(kind)).seconds

    def work(self, strategy: str, direction: str, kind: str) -> float:
        """Give seconds that the computation of a strategy takes at least, whatever is resident."""
        with self._timed("bound"):
            keys = strategy in KEY_MOVERS
            return self._limits.work(direction, self.partition(kind), keys=keys)

    def build(self, candidate: Candidate) -> Plan:
        """Let a planner write a plan; one from outside is proved at once.

        Raises:
            CharmSchedError: The strategy cannot serve this, or its plan is not attention.
        """
        with self._timed("plan"):
            made = build(
                candidate.planner,
                candidate.strategy,
                self.workload,
                self.partition(candidate.partition),
                direction=candidate.direction,
                topology=self.topology,
                devices=self.devices,
                params=candidate.params,
                saved=candidate.saved,
            )
        if is_external(candidate.strategy):
            self._prove(made)
        return made

    def floor(self, plan: Plan) -> float:
        """Give seconds that a plan takes at least: its work, and its bytes over each link."""
        with self._timed("bound"):
            return plan_floor(plan, self.topology)

    def simulate(self, candidate: Candidate, plan: Plan, until: float) -> Trial | None:
        """Simulate a plan; None where it takes longer than ``until`` seconds."""
        from charm_sched.simulator.engine import TooLate, simulate

        with self._timed("simulate"), _internal(candidate):
            hazards = find_hazards(plan)
            peaks = peak_bytes(plan, hazards)
            try:
                timeline = simulate(plan, self.topology, until=until, edges=hazards.edges)
            except TooLate:
                return None
        self.simulated += 1
        kept = len(plan.saved) > 0
        return Trial(
            candidate=candidate,
            plan=plan,
            timeline=timeline,
            peak_bytes=int(peaks.max()),
            fits=fits(peaks.tolist(), plan, self.topology, self.memory),
            origin=(candidate.origin or _origin(candidate)) if kept else "",
        )

    def settle(self, trial: Trial) -> Result:
        """Prove a plan that is handed out, and hold its time against the bounds.

        Raises:
            PlannerError: The plan is not attention.
            BoundError: It is simulated to be faster than a bound.
        """
        if id(trial) in self._settled:
            return self._settled[id(trial)]
        candidate, plan = trial.candidate, trial.plan
        with _internal(candidate):
            self._prove(plan)
        with self._timed("bound"):
            limit, class_limit = self._limits.of(plan)
            check(plan, candidate.params, trial.seconds, limit, class_limit)
        result = Result(
            strategy=candidate.strategy,
            params=candidate.params,
            direction=candidate.direction,
            partition=candidate.partition,
            plan=plan,
            timeline=trial.timeline,
            peak_bytes=trial.peak_bytes,
            fits=trial.fits,
            bound=limit,
            class_bound=class_limit,
        )
        self._settled[id(trial)] = result
        return result

    def _prove(self, plan: Plan) -> None:
        from charm_sched.proof.verifier import verify

        with self._timed("verify"):
            verify(plan, self.workload)


def _origin(candidate: Candidate) -> str:
    return f"{candidate.strategy} {sorted(candidate.params.items())}"


@contextmanager
def _internal(candidate: Candidate) -> Iterator[None]:
    """Make a plan that contradicts itself a mistake of this program, unless it is from outside."""
    try:
        yield
    except PlanError as error:
        if is_external(candidate.strategy):
            raise
        raise PlannerError(
            f"internal error: {candidate.strategy} {dict(candidate.params)} "
            f"({candidate.direction}, {candidate.partition}) fails its proof: {error}; please "
            "report it with the topology"
        ) from error


def plan_floor(plan: Plan, topology: Topology) -> float:
    """Give seconds that no execution of a plan beats, without simulating it.

    The longest of: the computation of each rank at undisturbed rates, and for each capacity of the
    topology the bytes that cross it over its bandwidth.
    """
    seconds = op_seconds(plan, topology).seconds
    columns, ranks = plan.columns, plan.num_ranks
    longest = float(np.bincount(columns.rank, seconds, minlength=ranks).max(initial=0.0))
    moves = np.flatnonzero(columns.op == TRANSFER)
    packed = columns.rank[moves].astype(np.int64) * ranks + columns.peer[moves]
    sums = np.bincount(packed, plan.op_bytes[moves], minlength=ranks**2)
    crossed = np.zeros(len(topology.capacities))
    for pair in np.flatnonzero(sums).tolist():
        route = topology.route(plan.devices[pair // ranks], plan.devices[pair % ranks])
        for capacity in route.capacities:
            crossed[capacity] += sums[pair]
    widths = np.array([capacity.bandwidth for capacity in topology.capacities])
    busy = crossed[crossed > 0] / widths[crossed > 0]
    return max(longest, float(busy.max(initial=0.0))) * (1 - _ROUNDING)


_ROUNDING = 1e-9  # relative; what sums in another order may differ by

__all__ = ["SECONDS", "Bench", "Candidate", "PlannerError", "Saved", "Trial", "plan_floor"]
