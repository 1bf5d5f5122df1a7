"""NCCL's rules on a plan, without running it: what would hang on a device hangs here, by name.

Each rank hands its work over in one order and never waits. Then

* a group (the batch of one level) starts when the group before it on its communicator has ended and
  all that it waits for has ended; it ends when every one of its transfers has moved, as a whole;
* a transfer moves when the groups of both its ends have started: a send without its receive waits;
* transfers of one pair of ranks on one communicator match in the order they were handed over;
* a kernel starts when the one before it on its stream, and all that it waits for, has ended;
* with one connection to the device nothing starts before all that was handed over earlier has
  started (``CUDA_DEVICE_MAX_CONNECTIONS=1``).

Sources: NCCL user guide ("Group Calls", "Point-to-point communication", "Using multiple NCCL
communicators concurrently") and pytorch's ProcessGroupNCCL, eager mode.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from charm_sched.plans.plan import Plan
from charm_sched.proof.hazards import find_hazards
from charm_sched.runtime.ordering import Batch, issue_orders

Place: TypeAlias = "tuple[int, int]"  # rank, position in its queue


class HangError(Exception):
    """Nothing can go on, though not all is done; the message names what waits for what."""


class MismatchError(Exception):
    """A send meets the receive of another transfer, or something is handed over too early."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a rank hands over.

    Attributes:
        queue: Communicator of a group, stream of a kernel; each runs its work in order.
        name: For messages.
        waits: Positions of earlier work of the rank that must have ended.
        sends: (peer, row) of each transfer that leaves.
        receives: (peer, row) of each transfer that arrives.
    """

    queue: str
    name: str
    waits: tuple[int, ...] = ()
    sends: tuple[tuple[int, int], ...] = ()
    receives: tuple[tuple[int, int], ...] = ()


def queues_of(plan: Plan) -> list[list[Work]]:
    """Give what every rank hands over for a plan, in the order that the runtime chooses."""
    hazards = find_hazards(plan)
    orders = issue_orders(plan, range(plan.num_ranks), hazards)
    columns, edges = plan.columns, hazards.edges
    ends = _waits_of_ends(plan, edges.before.tolist(), edges.after.tolist(), edges.at_source)
    found = []
    for rank, order in enumerate(orders):
        position = {
            row: at
            for at, work in enumerate(order)
            for row in (work.rows if isinstance(work, Batch) else (work,))
        }
        listed = []
        for work in order:
            rows = work.rows if isinstance(work, Batch) else (work,)
            waits = sorted({position[before] for row in rows for before in ends[rank, row]})
            queue = plan.streams[int(columns.stream[rows[0]])]
            if not isinstance(work, Batch):
                listed.append(Work(f"stream {queue}", plan.describe(work), tuple(waits)))
                continue
            sends = [(int(columns.peer[r]), r) for r in rows if columns.rank[r] == rank]
            receives = [(int(columns.rank[r]), r) for r in rows if columns.peer[r] == rank]
            name = f"level {work.level} of {queue} ({', '.join(map(plan.describe, rows[:2]))})"
            listed.append(Work(f"comm {queue}", name, tuple(waits), tuple(sends), tuple(receives)))
        found.append(listed)
    return found


def _waits_of_ends(
    plan: Plan, before: Sequence[int], after: Sequence[int], at_source: Sequence[bool]
) -> dict[tuple[int, int], set[int]]:
    """Give, for each rank and row, the rows that it waits for there."""
    columns, found = plan.columns, defaultdict[tuple[int, int], set[int]](set)
    for one, other, source in zip(before, after, at_source, strict=True):
        arrives = columns.peer[other] >= 0 and not source
        rank = int(columns.peer[other] if arrives else columns.rank[other])
        found[rank, other].add(one)
    return found


class Machine:
    """The devices of all ranks; ``connections`` of 1 shares one hardware queue, 0 none."""

    def __init__(self, queues: Sequence[Sequence[Work]], connections: int = 0) -> None:
        self._queues, self._connections = queues, connections
        self._started: set[Place] = set()
        self._ended: set[Place] = set()
        self._before: dict[Place, Place] = {}
        self._others: dict[Place, list[Place]] = defaultdict(list)
        ends: dict[tuple[str, int, int, bool], list[tuple[Place, int]]] = defaultdict(list)
        for rank, queue in enumerate(queues):
            last: dict[str, Place] = {}
            for at, work in enumerate(queue):
                if any(wait >= at for wait in work.waits):
                    raise MismatchError(f"rank {rank}: {work.name} is handed over before its input")
                if work.queue in last:
                    self._before[rank, at] = last[work.queue]
                last[work.queue] = (rank, at)
                for peer, row in work.sends:
                    ends[work.queue, rank, peer, True].append(((rank, at), row))
                for peer, row in work.receives:
                    ends[work.queue, peer, rank, False].append(((rank, at), row))
        for comm, source, target, sends in list(ends):
            there = ends.get((comm, source, target, not sends), [])
            self._match(ends[comm, source, target, sends], there)

    def _match(self, here: list[tuple[Place, int]], there: list[tuple[Place, int]]) -> None:
        """Pair the ends of a pair of ranks on a communicator, in the order of both."""
        for number, (place, row) in enumerate(here):
            if number >= len(there):
                raise MismatchError(f"{self._name(place)} has no other end")
            other, meant = there[number]
            if row != meant:
                raise MismatchError(f"{self._name(place)} meets {self._name(other)}")
            self._others[place].append(other)

    def run(self) -> None:
        """Run everything to its end.

        Raises:
            HangError: Nothing can go on.
        """
        todo = [(rank, at) for rank, queue in enumerate(self._queues) for at in range(len(queue))]
        while todo:
            done = len(self._started) + len(self._ended)
            for place in todo:
                if place not in self._started and self._may_start(place):
                    self._started.add(place)
                if place in self._started and self._started.issuperset(self._others[place]):
                    self._ended.add(place)
            if done == len(self._started) + len(self._ended):
                raise HangError(self._explained(todo))
            todo = [place for place in todo if place not in self._ended]

    def _may_start(self, place: Place) -> bool:
        rank, at = place
        before = self._before.get(place)
        if before is not None and before not in self._ended:
            return False
        if self._connections == 1 and at and (rank, at - 1) not in self._started:
            return False
        return all((rank, wait) in self._ended for wait in self._queues[rank][at].waits)

    def _explained(self, left: Sequence[Place]) -> str:
        heads: dict[tuple[int, str], str] = {}
        for place in left:
            what = "under way" if place in self._started else "waiting"
            queue = self._queues[place[0]][place[1]].queue
            heads.setdefault((place[0], queue), f"{self._name(place)} is {what}")
        return "; ".join(heads.values())

    def _name(self, place: Place) -> str:
        return f"rank {place[0]}: {self._queues[place[0]][place[1]].name}"


def check(plan: Plan) -> None:
    """Run a plan under NCCL's rules, with many connections to the device and with one."""
    queues = queues_of(plan)
    for connections in (0, 1):
        Machine(queues, connections).run()
