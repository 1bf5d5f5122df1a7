"""What each link carries over a whole timeline, and how full it is from moment to moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.errors import SimulationError
from charm_sched.timelines.deviation import busy_seconds
from charm_sched.timelines.link_usage import LinkUsage

if TYPE_CHECKING:
    from charm_sched.arrays import Floats
    from charm_sched.timelines.timeline import Timeline

_NOISE = 1e-9  # a utilisation below this is a rounding error of sums


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """What crosses one link, or one way of a device's port, in a whole timeline.

    Attributes:
        name: Of the link.
        kind: Of the link; "port" for a device's port.
        bandwidth: Bytes per second that it can carry.
        bytes: What crosses it.
        utilisation: The part of its bandwidth that is used over the makespan, 0 to 1.
        busy: Seconds in which at least one transfer that crosses it is under way; None where a plan
            is stored by its symmetry, for then not every transfer has a row.
        rate: Bytes per second while it is busy; None where `busy` is, or is 0.
    """

    name: str
    kind: str
    bandwidth: float
    bytes: float
    utilisation: float
    busy: float | None
    rate: float | None


def link_loads(timeline: Timeline) -> tuple[LinkLoad, ...]:
    """Give the load of every capacity of the topology, in its order.

    Raises:
        SimulationError: The timeline has no topology.
    """
    machine = timeline.topology
    if machine is None:
        raise SimulationError("links: expected a timeline with a topology, found none in it")
    usage = LinkUsage(timeline)
    used = set(usage.capacities)
    found = []
    for number, part in enumerate(timeline.link_busy.tolist()):
        capacity = machine.capacities[number]
        moved = part * capacity.bandwidth * timeline.makespan
        busy = None
        if timeline.plan.symmetry is None:
            rows = usage.rows_over(number) if number in used else ()
            busy = busy_seconds(timeline, rows) if len(rows) else 0.0
        found.append(
            LinkLoad(
                name=capacity.name,
                kind=capacity.kind,
                bandwidth=capacity.bandwidth,
                bytes=moved,
                utilisation=part,
                busy=busy,
                rate=moved / busy if busy else None,
            )
        )
    return tuple(found)


def utilisation_steps(
    timeline: Timeline, usage: LinkUsage, capacity: int, most: int
) -> tuple[Floats, Floats]:
    """Give how full a capacity is over time, as steps.

    The bytes of a transfer count as evenly spread from the end of its latency to its end; where
    that would be more than the link can carry, it counts as full. Where there are more than
    ``most`` steps, time is cut into ``most`` equal parts, with the mean of each.

    Args:
        timeline: Of a plan that is not stored by its symmetry.
        usage: The links of this timeline.
        capacity: Its number in the topology.
        most: Of the steps.

    Returns:
        ``(times, parts)``: from ``times[i]`` on a part ``parts[i]`` of its bandwidth is used, 0 to
        1; the last one is 0.
    """
    rows = usage.rows_over(capacity)
    start, end = usage.flow_start[rows], timeline.end[rows]
    moving = (end > start) & (timeline.plan.op_bytes[rows] > 0)
    start, end, moved = start[moving], end[moving], timeline.plan.op_bytes[rows][moving]
    rate = moved / (end - start)
    times, where = np.unique(np.concatenate([start, end]), return_inverse=True)
    change = np.zeros(len(times))
    np.add.at(change, where.reshape(-1), np.concatenate([rate, -rate]))
    assert timeline.topology is not None
    parts = np.cumsum(change) / timeline.topology.capacities[capacity].bandwidth
    parts = np.where(parts < _NOISE, 0.0, np.minimum(parts, 1.0))
    if len(times) > most + 1:
        times, parts = _coarser(times, parts, most)
    keep = np.concatenate([[True], parts[1:] != parts[:-1]])[: len(parts)]
    return times[keep], parts[keep]


def _coarser(times: Floats, parts: Floats, most: int) -> tuple[Floats, Floats]:
    """Give the means of steps over equal parts of their time."""
    area = np.concatenate([[0.0], np.cumsum(parts[:-1] * np.diff(times))])
    edges = np.linspace(times[0], times[-1], most + 1)
    means = np.diff(np.interp(edges, times, area)) / np.diff(edges)
    return edges, np.append(np.clip(means, 0.0, 1.0), 0.0)


def fullest(loads: Sequence[LinkLoad], most: int) -> list[int]:
    """Give the numbers of the fullest capacities that carry anything, fullest first."""
    used = [number for number, load in enumerate(loads) if load.utilisation > 0]
    return sorted(used, key=lambda number: (-loads[number].utilisation, number))[:most]


__all__ = ["LinkLoad", "fullest", "link_loads", "utilisation_steps"]
