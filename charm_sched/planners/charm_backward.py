"""The backward of CHARM+: KV out on the forward's lines, gradients home on the same lines reversed.

A rank that attended a piece holds a partial ``dkv`` of it. It sends that, with what its own
receivers sent it, back to the rank that the piece came from. So the gradients of a piece are
summed inside each domain, and leave it once.

Contributions after the first are staged in slots of their own: no kernel and no transfer waits for
another one's sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from charm_sched.arrays import Floats, Ints
from charm_sched.planners.agenda import LOCAL, OWN, Agenda
from charm_sched.planners.exchange import moved_items
from charm_sched.planners.hierarchy import Path
from charm_sched.planners.pair_agenda import PairAgenda
from charm_sched.planners.sittings import Cell, Key, Sitting, Stay, allot_slots
from charm_sched.planners.timetable import Passage
from charm_sched.plans.items import HOME


@dataclass(slots=True)
class _Sum:
    """What adds up in one partial result on a rank: (start, end, contributor), and its last use."""

    contributions: list[tuple[float, float, Key]] = field(default_factory=list)
    until: float = 0.0


_Sums: TypeAlias = dict[tuple[int, int, int], _Sum]


def write_backward(agenda: Agenda) -> None:
    """Write the backward plan of an agenda."""
    attended = [
        {cell: sitting for sitting in sittings for cell in sitting.cells}
        for sittings in agenda.sittings
    ]
    if not isinstance(agenda, PairAgenda):
        _plan_returns(agenda, attended)
    finish = max([agenda.end, *(step.end for step in agenda.returns)])
    kv_slots, first = _kv_slots(agenda)
    back_slots = [np.full(step.takes.shape, HOME) for step in agenda.returns]
    key_slots: list[dict[Cell, int]] = []
    most = first
    for ranks, sittings in zip(agenda.groups, attended, strict=True):
        sums = _sums(agenda, int(ranks[0]), sittings, finish)
        slots, count = _place(sums, int(ranks[0]), first, agenda.slack)
        for (kind, number, cell), slot in slots.items():
            if kind == "back":
                back_slots[number][ranks, cell - agenda.returns[number].cells.start] = slot
        key_slots.append(
            {(number, cell): slot for (kind, number, cell), slot in slots.items() if kind == "own"}
        )
        most = max(most, count)
    agenda.write_attends(query_slot=most, key_slots=key_slots)
    agenda.write_exchange(kv_slots)
    _write_returns(agenda, back_slots)
    agenda.write_merge("dq")
    _write_merges(agenda, finish)


def _kv_slots(agenda: Agenda) -> tuple[list[Ints], int]:
    slots = [np.full(step.moves.shape, HOME) for step in agenda.steps]
    most = agenda.first_slot
    for ranks, sittings in zip(agenda.groups, agenda.sittings, strict=True):
        numbers, count = allot_slots(agenda.kv_stays(int(ranks[0]), sittings), slack=agenda.slack)
        for (_, step, cell), number in numbers.items():
            place = cell - agenda.steps[step].cells.start
            slots[step][ranks, place] = agenda.first_slot + number
        most = max(most, agenda.first_slot + count)
    return slots, most


def _plan_returns(agenda: Agenda, attended: list[dict[Cell, Sitting]]) -> None:
    """Plan when gradients go back: each step after those that join it, as they are ready."""
    work = agenda.b.workload
    growth = work.row_bytes("dkv") / work.row_bytes("kv")
    ranks, ready = agenda.b.ranks, _attended_until(agenda, attended)
    joining: dict[tuple[Path, int], list[Passage]] = {}
    shared: dict[tuple[int, Path, range], Passage] = {}
    passages: list[Passage] = []
    for step in sorted(agenda.returns, key=lambda step: -step.line.depth):
        line = step.line
        passage = None if agenda.levels else shared.get((line.depth, line.held, step.subs))
        if passage is None:
            far_first = float(agenda.messages.apart and not line.held)
            passage = Passage(depth=line.depth, order=(far_first,))
            shared[line.depth, line.held, step.subs] = passage
            passages.append(passage)
        ends = ready[ranks, line.piece, step.cells.start : step.cells.stop]
        passage.ready = max(passage.ready, float((ends * step.takes).max()))
        passage.size += step.size * growth
        for sub in step.subs:
            for before in joining.get((line.got, sub), ()):
                if before not in passage.after:
                    passage.after.append(before)
            joining.setdefault((line.held, sub), []).append(passage)
        step.passage = passage
    agenda.plan_passages(passages)


def _attended_until(agenda: Agenda, attended: list[dict[Cell, Sitting]]) -> Floats:
    """Give when each rank has attended each owner's cell, ``[rank, owner, cell]``."""
    ends = np.zeros_like(agenda.seconds)
    for ranks, sittings in zip(agenda.groups, attended, strict=True):
        for (number, cell), sitting in sittings.items():
            owners = ranks if number == OWN else agenda.steps[number].line.piece[ranks]
            ends[ranks, owners, cell] = sitting.end
    return ends


