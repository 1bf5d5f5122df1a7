"""Flows under way: how much each has left, at what rate, and which ends next.

Everything fluid is a flow here: bytes of a transfer over the capacities of its route, and seconds
of an attend or merge over its device where several compute streams share one (a capacity of 1
second of work per second).

While many begin and end together, as in regular plans, they are kept in arrays (`bulk`); while few
do, as where no two links are alike, one by one (`ripple`). Both find the same rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from charm_sched.simulator.bulk import Bulk
from charm_sched.simulator.ripple import Ripple

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from charm_sched.simulator.maxmin import RouteTable

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Rows = list[int] | Ints

MANY = 48  # flows looked at in a step; from there on arrays are faster
PATIENCE = 8  # steps of the other sort after which flows are kept the other way


class Starved(Exception):  # noqa: N818  (the engine turns it into a SimulationError)
    """A flow gets nothing, because something on its route has no bandwidth.

    Attributes:
        row: Which one.
    """

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class Network:
    """The flows under way.

    Attributes:
        finish: When the next one ends, in seconds; infinite when there is none.
    """

    def __init__(self, table: RouteTable, route: Ints, size: Floats) -> None:
        """Prepare for flows named by row: each has a route of the table and a size."""
        self._table, self._route, self._size = table, route, size
        self._route_at = route.data
        self._size_at = cast("memoryview[float]", size.data)
        self._bulk, self._ripple = Bulk(table), Ripple(table)
        self._apart = False  # whether flows are in the second
        self._changes = self._steps = 0
        self.finish = np.inf

    def begin(self, rows: Rows, now: float) -> None:
        """Let flows begin.

        Raises:
            Starved: A route has no bandwidth.
        """
        self._changes += len(rows)
        if self._apart and len(rows) < MANY:
            for row in rows:
                if not self._ripple.begin(int(row), self._route_at[row], self._size_at[row]):
                    raise Starved(int(row))
            return
        ops = np.asarray(rows, np.int64)
        routes, sizes = self._route[ops], self._size[ops]
        bound = self._table.bound[routes]
        if not bound.min(initial=np.inf) > 0:
            raise Starved(int(ops[bound.argmin()]))
        if not self._apart:
            self._bulk.begin(ops, routes, sizes, now)
            return
        for row, route, size in zip(ops.tolist(), routes.tolist(), sizes.tolist(), strict=True):
            self._ripple.begin(row, route, size)

    def take_ended(self, now: float) -> Ints:
        """Remove the flows that have ended by now, and give them."""
        if self._apart:
            ended = np.array(self._ripple.take_ended(now), np.int64)
        else:
            ended = self._bulk.take_ended(now)
        self._changes += len(ended)
        return ended

    def update(self, now: float) -> bool:
        """Share out capacities again where flows have begun or ended; say whether any had."""
        if not self._changes:
            return False
        if self._apart:
            seen = self._ripple.settle(now)
            self.finish = self._ripple.finish()
            self._count(max(self._changes, seen) >= MANY)
        else:
            self._bulk.update(now)
            self.finish = self._bulk.finish
            self._count(self._changes < MANY)
        self._changes = 0
        return True

    def _count(self, unsuitable: bool) -> None:
        """Count steps that the way flows are kept does not suit, and change it in time."""
        self._steps = self._steps + 1 if unsuitable else 0
        if self._steps < PATIENCE:
            return
        self._steps = 0
        if self._apart:
            self._bulk.load(*self._ripple.unload())
        else:
            self._ripple.load(*self._bulk.unload())
        self._apart = not self._apart


__all__ = ["Network", "Starved"]
