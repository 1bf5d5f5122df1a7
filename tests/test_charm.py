from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from support import cases

from charm_sched.errors import StrategyError
from charm_sched.ops import Attend, Merge, Transfer
from charm_sched.planners.hierarchy import Tree, exchange_lines, leaves
from charm_sched.planners.timetable import Pace, Stay, Work, allot_slots, order_attends


def domains_of(tree: Tree) -> list[set[int]]:
    """List every domain of a tree, single ranks included."""
    if isinstance(tree, int):
        return [{tree}]
    return [set(leaves(tree)), *(d for child in tree for d in domains_of(child))]


@given(cases.trees(9))
def test_a_piece_reaches_every_rank_and_enters_each_domain_once(tree: Tree) -> None:
    ranks = len(leaves(tree))
    holds = [{rank} for rank in range(ranks)]
    entries: Counter[tuple[int, frozenset[int]]] = Counter()
    for lines in exchange_lines(tree):
        for line in lines:
            for rank in np.flatnonzero(line.src >= 0).tolist():
                src, piece = int(line.src[rank]), int(line.piece[rank])
                assert piece in holds[src]
                holds[rank].add(piece)
                for domain in {frozenset(d) for d in domains_of(tree)}:
                    if rank in domain and src not in domain:
                        entries[piece, domain] += 1
    assert all(held == set(range(ranks)) for held in holds)
    for piece in range(ranks):
        for domain in {frozenset(d) for d in domains_of(tree)}:
            assert entries[piece, domain] == (piece not in domain)


@given(cases.trees(9))
def test_a_rank_sends_to_one_peer_per_line(tree: Tree) -> None:
    for lines in exchange_lines(tree):
        for line in lines:
            senders = line.src[line.src >= 0]
            assert len(set(senders.tolist())) == len(senders)


def across(plan: object, half: int) -> list[Transfer]:
    return [
        op
        for op in plan.ops()  # type: ignore[attr-defined]
        if isinstance(op, Transfer) and (op.src < half) != (op.dst < half)
    ]


TWO_BY_FOUR = {"domains": [[0, 1, 2, 3], [4, 5, 6, 7]]}


def test_kv_and_gradients_cross_once_per_piece() -> None:
    forward, backward = cases.both_ways(
        "charm", 8, cases.small_workload(32), params={**TWO_BY_FOUR, "pieces": 2}
    )
    assert len(across(forward, 4)) == 16
    crossing = Counter(op.items[0][0].kind for op in across(backward, 4))
    assert crossing == {"kv": 16, "dkv": 16}
    ring_forward, ring_backward = cases.both_ways("ring", 8, cases.small_workload(32))
    assert len(across(ring_forward, 4)) == 14
    assert Counter(op.items[0][0].kind for op in across(ring_backward, 4)) == {"kv": 14, "dkv": 16}


def test_each_tier_has_streams_of_its_own_unless_tied_together() -> None:
    work = cases.small_workload(32)
    free = cases.made("charm", 8, work, direction="backward", params=TWO_BY_FOUR)
    assert {"tier0", "tier1", "tier0-gradients", "tier1-gradients"} <= set(free.streams)
    tied = cases.made(
        "charm", 8, work, direction="backward", params={**TWO_BY_FOUR, "decouple": False}
    )
    assert set(tied.streams) == {"compute", "compute-cross", "exchange", "exchange-gradients"}


def test_one_peer_per_level_unless_levels_are_off() -> None:
    work = cases.small_workload(32)

    def most_sends(**params: bool) -> int:
        plan = cases.made("charm", 8, work, params={**TWO_BY_FOUR, **params})
        sends = Counter(
            (op.src, op.stream, op.level) for op in plan.ops() if isinstance(op, Transfer)
        )
        return max(sends.values())

    assert most_sends() == 1
    assert most_sends(levels=False) == 3


