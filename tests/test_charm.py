from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import brute, cases, machines

from charm_sched.bounds.class_bound import class_bound
from charm_sched.errors import StrategyError
from charm_sched.masks.areas import attend_work
from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.planners.hierarchy import Line, Tree, exchange_lines, leaves
from charm_sched.planners.sittings import Desk, Sitting, Stay, Work, allot_slots, order_attends
from charm_sched.planners.strategies import VARIANTS, build
from charm_sched.planners.timetable import Lanes, Pace, Passage, fair_shares
from charm_sched.plans.ops import Attend, Merge, Transfer
from charm_sched.plans.plan import ATTEND, Plan
from charm_sched.proof.verifier import verify
from charm_sched.simulator import simulate
from charm_sched.topology.graph import load_topology
from charm_sched.workload import Workload


def domains_of(tree: Tree) -> list[set[int]]:
    """List every domain of a tree, single ranks included."""
    if isinstance(tree, int):
        return [{tree}]
    return [set(leaves(tree)), *(d for child in tree for d in domains_of(child))]


def entries_of(lines: list[Line], ranks: int, sub: int) -> tuple[list[set[int]], Counter[Any]]:
    """Follow one sub-piece of every rank: who holds what in the end, and who got what from whom."""
    holds = [{rank} for rank in range(ranks)]
    sent: Counter[Any] = Counter()
    for line in lines:
        if sub not in line.subs:
            continue
        for rank in np.flatnonzero(line.src >= 0).tolist():
            src, piece = int(line.src[rank]), int(line.piece[rank])
            assert piece in holds[src]
            holds[rank].add(piece)
            sent[piece, src, rank] += 1
    return holds, sent


@given(cases.trees(9), st.integers(1, 4))
def test_a_piece_reaches_every_rank_and_enters_each_domain_once(tree: Tree, subs: int) -> None:
    ranks = len(leaves(tree))
    domains = {frozenset(domain) for domain in domains_of(tree)}
    for sub in range(subs):
        holds, sent = entries_of(exchange_lines(tree, subs), ranks, sub)
        assert all(held == set(range(ranks)) for held in holds)
        entered = Counter(
            (piece, domain)
            for piece, src, rank in sent.elements()
            for domain in domains
            if rank in domain and src not in domain
        )
        for piece, domain in itertools.product(range(ranks), domains):
            assert entered[piece, domain] == (piece not in domain)


@given(cases.trees(9))
def test_a_rank_sends_to_one_peer_per_line(tree: Tree) -> None:
    for line in exchange_lines(tree):
        senders = line.src[line.src >= 0]
        assert len(set(senders.tolist())) == len(senders)


@pytest.mark.parametrize(("one", "other", "subs"), [(3, 5, 3), (3, 5, 5), (2, 7, 14), (4, 6, 3)])
def test_domains_of_different_size_enter_evenly(one: int, other: int, subs: int) -> None:
    tree = [list(range(one)), list(range(one, one + other))]
    received: Counter[int] = Counter()
    for sub in range(subs):
        _, sent = entries_of(exchange_lines(tree, subs), one + other, sub)
        for _, src, rank in sent.elements():
            if (src < one) != (rank < one):
                received[rank] += 1
    for members in tree:
        counts = [received[rank] for rank in members]
        assert max(counts) - min(counts) <= 1


def across(plan: object, half: int) -> list[Transfer]:
    return [
        op
        for op in plan.ops()  # type: ignore[attr-defined]
        if isinstance(op, Transfer) and (op.src < half) != (op.dst < half)
    ]


def sent(plan: Plan) -> list[tuple[str, Transfer]]:
    """List the transfers with the names of their streams."""
    return [(op.stream, op) for op in plan.ops() if isinstance(op, Transfer)]


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
    alike = {**TWO_BY_FOUR, "pairs": False}
    free = cases.made("charm", 8, work, direction="backward", params=alike)
    assert {"tier0", "tier1", "tier0-gradients", "tier1-gradients"} <= set(free.streams)
    paired = cases.made("charm", 8, work, direction="backward", params=TWO_BY_FOUR)
    tiers = {(name.partition("-")[0], (op.src < 4) != (op.dst < 4)) for name, op in sent(paired)}
    assert tiers == {("tier0", True), ("tier1", False)}
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

    assert most_sends(lanes=1) == 1
    assert most_sends(levels=False) == 3


def test_lanes_share_a_tier_and_take_turns() -> None:
    work = cases.small_workload(32)
    plan = cases.made("charm", 8, work, params={**TWO_BY_FOUR, "pieces": 3, "lanes": 2})
    assert {"tier0", "tier0-2", "tier1", "tier1-2"} <= set(plan.streams)
    moved = Counter(op.stream for op in plan.ops() if isinstance(op, Transfer))
    assert moved["tier1"] > 8
    assert moved["tier1-2"] > 8


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


