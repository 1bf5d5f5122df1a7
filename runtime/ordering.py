"""The order in which a rank's host hands work to a device, for backends that queue it.

A device takes what it is given in order: transfers of one communicator run one batch after the
other, and where streams share a hardware queue, nothing starts before what was handed over earlier
has started. So every rank hands over its work in one order that all ranks agree on: a topological
order of the whole plan under the ``grouped`` rule (`charm_sched.proof.waits`). Then the first thing
in that order that is not done can always start, whatever is queued behind it, and nothing hangs.

The order is that of rows wherever rows only wait upwards, as in all plans of this package.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from charm_sched.errors import PlanError
from charm_sched.plans.plan import TRANSFER, Plan, program
from charm_sched.proof.hazards import Hazards, find_hazards
from charm_sched.proof.progress import Batches
from charm_sched.proof.waits import find_waits

if TYPE_CHECKING:
    from charm_sched.arrays import Ints


@dataclass(frozen=True, slots=True)
class Batch:
    """The transfers of one (rank, stream, level), handed over as one group.

    Attributes:
        stream: Number of the stream.
        level: The level.
        rows: Rows of the plan, ascending; both those that leave and those that arrive.
    """

    stream: int
    level: int
    rows: tuple[int, ...]


Work: TypeAlias = "int | Batch"
"""A row that computes, or a batch."""


def issue_order(plan: Plan, rank: int, hazards: Hazards | None = None) -> tuple[Work, ...]:
    """Give a rank's work in the order in which it is handed over.

    Args:
        plan: A verified plan.
        rank: The rank.
        hazards: The plan's hazards, where known already.

    Raises:
        PlanError: The plan cannot run under the grouped rule.
    """
    return issue_orders(plan, (rank,), hazards)[0]


def issue_orders(
    plan: Plan, ranks: Sequence[int], hazards: Hazards | None = None
) -> list[tuple[Work, ...]]:
    """Give the work of several ranks; see `issue_order`."""
    order = _Order(plan, hazards or find_hazards(plan))
    return [order.of(rank) for rank in ranks]


class _Order:
    """Where the rows and the batches of a plan stand in the common order."""

    def __init__(self, plan: Plan, hazards: Hazards) -> None:
        self._plan = plan
        self._batches = Batches(plan)
        if _upwards(hazards, self._batches):
            self._rows: Ints = 2 * np.arange(len(plan)) + 1
            self._gates: Ints = 2 * self._batches.first
        else:
            places = _sorted_places(plan, hazards, self._batches.first)
            self._rows, self._gates = places[: len(plan)], places[len(plan) :]

    def of(self, rank: int) -> tuple[Work, ...]:
        columns, gates = self._plan.columns, self._batches
        batches: dict[int, list[int]] = defaultdict(list)
        found: list[tuple[int, Work]] = []
        for row in program(self._plan, rank).tolist():
            if columns.op[row] != TRANSFER:
                found.append((int(self._rows[row]), row))
                continue
            ends = gates.source if columns.rank[row] == rank else gates.destination
            batches[int(ends[row])].append(row)
        for number, rows in batches.items():
            stream, level = int(columns.stream[rows[0]]), int(columns.level[rows[0]])
            found.append((int(self._gates[number]), Batch(stream, level, tuple(rows))))
        found.sort(key=itemgetter(0))
        return tuple(work for _, work in found)


def _upwards(hazards: Hazards, batches: Batches) -> bool:
    """Say whether all that anything waits for, as a whole batch, lies above it."""
    edges = hazards.edges
    ends = np.where(edges.at_source, batches.source[edges.after], batches.destination[edges.after])
    batched = ends >= 0
    above = bool((edges.before[batched] < batches.first[ends[batched]]).all())
    follows = np.flatnonzero(batches.follows)
    return above and bool((batches.last[follows - 1] < batches.first[follows]).all())


def _sorted_places(plan: Plan, hazards: Hazards, first: Ints) -> Ints:
    """Place rows, then batches, so that nothing waits for what is placed behind it."""
    waits = find_waits(plan, "grouped", hazards.edges)
    key = np.concatenate([2 * np.arange(len(plan)) + 1, 2 * first]).tolist()
    left = waits.count.tolist()
    ready = [(key[node], node) for node, count in enumerate(left) if not count]
    heapq.heapify(ready)
    places = np.full(len(waits), -1)
    place = 0
    while ready:
        _, node = heapq.heappop(ready)
        places[node], place = place, place + 1
        for after in waits.after[waits.ptr[node] : waits.ptr[node + 1]].tolist():
            left[after] -= 1
            if not left[after]:
                heapq.heappush(ready, (key[after], after))
    if place < len(waits):
        row = int(np.flatnonzero(places[: len(plan)] < 0)[0])
        raise PlanError(f"deadlock: {plan.describe(row)} waits for itself through others")
    return places


__all__ = ["Batch", "Work", "issue_order", "issue_orders"]