def _sums(
    agenda: Agenda,
    rank: int,
    attended: dict[Cell, Sitting],
    finish: float,
) -> _Sums:
    """List what adds up on a rank.

    Keys are (owner, cell, 0), or (owner, cell, 1) for what the owner itself gets from outside its
    domain and merges at the end.
    """
    sums: _Sums = {}
    for step in agenda.returns:
        for index in np.flatnonzero(step.takes[rank]).tolist():
            sums[int(step.line.piece[rank]), step.cells[index], 0] = _Sum(until=step.span(rank)[1])
    for (number, cell), sitting in attended.items():
        entry = (sitting.start, sitting.end, ("own", number, cell))
        key = (agenda.owner(number, rank), cell, 0)
        sums.setdefault(key, _Sum()).contributions.append(entry)
    for number, step in enumerate(agenda.returns):
        part = 0 if step.line.held else agenda.part(step.line)
        for child, index in np.argwhere(step.takes & (step.line.src == rank)[:, None]).tolist():
            cell = step.cells[index]
            key = (int(step.line.piece[child]), cell, part)
            entry = (*step.span(child), ("back", number, cell))
            sums.setdefault(key, _Sum(until=2 * finish + 2)).contributions.append(entry)
    return sums


def _place(sums: _Sums, rank: int, first_slot: int, slack: float) -> tuple[dict[Key, int], int]:
    """Give every contribution its slot, and say where the slots end."""
    stays = []
    for (owner, _, part), total in sums.items():
        # Attends come before transfers where both start at once, as the builder sorts them.
        total.contributions.sort(key=lambda entry: (entry[0], entry[2][0] != "own", entry[2][1:]))
        end = 0.0
        for index, (start, own_end, contributor) in enumerate(total.contributions):
            end = max(end, own_end)
            if index:
                stays.append(Stay(contributor, start, end))
            elif owner != rank or part:
                stays.append(Stay(contributor, start, max(total.until, own_end)))
    numbers, count = allot_slots(stays, slack=slack)
    return {key: first_slot + number for key, number in numbers.items()}, first_slot + count


def _write_returns(agenda: Agenda, slots: list[Ints]) -> None:
    dkv = [agenda.cells.items("dkv", part=part) for part in (0, 1)]
    for step, slot in zip(agenda.returns, slots, strict=True):
        for lane, r, level, start in step.by_lane(step.takes):
            src = step.line.src[r]
            stream = agenda.stream(step.line.depth, lane)
            agenda.b.transfer(
                src=r,
                dst=src,
                items=moved_items(step, dkv[agenda.part(step.line)], step.takes, r),
                level=level,
                stream=f"{stream}-gradients" if step.passage else stream,
                slot=slot[src],
                order=start,
            )


def _write_merges(agenda: Agenda, finish: float) -> None:
    """Write the merges of gradients that came from outside into the owner's own."""
    if not agenda.remerge:
        return
    inputs, outputs = (agenda.cells.items("dkv", part=part) for part in (1, 0))
    returns = np.zeros(inputs.shape, bool)
    for step in agenda.returns:
        if not step.line.held and agenda.part(step.line):
            ranks, places = np.nonzero(step.takes)
            returns[step.line.src[ranks], step.cells.start + places] = True
    for cell in range(agenda.cells.count):
        r = np.flatnonzero(returns[:, cell])
        if len(r):
            agenda.b.merge(
                rank=r,
                inputs=inputs[r, cell],
                output=outputs[r, cell],
                stream=LOCAL,
                order=2 * finish + 1,
            )
