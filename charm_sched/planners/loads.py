"""What an exchange loads on every rank and domain, and how long the busiest of them takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from charm_sched.arrays import Bools
from charm_sched.planners.cells import Cells
from charm_sched.planners.exchange import wanted_cells
from charm_sched.planners.hierarchy import Line, domains_at
from charm_sched.planners.machine import Machine


class Loads:
    """Bytes that leave and enter each rank over each tier.

    Attributes:
        sent: Bytes out, ``[tiers, ranks]``.
        received: Bytes in, likewise.
    """

    def __init__(self, machine: Machine, cells: Cells) -> None:
        self._machine, self._cells = machine, cells
        tiers = len(machine.paces)
        self._domains = [domains_at(machine.tree, depth + 1) for depth in range(tiers)]
        self.sent = self.received = np.zeros((tiers, len(cells.kv)))

    def __add__(self, other: Loads) -> Loads:
        total = Loads(self._machine, self._cells)
        total.sent = self.sent + other.sent
        total.received = self.received + other.received
        return total

    def of(self, lines: Sequence[Line], arrives: Bools | None, growth: float = 0.0) -> Loads:
        """Give the loads of keys and values on some lines, or of their gradients on the way back.

        Args:
            lines: The lines.
            arrives: Which cells have to move to each rank, ``[rank, owner, cell]``; None for all.
            growth: Bytes of a gradient per byte of KV; 0 for the loads of KV.
        """
        ranks = np.arange(len(self._cells.kv))
        found = Loads(self._machine, self._cells)
        found.sent, found.received = np.zeros_like(self.sent), np.zeros_like(self.sent)
        for line, takes in zip(lines, wanted_cells(lines, self._cells), strict=True):
            moves = takes if arrives is None else takes & arrives[ranks, line.piece]
            size = (moves * self._cells.sizes[line.piece]).sum(axis=1).astype(np.float64)
            found.received[line.depth] += size
            there = size > 0
            found.sent[line.depth] += np.bincount(
                line.src[there], size[there], minlength=len(ranks)
            )
        if growth:
            found.sent, found.received = found.received * growth, found.sent * growth
        return found

    def seconds(self) -> float:
        """Give the time of the busiest rank, port of a rank or domain."""
        times = [0.0]
        for way in (self.sent, self.received):
            for depth, pace in enumerate(self._machine.paces):
                times.append(float(way[depth].max()) / pace.alone)
                times += [
                    float(way[depth, domain].sum()) / (pace.bandwidth * len(domain))
                    for domain in self._domains[depth]
                ]
                for outer, width in enumerate(pace.common):
                    times.append(float((way[depth] + way[outer]).max()) / width)
        return max(times)
