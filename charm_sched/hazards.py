"""Dependencies of a plan, derived from its items and slots.

Every operand reads or writes something on a rank. Sorted by (rank, thing, row) these *accesses*
fall into *versions*: the life of one content, from its first write to its last use. From versions
and slots follow all waits:

* a read waits for what it reads: the copy, or every contribution to the partial result;
* a contribution added in place waits for the earlier contributions of its version;
* what takes a slot waits until the slot's last content has been read (or combined).

Rule numbers and the meaning of *staged* are in `charm_sched.plans`. Everything is vectorised:
3 million operations take a few seconds.

Raises PlanError, naming the op, where a plan reads what is not there or overwrites what is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Bools, Ints
from charm_sched.errors import PlanError
from charm_sched.items import COPIED, DKV, DQ, HOME, KINDS, KV, PARTIAL, G, O, Q
from charm_sched.plans import ATTEND, MERGE, TRANSFER

if TYPE_CHECKING:
    from charm_sched.plans import Plan


@dataclass(frozen=True, eq=False, kw_only=True)
class Accesses:
    """Reads and writes, sorted by (rank, kind, part, extent), then row, reads first.

    Attributes:
        row: Row in the plan; -1 for what is resident at the start.
        rank: Where.
        kind: Index into `KINDS` of what is accessed.
        part: Its part.
        item: The operand's item, whose rectangle is accessed.
        slot: Slot that a write names; `HOME` on reads.
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Edges:
    """Waits: row ``after`` waits for the end of row ``before``.

    Attributes:
        before: Earlier row.
        after: Later row.
        at_source: For a transfer: whether its source end waits (it reads) or its destination end.
    """

    before: Ints
    after: Ints
    at_source: Bools


@dataclass(frozen=True, eq=False, kw_only=True)
class Occupancies:
    """What sits in numbered slots: versions and staged contributions, sorted by (rank, slot, row).

    Attributes:
        rank: Where.
        slot: Which slot.
        first: Row that fills it.
        last: Last row that uses it.
        access: Position of the filling access.
        staged: Whether it is a staged contribution, not a version.
    """

    rank: Ints
    slot: Ints
    first: Ints
    last: Ints
    access: Ints
    staged: Bools


@dataclass(frozen=True, eq=False, kw_only=True)
class Hazards:
    """Everything that follows from items and slots.

    Attributes:
        plan: The plan.
        accesses: Its reads and writes.
        version: Version of each access, ascending.
        start: Position of the first access of each version.
        end: Position of the last access of each version.
        base: For each access, the first contribution that a wait for all before it must include.
        staged: Whether each access is a staged contribution.
        occupancies: What sits in slots.
        edges: All waits.
    """

    plan: Plan
    accesses: Accesses
    version: Ints
    start: Ints
    end: Ints
    base: Ints
    staged: Bools
    occupancies: Occupancies
    edges: Edges


