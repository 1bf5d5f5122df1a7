from __future__ import annotations

import numpy as np
import pytest
from support import cases

from charm_sched.errors import PlanError
from charm_sched.partition import Partition
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import Item
from charm_sched.plans.ops import Attend, Transfer
from charm_sched.proof.verifier import verify


def builder(ranks: int = 3, seq_len: int = 9, mask: str = "full", **more: object) -> Builder:
    work = cases.small_workload(seq_len, mask)
    return Builder(work, Partition.contiguous(seq_len, ranks), **more)  # type: ignore[arg-type]


def test_one_call_writes_one_op_per_rank() -> None:
    b = builder()
    r, kv = b.ranks, b.shards("kv")
    b.transfer(src=r, dst=(r + 1) % 3, items=kv, level=2, stream="ring", slot=r)
    plan = b.build()
    assert [str(op) for op in plan.ops()] == [
        "transfer 0 -> 1: kv[0:3]h0:1@0 | level 2 on ring",
        "transfer 1 -> 2: kv[3:6]h0:1@1 | level 2 on ring",
        "transfer 2 -> 0: kv[6:9]h0:1@2 | level 2 on ring",
    ]


def test_empty_shards_leave_no_operand_and_no_op() -> None:
    b = builder(ranks=4, seq_len=2)
    r, q, kv = b.ranks, b.shards("q"), b.shards("kv")
    assert kv.tolist()[2:] == [-1, -1]
    b.transfer(src=r, dst=(r + 1) % 4, items=kv, level=0, stream="s", slot=0)
    b.attend(rank=r, queries=q, keys=np.stack([kv, kv[(r - 1) % 4]], axis=1))
    plan = b.build()
    kinds = [type(op) for op in plan.ops()]
    assert kinds == [Transfer, Transfer, Attend, Attend]
    first, second = list(plan.ops())[2:]
    assert isinstance(first, Attend)
    assert isinstance(second, Attend)
    assert [len(first.keys), len(second.keys)] == [1, 2]


def test_operands_that_the_mask_hides_are_left_out() -> None:
    b = builder(mask="causal")
    r, q, kv = b.ranks, b.shards("q"), b.shards("kv")
    b.attend(rank=r, queries=q, keys=np.tile(kv, (3, 1)))
    ops = [op for op in b.build().ops() if isinstance(op, Attend)]
    assert [len(op.keys) for op in ops] == [1, 2, 3]


def test_order_keys_sort_rows_and_keep_ties_in_call_order() -> None:
    b = builder()
    r, kv = b.ranks, b.shards("kv")
    b.transfer(src=r, dst=(r + 1) % 3, items=kv, level=1, stream="s", slot=1, order=[2.0, 0.5, 1.0])
    b.transfer(src=0, dst=1, items=kv[:1], level=0, stream="s", slot=0, order=1.0)
    plan = b.build()
    assert [(op.src, op.level) for op in plan.ops() if isinstance(op, Transfer)] == [
        (1, 1), (2, 1), (0, 0), (0, 1),
    ]  # fmt: skip
    assert [len(op.items) for op in plan.ops() if isinstance(op, Transfer)] == [1, 1, 1, 1]


def test_order_keys_in_some_calls_alone_are_refused() -> None:
    b = builder()
    b.transfer(src=0, dst=1, items=b.shards("kv")[:1], level=0, stream="s", slot=0, order=1.0)
    b.transfer(src=0, dst=1, items=b.shards("kv")[:1], level=0, stream="s", slot=0)
    with pytest.raises(PlanError, match="order key in every call or in none"):
        b.build()


def test_a_partition_of_another_length_is_refused() -> None:
    with pytest.raises(PlanError, match="covers 8 tokens, the workload has 9"):
        Builder(cases.small_workload(9), Partition.contiguous(8, 2))


