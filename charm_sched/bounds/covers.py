"""Covers: bounds from all sets of devices that together hold every device once.

One cut at a time does not see that what one device takes in another has to give out. Let sets
``S_i`` hold each device exactly once. Every copy of keys that enters some ``S_i`` has left some
``S_j``, and every gradient that leaves one enters another. So what leaves all sets together is at
least the keys that all of them need from outside, each once per set, and the gradients that all of
them owe to outside, each once per set: over the bandwidth that leaves all sets together. (The same
with what enters.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Bools, Ints
from charm_sched.bounds.cuts import CutGraph, narrowest

if TYPE_CHECKING:
    from charm_sched.bounds.demands import Demand
    from charm_sched.topology.graph import Topology

# Sets around which the narrowest cut is sought; of more, devices take their links.
MOST_NARROWED = 64


@dataclass(frozen=True, eq=False, kw_only=True)
class Cover:
    """Sets of devices that hold each device once.

    Attributes:
        seconds: Time without latency.
        crossing: Bytes that leave the sets, all together.
        bandwidth: Bytes per second that can.
        sets: Ranks of each set.
        kind: "devices" or "domains".
    """

    seconds: float
    crossing: float
    bandwidth: float
    sets: tuple[Ints, ...]
    kind: str


def worst_cover(
    topology: Topology, devices: Sequence[str], graph: CutGraph, demand: Demand
) -> Cover | None:
    """Find the cover that takes longest: the single devices, or the domains of one depth.

    Args:
        topology: The machine.
        devices: The device of each rank.
        graph: Its cuts, one direction at a time.
        demand: What has to move.

    Returns:
        The cover; None where there is just one device.
    """
    worst: Cover | None = None
    for sets in _covers(topology, devices):
        width = _bandwidth(graph, sets)
        if width is None:
            continue
        if len(sets) == graph.ranks:
            crossing = demand.between_devices
        else:
            crossing = math.fsum(demand.crossing(_mask(ranks, graph.ranks)) for ranks in sets)
        seconds = crossing / width if width else math.inf if crossing else 0.0
        if worst is None or seconds > worst.seconds:
            worst = Cover(
                seconds=seconds,
                crossing=crossing,
                bandwidth=width,
                sets=tuple(sets),
                kind="devices" if max(map(len, sets)) == 1 else "domains",
            )
    return worst


def _covers(topology: Topology, devices: Sequence[str]) -> Iterator[list[Ints]]:
    """Yield the domains of each depth of the tree, the single devices last."""
    index = {name: rank for rank, name in enumerate(devices)}
    frontier = [topology.domains(devices)]
    while any(domain.children for domain in frontier):
        frontier = [child for domain in frontier for child in (domain.children or (domain,))]
        yield [np.array(sorted(index[name] for name in domain.devices)) for domain in frontier]


def _bandwidth(graph: CutGraph, sets: Sequence[Ints]) -> float | None:
    """Give what can leave (or enter) all sets together, the less; None where it is not tried."""
    if len(sets) > MOST_NARROWED:
        if max(map(len, sets)) > 1:
            return None
        rates = [
            np.bincount(end, graph.rate, minlength=graph.size) for end in (graph.tail, graph.head)
        ]
        return min(math.fsum(rate[: graph.ranks].tolist()) for rate in rates)
    everyone = np.arange(graph.ranks)
    ways: list[list[float]] = [[], []]
    for ranks in sets:
        others = np.setdiff1d(everyone, ranks)
        for way, (inside, outside) in zip(ways, ((ranks, others), (others, ranks)), strict=True):
            way.append(graph.leaving(narrowest(graph, inside, outside)))
    return min(map(math.fsum, ways))


def _mask(ranks: Ints, count: int) -> Bools:
    mask = np.zeros(count, np.bool_)
    mask[ranks] = True
    return mask
