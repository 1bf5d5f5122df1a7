"""From seconds to findings: what a probe of a machine found, beside what its file says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from charm_sched.arrays import Floats
from charm_sched.probing.fit import fit_classes
from charm_sched.probing.latency import share_latencies
from charm_sched.probing.numbers import Case, Fit
from charm_sched.probing.outliers import Alike, Slow, sort_pairs
from charm_sched.probing.probe import Pair, expected_rate, fit_line
from charm_sched.probing.whole_machine import (
    LinkClass,
    Shape,
    Traffic,
    link_class,
    route_shape,
    shared_traffic,
)

if TYPE_CHECKING:
    from charm_sched.topology.graph import Topology

TOLERANCE = 0.1
MOVING = 0.5  # of a largest transfer's time, at least, is taken for moving bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one traffic measured, at the file's own scale.

    Attributes:
        latency: Seconds before bytes flow, one way, on its routes: half of what a transfer without
            bytes and its answer take alone.
        rate: Bytes per second of the slowest flow.
        expected: The same by the file.
    """

    traffic: Traffic
    latency: float
    rate: float
    expected: float


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a probe found.

    Attributes:
        topology: The machine as its file states it.
        devices: Device of each rank.
        how: Where it was measured, in words: "gloo, 4 ranks".
        readings: One per traffic.
        alike: Usual entries of the matrix.
        slow: Slow entries, with reasons.
        fit: What all say together about classes of links.
        latencies: Seconds per class of link; empty where they are not modelled.
        tolerance: Relative; what differs by less is the same.
        notes: Sentences about what was left out.
    """

    topology: Topology
    devices: tuple[str, ...]
    how: str
    readings: tuple[Reading, ...]
    alike: tuple[Alike, ...]
    slow: tuple[Slow, ...]
    fit: Fit
    latencies: Mapping[LinkClass, float]
    tolerance: float
    notes: tuple[str, ...] = ()

    @property
    def matrix(self) -> dict[Pair, float]:
        """Bytes per second of the ordered pairs that were measured alone."""
        return {r.traffic.pairs[0]: r.rate for r in self.readings if r.traffic.role == "pair"}


def blamed(topology: Topology, slow: Sequence[Slow]) -> dict[int, float]:
    """Return the bandwidth of links to blame; of those not told apart, the narrowest by the file.

    What is blamed may still be a flow cap: the pairs were measured alone.
    """
    found = {}
    for each in slow:
        if each.links:
            links = [topology.links[i] for i in each.links]
            worst = min(links, key=lambda k: (min(k.bandwidth, k.flow_cap or k.bandwidth), k.index))
            found[worst.index] = each.rate
    return found


def find(
    topology: Topology,
    devices: Sequence[str],
    measured: Sequence[tuple[Traffic, Floats]],
    *,
    how: str,
    scale: float = 1.0,
    latencies: bool = True,
    tolerance: float = TOLERANCE,
    notes: Sequence[str] = (),
) -> Found:
    """Turn measured seconds into what they say about the machine.

    Args:
        topology: The machine as its file states it.
        devices: Device of each rank.
        measured: Traffic, with seconds ``[sizes, repetitions]`` until its last transfer ended.
        how: Where it was measured, in words.
        scale: What the machine's rates were multiplied by.
        latencies: Whether the latencies of the machine were there at all.
        tolerance: Relative; what differs by less is the same.
        notes: Sentences about what was left out.
    """
    readings = _read(topology, devices, measured, scale, tolerance)
    matrix = {r.traffic.pairs[0]: r.rate for r in readings if r.traffic.role == "pair"}
    alike, slow = sort_pairs(topology, devices, matrix, tolerance=tolerance)
    routes = [
        (topology.route(*(devices[rank] for rank in r.traffic.pairs[0])), r.latency)
        for r in readings
        if r.traffic.role == "alone"
    ]
    return Found(
        topology=topology,
        devices=tuple(devices),
        how=how,
        readings=readings,
        alike=alike,
        slow=slow,
        fit=fit_classes(
            topology, devices, _cases(readings, alike, slow, devices), tolerance=tolerance,
            slow=blamed(topology, slow),
        ),
        latencies=share_latencies(topology, routes, link_class) if latencies else {},
        tolerance=tolerance,
        notes=tuple(notes),
    )  # fmt: skip


def _read(
    topology: Topology,
    devices: Sequence[str],
    measured: Sequence[tuple[Traffic, Floats]],
    scale: float,
    tolerance: float,
) -> tuple[Reading, ...]:
    """Fit a line to the best repetitions of pairs alone.

    Other traffic gives a rate, by what its largest transfers took beyond what the same routes take
    without bytes.
    """
    shapes = [
        {route_shape(topology, devices[a], devices[b]) for a, b in traffic.pairs}
        for traffic, _ in measured
    ]
    least: dict[Shape, float] = {}
    for (traffic, seconds), own in zip(measured, shapes, strict=True):
        if len(traffic.pairs) == 1:  # a busy processor delays small transfers most
            (shape,) = own
            least[shape] = min(least.get(shape, np.inf), float(seconds[0].min()))
    fits: dict[Shape, tuple[float, float]] = {}
    for (traffic, seconds), own in zip(measured, shapes, strict=True):
        if traffic.role == "alone":
            (shape,) = own
            best = np.array([least[shape], *seconds[1:].min(axis=1)])
            fits[shape] = fit_alone(traffic.sizes, best, tolerance)
    readings = []
    for (traffic, seconds), own in zip(measured, shapes, strict=True):
        fixed, rate = max(fits.get(shape, (least.get(shape, 0.0), 0.0)) for shape in own)
        last = float(seconds[-1].min())
        if traffic.role != "alone":
            rate = traffic.sizes[-1] / max(last - fixed, MOVING * last)
        expected, _ = expected_rate(topology, tuple(devices), traffic.pairs)
        readings.append(
            Reading(
                traffic=traffic, latency=fixed / 2 * scale, rate=rate / scale, expected=expected
            )
        )
    return tuple(readings)


def fit_alone(sizes: Sequence[int], seconds: Floats, tolerance: float) -> tuple[float, float]:
    """Give seconds without bytes, and bytes per second, of a pair alone.

    Other work on a machine delays transfers, and a buffer may swallow a small one. So the line
    through the smallest and the largest size, which were measured best, says first which of the
    others can be right; all that are on it are then fitted together.

    Args:
        sizes: Bytes, from the smallest to the largest; at least two.
        seconds: Of each, the best.
        tolerance: Relative; what is farther from the line is left out.
    """
    x = np.array(sizes, np.float64)
    rate = float((x[-1] - x[0]) / max(seconds[-1] - seconds[0], MOVING * seconds[-1]))
    fixed = float(seconds[0] - x[0] / rate)
    if fixed < 0:
        fixed, rate = 0.0, float(x[-1] / seconds[-1])
    near = np.abs((fixed + x / rate) / seconds - 1) <= tolerance
    if near.sum() < 3:
        return fixed, rate
    return fit_line(x[near], seconds[near])


def _cases(
    readings: Sequence[Reading],
    alike: Sequence[Alike],
    slow: Sequence[Slow],
    devices: Sequence[str],
) -> list[Case]:
    """Give what the classes of links are fitted to: the matrix by kinds of route, and the rest.

    A pair that no link explains would pull a whole class down, so it is left out.
    """
    alone = {pair for each in slow if not each.links for pair in each.pairs}
    cases = [
        Case(
            name=f"{devices[each.pairs[0][0]]} -> {devices[each.pairs[0][1]]}, and those like it",
            pairs=each.pairs[:1],
            rate=each.rate,
        )
        for each in alike
    ]
    cases += [
        Case(name=r.traffic.name, pairs=r.traffic.pairs, rate=r.rate)
        for r in readings
        if r.traffic.role != "pair"
        and not (r.traffic.role == "alone" and r.traffic.pairs[0] in alone)
    ]
    return cases


def second_look(found: Found) -> tuple[Traffic, ...]:
    """Return what is worth measuring again, and what to measure now that slow links are known.

    Again: slow pairs, and what the fit does not explain. New: flows over shared links without the
    devices whose own links are slow, which would hide what the shared ones can do.
    """
    slow = {pair for each in found.slow for pair in each.pairs}
    names = {each.name for each in found.fit.unexplained}
    again = [
        r.traffic
        for r in found.readings
        if r.traffic.name in names or (r.traffic.role == "pair" and r.traffic.pairs[0] in slow)
    ]
    avoid = {
        side[0]
        for each in found.slow
        if each.links and len(each.pairs) > 1
        for side in zip(*each.pairs, strict=True)
        if len(set(side)) == 1
    }
    if not avoid:
        return tuple(again)
    known = {frozenset(r.traffic.pairs) for r in found.readings}
    largest = max(r.traffic.sizes[-1] for r in found.readings)
    new = shared_traffic(found.topology, found.devices, largest, avoid)
    return (*again, *(each for each in new if frozenset(each.pairs) not in known))


Measured: TypeAlias = list[tuple[Traffic, Floats]]
"""Traffic, with seconds ``[sizes, repetitions]``."""


def together(first: Measured, more: Measured) -> Measured:
    """Give two looks as one: repetitions of what both have, and the rest."""
    found = dict(first)
    for traffic, seconds in more:
        before = found.get(traffic)
        both = seconds if before is None else np.concatenate([before, seconds], axis=1)
        found[traffic] = both
    return list(found.items())
