"""The least that has to be brought to a set of devices so that it can do a share of the work.

A set owns ``n`` of ``L`` tokens: their queries, keys and values. It works for one KV head on the
queries of ``r`` further tokens (on average over the query heads that share the KV head), and on
``c`` further keys. How many unmasked (query, key) pairs per query head can that be?

* Any mask: ``(n + r) (n + c)``. (Without a mask more can be said: `complete`.)
* A mask that shows no later key: with ``f = L - n``, ``T(m) = m (m + 1) / 2`` and
  ``x = max(0, r + c - f)``, ``T(n) + n min(f, r + c) + r c - x (x - 1) / 2``. For of two tokens at
  most one sees the other, and at least ``x`` tokens are foreign query and foreign key at once.

A query costs ``a``, a key ``b``. The lower convex envelope of the cost over the number of pairs
counts, since a schedule may do much of one KV head and little of another. It is given by tangents:
for a slope ``m``, cost >= m pairs - max over (r, c) of (m pairs(r, c) - a r - b c). Any number of
slopes gives a valid bound; the maximum has a closed form for both shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charm_sched.arrays import Floats

SLOPES = 48  # tangents between the flattest and the steepest


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What a set of devices owns, and the shape of the mask.

    Attributes:
        own: Tokens it owns at most.
        foreign: Tokens that it does not own.
        ordered: The mask shows no key after the query.
    """

    own: int
    foreign: int
    ordered: bool

    def pairs(self, queries: Floats, keys: Floats) -> Floats:
        """Give the most pairs per query head with so many foreign queries and keys."""
        n, f = float(self.own), float(self.foreign)
        if not self.ordered:
            return (n + queries) * (n + keys)
        both = np.maximum(queries + keys - f, 0.0)
        hidden = both * (both - 1) / 2
        cross = n * np.minimum(f, queries + keys)
        return n * (n + 1) / 2 + cross + queries * keys - hidden

    def tangents(self, query_cost: float, key_cost: float) -> tuple[Floats, Floats]:
        """Give lines that lie below the cost of a number of pairs: slopes, and offsets below 0.

        Slopes are sorted; the first line is 0.
        """
        f = float(self.foreign)
        queries, keys = np.array([0, 0, f, f]), np.array([0, f, 0, f])
        pairs = self.pairs(queries, keys)
        cost = query_cost * queries + key_cost * keys
        with np.errstate(divide="ignore", invalid="ignore"):
            between = (cost[:, None] - cost) / (pairs[:, None] - pairs)
        slopes = between[np.isfinite(between) & (between > 0)]
        if len(slopes) and self.ordered:
            ends = slopes.min() / 2, slopes.max() * max(2.0, f)
            slopes = np.concatenate([slopes, np.geomspace(*ends, SLOPES)])
        slopes = np.unique(np.concatenate([[0.0], slopes]))
        return slopes, -self._most(slopes, query_cost, key_cost)

    def _most(self, slopes: Floats, query_cost: float, key_cost: float) -> Floats:
        """Give the largest slope x pairs - cost over what may be foreign."""
        f, m = float(self.foreign), np.maximum(slopes, 1e-300)
        zero = np.zeros(len(m))
        points = [(zero, zero), (zero + f, zero), (zero, zero + f), (zero + f, zero + f)]
        if self.ordered:
            split = np.clip((f - (query_cost - key_cost) / m) / 2, 0.0, f)
            points.append((split, f - split))
            queries = np.clip(f + 0.5 - query_cost / m, 0.0, f)
            keys = np.clip(f + 0.5 - key_cost / m, 0.0, f)
            inside = queries + keys >= f
            points.append((np.where(inside, queries, f), np.where(inside, keys, f)))
        values = [
            slopes * self.pairs(queries, keys) - query_cost * queries - key_cost * keys
            for queries, keys in points
        ]
        most: Floats = np.max(values, axis=0)
        return most


