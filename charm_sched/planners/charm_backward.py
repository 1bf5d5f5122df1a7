"""The backward of CHARM+: KV out on the forward's lines, gradients home on the same lines reversed.

A rank that attended a piece holds a partial ``dkv`` of it. It sends that, with what its own
receivers sent it, back to the rank that the piece came from. So the gradients of a piece are
summed inside each domain, and leave it once.

Contributions after the first are staged in slots of their own: no kernel and no transfer waits for
another one's sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.items import HOME
from charm_sched.planners.agenda import LOCAL, Agenda
from charm_sched.planners.hierarchy import Path
from charm_sched.planners.timetable import Sitting, Stay, allot_slots


@dataclass(slots=True, kw_only=True)
class _Return:
    """The planned way back of one step's gradients."""

    start: float = 0.0
    end: float = 0.0
    level: int = 0


@dataclass(slots=True)
class _Sum:
    """What adds up in one partial result on a rank: (start, end, contributor), and its last use."""

    contributions: list[tuple[float, float, tuple[str, int]]] = field(default_factory=list)
    until: float = 0.0


def write_backward(agenda: Agenda) -> None:
    """Write the backward plan of an agenda."""
    attended = [
        {number: sitting for sitting in sittings for number in sitting.numbers}
        for sittings in agenda.sittings
    ]
    returns = _plan_returns(agenda, attended)
    finish = max([agenda.end, *(way.end for way in returns)])
    kv_slots, first = _kv_slots(agenda)
    back_slots = [np.full(agenda.b.num_ranks, HOME) for _ in agenda.steps]
    key_slots: list[dict[int, int]] = []
    most = first
    for ranks, sittings in zip(agenda.groups, attended, strict=True):
        sums = _sums(agenda, int(ranks[0]), sittings, returns, finish)
        slots, count = _place(sums, first, agenda.slack)
        for (kind, number), slot in slots.items():
            if kind == "back":
                back_slots[number][ranks] = slot
        key_slots.append({number: slot for (kind, number), slot in slots.items() if kind == "own"})
        most = max(most, count)
    agenda.write_attends(query_slot=most, key_slots=key_slots)
    agenda.write_exchange(kv_slots)
    _write_returns(agenda, returns, back_slots)
    agenda.write_merge("dq")
    _write_merges(agenda, finish)


def _kv_slots(agenda: Agenda) -> tuple[list[Ints], int]:
    slots = [np.full(agenda.b.num_ranks, HOME) for _ in agenda.steps]
    most = agenda.first_slot
    for ranks, sittings in zip(agenda.groups, agenda.sittings, strict=True):
        numbers, count = allot_slots(agenda.kv_stays(int(ranks[0]), sittings), slack=agenda.slack)
        for key, number in numbers.items():
            slots[key[1]][ranks] = agenda.first_slot + number
        most = max(most, agenda.first_slot + count)
    return slots, most


def _plan_returns(agenda: Agenda, attended: list[dict[int, Sitting]]) -> list[_Return]:
    """Plan when each step's gradients go back: inner tiers first, each in order of readiness."""
    work = agenda.b.workload
    growth = work.row_bytes("dkv") / work.row_bytes("kv")
    returns = [_Return() for _ in agenda.steps]
    children_end: dict[tuple[Path, int], float] = {}
    for depth in reversed(range(len(agenda.machine.paces))):
        here = [n for n, step in enumerate(agenda.steps) if step.line.depth == depth]
        ready = {}
        for number in here:
            step = agenda.steps[number]
            ends = [sittings[number].end for sittings in attended if number in sittings]
            ready[number] = max([0.0, *ends, children_end.get((step.line.got, step.sub), 0.0)])
        together = _levels_of(agenda, here, ready)
        clock = 0.0
        for level, numbers in enumerate(together):
            begin = clock = max(clock, max(ready[number] for number in numbers))
            for number in numbers:
                step, way = agenda.steps[number], returns[number]
                way.level, way.start = level, begin
                clock = way.end = agenda.machine.paces[depth].end(clock, step.size * growth)
                source = (step.line.held, step.sub)
                children_end[source] = max(children_end.get(source, 0.0), way.end)
    if not agenda.decouple:
        starts = sorted({way.start for way in returns})
        for way in returns:
            way.level = starts.index(way.start)
    return returns


