"""Layouts, windows, head runs, and what a rank's program says."""

from __future__ import annotations

import dataclasses

import attention_cases as cases
import numpy as np
import pytest
import torch
from custom_planners import scattered
from support import brute

from charm_sched.errors import PlanError, RuntimeFailure
from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import Item
from charm_sched.plans.plan import TRANSFER, Residents, program
from charm_sched.proof.hazards import find_hazards
from charm_sched.runtime.layout import layout_of, window_in
from charm_sched.runtime.numerics import Precision
from charm_sched.runtime.prepare import head_runs, prepare
from charm_sched.runtime.program import Receive, Send
from charm_sched.runtime.sharding import join, shard
from charm_sched.workload import Workload


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("grad_dtype", [None, "bf16"])
def test_messages_have_the_bytes_that_the_plan_counts(dtype: str, grad_dtype: str | None) -> None:
    work = Workload(
        seq_len=19, batch=2, heads=6, kv_heads=2, head_dim=5, v_head_dim=3, dtype=dtype,
        grad_dtype=grad_dtype,
    )  # fmt: skip
    schedule = cases.make_schedule(scattered, work, "zigzag", 3, {"seed": 3})
    seen = 0
    for plan in schedule.plans:
        for rank in range(3):
            for step in prepare(plan, rank).steps:
                if isinstance(step, Send | Receive):
                    assert step.layout.nbytes == plan.op_bytes[step.row]
                    seen += 1
    assert seen > 20


def test_what_is_final_is_the_only_thing_that_comes_home() -> None:
    seen = 0
    for seed in range(12):
        mask = ("full", "docs:2,4")[seed % 2]
        work = Workload(seq_len=6, heads=4, kv_heads=2, head_dim=1, mask=mask)
        for plan in cases.make_schedule(scattered, work, "contiguous", 3, {"seed": seed}).plans:
            moves = np.repeat(plan.columns.op == TRANSFER, np.diff(plan.columns.ptr))
            assert plan.finals[moves].tolist() == brute.finals(plan)
            seen += int(plan.finals.sum())
    assert seen > 20


def test_a_final_result_is_rounded_into_its_message_with_an_exact_log_sum_exp() -> None:
    work = Workload(seq_len=8, heads=4, kv_heads=4, head_dim=4, mask="full")
    plan = cases.make_schedule("ulysses", work, "contiguous", 4).forward
    *_, last = (step for step in prepare(plan, 0).steps if isinstance(step, Send))
    assert [spec.dtype for spec in last.layout.items[0]] == [torch.bfloat16, torch.float32]
    assert last.whole is None
    *_, last = (step for step in prepare(plan, 0).steps if isinstance(step, Receive))
    assert last.direct is None


def test_fields_are_aligned_whatever_their_sizes() -> None:
    """An odd number of bf16 numbers must not push fp32 numbers off their boundary."""
    work = Workload(seq_len=5, heads=3, head_dim=3, dtype="bf16", grad_dtype="bf16")
    items = [Item(kind, ((0, 1),), (0, 3)) for kind in ("q", "g", "o", "dkv", "g")]
    layout = layout_of(items, work, Precision.of(work), finals=[False] * len(items))
    buffer = torch.zeros(layout.nbytes, dtype=torch.uint8)
    fields = [field for fields in layout.views(buffer) for field in fields]
    assert [field.dtype.itemsize for field in fields] == [2, 2, 4, 4, 2, 4, 2, 2, 2, 4, 4]
    for number, field in enumerate(fields):
        field.fill_(number + 1)
    for number, field in enumerate(fields):
        assert (field == number + 1).all(), "fields overlap"


def test_ring_sends_what_lies_in_slots_without_packing_it() -> None:
    work = Workload(seq_len=16, heads=2, head_dim=4, mask="full")
    plan = cases.make_schedule("ring", work, "contiguous", 4).forward
    steps = prepare(plan, 0).steps
    assert [s.whole is None for s in steps if isinstance(s, Send)] == [True, False, False]
    assert all(s.direct is not None for s in steps if isinstance(s, Receive))


@pytest.mark.parametrize("name", PLANNERS)
def test_programs_take_every_op_once_per_end(name: str) -> None:
    work = Workload(seq_len=40, heads=cases.heads_for(name, 5, 2), head_dim=4)
    for plan in cases.make_schedule(name, work, "zigzag", 5).plans:
        for rank in range(5):
            assert [s.row for s in prepare(plan, rank).steps] == program(plan, rank).tolist()


def test_a_level_waits_for_the_level_before_on_its_stream_alone() -> None:
    work = Workload(seq_len=4, heads=1, head_dim=1, mask="full")
    b = Builder(work, Partition.contiguous(4, 4))
    kv = b.shards("kv")
    b.transfer(src=0, dst=1, items=kv[0], level=0, stream="a", slot=0)
    b.transfer(src=0, dst=2, items=kv[0], level=0, stream="a", slot=0)
    b.transfer(src=0, dst=3, items=kv[0], level=4, stream="a", slot=0)
    b.transfer(src=0, dst=3, items=kv[0], level=5, stream="b", slot=1)
    found = prepare(b.build(), 0)
    assert found.waits == (0, 0, 1, 0)
    assert found.gates == (((0, 1), (2,)),)


def test_attends_of_one_compute_stream_run_in_order() -> None:
    work = Workload(seq_len=4, heads=1, head_dim=1, mask="full")
    b = Builder(work, Partition.contiguous(4, 1))
    halves, queries = b.pieces("kv", 2), b.pieces("q", 2)
    b.attend(rank=0, queries=queries[0, 0], keys=halves[0, 0], stream="x")
    b.attend(rank=0, queries=queries[0, 1], keys=halves[0, 0], stream="x")
    b.attend(rank=0, queries=queries[0, 1], keys=halves[0, 1], stream="y", query_slot=0)
    found = prepare(b.build(), 0)
    assert found.waits == (0, 1, 0)
    assert found.releases[0] == (1,)


