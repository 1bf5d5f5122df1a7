"""The plan on sets: proof that a plan is exactly attention, independent of who wrote it.

Checked, in this order; the first fault is named with its op, ranks and pieces:

1. structure: ranks, streams, kinds, operands and slots are in range and of the right kind; a
   transfer joins two ranks; levels never decrease on a stream of a rank;
2. order: nothing is read before it is there, no slot is overwritten while needed (`hazards`);
3. coverage: every unmasked (query, key, head) is attended exactly once;
4. delivery: partial results of one kind are equal or disjoint, and each ends at its owner's home;
5. progress: under the grouped rule every batch can start, so nothing deadlocks. (What an op waits
   for under the free rule is a subset of that.)

Gradients reach their owner exactly once because coverage is exact, partial results only move, and
none is left away from home.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.accesses import Accesses, thing
from charm_sched.areas import attend_pairs, row_set_areas, shared_heads
from charm_sched.arrays import Bools, Ints
from charm_sched.errors import PlanError
from charm_sched.hazards import Hazards, find_hazards
from charm_sched.items import HOME, KINDS, KV, KV_AXIS, PARTIAL, ItemTable, Q
from charm_sched.memory import peak_bytes
from charm_sched.plans import ATTEND, DIRECTIONS, MERGE, OP_NAMES, TRANSFER, Plan
from charm_sched.progress import check_progress
from charm_sched.rectangles import classes_of, overlapping

if TYPE_CHECKING:
    from charm_sched.workload import Workload


@dataclass(frozen=True, eq=False, kw_only=True)
class Verified:
    """What the proof found out on the way.

    Attributes:
        hazards: Accesses, versions and waits of the plan.
        peak_bytes: Peak memory per rank, ``[num_ranks]``.
    """

    hazards: Hazards
    peak_bytes: Ints


def verify(plan: Plan, workload: Workload | None = None) -> Verified:
    """Prove that a plan computes exactly the attention of a workload.

    Args:
        plan: Forward or backward.
        workload: What it should compute; None means what the plan says of itself.

    Raises:
        PlanError: It does not; the message names the op, the ranks and the pieces.
    """
    if workload is not None and workload != plan.workload:
        raise PlanError(
            f"plan: made for another workload; expected {workload}, found {plan.workload}"
        )
    check_structure(plan)
    hazards = find_hazards(plan)
    check_coverage(plan)
    check_delivery(plan, hazards)
    check_progress(plan, hazards)
    return Verified(hazards=hazards, peak_bytes=peak_bytes(plan, hazards))


def _refuse(plan: Plan, bad: Bools, expected: str) -> None:
    rows = np.flatnonzero(bad)
    if len(rows):
        row = int(rows[0])
        raise PlanError(f"op {row} ({OP_NAMES[min(int(plan.columns.op[row]), 2)]}): {expected}")


def check_structure(plan: Plan) -> None:
    """Check that every column holds sensible values.

    Raises:
        PlanError: One does not.
    """
    columns, items, ranks = plan.columns, plan.items, plan.num_ranks
    if plan.direction not in DIRECTIONS:
        raise PlanError(f"plan: expected direction {DIRECTIONS}, found {plan.direction!r}")
    if plan.devices and len(plan.devices) != ranks:
        raise PlanError(f"plan: {len(plan.devices)} devices for {ranks} ranks")
    _check_items(plan)
    op, moves = columns.op, columns.op == TRANSFER
    _refuse(plan, op > MERGE, "expected a transfer, an attend or a merge")
    _refuse(plan, (columns.rank < 0) | (columns.rank >= ranks), f"expected ranks below {ranks}")
    off = moves & ((columns.peer < 0) | (columns.peer >= ranks) | (columns.peer == columns.rank))
    _refuse(plan, off, f"expected another rank below {ranks} as its destination")
    _refuse(plan, ~moves & (columns.peer != -1), "expected no peer")
    _refuse(plan, moves & (columns.level < 0), "expected a level of 0 or more")
    streams = len(plan.streams)
    _refuse(plan, (columns.stream < 0) | (columns.stream >= streams), "expected a known stream")
    counts = np.diff(columns.ptr)
    if (
        len(columns.ptr) != len(plan) + 1
        or (counts < 1).any()
        or len(columns.arg) != columns.ptr[-1]
    ):
        raise PlanError("plan: operand lists do not match the operations")
    if len(columns.arg) and not 0 <= columns.arg.min() <= columns.arg.max() < len(items):
        raise PlanError("plan: an operand is no item of the plan")
    _refuse(plan, moves & (columns.lead != counts), "expected all its operands to be items")
    short = ~moves & ((columns.lead < 1) | (columns.lead >= counts))
    _refuse(plan, short, "expected operands on both sides")
    _refuse(plan, (op == MERGE) & (counts - columns.lead != 1), "expected one output")
    _check_operands(plan)
    _check_levels(plan)


def _check_items(plan: Plan) -> None:
    items, work = plan.items, plan.workload
    axis = np.where(np.isin(items.kind, KV_AXIS), work.num_kv_heads, work.heads)
    wrong = (items.kind >= len(KINDS)) | (items.head_lo < 0) | (items.head_lo >= items.head_hi)
    wrong |= (items.head_hi > axis) | (items.part < 0)
    wrong |= ~np.isin(items.kind, PARTIAL) & (items.part != 0)
    if wrong.any():
        raise PlanError(f"item {int(np.flatnonzero(wrong)[0])}: kind, heads or part out of range")
    low, high = items.row_lo, items.row_hi
    same = np.ones(len(low), bool)
    same[items.row_ptr[:-1]] = False
    touching = same[1:] & (low[1:] <= high[:-1])
    if (low < 0).any() or (high > work.seq_len).any() or (low >= high).any() or touching.any():
        raise PlanError("plan: a row set is not sorted, disjoint and inside the sequence")


def _check_operands(plan: Plan) -> None:
    """Check the kinds of operands, and that each op names one thing once."""
    columns, items = plan.columns, plan.items
    row = np.repeat(np.arange(len(plan)), np.diff(columns.ptr))
    leads = np.arange(len(columns.arg)) - columns.ptr[row] < columns.lead[row]
    kind, op = items.kind[columns.arg], columns.op[row]
    bad = np.zeros(len(plan), bool)
    bad[row[(op == ATTEND) & (kind != np.where(leads, Q, KV))]] = True
    _refuse(plan, bad, "expected queries first, then keys")
    bad = np.zeros(len(plan), bool)
    bad[row[(op == MERGE) & ~np.isin(kind, PARTIAL)]] = True
    _refuse(plan, bad, "expected partial results (o, dq, dkv)")
    bad[row[columns.slot < HOME]] = True
    _refuse(plan, bad, "expected slot numbers of 0 or more, or home")
    packed = np.sort(row * (len(items) + 1) + columns.arg)
    twice = packed[1:][packed[1:] == packed[:-1]] // (len(items) + 1)
    bad = np.zeros(len(plan), bool)
    bad[twice] = True
    _refuse(plan, bad, "names one operand twice")
    output = columns.ptr[row + 1] - 1
    extent = plan.item_extent[columns.arg]
    unlike = (kind != kind[output]) | (extent != extent[output])
    bad = np.zeros(len(plan), bool)
    bad[row[(op == MERGE) & unlike]] = True
    _refuse(plan, bad, "expected inputs of its output's kind, rows and heads")


def _check_levels(plan: Plan) -> None:
    columns = plan.columns
    moves = np.flatnonzero(columns.op == TRANSFER)
    rows = np.concatenate([moves, moves])
    ends = np.concatenate([columns.rank[moves], columns.peer[moves]]).astype(np.int64)
    lane = ends * len(plan.streams) + np.tile(columns.stream[moves], 2)
    order = np.lexsort((rows, lane))
    rows, lane, level = rows[order], lane[order], np.tile(columns.level[moves], 2)[order]
    falls = np.flatnonzero((lane[1:] == lane[:-1]) & (level[1:] < level[:-1]))
    if len(falls):
        row = int(rows[falls[0] + 1])
        rank = int(lane[falls[0]]) // len(plan.streams)
        raise PlanError(
            f"{plan.describe(row)}: level {int(level[falls[0] + 1])} comes after level "
            f"{int(level[falls[0]])} on its stream at rank {rank}; levels never decrease"
        )


def check_coverage(plan: Plan) -> None:
    """Check that every unmasked (query, key, head) is attended exactly once.

    Raises:
        PlanError: One is attended twice or never.
    """
    rows, query, key = attend_pairs(plan)
    args, items, work = plan.columns.arg, plan.items, plan.workload
    q_items, k_items = args[query], args[key]
    q_sets, k_sets = items.rows[q_items], items.rows[k_items]
    q_classes, k_classes = classes_of(plan, q_sets), classes_of(plan, k_sets)
    low, high = shared_heads(plan, q_items, k_items)
    cuts = np.unique(np.concatenate([[0, work.heads], low, high]))
    needed = _needed(plan, q_classes.rows, k_classes.rows)
    shape = needed.shape
    for first in cuts[:-1]:
        inside = np.flatnonzero((low <= first) & (first < high))
        pair, q, k = _class_pairs(q_classes.of, k_classes.of, q_sets[inside], k_sets[inside])
        count = np.bincount(q * shape[1] + k, minlength=shape[0] * shape[1]).reshape(shape)
        wrong = needed & (count != 1)
        if not wrong.any():
            continue
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        what = (
            f"queries {_span(q_classes.rows[at[0]])} with keys {_span(k_classes.rows[at[1]])} "
            f"of head {int(first)}"
        )
        if count[at] == 0:
            raise PlanError(f"coverage: {what} are never attended")
        twice = rows[inside[pair[(q == at[0]) & (k == at[1])]]][:2]
        named = " and ".join(plan.describe(int(row)) for row in twice)
        raise PlanError(f"coverage: {what} are attended {int(count[at])} times, by {named}")


def _needed(plan: Plan, queries: list[Ints], keys: list[Ints]) -> Bools:
    """Say which (query class, key class) pairs hold an unmasked pair."""
    runs = [*queries, *keys]
    bounds = np.concatenate(runs) if runs else np.zeros((0, 2), np.int64)
    empty = np.zeros(0, np.int64)
    table = ItemTable(
        kind=empty.astype(np.uint8), rows=empty.astype(np.int32), head_lo=empty.astype(np.int32),
        head_hi=empty.astype(np.int32), part=empty.astype(np.int16),
        row_ptr=np.cumsum([0, *map(len, runs)]), row_lo=bounds[:, 0], row_hi=bounds[:, 1],
    )  # fmt: skip
    q = np.repeat(np.arange(len(queries)), len(keys))
    k = np.tile(np.arange(len(keys)), len(queries)) + len(queries)
    return (row_set_areas(plan.workload, table, q, k) > 0).reshape(len(queries), len(keys))


def _class_pairs(
    q_of: tuple[Ints, Ints], k_of: tuple[Ints, Ints], q_sets: Ints, k_sets: Ints
) -> tuple[Ints, Ints, Ints]:
    """Expand pairs of row sets to pairs of row classes, with the number of their pair."""
    q_ptr, q_class = q_of
    k_ptr, k_class = k_of
    q_count, k_count = np.diff(q_ptr)[q_sets], np.diff(k_ptr)[k_sets]
    total = q_count * k_count
    pair = np.repeat(np.arange(len(total)), total)
    inner = np.arange(len(pair)) - np.repeat(np.cumsum(total) - total, total)
    q, k = np.divmod(inner, k_count[pair])
    return pair, q_class[q_ptr[q_sets[pair]] + q], k_class[k_ptr[k_sets[pair]] + k]


def _span(runs: Ints) -> str:
    return "+".join(f"{first}:{last}" for first, last in runs.tolist())


def check_delivery(plan: Plan, hazards: Hazards) -> None:
    """Check that partial results are equal or disjoint and end at their owner's home.

    Raises:
        PlanError: One does not.
    """
    accesses = hazards.accesses
    last = hazards.end[accesses.partial[hazards.end] & accesses.writes[hazards.end]]
    owned = plan.item_owner[accesses.item[last]] == accesses.rank[last]
    lost = last[~owned | (accesses.part[last] != 0)]
    if len(lost):
        at = lost[np.argmin(accesses.row[lost])]
        rank, part = int(accesses.rank[at]), int(accesses.part[at])
        owner = int(plan.item_owner[accesses.item[at]])
        why = f"its owner is rank {owner}" if owner != rank else f"part {part} is merged by nothing"
        raise PlanError(
            f"{plan.describe(int(accesses.row[at]))}: {thing(plan, accesses, at)} stays on rank "
            f"{rank}, but {why}"
        )
    at = np.flatnonzero(accesses.partial & accesses.new_key)
    clash = overlapping(plan, accesses.item[at], _groups(accesses, at))
    if clash is not None:
        first, second = at[clash[0]], at[clash[1]]
        raise PlanError(
            f"{plan.describe(int(accesses.row[second]))}: {thing(plan, accesses, second)} overlaps "
            f"{thing(plan, accesses, first)} on rank {int(accesses.rank[first])}; partial results "
            "of one kind and part must be equal or disjoint"
        )


def _groups(accesses: Accesses, at: Ints) -> Ints:
    """Number the (rank, kind, part) of accesses."""
    rank, kind, part = accesses.rank[at], accesses.kind[at], accesses.part[at]
    return (rank * len(KINDS) + kind) * (int(part.max(initial=0)) + 1) + part
