"""The agenda of a hierarchical exchange: planned steps and attends of all ranks, and their writing.

Ranks with equal roles, work and speed form a *group* and are planned once.
"""

from __future__ import annotations

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.planners.cells import seconds_of
from charm_sched.planners.exchange import Step, cut_steps, link_passages, moved_items
from charm_sched.planners.hierarchy import Line, Path
from charm_sched.planners.machine import Machine
from charm_sched.planners.messages import Messages
from charm_sched.planners.sittings import Cell, Desk, Sitting, Stay, Work, order_attends
from charm_sched.planners.timetable import Lanes, Passage, lock_together
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import HOME

LOCAL, CROSS = "compute", "compute-cross"
OWN = -1
KERNELS = 10  # overheads of a call that a kernel of the backward may at least take


class Agenda:
    """Planned steps and attends of all ranks.

    Attributes:
        b: The builder to write to.
        machine: Tree, paces and speeds.
        remerge: Whether pieces from outside the innermost domain have their own compute stream.
        decouple: Whether each tier has streams of its own.
        cells: The shards in cells.
        steps: Steps of KV, by planned start.
        returns: Steps that gradients take the other way, not planned yet.
        groups: Ranks that do everything alike.
        seconds: Each rank's time with each cell, ``[rank, owner, cell]``.
        sittings: Attends of each group, in order.
        slack: Seconds between the last use of a slot and its next.
    """

    def __init__(
        self,
        b: Builder,
        machine: Machine,
        messages: Messages,
        *,
        levels: bool,
        decouple: bool,
        remerge: bool,
    ) -> None:
        self.b, self.machine, self.messages = b, machine, messages
        self.levels, self.decouple, self.remerge = levels, decouple, remerge
        self.backward = b.direction == "backward"
        self.cells = messages.cells
        self.steps = cut_steps(messages.lines, self.cells, messages.chunks, messages.resident)
        self.returns = (
            cut_steps(messages.returns, self.cells, messages.chunks) if self.backward else []
        )
        self.seconds = seconds_of(
            self.cells, machine.triple_seconds, machine.masked_seconds, b.workload.heads
        )
        self.plan()
        ends = [sittings[-1].end for sittings in self.sittings if sittings]
        self.end = max([0.0, *(step.end for step in self.steps), *ends])

    def plan(self) -> None:
        """Plan the steps of KV, and what ranks attend when: the steps of all ranks alike."""
        passages = link_passages(self.steps, levels=self.levels, own_first=not self.backward)
        self.plan_passages(passages)
        self.steps.sort(key=lambda step: step.start if step.passage else -1.0)
        lengths = [step.end - step.start for step in self.steps]
        self.slack = float(np.mean(lengths)) if lengths else 0.0
        self.groups = self._alike()
        self.sittings = [
            order_attends((work for work, _ in self.works(int(group[0]))), self.desk(int(group[0])))
            for group in self.groups
        ]

    @property
    def first_slot(self) -> int:
        """First slot number that holds nothing saved."""
        return 1 + max((slot for _, _, slot in self.b.saved), default=-1)

    def crosses(self, line: Line) -> bool:
        """Say whether a line's pieces come from outside the receiver's innermost domain."""
        return line.crosses < len(self.machine.paces) - 1

    def part(self, line: Line) -> int:
        """Give the part that a line's pieces are attended into."""
        return int(self.remerge and self.crosses(line))

    def stream(self, depth: int, lane: int) -> str:
        """Name the stream of a lane of a tier."""
        if not self.decouple:
            return "exchange"
        tier = self.machine.streams[depth]
        return f"{tier}-{lane + 1}" if lane else tier

    def plan_passages(self, passages: list[Passage]) -> None:
        """Plan when passages run, on the lanes of their tiers."""
        Lanes(self.machine.paces, self.messages.lanes).run(passages)
        if not self.decouple:
            lock_together(passages, len(self.machine.paces))

    def _alike(self) -> list[Ints]:
        ranks = self.b.ranks
        own = self.cells.areas[ranks, ranks], self.cells.kinds[ranks, ranks]
        speeds = np.stack([self.machine.triple_seconds, self.machine.masked_seconds], axis=1)
        marks = [speeds, *own]
        for step in (*self.steps, *self.returns):
            sends = np.zeros((len(ranks), 1), bool)
            sends[step.line.src[step.takes.any(axis=1)]] = True
            at = ranks, step.line.piece, slice(step.cells.start, step.cells.stop)
            marks += [sends, step.takes, step.moves]
            marks += [step.takes * self.cells.areas[at], step.takes * self.cells.kinds[at]]
        rows = np.ascontiguousarray(np.hstack(marks).astype(np.float64))
        groups: dict[bytes, list[int]] = {}
        for rank in ranks:
            groups.setdefault(rows[rank].tobytes(), []).append(int(rank))
        return [np.array(group) for group in groups.values()]

    def desk(self, rank: int) -> Desk:
        """Give the desk of a rank."""
        most = float("inf")
        if self.backward:
            piece = max([0.0, *self.seconds[rank].sum(axis=1)])
            most = max(piece, KERNELS * self.machine.overhead)
        return Desk(overhead=self.machine.overhead, mix=not self.remerge, most=most)

    def works(self, rank: int) -> list[tuple[Work, Step | None]]:
        """List what a rank attends, and the step that brings it; None where it is there."""
        works: list[tuple[Work, Step | None]] = [(work, None) for work in self._own_work(rank)]
        kinds, seconds = self.cells.kinds[rank], self.seconds[rank]
        for number, step in enumerate(self.steps):
            owner = int(step.line.piece[rank])
            crosses = self.crosses(step.line)
            found: dict[tuple[int, bool], list[int]] = {}
            for index in np.flatnonzero(step.takes[rank]).tolist():
                cell = step.cells[index]
                kind, arrives = int(kinds[owner, cell]), bool(step.moves[rank, index])
                if kind:
                    found.setdefault((kind, arrives), []).append(cell)
            for (kind, arrives), cells in found.items():
                work = Work(
                    cells=tuple((number, cell) for cell in cells),
                    ready=step.end if arrives else 0.0,
                    seconds=float(seconds[owner, cells].sum()),
                    crosses=crosses,
                    kind=kind,
                    urgency=int(not crosses) if self.backward else 0,
                )
                works.append((work, step if arrives else None))
        return works

    def _own_work(self, rank: int) -> list[Work]:
        kinds, seconds = self.cells.kinds[rank, rank], self.seconds[rank, rank]
        subs = [range(sub, sub + 1) for sub in range(self.cells.subs)]
        work = []
        for sub in subs if self.backward else [range(self.cells.subs)]:
            part = self.cells.of_subs(sub)
            cells = [cell for cell in range(part.start, part.stop) if kinds[cell]]
            if cells:
                work.append(
                    Work(
                        cells=tuple((OWN, cell) for cell in cells),
                        ready=0.0,
                        seconds=float(seconds[cells].sum()),
                        crosses=False,
                        kind=int(kinds[cells[0]]),
                        urgency=2 + sub.start if self.backward else 0,
                    )
                )
        return work

    def kv_stays(self, rank: int, sittings: list[Sitting]) -> list[Stay]:
        """List how long each cell that arrives at a rank is needed there."""
        passed_on: dict[tuple[Path, int], float] = {}
        for step in self.steps:
            end = step.span(step.receiver(rank))[1]
            for cell in step.cells:
                source = (step.line.held, cell)
                passed_on[source] = max(passed_on.get(source, 0.0), end)
        attended = {cell: sitting.end for sitting in sittings for cell in sitting.cells}
        return [
            Stay(
                ("kv", number, step.cells[index]),
                step.span(rank)[0],
                max(
                    step.span(rank)[1],
                    attended.get((number, step.cells[index]), 0.0),
                    passed_on.get((step.line.got, step.cells[index]), 0.0),
                ),
            )
            for number, step in enumerate(self.steps)
            for index in np.flatnonzero(step.moves[rank]).tolist()
        ]

    def write_exchange(self, slots: list[Ints]) -> None:
        """Write the KV transfers; ``slots`` gives the slots of each step's cells on each rank."""
        for step, slot in zip(self.steps, slots, strict=True):
            for lane, r, level, start in step.by_lane(step.moves):
                self.b.transfer(
                    src=step.line.src[r],
                    dst=r,
                    items=moved_items(step, self.cells.kv, step.moves, r),
                    level=level,
                    stream=self.stream(step.line.depth, lane),
                    slot=slot[r],
                    order=start,
                )

    def write_attends(
        self, *, query_slot: int, key_slots: list[dict[Cell, int]] | None = None
    ) -> None:
        """Write the attends.

        Args:
            query_slot: First slot where part 1 of a rank's ``o`` or ``dq`` is kept, by run.
            key_slots: Backward: per group, the slot of the ``dkv`` of each cell.
        """
        alike: dict[tuple[int, int], list[tuple[Ints, Sitting, list[int]]]] = {}
        for group, (ranks, sittings) in enumerate(zip(self.groups, self.sittings, strict=True)):
            slots = key_slots[group] if key_slots else {}
            for sitting in sittings:
                part = int(self.remerge and sitting.crosses)
                at = [slots.get(cell, HOME) for cell in sitting.cells]
                entry = (ranks, sitting, at)
                alike.setdefault((part, len(at).bit_length()), []).append(entry)
        for (part, _), entries in alike.items():
            self._write_alike(part, entries, query_slot)

    def _write_alike(
        self, part: int, entries: list[tuple[Ints, Sitting, list[int]]], query_slot: int
    ) -> None:
        """Write attends of one part and of about as many keys with one call."""
        counts = [len(ranks) for ranks, _, _ in entries]
        rank = np.concatenate([ranks for ranks, _, _ in entries])
        longest = max(len(at) for _, _, at in entries)
        keys = np.full((len(rank), longest), -1)
        slots = np.full((len(rank), longest), HOME)
        first = 0
        for ranks, sitting, at in entries:
            rows = slice(first, first + len(ranks))
            for column, cell in enumerate(sitting.cells):
                keys[rows, column] = self._item(cell, ranks)
            slots[rows, : len(at)] = at
            first += len(ranks)
        kinds = np.repeat([sitting.kind for _, sitting, _ in entries], counts)
        runs = np.arange(self.cells.runs)
        seen = (kinds[:, None] >> runs & 1) > 0
        self.b.attend(
            rank=rank,
            queries=np.where(seen, self.cells.q[rank], -1),
            keys=keys,
            stream=CROSS if part else LOCAL,
            part=part,
            query_slot=(query_slot + runs)[None] if part else HOME,
            key_slot=slots,
            order=np.repeat([sitting.start for _, sitting, _ in entries], counts),
        )

    def _item(self, cell: Cell, ranks: Ints) -> Ints:
        """Give the KV item that a cell means on each of some ranks."""
        number, index = cell
        owners = ranks if number == OWN else self.steps[number].line.piece[ranks]
        return self.cells.kv[owners, index]

    def owner(self, number: int, rank: int) -> int:
        """Give the owner of what a step, or `OWN`, brings to a rank."""
        return rank if number == OWN else int(self.steps[number].line.piece[rank])

    def write_merge(self, kind: str) -> None:
        """Write the merges of part 1 of each rank's ``o`` or ``dq`` into part 0, at the end."""
        if not self.remerge:
            return
        inputs, outputs = (self.cells.query_items(kind, part=part) for part in (1, 0))
        for ranks, sittings in zip(self.groups, self.sittings, strict=True):
            kinds = {sitting.kind for sitting in sittings if sitting.crosses}
            for run in sorted({int(run) for kind_ in kinds for run in self.cells.queries(kind_)}):
                self.b.merge(
                    rank=ranks,
                    inputs=inputs[ranks, run],
                    output=outputs[ranks, run],
                    stream=LOCAL,
                    order=2 * self.end + 1,
                )
