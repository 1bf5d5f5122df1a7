"""Row classes and overlaps: geometry that the verifier needs.

A *row class* is a largest set of rows that no row set of the plan tells apart; a shard that only
ever appears whole is one class, whatever its intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Ints, spans
from charm_sched.masks.areas import shared_heads

if TYPE_CHECKING:
    from charm_sched.plans.plan import Plan


@dataclass(frozen=True, eq=False, kw_only=True)
class RowClasses:
    """Classes of rows.

    Attributes:
        rows: Intervals of each class, ``[intervals, 2]``; together they cover the sequence.
        of: The classes of row set ``i`` of the plan are ``of[1][of[0][i]:of[0][i + 1]]``.
    """

    rows: list[Ints]
    of: tuple[Ints, Ints]


def classes_of(plan: Plan, row_sets: Ints) -> RowClasses:
    """Find the row classes that some row sets of a plan, and its sequence, induce."""
    items, used = plan.items, np.unique(row_sets)
    counts = np.diff(items.row_ptr)[used]
    at, which = spans(items.row_ptr[used], counts)
    low, high = items.row_lo[at], items.row_hi[at]
    cuts = np.unique(np.concatenate([[0, plan.workload.seq_len], low, high]))
    first, last = np.searchsorted(cuts, low), np.searchsorted(cuts, high)
    atom, interval = spans(first, last - first)
    member = used[which[interval]]
    order = np.lexsort((member, atom))
    number, count = _signatures(atom[order], member[order], len(cuts) - 1)
    pairs = np.unique(np.stack([member, number[atom]]), axis=1)
    num_sets = len(items.row_ptr) - 1
    ptr = np.searchsorted(pairs[0], np.arange(num_sets + 1))
    bounds = np.stack([cuts[:-1], cuts[1:]], axis=1)
    by_class = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number, minlength=count))
    return RowClasses(rows=np.split(bounds[by_class], ends[:-1]), of=(ptr, pairs[1]))


def _signatures(atom: Ints, member: Ints, num_atoms: int) -> tuple[Ints, int]:
    """Number atoms by the set of row sets that hold them; atoms of equal sets share a number."""
    ptr = np.searchsorted(atom, np.arange(num_atoms + 1))
    known: dict[bytes, int] = {}
    number = np.array(
        [
            known.setdefault(member[ptr[i] : ptr[i + 1]].tobytes(), len(known))
            for i in range(num_atoms)
        ],
        np.int64,
    )
    return number, len(known)


def overlapping(plan: Plan, items: Ints, groups: Ints) -> tuple[int, int] | None:
    """Find two different rectangles of one group that overlap.

    Args:
        plan: The plan.
        items: One item per rectangle.
        groups: Rectangles are compared within equal numbers.

    Returns:
        Their positions in ``items``, or None.
    """
    extent = plan.item_extent[items]
    distinct, example = np.unique(extent, return_index=True)
    crossing = _crossing_pairs(plan, items[example])
    for first, second in crossing:
        ones = np.flatnonzero(extent == distinct[first])
        others = np.flatnonzero(extent == distinct[second])
        _, one, other = np.intersect1d(groups[ones], groups[others], return_indices=True)
        if len(one):
            return int(ones[one[0]]), int(others[other[0]])
    return None


def _crossing_pairs(plan: Plan, items: Ints) -> list[tuple[int, int]]:
    """List pairs of items that share rows and heads."""
    if not len(items):
        return []
    classes = classes_of(plan, plan.items.rows[items])
    ptr, flat = classes.of
    sets = plan.items.rows[items]
    at, owner = spans(ptr[sets], np.diff(ptr)[sets])
    member = flat[at]
    found = []
    ends = np.cumsum(np.bincount(member, minlength=len(classes.rows)))
    for group in np.split(owner[np.argsort(member, kind="stable")], ends[:-1]):
        if len(group) < 2:
            continue
        one, other = np.triu_indices(len(group), 1)
        low, high = shared_heads(plan, items[group[one]], items[group[other]])
        found += list(zip(group[one[low < high]], group[other[low < high]], strict=True))
    return sorted({(int(one), int(other)) for one, other in found})
