"""What every op of a plan reads and writes, on which rank, in an order that shows lives.

Reads of the owner's own copies are left out: they are always there and never overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Bools, Ints
from charm_sched.plans.items import COPIED, DKV, DQ, HOME, KINDS, KV, PARTIAL, G, O, Q
from charm_sched.plans.plan import ATTEND, MERGE, TRANSFER

if TYPE_CHECKING:
    from charm_sched.plans.plan import Plan


@dataclass(frozen=True, eq=False, kw_only=True)
class Accesses:
    """Reads and writes, sorted by (rank, kind, part, extent), then row, reads first.

    Attributes:
        row: Row in the plan; -1 for what is resident at the start, and the number of rows for
            what stays resident at the end.
        rank: Where.
        kind: Index into `KINDS` of what is accessed.
        part: Its part.
        item: The operand's item, whose rectangle is accessed.
        slot: Slot that a write names, or in which a resident must be; `HOME` on other reads.
        writes: Whether it writes (contributes) rather than reads.
        key: Number of (rank, kind, part, extent), ascending.
    """

    row: Ints
    rank: Ints
    kind: Ints
    part: Ints
    item: Ints
    slot: Ints
    writes: Bools
    key: Ints

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def partial(self) -> Bools:
        """Whether a partial result is accessed: its reads end it."""
        return np.isin(self.kind, PARTIAL)

    @cached_property
    def new_key(self) -> Bools:
        """Whether the access is the first of its key."""
        return np.concatenate([[True], self.key[1:] != self.key[:-1]])[: len(self)]


def find_accesses(plan: Plan) -> Accesses:
    """List all accesses of a plan, sorted."""
    return _resolve_containers(plan, _sort(plan, _collect(plan)))


def _collect(plan: Plan) -> Accesses:
    """List all accesses, in no particular order; reads of the owner's own copies are left out."""
    columns, items = plan.columns, plan.items
    row = np.repeat(np.arange(len(plan)), np.diff(columns.ptr))
    leads = np.arange(len(columns.arg)) - columns.ptr[row] < columns.lead[row]
    op, rank, arg, slot = columns.op[row], columns.rank[row], columns.arg, columns.slot
    moves, computes, merges = op == TRANSFER, op == ATTEND, op == MERGE
    backward = plan.direction == "backward"
    queries, keys = computes & leads, computes & ~leads
    own_kind, own_part = items.kind[arg], items.part[arg]
    destination, arrived = plan.received
    found: list[tuple[Bools, object, object, object, bool]] = [
        (moves, rank, own_kind, own_part, False),
        (moves, destination[row], own_kind, own_part, True),
        (queries, rank, Q, 0, False),
        (queries, rank, DQ if backward else O, columns.part[row], True),
        (keys, rank, KV, 0, False),
        (merges & leads, rank, own_kind, own_part, False),
        (merges & ~leads, rank, own_kind, own_part, True),
    ]
    if backward:
        found += [(queries, rank, G, 0, False), (keys, rank, DKV, columns.part[row], True)]
    chunks: list[tuple[Ints, ...]] = []
    for chosen, where, kind, part, writes in found:
        at = np.flatnonzero(chosen)
        where_at, kind_at, part_at = (_pick(values, at) for values in (where, kind, part))
        if not writes:
            away = ~(np.isin(kind_at, COPIED) & (plan.item_owner[arg[at]] == where_at))
            at, where_at, kind_at, part_at = at[away], where_at[away], kind_at[away], part_at[away]
        slots = slot[at].astype(np.int64) if writes else np.full(len(at), HOME)
        item_at = (arrived if where is not rank else arg)[at].astype(np.int64)
        chunks.append((row[at], where_at, kind_at, part_at, item_at, slots,
                       np.full(len(at), writes)))  # fmt: skip
    if len(plan.saved):
        # Residents are written before the first row of the backward, and read after the last of
        # the forward.
        item = plan.saved.item.astype(np.int64)
        end = -1 if backward else len(plan)
        rank, slot = plan.saved.rank.astype(np.int64), plan.saved.slot.astype(np.int64)
        kind, part = items.kind[item].astype(np.int64), items.part[item].astype(np.int64)
        written = np.full(len(item), backward)
        chunks.append((np.full(len(item), end), rank, kind, part, item, slot, written))
    names = ("row", "rank", "kind", "part", "item", "slot", "writes")
    joined = [np.concatenate(column) for column in zip(*chunks, strict=True)]
    return _with_keys(plan, dict(zip(names, joined, strict=True)))


