"""Planned times: when lines run, in which order a rank attends, and which slots it needs when.

The times only decide orders and slots; a plan stays exact whatever they are. They come from one
pace per tier and the undisturbed speed of each device, without contention.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from charm_sched.arrays import Bools
from charm_sched.planners.hierarchy import Line, Path


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast one message of a tier goes when all ranks send at once.

    Attributes:
        bandwidth: Bytes per second.
        latency: Seconds.
        beside: Per outer tier, the bytes per second that are left while that tier is busy too.
    """

    bandwidth: float
    latency: float
    beside: tuple[float, ...] = ()

    def end(self, start: float, size: float, busy: Sequence[float] = ()) -> float:
        """Give the planned end of a message of ``size`` bytes.

        Args:
            start: When it starts, seconds.
            size: Bytes.
            busy: Until when each outer tier is busy, seconds.
        """
        now = start + self.latency
        for until in sorted(set(busy)):
            if until <= now:
                continue
            left = [rate for rate, end in zip(self.beside, busy, strict=False) if end > now]
            rate = min([self.bandwidth, *left])
            if now + size / rate <= until:
                return now + size / rate
            size -= (until - now) * rate
            now = until
        return now + size / self.bandwidth


@dataclass(slots=True, eq=False, kw_only=True)
class Step:
    """One line for one sub-piece, with its planned time.

    Attributes:
        line: Who sends what to whom.
        sub: Number of the sub-piece.
        receives: Which ranks take part as receivers, ``[ranks]``.
        size: Bytes of the largest message.
        level: Level on its stream.
        start: Planned start, seconds.
        end: Planned end, seconds.
    """

    line: Line
    sub: int
    receives: Bools
    size: int
    level: int = 0
    start: float = 0.0
    end: float = 0.0


def pace_exchange(
    steps: Sequence[Step], paces: Sequence[Pace], *, levels: bool, decouple: bool
) -> None:
    """Order the steps of every tier, and give them levels and planned times.

    Args:
        steps: All steps; times and levels are set here.
        paces: Pace of each depth.
        levels: One round per level; otherwise all rounds of one held piece share a level.
        decouple: A stream per tier; otherwise level ``n + 1`` of all tiers waits for level ``n``.
    """
    arrival: dict[tuple[Path, int], float] = {}
    queues: list[list[Step]] = []
    busy: list[float] = []
    for depth, pace in enumerate(paces):
        queue = [step for step in steps if step.line.depth == depth]
        queue.sort(key=lambda step: _readiness(step, arrival))
        clock, level, before, begin = 0.0, -1, None, 0.0
        for step in queue:
            source = (step.line.held, step.sub)
            if levels or source != before:
                level, before = level + 1, source
                begin = clock = max(clock, arrival.get(source, 0.0))
            step.level, step.start = level, begin
            clock = step.end = pace.end(clock, step.size, busy)
            arrival[step.line.got, step.sub] = step.end
        queues.append(queue)
        busy.append(clock)
    if not decouple:
        _lock_together(queues)


def _readiness(step: Step, arrival: dict[tuple[Path, int], float]) -> tuple[float, ...]:
    """Sort own pieces first (rounds outside, sub-pieces inside), then others as they arrive."""
    there = arrival.get((step.line.held, step.sub), 0.0)
    got = step.line.got[-1]
    if not step.line.held:
        return (there, got[1], got[2], step.sub)
    return (there, step.sub, got[1], got[2])


def _lock_together(queues: list[list[Step]]) -> None:
    """Put the n-th steps of all tiers into one level that ends before the next begins."""
    arrived: dict[tuple[Path, int], int] = {}
    heads = [0] * len(queues)
    level, clock = 0, 0.0
    while any(head < len(queue) for head, queue in zip(heads, queues, strict=True)):
        taken = []
        for depth, queue in enumerate(queues):
            if heads[depth] == len(queue):
                continue
            step = queue[heads[depth]]
            if step.line.held and arrived.get((step.line.held, step.sub), level) >= level:
                continue
            heads[depth] += 1
            taken.append(step)
        end = clock + max(step.end - step.start for step in taken)
        for step in taken:
            arrived[step.line.got, step.sub] = level
            step.level, step.start, step.end = level, clock, end
        level, clock = level + 1, end


@dataclass(slots=True, eq=False, kw_only=True)
class Work:
    """Something a rank can attend to.

    Attributes:
        number: Index of the step that brings it, or ``-1 - sub`` for an own sub-piece.
        ready: Planned arrival, seconds.
        seconds: Time of its share of a kernel, without the overhead of a call.
        crosses: Whether it comes from outside the innermost domain.
        urgency: Lower goes first among what is there.
    """

    number: int
    ready: float
    seconds: float
    crosses: bool
    urgency: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Sitting:
    """One attend: what it takes together, and when."""

    numbers: list[int] = field(default_factory=list)
    crosses: bool = False
    start: float = 0.0
    end: float = 0.0


def order_attends(
    work: Iterable[Work], *, overhead: float, mix: bool, most: float = float("inf")
) -> list[Sitting]:
    """Decide which pieces a rank attends together, and in which order.

    Whenever the rank is free, it takes the most urgent work that has arrived, with all other
    arrived work of the same urgency, as one kernel.

    Args:
        work: What there is to do.
        overhead: Seconds per kernel call.
        mix: Whether one kernel may take pieces from inside and outside the innermost domain.
        most: Longest kernel worth of work that is put together, seconds.

    Returns:
        The attends in order.
    """
    upcoming = sorted(work, key=lambda item: (item.ready, item.number))
    waiting: list[tuple[int, float, int, Work]] = []
    sittings: list[Sitting] = []
    clock, position = 0.0, 0
    while position < len(upcoming) or waiting:
        if not waiting:
            clock = max(clock, upcoming[position].ready)
        while position < len(upcoming) and upcoming[position].ready <= clock:
            item = upcoming[position]
            heapq.heappush(waiting, (item.urgency, item.ready, position, item))
            position += 1
        first = waiting[0][3]
        sitting = Sitting(crosses=first.crosses, start=clock)
        length, kept = 0.0, []
        while waiting and waiting[0][0] == first.urgency:
            entry = heapq.heappop(waiting)
            fits = not sitting.numbers or length + entry[3].seconds <= most
            if fits and (mix or entry[3].crosses == first.crosses):
                sitting.numbers.append(entry[3].number)
                length += entry[3].seconds
            else:
                kept.append(entry)
        for entry in kept:
            heapq.heappush(waiting, entry)
        clock = sitting.end = clock + length + overhead
        sittings.append(sitting)
    return sittings


@dataclass(slots=True)
class Stay:
    """Something that needs a slot from ``start`` to ``end``."""

    key: tuple[str, int]
    start: float
    end: float


def allot_slots(stays: Iterable[Stay], *, slack: float) -> tuple[dict[tuple[str, int], int], int]:
    """Give each stay a slot number; a slot is used again ``slack`` seconds after it got free.

    The slot that has been free for longest is taken first.

    Returns:
        Slot of each stay's key, and how many slots there are.
    """
    slots: dict[tuple[str, int], int] = {}
    free: list[tuple[float, int]] = []
    count = 0
    for stay in sorted(stays, key=lambda stay: (stay.start, stay.key)):
        if free and free[0][0] + slack <= stay.start:
            number = heapq.heappop(free)[1]
        else:
            number, count = count, count + 1
        slots[stay.key] = number
        heapq.heappush(free, (stay.end, number))
    return slots, count
