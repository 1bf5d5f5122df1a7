"""What a rank attends when, and which slots it needs meanwhile."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

Cell: TypeAlias = tuple[int, int]
"""Where a piece on a rank comes from, -1 for the rank itself or the number of a step, and which of
the shard's cells it is."""


@dataclass(slots=True, eq=False, kw_only=True)
class Work:
    """Something a rank can attend to.

    Attributes:
        cells: What.
        ready: Planned arrival, seconds.
        seconds: Time of its share of a kernel, without the overhead of a call.
        crosses: Whether it comes from outside the innermost domain.
        kind: Kind of kernel; just work of one kind goes together.
        urgency: Lower goes first among what is there.
    """

    cells: tuple[Cell, ...]
    ready: float
    seconds: float
    crosses: bool
    kind: int = 1
    urgency: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class Sitting:
    """One attend: what it takes together, and when."""

    crosses: bool
    kind: int
    cells: list[Cell] = field(default_factory=list)
    start: float = 0.0
    end: float = 0.0


class Desk:
    """Where the work of one rank waits for its turn.

    Whenever the rank is free, it takes the most urgent work that has arrived, with all other
    arrived work of the same urgency and kind, as one kernel.
    """

    def __init__(self, *, overhead: float, mix: bool, most: float = float("inf")) -> None:
        """Begin with nothing.

        Args:
            overhead: Seconds per kernel call.
            mix: Whether one kernel may take pieces from inside and outside the innermost domain.
            most: Longest kernel worth of work that is put together, seconds.
        """
        self._overhead, self._mix, self._most = overhead, mix, most
        self._waiting: list[tuple[int, float, int, Work]] = []
        self._count = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, work: Work) -> None:
        """Add work that has arrived."""
        heapq.heappush(self._waiting, (work.urgency, work.ready, next(self._count), work))

    def take(self, clock: float) -> tuple[Sitting, list[Work]]:
        """Give the next kernel, which starts now, and the work that it does."""
        first = self._waiting[0][3]
        sitting = Sitting(crosses=first.crosses, kind=first.kind, start=clock)
        length, kept = 0.0, []
        taken: list[Work] = []
        while self._waiting and self._waiting[0][0] == first.urgency:
            entry = heapq.heappop(self._waiting)
            item = entry[3]
            fits = not taken or length + item.seconds <= self._most
            alike = item.kind == first.kind and (self._mix or item.crosses == first.crosses)
            if fits and alike:
                sitting.cells.extend(item.cells)
                taken.append(item)
                length += item.seconds
            else:
                kept.append(entry)
        for entry in kept:
            heapq.heappush(self._waiting, entry)
        sitting.end = clock + length + self._overhead
        return sitting, taken


def order_attends(work: Iterable[Work], desk: Desk) -> list[Sitting]:
    """Decide which pieces a rank attends together, and in which order, as they arrive."""
    upcoming = sorted(work, key=lambda item: (item.ready, item.cells))
    sittings: list[Sitting] = []
    clock, position = 0.0, 0
    while position < len(upcoming) or desk:
        if not desk:
            clock = max(clock, upcoming[position].ready)
        while position < len(upcoming) and upcoming[position].ready <= clock:
            desk.put(upcoming[position])
            position += 1
        sitting, _ = desk.take(clock)
        clock = sitting.end
        sittings.append(sitting)
    return sittings


Key: TypeAlias = tuple[str, int, int]


@dataclass(slots=True)
class Stay:
    """Something that needs a slot from ``start`` to ``end``."""

    key: Key
    start: float
    end: float


def allot_slots(stays: Iterable[Stay], *, slack: float) -> tuple[dict[Key, int], int]:
    """Give each stay a slot number; a slot is used again ``slack`` seconds after it got free.

    The slot that has been free for longest is taken first.

    Returns:
        Slot of each stay's key, and how many slots there are.
    """
    slots: dict[Key, int] = {}
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
