"""Sets of devices that may be best for some number of ranks, each kind of set once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from charm_sched.placement.pairs import Pairs
from charm_sched.topology.graph import Domain, Topology

EVERY = 3000  # sets, up to which all are looked at
STEPS = 60  # exchanges of one device that the search makes


def candidates(topology: Topology, pairs: Pairs, ranks: int) -> tuple[list[tuple[int, ...]], bool]:
    """Return sets of devices, one of each kind, cheapest exchange first; and whether all kinds.

    Where there are too many sets, those are taken that fill domains, that spread over them, and
    what exchanges of single devices make of them.
    """
    size = len(pairs.devices)
    looks = [topology.device(name).compute.name for name in pairs.devices]
    every = math.comb(size, ranks) <= EVERY
    sets: Iterator[tuple[int, ...]] | Sequence[tuple[int, ...]]
    if every:
        sets = itertools.combinations(range(size), ranks)
    else:
        index = {name: i for i, name in enumerate(pairs.devices)}
        starts = [topology.select(ranks), *_filled(topology.domains(), ranks)]
        sets = [_improved(pairs, tuple(sorted(index[name] for name in start))) for start in starts]
    kinds: dict[object, tuple[int, ...]] = {}
    for members in sets:
        kinds.setdefault(pairs.signature(members, looks), members)
    return sorted(kinds.values(), key=pairs.exchange), every


def _filled(domain: Domain, ranks: int) -> list[tuple[str, ...]]:
    """Return sets that fill domains in turn: the first ones, and each that is large enough."""
    found = [domain.devices[:ranks]]
    for child in domain.children:
        if len(child.devices) >= ranks:
            found += _filled(child, ranks)[:4]
    return found[:16]


def _improved(pairs: Pairs, members: tuple[int, ...]) -> tuple[int, ...]:
    """Exchange one device for another as long as the set exchanges faster."""
    best = pairs.exchange(members)
    outside = [i for i in range(len(pairs.devices)) if i not in members]
    for _ in range(STEPS):
        tried = [
            tuple(sorted((*members[:k], *members[k + 1 :], other)))
            for k in range(0, len(members), max(1, len(members) // 8))
            for other in outside[:: max(1, len(outside) // 16)]
        ]
        if not tried:
            break
        nearest = min(tried, key=pairs.exchange)
        seconds = pairs.exchange(nearest)
        if seconds >= best * (1 - 1e-6):
            break
        members, best = nearest, seconds
        outside = [i for i in range(len(pairs.devices)) if i not in members]
    return members
