"""How full links are while a timeline's transfers cross them, and what limits one transfer.

A timeline knows when a transfer starts and ends, not its rate at each moment. Over a period in
which transfers begin and end the bytes are exact; within one transfer they count as evenly spread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.errors import SimulationError
from charm_sched.plans.plan import TRANSFER

if TYPE_CHECKING:
    from charm_sched.arrays import Floats, Ints
    from charm_sched.timelines.timeline import Timeline
    from charm_sched.topology.graph import Link, Route

FULL = 0.95
"""A link that is used to so much of its bandwidth counts as full."""
_NEAR = 0.02  # two links that are full to within this are equally full
PORT = "port"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What keeps a transfer from being faster.

    Attributes:
        by: ``link``, where one along its way is full or fuller than the others; ``flow_cap``, where
            no single transfer gets more; ``ramp``, where a message of its size does not; or
            ``latency``, where that is most of its time.
        kind: Kind of the link; "port" for a device's port.
        place: Position of the link along the route.
        name: The link.
        fill: Part of its bandwidth that is used meanwhile, 0 to 1.
    """

    by: str
    kind: str
    place: int
    name: str
    fill: float


class LinkUsage:
    """The transfers of a timeline by the links that they cross.

    Raises:
        SimulationError: The timeline has no topology.
    """

    def __init__(self, timeline: Timeline) -> None:
        if timeline.topology is None:
            raise SimulationError("links: expected a timeline with a topology, found none in it")
        self._timeline, self._machine = timeline, timeline.topology
        plan, columns = timeline.plan, timeline.plan.columns
        moves = np.flatnonzero(columns.op == TRANSFER)
        packed = columns.rank[moves].astype(np.int64) * plan.num_ranks + columns.peer[moves]
        self._pairs, which = np.unique(packed, return_inverse=True)
        which = which.reshape(-1)
        order = np.argsort(which, kind="stable")
        self._rows = moves[order]
        self._ptr = np.searchsorted(which[order], np.arange(len(self._pairs) + 1))
        self._pair_of = dict(zip(self._pairs.tolist(), range(len(self._pairs)), strict=True))

    @cached_property
    def routes(self) -> list[Route]:
        """The route of each pair of ranks that exchange anything."""
        return [self._machine.route(*self._ends(pair)) for pair in self._pairs.tolist()]

    @cached_property
    def _crossing(self) -> dict[int, list[int]]:
        """The pairs whose route crosses each capacity."""
        found: dict[int, list[int]] = {}
        for number, route in enumerate(self.routes):
            for capacity in route.capacities:
                found.setdefault(capacity, []).append(number)
        return found

    @cached_property
    def flow_start(self) -> Floats:
        """When the bytes of each row start to flow: after the latency of its route."""
        start = self._timeline.start.copy()
        for number, route in enumerate(self.routes):
            start[self._rows[self._ptr[number] : self._ptr[number + 1]]] += route.latency
        return np.minimum(start, self._timeline.end)

    def _ends(self, pair: int) -> tuple[str, str]:
        plan = self._timeline.plan
        source, target = divmod(pair, plan.num_ranks)
        return plan.devices[source], plan.devices[target]

    def route_of(self, row: int) -> Route:
        """Give the route of a transfer."""
        columns = self._timeline.plan.columns
        packed = int(columns.rank[row]) * self._timeline.plan.num_ranks + int(columns.peer[row])
        return self.routes[self._pair_of[packed]]

    def limit_of(self, row: int) -> Limit:
        """Say what limits a transfer: the fullest link along its way, a cap, or latency."""
        route, machine = self.route_of(row), self._machine
        first, last = float(self.flow_start[row]), float(self._timeline.end[row])
        moved = float(self._timeline.plan.op_bytes[row])
        if last - first <= route.latency or not moved:
            return Limit(by="latency", kind="", place=0, name="", fill=0.0)
        if moved / (last - first) >= (1 - _NEAR) * route.flow_cap:
            capped = min(route.links, key=lambda at: machine.links[at].flow_cap or np.inf)
            name = machine.capacities[machine.link_capacity[capped]].name
            kind = machine.links[capped].kind
            return Limit(by="flow_cap", kind=kind, place=0, name=name, fill=1.0)
        if moved / (last - first) >= (1 - _NEAR) * machine.message_cap(route, moved):
            ramped = [at for at in route.links if machine.links[at].ramp is not None]
            slow = min(ramped, key=lambda at: _part(machine.links[at], moved))
            name = machine.capacities[machine.link_capacity[slow]].name
            kind = machine.links[slow].kind
            return Limit(by="ramp", kind=kind, place=0, name=name, fill=1.0)
        fills = [self.fill([capacity], first, last) for capacity in route.capacities]
        place = _fullest(fills, [machine.capacities[c].kind for c in route.capacities])
        capacity = machine.capacities[route.capacities[place]]
        return Limit(
            by="link", kind=capacity.kind, place=place, name=capacity.name, fill=fills[place]
        )

    def fill(self, capacities: Iterable[int], first: float, last: float) -> float:
        """Give the part of the joint bandwidth of some links that is used from first to last."""
        bandwidth, moved = 0.0, 0.0
        for capacity in capacities:
            bandwidth += self._machine.capacities[capacity].bandwidth
            moved += self._moved(self.rows_over(capacity), first, last)
        return min(moved / (bandwidth * (last - first)), 1.0) if bandwidth * (last - first) else 0.0

    def full_period(
        self, capacities: Iterable[int], first: float, last: float
    ) -> tuple[float, float]:
        """Give the longest period around one throughout which some links are full together.

        It begins and ends with transfers over them. Where they are not full from ``first`` to
        ``last`` that period itself is given.
        """
        links = list(capacities)
        rows = np.unique(np.concatenate([self.rows_over(link) for link in links]))
        starts, ends = self.flow_start[rows], self._timeline.end[rows]
        before = np.unique(starts[starts < first])[::-1]
        after = np.unique(ends[ends > last])
        begin = self._reach([(time, last) for time in before.tolist()], links)
        start = first if begin is None else begin[0]
        finish = self._reach([(start, time) for time in after.tolist()], links)
        return start, last if finish is None else finish[1]

    def _reach(
        self, periods: list[tuple[float, float]], links: list[int]
    ) -> tuple[float, float] | None:
        """Give the longest of some growing periods in which links are full; None for none."""
        low, high = 0, len(periods)
        while low < high:
            middle = (low + high + 1) // 2
            if self.fill(links, *periods[middle - 1]) >= FULL:
                low = middle
            else:
                high = middle - 1
        return periods[low - 1] if low else None

    def flow_period(self, rows: list[int]) -> tuple[float, float]:
        """Give when the bytes of the first of some transfers start, and those of the last end."""
        return float(self.flow_start[rows].min()), float(self._timeline.end[rows].max())

    def beside(self, row: int, place: int, same: Iterable[int]) -> list[int]:
        """List the links at one position of the routes of some transfers, of one kind with row's.

        Args:
            row: A transfer.
            place: The position of the link in its route.
            same: Rows of further transfers, such as those between the same two nodes.
        """
        own = self.route_of(row).capacities
        kind = self._machine.capacities[own[place]].kind
        found = {own[place]: None}
        for other in same:
            crossed = self.route_of(other).capacities
            if len(crossed) == len(own) and self._machine.capacities[crossed[place]].kind == kind:
                found[crossed[place]] = None
        return list(found)

    @property
    def capacities(self) -> list[int]:
        """Everything that at least one transfer crosses, by number in the topology."""
        return sorted(self._crossing)

    def rows_over(self, capacity: int) -> Ints:
        """List the transfers that cross a capacity."""
        parts = [
            self._rows[self._ptr[pair] : self._ptr[pair + 1]]
            for pair in self._crossing.get(capacity, ())
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _moved(self, rows: Ints, first: float, last: float) -> float:
        """Count the bytes of rows that flow from first to last."""
        start, end = self.flow_start[rows], self._timeline.end[rows]
        overlap = np.minimum(end, last) - np.maximum(start, first)
        length = np.maximum(end - start, 1e-15)
        part = np.clip(overlap / length, 0.0, 1.0)
        return float((part * self._timeline.plan.op_bytes[rows]).sum())


def _part(link: Link, size: float) -> float:
    """Give what a message gets of a link, in bytes per second."""
    return link.bandwidth * (link.ramp.part(size) if link.ramp is not None else 1.0)


def _fullest(fills: list[float], kinds: list[str]) -> int:
    """Choose the fullest of a route's capacities: of equal ones links, then the middle."""
    most = max(fills)
    middle = (len(fills) - 1) / 2
    near = [at for at, fill in enumerate(fills) if fill >= most - _NEAR]
    return min(near, key=lambda at: (kinds[at] == PORT, abs(at - middle), at))


__all__ = ["FULL", "PORT", "Limit", "LinkUsage"]
