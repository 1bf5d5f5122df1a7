"""Flows under way, few of which begin or end at a time: a change spreads as far as it has to.

Rates are max-min fair exactly if each flow gets the bound of its route, or has a *neck*: a full
capacity on which no flow gets more than it (Bertsekas and Gallager, Data Networks, 1992, section
6.5.2). So when some flows begin or end, those that have their neck there share anew what the
others leave; where one of the others then lacks a neck, it joins them, and so on. In a large
network that is a handful of flows, whatever else is under way.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.simulator.maxmin import TOLERANCE, RouteTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

BOUND = -1  # neck of a flow that gets the bound of its route
NEW = -2  # neck of a flow that has no rate yet
_SAME = 1e-13  # relative; a rate that would change by less is kept


class Flow:
    """A flow under way.

    Attributes:
        row: Its name.
        left: What it had left at `since`.
        rate: Units per second from then on.
        since: Seconds.
        finish: When it ends if nothing changes, seconds.
        neck: The capacity that limits it, or `BOUND`.
        uses: The capacities of its route, each with how often it crosses it.
        bound: The most it can get.
        route: Its route.
    """

    __slots__ = ("bound", "finish", "left", "neck", "rate", "route", "row", "since", "uses")

    def __init__(
        self, row: int, route: int, left: float, bound: float, uses: tuple[tuple[int, float], ...]
    ) -> None:
        self.row, self.route, self.left, self.bound, self.uses = row, route, left, bound, uses
        self.rate, self.since, self.finish, self.neck = 0.0, 0.0, np.inf, NEW


class Ripple:
    """All flows under way, by capacity.

    Attributes:
        flows: The flows by row.
    """

    def __init__(self, table: RouteTable) -> None:
        self._table = table
        self._width: list[float] = table.bandwidth.tolist()
        self._limit: list[float] = (table.bandwidth * (1 + TOLERANCE)).tolist()
        self._bound: list[float] = table.bound.tolist()
        self._known: dict[int, tuple[tuple[int, float], ...]] = {}
        self._wanted = [0.0] * len(self._width)
        self._users: list[dict[Flow, float]] = [{} for _ in self._width]
        self._heap: list[tuple[float, int]] = []
        self._unsettled: dict[Flow, None] = {}
        self.flows: dict[int, Flow] = {}

    def load(self, rows: Ints, routes: Ints, state: Floats) -> None:
        """Take over flows; state is what is left, rate, since when, and finish, ``[4, flows]``."""
        columns = zip(rows.tolist(), routes.tolist(), *state.tolist(), strict=True)
        for row, route, left, rate, since, finish in columns:
            flow = self._add(row, route, left)
            flow.rate, flow.since, flow.finish = rate, since, finish
        self._heap = [(flow.finish, flow.row) for flow in self.flows.values()]
        heapify(self._heap)
        for flow in self.flows.values():
            if flow.rate >= flow.bound:
                flow.neck = BOUND
        for capacity in range(len(self._width)):
            self._find_necked(capacity)
        for flow in self.flows.values():
            if flow.neck == NEW:
                self._unsettled[flow] = None

    def _find_necked(self, capacity: int) -> None:
        """Note which flows have their neck at a capacity."""
        users = self._users[capacity]
        if self._wanted[capacity] <= self._limit[capacity]:
            return
        used = sum(flow.rate * weight for flow, weight in users.items())
        top = max(flow.rate for flow in users)
        if used >= self._width[capacity] * (1 - TOLERANCE):
            for flow in users:
                if flow.neck == NEW and flow.rate >= top * (1 - TOLERANCE):
                    flow.neck = capacity

    def unload(self) -> tuple[Ints, Ints, Floats]:
        """Give up all flows: rows, routes and states, as `load` takes them."""
        flows = list(self.flows.values())
        for flow in flows:
            for capacity, _ in flow.uses:
                self._users[capacity].clear()
                self._wanted[capacity] = 0.0
        self.flows, self._heap = {}, []
        state = [[flow.left, flow.rate, flow.since, flow.finish] for flow in flows]
        return (
            np.array([flow.row for flow in flows], np.int64),
            np.array([flow.route for flow in flows], np.int64),
            np.array(state, np.float64).reshape(-1, 4).T,
        )

    def finish(self) -> float:
        """Give when the next flow ends, seconds; infinite when there is none."""
        heap, flows = self._heap, self.flows
        while heap:
            finish, row = heap[0]
            flow = flows.get(row)
            if flow is not None and flow.finish == finish:
                return finish
            heappop(heap)
        return np.inf

    def begin(self, row: int, route: int, size: float) -> bool:
        """Let a flow begin; `settle` gives it its rate. Say whether its route has bandwidth."""
        flow = self._add(row, route, size)
        self._unsettled[flow] = None
        for capacity, _ in flow.uses:
            if self._wanted[capacity] > self._limit[capacity]:
                self._unsettle(capacity)
        return flow.bound > 0

    def take_ended(self, now: float) -> list[int]:
        """Remove the flows that have ended by now, and give them."""
        latest, ended = now * (1 + TOLERANCE), []
        while self.finish() <= latest:
            row = heappop(self._heap)[1]
            flow = self.flows.pop(row)
            ended.append(row)
            self._unsettled.pop(flow, None)
            for capacity, weight in flow.uses:
                if self._wanted[capacity] > self._limit[capacity]:
                    self._unsettle(capacity)
                users = self._users[capacity]
                del users[flow]
                self._unsettled.pop(flow, None)
                # Rounding must not add up.
                self._wanted[capacity] -= weight * flow.bound
                if not users:
                    self._wanted[capacity] = 0.0
        return ended

    def _add(self, row: int, route: int, left: float) -> Flow:
        uses = self._known.get(route)
        if uses is None:
            table = self._table
            span = slice(table.ptr[route], table.ptr[route + 1])
            pairs = zip(table.capacity[span].tolist(), table.weight[span].tolist(), strict=True)
            uses = self._known[route] = tuple(pairs)
        bound = self._bound[route]
        flow = self.flows[row] = Flow(row, route, left, bound, uses)
        for capacity, weight in uses:
            self._users[capacity][flow] = weight
            self._wanted[capacity] += weight * bound
        return flow

    def _unsettle(self, capacity: int) -> None:
        """Let the flows that have their neck at a capacity get new rates."""
        for flow in self._users[capacity]:
            if flow.neck == capacity:
                self._unsettled[flow] = None

    def settle(self, now: float) -> int:
        """Give new rates where flows have begun or ended; say how many were looked at."""
        chosen = self._unsettled
        if not chosen:
            return 0
        while True:
            spots = self._survey(chosen)
            rates = _fill(chosen, spots)
            more = self._without_neck(rates, spots)
            if not more:
                break
            chosen.update(more)
        for flow, (rate, neck) in rates.items():
            self._set(flow, rate, neck, now)
        self._unsettled = {}
        return len(rates)

    def _set(self, flow: Flow, rate: float, neck: int, now: float) -> None:
        """Give a flow its rate; what keeps its rate keeps its end, to the last bit."""
        flow.neck = neck
        before = flow.rate
        if abs(rate - before) <= _SAME * before:
            return
        if before:
            flow.left = max(flow.left - before * (now - flow.since), 0.0)
        flow.rate, flow.since = rate, now
        flow.finish = now + flow.left / rate
        heappush(self._heap, (flow.finish, flow.row))

    def _survey(self, chosen: dict[Flow, None]) -> dict[int, _Spot]:
        """Look at the capacities of chosen flows that may limit something."""
        wanted, limit = self._wanted, self._limit
        spots: dict[int, _Spot] = {}
        for flow in chosen:
            for capacity, weight in flow.uses:
                if wanted[capacity] > limit[capacity]:
                    spot = spots.get(capacity)
                    if spot is None:
                        spot = spots[capacity] = _Spot(self._width[capacity])
                    spot.members.append(flow)
                    spot.weight += weight
        for capacity, spot in spots.items():
            for flow, weight in self._users[capacity].items():
                if flow not in chosen:
                    rate = flow.rate
                    spot.room -= weight * rate
                    if rate > spot.top:
                        spot.top = rate
                    if flow.neck == capacity and rate < spot.level:
                        spot.level = rate
        return spots

    def _without_neck(
        self, rates: dict[Flow, tuple[float, int]], spots: dict[int, _Spot]
    ) -> dict[Flow, None]:
        """Give the other flows that lack a neck now, or leave a chosen one without."""
        more: dict[Flow, None] = {}
        for capacity, spot in spots.items():
            if spot.top == 0.0:  # nobody else is there
                continue
            users, used, top = self._users[capacity], self._width[capacity] - spot.room, spot.top
            level = np.inf  # of the chosen flows that have their neck here
            for flow in spot.members:
                rate, neck = rates[flow]
                used += users[flow] * rate
                if rate > top:
                    top = rate
                if neck == capacity and rate < level:
                    level = rate
            slack = used < self._width[capacity] * (1 - TOLERANCE)
            low = top * (1 - TOLERANCE)
            if spot.top * (1 - TOLERANCE) <= level and (
                spot.level == np.inf or (not slack and spot.level >= low)
            ):
                continue
            for flow in users:
                if flow not in rates and (
                    flow.rate * (1 - TOLERANCE) > level
                    or (flow.neck == capacity and (slack or flow.rate < low))
                ):
                    more[flow] = None
        return more


class _Spot:
    """A capacity that chosen flows share with others.

    Attributes:
        members: The chosen flows that cross it.
        weight: How often they do, together.
        room: What the others leave.
        top: The largest rate of the others.
        level: The least rate of those others that have their neck here.
    """

    __slots__ = ("level", "members", "room", "top", "weight")

    def __init__(self, room: float) -> None:
        self.members: list[Flow] = []
        self.weight, self.room, self.top, self.level = 0.0, room, 0.0, np.inf


def _fill(chosen: dict[Flow, None], spots: dict[int, _Spot]) -> dict[Flow, tuple[float, int]]:
    """Share out the room of capacities; give the rate and neck of each chosen flow."""
    if len(chosen) == 1:
        (flow,) = chosen
        rate, neck = flow.bound, BOUND
        for capacity, spot in spots.items():
            share = max(spot.room, 0.0) / spot.weight
            if share < rate:
                rate, neck = share, capacity
        return {flow: (rate, neck)}
    room = {capacity: max(spot.room, 0.0) for capacity, spot in spots.items()}
    total = {capacity: spot.weight for capacity, spot in spots.items()}
    heap = [(room[capacity] / total[capacity], capacity) for capacity in spots]
    heapify(heap)
    bounds = sorted(chosen, key=_bound_of, reverse=True)
    rates: dict[Flow, tuple[float, int]] = {}
    while bounds:
        last = bounds[-1]
        if last in rates:
            bounds.pop()
            continue
        if not heap or last.bound <= heap[0][0]:
            fixed, rate, neck = [bounds.pop()], last.bound, BOUND
        else:
            rate, neck = heappop(heap)
            if total[neck] <= 0:
                continue
            share = room[neck] / total[neck]
            if share > rate * (1 + _SAME):  # it has grown since
                heappush(heap, (share, neck))
                continue
            fixed = spots[neck].members
        for flow in fixed:
            if flow not in rates:
                rates[flow] = rate, neck
                for capacity, weight in flow.uses:
                    if capacity in room:
                        room[capacity] = max(room[capacity] - weight * rate, 0.0)
                        total[capacity] -= weight
    return rates


def _bound_of(flow: Flow) -> float:
    return flow.bound


__all__ = ["BOUND", "Flow", "Ripple"]
