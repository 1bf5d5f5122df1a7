"""Every wait of a plan under both rules."""

from __future__ import annotations

import pytest

from charm_sched.errors import PlanError
from charm_sched.partition import Partition
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.proof.waits import Waits, find_waits
from charm_sched.workload import Workload


def relay() -> Plan:
    """0 sends to 1 (row 0), which computes (1), passes it on (2) and sends its own (3, 4)."""
    work = Workload(seq_len=30, heads=1, head_dim=1, mask="full")
    b = Builder(work, Partition.contiguous(30, 3))
    q, kv = b.shards("q"), b.shards("kv")
    b.transfer(src=0, dst=1, items=kv[0], level=0, stream="in", slot=0)
    b.attend(rank=1, queries=q[1], keys=kv[0])
    b.transfer(src=1, dst=2, items=kv[0], level=0, stream="out", slot=0)
    b.transfer(src=1, dst=0, items=kv[1], level=0, stream="out", slot=0)
    b.transfer(src=1, dst=2, items=kv[1], level=5, stream="out", slot=1)
    return b.build()


def causes(waits: Waits, row: int) -> set[int]:
    """Rows that a row waits for, through gates."""
    ptr, before = waits.reversed()
    found: set[int] = set()
    frontier = [row]
    while frontier:
        node = frontier.pop()
        for cause in before[ptr[node] : ptr[node + 1]].tolist():
            if cause < waits.num_ops:
                found.add(cause)
            else:
                frontier.append(cause)
    return found


def test_grouped_ties_a_batch_together() -> None:
    waits = find_waits(relay(), "grouped")
    assert [causes(waits, row) for row in range(5)] == [set(), {0}, {0}, {0}, {2, 3}]


def test_free_waits_for_the_own_input_and_the_previous_batch() -> None:
    waits = find_waits(relay(), "free")
    assert [causes(waits, row) for row in range(5)] == [set(), {0}, {0}, set(), {2, 3}]


def test_kernels_queue_on_their_rank_and_stream() -> None:
    work = Workload(seq_len=20, heads=1, head_dim=1, mask="full")
    b = Builder(work, Partition.contiguous(20, 2))
    for stream, part in (("a", 0), ("b", 1), ("a", 0)):
        b.attend(rank=b.ranks, queries=b.shards("q"), keys=b.shards("kv"), stream=stream,
                 part=part, query_slot=part - 1)  # fmt: skip
    waits = find_waits(b.build())
    assert [causes(waits, row) for row in range(6)] == [set(), set(), set(), set(), {0}, {1}]


def test_counts_are_what_points_at_a_node() -> None:
    waits = find_waits(relay())
    ptr, _ = waits.reversed()
    assert (ptr[1:] - ptr[:-1]).tolist() == waits.count.tolist()
    assert len(waits.after) == waits.count.sum() == waits.ptr[-1]


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(PlanError, match="expected grouped or free, found 'x'"):
        find_waits(relay(), "x")
