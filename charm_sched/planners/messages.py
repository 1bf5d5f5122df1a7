"""How an exchange is cut into messages: sub-pieces, lanes, and what crosses more than once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from charm_sched.partition import count_rows
from charm_sched.planners.cells import Cells
from charm_sched.planners.flows import balance
from charm_sched.planners.hierarchy import Line, direct_lines, exchange_lines, is_even
from charm_sched.planners.loads import Loads
from charm_sched.planners.machine import Machine
from charm_sched.plans.builder import Builder

MOST_PIECES = 9
MOST_SUBS = 256  # ranks times sub-pieces
MOST_OWN = 4  # messages of an own piece inside the innermost domain, where they are cut
MOST_RANKS_TOPPED_UP = 128  # choosing direct lines takes a second there
UNEVEN_LANES = 4  # where ranks owe different amounts, one waits for the other within a lane
TRIED = 8  # numbers of direct lines that are compared at once
WAIT = 0.05
"""A lane's latency, as a part of a message's time, from which on a second lane pays."""


class Messages:
    """The lines of an exchange, and what each of its messages takes along.

    Lines are listed so that what is passed on comes after what brings it.

    Attributes:
        cells: The shards in cells.
        lines: All lines of keys and values.
        returns: Lines that gradients take the other way.
        apart: Whether KV and gradients take ways of their own.
        lanes: Streams of each tier.
        resident: Which cells each rank has from the start, ``[rank, owner, cell]``; None: no one.
    """

    def __init__(
        self,
        b: Builder,
        machine: Machine,
        cells: Cells,
        *,
        lanes: int,
        top_up: bool,
        apart: bool,
        growth: float,
        pairs: bool = False,
    ) -> None:
        """Choose lines and lanes.

        Args:
            b: The builder.
            machine: Tree and paces.
            cells: The shards in cells.
            lanes: Streams of each tier; 0 for as many as pay.
            top_up: Whether direct lines may be used.
            apart: Whether KV and gradients are weighed apart where demands are uneven.
            growth: Bytes of a gradient per byte of KV; 0 in the forward, where none moves.
            pairs: Whether each message is planned by itself.
        """
        self.cells, self.resident = cells, cells.resident()
        self._machine, self._growth, self._pairs = machine, growth, pairs
        self._message = float(cells.sizes.sum(axis=1).max(initial=0)) / max(1, cells.subs - 1)
        self._lines = exchange_lines(machine.tree, cells.subs)
        self._extra: list[Line] = []
        few = len(cells.kv) <= MOST_RANKS_TOPPED_UP
        if top_up and few and len(machine.paces) > 1 and is_even(machine.tree):
            self._extra = direct_lines(machine.tree, self._lines, cells.subs)
        self.apart = apart and growth > 0 and cells.runs > 1 and bool(self._extra)
        if self.apart:
            ways = balance(b, cells, self._lines, self._extra, growth)
            self.lines, self.returns = (self._with(direct) for direct in ways)
        else:
            self.lines = self.returns = self._with(self._extra[: self._balance()])
        few_alike = UNEVEN_LANES if self.apart else 0
        self.lanes = [lanes or few_alike or self._lanes_of(at) for at in range(len(machine.paces))]

    def _seconds(self, lines: list[Line]) -> float:
        """Give the time of the busiest link."""
        nothing = Loads(self._machine, self.cells)
        loads = nothing.of(lines, None if self.resident is None else ~self.resident)
        if self._growth:
            loads += nothing.of(lines, None, self._growth)
        return loads.seconds()

    def _with(self, direct: Sequence[Line]) -> list[Line]:
        """Give all lines, with some of the direct ones."""
        inner = len(self._machine.paces) - 1
        outer = [line for line in self._lines if line.depth < inner]
        return [
            *outer,
            *direct,
            *(line for line in self._lines if line.depth == inner),
        ]

    def _balance(self) -> int:
        """Give how many direct lines make the busiest link least busy."""
        costs = {0: 0.0}

        def best(low: int, high: int) -> int:
            for step in range(TRIED + 1):
                count = low + (high - low) * step // TRIED
                costs[count] = self._seconds(self._with(self._extra[:count]))
            return min(costs, key=lambda count: (round(costs[count], 9), count))

        most = len(self._extra)
        if not most:
            return 0
        near = best(0, most)
        return best(max(0, near - most // TRIED), min(most, near + most // TRIED))

    def _lanes_of(self, depth: int) -> int:
        """Give a second lane where one would wait: in its latency, or for the larger way."""
        pace = self._machine.paces[depth]
        uneven = self._growth > 0 and self.cells.runs > 1
        return 1 + (uneven or pace.latency * pace.bandwidth > WAIT * self._message > 0)

    def chunks(self, line: Line) -> list[range]:
        """Cut a line's sub-pieces into messages: one each, or longer ones where all are there.

        A rank's own pieces inside its innermost domain can all go at once, and nobody waits for
        their parts to pass them on. In the forward they are cut so far that latency allows, for
        the rank that attends them; in the backward there is other work meanwhile.
        """
        first, last = line.subs.start, line.subs.stop
        step = 1
        if not line.held and line.depth == len(self._machine.paces) - 1:
            if self._pairs:
                return [
                    range(a, min(a + self._part(), last)) for a in range(first, last, self._part())
                ]
            step = self.cells.subs if self._growth else self._own_step()
            if step >= last - first and line.got[-1][1:] == (2, 0) and self.lanes[-1] > 1:
                step = -(-(last - first) // 2)  # or both lanes are in their latency at once
        return [range(a, b) for a, b in itertools.pairwise([*range(first, last, step), last])]

    def _part(self) -> int:
        """Give the sub-pieces of an own piece's message among messages planned by themselves."""
        return -(-self.cells.subs // MOST_OWN)

    def _own_step(self) -> int:
        """Give the sub-pieces of an own piece whose message inside takes four times its latency."""
        inside = self._machine.paces[-1]
        least = 4 * inside.latency * inside.bandwidth / self._message if self._message else 1
        return max(1, math.ceil(least), (self.cells.subs - 1) // MOST_OWN)


def suitable_pieces(b: Builder, machine: Machine) -> int:
    """Give the number of sub-pieces whose messages inside take about twice their latency.

    One, or one more than a power of two (the first and the last are halves), up to `MOST_PIECES`;
    with many ranks less, as plans grow with both.
    """
    inside = machine.paces[-1] if machine.paces else None
    rows = max(map(count_rows, b.partition.shards))
    size = rows * b.workload.num_kv_heads * b.workload.row_bytes("kv")
    if not inside or not inside.latency or not size:
        return 1
    wanted = size / inside.bandwidth / (2 * inside.latency)
    most = max(1, min(MOST_PIECES - 1, MOST_SUBS // b.num_ranks))
    power = max(0, min(round(math.log2(wanted)), int(math.log2(most))))
    return 2**power + 1 if power else 1
