"""Planning: strategies, their parameters, partitions and residents are compared by simulation.

`plan` gives the one plan or schedule a user asked for; `plan_all` compares strategies against
Ring-Attention. Every plan that leaves this module is verified. docs/auto.md says how it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from charm_sched.bounds.bound import choose_devices
from charm_sched.errors import StrategyError, WorkloadError
from charm_sched.partition import partitions_for
from charm_sched.planners import PLANNERS
from charm_sched.planners.strategies import build, check_params, load_strategy, residents, takes
from charm_sched.plans.plan import DIRECTIONS, Plan, Schedule
from charm_sched.search.choice import fastest, reason, rows_of, with_speedup
from charm_sched.search.explore import SHOWN, Explorer, PassError, Rules
from charm_sched.search.results import Comparison, NotTried, Refusal, Result
from charm_sched.search.standing import Standing
from charm_sched.search.symmetric import MOST_EXPLICIT, plan_symmetric
from charm_sched.search.trials import SECONDS, Bench, Trial

if TYPE_CHECKING:
    from charm_sched.planners.external import Planner
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload

BASELINE = "ring"
AUTO, ALL = "auto", "all"
PROMISING = (BASELINE, "domain_mesh", "charm", "mesh", "usp")
"""What ``auto`` tries first: the sooner a good plan is found, the more others need no trial."""
MOST_THOROUGH = 256
"""Ranks up to which a search tries all that it knows; plans of more take seconds each."""


def plan(
    topology: Topology,
    workload: Workload,
    *,
    strategy: str = AUTO,
    direction: str = "both",
    partition: str = "auto",
    ranks: int | None = None,
    devices: Sequence[str] | None = None,
    params: Mapping[str, Any] | None = None,
    memory: float | None = None,
) -> Schedule | Plan:
    """Plan attention on a machine.

    Args:
        topology: The machine.
        workload: What is computed.
        strategy: A name of `PLANNERS`, ``path/to/file.py:function``, or ``auto`` for the fastest.
        direction: ``forward``, ``backward`` or ``both``. With ``both`` the sum of the two counts,
            so that the forward may be one that keeps what it received for the backward, and not
            the fastest forward.
        partition: The name of a partition, or ``auto`` for the fastest.
        ranks: That many devices, spread evenly over the top-level domains.
        devices: These devices, in this order. Not together with ``ranks``.
        params: Parameters that the strategies get, those that take them; what is not fixed here
            is tried.
        memory: Bytes that no rank should exceed; None for what its device has. Plans that need
            more are given only where nothing fits.

    Returns:
        A `Schedule` for ``both``, else a `Plan`; verified.

    Raises:
        StrategyError: The strategy is unknown, or cannot serve the workload.
        WorkloadError: Unknown partition or direction, no memory at all, or both ``ranks`` and
            ``devices``.
        TopologyError: Unknown devices, or fewer than ``ranks``.
    """
    _check_memory(memory)
    chosen, directions = choose_devices(topology, ranks, devices), _directions(direction)
    if len(chosen) > MOST_EXPLICIT:
        return plan_symmetric(
            topology, workload, chosen, strategies=(strategy,), directions=directions,
            partition=partition, params=params, memory=memory,
        ).schedule()  # fmt: skip
    search = _Search(
        Bench(topology, workload, chosen, memory),
        directions,
        partition,
        params,
    )
    return search.comparison((strategy,), baseline=False).schedule()


def _check_memory(memory: float | None) -> None:
    if memory is not None and not 0 < memory < float("inf"):
        raise WorkloadError(f"memory: expected bytes above zero, found {memory:g}")


def _directions(direction: str) -> tuple[str, ...]:
    """Give the directions that a word names."""
    return DIRECTIONS if direction == "both" else (direction,)


def plan_all(
    topology: Topology,
    workload: Workload,
    *,
    strategies: Sequence[str] = (ALL,),
    directions: Sequence[str] = DIRECTIONS,
    partition: str = "auto",
    ranks: int | None = None,
    devices: Sequence[str] | None = None,
    params: Mapping[str, Any] | None = None,
    memory: float | None = None,
    thorough: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare strategies, each with its best parameters and partition, against Ring-Attention.

    Args:
        topology: The machine.
        workload: What is computed.
        strategies: Names of `PLANNERS` or ``path/to/file.py:function``; ``all`` alone for all of
            `PLANNERS`; ``auto`` alone for those of them that may be the fastest: what a bound
            shows to be slower is not tried.
        directions: ``forward``, ``backward`` or both.
        partition: The name of a partition, or ``auto`` for the best of each strategy.
        ranks: That many devices, spread evenly over the top-level domains.
        devices: These devices, in this order. Not together with ``ranks``.
        params: Parameters that the strategies get, those that take them; what is not fixed here
            is tried. The baseline gets none.
        memory: Bytes that no rank should exceed; None for what its device has.
        thorough: Try all parameters of each strategy, and what to keep resident; False for the
            first parameters alone.
        progress: Called with a line of text before each strategy.

    Raises:
        StrategyError: No strategy can serve the workload, or a name is unknown.
        WorkloadError: Unknown partition or direction, no memory at all, or both ``ranks`` and
            ``devices``.
        TopologyError: Unknown devices, or fewer than ``ranks``.
    """
    if not strategies:
        raise StrategyError(f"strategy: expected at least one of {', '.join(PLANNERS)}")
    _check_memory(memory)
    chosen = choose_devices(topology, ranks, devices)
    if len(chosen) > MOST_EXPLICIT:
        return plan_symmetric(
            topology, workload, chosen, strategies=strategies, directions=directions,
            partition=partition, params=params, memory=memory, progress=progress,
        )  # fmt: skip
    search = _Search(
        Bench(topology, workload, chosen, memory),
        directions,
        partition,
        params,
        thorough=thorough,
        progress=progress,
    )
    return search.comparison(tuple(dict.fromkeys(strategies)), baseline=True)


