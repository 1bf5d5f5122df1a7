"""Structure of a plan: every column holds values that mean something.

The first step of the proof; what comes after relies on it and does not check again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from charm_sched.arrays import Bools, Ints
from charm_sched.errors import PlanError
from charm_sched.plans.items import (
    COPIED,
    DKV,
    DQ,
    HOME,
    KINDS,
    KV,
    KV_AXIS,
    PARTIAL,
    G,
    ItemTable,
    O,
    Q,
)  # fmt: skip
from charm_sched.plans.plan import (
    ATTEND,
    DIRECTIONS,
    MERGE,
    OP_NAMES,
    TRANSFER,
    Columns,
    Plan,
    Residents,
    check_stream,
)  # fmt: skip

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORWARD_KINDS, BACKWARD_KINDS = (Q, KV, O), (Q, KV, G, DQ, DKV)
_I16, _I32, _I64, _U8 = np.int16, np.int32, np.int64, np.uint8
DTYPES: Mapping[type, Mapping[str, type[np.integer[Any]]]] = {
    Columns: {
        "op": _U8, "rank": _I32, "peer": _I32, "level": _I32, "stream": _I16, "part": _I16,
        "lead": _I32, "ptr": _I64, "arg": _I32, "slot": _I32,
    },
    ItemTable: {
        "kind": _U8, "rows": _I32, "head_lo": _I32, "head_hi": _I32, "part": _I16, "row_ptr": _I64,
        "row_lo": _I64, "row_hi": _I64,
    },
    Residents: {"rank": _I32, "item": _I32, "slot": _I32},
}  # fmt: skip


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
    _check_tables(plan)
    _check_names(plan)
    _check_items(plan)
    _check_saved(plan)
    op, moves = columns.op, columns.op == TRANSFER
    _refuse(plan, op > MERGE, "expected a transfer, an attend or a merge")
    _refuse(plan, (columns.rank < 0) | (columns.rank >= ranks), f"expected ranks below {ranks}")
    off = moves & ((columns.peer < 0) | (columns.peer >= ranks) | (columns.peer == columns.rank))
    _refuse(plan, off, f"expected another rank below {ranks} as its destination")
    _refuse(plan, ~moves & (columns.peer != -1), "expected no peer")
    _refuse(plan, moves & (columns.level < 0), "expected a level of 0 or more")
    _refuse(plan, ~moves & (columns.level != -1), "expected no level")
    _refuse(plan, (op != ATTEND) & (columns.part != 0), "expected part 0")
    _refuse(plan, columns.part < 0, "expected a part of 0 or more")
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


def _check_tables(plan: Plan) -> None:
    """Check that columns have their types and lengths, and that lists point where they should."""
    for table in (plan.columns, plan.items, plan.saved):
        for name, dtype in DTYPES[type(table)].items():
            column = getattr(table, name)
            if not isinstance(column, np.ndarray) or column.dtype != dtype or column.ndim != 1:
                found = getattr(column, "dtype", type(column).__name__)
                raise PlanError(f"plan: column {name}: expected one row of {dtype}, found {found}")
    columns, items, saved = plan.columns, plan.items, plan.saved
    ops, kinds = len(columns.op), len(items.kind)
    lengths = {
        **dict.fromkeys(("rank", "peer", "level", "stream", "part", "lead"), (columns, ops)),
        "ptr": (columns, ops + 1),
        "slot": (columns, len(columns.arg)),
    }
    for name, (table, length) in lengths.items():
        _expect_length(name, getattr(table, name), length)
    for name in ("rows", "head_lo", "head_hi", "part"):
        _expect_length(name, getattr(items, name), kinds)
    _expect_length("row_hi", items.row_hi, len(items.row_lo))
    for name in ("item", "slot"):
        _expect_length(name, getattr(saved, name), len(saved.rank))
    _check_pointers("operand lists", columns.ptr, len(columns.arg))
    _check_pointers("row sets", items.row_ptr, len(items.row_lo))
    if kinds and not 0 <= items.rows.min() <= items.rows.max() < len(items.row_ptr) - 1:
        raise PlanError("plan: an item's rows are no row set of the plan")


def _expect_length(name: str, column: NDArray[np.generic], length: int) -> None:
    if len(column) != length:
        raise PlanError(f"plan: column {name}: expected {length} entries, found {len(column)}")


def _check_pointers(what: str, pointers: Ints, length: int) -> None:
    if not len(pointers) or pointers[0] or pointers[-1] != length or (np.diff(pointers) < 1).any():
        raise PlanError(f"plan: {what} do not match their entries, or one is empty")


def _check_names(plan: Plan) -> None:
    if plan.direction not in DIRECTIONS:
        raise PlanError(f"plan: expected direction {DIRECTIONS}, found {plan.direction!r}")
    if plan.devices and len(plan.devices) != plan.num_ranks:
        raise PlanError(f"plan: {len(plan.devices)} devices for {plan.num_ranks} ranks")
    if len(set(plan.devices)) != len(plan.devices):
        raise PlanError("plan: two ranks share a device")
    for stream in plan.streams:
        check_stream(stream)
    if len(set(plan.streams)) != len(plan.streams):
        raise PlanError(f"plan: expected different streams, found {plan.streams}")


def _check_saved(plan: Plan) -> None:
    """Check that residents are copies in slots of their own, away from their owner."""
    saved, items = plan.saved, plan.items
    if not len(saved):
        return
    if not 0 <= saved.item.min() <= saved.item.max() < len(items):
        raise PlanError("plan: a resident is no item of the plan")
    wrong = (saved.rank < 0) | (saved.rank >= plan.num_ranks) | (saved.slot < 0)
    wrong |= ~np.isin(items.kind[saved.item], COPIED)
    wrong |= plan.item_owner[saved.item] == saved.rank
    places = saved.rank.astype(np.int64) << 32 | saved.slot
    first = np.unique(places, return_index=True)[1]
    wrong[np.setdiff1d(np.arange(len(places)), first)] = True
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise PlanError(
            f"plan: resident {items[int(saved.item[at])]} in slot {int(saved.slot[at])} of rank "
            f"{int(saved.rank[at])}: expected a copy, in a slot of its own of a rank below "
            f"{plan.num_ranks} that does not own it"
        )


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
    sets = {items.row_set(number) for number in range(len(items.row_ptr) - 1)}
    if len(sets) < len(items.row_ptr) - 1:
        raise PlanError("plan: a row set is listed twice")
    names = np.stack([items.kind, items.rows, items.head_lo, items.head_hi, items.part])
    if np.unique(names, axis=1).shape[1] < len(items):
        raise PlanError("plan: an item is listed twice")


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
    known = FORWARD_KINDS if plan.direction == "forward" else BACKWARD_KINDS
    bad[row[~np.isin(kind, known)]] = True
    _refuse(plan, bad, f"expected things that a {plan.direction} has")
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
    ends = np.concatenate([columns.rank[moves], plan.received[0][moves]]).astype(np.int64)
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
