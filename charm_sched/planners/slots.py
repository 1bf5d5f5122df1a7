"""Slot numbers by name, for strategies that know what each buffer is for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import HOME


class Slots:
    """Gives each name a slot number at first mention, behind what is resident."""

    def __init__(self, b: Builder) -> None:
        self._first = 1 + max((slot for _, _, slot in b.saved), default=HOME)
        self._numbers: dict[tuple[object, ...], int] = {}

    def __call__(self, *name: object) -> int:
        """Give the number of the slot of this name."""
        return self._first + self._numbers.setdefault(name, len(self._numbers))


def padded(rows: Sequence[Sequence[tuple[int, int]]]) -> tuple[Ints, Ints]:
    """Put (item, slot) lists of uneven length into two arrays, ``[rows, longest]``.

    What is missing is item -1.
    """
    longest = max((len(row) for row in rows), default=0)
    table = np.full((len(rows), max(longest, 1), 2), HOME)
    for number, row in enumerate(rows):
        if row:
            table[number, : len(row)] = row
    return table[:, :, 0], table[:, :, 1]
