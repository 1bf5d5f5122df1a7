"""Planning: strategies, their variants and partitions are compared by simulation.

`plan` gives the one plan or schedule a user asked for; `plan_all` compares strategies against
Ring-Attention. Every plan that leaves this module is verified.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from charm_sched.bounds import choose_devices
from charm_sched.errors import CharmSchedError, StrategyError, WorkloadError
from charm_sched.items import Item
from charm_sched.limits import Limits, check
from charm_sched.partition import PARTITIONS, Partition
from charm_sched.planners import PLANNERS
from charm_sched.plans import DIRECTIONS, Plan, Schedule, residents_of
from charm_sched.results import Comparison, Refusal, Result, fits
from charm_sched.strategies import build, check_params, load_strategy, residents, takes, variants_of

if TYPE_CHECKING:
    from charm_sched.planners.external import Planner
    from charm_sched.topology import Topology
    from charm_sched.workload import Workload

BASELINE = "ring"
CLOSE = 1.02  # times within this factor of the best count as equal, and preference decides
SECONDS = ("plan", "verify", "bound", "simulate")


def plan(
    topology: Topology,
    workload: Workload,
    *,
    strategy: str = "auto",
    direction: str = "both",
    partition: str = "auto",
    ranks: int | None = None,
    devices: Sequence[str] | None = None,
    params: Mapping[str, Any] | None = None,
) -> Schedule | Plan:
    """Plan attention on a machine.

    Args:
        topology: The machine.
        workload: What is computed.
        strategy: A name of `PLANNERS`, ``path/to/file.py:function``, or ``auto`` for the fastest.
        direction: ``forward``, ``backward`` or ``both``.
        partition: ``contiguous``, ``zigzag``, or ``auto`` for the faster.
        ranks: That many devices, spread evenly over the top-level domains.
        devices: These devices, in this order. Not together with ``ranks``.
        params: Parameters that the strategies get, those that take them; what is not fixed here
            is tried.

    Returns:
        A `Schedule` for ``both``, else a `Plan`; verified.

    Raises:
        StrategyError: The strategy is unknown, or cannot serve the workload.
        WorkloadError: Unknown partition or direction, or both ``ranks`` and ``devices``.
        TopologyError: Unknown devices, or fewer than ``ranks``.
    """
    names = tuple(PLANNERS) if strategy == "auto" else (strategy,)
    directions = DIRECTIONS if direction == "both" else (direction,)
    search = _Search(topology, workload, directions, ranks=ranks, devices=devices)
    found, refused = search.compare(names, partition, params)
    if not found:
        raise _nothing_left(refused)
    return search.comparison(found, refused, found).schedule()


def plan_all(
    topology: Topology,
    workload: Workload,
    *,
    strategies: Sequence[str] = tuple(PLANNERS),
    directions: Sequence[str] = DIRECTIONS,
    partition: str = "auto",
    ranks: int | None = None,
    devices: Sequence[str] | None = None,
    params: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare strategies, each with its best parameters and partition, against Ring-Attention.

    Args:
        topology: The machine.
        workload: What is computed.
        strategies: Names of `PLANNERS` or ``path/to/file.py:function``.
        directions: ``forward``, ``backward`` or both.
        partition: ``contiguous``, ``zigzag``, or ``auto`` for the best of each strategy.
        ranks: That many devices, spread evenly over the top-level domains.
        devices: These devices, in this order. Not together with ``ranks``.
        params: Parameters that the strategies get, those that take them; what is not fixed here
            is tried. The baseline gets none.
        progress: Called with a line of text before each strategy.

    Raises:
        StrategyError: No strategy can serve the workload, or a name is unknown.
        WorkloadError: Unknown partition or direction, or both ``ranks`` and ``devices``.
        TopologyError: Unknown devices, or fewer than ``ranks``.
    """
    search = _Search(
        topology, workload, directions, ranks=ranks, devices=devices, progress=progress
    )
    names = tuple(dict.fromkeys(strategies))
    if not names:
        raise StrategyError(f"strategy: expected at least one of {', '.join(PLANNERS)}")
    found, refused = search.compare(names, partition, params)
    if not found:
        raise _nothing_left(refused)
    base = found
    if BASELINE not in names or partition != "auto" or params:
        base, _ = search.compare((BASELINE,), "auto")
    return search.comparison(found, refused, base)


