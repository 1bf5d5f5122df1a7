"""Parallel layouts: tensor, context and data parallelism, and their attention groups together.

Ranks are numbered with tensor parallelism fastest, then context, then data parallelism. The ranks
that differ in context alone are an attention group: tp x dp groups of cp ranks, each with its share
of the heads and its own sequences. All of them run at the same time over the same links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from charm_sched.bounds.bound import choose_devices
from charm_sched.bounds.limits import check
from charm_sched.errors import CharmSchedError, WorkloadError
from charm_sched.partition import Partition
from charm_sched.planners.strategies import build, load_strategy, residents
from charm_sched.plans.side_by_side import packed, side_by_side
from charm_sched.proof.verifier import verify
from charm_sched.search.planning import plan_all
from charm_sched.simulator import simulate

if TYPE_CHECKING:
    from charm_sched.plans.plan import Plan
    from charm_sched.search.results import Comparison, Result
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload

CANDIDATES = 4
"""Strategies that are simulated with all groups together: those that are the fastest alone."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How many ranks share the heads, the sequence, the batch."""

    tp: int
    cp: int
    dp: int

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.tp * self.cp * self.dp

    def groups(self) -> list[tuple[int, ...]]:
        """List the ranks of each attention group.

        >>> Layout(tp=2, cp=2, dp=1).groups()
        [(0, 2), (1, 3)]
        """
        return [
            tuple(t + self.tp * (c + self.cp * d) for c in range(self.cp))
            for d in range(self.dp)
            for t in range(self.tp)
        ]

    def __str__(self) -> str:
        return f"tp {self.tp}, cp {self.cp}, dp {self.dp}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How the links of one kind are shared, each direction of a link for itself.

    Attributes:
        kind: Kind of link.
        links: Links that any group uses.
        least: Fewest groups on one of them.
        most: Most groups on one of them.
    """

    kind: str
    links: int
    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """One strategy with all groups at once, in one direction.

    Attributes:
        strategy: Its name.
        direction: ``forward`` or ``backward``.
        alone: Seconds that the first group takes by itself.
        together: Seconds until the last group has ended.
    """

    strategy: str
    direction: str
    alone: float
    together: float


@dataclass(frozen=True, eq=False, kw_only=True)
class LayoutResult:
    """What a layout does on a machine.

    Attributes:
        layout: The layout.
        groups: The devices of each attention group.
        cases: By strategy, then direction; the strategy that is the fastest together first.
        sharing: How the best strategy's groups share links.
    """

    layout: Layout
    groups: tuple[tuple[str, ...], ...]
    cases: tuple[Together, ...]
    sharing: tuple[Sharing, ...]

    @property
    def chosen(self) -> tuple[Together, ...]:
        """The cases that were chosen: one per direction."""
        return self.cases[: len({case.direction for case in self.cases})]


def group_workload(workload: Workload, layout: Layout) -> Workload:
    """Give what one attention group computes.

    Raises:
        WorkloadError: Heads that tensor parallelism does not divide.
    """
    heads, keys, tp = workload.heads, workload.num_kv_heads, layout.tp
    if heads % tp or (keys % tp and tp % keys):
        raise WorkloadError(
            f"--tp {tp}: expected a divisor of the {heads} heads that divides the {keys} key/value "
            "heads, or is a multiple of them"
        )
    return replace(workload, heads=heads // tp, kv_heads=max(keys // tp, 1))


def plan_layout(
    machine: Topology,
    workload: Workload,
    layout: Layout,
    choices: Mapping[str, Any],
    *,
    progress: Say | None = None,
) -> tuple[Comparison, LayoutResult]:
    """Plan one attention group, and simulate all groups together.

    Args:
        machine: The machine.
        workload: What all ranks of a tensor-parallel group compute together.
        layout: The layout.
        choices: What `plan_all` takes: strategies, directions and so on.
        progress: Called with a line of text now and then.

    Returns:
        The comparison of the first group by itself, with the plans chosen that are the fastest with
        all groups together; and all groups.

    Raises:
        WorkloadError: The layout does not fit the heads or the mask.
        TopologyError: It needs more devices than there are.
    """
    work = group_workload(workload, layout)
    packed(work, 1)
    devices = choose_devices(machine, layout.ranks, None)
    groups = tuple(tuple(devices[rank] for rank in ranks) for ranks in layout.groups())
    comparison = plan_all(machine, work, **{**choices, "ranks": None, "devices": groups[0]},
                          progress=progress)  # fmt: skip
    directions = tuple(comparison.chosen)
    found: list[tuple[float, list[Result], list[Plan], list[Together]]] = []
    for rows in _candidates(comparison, directions):
        if progress:
            progress(f"{len(groups)} groups together, {rows[0].strategy}")
        plans = _all_groups(machine, work, rows, groups)
        if plans is not None:
            cases = [_together(row, plan, machine) for row, plan in zip(rows, plans, strict=True)]
            found.append((sum(case.together for case in cases), rows, plans, cases))
    if not found:
        raise CharmSchedError("layout: no strategy serves all of the attention groups")
    found.sort(key=lambda one: one[0])
    _, rows, plans, _ = found[0]
    result = LayoutResult(
        layout=layout,
        groups=groups,
        cases=tuple(case for *_, cases in found for case in cases),
        sharing=_sharing(plans, machine, groups),
    )
    chosen = {row.direction: row for row in rows}
    why = comparison.why
    if list(chosen.values()) != list(comparison.chosen.values()):
        names = " and ".join(dict.fromkeys(row.strategy for row in rows))
        why = f"{names}: not the fastest alone, but with all {len(groups)} groups together"
    return replace(comparison, chosen=chosen, why=why), result


def _candidates(comparison: Comparison, directions: Sequence[str]) -> list[list[Result]]:
    """List what to try together: what was chosen, Ring-Attention, and the fastest others."""
    by_name: dict[str, list[Result]] = {}
    for row in comparison.results:
        by_name.setdefault(row.strategy, []).append(row)
    whole = [rows for rows in by_name.values() if {r.direction for r in rows} == set(directions)]
    whole.sort(key=lambda rows: sum(row.timeline.makespan for row in rows))
    ring = [rows for rows in whole[CANDIDATES:] if rows[0].strategy == "ring"]
    chosen = list(comparison.chosen.values())
    kept = [
        rows for rows in whole[:CANDIDATES] if [r.plan for r in rows] != [c.plan for c in chosen]
    ]
    return [chosen, *kept, *ring]


def _all_groups(
    machine: Topology, work: Workload, rows: Sequence[Result], groups: Sequence[Sequence[str]]
) -> list[Plan] | None:
    """Give the plan of all groups per row; None where a group cannot be served."""
    found: list[list[Plan]] = []
    for row in rows:
        shards = Partition.of(row.partition, work, len(groups[0]))
        made = []
        for number, devices in enumerate(groups):
            before = residents(found[0][number]) if found and len(row.plan.saved) else ()
            try:
                made.append(
                    build(
                        load_strategy(row.strategy), row.strategy, work, shards,
                        direction=row.direction, topology=machine, devices=devices,
                        params=row.params, saved=before,
                    )
                )  # fmt: skip
            except CharmSchedError:
                return None
        found.append(made)
    merged = [side_by_side(plans) for plans in found]
    for plan in merged:
        verify(plan)
    return merged


def _together(row: Result, plan: Plan, machine: Topology) -> Together:
    makespan = simulate(plan, machine).makespan
    check(plan, row.params, makespan, row.bound, row.class_bound)
    return Together(
        strategy=row.strategy,
        direction=row.direction,
        alone=row.timeline.makespan,
        together=makespan,
    )


def _sharing(
    plans: Sequence[Plan], machine: Topology, groups: Sequence[Sequence[str]]
) -> tuple[Sharing, ...]:
    """Count the groups on each link, by kind of link."""
    group_of = {name: number for number, names in enumerate(groups) for name in names}
    users: dict[int, set[int]] = {}
    for plan in plans:
        columns = plan.columns
        moves = columns.peer >= 0
        pairs = set(zip(columns.rank[moves].tolist(), columns.peer[moves].tolist(), strict=True))
        for source, target in pairs:
            ends = plan.devices[source], plan.devices[target]
            for link in machine.route(*ends).links:
                users.setdefault(machine.link_capacity[link], set()).add(group_of[ends[0]])
    kinds: dict[str, list[int]] = {}
    for capacity, using in users.items():
        kinds.setdefault(machine.capacities[capacity].kind, []).append(len(using))
    return tuple(
        Sharing(kind=kind, links=len(counts), least=min(counts), most=max(counts))
        for kind, counts in sorted(kinds.items())
    )


__all__ = ["Layout", "LayoutResult", "Sharing", "Together", "group_workload", "plan_layout"]
