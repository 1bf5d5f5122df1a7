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

from charm_sched.arrays import Bools, Ints, spans
from charm_sched.errors import PlanError
from charm_sched.masks.areas import attend_pairs, row_set_areas, shared_heads
from charm_sched.masks.rectangles import classes_of, overlapping
from charm_sched.plans.items import KINDS, ItemTable
from charm_sched.plans.plan import Plan
from charm_sched.plans.structure import check_structure
from charm_sched.proof.accesses import Accesses, place, thing
from charm_sched.proof.hazards import Hazards, find_hazards
from charm_sched.proof.memory import peak_bytes
from charm_sched.proof.progress import check_progress

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


def check_coverage(plan: Plan) -> None:
    """Check that every unmasked (query, key, head) is attended exactly once.

    Raises:
        PlanError: One is attended twice or never.
    """
    rows, query, key = attend_pairs(plan)
    args, items, work = plan.columns.arg, plan.items, plan.workload
    q_items: Ints = args[query]
    k_items: Ints = args[key]
    own: Ints = np.zeros(0, np.int64)
    if plan.symmetry:
        q_items, k_items, own = _at_owners(plan, q_items, k_items)
    q_sets, k_sets = items.rows[q_items], items.rows[k_items]
    q_classes = classes_of(plan, np.concatenate([q_sets, own]))
    k_classes = classes_of(plan, k_sets)
    low, high = shared_heads(plan, q_items, k_items)
    cuts = np.unique(np.concatenate([[0, work.heads], low, high]))
    needed = _needed(plan, q_classes.rows, k_classes.rows)
    if plan.symmetry:
        ptr, members = q_classes.of
        inside, _ = spans(ptr[own], np.diff(ptr)[own])
        needed[np.setdiff1d(np.arange(len(needed)), members[inside])] = False
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


def _at_owners(plan: Plan, queries: Ints, keys: Ints) -> tuple[Ints, Ints, Ints]:
    """Name queries and keys as the representatives among the owners of the queries see them.

    Returns:
        Queries, keys, and the row sets that representatives own.
    """
    assert plan.symmetry
    owners = plan.item_owner[queries].astype(np.int64)
    own = plan.names.shards(plan.symmetry.representatives())
    names = plan.names
    return names.moved_back(queries, owners), names.moved_back(keys, owners), own


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
    inner, pair = spans(np.zeros_like(total), total)
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
            f"{place(plan, int(accesses.row[at]))}: {thing(plan, accesses, at)} stays on rank "
            f"{rank}, but {why}"
        )
    at = np.flatnonzero(accesses.partial & accesses.new_key)
    clash = overlapping(plan, accesses.item[at], _groups(accesses, at))
    if clash is not None:
        first, second = at[clash[0]], at[clash[1]]
        raise PlanError(
            f"{place(plan, int(accesses.row[second]))}: {thing(plan, accesses, second)} overlaps "
            f"{thing(plan, accesses, first)} on rank {int(accesses.rank[first])}; partial results "
            "of one kind and part must be equal or disjoint"
        )


def _groups(accesses: Accesses, at: Ints) -> Ints:
    """Number the (rank, kind, part) of accesses."""
    rank, kind, part = accesses.rank[at], accesses.kind[at], accesses.part[at]
    return (rank * len(KINDS) + kind) * (int(part.max(initial=0)) + 1) + part
