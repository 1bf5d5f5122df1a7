"""Kernels that take longer while transfers cross their device.

A profile may say how many times as long. As long as bytes flow into or out of a device, its kernels
run at that part of their speed, however few these bytes are; kernels of several compute streams
share the device as ever. Transfers are not slowed down in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.plans.plan import TRANSFER
from charm_sched.simulator.maxmin import TOLERANCE
from charm_sched.simulator.network import Network
from charm_sched.topology.conditions import INTERFERENCE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from charm_sched.plans.plan import Plan
    from charm_sched.simulator.maxmin import RouteTable
    from charm_sched.topology.graph import Topology

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Rows = list[int] | Ints


@dataclass(frozen=True, eq=False, kw_only=True)
class Disturbance:
    """Which device each op is on, and what transfers do to its kernels.

    Attributes:
        first: Number of the device of each row (of its source, for a transfer), int64.
        second: Number of the destination's device of a transfer; -1 for kernels.
        factor: Per device, how many times as long kernels take under transfers, float64.
    """

    first: Ints
    second: Ints
    factor: Floats


def find_disturbance(plan: Plan, topology: Topology) -> Disturbance | None:
    """Give what transfers do to kernels; None where that condition is off."""
    if INTERFERENCE not in topology.under:
        return None
    columns = plan.columns
    names: dict[str, int] = {}
    device = np.array([names.setdefault(name, len(names)) for name in plan.devices], np.int64)
    if plan.symmetry:  # what reaches a translate reaches its representative alike
        device = device[plan.symmetry.representative(np.arange(plan.num_ranks))]
    moves = columns.op == TRANSFER
    return Disturbance(
        first=device[columns.rank],
        second=np.where(moves, device[np.where(moves, columns.peer, 0)], -1),
        factor=np.array([topology.device(name).compute.interference for name in names]),
    )


class Kernel:
    """A kernel under way: what it has left in seconds of work, its rate, since when."""

    __slots__ = ("finish", "left", "rate", "since")

    def __init__(self, left: float) -> None:
        self.left, self.rate, self.since, self.finish = left, 0.0, 0.0, np.inf


class DisturbedNetwork(Network):
    """A network beside which kernels run, at a pace that depends on it."""

    def __init__(self, table: RouteTable, route: Ints, size: Floats, told: Disturbance) -> None:
        """Prepare for flows named by row, kernels among them."""
        super().__init__(table, route, size)
        self._first, self._second = told.first.tolist(), told.second.tolist()
        self._factor = told.factor.tolist()
        self._seconds = size
        self._flows = [0] * len(self._factor)  # transfers under way, by device
        self._running: list[dict[int, Kernel]] = [{} for _ in self._factor]
        self._touched: dict[int, None] = {}  # devices whose kernels change their pace
        self._heap: list[tuple[float, int]] = []
        self._flows_finish = np.inf

    def begin(self, rows: Rows, now: float) -> None:
        """Let flows and kernels begin.

        Raises:
            Starved: A route has no bandwidth.
        """
        names = np.asarray(rows, np.int64).tolist()
        ops = len(self._second)
        flows = [row for row in names if row >= ops or self._second[row] >= 0]
        for row in names:
            if row >= ops:  # the host works on it first
                continue
            device = self._first[row]
            if self._second[row] < 0:
                self._running[device][row] = Kernel(float(self._seconds[row]))
                self._touched[device] = None
            else:
                self._count_flow(row, 1)
        if flows:
            super().begin(flows, now)

    def take_ended(self, now: float) -> Ints:
        """Remove the flows and kernels that have ended by now, and give them."""
        flows = super().take_ended(now)
        ended = flows.tolist()
        ops = len(self._second)
        for row in ended:
            if row < ops:
                self._count_flow(row, -1)
        latest = now * (1 + TOLERANCE)
        while self._next_kernel() <= latest:
            row = heappop(self._heap)[1]
            device = self._first[row]
            del self._running[device][row]
            self._touched[device] = None
            ended.append(row)
        return np.array(ended, np.int64)

    def update(self, now: float) -> bool:
        """Share out capacities and devices again; say whether anything had begun or ended."""
        self.finish = self._flows_finish
        changed = super().update(now)
        self._flows_finish = self.finish
        for device in self._touched:
            self._set_pace(device, now)
        changed = changed or bool(self._touched)
        self._touched = {}
        self.finish = min(self._flows_finish, self._next_kernel())
        return changed

    def _count_flow(self, row: int, by: int) -> None:
        for device in (self._first[row], self._second[row]):
            before = self._flows[device]
            self._flows[device] = before + by
            if (before == 0) != (before + by == 0):
                self._touched[device] = None

    def _set_pace(self, device: int, now: float) -> None:
        """Give the kernels of a device their pace; one that keeps it keeps its end."""
        running = self._running[device]
        if not running:
            return
        slower = self._factor[device] if self._flows[device] else 1.0
        rate = 1.0 / (slower * len(running))
        for row, kernel in running.items():
            if kernel.rate == rate:
                continue
            kernel.left = max(kernel.left - kernel.rate * (now - kernel.since), 0.0)
            kernel.rate, kernel.since = rate, now
            kernel.finish = now + kernel.left / rate
            heappush(self._heap, (kernel.finish, row))

    def _next_kernel(self) -> float:
        """Give when the next kernel ends, seconds; infinite when there is none."""
        while self._heap:
            finish, row = self._heap[0]
            kernel = self._running[self._first[row]].get(row)
            if kernel is not None and kernel.finish == finish:
                return finish
            heappop(self._heap)
        return np.inf


__all__ = ["Disturbance", "DisturbedNetwork", "find_disturbance"]