def test_queries_can_travel_and_results_come_home() -> None:
    """KV stays, queries go round, partial outputs return to their owner."""
    b = builder()
    r, n, q, kv, o = b.ranks, 3, b.shards("q"), b.shards("kv"), b.shards("o")
    for t in range(n):
        visitor = (r - t) % n
        b.attend(rank=r, queries=q[visitor], keys=kv, query_slot=2 if t else -1)
        if t < n - 1:
            b.transfer(
                src=r, dst=(r + 1) % n, items=q[visitor], level=t, stream="q", slot=(t + 1) % 2
            )
        if t:
            b.transfer(src=r, dst=visitor, items=o[visitor], level=t, stream="o", slot=3)
    verify(b.build("q-ring"))


def test_columns_cannot_be_changed() -> None:
    plan = cases.made("ring", 2, cases.small_workload(8))
    with pytest.raises(ValueError, match="read-only"):
        plan.columns.rank[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        plan.items.kind[0] = 1


def test_heads_can_be_split() -> None:
    """Rank 0 computes head 0 of both shards, rank 1 head 1, as in head-parallel attention."""
    b = Builder(cases.small_workload(8), Partition.contiguous(8, 2))
    rows = b.partition.shards
    q = [[b.item("q", shard, (h, h + 1)) for h in range(2)] for shard in rows]
    o = [[b.item("o", shard, (h, h + 1)) for h in range(2)] for shard in rows]
    kv = b.shards("kv")
    b.transfer(src=[0, 1], dst=[1, 0], items=[[kv[0], q[0][1]], [kv[1], q[1][0]]], level=0,
               stream="a2a", slot=[[0, 1], [0, 1]])  # fmt: skip
    for rank in range(2):
        b.attend(rank=rank, queries=[[q[0][rank], q[1][rank]]], keys=[[kv[0], kv[1]]],
                 query_slot=[[-1 if rank == 0 else 2, -1 if rank == 1 else 2]])  # fmt: skip
    b.transfer(src=[0, 1], dst=[1, 0], items=[o[1][0], o[0][1]], level=1, stream="a2a", slot=3)
    plan = b.build("heads")
    verify(plan)
    assert plan.items[int(q[0][1])] == Item("q", rows[0], (1, 2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"level": 2**32}, "level: expected numbers up to 2147483647, found 4294967296"),
        ({"slot": 2**32}, "slot: expected numbers up to 2147483647"),
        ({"dst": 2**32 + 1}, "dst: expected numbers up to 2147483647"),
        ({"level": 1.7}, "level: expected whole numbers, found float64"),
        ({"slot": 1.5}, "slot: expected whole numbers, found float64"),
        ({"items": 99}, "expected numbers that this builder gave or -1, found 99"),
        ({"items": [0, 1, 2]}, "transfer: shapes or values do not fit"),
        ({"stream": "my stream"}, "expected a name without white space, found 'my stream'"),
        ({"stream": ""}, "expected a name without white space, found ''"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    b = builder()
    b.shards("kv")
    call = {"src": [0, 1], "dst": [1, 2], "items": [0, 1], "level": 0, "stream": "s", "slot": 0}
    with pytest.raises(PlanError) as caught:
        b.transfer(**{**call, **changes})  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_parts_that_do_not_fit_are_refused() -> None:
    b = builder()
    q, kv = b.shards("q"), b.shards("kv")
    with pytest.raises(PlanError, match="part: expected numbers up to 32767, found 65536"):
        b.attend(rank=b.ranks, queries=q, keys=kv, part=65536)
    with pytest.raises(PlanError, match="expected a part up to 32767, found 65536"):
        b.shards("o", part=65536)


def test_several_items_from_one_scalar_source_are_one_message() -> None:
    b = builder()
    kv = b.shards("kv")
    with pytest.raises(PlanError, match="transfer: shapes or values do not fit"):
        b.transfer(src=0, dst=1, items=kv, level=0, stream="s", slot=0)
    b.transfer(src=0, dst=1, items=[kv[:1]], level=0, stream="s", slot=0)
    assert len(b.build()) == 1