@pytest.mark.parametrize(("pieces", "rows"), [(1, [16]), (2, [8, 8]), (3, [4, 8, 4])])
def test_sub_pieces_cover_the_shard_with_halves_at_the_ends(pieces: int, rows: list[int]) -> None:
    plan = cases.made("charm", 2, cases.small_workload(32), params={"pieces": pieces})
    sent = [op for op in plan.ops() if isinstance(op, Transfer) and op.src == 0]
    found = sorted(item.rows[0] for op in sent for item, _ in op.items)
    assert [last - first for first, last in found] == rows


def test_under_a_causal_mask_just_a_shards_own_kernel_is_masked() -> None:
    work = cases.small_workload(64, "causal")
    for plan in cases.both_ways("charm", 4, work, "zigzag", {"remerge": False}):
        triples, dense = attend_work(plan)
        for row in np.flatnonzero(plan.columns.op == ATTEND):
            op = plan.op(int(row))
            assert isinstance(op, Attend)
            own = all(item.rows[0] in plan.partition.shards[op.rank] for item, _ in op.keys)
            assert own or triples[row] == dense[row]


def test_parameters_are_checked() -> None:
    work = cases.small_workload(8)
    for name in ("pieces", "lanes"):
        with pytest.raises(StrategyError, match=f"expected {name} of 0 or more, found -1"):
            cases.made("charm", 2, work, params={name: -1})
    with pytest.raises(StrategyError, match=r"hold the ranks 0 to 1 once each, found \[0, 2\]"):
        cases.made("charm", 2, work, params={"domains": [0, 2]})
    with pytest.raises(StrategyError, match="strategy charm: got an unexpected keyword"):
        cases.made("charm", 2, work, params={"piece": 2})


def work(number: int, ready: float, seconds: float = 1.0, **more: int) -> Work:
    return Work(cells=((number, 0),), ready=ready, seconds=seconds, crosses=False, **more)


def numbers(sittings: list[Sitting]) -> list[list[int]]:
    return [[number for number, _ in sitting.cells] for sitting in sittings]


def test_what_has_arrived_is_attended_together() -> None:
    sittings = order_attends(
        [work(0, 0.0), work(1, 0.5), work(2, 0.9), work(3, 5.0)], Desk(overhead=0.0, mix=True)
    )
    assert numbers(sittings) == [[0], [1, 2], [3]]
    assert [(s.start, s.end) for s in sittings] == [(0.0, 1.0), (1.0, 3.0), (5.0, 6.0)]


def test_kernels_of_different_kinds_stay_apart() -> None:
    items = [work(0, 0.0), work(1, 0.0, kind=2), work(2, 0.0)]
    assert numbers(order_attends(items, Desk(overhead=0.0, mix=True))) == [[0, 2], [1]]


def test_urgent_work_goes_first_and_long_kernels_are_cut() -> None:
    items = [work(0, 0.0, urgency=2), work(1, 0.2, urgency=1), work(2, 0.4), work(3, 0.6)]
    sittings = order_attends(items, Desk(overhead=0.0, mix=True, most=1.0))
    assert numbers(sittings) == [[0], [2], [3], [1]]


def test_slots_are_used_again_after_their_last_use() -> None:
    stays = [Stay((name, 0, 0), at, at + 2) for at, name in enumerate("abcd")]
    slots, count = allot_slots(stays, slack=0.0)
    assert count == 2
    assert [slots[name, 0, 0] for name in "abcd"] == [0, 1, 0, 1]
    assert allot_slots(stays, slack=0.5)[1] == 3


def run_lanes(lanes: int, *sizes: float) -> list[Passage]:
    passages = [Passage(depth=0, size=size) for size in sizes]
    Lanes([Pace(10.0, 1.0, 10.0)], [lanes]).run(passages)
    return passages


def test_one_lane_pays_every_latency_and_two_of_unequal_beginning_almost_none() -> None:
    alone = run_lanes(1, *[20.0] * 6)
    assert [(p.level, p.start, p.end) for p in alone] == [
        (i, 3.0 * i, 3.0 * i + 3) for i in range(6)
    ]
    assert max(p.end for p in run_lanes(2, 10.0, *[20.0] * 5, 10.0)) == pytest.approx(13.0)
    assert {p.lane for p in run_lanes(2, 20.0, 20.0)} == {0, 1}


def test_a_passage_waits_for_what_brings_it_and_goes_in_order() -> None:
    first = Passage(depth=0, size=10.0)
    later = Passage(depth=1, size=10.0, after=[first], order=(1.0,))
    urgent = Passage(depth=1, size=10.0, after=[first], order=(0.0,))
    Lanes([Pace(10.0, 1.0, 10.0), Pace(10.0, 0.0, 10.0, (99.0,))], [1, 1]).run(
        [later, first, urgent]
    )
    assert (first.end, urgent.start, urgent.end, later.end) == (2.0, 2.0, 3.0, 4.0)