class _Search:
    """Goes through strategies and partitions, and puts together what came out."""

    def __init__(
        self,
        bench: Bench,
        directions: Sequence[str],
        partition: str,
        params: Mapping[str, Any] | None,
        *,
        thorough: bool = True,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        for direction in directions:
            if direction not in DIRECTIONS:
                raise WorkloadError(
                    f"direction: expected forward, backward or both, found {direction!r}"
                )
        self._bench, self._directions = bench, tuple(directions)
        self._partition, self._params = partition, dict(params or {})
        self._many = len(bench.devices) > MOST_THOROUGH
        self._thorough = thorough and not self._many
        self._progress = progress or (lambda text: None)
        self._refused: list[Refusal] = []
        self._not_tried: list[NotTried] = []

    def comparison(self, names: tuple[str, ...], *, baseline: bool) -> Comparison:
        """Compare strategies, against Ring-Attention if that is wanted.

        Raises:
            StrategyError: None can serve the workload.
        """
        auto = names == (AUTO,)
        given = tuple(PLANNERS) if names in ((AUTO,), (ALL,)) else names
        planners = {name: load_strategy(name) for name in given}
        check_params(planners, self._params)
        kinds = self._kinds(self._partition)
        rules = self._rules(self._params)
        trials = self._race(planners, kinds, rules) if auto else self._each(planners, kinds, rules)
        self._raise_for_params(planners, trials)
        if not trials:
            raise _nothing_left(self._refused)
        own_rings = [t for t in trials if t.strategy == BASELINE]
        if not baseline or (own_rings and self._partition == "auto" and not self._params):
            return self._collect(planners, trials, own_rings)
        ring = {BASELINE: load_strategy(BASELINE)}
        base = self._each(ring, self._kinds("auto"), self._rules({}), refuse=False)
        return self._collect(planners, trials, base)

    def _rules(self, fixed: Mapping[str, Any], slack: float = 1.0) -> Rules:
        return Rules(directions=self._directions, fixed=fixed, slack=slack, thorough=self._thorough)

    def _kinds(self, partition: str) -> tuple[str, ...]:
        if partition != "auto":
            self._bench.partition(partition)
            return (partition,)
        kinds = partitions_for(self._bench.workload)[::-1]  # contiguous, the least promising, last
        return kinds[:1] if self._many else kinds

    def _each(
        self,
        planners: Mapping[str, Planner],
        kinds: Sequence[str],
        rules: Rules,
        *,
        refuse: bool = True,
    ) -> list[Trial]:
        """Give each strategy's best, whatever the others take."""
        found: list[Trial] = []
        for name, planner in planners.items():
            standing = Standing(self._directions)
            explorer = Explorer(self._bench, standing, rules)
            wrong = self._explore(explorer, name, planner, kinds, refuse=refuse)
            found += [trial for trial in standing.trials if trial.partition not in wrong]
        return found

    def _race(
        self, planners: Mapping[str, Planner], kinds: Sequence[str], rules: Rules
    ) -> list[Trial]:
        """Let strategies beat each other, the promising ones first; the baseline runs alone."""
        standing = Standing(self._directions)
        for trial in self._each({BASELINE: planners[BASELINE]}, kinds, rules):
            standing.add(trial)
        explorer = Explorer(self._bench, standing, self._rules(rules.fixed, slack=SHOWN))
        others = [name for name in planners if name not in PROMISING]
        for name in [*PROMISING[1:], *([] if self._many else others)]:
            self._explore(explorer, name, planners[name], kinds)
        self._not_tried = explorer.not_tried
        if self._many:
            self._not_tried += self._unnamed(others, kinds[0])
        return standing.trials

    def _unnamed(self, names: Sequence[str], kind: str) -> list[NotTried]:
        """Say of strategies that they are tried for so many ranks only where they are named."""
        reason = f"more than {MOST_THOROUGH} ranks: --strategy names it"
        return [
            NotTried(strategy=name, direction=direction, bound=floor, reason=reason)
            for direction in self._directions
            for floor in [self._bench.any_floor(direction, kind)]
            for name in names
        ]

    def _explore(
        self,
        explorer: Explorer,
        name: str,
        planner: Planner,
        kinds: Sequence[str],
        *,
        refuse: bool = True,
    ) -> list[str]:
        """Try a strategy on each partition; give those that it cannot serve."""
        wrong = []
        for kind in kinds:
            self._progress(f"planning {name}, {kind} shards")
            try:
                explorer.explore(name, planner, kind)
            except PassError as error:
                wrong.append(kind)
                if refuse:
                    self._refused += _refusals(name, error, self._directions)
        return wrong

    def _raise_for_params(self, planners: Mapping[str, Planner], trials: Sequence[Trial]) -> None:
        """Raise what a strategy has to say about parameters that the user fixed."""
        served = {trial.strategy for trial in trials}
        for refusal in self._refused:
            if refusal.strategy not in served and any(
                takes(planners[refusal.strategy], name) for name in self._params
            ):
                raise StrategyError(refusal.reason)

    def _collect(
        self, planners: Mapping[str, Planner], trials: Sequence[Trial], rings: Sequence[Trial]
    ) -> Comparison:
        """Put results together: a row per strategy and direction, what is chosen, and why."""
        bench, directions = self._bench, self._directions
        self._progress("proving what was found")
        ring = [bench.settle(trial) for trial in rows_of(rings, directions)]
        by_name = {name: [t for t in trials if t.strategy == name] for name in planners}
        rows = [
            with_speedup(bench.settle(trial), ring)
            for tried in by_name.values()
            for trial in rows_of(tried, directions)
        ]
        winners = fastest(trials, directions)
        chosen = [with_speedup(bench.settle(trial), ring) for trial in winners]
        served = {(trial.strategy, trial.direction) for trial in trials}
        refused = [r for r in self._refused if (r.strategy, r.direction) not in served]
        return Comparison(
            topology=bench.topology,
            workload=bench.workload,
            results=tuple(rows),
            refused=tuple({(r.strategy, r.direction): r for r in refused}.values()),
            chosen={result.direction: result for result in chosen},
            seconds=dict(bench.seconds),
            assumptions=_assumptions(bench.topology, [*rows, *chosen]),
            not_tried=_left_out(self._not_tried, [*rows, *refused]),
            why=reason(chosen, rows, ring, bench.memory),
            memory=bench.memory,
            simulated=bench.simulated,
        )


def _refusals(name: str, error: PassError, directions: Sequence[str]) -> list[Refusal]:
    return [
        Refusal(
            strategy=name,
            direction=direction,
            reason=str(error)
            if direction == error.direction
            else f"its {error.direction} was refused",
        )
        for direction in directions
    ]


def _nothing_left(refused: Sequence[Refusal]) -> StrategyError:
    """Say why no strategy is left, each reason once."""
    reasons = {r.reason: f"{r.strategy} ({r.direction}): {r.reason}" for r in refused[::-1]}
    own = [text for reason, text in reasons.items() if not reason.endswith(" was refused")]
    return StrategyError("; ".join(own[::-1]))


def _left_out(found: Sequence[NotTried], rows: Sequence[Result | Refusal]) -> tuple[NotTried, ...]:
    """Give what was left out and has no row: of each strategy and direction the least bound."""
    shown = {(row.strategy, row.direction) for row in rows}
    least: dict[tuple[str, str], NotTried] = {}
    for one in found:
        key = (one.strategy, one.direction)
        if key not in shown and (key not in least or one.bound < least[key].bound):
            least[key] = one
    return tuple(least.values())


def _assumptions(topology: Topology, rows: Sequence[Result]) -> tuple[str, ...]:
    notes = [
        note for row in rows for note in (row.timeline.costs.notes if row.timeline.costs else ())
    ]
    return tuple(dict.fromkeys([*topology.basic_assumptions, *notes]))


__all__ = [
    "BASELINE", "SECONDS", "Comparison", "Refusal", "Result", "build", "plan", "plan_all",
    "residents",
]  # fmt: skip
