"""Every wait of a plan, for one rule of transport: what `hazards` derives, and the queues.

Nodes are the operations, by row, and behind them one *gate* per batch (rank, stream, level). A gate
opens when the previous batch of its stream on its rank has ended; a transfer waits for the gates of
its two ends, an attend or a merge for the one before it on its (rank, compute stream). The two
rules differ in one thing: under ``grouped`` what an end of a transfer waits for (an input, a slot)
holds its gate and so the whole batch, under ``free`` the transfer alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.errors import PlanError
from charm_sched.plans.plan import TRANSFER
from charm_sched.proof.hazards import find_hazards

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from charm_sched.plans.plan import Plan
    from charm_sched.proof.hazards import Edges

    Ints = NDArray[np.int64]

RULES = ("grouped", "free")


@dataclass(frozen=True, eq=False, kw_only=True)
class Waits:
    """A directed graph over operations and gates: each node waits for all that point at it.

    Attributes:
        num_ops: Nodes below this are rows of the plan, the others are gates.
        ptr: What waits for node ``i`` is ``after[ptr[i]:ptr[i + 1]]``, int64 ``[nodes + 1]``.
        after: Waiting nodes, int32, without duplicates within one node.
        count: How many nodes each node waits for, int32 ``[nodes]``.
    """

    num_ops: int
    ptr: Ints
    after: NDArray[np.int32]
    count: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.count)

    def reversed(self) -> tuple[Ints, Ints]:
        """Give ``(ptr, before)``: node ``i`` waits for ``before[ptr[i]:ptr[i + 1]]``."""
        before = np.repeat(np.arange(len(self)), np.diff(self.ptr))
        order = np.argsort(self.after, kind="stable")
        return _offsets(self.count), before[order]


def find_waits(plan: Plan, rule: str = "grouped", edges: Edges | None = None) -> Waits:
    """Derive all waits of a plan.

    Args:
        plan: What is done.
        rule: ``grouped`` or ``free``.
        edges: What follows from items and slots, where that is known already.

    Raises:
        PlanError: The rule is unknown, or the items and slots of the plan contradict themselves.
    """
    if rule not in RULES:
        raise PlanError(f"rule: expected {' or '.join(RULES)}, found {rule!r}")
    num_ops, columns = len(plan), plan.columns
    moves = np.flatnonzero(columns.op == TRANSFER)
    source, target, follows = gates(plan, moves)
    source, target = source + num_ops, target + num_ops
    nodes = num_ops + len(follows)
    if edges is None:
        edges = find_hazards(plan).edges
    after = edges.after
    if rule == "grouped" and len(moves):
        place = np.cumsum(columns.op == TRANSFER) - 1
        gate = np.where(edges.at_source, source[place[after]], target[place[after]])
        after = np.where(columns.op[after] == TRANSFER, gate, after)
    ends, rows = np.concatenate([source, target]), np.concatenate([moves, moves])
    next_gate = np.concatenate([follows, [False]])[ends - num_ops + 1]
    computing = _queue(plan)
    return _graph(
        num_ops,
        nodes,
        np.concatenate([edges.before, ends, rows[next_gate], computing[0]]),
        np.concatenate([after, rows, ends[next_gate] + 1, computing[1]]),
    )


def gates(plan: Plan, moves: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Number the batches by (rank, stream, level), in this order.

    Args:
        plan: What is done.
        moves: The rows of its transfers.

    Returns:
        The batch of each transfer's source end and destination end, and for each batch whether the
        one numbered before it is the previous batch of the same stream on the same rank.
    """
    columns, streams = plan.columns, len(plan.streams)
    stream, level = columns.stream[moves].astype(np.int64), columns.level[moves].astype(np.int64)
    levels = int(level.max(initial=0)) + 1
    ranks = np.concatenate([columns.rank[moves], plan.received[0][moves]]).astype(np.int64)
    keys = (ranks * streams + np.tile(stream, 2)) * levels + np.tile(level, 2)
    batches, where = np.unique(keys, return_inverse=True)
    lanes = batches // levels
    follows = np.concatenate([[False], lanes[1:] == lanes[:-1]])[: len(batches)]
    where = where.reshape(-1)
    return where[: len(moves)], where[len(moves) :], follows


def _queue(plan: Plan) -> tuple[Ints, Ints]:
    """Pair each attend and merge with the next one on its (rank, stream)."""
    columns = plan.columns
    rows = np.flatnonzero(columns.op != TRANSFER)
    lanes = columns.rank[rows].astype(np.int64) * len(plan.streams) + columns.stream[rows]
    order = np.argsort(lanes, kind="stable")
    rows, lanes = rows[order], lanes[order]
    same = lanes[1:] == lanes[:-1]
    return rows[:-1][same], rows[1:][same]


def _graph(num_ops: int, nodes: int, before: Ints, after: Ints) -> Waits:
    shift = max(nodes - 1, 1).bit_length()
    packed = np.sort((before << shift) | after)
    packed = packed[np.concatenate([[True], packed[1:] != packed[:-1]])[: len(packed)]]
    before, after = packed >> shift, packed & ((1 << shift) - 1)
    return Waits(
        num_ops=num_ops,
        ptr=_offsets(np.bincount(before, minlength=nodes)),
        after=after.astype(np.int32),
        count=np.bincount(after, minlength=nodes).astype(np.int32),
    )


def _offsets(counts: NDArray[np.int64] | NDArray[np.int32]) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


__all__ = ["RULES", "Waits", "find_waits", "gates"]
