"""Exact work of attends: unmasked (query, key, head) triples, for many pairs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Ints, spans
from charm_sched.masks.mask import area
from charm_sched.masks.prefix_areas import prefix_areas
from charm_sched.plans.plan import ATTEND

if TYPE_CHECKING:
    from charm_sched.plans.items import ItemTable
    from charm_sched.plans.plan import Plan
    from charm_sched.workload import Workload


_CHUNK = 1 << 20
_FEW = 16  # intervals times intervals times documents
_MOST = 1 << 17  # pairs of row sets that are remembered


def row_set_areas(workload: Workload, items: ItemTable, queries: Ints, keys: Ints) -> Ints:
    """Count the unmasked (query, key) pairs of row set ``queries[i]`` with row set ``keys[i]``.

    Equal pairs are counted once.
    """
    count = max(len(items.row_counts), 1)
    packed = queries.astype(np.int64) * count + keys
    if workload.mask_rule.kind == "full":
        return items.row_counts[queries] * items.row_counts[keys]
    if len(packed) > count:
        distinct, where = np.unique(packed, return_inverse=True)
    else:
        distinct, where = packed, np.arange(len(packed))
    return _distinct_areas(workload, items, *np.divmod(distinct, count))[where.reshape(-1)]


def _distinct_areas(workload: Workload, items: ItemTable, queries: Ints, keys: Ints) -> Ints:
    """Count pairs: every interval against every other where they are few, else by prefix sums."""
    widest = int(np.diff(items.row_ptr).max(initial=1))
    documents = max(len(workload.mask_rule.documents), len(workload.mask_rule.blocks), 1)
    if widest**2 * documents > _FEW:
        return _known_areas(workload, items, queries, keys)
    low, high = items.padded_rows
    sums = np.zeros(len(queries), np.int64)
    for start in range(0, len(queries), _CHUNK):
        q, k = queries[start : start + _CHUNK], keys[start : start + _CHUNK]
        cells = area(
            workload.mask_rule,
            workload.seq_len,
            (low[q][:, :, None], high[q][:, :, None]),
            (low[k][:, None, :], high[k][:, None, :]),
        )
        sums[start : start + _CHUNK] = cells.sum(axis=(1, 2))
    return sums


def _known_areas(workload: Workload, items: ItemTable, queries: Ints, keys: Ints) -> Ints:
    """Count pairs of sets of many intervals, those alone that were not counted before."""
    known = items.known_areas.setdefault(workload.mask_rule, {})
    packed = (queries.astype(np.int64) << 32) + keys
    names = packed.tolist()
    new = np.fromiter((name not in known for name in names), np.bool_, len(names))
    found = prefix_areas(workload, items, queries[new], keys[new])
    if len(known) + len(found) <= _MOST:
        known.update(zip(packed[new].tolist(), found.tolist(), strict=True))
        return np.fromiter(map(known.__getitem__, names), np.int64, len(names))
    counts = np.fromiter((known.get(name, 0) for name in names), np.int64, len(names))
    counts[new] = found
    return counts


def attend_pairs(plan: Plan) -> tuple[Ints, Ints, Ints]:
    """List every (query, key) operand pair of every attend.

    Returns:
        The row in the plan, and the operand positions (into ``columns.arg``) of query and key.
    """
    columns = plan.columns
    rows = np.flatnonzero(columns.op == ATTEND)
    start = columns.ptr[rows]
    num_queries = columns.lead[rows].astype(np.int64)
    num_keys = columns.ptr[rows + 1] - start - num_queries
    pairs = num_queries * num_keys
    if np.all(pairs == 1):
        return rows, start, start + 1
    inner, which = spans(np.zeros_like(pairs), pairs)
    query, key = np.divmod(inner, num_keys[which])
    return rows[which], start[which] + query, start[which] + num_queries[which] + key


def shared_heads(plan: Plan, query_items: Ints, key_items: Ints) -> tuple[Ints, Ints]:
    """Give the query-head range that a query item and a key item have in common (may be empty)."""
    low, high = plan.item_heads
    first = np.maximum(low[query_items], low[key_items])
    last = np.minimum(high[query_items], high[key_items])
    return first, np.maximum(first, last)


def attend_work(plan: Plan) -> tuple[Ints, Ints]:
    """Give the work of each row.

    Returns:
        Unmasked (query, key, head) triples per row, and the triples that the same kernel would
        have without any mask; both 0 where the row is no attend.
    """
    rows, query, key = attend_pairs(plan)
    args, items = plan.columns.arg, plan.items
    q, k = args[query], args[key]
    first, last = shared_heads(plan, q, k)
    heads = last - first
    pairs = row_set_areas(plan.workload, items, items.rows[q], items.rows[k])
    whole = items.row_counts[items.rows[q]] * items.row_counts[items.rows[k]]
    # Sums stay below 2^53: 1e7 tokens squared times 64 heads would not, so count in integers.
    work, dense = np.zeros(len(plan), np.int64), np.zeros(len(plan), np.int64)
    np.add.at(work, rows, pairs * heads)
    np.add.at(dense, rows, whole * heads)
    return work, dense
