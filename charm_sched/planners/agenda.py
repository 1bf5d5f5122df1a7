"""The agenda of a hierarchical exchange: planned steps and attends of all ranks, and their writing.

Ranks with equal roles, work and speed form a *group* and are planned once.
"""

from __future__ import annotations

import numpy as np

from charm_sched.arrays import Bools, Ints
from charm_sched.builder import Builder
from charm_sched.items import HOME
from charm_sched.partition import count_rows, split_rows
from charm_sched.planners.hierarchy import Line, Path, exchange_lines
from charm_sched.planners.machine import Machine
from charm_sched.planners.timetable import (
    Sitting,
    Stay,
    Step,
    Work,
    order_attends,
    pace_exchange,
)

LOCAL, CROSS = "compute", "compute-cross"


class Agenda:
    """Planned steps and attends of all ranks.

    Attributes:
        b: The builder to write to.
        machine: Tree, paces and speeds.
        pieces: Sub-pieces per shard.
        remerge: Whether pieces from outside the innermost domain have their own compute stream.
        q: Query item of each rank, ``[ranks]``.
        kv: KV items, ``[ranks, pieces]``.
        steps: Exchange steps with planned times.
        arrives: Per step, the ranks to which it really moves KV (not those where it is resident).
        groups: Ranks that do everything alike.
        sittings: Attends of each group, in order.
        slack: Seconds between the last use of a slot and its next.
    """

    def __init__(
        self,
        b: Builder,
        machine: Machine,
        pieces: int,
        *,
        levels: bool,
        decouple: bool,
        remerge: bool,
    ) -> None:
        self.b, self.machine, self.pieces = b, machine, pieces
        self.levels, self.decouple, self.remerge = levels, decouple, remerge
        self.backward = b.direction == "backward"
        self.q, self.kv = b.shards("q"), b.pieces("kv", pieces)
        # Unmasked (query, key) pairs of each rank with each piece: [ranks, owner, sub].
        self._areas = np.stack(
            [b.areas(np.full(self.kv.shape, query), self.kv) for query in self.q]
        ).astype(np.float64)
        lines = [line for depth in exchange_lines(machine.tree) for line in depth]
        self.steps = self._wanted_steps(lines)
        pace_exchange(self.steps, machine.paces, levels=levels, decouple=decouple)
        lengths = [step.end - step.start for step in self.steps]
        self.slack = float(np.mean(lengths)) if lengths else 0.0
        resident = {(rank, b.item(item.kind, item.rows, item.heads)) for rank, item, _ in b.saved}
        self.arrives = [self._arrives(step, resident) for step in self.steps]
        self.groups = self._alike()
        self.sittings = [self._sittings(int(group[0])) for group in self.groups]
        self.end = max(
            [step.end for step in self.steps]
            + [sittings[-1].end for sittings in self.sittings if sittings]
            + [0.0]
        )

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

    def stream(self, line: Line) -> str:
        """Name the stream that a line's transfers run on."""
        return self.machine.streams[line.depth] if self.decouple else "exchange"

    def area(self, rank: int, owner: int, sub: int) -> float:
        """Count the unmasked (query, key) pairs of a rank's queries with a piece."""
        return float(self._areas[rank, owner, sub])

    def _wanted_steps(self, lines: list[Line]) -> list[Step]:
        """Make a step of each line and sub-piece that somebody downstream attends."""
        ranks, work = self.b.ranks, self.b.workload
        rows = [
            [count_rows(piece) for piece in split_rows(shard, self.pieces)]
            for shard in self.b.partition.shards
        ]
        sizes = np.array(rows, np.int64) * work.num_kv_heads * work.row_bytes("kv")
        steps = []
        for sub in range(self.pieces):
            wanted: dict[Path, Bools] = {}
            nobody = np.zeros(len(ranks), bool)
            for line in reversed(lines):
                there = (line.src >= 0) & (self.kv[line.piece, sub] >= 0)
                attends = self._areas[ranks, line.piece, sub] > 0
                receives = there & (attends | wanted.get(line.got, nobody))
                if not receives.any():
                    continue
                upstream = wanted.setdefault(line.held, nobody.copy())
                upstream[line.src[receives]] = True
                size = int(sizes[line.piece[receives], sub].max())
                steps.append(Step(line=line, sub=sub, receives=receives, size=size))
        return steps[::-1]

    def _arrives(self, step: Step, resident: set[tuple[int, int]]) -> Bools:
        arrives = step.receives.copy()
        if resident:
            for rank in np.flatnonzero(arrives):
                piece = int(self.kv[step.line.piece[rank], step.sub])
                arrives[rank] = (int(rank), piece) not in resident
        return arrives

    def _alike(self) -> list[Ints]:
        ranks = self.b.ranks
        marks = [self.machine.triple_seconds, *self._areas[ranks, ranks].T]
        for step, arrives in zip(self.steps, self.arrives, strict=True):
            sends = np.zeros(len(ranks), bool)
            sends[step.line.src[step.receives]] = True
            work = np.where(step.receives, self._areas[ranks, step.line.piece, step.sub], -1.0)
            marks += [sends, work, arrives]
        rows = np.ascontiguousarray(np.vstack(marks).T.astype(np.float64))
        groups: dict[bytes, list[int]] = {}
        for rank in ranks:
            groups.setdefault(rows[rank].tobytes(), []).append(int(rank))
        return [np.array(group) for group in groups.values()]

    def _sittings(self, rank: int) -> list[Sitting]:
        speed = self.b.workload.heads * self.machine.triple_seconds[rank]
        work = [
            Work(
                number=-1 - sub,
                ready=0.0,
                seconds=self.area(rank, rank, sub) * speed,
                crosses=False,
                urgency=2 + sub if self.backward else 0,
            )
            for sub in range(self.pieces)
            if self.area(rank, rank, sub) > 0
        ]
        for number, step in enumerate(self.steps):
            owner = int(step.line.piece[rank])
            if not step.receives[rank] or self.area(rank, owner, step.sub) == 0:
                continue
            crosses = self.crosses(step.line)
            work.append(
                Work(
                    number=number,
                    ready=step.end if self.arrives[number][rank] else 0.0,
                    seconds=self.area(rank, owner, step.sub) * speed,
                    crosses=crosses,
                    urgency=int(not crosses) if self.backward else 0,
                )
            )
        most = max((item.seconds for item in work), default=0.0) * self.pieces
        return order_attends(
            work,
            overhead=self.machine.overhead,
            mix=not self.remerge,
            most=most if self.backward else float("inf"),
        )

    def kv_stays(self, rank: int, sittings: list[Sitting]) -> list[Stay]:
        """List how long each piece that arrives at a rank is needed there."""
        passed_on: dict[tuple[Path, int], float] = {}
        for step in self.steps:
            source = (step.line.held, step.sub)
            passed_on[source] = max(passed_on.get(source, 0.0), step.end)
        attended = {number: sitting.end for sitting in sittings for number in sitting.numbers}
        return [
            Stay(
                ("kv", number),
                step.start,
                max(
                    step.end,
                    attended.get(number, 0.0),
                    passed_on.get((step.line.got, step.sub), 0.0),
                ),
            )
            for number, step in enumerate(self.steps)
            if self.arrives[number][rank]
        ]

    def write_exchange(self, slots: list[Ints]) -> None:
        """Write the KV transfers; ``slots`` gives each step's slot on each rank."""
        for step, arrives, slot in zip(self.steps, self.arrives, slots, strict=True):
            r = np.flatnonzero(arrives)
            self.b.transfer(
                src=step.line.src[r],
                dst=r,
                items=self.kv[step.line.piece[r], step.sub],
                level=step.level,
                stream=self.stream(step.line),
                slot=slot[r],
                order=step.start,
            )

    def write_attends(
        self, *, query_slot: int, key_slots: list[dict[int, int]] | None = None
    ) -> None:
        """Write the attends.

        Args:
            query_slot: Slot where part 1 of a rank's ``o`` or ``dq`` is kept.
            key_slots: Backward: per group, the slot of each step's (or own sub-piece's) ``dkv``.
        """
        for group, (ranks, sittings) in enumerate(zip(self.groups, self.sittings, strict=True)):
            for sitting in sittings:
                part = int(self.remerge and sitting.crosses)
                keys = [self._piece(number, ranks) for number in sitting.numbers]
                slots = key_slots[group] if key_slots else {}
                self.b.attend(
                    rank=ranks,
                    queries=self.q[ranks],
                    keys=np.stack(keys, axis=1),
                    stream=CROSS if part else LOCAL,
                    part=part,
                    query_slot=query_slot if part else HOME,
                    key_slot=np.array([[slots.get(number, HOME) for number in sitting.numbers]]),
                    order=sitting.start,
                )

    def _piece(self, number: int, ranks: Ints) -> Ints:
        """Give the KV item that a sitting's number means on each of some ranks."""
        if number < 0:
            return self.kv[ranks, -1 - number]
        step = self.steps[number]
        return self.kv[step.line.piece[ranks], step.sub]

    def write_merge(self, kind: str) -> None:
        """Write the merge of part 1 of each rank's ``o`` or ``dq`` into part 0, at the end."""
        if not self.remerge:
            return
        inputs, outputs = self.b.shards(kind, part=1), self.b.shards(kind)
        for ranks, sittings in zip(self.groups, self.sittings, strict=True):
            if any(sitting.crosses for sitting in sittings):
                self.b.merge(
                    rank=ranks,
                    inputs=inputs[ranks],
                    output=outputs[ranks],
                    stream=LOCAL,
                    order=2 * self.end + 1,
                )