def find_hazards(plan: Plan) -> Hazards:
    """Derive accesses, versions, slots and waits of a plan.

    Raises:
        PlanError: An op reads what is not there, moves a partial result twice, names home where
            there is none, or overwrites a slot that is still needed.
    """
    accesses = _resolve_containers(plan, _sort(plan, _collect(plan)))
    starts = _version_starts(plan, accesses)
    version = np.cumsum(starts) - 1
    start = np.flatnonzero(starts)
    end = np.concatenate([start[1:], [len(accesses)]]) - 1 if len(start) else start
    staged = _find_staged(plan, accesses, version, start)
    position = np.arange(len(accesses))
    lands = accesses.writes & ~staged
    previous = np.concatenate([[-1], np.maximum.accumulate(np.where(lands, position, -1))])
    base = np.maximum(previous[:-1][: len(accesses)], start[version]) if len(accesses) else position
    occupancies = _find_occupancies(plan, accesses, version, start, end, staged)
    parts = [
        _read_edges(accesses, version, start, base, staged),
        _slot_edges(plan, accesses, version, start, end, base, occupancies),
        _home_edges(plan, accesses, start),
    ]
    before, after, at_source = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    real = before >= 0
    return Hazards(
        plan=plan,
        accesses=accesses,
        version=version,
        start=start,
        end=end,
        base=base,
        staged=staged,
        occupancies=occupancies,
        edges=Edges(before=before[real], after=after[real], at_source=at_source[real]),
    )


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
    found: list[tuple[Bools, object, object, object, bool]] = [
        (moves, rank, own_kind, own_part, False),
        (moves, columns.peer[row], own_kind, own_part, True),
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
        chunks.append((row[at], where_at, kind_at, part_at, arg[at].astype(np.int64), slots,
                       np.full(len(at), writes)))  # fmt: skip
    if backward and len(plan.saved):
        item = plan.saved.item.astype(np.int64)
        chunks.append((np.full(len(item), -1), plan.saved.rank.astype(np.int64),
                       items.kind[item].astype(np.int64), items.part[item].astype(np.int64), item,
                       plan.saved.slot.astype(np.int64), np.full(len(item), True)))  # fmt: skip
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
    position = np.arange(len(found))
    written = (
        np.logical_or.reduceat(found.writes, position[found.new_key]) if len(found) else position
    )
    has_write = np.repeat(written, np.diff(np.append(position[found.new_key], len(found))))
    lost = np.flatnonzero(~has_write & ~found.partial)
    if not len(lost):
        return found
    key, item = found.key.copy(), found.item
    keys = found.key[found.writes]
    base = key - plan.item_extent[item]
    for extent in np.unique(plan.item_extent[item[lost]]):
        reads = lost[plan.item_extent[item[lost]] == extent]
        for holder in _containers(plan, int(item[reads[0]])):
            there = np.isin(base[reads] + plan.item_extent[holder], keys)
            key[reads[there]] = base[reads[there]] + plan.item_extent[holder]
            reads = reads[~there]
    columns = {name: getattr(found, name) for name in found.__dataclass_fields__}
    return _sort(plan, Accesses(**{**columns, "key": key}))


def _containers(plan: Plan, inner: int) -> list[int]:
    """List the items whose rows and heads hold those of an item, smallest first."""
    items = plan.items
    low, high = items.padded_rows
    row_set = items.rows[inner]
    holds = np.ones(len(items.row_counts), bool)
    for first, last in items.row_set(int(row_set)):
        holds &= ((low <= first) & (last <= high)).any(axis=1)
    share = np.where(np.isin(items.kind, (KV, DKV)), plan.workload.heads_per_kv, 1)
    lows, highs = items.head_lo * share, items.head_hi * share
    fits = holds[items.rows] & (lows <= lows[inner]) & (highs[inner] <= highs)
    candidates = np.flatnonzero(fits)
    order = np.argsort(plan.bytes_as(items.kind)[candidates], kind="stable")
    return [int(candidate) for candidate in candidates[order]]


def _sort(plan: Plan, found: Accesses) -> Accesses:
    span = 2 * (len(plan) + 1)
    if (int(found.key.max(initial=0)) + 1) < 2**62 // span:
        order = np.argsort(found.key * span + 2 * (found.row + 1) + found.writes)
    else:
        order = np.lexsort((found.writes, found.row, found.key))
    return Accesses(**{name: getattr(found, name)[order] for name in found.__dataclass_fields__})


def _version_starts(plan: Plan, accesses: Accesses) -> Bools:
    """Mark the first access of each version; refuse reads of what is not there."""
    writes, partial, new_key = accesses.writes, accesses.partial, accesses.new_key
    ended = np.concatenate([[True], ~writes[:-1] & partial[:-1]])[: len(accesses)] | new_key
    missing = np.flatnonzero(~writes & (new_key | (partial & ended)))
    if len(missing):
        at = missing[np.argmin(accesses.row[missing])]
        what, where = thing(plan, accesses, at), int(accesses.rank[at])
        reason = (
            "it was moved or merged away before"
            if partial[at] and not new_key[at]
            else "no op above brings or computes it there"
        )
        raise PlanError(
            f"{plan.describe(int(accesses.row[at]))}: reads {what} on rank {where}, but {reason}"
        )
    owned = plan.item_owner[accesses.item] == accesses.rank
    pointless = np.flatnonzero(writes & ~partial & (owned | (accesses.slot == HOME)))
    if len(pointless):
        at = pointless[np.argmin(accesses.row[pointless])]
        what, where = thing(plan, accesses, at), int(accesses.rank[at])
        place = f"op {int(accesses.row[at])}"
        if accesses.row[at] >= 0:
            place = plan.describe(int(accesses.row[at]))
        reason = "which owns it" if owned[at] else "without naming a slot for it"
        raise PlanError(f"{place}: copies {what} to rank {where}, {reason}")
    return np.where(partial, writes & ended, writes)


def _find_staged(plan: Plan, accesses: Accesses, version: Ints, start: Ints) -> Bools:
    """Mark contributions that name another slot than their version's home."""
    if not len(accesses):
        return np.zeros(0, bool)
    owned = plan.item_owner[accesses.item] == accesses.rank
    at_home = accesses.partial & owned & (accesses.part == 0)
    homeless = start[accesses.partial[start] & ~at_home[start] & (accesses.slot[start] == HOME)]
    if len(homeless):
        at = homeless[np.argmin(accesses.row[homeless])]
        raise PlanError(
            f"{plan.describe(int(accesses.row[at]))}: adds {thing(plan, accesses, at)} at home on "
            f"rank {int(accesses.rank[at])}, which has no home for it; name a slot"
        )
    home = np.where(at_home[start], HOME, accesses.slot[start])[version]
    staged: Bools = (
        accesses.writes & accesses.partial & (accesses.slot != HOME) & (accesses.slot != home)
    )
    return staged


def _find_occupancies(
    plan: Plan, accesses: Accesses, version: Ints, start: Ints, end: Ints, staged: Bools
) -> Occupancies:
    """List what sits in slots and refuse overlaps."""
    owned = plan.item_owner[accesses.item] == accesses.rank
    home = accesses.partial & owned & (accesses.part == 0)
    versions = np.flatnonzero(~home[start]) if len(start) else start
    extras = np.flatnonzero(staged)
    access = np.concatenate([start[versions], extras])
    last = np.concatenate([accesses.row[end[versions]], accesses.row[extras]])
    is_staged = np.repeat([False, True], [len(versions), len(extras)])
    rank, slot, first = accesses.rank[access], accesses.slot[access], accesses.row[access]
    order = np.lexsort((first, slot, rank))
    taken = Occupancies(
        rank=rank[order], slot=slot[order], first=first[order], last=last[order],
        access=access[order], staged=is_staged[order],
    )  # fmt: skip
    same = (taken.rank[1:] == taken.rank[:-1]) & (taken.slot[1:] == taken.slot[:-1])
    clash = np.flatnonzero(same & (taken.last[:-1] >= taken.first[1:]))
    if len(clash):
        at = clash[np.argmin(taken.first[clash + 1])]
        row, user = int(taken.first[at + 1]), int(taken.last[at])
        needed = f"op {row} itself" if row == user else plan.describe(user)
        raise PlanError(
            f"{plan.describe(row)}: puts {thing(plan, accesses, taken.access[at + 1])} into slot "
            f"{int(taken.slot[at])} of rank {int(taken.rank[at])}, which still holds "
            f"{thing(plan, accesses, taken.access[at])} for {needed}"
        )
    return taken


EdgeColumns = tuple["Ints", "Ints", "Bools"]


def _read_edges(
    accesses: Accesses, version: Ints, start: Ints, base: Ints, staged: Bools
) -> EdgeColumns:
    """Waits of reads, and of contributions added in place, for earlier contributions."""
    copies = np.flatnonzero(~accesses.writes & ~accesses.partial)
    plain = (
        accesses.row[start[version[copies]]] if len(copies) else copies,
        accesses.row[copies],
        np.ones(len(copies), bool),
    )
    position = np.arange(len(accesses))
    first = np.zeros(len(accesses), bool)
    first[start] = True
    waits = np.flatnonzero(accesses.partial & ~staged & ~first)
    before, after = _spans(base[waits], position[waits])
    summed = (accesses.row[before], accesses.row[waits][after], ~accesses.writes[waits][after])
    return tuple(np.concatenate(pair) for pair in zip(plain, summed, strict=True))  # type: ignore[return-value]


def _slot_edges(
    plan: Plan,
    accesses: Accesses,
    version: Ints,
    start: Ints,
    end: Ints,
    base: Ints,
    taken: Occupancies,
) -> EdgeColumns:
    """Waits of what takes a slot for the last uses of the slot's content before."""
    same = (taken.rank[1:] == taken.rank[:-1]) & (taken.slot[1:] == taken.slot[:-1])
    old = np.flatnonzero(same)
    access = taken.access[old]
    staged = taken.staged[old]
    finish = end[version[access]] if len(old) else access
    copied = ~accesses.partial[access]
    read = finish > access
    # A copy is free after all its reads, or its own arrival where nobody reads it; a partial result
    # after the read that ends it; a staged contribution after its combine.
    first = np.where(copied & read, access + 1, np.where(copied, access, finish))
    first = np.where(staged, base[access], first) if len(old) else first
    last = np.where(staged, access, np.where(copied, np.maximum(access, finish), finish)) + 1
    before, which = _spans(first, last)
    after = taken.first[old + 1][which]
    return accesses.row[before], after, np.zeros(len(before), bool)


def _home_edges(plan: Plan, accesses: Accesses, start: Ints) -> EdgeColumns:
    """Waits of a partial result that comes back home for the read that took it away."""
    again = start[accesses.partial[start] & ~accesses.new_key[start]]
    return accesses.row[again - 1], accesses.row[again], np.zeros(len(again), bool)


def _spans(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Expand ranges ``first[i] <= position < last[i]`` to positions and their range's number."""
    lengths = np.maximum(last - first, 0)
    which = np.repeat(np.arange(len(lengths)), lengths)
    inner = np.arange(len(which)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return first[which] + inner, which


def thing(plan: Plan, accesses: Accesses, at: int | np.integer[object]) -> str:  # type: ignore[type-var]
    """Name what an access touches."""
    item = plan.items[int(accesses.item[at])]
    kind = KINDS[int(accesses.kind[at])]
    text = str(item)
    part = int(accesses.part[at])
    return kind + text[text.index("[") :].split(".")[0] + (f".{part}" if part else "")
