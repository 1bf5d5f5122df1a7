"""Planned times message by message: a list schedule of transfers and kernels of all ranks.

Whenever a rank may send and another may receive, the most urgent message between them that is there
starts; whenever a rank computes nothing, it attends what is most urgent. Most urgent is what has
most behind it: the longest chain of messages and kernels that wait for it.

Messages of one tier run on its *lanes*. A message takes a lane at both of its ends, so the messages
of a lane stand in one order on every rank.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from charm_sched.planners.sittings import Desk, Sitting, Work
from charm_sched.planners.wires import Ways, Wires


@dataclass(slots=True, eq=False, kw_only=True)
class Task:
    """Something that is done once, after other tasks.

    Attributes:
        seconds: About how long it takes.
        before: Which tasks have to be over.
        waits: How many of them are not.
        followers: Which tasks wait for it.
        tail: Seconds from its start to the end of the longest chain that it heads.
    """

    seconds: float
    waits: int = 0
    followers: list[Task] = field(default_factory=list)
    tail: float = 0.0

    def follow(self, before: Task) -> None:
        """Wait for another task."""
        before.followers.append(self)


@dataclass(slots=True, eq=False, kw_only=True)
class Message(Task):
    """A message, with its planned time and place.

    Attributes:
        src: Rank that sends.
        dst: Rank that receives.
        depth: Its tier.
        size: Bytes.
        crosses: Depth of the outermost exchange that its pieces go through.
        back: Whether it brings gradients home.
        sub: Its first sub-piece.
        order: Lower goes first among those that are ready; then those with the longer tail.
        claims: Whether its sender keeps a lane for it while its receiver is busy, rather than
            send something of a later class there, which the first number of `order` is.
        lane: Lane of its tier.
        level: Its level there.
        start: Planned start, seconds.
        end: Planned end, seconds.
    """

    src: int
    dst: int
    depth: int
    size: float
    crosses: int = 0
    back: bool = False
    sub: int = 0
    order: tuple[float, ...] = ()
    claims: bool = False
    lane: int = 0
    level: int = 0
    start: float = 0.0
    end: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class Job(Task):
    """Something that a rank attends."""

    rank: int
    work: Work


_Entry: TypeAlias = tuple[tuple[float, ...], float, int, Message]  # most urgent first


class _Tier:
    """The lanes of one tier, and the messages that are ready for them.

    A lane has a digit of the ranks' places in two, and a direction: it carries messages from ranks
    with a 0 there to those with a 1, or the other way. So a rank only sends on a lane or only
    receives, and neither waits for the other.
    """

    def __init__(self, places: Sequence[int], copies: int) -> None:
        """Begin with nothing.

        Args:
            places: Place of each rank among the domains that exchange.
            copies: Lanes of each digit and direction.
        """
        ranks = len(places)
        self._between = [[lanes_between(s, d, copies) for d in places] for s in places]
        lanes = 2 * copies * max(1, max(places, default=0).bit_length())
        self._free = [(1 << lanes) - 1] * ranks
        self._last = [[-1] * lanes for _ in range(ranks)]
        self._to: list[dict[int, list[_Entry]]] = [{} for _ in range(ranks)]
        self._from: list[set[int]] = [set() for _ in range(ranks)]
        self._changed: set[int] = set()
        self._claimed = [0] * ranks  # lanes that a message waits for, a bit each
        self._next: dict[tuple[int, int], Message] = {}

    def put(self, entry: _Entry) -> None:
        """Add a message that is ready."""
        message = entry[3]
        heapq.heappush(self._to[message.src].setdefault(message.dst, []), entry)
        self._from[message.dst].add(message.src)
        self._changed.add(message.src)

    def release(self, message: Message) -> Iterator[Message]:
        """Free the ends of a message that is over, and start what waits for them."""
        for rank in (message.src, message.dst):
            self._free[rank] |= 1 << message.lane
            self._changed.add(rank)
        waiting = self._next.pop((message.dst, message.lane), None)
        if waiting:
            self._occupy(waiting)
            yield waiting

    def start(self) -> Iterator[Message]:
        """Start what can start, the most urgent first.

        What claims a lane keeps it until its receiver is done; otherwise the two ends might never
        be free at once. Claims are made when nothing else of their class can start.
        """
        if not self._changed:
            return
        free, between = self._free, self._between
        pairs = {(s, d) for s in self._changed if free[s] for d in self._to[s]}
        pairs |= {(s, d) for d in self._changed for s in self._from[d] if free[s]}
        self._changed.clear()
        heads = [
            head
            for s, d in pairs
            for head in (self._to[s][d][0],)
            if free[s] & between[s][d] & (-1 if head[3].claims else free[d])
        ]
        heapq.heapify(heads)
        blocked: list[Message] = []
        while heads or blocked:
            if blocked and (not heads or heads[0][0][0] > blocked[0].order[0]):
                for message in blocked:
                    self._claim(message)
                blocked = []
                continue
            message = heapq.heappop(heads)[3]
            src, dst = message.src, message.dst
            lanes = free[src] & free[dst] & between[src][dst]
            if lanes:
                self._take(src, dst, heads)
                message.lane = (lanes & -lanes).bit_length() - 1
                self._occupy(message)
                yield message
            elif message.claims:
                blocked.append(message)

    def _take(self, src: int, dst: int, heads: list[_Entry]) -> None:
        queue = self._to[src][dst]
        heapq.heappop(queue)
        if queue:
            heapq.heappush(heads, queue[0])
        else:
            del self._to[src][dst]
            self._from[dst].remove(src)

    def _claim(self, message: Message) -> None:
        """Let a message be the next on a lane at its receiver, and keep the lane at its sender."""
        src, dst = message.src, message.dst
        lanes = self._free[src] & self._between[src][dst] & ~self._claimed[dst]
        if lanes:
            self._take(src, dst, [])
            message.lane = (lanes & -lanes).bit_length() - 1
            self._next[dst, message.lane] = message
            self._claimed[dst] |= 1 << message.lane
            self._free[src] &= ~(1 << message.lane)

    def _occupy(self, message: Message) -> None:
        src, dst, lane = message.src, message.dst, message.lane
        message.level = 1 + max(self._last[src][lane], self._last[dst][lane])
        self._claimed[dst] &= ~(1 << lane)
        for rank in (src, dst):
            self._free[rank] &= ~(1 << lane)
            self._last[rank][lane] = message.level


class Dispatcher:
    """All ranks and links while tasks run."""

    def __init__(
        self,
        ways: Ways,
        desks: Sequence[Desk],
        places: Sequence[Sequence[int]],
        copies: Sequence[int],
        *,
        wait: float = 0.0,
    ) -> None:
        """Prepare a run.

        Args:
            ways: What messages cross.
            desks: What each rank attends with.
            places: Place of each rank among the domains that exchange, per tier.
            copies: Lanes of each tier's digits and directions.
            wait: What happens within so many seconds is handled together: what ends a little later
                than something else is there when its successor is chosen.
        """
        self._wait = wait
        self._ways, self._wires, self._desks = ways, Wires(ways), desks
        self._tiers = [_Tier(of, count) for of, count in zip(places, copies, strict=True)]
        self._jobs: dict[int, Job] = {}
        self._events: list[tuple[float, int, str, int]] = []
        self._count = itertools.count()
        self._due: dict[int, float] = {}
        self._restless: set[int] = set()  # ranks that may have something to begin
        self._now = 0.0

    def run(self, tasks: Sequence[Task]) -> list[list[Sitting]]:
        """Set lane, level, start and end of all messages.

        Returns:
            What each rank attends, in order.
        """
        self._tasks = tasks
        self._numbers = {id(task): number for number, task in enumerate(tasks)}
        set_tails(tasks)
        self._sittings: list[list[Sitting]] = [[] for _ in self._desks]
        self._sitting: list[list[Task]] = [[] for _ in self._desks]
        for task in tasks:
            task.waits = 0
        for follower in itertools.chain.from_iterable(task.followers for task in tasks):
            follower.waits += 1
        self._job_of = {id(task.work): task for task in tasks if isinstance(task, Job)}
        for task in tasks:
            if not task.waits:
                self._offer(task)
        self._start_all()
        while self._events:
            until = self._events[0][0] + self._wait
            while self._events and self._events[0][0] <= until:
                self._now, _, kind, number = heapq.heappop(self._events)
                self._happen(kind, number)
            self._start_all()
        return self._sittings

    def _at(self, time: float, kind: str, number: int) -> None:
        heapq.heappush(self._events, (time, next(self._count), kind, number))

    def _happen(self, kind: str, number: int) -> None:
        if kind == "flow":
            message = self._message(number)
            self._wires.begin(number, self._ways(message.src, message.dst), message.size, self._now)
        elif kind == "attended":
            for task in self._sitting[number]:
                self._finish(task)
            self._sitting[number] = []
            self._restless.add(number)
        elif self._due.get(number) == self._now:
            message = self._message(number)
            del self._due[number]
            self._wires.end(number, self._ways(message.src, message.dst))
            message.end = self._now
            for waiting in self._tiers[message.depth].release(message):
                self._begin(waiting)
            self._finish(message)

    def _begin(self, message: Message) -> None:
        message.start = self._now
        begins = self._now + self._ways(message.src, message.dst).latency
        self._at(begins, "flow", self._numbers[id(message)])

    def _message(self, number: int) -> Message:
        message = self._tasks[number]
        assert isinstance(message, Message)
        return message

    def _finish(self, task: Task) -> None:
        for follower in task.followers:
            follower.waits -= 1
            if not follower.waits:
                self._offer(follower)

    def _offer(self, task: Task) -> None:
        if isinstance(task, Job):
            task.work.ready = self._now
            self._desks[task.rank].put(task.work)
            self._restless.add(task.rank)
        elif isinstance(task, Message):
            self._tiers[task.depth].put((task.order, -task.tail, self._numbers[id(task)], task))

    def _start_all(self) -> None:
        for tier in self._tiers:
            for message in tier.start():
                self._begin(message)
        for rank in sorted(self._restless):
            desk = self._desks[rank]
            if desk and not self._sitting[rank]:
                sitting, works = desk.take(self._now)
                self._sittings[rank].append(sitting)
                self._sitting[rank] = [self._job_of[id(work)] for work in works]
                self._at(sitting.end, "attended", rank)
        self._restless.clear()
        for number, due in self._wires.share(self._now):
            self._due[number] = due
            self._at(due, "moved", number)


def lanes_between(src: int, dst: int, copies: int) -> int:
    """Give the lanes that carry messages from one place to another, a bit each."""
    found, lane = 0, 0
    while src != dst:
        if (src ^ dst) & 1:
            found |= ((1 << copies) - 1) << (lane + copies * (src & 1))
        src, dst, lane = src >> 1, dst >> 1, lane + 2 * copies
    return found


def set_tails(tasks: Sequence[Task]) -> None:
    """Set the tail of each task."""
    waits = {id(task): len(task.followers) for task in tasks}
    before: dict[int, list[Task]] = {}
    for task in tasks:
        for follower in task.followers:
            before.setdefault(id(follower), []).append(task)
    open_tasks = [task for task in tasks if not task.followers]
    while open_tasks:
        task = open_tasks.pop()
        task.tail = task.seconds + max((each.tail for each in task.followers), default=0.0)
        for earlier in before.get(id(task), ()):
            waits[id(earlier)] -= 1
            if not waits[id(earlier)]:
                open_tasks.append(earlier)


__all__ = ["Dispatcher", "Job", "Message", "Task", "set_tails"]
