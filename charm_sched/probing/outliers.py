"""Pairs of devices that are slower than pairs like them, and the links that explain it.

Entries of the matrix whose routes are alike by the file are compared with each other. A link is
to blame for slow pairs if all that cross it are as slow, or slower for another reason. The link
that explains most pairs is taken first; links that explain the same pairs cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.probing.probe import Pair
from charm_sched.probing.whole_machine import Shape, route_shape

if TYPE_CHECKING:
    from charm_sched.topology.graph import Topology

USUAL = 75  # percentile of alike pairs that stands for those without a fault
FEWEST = 3  # alike pairs; of two, nobody knows which is the odd one


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """Slow pairs with one reason.

    Attributes:
        links: Indices of the links to blame, in the order of the route, not told apart; empty
            where no link explains a pair.
        pairs: The slow pairs.
        rate: Bytes per second of one flow, their median.
        usual: The same of pairs like them.
    """

    links: tuple[int, ...]
    pairs: tuple[Pair, ...]
    rate: float
    usual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Entries of the matrix with routes alike.

    Attributes:
        pairs: Those that are not slow.
        rate: Their median, bytes per second.
        usual: What slow ones are compared with.
    """

    pairs: tuple[Pair, ...]
    rate: float
    usual: float


def sort_pairs(
    topology: Topology, devices: Sequence[str], matrix: Mapping[Pair, float], *, tolerance: float
) -> tuple[tuple[Alike, ...], tuple[Slow, ...]]:
    """Tell the usual entries of a matrix from slow ones, and find what those have in common.

    Args:
        topology: The machine as its file states it.
        devices: Device of each rank.
        matrix: Bytes per second of ordered pairs, each measured alone.
        tolerance: Relative; what is slower than pairs like it by more is slow.
    """
    groups: dict[Shape, list[Pair]] = {}
    for a, b in matrix:
        groups.setdefault(route_shape(topology, devices[a], devices[b]), []).append((a, b))
    alike, slow = [], {}
    for pairs in groups.values():
        usual = float(np.percentile([matrix[pair] for pair in pairs], USUAL))
        odd = [p for p in pairs if matrix[p] < usual * (1 - tolerance)]
        if len(pairs) < FEWEST:
            odd = []
        fine = [p for p in pairs if p not in odd]
        rate = float(np.median([matrix[p] for p in fine]))
        alike.append(Alike(pairs=tuple(fine), rate=rate, usual=usual))
        slow.update(dict.fromkeys(odd, usual))
    crossed = {pair: topology.route(devices[pair[0]], devices[pair[1]]).links for pair in matrix}
    return tuple(alike), tuple(_explain(crossed, matrix, slow, tolerance))


def _explain(
    crossed: Mapping[Pair, tuple[int, ...]],
    matrix: Mapping[Pair, float],
    slow: Mapping[Pair, float],
    tolerance: float,
) -> Iterator[Slow]:
    """Take links that explain slow pairs, the one with most pairs first."""
    users: dict[int, list[Pair]] = {}
    for pair, links in crossed.items():
        for link in links:
            users.setdefault(link, []).append(pair)
    left = dict(slow)
    while left:
        reasons: dict[tuple[Pair, ...], list[int]] = {}
        for link in dict.fromkeys(link for pair in left for link in crossed[pair]):
            if told := _explained(users[link], matrix, left, tolerance):
                reasons.setdefault(told, []).append(link)
        if not reasons:
            break
        # Of equally many the fastest reason: a slower one has pairs that this one cannot have.
        pairs = max(reasons, key=lambda told: (len(told), max(matrix[p] for p in told)))
        yield _slow(tuple(reasons[pairs]), pairs, matrix, slow)
        for pair in pairs:
            del left[pair]
    for pair in left:
        yield _slow((), (pair,), matrix, slow)


def _explained(
    users: Sequence[Pair],
    matrix: Mapping[Pair, float],
    left: Mapping[Pair, float],
    tolerance: float,
) -> tuple[Pair, ...]:
    """Give the slow pairs that a link explains: those as fast as the fastest that crosses it."""
    fastest = max(matrix[pair] for pair in users)
    return tuple(
        pair for pair in users if pair in left and matrix[pair] >= fastest * (1 - tolerance)
    )


def _slow(
    links: tuple[int, ...],
    pairs: tuple[Pair, ...],
    matrix: Mapping[Pair, float],
    slow: Mapping[Pair, float],
) -> Slow:
    return Slow(
        links=links,
        pairs=pairs,
        rate=float(np.median([matrix[pair] for pair in pairs])),
        usual=float(np.median([slow[pair] for pair in pairs])),
    )
