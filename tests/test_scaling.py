from __future__ import annotations

import pytest
from support.machines import small_shipped

from charm_sched.plans.plan import Plan, Schedule
from charm_sched.search.planning import plan
from charm_sched.simulator import simulate
from charm_sched.topology.graph import load_topology
from charm_sched.topology.scaling import corrected, scaled, weightless
from charm_sched.workload import Workload

WORK = Workload(seq_len=4096, heads=4, kv_heads=4, head_dim=64, mask="causal")


@pytest.mark.parametrize("name", small_shipped())
def test_a_scaled_machine_keeps_every_plans_shape(name: str) -> None:
    topology = load_topology(name)
    slow = scaled(topology, 1 / 1024)
    both = plan(topology, WORK, strategy="charm", params={"pieces": 2})
    assert isinstance(both, Schedule)
    for made in both.plans:
        fast_line, slow_line = simulate(made, topology), simulate(made, slow)
        assert slow_line.makespan == pytest.approx(1024 * fast_line.makespan, rel=1e-9)
        assert slow_line.end == pytest.approx(1024 * fast_line.end, rel=1e-9, abs=1e-12)
    assert slow.tiers == topology.tiers
    assert slow.digest != topology.digest


def test_measured_links_replace_those_of_the_file() -> None:
    topology = load_topology("dual_numa_pcie")
    found = corrected(topology, bandwidth={"upi": 0.5}, latency={"pcie": 3e-3})
    for before, after in zip(topology.links, found.links, strict=True):
        factor = 0.5 if before.kind == "upi" else 1.0
        assert after.bandwidth == before.bandwidth * factor
        assert after.flow_cap == (before.flow_cap and before.flow_cap * factor)
        assert after.latency == (3e-3 if before.kind == "pcie" else before.latency)
    for capacity, after_capacity in zip(topology.capacities, found.capacities, strict=True):
        factor = 0.5 if capacity.kind == "upi" else 1.0
        assert after_capacity.bandwidth == capacity.bandwidth * factor


def test_a_weightless_machine_takes_time_for_bytes_alone() -> None:
    topology = load_topology("dual_numa_pcie")
    fast = weightless(topology)
    ring = plan(fast, WORK, strategy="ring", direction="forward", partition="contiguous")
    assert isinstance(ring, Plan)
    line = simulate(ring, fast)
    piece = WORK.seq_len // 8 * WORK.num_kv_heads * WORK.row_bytes("kv")
    assert line.makespan == pytest.approx(7 * piece / 18e9, rel=1e-5)  # a flow across sockets
    assert line.compute_s < 1e-9
    assert fast.tiers == topology.tiers