@dataclass(frozen=True, eq=False, kw_only=True)
class Curve:
    """A convex function of the share ``w`` of the work, 0 to 1: the maximum of lines.

    Attributes:
        slope: Of each line.
        offset: Its value at 0.
    """

    slope: Floats
    offset: Floats

    def __call__(self, share: Floats) -> Floats:
        """Give the value at each share."""
        values: Floats = (self.slope * share[:, None] + self.offset).max(1)
        return values

    def corners(self) -> list[float]:
        """Give the shares between 0 and 1 where another line takes over."""
        at = 0.0
        corners: list[float] = []
        line = int(np.lexsort((self.slope, self.offset))[-1])  # the highest just after 0
        while True:
            steeper = np.flatnonzero(self.slope > self.slope[line])
            gaps = self.offset[line] - self.offset[steeper]
            meets = np.maximum(gaps / (self.slope[steeper] - self.slope[line]), at)
            if not len(meets) or meets.min() >= 1:
                return corners
            at = float(meets.min())
            line = int(steeper[meets == at][-1])
            corners.append(at)

    def mirrored(self) -> Curve:
        """Give the same function of 1 - w."""
        return Curve(slope=-self.slope[::-1], offset=(self.offset + self.slope)[::-1])


@dataclass(frozen=True, eq=False, kw_only=True)
class Total:
    """The sum of two curves."""

    one: Curve
    other: Curve

    def __call__(self, share: Floats) -> Floats:
        """Give the value at each share."""
        return self.one(share) + self.other(share)

    def corners(self) -> list[float]:
        """Give the shares between 0 and 1 where a line changes."""
        return [*self.one.corners(), *self.other.corners()]


@dataclass(frozen=True, eq=False, kw_only=True)
class Hull:
    """The largest convex function below some points, from share 0 to share 1.

    Attributes:
        share: Its corners, rising.
        value: Its values there.
    """

    share: Floats
    value: Floats

    @classmethod
    def below(cls, points: Sequence[tuple[float, float]]) -> Hull:
        """Give the function of some points (share, value)."""
        kept: list[tuple[float, float]] = []
        for x, y in sorted(points):
            if kept and kept[-1][0] == x:
                continue
            while len(kept) > 1:
                (x0, y0), (x1, y1) = kept[-2:]
                if (y1 - y0) * (x - x1) < (y - y1) * (x1 - x0):
                    break
                kept.pop()
            kept.append((x, y))
        return cls(share=np.array([x for x, _ in kept]), value=np.array([y for _, y in kept]))

    def __call__(self, share: Floats) -> Floats:
        """Give the value at each share."""
        return np.interp(share, self.share, self.value)

    def corners(self) -> list[float]:
        """Give the shares where it turns."""
        return list(self.share)


def complete(
    tokens: int, most: tuple[int, int], query: tuple[float, float], key: tuple[float, float]
) -> Hull:
    """Give what crosses between two sets, by the share that the first does, where all pairs count.

    Each query of one set meets each key of the other, so for each head either all the queries go to
    the keys or all the keys to the queries. That leaves four ways for a KV head: keys both ways,
    queries both ways, everything to the first set, everything to the other. Anything more that may
    move costs more than a mixture of them over heads.

    Args:
        tokens: Tokens in all.
        most: Tokens that each of the two sets owns at most.
        query: Cost of bringing a query, with its result, to the first set and to the other.
        key: Cost of bringing a key to the first set and to the other.
    """
    least = tokens - most[1], tokens - most[0]
    foreign = least[1], least[0]
    keys, queries = (foreign[0] * price[0] + foreign[1] * price[1] for price in (key, query))
    to_first, to_other = (foreign[i] * (query[i] + key[i]) for i in (0, 1))
    points = [(share / tokens, cost) for share in (least[0], most[0]) for cost in (keys, queries)]
    points += [(1 - (most[1] / tokens) ** 2, to_first), (1.0, to_first)]
    points += [(0.0, to_other), ((most[0] / tokens) ** 2, to_other)]
    return Hull.below(points)


def largest(totals: Sequence[Total | Hull]) -> tuple[Floats, Floats]:
    """Give the corners (share, value) of the largest of several functions, linear in between.

    Interpolation between all corners gives the function; over one left out it would be too high.
    """
    at = np.unique(np.concatenate([[0.0, 1.0], *(total.corners() for total in totals)]))
    values = [total(at) for total in totals]
    extra = [at]
    for one, other in itertools.combinations(values, 2):
        gap = one - other
        turns = np.flatnonzero(gap[1:] * gap[:-1] < 0)
        part = gap[turns] / (gap[turns] - gap[turns + 1])
        extra.append(at[turns] + part * (at[turns + 1] - at[turns]))
    at = np.unique(np.concatenate(extra))
    return at, np.max([total(at) for total in totals], axis=0)