def test_tiers_share_the_links_that_both_cross() -> None:
    outer, free, port = Pace(9.0, 0.0, 18.0), Pace(24.0, 0.0, 24.0, (99.0,)), (24.0,)
    assert fair_shares([outer, free], [1, 2]) == [9.0, 12.0]
    shared = Pace(24.0, 0.0, 24.0, port)
    assert fair_shares([outer, shared], [1, 1]) == [9.0, 15.0]
    assert fair_shares([outer, shared], [1, 3])[0] == 6.0


# What follows is measured by the simulator, on the shipped machines as their files state them.

MACHINES = (
    "dual_numa_pcie", "dual_numa_pcie_gen5", "single_node_nvlink", "dual_node_nvlink",
    "dual_node_nvlink_4nic", "dual_node_h800", "four_node_nvlink",
)  # fmt: skip


def best(name: str, work: Workload, direction: str) -> tuple[float, float]:
    """Give charm's time over ring's, and the class bound over charm's."""
    topology = load_topology(name)
    kind = "contiguous" if work.mask_rule.kind == "full" else "zigzag"
    shards = Partition.named(kind, work.seq_len, len(topology.devices))

    def seconds(strategy: str, params: Mapping[str, Any]) -> float:
        made = build(
            PLANNERS[strategy], strategy, work, shards, direction=direction, topology=topology,
            devices=topology.device_names, params=params,
        )  # fmt: skip
        return simulate(made, topology).makespan

    tried = VARIANTS["charm"][:2] + VARIANTS["charm"][4 : 5 * (direction == "backward")]
    charm = min(seconds("charm", params) for params in tried)
    limit = class_bound(topology, work, direction=direction, partition=kind).seconds
    return charm / seconds("ring", {}), limit / charm


@pytest.mark.parametrize("kv_heads", [8, 32])
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("name", MACHINES)
def test_never_slower_than_ring_and_near_the_bound(name: str, mask: str, kv_heads: int) -> None:
    for seq_len, direction in ((16384, "forward"), (65536, "backward"), (131072, "forward")):
        work = Workload(seq_len=seq_len, heads=32, kv_heads=kv_heads, head_dim=128, mask=mask)
        over_ring, ratio = best(name, work, direction)
        assert over_ring <= 1.02
        assert ratio >= LEAST.get((name, mask, kv_heads, seq_len, direction), 0.8)


LEAST: Mapping[tuple[str, str, int, int, str], float] = {
    ("four_node_nvlink", "full", 8, 16384, "forward"): 0.72,  # messages as short as latencies
    ("four_node_nvlink", "causal", 8, 16384, "forward"): 0.58,
    ("dual_node_h800", "causal", 32, 65536, "backward"): 0.78,  # one rank owes most gradients
    ("four_node_nvlink", "causal", 32, 65536, "backward"): 0.72,
}
"""Cases below four fifths of the bound; why is in docs/decisions/0002 and 0003."""


@pytest.mark.parametrize("ablation", ["levels", "decouple"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", ["dual_node_nvlink", "dual_numa_pcie"])
def test_without_one_of_its_ideas_it_is_not_faster(
    name: str, direction: str, ablation: str
) -> None:
    topology = load_topology(name)
    work = Workload(seq_len=32768, heads=32, kv_heads=32, head_dim=128, mask="full")
    shards = Partition.named("contiguous", work.seq_len, len(topology.devices))

    def seconds(**params: bool) -> float:
        made = build(
            PLANNERS["charm"], "charm", work, shards, direction=direction, topology=topology,
            devices=topology.device_names, params={"remerge": False, "pairs": False, **params},
        )  # fmt: skip
        return simulate(made, topology).makespan

    assert seconds() <= 1.01 * seconds(**{ablation: False})


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_idle_links_between_nodes_bring_pieces_to_more_ranks(mask: str, direction: str) -> None:
    topology = machines.parse(
        "templates:\n"
        + machines.nvlink_node("node", 4, port=40, nic=24)
        + machines.section(
            parts=["node0..1 node"],
            switches=["fabric fabric"],
            links=[machines.link("node0..1/nic0..3", "fabric", 24, "network")],
        )
    )
    work = cases.small_workload(48, mask)
    shards = Partition.named("zigzag" if mask == "causal" else "contiguous", 48, 8)
    crossing = []
    for top_up in (True, False):
        made = build(
            PLANNERS["charm"], "charm", work, shards, direction=direction, topology=topology,
            devices=topology.device_names, params={"pieces": 3, "lanes": 2, "top_up": top_up},
        )  # fmt: skip
        verify(made)
        brute.run(made)
        crossing.append(sum(len(op.items) for op in across(made, 4)))
    assert crossing[0] > crossing[1]


def test_a_rank_passes_on_what_it_does_not_attend_itself() -> None:
    work = cases.small_workload(32, "causal")
    params = {"domains": [[3, 1], [0, 2]], "pieces": 2}
    for made in cases.both_ways(
        "charm", 4, work, params=params
    ):  # rank 1 does not see the keys of rank 2
        verify(made)
        brute.run(made)
        moved = {(op.src, op.dst) for op in made.ops() if isinstance(op, Transfer)}
        assert (1, 3) in moved
