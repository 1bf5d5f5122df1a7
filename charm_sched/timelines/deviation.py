"""How far a prediction is off, level by level and link by link: two timelines of one plan.

An error is the predicted minus the measured time over the measured makespan, so that errors of all
levels and links of a run can be compared with each other and with that of the makespan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.errors import SimulationError
from charm_sched.plans.plan import TRANSFER

if TYPE_CHECKING:
    from charm_sched.arrays import Floats, Ints
    from charm_sched.timelines.timeline import Timeline
    from charm_sched.topology.graph import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelDeviation:
    """When one level of a stream ends, over all ranks.

    Attributes:
        predicted: Seconds.
        measured: Seconds.
        error: Predicted minus measured, over the measured makespan.
    """

    stream: str
    level: int
    predicted: float
    measured: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDeviation:
    """How long links of one kind are in use: the busiest of the kind, by the prediction.

    Attributes:
        kind: Kind of the link; "port" for a device's port.
        name: The link.
        predicted: Seconds in which at least one transfer that crosses it is under way.
        measured: The same, measured.
        error: Predicted minus measured, over the measured makespan.
    """

    kind: str
    name: str
    predicted: float
    measured: float
    error: float


def by_level(predicted: Timeline, measured: Timeline) -> tuple[LevelDeviation, ...]:
    """Compare when each level of each stream ends.

    Raises:
        SimulationError: The timelines are not of one plan.
    """
    _check(predicted, measured)
    return tuple(
        LevelDeviation(
            stream=one.stream,
            level=one.level,
            predicted=one.end,
            measured=other.end,
            error=(one.end - other.end) / measured.makespan,
        )
        for one, other in zip(predicted.levels, measured.levels, strict=True)
    )


def by_link(predicted: Timeline, measured: Timeline) -> tuple[LinkDeviation, ...]:
    """Compare how long the busiest link of each kind is in use, in order of the topology.

    Raises:
        SimulationError: The timelines are not of one plan, or the prediction has no topology.
    """
    _check(predicted, measured)
    machine = predicted.topology
    if machine is None:
        raise SimulationError("deviation: expected a prediction with a topology, found none in it")
    rows = _rows_by_capacity(predicted, machine)
    used = {at: busy_seconds(predicted, chosen) for at, chosen in rows.items()}
    found = []
    for kind in dict.fromkeys(capacity.kind for capacity in machine.capacities):
        alike = [at for at in used if machine.capacities[at].kind == kind]
        if not alike:
            continue
        busiest = max(alike, key=lambda at: (used[at], -at))
        took = busy_seconds(measured, rows[busiest])
        found.append(
            LinkDeviation(
                kind=kind,
                name=machine.capacities[busiest].name,
                predicted=used[busiest],
                measured=took,
                error=(used[busiest] - took) / measured.makespan,
            )
        )
    return tuple(found)


def busy_seconds(timeline: Timeline, rows: Sequence[int] | Ints) -> float:
    """Count the seconds in which at least one of some rows is under way."""
    chosen = np.asarray(rows, np.int64)
    order = chosen[np.argsort(timeline.start[chosen], kind="stable")]
    start, end = timeline.start[order], timeline.end[order]
    reached: Floats = np.maximum.accumulate(np.concatenate([[0.0], end]))
    return float(np.maximum(end - np.maximum(start, reached[:-1]), 0.0).sum())


def _rows_by_capacity(timeline: Timeline, machine: Topology) -> dict[int, list[int]]:
    plan = timeline.plan
    columns, names = plan.columns, plan.devices
    rows: dict[int, list[int]] = {}
    for row in np.flatnonzero(columns.op == TRANSFER).tolist():
        route = machine.route(names[columns.rank[row]], names[columns.peer[row]])
        for capacity in route.capacities:
            rows.setdefault(capacity, []).append(row)
    return dict(sorted(rows.items()))


def _check(predicted: Timeline, measured: Timeline) -> None:
    if predicted.plan is not measured.plan and predicted.plan.digest != measured.plan.digest:
        raise SimulationError("deviation: expected two timelines of one plan, found two plans")


__all__ = ["LevelDeviation", "LinkDeviation", "busy_seconds", "by_level", "by_link"]
