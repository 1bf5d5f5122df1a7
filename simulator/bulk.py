"""Flows under way in arrays, for many that begin and end together.

A capacity is *tight* when its flows, each at the bound of its route, want more than it has. Flows
that cross no tight capacity run at their bounds, and when such a flow begins or ends nothing else
changes. Just the others need a new solution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from charm_sched.simulator.maxmin import TOLERANCE, RouteTable, fair_rates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

_FINISH = 3
FEW = 8  # flows that begin or end together; below this plain Python beats NumPy
_MEMORY = 1 << 22  # rates remembered, over all remembered sets of flows


class Bulk:
    """The flows under way.

    Attributes:
        finish: When the next one ends, in seconds; infinite when there is none.
    """

    def __init__(self, table: RouteTable) -> None:
        """Prepare for flows on the routes of a table."""
        self._table = table
        self._limit = table.bandwidth * (1 + TOLERANCE)
        self._wanted = np.zeros(len(table.bandwidth))
        self._limit_at = cast("memoryview[float]", self._limit.data)
        self._wanted_at = cast("memoryview[float]", self._wanted.data)
        self._uses: dict[int, list[tuple[int, float]]] = {}
        self._op = np.zeros(0, np.int64)
        self._route = np.zeros(0, np.int64)
        self._state = np.zeros((4, 0))
        self._known: dict[bytes, Floats] = {}
        self._room = _MEMORY
        self._changed = self._disturbed = False
        self.finish = np.inf

    def begin(self, ops: Ints, route: Ints, left: Floats, now: float) -> None:
        """Let flows begin, with so much to do."""
        rate = self._table.bound[route]
        begun = np.array([left, rate, np.full(len(ops), now), now + left / rate])
        self._append(ops, route, begun)

    def load(self, ops: Ints, route: Ints, state: Floats) -> None:
        """Take over flows; state is what is left, rate, since when, and finish, ``[4, flows]``."""
        self._append(ops, route, state)
        self._disturbed = True

    def unload(self) -> tuple[Ints, Ints, Floats]:
        """Give up all flows: names, routes and states, as `load` takes them."""
        given = self._op, self._route, self._state
        self._op, self._route, self._state = self._op[:0], self._route[:0], self._state[:, :0]
        self._wanted[:] = 0.0
        self._changed = self._disturbed = False
        return given

    def _append(self, ops: Ints, route: Ints, state: Floats) -> None:
        self._op = np.concatenate([self._op, ops])
        self._route = np.concatenate([self._route, route])
        self._state = np.concatenate([self._state, state], axis=1)
        self._load(route, 1.0)
        self._changed = True

    def take_ended(self, now: float) -> Ints:
        """Remove the flows that have ended by now, and give them."""
        ended = self._state[_FINISH] <= now * (1 + TOLERANCE)
        ops: Ints = self._op[ended]
        stay = ~ended
        self._load(self._route[ended], -1.0)
        self._op, self._route = self._op[stay], self._route[stay]
        self._state = self._state[:, stay]
        self._changed = True
        return ops

    def update(self, now: float) -> None:
        """Share out capacities again where flows have begun or ended."""
        if not self._changed:
            return
        if self._disturbed:
            self._apply(self._rates(), now)
        self._changed = self._disturbed = False
        self.finish = float(self._state[_FINISH].min(initial=np.inf))

    def _load(self, routes: Ints, sign: float) -> None:
        """Note what flows want of their capacities, and whether one of these is tight."""
        if len(routes) >= FEW:
            self._load_many(routes, sign)
            return
        limit, wanted = self._limit_at, self._wanted_at
        for route in routes.tolist():
            for capacity, use in self._uses.get(route) or self._look_up(route):
                before = wanted[capacity]
                after = wanted[capacity] = before + sign * use
                if before > limit[capacity] or after > limit[capacity]:
                    self._disturbed = True

    def _look_up(self, route: int) -> list[tuple[int, float]]:
        table = self._table
        span = slice(table.ptr[route], table.ptr[route + 1])
        use = table.weight[span] * table.bound[route]
        uses = list(zip(table.capacity[span].tolist(), use.tolist(), strict=True))
        self._uses[route] = uses
        return uses

    def _load_many(self, routes: Ints, sign: float) -> None:
        flow, entry = self._table.entries(routes)
        capacity = self._table.capacity[entry]
        use = sign * self._table.weight[entry] * self._table.bound[routes][flow]
        tight = (self._wanted > self._limit)[capacity].any()
        self._wanted += np.bincount(capacity, use, minlength=len(self._wanted))
        if tight or (self._wanted > self._limit)[capacity].any():
            self._disturbed = True

    def _apply(self, rate: Floats, now: float) -> None:
        """Give flows new rates; what keeps its rate keeps its end, to the last bit."""
        left, before, since, finish = self._state
        changed = np.flatnonzero(rate != before)
        new = rate[changed]
        passed = now - since[changed]
        left[changed] = np.maximum(left[changed] - before[changed] * passed, 0.0)
        before[changed], since[changed] = new, now
        finish[changed] = now + left[changed] / new

    def _rates(self) -> Floats:
        """Give the rate of every flow; sets of routes met before are remembered."""
        order = np.argsort(self._route, kind="stable")
        route = self._route[order]
        key = route.tobytes()
        found = self._known.get(key)
        if found is None:
            first = np.concatenate([[True], route[1:] != route[:-1]])[: len(route)]
            starts = np.flatnonzero(first)
            counts = np.diff(np.concatenate([starts, [len(route)]]))
            found = fair_rates(self._table, route[starts], counts)[np.cumsum(first) - 1]
            if self._room < len(found):
                self._known.clear()
                self._room = _MEMORY
            self._room -= len(found)
            self._known[key] = found
        rate = np.empty(len(route))
        rate[order] = found
        return rate


__all__ = ["Bulk"]
