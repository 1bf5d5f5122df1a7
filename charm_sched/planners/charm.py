"""CHARM+: leveled exchange, decoupled across and inside domains, re-merged streams.

After the abstract of arXiv:2611.05906 (the only part that is public): the exchange of KV is
organised in levels whose transfers run in parallel and overlap with computation; the exchange
across hardware boundaries has a stream of its own, so that neither it nor the exchange inside
waits for the other; the partial results of several streams are merged again. What the abstract
leaves open is decided here:

* Any number of tiers. A piece enters each domain of every tier once, through the counterpart of its
  owner, and is passed on inside (`hierarchy`); more often just where links between domains would
  idle otherwise (`messages`).
* One peer per message. Each tier has a lane, or more where one would wait. A list
  schedule (`timetable`) fixes their order: own pieces first, then what arrives; in the backward
  first what arrives, as its gradients have a longer way home.
* Shards are cut into cells (`cells`), so that what a mask hides moves to nobody, and
  kernels are dense rectangles.
* A rank attends what has arrived as one kernel, in planned order of arrival (`sittings`).
* Backward: the same lines, read backwards, bring the gradients home, summed inside a domain before
  they cross (`charm_backward`). What has the longest way home is attended first. Each message is
  planned by itself, together with the kernels (`pair_agenda`, `dispatch`), by several `rules`.
"""

from __future__ import annotations

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.errors import StrategyError
from charm_sched.planners.agenda import Agenda
from charm_sched.planners.cells import Cells
from charm_sched.planners.charm_backward import write_backward
from charm_sched.planners.exchange import moved_items
from charm_sched.planners.hierarchy import Tree
from charm_sched.planners.machine import machine_of
from charm_sched.planners.messages import Messages, suitable_pieces
from charm_sched.planners.pair_agenda import MOST_RANKS_PAIRED, PairAgenda
from charm_sched.planners.sittings import Stay, allot_slots
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import HOME


def charm(
    b: Builder,
    *,
    pieces: int = 0,
    lanes: int = 0,
    top_up: bool = True,
    apart: bool = True,
    pairs: bool = True,
    levels: bool = True,
    decouple: bool = True,
    remerge: bool = True,
    save: bool = False,
    domains: Tree | None = None,
) -> None:
    """Write CHARM+.

    Args:
        b: The builder.
        pieces: Sub-pieces that each shard moves in; 0 for as many as latency allows.
        lanes: Streams of each tier, which take turns; 0 for as many as pay. Not with ``pairs``.
        top_up: Let idle links between domains bring pieces to more ranks than one; with more than
            128 ranks they never do.
        apart: Choose the ways of KV and of gradients apart, link by link, where the ranks of a
            backward owe different amounts.
        pairs: Backward: plan each message by itself, with up to 16 ranks; False: all ranks alike.
        levels: Ablation: False sends to all peers of a tier at once.
        decouple: Ablation: False ties the levels of all tiers together in one stream.
        remerge: Ablation: False computes everything in one stream, with nothing to merge.
        save: Forward: keep all KV that arrives resident for the backward, which then moves none.
        domains: Nested ranks, instead of the topology's domains.

    Raises:
        StrategyError: ``pieces`` or ``lanes`` below 0, or ``domains`` that are not the ranks.
    """
    for name, count in (("pieces", pieces), ("lanes", lanes)):
        if count < 0:
            raise StrategyError(f"charm: expected {name} of 0 or more, found {count}")
    machine, backward = machine_of(b, domains), b.direction == "backward"
    pairs = pairs and backward and levels and decouple and b.num_ranks <= MOST_RANKS_PAIRED
    messages = Messages(
        b,
        machine,
        Cells(b, pieces or suitable_pieces(b, machine)),
        lanes=lanes if levels and decouple else 1,
        top_up=top_up,
        apart=apart,
        pairs=pairs,
        growth=b.workload.row_bytes("dkv") / b.workload.row_bytes("kv") if backward else 0.0,
    )
    kind = PairAgenda if pairs else Agenda
    agenda = kind(b, machine, messages, levels=levels, decouple=decouple, remerge=remerge)
    if backward:
        write_backward(agenda)
        return
    slots, count = _kv_slots(agenda, save=save)
    agenda.write_attends(query_slot=count)
    agenda.write_exchange(slots)
    agenda.write_merge("o")
    if save:
        _keep(agenda, slots)


def _keep(agenda: Agenda, slots: list[Ints]) -> None:
    """Keep all KV that arrives where it is."""
    for step, slot in zip(agenda.steps, slots, strict=True):
        r = np.flatnonzero(step.moves.any(axis=1))
        items = moved_items(step, agenda.cells.kv, step.moves, r)
        for column in range(items.shape[1]):
            agenda.b.keep(rank=r, items=items[:, column], slot=slot[r, column])


def _kv_slots(agenda: Agenda, *, save: bool) -> tuple[list[Ints], int]:
    """Give the slots of each step's cells on each rank, and how many slots there are."""
    slots = [np.full(step.moves.shape, HOME) for step in agenda.steps]
    most = 0
    for ranks, sittings in zip(agenda.groups, agenda.sittings, strict=True):
        stays = agenda.kv_stays(int(ranks[0]), sittings)
        if save:
            stays = [Stay(stay.key, stay.start, float("inf")) for stay in stays]
        numbers, count = allot_slots(stays, slack=agenda.slack)
        for (_, step, cell), number in numbers.items():
            slots[step][ranks, cell - agenda.steps[step].cells.start] = number
        most = max(most, count)
    return slots, most
