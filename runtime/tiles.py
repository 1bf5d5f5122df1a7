"""Cuts the attention of two row sets into tiles that a kernel takes as they are.

Masks let row ``i`` see runs of keys ``lower(i) <= k < upper(i)``. A tile is a rectangle of query
rows and keys that is wholly visible, or a square whose visible part is the lower triangle, or a
rectangle with a band in it. Every row of a tile sees at least one of its keys: what a row does not
see is cut off, so no kernel ever meets an empty row.

A causal staircase becomes at most three tiles::

    keys       c    s        d
    row a      ####+.........      left: full, keys c .. s - 1
               ####++........      diagonal: a square, row i sees its first i + 1 keys
               ####+++.......
    below      ##############      full
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter

from charm_sched.masks.mask import Mask
from charm_sched.masks.segments import Limit, Segment
from charm_sched.partition import Rows

BAND_ROWS = 256
_NEARBY = 8  # how far back a neighbour is looked for: thousands of documents stay linear


@dataclass(frozen=True, slots=True)
class Tile:
    """A rectangle of queries and keys, by position in the two row sets.

    Attributes:
        rows: First and past-the-last query.
        keys: First and past-the-last key.
        causal: Whether it is a square in which row ``i`` sees its first ``i + 1`` keys.
        band: Lower and upper limit of the keys that row ``i`` sees, counted inside the tile; None
            where the tile is full or causal.
    """

    rows: tuple[int, int]
    keys: tuple[int, int]
    causal: bool = False
    band: tuple[Limit, Limit] | None = None

    @property
    def full(self) -> bool:
        """Whether every row sees every key."""
        return not self.causal and self.band is None


class Cutter:
    """Cuts row sets under one mask; equal pairs of row sets are cut once.

    Args:
        mask: The mask.
        seq_len: Tokens in the sequence.
    """

    def __init__(self, mask: Mask, seq_len: int) -> None:
        self.mask = mask
        self._seq_len = seq_len
        self._done: dict[tuple[Rows, Rows], tuple[Tile, ...]] = {}

    def __call__(self, queries: Rows, keys: Rows) -> tuple[Tile, ...]:
        """Cut queries x keys into tiles.

        Returns:
            Disjoint tiles that cover exactly the visible pairs, in a fixed order. Positions count
            the tokens of each row set in order.
        """
        tiles = self._done.get((queries, keys))
        if tiles is None:
            tiles = self._done[queries, keys] = tuple(_fused(list(self._cut(queries, keys))))
        return tiles

    def _cut(self, queries: Rows, keys: Rows) -> Iterator[Tile]:
        placed_queries, placed_keys = _Placed(queries), _Placed(keys)
        for segment in self.mask.segments_of(self._seq_len, queries):
            for rows, row_base in placed_queries.within(segment.first, segment.last):
                low = segment.lower(max(rows[0], segment.first))
                high = segment.upper(min(rows[1], segment.last) - 1)
                for run, key_base in placed_keys.within(low, high):
                    for tile in _cut_block(segment, rows, run):
                        yield _moved(tile, row_base - rows[0], key_base - run[0])


def cut(mask: Mask, seq_len: int, queries: Rows, keys: Rows) -> tuple[Tile, ...]:
    """Cut queries x keys into tiles; see `Cutter`."""
    return Cutter(mask, seq_len)(queries, keys)


class _Placed:
    """The intervals of a row set, with how many of its tokens are before each."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._bases = [0, *accumulate(last - first for first, last in rows)]

    def within(self, low: int, high: int) -> Iterator[tuple[tuple[int, int], int]]:
        """Yield the intervals that have a token in ``low .. high - 1``, each with its base."""
        at = bisect_right(self._rows, low, key=itemgetter(1))
        while at < len(self._rows) and self._rows[at][0] < high:
            yield self._rows[at], self._bases[at]
            at += 1


def _cut_block(segment: Segment, rows: tuple[int, int], keys: tuple[int, int]) -> Iterator[Tile]:
    """Cut one interval of rows against one of keys, in token numbers."""
    lower, upper = segment.lower, segment.upper
    first, last = max(rows[0], segment.first), min(rows[1], segment.last)
    low, high = keys
    if upper.slides:
        first = max(first, low - upper.offset + 1)
    else:
        high = min(high, upper.offset)
    if lower.slides:
        last = min(last, high - lower.offset)
    else:
        low = max(low, lower.offset)
    if low >= high or first >= last:
        return
    loose = last if not lower.slides else min(max(low - lower.offset + 1, first), last)
    yield from _staircase(upper, (first, loose), (low, high))
    for start in range(loose, last, BAND_ROWS):
        yield _band(segment, (start, min(start + BAND_ROWS, last)), (low, high))


def _staircase(upper: Limit, rows: tuple[int, int], keys: tuple[int, int]) -> Iterator[Tile]:
    """Cut rows that see the keys from the first one up to a limit."""
    (first, last), (low, high) = rows, keys
    if first >= last:
        return
    turn = min(max(high - upper.offset + 1, first), last) if upper.slides else first
    if first < turn and upper(first) >= high:  # one row, which sees everything
        turn = first
    if first < turn:
        corner = upper(first) - 1
        if low < corner:
            yield Tile((first, turn), (low, corner))
        yield Tile((first, turn), (corner, corner + turn - first), causal=True)
    if turn < last:
        yield Tile((turn, last), keys)


def _band(segment: Segment, rows: tuple[int, int], keys: tuple[int, int]) -> Tile:
    """Give rows with a sliding lower limit as one tile, cut to the keys that they see."""
    (first, last), (low, high) = rows, keys
    low = max(low, segment.lower(first))
    high = min(high, segment.upper(last - 1))
    lower, upper = (
        Limit(limit(first) - low, slides=limit.slides) for limit in (segment.lower, segment.upper)
    )
    return Tile(rows, (low, high), band=(lower, upper))


def _moved(tile: Tile, rows: int, keys: int) -> Tile:
    return replace(
        tile,
        rows=(tile.rows[0] + rows, tile.rows[1] + rows),
        keys=(tile.keys[0] + keys, tile.keys[1] + keys),
    )


def _fused(tiles: list[Tile]) -> list[Tile]:
    """Join full tiles side by side, so that a kernel is launched once for them."""
    done: list[Tile] = []
    for tile in tiles:
        recent = range(max(len(done) - _NEARBY, 0), len(done))
        at = next((i for i in recent if _joins(done[i], tile)), None)
        if at is None:
            done.append(tile)
        elif done[at].rows == tile.rows:
            done[at] = Tile(tile.rows, (done[at].keys[0], tile.keys[1]))
        else:
            done[at] = Tile((done[at].rows[0], tile.rows[1]), tile.keys)
    return done


def _joins(one: Tile, other: Tile) -> bool:
    if not (one.full and other.full):
        return False
    beside = one.rows == other.rows and one.keys[1] == other.keys[0]
    below = one.keys == other.keys and one.rows[1] == other.rows[0]
    return beside or below
