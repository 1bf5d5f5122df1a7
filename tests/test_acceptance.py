"""What a buyer reads off the shipped machines, held against closed forms.

Cases and limits were fixed before the first run: multi-head attention (32 heads, head dim 128),
full mask, on the two machines of the CHARM+ abstract.
"""

from __future__ import annotations

import pytest

from charm_sched.planners import PLANNERS
from charm_sched.search.planning import Comparison, Result, plan_all
from charm_sched.topology.graph import Topology, load_topology
from charm_sched.workload import Workload


def multi_head(seq_len: int) -> Workload:
    return Workload(seq_len=seq_len, heads=32, kv_heads=32, head_dim=128, mask="full")


def row(compared: Comparison, strategy: str, direction: str) -> Result:
    return next(r for r in compared.results if (r.strategy, r.direction) == (strategy, direction))


@pytest.fixture(scope="module")
def node() -> Topology:
    return load_topology("dual_node_nvlink")


@pytest.mark.parametrize("seq_len", [16 * 1024, 32 * 1024])
def test_charm_is_three_times_as_fast_as_ring_on_two_nodes(node: Topology, seq_len: int) -> None:
    compared = plan_all(node, multi_head(seq_len), directions=("forward",))
    ring, charm = (row(compared, name, "forward").timeline.makespan for name in ("ring", "charm"))
    assert ring / charm >= 3
    assert row(compared, "charm", "forward").speedup_vs_ring == pytest.approx(ring / charm)


def test_charm_is_near_the_physical_limit_on_two_nodes(node: Topology) -> None:
    work = multi_head(32 * 1024)
    compared = plan_all(node, work, directions=("forward",))
    charm = row(compared, "charm", "forward").timeline
    piece = work.seq_len // 16 * work.num_kv_heads * work.row_bytes("kv")
    network = piece / 24e9  # each piece enters the other node once, through one NIC
    nvlink = 14 * piece / 160e9  # what else a rank needs comes through its NVLink
    assert charm.makespan <= 1.25 * max(charm.compute_s, network, nvlink)
    assert charm.makespan >= max(charm.compute_s, network, nvlink)


@pytest.mark.parametrize("name", ["dual_node_nvlink", "dual_numa_pcie"])
@pytest.mark.parametrize("seq_len", [8 * 1024, 32 * 1024, 128 * 1024])
def test_ring_follows_its_closed_form(name: str, seq_len: int) -> None:
    topology = load_topology(name)
    work = multi_head(seq_len)
    ring = row(plan_all(topology, work, strategies=("ring",)), "ring", "forward")
    ranks = len(topology.devices)
    piece = seq_len // ranks * work.num_kv_heads * work.row_bytes("kv")
    hop = 0.0
    for one, other in zip(
        topology.device_names, topology.device_names[1:] + topology.device_names[:1], strict=True
    ):
        route = topology.route(one, other)
        rate = min(*(topology.capacities[i].bandwidth for i in route.capacities), route.flow_cap)
        hop = max(hop, route.latency + piece / rate)
    profile = topology.devices[0].compute
    rate, _ = profile.rate(direction="forward", head_dim=128, causal=False, dtype="bf16")
    pairs = (seq_len // ranks) ** 2 * work.heads
    attend = profile.overhead + pairs * work.flops_per_pair("forward") / rate
    closed = (ranks - 1) * max(hop, attend) + attend
    assert ring.timeline.makespan == pytest.approx(closed, rel=0.03)


def test_charm_crosses_the_sockets_with_little_more_than_half_of_rings_bytes() -> None:
    compared = plan_all(load_topology("dual_numa_pcie"), multi_head(32 * 1024))
    for direction in ("forward", "backward"):
        ring, charm = (
            row(compared, name, direction).timeline.tier_bytes["upi"] for name in ("ring", "charm")
        )
        assert charm <= 0.58 * ring
        assert charm > 0


@pytest.mark.parametrize("name", ["dual_node_nvlink", "dual_numa_pcie"])
def test_where_computation_limits_no_strategy_is_far_from_it(name: str) -> None:
    """All share one limit, the devices' rates; what starts by waiting loses a few per cent."""
    compared = plan_all(load_topology(name), multi_head(512 * 1024))
    assert {r.strategy for r in compared.results} == set(PLANNERS) - {"tasp"}
    for result in compared.results:
        work = result.bound.compute  # all of it, over all rates: no strategy can do with less
        assert work <= result.timeline.compute_s <= 1.001 * work
        assert result.timeline.makespan <= 1.05 * work
    for strategy in ("ring", "reverse_ring", "double_ring", "mesh", "charm"):
        assert row(compared, strategy, "forward").timeline.makespan <= 1.001 * work_of(compared)


def work_of(compared: Comparison) -> float:
    return row(compared, "ring", "forward").bound.compute


@pytest.mark.parametrize(
    "name",
    ["dual_numa_pcie_gen5", "dual_node_nvlink_4nic", "dual_node_h800", "single_node_nvlink",
     "four_node_nvlink"],
)  # fmt: skip
def test_the_other_shipped_machines_are_planned_in_both_directions(name: str) -> None:
    work = Workload(seq_len=32 * 1024, heads=32, kv_heads=8, head_dim=128, mask="causal")
    compared = plan_all(load_topology(name), work, strategies=("auto",))
    for direction in ("forward", "backward"):
        chosen = compared.chosen[direction]
        assert chosen.speedup_vs_ring is not None
        assert chosen.speedup_vs_ring >= 1
        assert chosen.timeline.makespan >= chosen.timeline.compute_s