def _pick(values: object, at: Ints) -> Ints:
    """Take elements of an array, or repeat a scalar."""
    if isinstance(values, np.ndarray):
        return values[at].astype(np.int64)
    return np.full(len(at), values, dtype=np.int64)


def _with_keys(plan: Plan, columns: dict[str, Ints]) -> Accesses:
    extents = int(plan.item_extent.max(initial=0)) + 1
    parts = int(columns["part"].max(initial=0)) + 1
    place = columns["rank"] * len(KINDS) + columns["kind"]
    key = (place * parts + columns["part"]) * extents + plan.item_extent[columns["item"]]
    return Accesses(**columns, key=key)  # type: ignore[arg-type]


def _resolve_containers(plan: Plan, found: Accesses) -> Accesses:
    """Point reads of a sub-piece at the whole that holds it, where just the whole is there."""
    writes = np.cumsum(found.writes)
    before = np.where(found.new_key, writes - found.writes, 0)
    missing: Bools = (
        writes - np.maximum.accumulate(before) == 0
    )  # nothing written under the key so far
    lost = np.flatnonzero(missing & ~found.writes & ~found.partial)
    if not len(lost):
        return found
    key, item = found.key.copy(), found.item
    first = np.flatnonzero(found.writes)
    first = first[np.unique(found.key[first], return_index=True)[1]]  # first write of each key
    keys, rows = found.key[first], found.row[first]
    base = key - plan.item_extent[item]
    for extent in np.unique(plan.item_extent[item[lost]]):
        reads = lost[plan.item_extent[item[lost]] == extent]
        for holder in _containers(plan, int(item[reads[0]])):
            if not len(reads) or not len(keys):
                break
            wanted = base[reads] + plan.item_extent[holder]
            at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            there = (keys[at] == wanted) & (rows[at] < found.row[reads])
            key[reads[there]] = wanted[there]
            reads = reads[~there]
    columns = {name: getattr(found, name) for name in found.__dataclass_fields__}
    return _sort(plan, Accesses(**{**columns, "key": key}))


def _containers(plan: Plan, inner: int) -> list[int]:
    """List the items whose rows and heads hold those of an item, smallest first."""
    items = plan.items
    holds = items.holding(int(items.rows[inner]))
    lows, highs = plan.item_heads
    fits = holds[items.rows] & (lows <= lows[inner]) & (highs[inner] <= highs)
    candidates = np.flatnonzero(fits)
    order = np.argsort(plan.bytes_as(items.kind)[candidates], kind="stable")
    return [int(candidate) for candidate in candidates[order]]


def _sort(plan: Plan, found: Accesses) -> Accesses:
    span = 2 * (len(plan) + 2)
    if (int(found.key.max(initial=0)) + 1) < 2**62 // span:
        order = np.argsort(found.key * span + 2 * (found.row + 1) + found.writes)
    else:
        order = np.lexsort((found.writes, found.row, found.key))
    return Accesses(**{name: getattr(found, name)[order] for name in found.__dataclass_fields__})


def thing(plan: Plan, accesses: Accesses, at: int | np.integer[object]) -> str:  # type: ignore[type-var]
    """Name what an access touches."""
    item = plan.items[int(accesses.item[at])]
    kind = KINDS[int(accesses.kind[at])]
    text = str(item)
    part = int(accesses.part[at])
    return kind + text[text.index("[") :].split(".")[0] + (f".{part}" if part else "")


def place(plan: Plan, row: int) -> str:
    """Name a row of an access: an op, or the residents at the start or the end."""
    if row < 0:
        return "what is resident at the start"
    return plan.describe(row) if row < len(plan) else "what stays resident at the end"
