"""Planned times of messages: a list schedule over the lanes of all tiers.

The times only decide orders and slots; a plan stays exact whatever they are. A *passage* is one
message of every rank that takes part, all alike. Each tier has one or more *lanes*, streams that
carry one passage after the other; whenever a lane is free it takes the first passage that is ready.
Passages under way at the same time share their tier's bandwidth, and that of links which other
tiers' routes cross too.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the messages of a tier go when all ranks send at once.

    Attributes:
        bandwidth: Bytes per second of each rank, while all of a domain send and receive.
        latency: Seconds of one message.
        alone: Bytes per second of a rank that sends alone.
        common: Per outer tier, bytes per second of the narrowest link that both tiers' routes
            cross; infinite where there is none.
    """

    bandwidth: float
    latency: float
    alone: float
    common: tuple[float, ...] = ()

    def end(self, start: float, size: float) -> float:
        """Give the planned end of a message of ``size`` bytes that nothing else disturbs."""
        return start + self.latency + size / self.bandwidth


@dataclass(slots=True, eq=False, kw_only=True)
class Passage:
    """A message of every rank that takes part, with its planned time.

    Attributes:
        depth: Its tier.
        size: Bytes.
        order: Lower goes first among those that are ready.
        after: What has to end before.
        ready: When it may start at the earliest, seconds.
        lane: Lane of its tier.
        level: Number on its lane.
        start: Planned start, seconds.
        end: Planned end, seconds.
    """

    depth: int
    size: float = 0.0
    order: tuple[float, ...] = ()
    after: list[Passage] = field(default_factory=list)
    ready: float = 0.0
    lane: int = 0
    level: int = 0
    start: float = 0.0
    end: float = 0.0


class Lanes:
    """The lanes of all tiers while passages run over them."""

    def __init__(self, paces: Sequence[Pace], lanes: Sequence[int]) -> None:
        self._paces = paces
        self._free = [deque(range(count)) for count in lanes]
        self._levels = [[0] * count for count in lanes]
        self._ready: list[list[tuple[tuple[float, ...], float, int, Passage]]] = [[] for _ in lanes]
        self._delayed: list[tuple[float, int, Passage]] = []  # in their latency
        self._flows: list[list[tuple[float, int, Passage]]] = [[] for _ in lanes]
        self._served = [0.0] * len(lanes)  # bytes that each flow of a tier got since the start
        self._rates: dict[tuple[int, ...], list[float]] = {}
        self._now = 0.0
        self._count = itertools.count()

    def run(self, passages: Sequence[Passage]) -> None:
        """Set lane, level, start and end of all passages."""
        waits = {id(passage): len(passage.after) for passage in passages}
        followers: dict[int, list[Passage]] = {}
        for passage in passages:
            for before in passage.after:
                followers.setdefault(id(before), []).append(passage)
        upcoming = [(p.ready, next(self._count), p) for p in passages if not p.after]
        heapq.heapify(upcoming)
        while True:
            while upcoming and upcoming[0][0] <= self._now:
                passage = heapq.heappop(upcoming)[2]
                entry = (passage.order, self._now, next(self._count), passage)
                heapq.heappush(self._ready[passage.depth], entry)
            self._fill_lanes()
            event = min(self._next_event(), upcoming[0][0] if upcoming else float("inf"))
            if event == float("inf"):
                return
            for passage in self._advance(event):
                for follower in followers.get(id(passage), ()):
                    waits[id(follower)] -= 1
                    if not waits[id(follower)]:
                        ready = max(self._now, follower.ready)
                        heapq.heappush(upcoming, (ready, next(self._count), follower))

    def _fill_lanes(self) -> None:
        for depth, (free, ready) in enumerate(zip(self._free, self._ready, strict=True)):
            while free and ready:
                passage, lane = heapq.heappop(ready)[3], free.popleft()
                passage.lane, passage.level = lane, self._levels[depth][lane]
                self._levels[depth][lane] += 1
                passage.start = self._now
                begins = self._now + self._paces[depth].latency
                heapq.heappush(self._delayed, (begins, next(self._count), passage))

    def _next_event(self) -> float:
        """Give when the next flow begins or ends."""
        event = self._delayed[0][0] if self._delayed else float("inf")
        for depth, rate in enumerate(self._shares()):
            if self._flows[depth]:
                left = max(self._flows[depth][0][0] - self._served[depth], 0.0)
                event = min(event, self._now + left / rate)
        return event

    def _advance(self, event: float) -> list[Passage]:
        """Let time pass; give the passages that end."""
        ended = []
        for depth, rate in enumerate(self._shares()):
            flows = self._flows[depth]
            if not flows:
                continue
            due = self._now + max(flows[0][0] - self._served[depth], 0.0) / rate
            self._served[depth] += rate * (event - self._now)
            if due <= event:
                self._served[depth] = max(self._served[depth], flows[0][0])
            while flows and flows[0][0] <= self._served[depth] * (1 + 1e-12):
                passage = heapq.heappop(flows)[2]
                passage.end = event
                self._free[depth].append(passage.lane)
                ended.append(passage)
        self._now = event
        while self._delayed and self._delayed[0][0] <= event:
            _, number, passage = heapq.heappop(self._delayed)
            target = self._served[passage.depth] + passage.size
            heapq.heappush(self._flows[passage.depth], (target, number, passage))
        return ended

    def _shares(self) -> list[float]:
        """Give the rate of one flow of each tier."""
        counts = tuple(map(len, self._flows))
        if counts not in self._rates:
            self._rates[counts] = fair_shares(self._paces, counts)
        return self._rates[counts]


def fair_shares(paces: Sequence[Pace], counts: Sequence[int]) -> list[float]:
    """Give the max-min fair rate of one flow of each tier, with ``counts`` flows under way."""
    limits = [(pace.bandwidth, {depth}) for depth, pace in enumerate(paces)]
    limits += [
        (width, {outer, depth})
        for depth, pace in enumerate(paces)
        for outer, width in enumerate(pace.common)
        if width < float("inf")
    ]
    rates = [float("inf")] * len(paces)
    waiting = {depth for depth, count in enumerate(counts) if count}
    while waiting:
        shares = []
        for width, users in limits:
            open_users = users & waiting
            if open_users:
                spent = sum(counts[d] * rates[d] for d in users - waiting if counts[d])
                share = max(width - spent, width / 100) / sum(counts[d] for d in open_users)
                shares.append((share, sorted(open_users)))
        share, fixed = min(shares)
        for depth in fixed:
            rates[depth] = share
        waiting -= set(fixed)
    return rates


def lock_together(passages: Sequence[Passage], num_tiers: int) -> None:
    """Put the n-th passages of all tiers into one level that ends before the next begins."""
    queues = [
        deque(sorted((p for p in passages if p.depth == depth), key=lambda p: p.start))
        for depth in range(num_tiers)
    ]
    done: set[int] = set()
    level, clock = 0, 0.0
    while any(queues):
        taken = [
            queue.popleft()
            for queue in queues
            if queue and done.issuperset(map(id, queue[0].after))
        ]
        start = max([clock, *(passage.ready for passage in taken)])
        clock = start + max(passage.end - passage.start for passage in taken)
        for passage in taken:
            passage.lane, passage.level, passage.start, passage.end = 0, level, start, clock
        done.update(map(id, taken))
        level += 1


__all__ = ["Lanes", "Pace", "Passage", "fair_shares", "lock_together"]
