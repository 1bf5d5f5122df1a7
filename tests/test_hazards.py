"""Derived waits are enough: whatever the timing, slots hold what is read, and sums are complete."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import cases

from charm_sched.plans.items import HOME, Item
from charm_sched.plans.ops import Attend, Merge, Op, Transfer
from charm_sched.plans.plan import Plan
from charm_sched.proof.hazards import Edges, find_hazards
from charm_sched.proof.verifier import verify

COPIED = ("q", "kv", "g")
Place = tuple[int, int]  # rank, slot
Name = tuple[int, str, int, tuple[tuple[int, int], ...]]  # rank, kind, part, rows: a partial result


def accesses(plan: Plan, op: Op) -> Iterator[tuple[str, int, str, Item, int, int]]:
    """Yield (read or write, rank, kind, item, part, slot) of an op, as its docstring says."""
    backward = plan.direction == "backward"
    match op:
        case Transfer():
            for item, slot in op.items:
                yield "read", op.src, item.kind, item, item.part, HOME
                yield "write", op.dst, item.kind, item, item.part, slot
        case Attend():
            for item, slot in op.queries:
                yield "read", op.rank, "q", item, 0, HOME
                if backward:
                    yield "read", op.rank, "g", item, 0, HOME
                yield "write", op.rank, "dq" if backward else "o", item, op.part, slot
            for item, slot in op.keys:
                yield "read", op.rank, "kv", item, 0, HOME
                if backward:
                    yield "write", op.rank, "dkv", item, op.part, slot
        case Merge():
            for item, _ in op.inputs:
                yield "read", op.rank, item.kind, item, item.part, HOME
            item, slot = op.output
            yield "write", op.rank, item.kind, item, item.part, slot


class Expected:
    """What each op reads, in program order: the copy's slot and writer, the sum's contributors."""

    def __init__(self, plan: Plan) -> None:
        self.copies: dict[int, list[tuple[Place, int]]] = {}
        self.sums: dict[int, list[list[int]]] = {}
        self.puts: dict[int, list[Place]] = {}
        self.holds: list[tuple[Place, int, list[int]]] = []  # staged: place, row, earlier rows
        self.blocks: list[tuple[Place, list[int], int | None]] = []  # home slot, rows, ending row
        where: dict[tuple[int, Item], tuple[Place, int]] = {}
        slots: dict[Place, tuple[int, Item]] = {}
        for rank, item, slot in zip(plan.saved.rank, plan.saved.item, plan.saved.slot, strict=True):
            if plan.direction == "backward":
                where[int(rank), plan.items[item]] = (int(rank), int(slot)), -1
        live: dict[Name, tuple[Place, list[int]]] = {}
        for row, op in enumerate(plan.ops()):
            self.copies[row], self.sums[row], self.puts[row] = [], [], []
            for way, rank, kind, item, part, slot in accesses(plan, op):
                owner = set(item.rows) <= set(plan.partition.shards[rank]) or any(
                    all(a <= f and last <= b for f, last in item.rows)
                    for a, b in plan.partition.shards[rank]
                )
                name = (rank, kind, part, item.rows)
                if kind in COPIED and way == "read":
                    if not owner and (rank, item) in where:
                        self.copies[row].append(where[rank, item])
                elif kind in COPIED:
                    where[rank, item] = (rank, slot), row
                    slots[rank, slot] = (row, item)
                    self.puts[row].append((rank, slot))
                elif way == "read":
                    place, rows = live.pop(name)
                    self.sums[row].append(rows)
                    self.blocks.append((place, rows, row))
                elif name not in live:
                    home = HOME if owner and part == 0 else slot
                    live[name] = ((rank, home), [row])
                    if slot not in (HOME, home):
                        self.holds.append(((rank, slot), row, []))
                else:
                    place, rows = live[name]
                    if slot not in (HOME, place[1]):
                        self.holds.append(((rank, slot), row, rows.copy()))
                    rows.append(row)
        for place, rows in live.values():
            self.blocks.append((place, rows, None))


def any_order(plan: Plan, edges: Edges, seed: int) -> list[int]:
    """Give a random order of ops that keeps the waits, and rows of a compute stream in order."""
    draw = random.Random(seed)
    count = len(plan)
    waits = np.zeros(count, int)
    after: list[list[int]] = [[] for _ in range(count)]
    pairs = list(zip(edges.before.tolist(), edges.after.tolist(), strict=True))
    last: dict[tuple[int, str], int] = {}
    for row, op in enumerate(plan.ops()):
        if not isinstance(op, Transfer):
            queue = (op.rank, op.stream)
            if queue in last:
                pairs.append((last[queue], row))
            last[queue] = row
    for before, later in pairs:
        after[before].append(later)
        waits[later] += 1
    ready = [row for row in range(count) if not waits[row]]
    order = []
    while ready:
        row = ready.pop(draw.randrange(len(ready)))
        order.append(row)
        for later in after[row]:
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    assert len(order) == count
    return order


def check_order(plan: Plan, expected: Expected, order: list[int]) -> None:
    """Fail where an op of this order would read something else than in program order."""
    at = {row: i for i, row in enumerate(order)}
    at[-1] = -1
    writers: dict[Place, list[int]] = {}
    for row in range(len(plan)):
        for place in expected.puts[row]:
            writers.setdefault(place, []).append(row)
    spans: dict[Place, list[tuple[int, int, int]]] = {}
    for place, rows in writers.items():
        for row in rows:
            reads = [r for r in range(len(plan)) if (place, row) in expected.copies[r]]
            end = max([at[row], *(at[r] for r in reads)])
            spans.setdefault(place, []).append((at[row], end, row))
            assert all(at[r] > at[row] for r in reads), f"op {row} read before it ended"
    for place, row, earlier in expected.holds:
        end = max([at[row], *(at[r] for r in earlier)])
        spans.setdefault(place, []).append((at[row], end, row))
    for place, rows, reader in expected.blocks:
        if reader is not None:
            assert all(at[r] < at[reader] for r in rows), f"op {reader} reads an unfinished sum"
        if place[1] != HOME:
            end = len(order) if reader is None else at[reader]
            spans.setdefault(place, []).append((at[rows[0]], end, rows[0]))
    for place, found in spans.items():
        found.sort()
        for (_, end, one), (start, _, other) in pairwise(found):
            assert end < start, f"op {other} overwrites what op {one} put into {place}"


@given(cases.plans(most_ranks=5), st.integers(0, 10))
@settings(max_examples=60)
def test_no_timing_breaks_a_plan(plan: Plan, seed: int) -> None:
    hazards = find_hazards(plan)
    check_order(plan, Expected(plan), any_order(plan, hazards.edges, seed))


@pytest.mark.parametrize("dropped", ["reads", "slots"])
def test_without_either_kind_of_wait_some_timing_breaks(dropped: str) -> None:
    plan = cases.made("ring", 4, cases.small_workload(16), direction="backward")
    edges = find_hazards(plan).edges
    moves = plan.columns.op[edges.after] == 0
    keep = ~edges.at_source if dropped == "reads" else edges.at_source | ~moves
    fewer = Edges(
        before=edges.before[keep], after=edges.after[keep], at_source=edges.at_source[keep]
    )
    expected = Expected(plan)
    broken = 0
    for seed in range(40):
        try:
            check_order(plan, expected, any_order(plan, fewer, seed))
        except AssertionError:
            broken += 1
    assert broken > 30


@given(cases.plans(most_ranks=5))
@settings(max_examples=60)
def test_waits_point_upwards(plan: Plan) -> None:
    edges = verify(plan).hazards.edges
    assert (edges.before < edges.after).all()


def test_peak_memory_of_a_ring_is_its_slots() -> None:
    work = cases.small_workload(32)
    forward, backward = cases.both_ways("ring", 4, work)
    kv, dkv = 8 * work.row_bytes("kv"), 8 * work.row_bytes("dkv")
    q, o = (8 * 2 * work.row_bytes(kind) for kind in ("q", "o"))
    assert verify(forward).peak_bytes.tolist() == [q + kv + o + 2 * kv] * 4
    g, dq = (8 * 2 * work.row_bytes(kind) for kind in ("g", "dq"))
    home = q + kv + g + dq + dkv
    assert verify(backward).peak_bytes.tolist() == [home + 2 * kv + 3 * dkv] * 4
