"""CHARM+ for very many ranks that are alike: planned for one of them, written for representatives.

Where the domains of each tier are equally large, ranks equally fast, shards equally long and
nothing is masked, all ranks do the same at the same time, each with its own neighbours. So the
agenda of `charm` is made for a single rank, with the lines of the whole tree; what is written are
the operations of the representatives of a `Symmetry`. Expanded, it is the plan that `charm` writes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.errors import StrategyError
from charm_sched.partition import Partition, Rows
from charm_sched.planners.agenda import CROSS, LOCAL, OWN, Agenda
from charm_sched.planners.cells import Cells
from charm_sched.planners.charm import _kv_slots
from charm_sched.planners.hierarchy import Line, Path, Tree, leaves
from charm_sched.planners.machine import Machine, machine_of
from charm_sched.planners.messages import MOST_RANKS_TOPPED_UP, Messages, suitable_pieces
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import HOME


def charm_folded(b: Builder, *, pieces: int = 0, lanes: int = 0, remerge: bool = False) -> None:
    """Write the forward of CHARM+ for the representatives of the builder's symmetry.

    Args:
        b: The builder; its symmetry has to leave the tree of domains as it is.
        pieces: As in `charm`.
        lanes: As in `charm`.
        remerge: As in `charm`.

    Raises:
        StrategyError: Ranks are not alike, or it is a backward.
    """
    machine = machine_of(b, None)
    shape = _shape(b, machine)
    one = _one_rank(b)
    cells = Cells(one, pieces or suitable_pieces(b, machine))
    alone = replace(
        machine,
        triple_seconds=machine.triple_seconds[:1],
        masked_seconds=machine.masked_seconds[:1],
    )
    messages = _OneRank(alone, cells, shape, lanes)
    agenda = Agenda(one, alone, messages, levels=True, decouple=True, remerge=remerge)
    _Writer(b, agenda, shape).write()


def _shape(b: Builder, machine: Machine) -> tuple[int, ...]:
    """Give how many children the domains of each depth have.

    Raises:
        StrategyError: Ranks are not alike.
    """
    shape = _children(machine.tree)
    wrong = None
    if b.direction != "forward":
        wrong = "the backward is not written by symmetry"
    elif b.workload.mask_rule.kind != "full":
        wrong = f"a {b.workload.mask_rule} mask looks different from each rank"
    elif shape is None or leaves(machine.tree) != list(range(b.num_ranks)):
        wrong = "domains differ in size, or ranks are not in their order"
    elif len(set(machine.triple_seconds.tolist())) > 1:
        wrong = "devices differ in speed"
    elif len({rows[0][1] - rows[0][0] if len(rows) == 1 else 0 for rows in b.partition.shards}) > 1:
        wrong = "shards differ in length"
    elif b.num_ranks <= MOST_RANKS_TOPPED_UP:
        wrong = f"expected more than {MOST_RANKS_TOPPED_UP} ranks, found {b.num_ranks}"
    if wrong or shape is None:
        raise StrategyError(f"charm: no plan by symmetry: {wrong}")
    return shape


def _children(tree: Tree) -> tuple[int, ...] | None:
    """Give the number of children at each depth, if it is the same everywhere."""
    shape, nodes = [], [tree]
    while not isinstance(nodes[0], int):
        counts = {0 if isinstance(node, int) else len(node) for node in nodes}
        if len(counts) > 1:
            return None
        shape.append(counts.pop())
        nodes = [child for node in nodes if not isinstance(node, int) for child in node]
    return tuple(shape) if all(isinstance(node, int) for node in nodes) else None


def _one_rank(b: Builder) -> Builder:
    """Give a builder for a rank alone with a sequence of the length of its shard."""
    tokens = b.partition.shards[0][0][1] - b.partition.shards[0][0][0]
    work = replace(b.workload, seq_len=tokens)
    return Builder(work, Partition.contiguous(tokens, 1), direction=b.direction)


class _OneRank(Messages):
    """The messages of one rank among many that are alike."""

    def __init__(self, machine: Machine, cells: Cells, shape: tuple[int, ...], lanes: int) -> None:
        self.cells, self.resident = cells, None
        self._machine, self._growth, self._pairs = machine, 0.0, False
        self._message = float(cells.sizes.sum(axis=1).max(initial=0)) / max(1, cells.subs - 1)
        self.lines = _lines(shape, range(cells.subs))
        self.lanes = [lanes or self._lanes_of(depth) for depth in range(len(machine.paces))]


def _lines(shape: tuple[int, ...], subs: range) -> list[Line]:
    """List the lines as `exchange_lines` does for even domains, with all ranks named 0."""
    held: list[Path] = [()]
    lines = []
    zero = np.zeros(1, np.int64)
    for depth, children in enumerate(shape):
        for path in list(held):
            for round_ in range(1, children):
                got = (*path, (depth, round_, 0))
                held.append(got)
                lines.append(Line(depth=depth, held=path, got=got, src=zero, piece=zero, subs=subs))
    return lines


class _Writer:
    """Writes the agenda of one rank for all representatives."""

    def __init__(self, b: Builder, agenda: Agenda, shape: tuple[int, ...]) -> None:
        self.b, self.agenda, self._shape = b, agenda, shape
        self._strides = [math.prod(shape[depth + 1 :]) for depth in range(len(shape))]
        starts = [shard[0][0] for shard in b.partition.shards]
        named = agenda.b.build().items
        own = [named.row_set(int(named.rows[item])) for item in agenda.cells.kv[0].tolist()]
        self._kv = np.array(
            [[b.item("kv", _shifted(rows, start)) for rows in own] for start in starts], np.int64
        )

    def _before(self, path: Path) -> Ints:
        """Give the rank from which each representative is as many rounds away as a path says."""
        ranks = found = self.b.ranks
        for depth, round_, _ in path:
            length, stride = self._shape[depth], self._strides[depth]
            digit = ranks // stride % length
            found = found + ((digit - round_) % length - digit) * stride
        return found

    def write(self) -> None:
        """Write attends, transfers, and merges."""
        b, agenda = self.b, self.agenda
        slots, count = _kv_slots(agenda, save=False)
        q, merged = b.shards("q")[b.ranks], False
        for sitting in agenda.sittings[0]:
            part = int(agenda.remerge and sitting.crosses)
            merged |= bool(part)
            keys = [
                self._kv[b.ranks if number == OWN else self._owner(number), cell]
                for number, cell in sitting.cells
            ]
            b.attend(
                rank=b.ranks, queries=q, keys=np.stack(keys, axis=1),
                stream=CROSS if part else LOCAL, part=part, query_slot=count if part else HOME,
                order=sitting.start,
            )  # fmt: skip
        for number, (step, slot) in enumerate(zip(agenda.steps, slots, strict=True)):
            assert step.passage
            b.transfer(
                src=self._before(step.line.got[-1:]),
                dst=b.ranks,
                items=self._kv[self._owner(number), step.cells.start : step.cells.stop],
                level=step.passage.level,
                stream=agenda.stream(step.line.depth, step.passage.lane),
                slot=slot,
                order=step.start,
            )
        if merged:
            parts, whole = (b.shards("o", part=part)[b.ranks] for part in (1, 0))
            b.merge(
                rank=b.ranks, inputs=parts, output=whole, stream=LOCAL, order=2 * agenda.end + 1
            )

    def _owner(self, number: int) -> Ints:
        """Give the owner of what a step brings to each representative."""
        return self._before(self.agenda.steps[number].line.got)


def _shifted(rows: Rows, start: int) -> Rows:
    return tuple((first + start, last + start) for first, last in rows)


__all__ = ["charm_folded"]