def _levels_of(agenda: Agenda, here: list[int], ready: dict[int, float]) -> list[list[int]]:
    """Put steps into levels: one each, or all of one held piece together."""
    order = sorted(here, key=lambda number: (ready[number], number))
    if agenda.levels:
        return [[number] for number in order]
    groups: dict[tuple[Path, int], list[int]] = {}
    for number in order:
        step = agenda.steps[number]
        groups.setdefault((step.line.held, step.sub), []).append(number)
    return sorted(groups.values(), key=lambda numbers: max(ready[n] for n in numbers))


def _sums(
    agenda: Agenda,
    rank: int,
    attended: dict[int, Sitting],
    returns: list[_Return],
    finish: float,
) -> dict[tuple[str, int, int], _Sum]:
    """List what adds up on a rank.

    Keys are ("step", number of the step that brought the piece, 0), ("home", sub-piece, 0) or
    ("home", sub-piece, 1) for what comes from outside and is merged at the end.
    """
    sums: dict[tuple[str, int, int], _Sum] = {}
    brought = {}
    for number, step in enumerate(agenda.steps):
        if step.receives[rank]:
            brought[step.line.got, step.sub] = number
            sums["step", number, 0] = _Sum(until=returns[number].end)
    for number, sitting in attended.items():
        key = ("step", number, 0) if number >= 0 else ("home", -1 - number, 0)
        entry = (sitting.start, sitting.end, ("own", number))
        sums.setdefault(key, _Sum()).contributions.append(entry)
    for number, step in enumerate(agenda.steps):
        if rank not in step.line.src[step.receives]:
            continue
        if step.line.held:
            key = ("step", brought[step.line.held, step.sub], 0)
        else:
            key = ("home", step.sub, agenda.part(step.line))
        way = returns[number]
        entry = (way.start, way.end, ("back", number))
        sums.setdefault(key, _Sum(until=2 * finish + 2)).contributions.append(entry)
    return sums


def _place(
    sums: dict[tuple[str, int, int], _Sum], first_slot: int, slack: float
) -> tuple[dict[tuple[str, int], int], int]:
    """Give every contribution its slot, and say where the slots end."""
    stays = []
    for (kind, _, part), total in sums.items():
        # Attends come before transfers where both start at once, as the builder sorts them.
        total.contributions.sort(key=lambda entry: (entry[0], entry[2][0] != "own", entry[2][1]))
        end = 0.0
        for index, (start, own_end, contributor) in enumerate(total.contributions):
            end = max(end, own_end)
            if index:
                stays.append(Stay(contributor, start, end))
            elif kind == "step" or part:
                stays.append(Stay(contributor, start, max(total.until, own_end)))
    numbers, count = allot_slots(stays, slack=slack)
    slots = {key: first_slot + number for key, number in numbers.items()}
    return slots, first_slot + count


def _write_returns(agenda: Agenda, returns: list[_Return], slots: list[Ints]) -> None:
    b = agenda.b
    dkv = [b.pieces("dkv", agenda.pieces, part=part) for part in (0, 1)]
    for step, way, slot in zip(agenda.steps, returns, slots, strict=True):
        r = np.flatnonzero(step.receives)
        src = step.line.src[r]
        b.transfer(
            src=r,
            dst=src,
            items=dkv[agenda.part(step.line)][step.line.piece[r], step.sub],
            level=way.level,
            stream=f"{agenda.stream(step.line)}-gradients",
            slot=slot[src],
            order=way.start,
        )


def _write_merges(agenda: Agenda, finish: float) -> None:
    """Write the merges of gradients that came from outside into the owner's own."""
    if not agenda.remerge:
        return
    b = agenda.b
    inputs, outputs = (b.pieces("dkv", agenda.pieces, part=part) for part in (1, 0))
    for sub in range(agenda.pieces):
        owners = {
            int(rank)
            for step in agenda.steps
            if step.sub == sub and not step.line.held and agenda.part(step.line)
            for rank in step.line.src[step.receives]
        }
        r = np.array(sorted(owners), np.int64)
        if len(r):
            b.merge(
                rank=r,
                inputs=inputs[r, sub],
                output=outputs[r, sub],
                stream=LOCAL,
                order=2 * finish + 1,
            )