def _nothing_left(refused: Sequence[Refusal]) -> StrategyError:
    """Say why no strategy is left, each reason once."""
    reasons = {r.reason: f"{r.strategy} ({r.direction}): {r.reason}" for r in refused[::-1]}
    own = [text for reason, text in reasons.items() if not reason.endswith(" was refused")]
    return StrategyError("; ".join(own[::-1]))


class _PassError(StrategyError):
    """A strategy cannot serve one direction."""

    def __init__(self, message: str, direction: str) -> None:
        super().__init__(message, direction)
        self.direction = direction

    def __str__(self) -> str:
        return str(self.args[0])


class _Search:
    """Builds, verifies and simulates candidates, and remembers how long each took."""

    def __init__(
        self,
        topology: Topology,
        workload: Workload,
        directions: Sequence[str],
        *,
        ranks: int | None,
        devices: Sequence[str] | None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        for direction in directions:
            if direction not in DIRECTIONS:
                raise WorkloadError(
                    f"direction: expected forward, backward or both, found {direction!r}"
                )
        self.topology, self.workload, self.directions = topology, workload, tuple(directions)
        self.devices = choose_devices(topology, ranks, devices)
        self._limits = Limits(topology, workload, self.devices)
        self.progress = progress or (lambda text: None)
        self.seconds = dict.fromkeys(SECONDS, 0.0)
        self._known: dict[tuple[str, str, str, str], list[Result]] = {}

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - start

    def compare(
        self, names: Sequence[str], partition: str, params: Mapping[str, Any] | None = None
    ) -> tuple[list[list[Result]], list[Refusal]]:
        """Give, per strategy and partition tried, a result per direction; and the refusals."""
        partitions = self._partitions(partition)
        planners = {name: load_strategy(name) for name in names}
        check_params(planners, params or {})
        found: list[list[Result]] = []
        refused: list[Refusal] = []
        for name, planner in planners.items():
            variants = variants_of(name, planner, len(self.devices), params or {})
            self.progress(f"{name}: planning {len(variants) * len(partitions)} variants")
            for kind in partitions:
                try:
                    found.append(self._best(name, planner, kind, variants))
                except _PassError as error:
                    failed = error.direction
                    refused += [
                        Refusal(
                            strategy=name,
                            direction=direction,
                            reason=str(error)
                            if direction == failed
                            else f"its {failed} was refused",
                        )
                        for direction in self.directions
                    ]
        served = {results[0].strategy for results in found}
        for refusal in refused:
            if refusal.strategy not in served and any(
                takes(planners[refusal.strategy], name) for name in params or {}
            ):
                raise StrategyError(refusal.reason)
        refused = [refusal for refusal in refused if refusal.strategy not in served]
        return found, list({(r.strategy, r.direction): r for r in refused}.values())

    def _partitions(self, partition: str) -> tuple[str, ...]:
        if partition != "auto":
            Partition.named(partition, self.workload.seq_len, len(self.devices))
            return (partition,)
        # Under a full mask all partitions of equal shards do the same work.
        return PARTITIONS if self.workload.mask_rule.kind != "full" else ("contiguous",)

    def _best(
        self, name: str, planner: Planner, kind: str, variants: Sequence[Mapping[str, Any]]
    ) -> list[Result]:
        """Give the fastest variant of each direction."""
        best: list[Result] = []
        saved: tuple[tuple[int, Item, int], ...] = ()
        for direction in self.directions:
            key = (name, kind, direction, repr(variants))
            if key not in self._known:
                try:
                    results = [
                        self._result(name, planner, kind, direction, params, saved)
                        for params in variants
                    ]
                except CharmSchedError as error:
                    raise _PassError(str(error), direction) from error
                self._known[key] = [_preferred(results)]
            best += self._known[key]
            saved = residents(best[-1].plan)
        return best

    def _result(
        self,
        name: str,
        planner: Planner,
        kind: str,
        direction: str,
        params: Mapping[str, Any],
        saved: Sequence[tuple[int, Item, int]],
    ) -> Result:
        from charm_sched.simulator import simulate
        from charm_sched.verifier import verify

        with self._timed("plan"):
            made = build(
                planner,
                name,
                self.workload,
                Partition.named(kind, self.workload.seq_len, len(self.devices)),
                direction=direction,
                topology=self.topology,
                devices=self.devices,
                params=params,
                saved=saved,
            )
        with self._timed("verify"):
            peaks = verify(made, self.workload).peak_bytes
        with self._timed("simulate"):
            timeline = simulate(made, self.topology)
        with self._timed("bound"):
            limit, class_limit = self._limits.of(made)
            check(made, params, timeline.makespan, limit, class_limit)
        return Result(
            strategy=name,
            params=params,
            direction=direction,
            partition=kind,
            plan=made,
            timeline=timeline,
            peak_bytes=int(peaks.max()),
            fits=fits(peaks.tolist(), made, self.topology),
            bound=limit,
            class_bound=class_limit,
        )

    def comparison(
        self,
        found: Sequence[Sequence[Result]],
        refused: Sequence[Refusal],
        base: Sequence[Sequence[Result]],
    ) -> Comparison:
        """Put results together: best partition per strategy, chosen plans, speedups over ring."""
        rings = [results for results in base if results[0].strategy == BASELINE]
        ring = min(rings, key=_rank_of) if rings else ()
        by_strategy: dict[str, list[Sequence[Result]]] = {}
        for results in found:
            by_strategy.setdefault(results[0].strategy, []).append(results)
        rows = [
            _with_speedup(result, ring)
            for tried in by_strategy.values()
            for result in min(tried, key=_rank_of)
        ]
        chosen = [_with_speedup(result, ring) for result in _fastest(found, self.directions)]
        return Comparison(
            topology=self.topology,
            workload=self.workload,
            results=tuple(rows),
            refused=tuple(refused),
            chosen={result.direction: result for result in chosen},
            seconds=dict(self.seconds),
            assumptions=self._assumptions(rows),
        )

    def _assumptions(self, rows: Sequence[Result]) -> tuple[str, ...]:
        from charm_sched.cost import op_seconds

        notes = [op_seconds(row.plan, self.topology).notes for row in rows]
        return tuple(
            dict.fromkeys([*self.topology.basic_assumptions, *(n for ns in notes for n in ns)])
        )


def _preferred(results: Sequence[Result]) -> Result:
    """Give the first result that fits and is about as fast as the fastest that fits."""
    fitting = [result for result in results if result.fits is not False] or results
    best = min(result.timeline.makespan for result in fitting)
    return next(result for result in fitting if result.timeline.makespan <= CLOSE * best)


def _total(results: Sequence[Result]) -> float:
    return sum(result.timeline.makespan for result in results)


def _fastest(found: Sequence[Sequence[Result]], directions: Sequence[str]) -> list[Result]:
    """Choose a plan for each direction: what fits first, then the fastest, then the smallest.

    The plans of two directions have one partition, and the backward starts from what the forward
    keeps.
    """
    options: list[Sequence[Result]] = list(found)
    if len(directions) == 2:
        residents_by = {id(r): residents_of(r.plan) for results in found for r in results}
        options = [
            (one[0], other[1])
            for one, other in itertools.product(found, found)
            if one[0].partition == other[0].partition
            and residents_by[id(one[0])] == residents_by[id(other[1])]
        ]
    best: Sequence[Result] = min(options, key=_rank_of)
    return list(best)


def _rank_of(results: Sequence[Result]) -> tuple[bool, float, int]:
    too_large = any(result.fits is False for result in results)
    return too_large, _total(results), sum(result.peak_bytes for result in results)


def _with_speedup(result: Result, ring: Sequence[Result]) -> Result:
    for other in ring:
        if other.direction == result.direction:
            ratio = other.timeline.makespan / result.timeline.makespan
            return replace(result, speedup_vs_ring=ratio)
    return result


__all__ = [
    "BASELINE", "SECONDS", "Comparison", "Refusal", "Result", "build", "plan", "plan_all",
    "residents",
]  # fmt: skip
