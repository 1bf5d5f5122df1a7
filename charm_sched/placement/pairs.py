"""What flows between pairs of devices load: quick figures by which orders and sets are compared.

Seconds here are for one byte per flow, all flows at once, each capacity shared by those that cross
it. Latency is left out: the simulation of the few best decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.topology.graph import Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Pairs:
    """Loads of all ordered pairs of some devices.

    Attributes:
        devices: Their names.
        load: Seconds per byte that a flow takes of each capacity, ``[n, n, capacities]``.
        alone: Seconds per byte of a flow alone, ``[n, n]``.
        kinds: A number for each pair that is equal for pairs of alike routes, ``[n, n]``.
    """

    devices: tuple[str, ...]
    load: NDArray[np.float32]
    alone: NDArray[np.float64]
    kinds: NDArray[np.int64]

    @classmethod
    def of(cls, topology: Topology, devices: Sequence[str]) -> Pairs:
        """Find the routes between all pairs."""
        size = len(devices)
        routes = {
            (i, j): topology.route(devices[i], devices[j])
            for i in range(size) for j in range(size) if i != j
        }  # fmt: skip
        used = sorted({c for route in routes.values() for c in route.capacities})
        column = {capacity: k for k, capacity in enumerate(used)}
        load = np.zeros((size, size, len(used)), np.float32)
        alone, kinds = np.zeros((size, size)), np.full((size, size), -1, np.int64)
        seen: dict[object, int] = {}
        for (i, j), route in routes.items():
            widths = [topology.capacities[c].bandwidth for c in route.capacities]
            for capacity, width in zip(route.capacities, widths, strict=True):
                load[i, j, column[capacity]] += 1 / width
            alone[i, j] = 1 / min([*widths, route.flow_cap])
            look = (tuple(sorted(widths)), route.latency, route.flow_cap)
            kinds[i, j] = seen.setdefault(look, len(seen))
        return cls(tuple(devices), load, alone, kinds)

    def ring(self, orders: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the seconds of one step of a ring, for each order, ``[orders, ranks]``."""
        following = np.roll(orders, -1, axis=1)
        together = np.zeros((len(orders), self.load.shape[2]), np.float32)
        slowest = np.zeros(len(orders))
        for k in range(orders.shape[1]):
            together += self.load[orders[:, k], following[:, k]]
            slowest = np.maximum(slowest, self.alone[orders[:, k], following[:, k]])
        return np.maximum(together.max(axis=1, initial=0.0), slowest)

    def exchange(self, members: Sequence[int]) -> float:
        """Return the seconds in which every member sends one byte to every other one."""
        inside = np.ix_(members, members)
        together = self.load[inside].sum(axis=(0, 1), dtype=np.float64)
        return float(max(together.max(initial=0.0), self.alone[inside].max(initial=0.0)))

    def signature(self, members: Sequence[int], looks: Sequence[object]) -> object:
        """Return what is equal for sets that look alike: kinds of routes, and what they share."""
        rows = self.kinds[np.ix_(members, members)]
        back = rows.T
        each = sorted(
            (str(looks[m]), *np.sort(row).tolist(), *np.sort(col).tolist())
            for m, row, col in zip(members, rows, back, strict=True)
        )
        return tuple(each), f"{self.exchange(members):.6g}"
