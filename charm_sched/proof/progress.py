"""Proof that a plan cannot deadlock under the grouped rule.

The waits form a graph of ops and batches. Program order is tried as a witness first: if all that
a batch waits for lies above its first row, rows only ever wait upwards and nothing can go round.
Otherwise the graph is searched for a cycle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.errors import PlanError
from charm_sched.plans.plan import TRANSFER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from charm_sched.plans.plan import Plan
    from charm_sched.proof.hazards import Hazards


class Batches:
    """The batches of a plan: transfers of one (rank, stream, level).

    Attributes:
        source: Batch of each row's source end; -1 where the row is no transfer.
        destination: Batch of each row's destination end; -1 likewise.
        first: First row of each batch. Batches are numbered by (rank, stream, level).
        last: Last row of each batch.
        follows: Whether a batch comes after the one numbered before it on the same stream.
    """

    def __init__(self, plan: Plan) -> None:
        columns = plan.columns
        moves = np.flatnonzero(columns.op == TRANSFER)
        levels = int(columns.level.max(initial=0)) + 1
        stream = columns.stream[moves].astype(np.int64)
        level = columns.level[moves].astype(np.int64)

        def key(rank: NDArray[np.int32]) -> Ints:
            lane = rank[moves].astype(np.int64) * max(len(plan.streams), 1) + stream
            packed: Ints = lane * levels + level
            return packed

        keys = np.concatenate([key(columns.rank), key(plan.received[0])])
        rows = np.tile(moves, 2)
        order = np.argsort(keys, kind="stable")
        fresh = np.concatenate([[True], keys[order][1:] != keys[order][:-1]])[: len(keys)]
        number = np.empty(len(keys), np.int64)
        number[order] = np.cumsum(fresh) - 1
        starts = np.flatnonzero(fresh)
        distinct = keys[order][fresh]
        self.source = np.full(len(plan), -1)
        self.destination = np.full(len(plan), -1)
        self.source[moves], self.destination[moves] = number[: len(moves)], number[len(moves) :]
        self.first = np.minimum.reduceat(rows[order], starts) if len(starts) else starts
        self.last = np.maximum.reduceat(rows[order], starts) if len(starts) else starts
        lanes = distinct // levels
        self.follows = np.concatenate([[False], lanes[1:] == lanes[:-1]])[: len(distinct)]


def check_progress(plan: Plan, hazards: Hazards) -> None:
    """Check that every op can start under the grouped rule.

    Raises:
        PlanError: Some ops wait for each other; the message lists them.
    """
    batches, edges = Batches(plan), hazards.edges
    waits = np.where(edges.at_source, batches.source[edges.after], batches.destination[edges.after])
    batched = waits >= 0
    upwards = (edges.before[batched] < batches.first[waits[batched]]).all()
    upwards &= (edges.before < edges.after).all()
    follows = np.flatnonzero(batches.follows)
    if upwards and (batches.last[follows - 1] < batches.first[follows]).all():
        return
    _refuse_cycle(plan, hazards, batches, waits)


def _refuse_cycle(plan: Plan, hazards: Hazards, batches: Batches, waits: Ints) -> None:
    """Search the full wait graph (ops, then batches) for a cycle."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count, edges = len(plan), hazards.edges
    loops = np.flatnonzero(edges.before == edges.after)
    if len(loops):
        raise PlanError(f"deadlock: {plan.describe(int(edges.after[loops[0]]))} waits for itself")
    moves = np.flatnonzero(batches.source >= 0)
    follows = np.flatnonzero(batches.follows)
    before, after = [edges.before], [np.where(waits >= 0, count + waits, edges.after)]
    for ends in (batches.source, batches.destination):
        before.append(count + ends[moves])
        after.append(moves)
        # A transfer ends the batch; the next batch of the stream waits for all of it.
        upcoming = np.isin(ends[moves] + 1, follows)
        before.append(moves[upcoming])
        after.append(count + ends[moves][upcoming] + 1)
    queue = np.lexsort((np.arange(count), plan.columns.stream, plan.columns.rank))
    queue = queue[plan.columns.op[queue] != TRANSFER]
    same = (plan.columns.rank[queue[1:]] == plan.columns.rank[queue[:-1]]) & (
        plan.columns.stream[queue[1:]] == plan.columns.stream[queue[:-1]]
    )
    before.append(queue[:-1][same])
    after.append(queue[1:][same])
    i, j = np.concatenate(before), np.concatenate(after)
    size = count + len(batches.first)
    graph = coo_array((np.ones(len(i), np.int8), (i, j)), shape=(size, size)).tocsr()
    number, label = connected_components(graph, directed=True, connection="strong")
    if number == size:
        return
    sizes = np.bincount(label)
    stuck = np.flatnonzero(label[:count] == np.argmax(sizes > 1))
    named = "; ".join(plan.describe(int(row)) for row in stuck[:4])
    more = f" and {len(stuck) - 4} more" if len(stuck) > 4 else ""
    raise PlanError(f"deadlock: these ops wait for each other: {named}{more}")
