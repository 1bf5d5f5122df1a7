"""Which way pieces take between domains, so that no link is much busier than the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import brute, cases

from charm_sched.arrays import Ints
from charm_sched.bounds.class_bound import class_bound
from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.planners.flows import Flows
from charm_sched.planners.hierarchy import Tree, leaves
from charm_sched.planners.strategies import build
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import Item
from charm_sched.plans.ops import Attend, Transfer
from charm_sched.plans.plan import TRANSFER, Plan
from charm_sched.proof.verifier import verify
from charm_sched.topology.graph import Topology, load_topology
from charm_sched.workload import Workload


def busiest(plan: Plan, topology: Topology) -> float:
    """Give the seconds that the busiest capacity is busy."""
    load = np.zeros(len(topology.capacities))
    columns = plan.columns
    for row in np.flatnonzero(columns.op == TRANSFER).tolist():
        ends = (plan.devices[at[row]] for at in (columns.rank, columns.peer))
        for capacity in topology.route(*ends).capacities:
            load[capacity] += plan.op_bytes[row] / topology.capacities[capacity].bandwidth
    return float(load.max())


def flows(ranks: int) -> Flows:
    """Give flows over one port of 1 GB/s per rank and way."""
    return Flows(Builder(cases.small_workload(ranks), Partition.contiguous(ranks, ranks)))


def at(*numbers: int) -> Ints:
    return np.array(numbers)


def test_a_flow_turns_where_its_busiest_link_gets_less_busy() -> None:
    net = flows(4)
    net.add(at(0, 0), at(1, 2), np.array([3e9, 2e9]))
    assert net.load[:4].tolist() == [5.0, 0.0, 0.0, 0.0]
    assert net.turn((at(0), at(1)), (at(3), at(1)), np.array([3e9])).tolist() == [True]
    assert net.load[:4].tolist() == [2.0, 0.0, 0.0, 3.0]
    assert net.turn((at(0), at(2)), (at(3), at(2)), np.array([2e9])).tolist() == [False]
    assert net.load[:4].tolist() == [2.0, 0.0, 0.0, 3.0]
    assert net.load[4:8].tolist() == [0.0, 3.0, 2.0, 0.0]


def test_of_flows_that_would_crowd_a_link_together_just_some_turn() -> None:
    net, size = flows(4), np.full(4, 1e9)
    ends = at(1, 2, 1, 2)
    net.add(at(0, 0, 0, 0), ends, size)
    turned = net.turn((at(0, 0, 0, 0), ends), (at(3, 3, 3, 3), ends), size)
    assert turned.sum() == 2
    assert net.load[:4].tolist() == [2.0, 0.0, 0.0, 2.0]


@pytest.mark.parametrize("name", ["dual_numa_pcie", "dual_numa_pcie_gen5"])
def test_where_ranks_owe_different_gradients_no_link_is_much_busier_than_it_has_to_be(
    name: str,
) -> None:
    topology = load_topology(name)
    work = Workload(seq_len=65536, heads=32, kv_heads=32, head_dim=128, mask="causal")
    shards = Partition.zigzag(work.seq_len, 8)
    made = build(
        PLANNERS["charm"], "charm", work, shards, direction="backward", topology=topology,
        devices=topology.device_names, params={"remerge": False},
    )  # fmt: skip
    limit = class_bound(topology, work, direction="backward", partition=shards)
    assert busiest(made, topology) <= 1.08 * limit.communication


def useless(plan: Plan) -> list[str]:
    """List the keys that reach a rank which neither attends them nor passes them on."""
    used: set[tuple[int, Item]] = set()
    found = []
    for row in range(len(plan) - 1, -1, -1):
        op = plan.op(row)
        if isinstance(op, Attend):
            used.update((op.rank, item) for item, _ in op.keys)
        elif isinstance(op, Transfer):
            for item, _ in op.items:
                if item.kind != "kv":
                    continue
                if (op.dst, item) not in used:
                    found.append(str(op))
                used.add((op.src, item))
    return found


@given(st.data(), cases.trees(6), st.integers(1, 3), st.sampled_from(["contiguous", "zigzag"]))
def test_no_keys_move_to_where_nobody_needs_them(
    data: st.DataObject, tree: Tree, pieces: int, partition: str
) -> None:
    work = cases.small_workload(24, data.draw(cases.masks(24)))
    ranks = len(leaves(tree))
    params = {"domains": tree, "pieces": pieces, "pairs": data.draw(st.booleans())}
    for plan in cases.both_ways("charm", ranks, work, partition, params):
        verify(plan)
        brute.run(plan)
        assert not useless(plan)