def test_parts_of_several_streams_are_merged_unless_switched_off() -> None:
    work = cases.small_workload(32)
    plan = cases.made("charm", 8, work, params=TWO_BY_FOUR)
    assert {op.stream for op in plan.ops() if isinstance(op, Attend)} == {
        "compute", "compute-cross",
    }  # fmt: skip
    assert sum(isinstance(op, Merge) for op in plan.ops()) == 8
    single = cases.made("charm", 8, work, params={**TWO_BY_FOUR, "remerge": False})
    assert {op.stream for op in single.ops() if isinstance(op, Attend)} == {"compute"}
    assert not any(isinstance(op, Merge) for op in single.ops())


def test_the_backward_moves_no_kv_that_the_forward_saved() -> None:
    forward, backward = cases.both_ways(
        "charm", 8, cases.small_workload(32), params={**TWO_BY_FOUR, "save": True}
    )
    assert len(forward.saved) == 8 * 7
    kinds = {item.kind for op in backward.ops() if isinstance(op, Transfer) for item, _ in op.items}
    assert kinds == {"dkv"}


def test_causal_pieces_that_nobody_needs_do_not_move() -> None:
    work = cases.small_workload(32, "causal")
    plan = cases.made("charm", 8, work, params=TWO_BY_FOUR)  # contiguous
    for op in plan.ops():
        if isinstance(op, Transfer):
            assert op.items[0][0].rows[0][0] < 4 * (1 + max(op.dst, 4 * (op.dst // 4) + 3))
    assert not [op for op in across(plan, 4) if op.dst < 4]


def test_parameters_are_checked() -> None:
    work = cases.small_workload(8)
    with pytest.raises(StrategyError, match="expected pieces of 1 or more, found 0"):
        cases.made("charm", 2, work, params={"pieces": 0})
    with pytest.raises(StrategyError, match=r"hold the ranks 0 to 1 once each, found \[0, 2\]"):
        cases.made("charm", 2, work, params={"domains": [0, 2]})
    with pytest.raises(StrategyError, match="strategy charm: got an unexpected keyword"):
        cases.made("charm", 2, work, params={"piece": 2})


def work(number: int, ready: float, seconds: float = 1.0, **more: int) -> Work:
    return Work(number=number, ready=ready, seconds=seconds, crosses=False, **more)


def test_what_has_arrived_is_attended_together() -> None:
    sittings = order_attends(
        [work(0, 0.0), work(1, 0.5), work(2, 0.9), work(3, 5.0)], overhead=0.0, mix=True
    )
    assert [s.numbers for s in sittings] == [[0], [1, 2], [3]]
    assert [(s.start, s.end) for s in sittings] == [(0.0, 1.0), (1.0, 3.0), (5.0, 6.0)]


def test_urgent_work_goes_first_and_long_kernels_are_cut() -> None:
    items = [work(0, 0.0, urgency=2), work(1, 0.2, urgency=1), work(2, 0.4), work(3, 0.6)]
    sittings = order_attends(items, overhead=0.0, mix=True, most=1.0)
    assert [s.numbers for s in sittings] == [[0], [2], [3], [1]]


def test_slots_are_used_again_after_their_last_use() -> None:
    stays = [Stay(("a", 0), 0, 2), Stay(("b", 0), 1, 3), Stay(("c", 0), 2, 4), Stay(("d", 0), 3, 5)]
    slots, count = allot_slots(stays, slack=0.0)
    assert count == 2
    assert slots == {("a", 0): 0, ("b", 0): 1, ("c", 0): 0, ("d", 0): 1}
    assert allot_slots(stays, slack=0.5)[1] == 3


def test_a_tier_is_slower_while_an_outer_tier_is_busy() -> None:
    pace = Pace(10.0, 1.0, (4.0, float("inf")))
    assert pace.end(0.0, 20.0) == 3.0
    assert pace.end(0.0, 20.0, [0.5, 0.0]) == 3.0  # the outer tier is done before bytes flow
    assert pace.end(0.0, 8.0, [9.0, 0.0]) == 3.0  # at 4 all the time
    assert pace.end(0.0, 20.0, [3.0, 0.0]) == 4.2  # 8 at 4 until 3, 12 at 10 after
    assert Pace(10.0, 0.0).end(2.0, 20.0, [5.0]) == 4.0
