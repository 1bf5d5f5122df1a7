"""The least that has to be brought to a set of devices so that it can do a share of the work.

A set owns ``n`` of ``L`` tokens: their queries, keys and values. It works for one KV head on
foreign tokens, of which there are ``f = L - n``: on the query alone of ``u`` of them, on the key
alone of ``w``, on both of ``y`` (on average over the query heads that share the KV head). How many
unmasked (query, key) pairs per query head can that be?

* Any mask: ``(n + u + y) (n + w + y)``. (Without a mask more can be said: `complete`.)
* A mask that shows no later key: ``T(n) + n (u + w + y) + u w + y (u + w) + T(y)`` with
  ``T(m) = m (m + 1) / 2``. For of two tokens at most one sees the other.

A query alone costs ``a``, a key ``b``, both of a token ``d``: less than ``a + b`` where results of
both may be final (`Prices`). The lower convex envelope of the cost over the number of pairs counts,
since a schedule may do much of one KV head and little of another. It is given by tangents: for a
slope ``m``, cost >= m pairs - max over (u, w, y) of (m pairs - a u - b w - d y). Any number of
slopes gives a valid bound. The maximum has a closed form. Along a ray from 0 the function is
convex, so it is at 0 or where ``u + w + y = f``. There it is concave in ``u`` and ``w`` for the
second mask (the two apart), and bilinear for the first: then it is at a corner or where ``y = 0``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charm_sched.arrays import Floats

SLOPES = 48  # tangents between the flattest and the steepest


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Cost of what a set works on and does not own, with its results.

    Attributes:
        query: Of a query whose token's key stays abroad.
        key: Of a key whose token's query stays abroad.
        both: Of a query and a key of one token.
    """

    query: float
    key: float
    both: float

    def of(self, queries: Floats, keys: Floats, both: Floats) -> Floats:
        """Give the cost of so many of each."""
        return self.query * queries + self.key * keys + self.both * both


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

    def pairs(self, queries: Floats, keys: Floats, both: Floats) -> Floats:
        """Give the most pairs per query head with so many foreign tokens.

        Args:
            queries: Of which the query is there alone.
            keys: Of which the key is there alone.
            both: Of which both are there.
        """
        n = float(self.own)
        if not self.ordered:
            return (n + queries + both) * (n + keys + both)
        among = queries * keys + both * (queries + keys) + both * (both + 1) / 2
        return n * (n + 1) / 2 + n * (queries + keys + both) + among

    def tangents(self, prices: Prices) -> tuple[Floats, Floats]:
        """Give lines that lie below the cost of a number of pairs: slopes, and offsets below 0.

        Slopes are sorted; the first line is 0.
        """
        f = float(self.foreign)
        queries, keys, both = np.vstack([np.zeros(3), np.eye(3) * f]).T
        pairs = self.pairs(queries, keys, both)
        cost = prices.of(queries, keys, both)
        with np.errstate(divide="ignore", invalid="ignore"):
            between = (cost[:, None] - cost) / (pairs[:, None] - pairs)
        slopes = between[np.isfinite(between) & (between > 0)]
        if len(slopes) and self.ordered:
            ends = slopes.min() / 2, slopes.max() * max(2.0, f)
            slopes = np.concatenate([slopes, np.geomspace(*ends, SLOPES)])
        slopes = np.unique(np.concatenate([[0.0], slopes]))
        return slopes, -self._most(slopes, prices)

    def _most(self, slopes: Floats, prices: Prices) -> Floats:
        """Give the largest slope x pairs - cost over what may be foreign."""
        f, m = float(self.foreign), np.maximum(slopes, 1e-300)
        zero = np.zeros(len(m))
        split = np.clip((f - (prices.query - prices.key) / m) / 2, 0.0, f)
        points = [(zero, zero, zero), (split, f - split, zero)]
        if self.ordered:
            queries, keys = (
                np.clip((prices.both - alone) / m - 0.5, 0.0, f)
                for alone in (prices.query, prices.key)
            )
            inside = queries + keys <= f
            queries, keys = np.where(inside, queries, 0.0), np.where(inside, keys, 0.0)
            points.append((queries, keys, np.where(inside, f - queries - keys, 0.0)))
        else:
            points += [(zero + f, zero, zero), (zero, zero + f, zero), (zero, zero, zero + f)]
        most: Floats = np.max(
            [slopes * self.pairs(*point) - prices.of(*point) for point in points], axis=0
        )
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


def complete(tokens: int, most: tuple[int, int], first: Prices, other: Prices) -> Hull:
    """Give what crosses between two sets, by the share that the first does, where all pairs count.

    Each query of one set meets each key of the other, so for each head either all the queries go to
    the keys or all the keys to the queries. That leaves four ways for a KV head: keys both ways,
    queries both ways, everything to the first set, everything to the other. More may move; the cost
    is linear in how much, and the hull holds the corners:

    * Keys (queries) both ways, and of some tokens the other as well. The share is linear in their
      number too, so corners are none and all of them, and with all it is one of the other ways.
    * Everything to the first set (the second), which leaves the other what it owns, and queries and
      keys to that. Of ``t`` tokens that move alone, the other can use no more pairs than if half
      were queries and half keys: corners are ``t = 0`` and all, at the price of the cheaper.

    Args:
        tokens: Tokens in all.
        most: Tokens that each of the two sets owns at most.
        first: Costs of what comes to the first set.
        other: Costs of what comes to the other.
    """
    least = tokens - most[1], tokens - most[0]
    foreign = least[1], least[0]
    low, high = least[0] / tokens, most[0] / tokens  # what the first owns
    whole = foreign[0] * first.both, foreign[1] * other.both
    alone = [
        (foreign[0] * price, foreign[1] * there)
        for price, there in ((first.key, other.key), (first.query, other.query))
    ]
    points = [(share, sum(pair)) for share in (low, high) for pair in alone]
    points += [(1 - (most[1] / tokens) ** 2, whole[0]), (1.0, whole[0])]
    points += [(0.0, whole[1]), (high**2, whole[1])]
    cheapest = [min(pair[side] for pair in alone) for side in (0, 1)]
    halves = low - low**2 / 4, high + (1 - high) ** 2 / 4
    points += [(halves[0], whole[0] + cheapest[1]), (halves[1], cheapest[0] + whole[1])]
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
