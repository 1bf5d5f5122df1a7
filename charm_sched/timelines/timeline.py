"""Start and end of every op of a plan, predicted or measured, and what follows from them.

The simulator and the runtime give the same type, so one function compares them. Seconds and bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.errors import SimulationError
from charm_sched.plans.plan import TRANSFER
from charm_sched.plans.symmetry_machine import spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from charm_sched.cost import Costs
    from charm_sched.plans.plan import Plan
    from charm_sched.topology.graph import Route, Topology

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

SOURCES = ("simulated", "measured")
_TOLERANCE = 1e-9  # relative to the makespan; ends that differ by less are the same instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of one stream, over all ranks.

    Attributes:
        start: When its first transfer starts, in seconds.
        end: When its last transfer ends, in seconds.
        bytes: Sum over its transfers.
        transfers: How many.
    """

    stream: str
    level: int
    start: float
    end: float
    bytes: int
    transfers: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Timeline:
    """When every op of a plan starts and ends.

    Attributes:
        plan: What is done.
        start: Per row, float64 seconds since the first rank started.
        end: Per row, float64 seconds.
        source: ``simulated`` or ``measured``.
        topology: Where; None for a machine that is not described.
        costs: Undisturbed times of the computation that a prediction rests on; None when measured.
        rule: The rule of transport, ``grouped`` or ``free``: what `critical_path` goes by.

    Raises:
        SimulationError: The arrays do not have one entry per op, or the source is unknown.
    """

    plan: Plan
    start: Floats
    end: Floats
    source: str
    topology: Topology | None = None
    costs: Costs | None = None
    rule: str = "grouped"

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise SimulationError(
                f"timeline: expected a source of {' or '.join(SOURCES)}, found {self.source!r}"
            )
        for name in ("start", "end"):
            shape = getattr(self, name).shape
            if shape != (len(self.plan),):
                raise SimulationError(
                    f"timeline: expected one {name} for each of {len(self.plan)} ops, "
                    f"found the shape {shape}"
                )

    @cached_property
    def makespan(self) -> float:
        """Seconds from the first start (0 when simulated) to the last end."""
        return float(self.end.max(initial=0.0))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What had to be assumed, one sentence each."""
        made = self.costs.notes if self.costs else ()
        return (*made, *(self.topology.basic_assumptions if self.topology else ()))

    @cached_property
    def compute_seconds(self) -> Floats:
        """Seconds of attends and merges of each rank, ``[num_ranks]``.

        At undisturbed rates when simulated, as they were when measured.
        """
        columns = self.plan.columns
        busy = self.costs.seconds if self.costs else self.end - self.start
        busy = np.where(columns.op == TRANSFER, 0.0, busy)
        sums = np.bincount(columns.rank, busy, minlength=self.plan.num_ranks)
        if self.plan.symmetry:
            sums = sums[self.plan.symmetry.representative(np.arange(self.plan.num_ranks))]
        return sums.astype(np.float64)

    @cached_property
    def compute_s(self) -> float:
        """Seconds of computation of the busiest rank."""
        return float(self.compute_seconds.max(initial=0.0))

    @property
    def exposed_comm(self) -> float:
        """Seconds that communication and waiting add to the busiest rank's computation."""
        return self.makespan - self.compute_s

    @property
    def utilisation(self) -> float:
        """Part of all ranks' time that is computation, 0 to 1; 0 for an empty plan."""
        if not self.makespan:
            return 0.0
        return float(self.compute_seconds.mean()) / self.makespan

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all transfers."""
        return int(self.plan.op_bytes.sum()) * self.plan.copies

    @cached_property
    def tier_bytes(self) -> dict[str, int]:
        """Bytes per tier, outermost first: each transfer once, at the lowest tier of its ends.

        Raises:
            SimulationError: The timeline has no topology (this holds for everything about links).
        """
        topology = self._machine
        found = dict.fromkeys(topology.tiers, 0)
        for (src, dst), moved in self._pair_bytes.items():
            if src != dst:
                tier = topology.tier_of(src, dst)
                found[tier] = found.get(tier, 0) + moved * self.plan.copies
        return found

    @cached_property
    def link_bytes(self) -> dict[str, int]:
        """Bytes per kind of link, in alphabetical order, summed over the links crossed."""
        links, found = self._machine.links, Counter[str]()
        for route, moved in self._routes:
            for link in route.links:
                found[links[link].kind] += moved * self.plan.copies
        return dict(sorted(found.items()))

    @cached_property
    def link_busy(self) -> Floats:
        """Part of each capacity's bytes per makespan that are used, 0 to 1, ``[capacities]``."""
        capacities = self._machine.capacities
        crossed = np.zeros(len(capacities))
        for route, moved in self._routes:
            for capacity in route.capacities:
                crossed[capacity] += moved
        if self.plan.symmetry:
            crossed = spread(self._machine, self.plan.devices, self.plan.symmetry, crossed)
        if not self.makespan:
            return crossed
        return crossed / (np.array([c.bandwidth for c in capacities]) * self.makespan)

    @property
    def busiest_link(self) -> tuple[str, float]:
        """Name and utilisation of the busiest capacity; the first of equally busy ones."""
        at = int(self.link_busy.argmax())
        return self._machine.capacities[at].name, float(self.link_busy[at])

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """What each level of each stream moves and when, by stream, then level."""
        plan, columns = self.plan, self.plan.columns
        moves = np.flatnonzero(columns.op == TRANSFER)
        pairs = np.stack([columns.stream[moves].astype(np.int64), columns.level[moves]])
        order = np.lexsort(pairs[::-1])
        moves, pairs = moves[order], pairs[:, order]
        cuts = np.flatnonzero((np.diff(pairs) != 0).any(axis=0)) + 1
        return tuple(
            Level(
                stream=plan.streams[columns.stream[rows[0]]],
                level=int(columns.level[rows[0]]),
                start=float(self.start[rows].min()),
                end=float(self.end[rows].max()),
                bytes=int(plan.op_bytes[rows].sum()) * plan.copies,
                transfers=len(rows) * plan.copies,
            )
            for rows in (np.split(moves, cuts) if len(moves) else ())
        )

    def critical_path(self) -> list[int]:
        """Give the rows that decide the makespan, in order of time.

        Walks back from the op that ends last. Before each op stands the one, among all it waited
        for (inputs, slots, its queue, its batch), that ended last; of equal ones a kernel before a
        transfer, then the lowest row. A transfer that was slow because it shared a link stands for
        itself.
        """
        if not len(self.plan):
            return []
        from charm_sched.proof.waits import find_waits

        waits = find_waits(self.plan, self.rule)
        ptr, before = waits.reversed()
        row = self._latest(np.arange(len(self.plan)))
        path = [row]
        while True:
            causes, frontier = set[int](), [row]
            while frontier:
                node = frontier.pop()
                for cause in before[ptr[node] : ptr[node + 1]].tolist():
                    (causes.add if cause < waits.num_ops else frontier.append)(cause)
            if not causes:
                return path[::-1]
            row = self._latest(np.array(sorted(causes)))
            path.append(row)

    def _latest(self, rows: Ints) -> int:
        ends = self.end[rows]
        tied = rows[ends >= ends.max() - _TOLERANCE * self.makespan]
        kernels = tied[self.plan.columns.op[tied] != TRANSFER]
        return int((kernels if len(kernels) else tied)[0])

    @property
    def _machine(self) -> Topology:
        if self.topology is None:
            raise SimulationError("timeline: expected a topology to tell links apart, found none")
        return self.topology

    @cached_property
    def _pair_bytes(self) -> dict[tuple[str, str], int]:
        """Bytes by (source device, destination device)."""
        plan, columns = self.plan, self.plan.columns
        moves = np.flatnonzero(columns.op == TRANSFER)
        packed = columns.rank[moves].astype(np.int64) * plan.num_ranks + columns.peer[moves]
        pairs, which = np.unique(packed, return_inverse=True)
        sums = np.zeros(len(pairs), np.int64)
        np.add.at(sums, which.reshape(-1), plan.op_bytes[moves])
        ends = zip(*np.divmod(pairs, plan.num_ranks), strict=True)
        return {
            (plan.devices[src], plan.devices[dst]): moved
            for (src, dst), moved in zip(ends, sums.tolist(), strict=True)
        }

    @cached_property
    def _routes(self) -> list[tuple[Route, int]]:
        machine = self._machine
        return [(machine.route(*ends), moved) for ends, moved in self._pair_bytes.items()]


__all__ = ["SOURCES", "Level", "Timeline"]