def test_slots_are_as_large_as_the_largest_thing_in_them() -> None:
    work = Workload(seq_len=7, heads=2, head_dim=4, dtype="fp32", mask="full")
    plan = cases.make_schedule("ring", work, "contiguous", 2).forward
    # rank 1 owns 3 tokens and receives 4: k and v of 2 heads of 4 numbers of 4 bytes
    assert prepare(plan, 1).slots == {1: 4 * 2 * 2 * 4 * 4}


@pytest.mark.parametrize(
    ("queries", "keys", "share", "expected"),
    [
        ((0, 8), (0, 2), 4, [((0, 8), (0, 2))]),
        ((2, 8), (0, 2), 4, [((0, 2), (0, 1)), ((2, 6), (1, 2))]),
        ((1, 7), (0, 2), 4, [((0, 3), (0, 1)), ((3, 6), (1, 2))]),
        ((1, 3), (0, 1), 4, [((0, 2), (0, 1))]),
        ((0, 16), (1, 3), 4, [((4, 12), (0, 2))]),
        ((3, 14), (0, 4), 4, [((0, 1), (0, 1)), ((1, 9), (1, 3)), ((9, 11), (3, 4))]),
        ((0, 4), (1, 2), 4, []),
    ],
)
def test_shared_heads_are_cut_into_even_groups(
    queries: tuple[int, int], keys: tuple[int, int], share: int, expected: list[object]
) -> None:
    runs = head_runs(queries, keys, share)
    assert [((q.start, q.stop), (k.start, k.stop)) for q, k in runs] == expected


def test_windows_find_rows_in_a_holder() -> None:
    holder = ((0, 4), (8, 12))
    assert window_in(holder, ((2, 4), (8, 9)), (0, 4), (1, 3)).spans == ((2, 5),)
    assert window_in(holder, ((0, 1), (9, 10)), (0, 4), (0, 4)).spans == ((0, 1), (5, 6))
    with pytest.raises(PlanError, match="do not lie in"):
        window_in(holder, ((3, 9),), (0, 4), (0, 4))
    with pytest.raises(PlanError, match="heads"):
        window_in(holder, ((0, 1),), (0, 4), (3, 5))


@pytest.mark.parametrize("kind", ["contiguous", "zigzag"])
def test_shards_put_together_are_the_whole(kind: str) -> None:
    work = Workload(seq_len=11, heads=2, head_dim=4)
    plan = cases.make_schedule("ring", work, kind, 4)
    x = torch.randn(1, 2, 11, 4)
    assert torch.equal(join([shard(x, plan, rank=rank) for rank in range(4)], plan), x)


def test_shard_says_what_does_not_fit() -> None:
    work = Workload(seq_len=11, heads=2, head_dim=4)
    plan = cases.make_schedule("ring", work, "zigzag", 2)
    with pytest.raises(
        RuntimeFailure, match=r"expected \[batch, heads, 11, size\], found \[1, 2, 9"
    ):
        shard(torch.zeros(1, 2, 9, 4), plan, rank=0)
    with pytest.raises(RuntimeFailure, match="a rank below 2"):
        shard(torch.zeros(1, 2, 11, 4), plan, rank=2)


def test_gradients_flow_through_shard() -> None:
    work = Workload(seq_len=5, heads=1, head_dim=1)
    plan = cases.make_schedule("ring", work, "contiguous", 2)
    x = torch.zeros(1, 1, 5, 1, requires_grad=True)
    shard(x, plan, rank=1).sum().backward()
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [0, 0, 0, 1, 1]


def test_a_plan_whose_ops_wait_for_each_other_is_said_to_be_stuck() -> None:
    """Rank 0 passes on at level 0 what it receives at level 1."""
    work = Workload(seq_len=3, heads=1, head_dim=1, mask="full", dtype="fp64")
    b = Builder(work, Partition.contiguous(3, 3))
    kv = b.shards("kv")
    b.transfer(src=1, dst=0, items=kv[1], level=1, stream="s", slot=0)
    b.transfer(src=0, dst=2, items=kv[1], level=0, stream="s", slot=0)
    good = cases.make_schedule("ring", work, "contiguous", 3)
    stuck = type(good)(forward=b.build(), backward=good.backward)
    with pytest.raises(RuntimeFailure, match="rank 0 has 2 ops left; rank 1 has 1 ops left"):
        cases.run_in_process(stuck, cases.make_tensors(work))


def test_what_is_saved_must_be_there_at_the_end() -> None:
    """A ring's first arrival is overwritten by a later one, its last one is not."""
    work = Workload(seq_len=16, heads=2, head_dim=4, dtype="fp64", mask="full")
    plan = cases.make_schedule("ring", work, "contiguous", 4).forward
    columns, hazards = plan.columns, find_hazards(plan)
    arrivals = [
        row for row in range(len(plan)) if columns.op[row] == TRANSFER and columns.peer[row] == 0
    ]
    for row, kept in ((arrivals[0], False), (arrivals[-1], True)):
        at = int(columns.ptr[row])
        saved = Residents(
            rank=np.array([0], plan.saved.rank.dtype),
            item=columns.arg[at : at + 1].astype(plan.saved.item.dtype),
            slot=columns.slot[at : at + 1].astype(plan.saved.slot.dtype),
        )
        keeping = dataclasses.replace(plan, saved=saved)
        if kept:
            assert len(prepare(keeping, 0, hazards).residents) == 1
            continue
        with pytest.raises(PlanError, match=r"saved: expected kv\[.* of rank 0 at the end, but"):
            prepare(keeping, 0, hazards)
