"""The steps of an exchange: lines that somebody needs, cut into messages, with planned times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from charm_sched.arrays import Bools, Floats, Ints
from charm_sched.planners.cells import Cells
from charm_sched.planners.dispatch import Message
from charm_sched.planners.hierarchy import Line, Path
from charm_sched.planners.timetable import Passage


@dataclass(slots=True, eq=False, kw_only=True)
class Step:
    """A message of one line: some adjoining sub-pieces of what it passes on.

    Attributes:
        line: Who sends what to whom.
        subs: Which sub-pieces.
        cells: Which cells these are.
        takes: Which of the cells each rank gets on this line, ``[ranks, len(cells)]``.
        moves: Which of them really move, as they are not resident there already.
        size: KV bytes of the largest message.
        passage: When it moves, for all ranks alike; None where all of it is resident, or where
            ranks are planned apart.
        messages: When it moves to each rank, where ranks are planned apart. Gradients: from each.
    """

    line: Line
    subs: range
    cells: range
    takes: Bools
    moves: Bools
    size: int
    passage: Passage | None = None
    messages: dict[int, Message] = field(default_factory=dict)

    def span(self, rank: int) -> tuple[float, float]:
        """Give planned start and end of the message of a rank, seconds; 0 where there is none."""
        planned = self.messages.get(rank, self.passage)
        return (planned.start, planned.end) if planned else (0.0, 0.0)

    def receiver(self, rank: int) -> int:
        """Give the rank to which a rank passes this on; -1 where there is none."""
        found = [
            dst for dst, message in self.messages.items() if rank in (message.src, message.dst)
        ]
        return next((dst for dst in found if self.line.src[dst] == rank), -1)

    def by_lane(self, which: Bools) -> list[tuple[int, Ints, Ints, Floats]]:
        """Give the ranks with a message on each lane, with its level and planned start.

        Args:
            which: Which cells each rank gets, ``[ranks, len(cells)]``.
        """
        ranks = np.flatnonzero(which.any(axis=1))
        if self.passage:
            level, start = np.full(len(ranks), self.passage.level), self.passage.start
            return [(self.passage.lane, ranks, level, np.full(len(ranks), start))]
        lanes: dict[int, list[int]] = {}
        for rank in ranks.tolist():
            lanes.setdefault(self.messages[rank].lane, []).append(rank)
        return [
            (
                lane,
                np.array(of),
                np.array([self.messages[rank].level for rank in of]),
                np.array([self.messages[rank].start for rank in of]),
            )
            for lane, of in sorted(lanes.items())
        ]

    @property
    def start(self) -> float:
        """Planned start of the first message, seconds."""
        if self.messages:
            return min(message.start for message in self.messages.values())
        return self.passage.start if self.passage else 0.0

    @property
    def end(self) -> float:
        """Planned end of the last message, seconds."""
        if self.messages:
            return max(message.end for message in self.messages.values())
        return self.passage.end if self.passage else 0.0


def wanted_cells(lines: Sequence[Line], cells: Cells) -> list[Bools]:
    """Say which cells each rank has to get on each line, ``[ranks, cells]`` per line.

    That is what it attends, unless a direct line brings it, and what those attend to whom it passes
    it on.
    """
    ranks = np.arange(len(cells.kv))
    needs = cells.kinds > 0
    for line in lines:
        if line.direct:
            needs[ranks[line.src >= 0], line.piece[line.src >= 0], cells.of_subs(line.subs)] = False
    upstream: dict[Path, Bools] = {}
    wanted = []
    for line in reversed(lines):
        takes = np.zeros((len(ranks), cells.count), bool)
        there = np.flatnonzero(line.src >= 0)
        owner, part = line.piece[there], cells.of_subs(line.subs)
        needed = (cells.kinds > 0 if line.direct else needs)[there, owner, part]
        if line.got in upstream:
            needed = needed | upstream[line.got][there, part]
        takes[there, part] = needed & (cells.kv[owner, part] >= 0)
        wanted.append(takes)
        if line.held:
            above = upstream.setdefault(line.held, np.zeros_like(takes))
            above[line.src[there]] |= takes[there]  # a rank sends once per line
    return wanted[::-1]


def cut_steps(
    lines: Sequence[Line],
    cells: Cells,
    chunks: Callable[[Line], Sequence[range]],
    resident: Bools | None = None,
) -> list[Step]:
    """Cut lines into the steps in which something moves.

    Args:
        lines: The lines.
        cells: The cells of all shards.
        chunks: Gives the sub-pieces of each message of a line.
        resident: Which cells each rank has already, ``[rank, owner, cell]``.
    """
    ranks = np.arange(len(cells.kv))
    steps = []
    for line, wanted in zip(lines, wanted_cells(lines, cells), strict=True):
        for subs in chunks(line):
            part = cells.of_subs(subs)
            takes = moves = wanted[:, part]
            if not takes.any():
                continue
            if resident is not None:
                moves = takes & ~resident[ranks, line.piece, part]
            size = int((moves * cells.sizes[line.piece, part]).sum(axis=1).max())
            steps.append(
                Step(
                    line=line, subs=subs, cells=range(part.start, part.stop), takes=takes,
                    moves=moves, size=size,
                )
            )  # fmt: skip
    return steps


def link_passages(steps: Sequence[Step], *, levels: bool, own_first: bool) -> list[Passage]:
    """Give each step that moves something its passage, behind those that bring it.

    Args:
        steps: The steps.
        levels: A passage each; otherwise one for all rounds of one held piece.
        own_first: Whether own pieces go before what is passed on.
    """
    brought = {(step.line.got, sub): step for step in steps for sub in step.subs}
    shared: dict[tuple[int, Path, range], Passage] = {}
    passages = []
    for step in steps:
        if not step.moves.any():
            continue
        depth, held = step.line.depth, step.line.held
        passage = None if levels else shared.get((depth, held, step.subs))
        if passage is None:
            _, round_, block = step.line.got[-1]
            own = not held
            order: tuple[float, ...] = (float(own != own_first), float(block < 0))
            order += (round_, abs(block), step.subs.start) if own else ()
            passage = shared[depth, held, step.subs] = Passage(depth=depth, order=order)
            before = {id(b): b for sub in step.subs if (b := brought.get((held, sub)))}
            passage.after = [b.passage for b in before.values() if b.passage]
            passages.append(passage)
        passage.size += step.size
        step.passage = passage
    return passages


def moved_items(step: Step, items: Ints, which: Bools, ranks: Ints) -> Ints:
    """Give the items of some ranks in a step, -1 where one gets none: ``[ranks, cells]``."""
    chosen = items[step.line.piece[ranks], step.cells.start : step.cells.stop]
    return np.where(which[ranks], chosen, -1)
