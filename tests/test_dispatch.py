"""Messages and kernels planned together: what starts when, and on which lane."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import brute, cases

from charm_sched import simulate
from charm_sched.bounds.class_bound import class_bound
from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.planners.dispatch import Dispatcher, Job, Message, Task, lanes_between, set_tails
from charm_sched.planners.hierarchy import Tree, leaves
from charm_sched.planners.rules import Rule, plan_best
from charm_sched.planners.sittings import Desk, Work
from charm_sched.planners.strategies import VARIANTS, build, distinct
from charm_sched.planners.wires import Way, Ways, Wires
from charm_sched.plans.builder import Builder
from charm_sched.plans.ops import Transfer
from charm_sched.plans.plan import Plan
from charm_sched.proof.verifier import verify
from charm_sched.topology.graph import Topology, load_topology
from charm_sched.topology.scaling import corrected, weightless
from charm_sched.workload import Workload


def ports(ranks: int) -> Ways:
    """Give one port of 1 GB/s per rank and way."""
    return Ways(Builder(cases.small_workload(ranks), Partition.contiguous(ranks, ranks)))


def message(
    src: int, dst: int, *, size: float = 1e9, order: float = 0.0, claims: bool = False
) -> Message:
    return Message(
        seconds=1.0, src=src, dst=dst, depth=0, size=size, order=(order,), claims=claims
    )  # fmt: skip


def dispatched(ranks: int, tasks: list[Task], places: list[int] | None = None) -> Dispatcher:
    desks = [Desk(overhead=0.5, mix=True) for _ in range(ranks)]
    dispatcher = Dispatcher(ports(ranks), desks, [places or list(range(ranks))], [1])
    dispatcher.run(tasks)
    return dispatcher


def test_flows_share_their_links_equally() -> None:
    ways = ports(3)
    wires = Wires(ways)
    wires.begin(0, ways(0, 1), 2e9, 0.0)
    assert dict(wires.share(0.0)) == {0: 2.0}
    wires.begin(1, ways(0, 2), 1e9, 1.0)
    assert dict(wires.share(1.0)) == {0: 3.0, 1: 3.0}
    wires.end(1, ways(0, 2))
    assert dict(wires.share(2.0)) == {0: 2.5}
    wires.begin(2, Way((), 0.0, 1e9), 1e9, 2.0)
    assert dict(wires.share(2.0)) == {2: 3.0}


def test_links_that_others_keep_from_getting_full_are_left_out() -> None:
    topology = load_topology("dual_node_h800")  # a device's port is as wide as its two links
    work = cases.small_workload(16)
    ways = Ways(
        Builder(
            work, Partition.contiguous(16, 16), topology=topology, devices=topology.device_names
        )
    )
    assert len(ways(0, 1).links) == 2
    assert len(ways(0, 9).links) == 2
    for src, dst in ((0, 1), (0, 9)):
        route = topology.route(topology.device_names[src], topology.device_names[dst])
        narrowest = min(topology.capacities[link].bandwidth for link in route.capacities)
        assert min(ways.widths[link] for link in ways(src, dst).links) == narrowest


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 3))
def test_on_a_lane_a_rank_sends_or_receives_and_never_both(
    one: int, other: int, copies: int
) -> None:
    lanes = lanes_between(one, other, copies)
    assert (lanes == 0) == (one == other)
    for third in range(41):
        assert not lanes & lanes_between(third, one, copies)
        assert not lanes & lanes_between(other, third, copies)


def test_the_most_urgent_message_goes_first_then_the_one_with_the_most_behind_it() -> None:
    late, urgent, long = message(0, 1, order=1.0), message(0, 1), message(0, 1)
    after = message(1, 0)
    after.follow(long)
    dispatched(2, [late, urgent, long, after])
    assert [m.start for m in (long, urgent, late)] == [0.0, 1.0, 2.0]
    assert (after.start, after.end) == (1.0, 2.0)
    assert [m.level for m in (long, urgent, late)] == [0, 1, 2]


@pytest.mark.parametrize(("claims", "start"), [(True, 3.0), (False, 4.0)])
def test_what_claims_a_lane_is_not_passed_by_what_is_less_urgent(
    claims: bool, start: float
) -> None:
    # Lane 0 leads from even to odd places. Rank 1 is busy until 3 s, rank 0 until 2 s; then rank 0
    # could send to rank 3 at once, and rank 1 receive something else meanwhile.
    busy = [message(2, 1, size=3e9), message(0, 3, size=2e9)]
    wanted = message(0, 1, claims=claims)
    wanted.follow(busy[1])
    other = message(0, 3, size=2e9, order=1.0)
    again = message(2, 1, size=1e9, order=2.0)
    dispatched(4, [*busy, wanted, other, again], [0, 1, 0, 1])
    assert wanted.start == start


def test_a_job_waits_for_its_message_and_what_follows_for_the_job() -> None:
    work = Work(cells=((0, 0),), ready=0.0, seconds=1.0, crosses=False)
    brings, job, back = message(0, 1), Job(seconds=1.5, rank=1, work=work), message(1, 0)
    job.follow(brings)
    back.follow(job)
    dispatched(2, [brings, job, back])
    assert (brings.end, back.start, back.end) == (1.0, 2.5, 3.5)
    set_tails([brings, job, back])
    assert (brings.tail, job.tail, back.tail) == (3.5, 2.5, 1.0)


def backward(topology: Topology, work: Workload, **params: object) -> Plan:
    kind = "contiguous" if work.mask_rule.kind == "full" else "zigzag"
    shards = Partition.named(kind, work.seq_len, len(topology.devices))
    return build(
        PLANNERS["charm"], "charm", work, shards, direction="backward", topology=topology,
        devices=topology.device_names, params={"remerge": False, **params},
    )  # fmt: skip


def test_on_each_stream_a_rank_only_sends_or_only_receives() -> None:
    topology = load_topology("dual_node_h800")
    work = Workload(seq_len=16384, heads=8, kv_heads=8, head_dim=128, mask="causal")
    plan = backward(topology, work, pieces=3)
    roles = defaultdict(set)
    for op in plan.ops():
        if isinstance(op, Transfer):
            roles[op.stream, op.src].add("sends")
            roles[op.stream, op.dst].add("receives")
    assert {len(found) for found in roles.values()} == {1}
    assert len({stream for stream, _ in roles}) == 10  # 2 x 2 between nodes, 2 x 3 inside


def test_where_four_nics_are_as_busy_as_nvlink_both_stay_busy() -> None:
    topology = weightless(load_topology("dual_node_nvlink_4nic"))
    work = Workload(seq_len=256 * 16, heads=16, kv_heads=16, mask="full")
    limit = class_bound(topology, work, direction="backward", partition="contiguous").seconds
    found = [
        limit / simulate(backward(topology, work, **params), topology).makespan
        for params in ({"pieces": 5}, {"pieces": 5, "pairs": False})
    ]
    assert found[0] >= 0.93
    assert found[1] < 0.8


def test_a_measured_port_a_little_narrower_than_its_links_is_not_taken_for_full() -> None:
    """A probe finds link kinds some tenths of a per cent faster or slower than ports."""
    topology = weightless(load_topology("dual_node_nvlink_4nic"))
    measured = corrected(topology, bandwidth={"nvlink": 1.002, "network": 0.999}, latency={})
    work = Workload(seq_len=256 * 16, heads=16, kv_heads=16, mask="full")
    limit = class_bound(topology, work, direction="backward", partition="contiguous").seconds
    made = backward(measured, work, pieces=5)
    assert limit / simulate(made, measured).makespan >= 0.9


@pytest.mark.parametrize("name", ["dual_node_nvlink", "dual_node_h800"])
def test_rates_that_differ_by_tenths_of_a_per_cent_cost_hardly_anything(name: str) -> None:
    topology = weightless(load_topology(name))
    work = Workload(seq_len=256 * 16, heads=16, kv_heads=16, mask="full")
    limit = class_bound(topology, work, direction="backward", partition="contiguous").seconds
    found = []
    for network in (1.0, 0.998, 1.002, 1.005):
        measured = corrected(topology, bandwidth={"network": network}, latency={})
        made = simulate(backward(measured, work, pieces=5), measured)
        found.append(limit / made.makespan)
    assert min(found) >= 0.97 * found[0]
    assert min(found) >= 0.96


@pytest.mark.parametrize(("gain", "kept"), [(0.5, 1), (0.001, 0)])
def test_the_rule_that_plans_the_earliest_end_is_kept_if_it_gains_more_than_is_certain(
    gain: float, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By the first rule what is short goes first, and what has something behind it waits.
    rules = Rule(across=("sub",), inside=()), Rule(across=("back",), inside=())
    monkeypatch.setattr("charm_sched.planners.rules.RULES", rules)
    short, long = message(0, 1, size=gain * 1e9), message(0, 2)
    short.back, long.sub = True, 1
    after = message(2, 0)
    after.follow(long)
    tasks = [short, long, after]

    def dispatcher(wait: float) -> Dispatcher:
        desks = [Desk(overhead=0.5, mix=True) for _ in range(3)]
        return Dispatcher(ports(3), desks, [[0, 1, 1]], [1], wait=wait)

    plan_best(tasks, dispatcher)
    assert (short.start, long.start) == ((0.0, gain), (1.0, 0.0))[kept]
    assert [m.level for m in tasks] == ([0, 1, 0], [1, 0, 0])[kept]


def test_what_ends_a_little_later_is_there_when_its_successor_is_chosen() -> None:
    for wait, first in ((0.0, 1.0), (0.05, 1.02)):
        one, other, urgent = message(0, 1), message(2, 3, size=1.02e9), message(0, 3)
        urgent.follow(other)
        later = message(0, 1, order=1.0)
        later.follow(one)
        desks = [Desk(overhead=0.5, mix=True) for _ in range(4)]
        Dispatcher(ports(4), desks, [[0, 1, 0, 1]], [1], wait=wait).run([one, other, urgent, later])
        assert min(urgent.start, later.start) == first
        assert (urgent.start < later.start) == (wait > 0)


@pytest.mark.parametrize("name", ["dual_numa_pcie_gen5", "dual_node_nvlink_4nic"])
def test_uneven_gradients_come_home_sooner_than_planned_alike(name: str) -> None:
    topology = load_topology(name)
    work = Workload(seq_len=16384, heads=32, kv_heads=32, head_dim=128, mask="causal")
    one, other = (
        simulate(backward(topology, work, pairs=pairs), topology).makespan
        for pairs in (True, False)
    )
    assert one < 0.98 * other


@settings(max_examples=25)
@given(st.data(), cases.trees(7), st.integers(1, 3))
def test_plans_are_exact_and_what_is_resident_does_not_move(
    data: st.DataObject, tree: Tree, pieces: int
) -> None:
    work = cases.small_workload(24, data.draw(cases.masks(24)))
    params = {"domains": tree, "pieces": pieces, "save": data.draw(st.booleans())}
    for plan in cases.both_ways("charm", len(leaves(tree)), work, "zigzag", params):
        verify(plan)
        brute.run(plan)
        moved = {i.kind for op in plan.ops() if isinstance(op, Transfer) for i, _ in op.items}
        assert not (params["save"] and plan.direction == "backward" and "kv" in moved)


def test_a_variant_is_tried_once_where_it_makes_no_difference() -> None:
    every = VARIANTS["charm"]
    assert distinct(every, "backward", 16) == list(every)
    for few in (distinct(every, "forward", 16), distinct(every, "backward", 17)):
        without = [{**variant, "pairs": None} for variant in few]
        assert len(without) == len(every) - 3
        assert all("pairs" not in variant or not variant["pairs"] for variant in few)
        assert all(without.count(variant) == 1 for variant in without)
