"""Every plan under NCCL's rules: in-order communicators, whole groups, blocking sends."""

from __future__ import annotations

import attention_cases as cases
import pytest
from custom_planners import scattered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cases import masks, plans, ranks_for, small_workload
from support.nccl_rules import HangError, Machine, MismatchError, Work, check, queues_of

from charm_sched.errors import PlanError
from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.plans.builder import Builder
from charm_sched.runtime.ordering import Batch, issue_order, issue_orders


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize("name", PLANNERS)
def test_every_strategy_runs(name: str, ranks: int) -> None:
    work = small_workload(48, "causal", heads=cases.heads_for(name, ranks, 4), kv_heads=2)
    for partition in ("contiguous", "zigzag"):
        schedule = cases.make_schedule(name, work, partition, ranks_for(name, ranks))
        for plan in schedule.plans:
            check(plan)


@given(plans(most_ranks=8, most_tokens=24))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_plan_of_any_strategy_runs(plan: object) -> None:
    check(plan)  # type: ignore[arg-type]


@given(st.integers(0, 10_000), st.integers(2, 5), st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_anything_that_verifies_runs(seed: int, ranks: int, data: st.DataObject) -> None:
    work = small_workload(13, data.draw(masks(13)), heads=2, kv_heads=1)
    schedule = cases.make_schedule(scattered, work, "zigzag", ranks, {"seed": seed})
    for plan in schedule.plans:
        check(plan)


def test_a_batch_that_waits_for_a_row_below_its_first_comes_after_it() -> None:
    b = Builder(small_workload(4), Partition.contiguous(4, 2))
    q, kv, o = b.shards("q"), b.shards("kv"), b.shards("o")
    b.transfer(src=0, dst=1, items=q[0], level=0, stream="there", slot=0)
    b.transfer(src=1, dst=0, items=kv[1], level=0, stream="back", slot=0)
    b.attend(rank=1, queries=q[0], keys=kv[1], query_slot=2)
    b.transfer(src=1, dst=0, items=o[0], level=0, stream="back", slot=1)
    plan = b.build()
    check(plan)
    assert issue_order(plan, 1) == (Batch(0, 0, (0,)), 2, Batch(1, 0, (1, 3)))


def queues() -> list[list[Work]]:
    """Ring-Attention on four ranks."""
    work = small_workload(16)
    return queues_of(cases.make_schedule("ring", work, "contiguous", 4).forward)


def swapped(queue: list[Work], one: int, other: int) -> list[Work]:
    """Hand two works over in the other order; nothing waits for anything."""
    found = [Work(w.queue, w.name, (), w.sends, w.receives) for w in queue]
    found[one], found[other] = found[other], found[one]
    return found


def test_a_swapped_order_on_two_ranks_is_caught() -> None:
    found = queues()
    groups = [at for at, work in enumerate(found[0]) if work.sends]
    for rank in (0, 1):
        found[rank] = swapped(found[rank], groups[0], groups[1])
    with pytest.raises(MismatchError, match=r"rank \d: level \d of ring .* meets rank \d: level"):
        Machine(found).run()


def test_groups_in_another_order_of_peers_hang() -> None:
    """Rank 0 serves rank 1 first, rank 2 waits for rank 0 before it serves rank 1, and so on."""
    ring = [
        [Work("comm x", f"to {(rank + 1) % 3}", sends=(((rank + 1) % 3, rank),)),
         Work("comm x", f"from {(rank - 1) % 3}", receives=(((rank - 1) % 3, (rank - 1) % 3),))]
        for rank in range(3)
    ]  # fmt: skip
    with pytest.raises(HangError, match=r"rank 0: to 1 is under way; rank 1: to 2 is under way"):
        Machine(ring).run()
    together = [[Work("comm x", "both", (), w[0].sends, w[1].receives)] for w in ring]
    Machine(together).run()


def test_two_communicators_that_wait_for_each_other_hang() -> None:
    """On rank 0 the first communicator waits for the second, on rank 1 the second for the first."""
    found = [
        [Work("comm b", "b", sends=((1, 2),)), Work("comm a", "a", (0,), sends=((1, 1),))],
        [Work("comm a", "a", receives=((0, 1),)), Work("comm b", "b", (0,), receives=((0, 2),))],
    ]
    with pytest.raises(HangError, match=r"rank 0: b is under way.*rank 1: a is under way"):
        Machine(found).run()


def test_communicators_in_different_orders_hang_on_one_connection_alone() -> None:
    """Rank 1 cannot start its second communicator: the first waits for rank 0, which is behind."""
    found = [
        [Work("comm b", "b", sends=((1, 2),)), Work("stream c", "k", (0,)),
         Work("comm a", "a", sends=((1, 1),))],
        [Work("comm a", "a", receives=((0, 1),)), Work("stream c", "k", (0,)),
         Work("comm b", "b", receives=((0, 2),))],
    ]  # fmt: skip
    Machine(found).run()
    with pytest.raises(HangError, match=r"rank 0: b is under way.*rank 1: a is under way"):
        Machine(found, connections=1).run()


def test_a_send_without_a_receive_is_caught() -> None:
    found = queues()
    at = next(at for at, work in enumerate(found[2]) if work.receives)
    found[2][at] = Work(found[2][at].queue, "nothing", (), found[2][at].sends, ())
    with pytest.raises(MismatchError, match=r"has no other end|meets"):
        Machine(found).run()


def test_a_plan_that_cannot_be_handed_over_is_refused() -> None:
    """Rank 0 passes on at level 0 what it receives at level 1."""
    b = Builder(small_workload(3), Partition.contiguous(3, 3))
    kv = b.shards("kv")
    b.transfer(src=1, dst=0, items=kv[1], level=1, stream="s", slot=0)
    b.transfer(src=0, dst=2, items=kv[1], level=0, stream="s", slot=0)
    with pytest.raises(PlanError, match="waits for itself"):
        issue_orders(b.build(), range(3))
