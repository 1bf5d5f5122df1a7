"""CHARM+: leveled exchange, decoupled across and inside domains, re-merged streams.

After the abstract of arXiv:2611.05906 (the only part that is public): the exchange of KV is
organised in levels whose transfers run in parallel and overlap with computation; the exchange
across hardware boundaries has a stream of its own, so that neither it nor the exchange inside
waits for the other; the partial results of several streams are merged again. What the abstract
leaves open is decided here:

* Any number of tiers. A piece enters each domain of every tier exactly once, through the
  counterpart of its owner, and is passed on inside (`hierarchy`).
* One peer per level. Own pieces first, then what arrives, in planned order of arrival.
* A rank attends what has arrived as one kernel, in planned order of arrival.
* Backward: the same lines, read backwards, bring the gradients home, summed inside a domain before
  they cross (`charm_backward`). What has the longest way home is attended first.
"""

from __future__ import annotations

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.builder import Builder
from charm_sched.errors import StrategyError
from charm_sched.items import HOME
from charm_sched.planners.agenda import Agenda
from charm_sched.planners.charm_backward import write_backward
from charm_sched.planners.hierarchy import Tree
from charm_sched.planners.machine import machine_of
from charm_sched.planners.timetable import Stay, allot_slots


def charm(
    b: Builder,
    *,
    pieces: int = 1,
    levels: bool = True,
    decouple: bool = True,
    remerge: bool = True,
    save: bool = False,
    domains: Tree | None = None,
) -> None:
    """Write CHARM+.

    Args:
        b: The builder.
        pieces: Sub-pieces that each shard moves in.
        levels: Ablation: False sends to all peers of a tier at once.
        decouple: Ablation: False ties the levels of all tiers together in one stream.
        remerge: Ablation: False computes everything in one stream, with nothing to merge.
        save: Forward: keep all KV that arrives resident for the backward, which then moves none.
        domains: Nested ranks, instead of the topology's domains.

    Raises:
        StrategyError: ``pieces`` below 1, or ``domains`` that are not the ranks.
    """
    if pieces < 1:
        raise StrategyError(f"charm: expected pieces of 1 or more, found {pieces}")
    agenda = Agenda(
        b, machine_of(b, domains), pieces, levels=levels, decouple=decouple, remerge=remerge
    )
    if b.direction == "backward":
        write_backward(agenda)
        return
    slots, count = _kv_slots(agenda, save=save)
    agenda.write_attends(query_slot=count)
    agenda.write_exchange(slots)
    agenda.write_merge("o")
    if save:
        for step, slot in zip(agenda.steps, slots, strict=True):
            r = np.flatnonzero(step.receives)
            b.keep(rank=r, items=agenda.kv[step.line.piece[r], step.sub], slot=slot[r])


def _kv_slots(agenda: Agenda, *, save: bool) -> tuple[list[Ints], int]:
    """Give each step's slot on each rank, and how many slots there are."""
    slots = [np.full(agenda.b.num_ranks, HOME) for _ in agenda.steps]
    most = 0
    for ranks, sittings in zip(agenda.groups, agenda.sittings, strict=True):
        stays = agenda.kv_stays(int(ranks[0]), sittings)
        if save:
            stays = [Stay(stay.key, stay.start, float("inf")) for stay in stays]
        numbers, count = allot_slots(stays, slack=agenda.slack)
        for key, number in numbers.items():
            slots[key[1]][ranks] = number
        most = max(most, count)
    return slots, most
