"""Exact work of row sets of many intervals.

A row sees the keys ``lower <= k < upper``. With ``C(x)``, how many keys of a set lie before ``x``,
it sees ``C(upper) - C(lower)``. Limits are constant or slide with the row, so a run of rows needs
values of ``C`` and of ``S(x) = C(0) + ... + C(x - 1)`` alone. Both are found by one search among
the intervals of the key set: the work of a pair of sets grows with the intervals of one of them,
and not with the product, nor with the number of documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Bools, Ints, spans

if TYPE_CHECKING:
    from charm_sched.plans.items import ItemTable
    from charm_sched.workload import Workload

_CHUNK = 1 << 20


def prefix_areas(workload: Workload, items: ItemTable, queries: Ints, keys: Ints) -> Ints:
    """Count the unmasked (query, key) pairs of row set ``queries[i]`` with row set ``keys[i]``.

    Args:
        workload: Gives mask and length.
        items: Row sets; intervals of one set are sorted and disjoint, and may touch.
        queries: Row set of each pair.
        keys: Likewise.

    Returns:
        Pairs, exact, ``[pairs]``.
    """
    if not len(items.row_lo):
        return np.zeros(len(queries), np.int64)
    runs = _runs_of(workload, items)
    prefix = _prefix_of(workload, items)
    lengths = np.diff(runs.ptr)[queries]
    sums = np.zeros(len(queries), np.int64)
    ends = np.cumsum(lengths)
    start = 0
    while start < len(queries):
        done = ends[start - 1] if start else 0
        stop = max(int(np.searchsorted(ends, done + _CHUNK, side="right")), start + 1)
        at, which = spans(runs.ptr[queries[start:stop]], lengths[start:stop])
        seen = prefix.seen(runs, at, keys[start:stop][which])
        np.add.at(sums[start:stop], which, seen)
        start = stop
    return sums


@dataclass(frozen=True, eq=False, kw_only=True)
class _Runs:
    """The rows of all row sets, in runs that share one rule of the mask.

    Attributes:
        ptr: The runs of row set ``i`` are ``ptr[i]`` to ``ptr[i + 1] - 1``.
        first: First row of each.
        last: Past its last row.
        offset: Of its (lower, upper) limit, ``[2, runs]``.
        slides: Whether that slides.
    """

    ptr: Ints
    first: Ints
    last: Ints
    offset: Ints
    slides: Bools


def _runs_of(workload: Workload, items: ItemTable) -> _Runs:
    segments = list(workload.mask_rule.segments(workload.seq_len))
    begin = np.array([segment.first for segment in segments], np.int64)
    end = np.array([segment.last for segment in segments], np.int64)
    limits = [(segment.lower, segment.upper) for segment in segments]
    offset = np.array([[limit.offset for limit in pair] for pair in limits], np.int64).T
    slides = np.array([[limit.slides for limit in pair] for pair in limits], np.bool_).T
    earliest = np.searchsorted(end, items.row_lo, side="right")
    count = np.maximum(np.searchsorted(begin, items.row_hi) - earliest, 0)
    at, interval = spans(earliest, count)
    before = np.concatenate([[0], np.cumsum(count)])
    return _Runs(
        ptr=before[items.row_ptr],
        first=np.maximum(begin[at], items.row_lo[interval]),
        last=np.minimum(end[at], items.row_hi[interval]),
        offset=offset[:, at],
        slides=slides[:, at],
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class _Prefix:
    """``C`` and ``S`` of all row sets, at the begin of each interval.

    Attributes:
        stride: More than any row; row ``x`` of set ``i`` sorts as ``i * stride + x``.
        starts: Where each interval begins, so sorted.
        low: First row of each interval.
        length: Its rows.
        first: First interval of each row set.
        count: ``C`` at ``low``.
        total: ``S`` at ``low``.
    """

    stride: int
    starts: Ints
    low: Ints
    length: Ints
    first: Ints
    count: Ints
    total: Ints

    def seen(self, runs: _Runs, at: Ints, keys: Ints) -> Ints:
        """Count the keys of row sets ``keys[i]`` that the rows of run ``at[i]`` see together."""
        below = np.zeros((2, len(at)), np.int64)
        for side in range(2):
            offset, slides = runs.offset[side, at], runs.slides[side, at]
            sliding, fixed = np.flatnonzero(slides), np.flatnonzero(~slides & (offset > 0))
            for rows, sign in ((runs.last, 1), (runs.first, -1)):
                limit = rows[at[sliding]] + offset[sliding]
                below[side, sliding] += sign * self._totals(keys[sliding], limit)
            rows = runs.last[at[fixed]] - runs.first[at[fixed]]
            below[side, fixed] = rows * self._counts(keys[fixed], offset[fixed])
        seen: Ints = below[1] - below[0]
        return seen

    def _counts(self, keys: Ints, rows: Ints) -> Ints:
        """Give ``C`` of row sets at some rows."""
        near, there = self._near(keys, rows)
        inside = np.minimum(rows - self.low[near], self.length[near])
        return np.where(there, self.count[near] + inside, 0)

    def _totals(self, keys: Ints, rows: Ints) -> Ints:
        """Give ``S`` of row sets at some rows."""
        near, there = self._near(keys, rows)
        past, count = rows - self.low[near], self.count[near]
        inside = np.minimum(past, self.length[near])
        total = self.total[near] + count * past + inside * (inside - 1) // 2
        total += inside * (past - inside)
        return np.where(there, total, 0)

    def _near(self, keys: Ints, rows: Ints) -> tuple[Ints, Bools]:
        """Give the last interval of row sets that begins at or before some rows, if any does."""
        sought = keys * self.stride + np.clip(rows, 0, self.stride - 1)
        near = np.searchsorted(self.starts, sought, side="right") - 1
        there = (near >= self.first[keys]) & (rows >= 0)
        return np.where(there, near, 0), there


def _prefix_of(workload: Workload, items: ItemTable) -> _Prefix:
    low, length = items.row_lo, items.row_hi - items.row_lo
    sets = np.repeat(np.arange(len(items.row_counts)), np.diff(items.row_ptr))
    first = items.row_ptr[:-1]
    before = np.cumsum(length) - length
    count = before - before[first[sets]]
    gap = np.append(low[1:] - items.row_hi[:-1], 0)  # of the last of a set it is not used
    grown = count * length + length * (length - 1) // 2 + (count + length) * gap
    sums = np.cumsum(grown) - grown
    stride = workload.seq_len + 1
    return _Prefix(
        stride=stride,
        starts=sets * stride + low,
        low=low,
        length=length,
        first=first,
        count=count,
        total=sums - sums[first[sets]],
    )
