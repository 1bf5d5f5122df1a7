"""What a plan's time is spent on, read off its timeline: its fullest resource, and when it rests.

A resource is one link (in one direction) or the computation of one rank. The fullest one, with the
most seconds of bytes over bandwidth, or of kernels, is what the plan hangs on. Its seconds and its
rests add up to the makespan exactly, so whatever lies between the makespan and a bound has a name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from charm_sched.arrays import Bools, Floats
from charm_sched.plans.plan import TRANSFER
from charm_sched.timelines.timeline import Timeline
from charm_sched.topology.graph import Capacity

KERNELS = "kernels"
PORT = "port"
LOADS = ("uneven", "surplus")
WAITS = ("first", "unused", "slow", "last")
CAUSES = (*LOADS, *WAITS)


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The fullest resource of a plan, and its rests.

    Attributes:
        name: Of the link, or of the device.
        kind: Of the link, or ``kernels``.
        busy: Seconds of its bytes over its bandwidth, or of its kernels at undisturbed rates.
        mean: The mean of that over all resources of its kind that are used.
        first: Seconds before it is used at all.
        unused: Seconds in between with nothing on it.
        slow: Seconds lost while it is in use: latencies, limits of single flows, other links on
            the way, or kernels that share the device.
        last: Seconds after its last use.
    """

    name: str
    kind: str
    busy: float
    mean: float
    first: float
    unused: float
    slow: float
    last: float

    def losses(self, bound: float) -> dict[str, float]:
        """Give the seconds of each of `CAUSES`; with the bound they add up to the makespan.

        ``uneven`` is what the fullest has above the mean, ``surplus`` that mean above the bound:
        below zero where the bound is by something else.
        """
        loads = (self.busy - self.mean, self.mean - bound)
        waits = (getattr(self, name) for name in WAITS)
        return dict(zip(CAUSES, (*loads, *waits), strict=True))


def fullest(timeline: Timeline) -> dict[str, float]:
    """Give, per kind of link and for kernels, the seconds of the fullest one."""
    found = {KERNELS: timeline.compute_s}
    for capacity, seconds in zip(_machine(timeline), _seconds(timeline), strict=True):
        if seconds and capacity.kind != PORT:
            found[capacity.kind] = max(found.get(capacity.kind, 0.0), float(seconds))
    return found


def stop_of(timeline: Timeline) -> Stop:
    """Say what a plan hangs on; its timeline is a simulation, with a topology."""
    kinds = np.array([capacity.kind for capacity in _machine(timeline)])
    links = np.where(kinds == PORT, 0.0, _seconds(timeline))
    at = int(links.argmax())
    kernels = timeline.compute_seconds
    if links[at] > kernels.max(initial=0.0):
        alike = links[(kinds == kinds[at]) & (links > 0)]
        uses = _crossing(timeline, at)
        name, kind, busy = _machine(timeline)[at].name, str(kinds[at]), float(links[at])
    else:
        rank = int(kernels.argmax())
        alike = kernels[kernels > 0]
        columns = timeline.plan.columns
        uses = (columns.op != TRANSFER) & (columns.rank == rank)
        name, kind, busy = timeline.plan.devices[rank], KERNELS, float(kernels[rank])
    first, until, in_use = _span(timeline.start[uses], timeline.end[uses])
    return Stop(
        name=name, kind=kind, busy=busy, mean=float(alike.mean()) if len(alike) else 0.0,
        first=first, unused=until - first - in_use, slow=in_use - busy,
        last=timeline.makespan - until,
    )  # fmt: skip


def _machine(timeline: Timeline) -> tuple[Capacity, ...]:
    assert timeline.topology is not None
    return timeline.topology.capacities


def _seconds(timeline: Timeline) -> Floats:
    """Give the seconds of each capacity, ``[capacities]``."""
    return timeline.link_busy * timeline.makespan


def _crossing(timeline: Timeline, capacity: int) -> Bools:
    """Say of each row whether it is a transfer over a capacity, ``[rows]``."""
    plan, columns, topology = timeline.plan, timeline.plan.columns, timeline.topology
    assert topology is not None
    crosses: dict[tuple[int, int], bool] = {}
    found = np.zeros(len(plan), bool)
    for row in np.flatnonzero(columns.op == TRANSFER).tolist():
        pair = (int(columns.rank[row]), int(columns.peer[row]))
        if pair not in crosses:
            route = topology.route(plan.devices[pair[0]], plan.devices[pair[1]])
            crosses[pair] = capacity in route.capacities
        found[row] = crosses[pair]
    return found


def _span(start: Floats, end: Floats) -> tuple[float, float, float]:
    """Give the first start, the last end, and the seconds with at least one in between."""
    if not len(start):
        return 0.0, 0.0, 0.0
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    gaps = np.maximum(start[1:] - reached[:-1], 0.0).sum()
    return float(start[0]), float(reached[-1]), float(reached[-1] - start[0] - gaps)
