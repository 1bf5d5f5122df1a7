"""Dependencies of a plan, derived from its items and slots.

Every operand reads or writes something on a rank. Sorted by (rank, thing, row) these *accesses*
fall into *versions*: the life of one content, from its first write to its last use. From versions
and slots follow all waits:

* a read waits for what it reads: the copy, or every contribution to the partial result;
* a contribution added in place waits for the earlier contributions of its version;
* what takes a slot waits until the slot's last content has been read (or combined).

Rule numbers and the meaning of *staged* are in `charm_sched.plans.plan`. Everything is vectorised:
3 million operations take a few seconds.

Raises PlanError, naming the op, where a plan reads what is not there or overwrites what is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Bools, Ints, spans
from charm_sched.errors import PlanError
from charm_sched.plans.items import HOME
from charm_sched.proof.accesses import Accesses, find_accesses, place, thing

if TYPE_CHECKING:
    from charm_sched.plans.plan import Plan


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
    accesses = find_accesses(plan)
    starts = _version_starts(plan, accesses)
    version = np.cumsum(starts) - 1
    start = np.flatnonzero(starts)
    end = np.concatenate([start[1:], [len(accesses)]]) - 1 if len(start) else start
    staged = _find_staged(plan, accesses, version, start)
    position = np.arange(len(accesses))
    lands = accesses.writes & ~staged
    previous = np.concatenate([[-1], np.maximum.accumulate(np.where(lands, position, -1))])
    base = np.maximum(previous[:-1][: len(accesses)], start[version]) if len(accesses) else position
    _check_residents(plan, accesses, version, start)
    occupancies = _find_occupancies(plan, accesses, start, end, staged)
    parts = [
        _read_edges(accesses, version, start, base, staged),
        _slot_edges(accesses, version, end, base, occupancies),
        _home_edges(accesses, start),
    ]
    before, after, at_source = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    real = (before >= 0) & (after < len(plan))
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
            f"{place(plan, int(accesses.row[at]))}: reads {what} on rank {where}, but {reason}"
        )
    owned = plan.item_owner[accesses.item] == accesses.rank
    pointless = np.flatnonzero(writes & ~partial & (owned | (accesses.slot == HOME)))
    if len(pointless):
        at = pointless[np.argmin(accesses.row[pointless])]
        what, where = thing(plan, accesses, at), int(accesses.rank[at])
        reason = "which owns it" if owned[at] else "without naming a slot for it"
        raise PlanError(
            f"{place(plan, int(accesses.row[at]))}: copies {what} to rank {where}, {reason}"
        )
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
            f"{place(plan, int(accesses.row[at]))}: adds {thing(plan, accesses, at)} at home on "
            f"rank {int(accesses.rank[at])}, which has no home for it; name a slot"
        )
    home = np.where(at_home[start], HOME, accesses.slot[start])[version]
    staged: Bools = (
        accesses.writes & accesses.partial & (accesses.slot != HOME) & (accesses.slot != home)
    )
    return staged


def _check_residents(plan: Plan, accesses: Accesses, version: Ints, start: Ints) -> None:
    """Refuse what should stay resident in another slot than it is in."""
    kept = np.flatnonzero(accesses.row == len(plan))
    if not len(kept):
        return
    inside = accesses.slot[start[version[kept]]]
    moved = kept[inside != accesses.slot[kept]]
    if len(moved):
        at = moved[0]
        raise PlanError(
            f"{place(plan, len(plan))}: expected {thing(plan, accesses, at)} in slot "
            f"{int(accesses.slot[at])} of rank {int(accesses.rank[at])}, where it is in slot "
            f"{int(accesses.slot[start[version[at]]])}"
        )


def _find_occupancies(
    plan: Plan, accesses: Accesses, start: Ints, end: Ints, staged: Bools
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
        needed = f"op {row} itself" if row == user else place(plan, user)
        raise PlanError(
            f"{place(plan, row)}: puts {thing(plan, accesses, taken.access[at + 1])} into slot "
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
    first = np.zeros(len(accesses), bool)
    first[start] = True
    waits = np.flatnonzero(accesses.partial & ~staged & ~first)
    before, after = spans(base[waits], waits - base[waits])
    summed = (accesses.row[before], accesses.row[waits][after], ~accesses.writes[waits][after])
    return tuple(np.concatenate(pair) for pair in zip(plain, summed, strict=True))  # type: ignore[return-value]


def _slot_edges(
    accesses: Accesses,
    version: Ints,
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
    before, which = spans(first, np.maximum(last - first, 0))
    after = taken.first[old + 1][which]
    return accesses.row[before], after, np.zeros(len(before), bool)


def _home_edges(accesses: Accesses, start: Ints) -> EdgeColumns:
    """Waits of a partial result that comes back home for the read that took it away."""
    again = start[accesses.partial[start] & ~accesses.new_key[start]]
    return accesses.row[again - 1], accesses.row[again], np.zeros(len(again), bool)
