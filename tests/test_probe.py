"""Probes are simulated on a machine that differs from its file; the fit finds how."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machines import small_shipped

from charm_sched.probing.latency import share_latencies
from charm_sched.probing.probe import TIMES, Calibration, calibrate, patterns
from charm_sched.simulator import simulate
from charm_sched.testbed.host_cost import HostCost
from charm_sched.topology.graph import load_topology
from charm_sched.topology.scaling import corrected


def probed(
    name: str,
    factor: dict[str, float],
    latency: dict[str, float],
    message: float = 0.0,
) -> Calibration:
    """Calibrate a shipped machine by probes of one that differs from it, on a host."""
    host = HostCost(message=message, kernel=0.0)
    stated = load_topology(name)
    real = corrected(stated, bandwidth=factor, latency=latency)
    measured = [
        (pattern, [simulate(pattern.plan, real, rule="free", host=host)])
        for pattern in patterns(stated, stated.device_names)
    ]
    return calibrate(stated, measured, host)


@pytest.mark.parametrize("name", small_shipped())
def test_a_machine_that_is_as_its_file_says_needs_no_correction(name: str) -> None:
    found = probed(name, {}, {})
    for finding in found.findings:
        assert finding.bandwidth == pytest.approx(finding.expected, rel=1e-3)
    assert list(found.factor.values()) == pytest.approx([1] * len(found.factor), rel=1e-3)


def test_routes_of_one_tier_with_different_latencies_do_not_bend_the_fit() -> None:
    """On a DGX-2 flows between the boards cross one switch more than those on a board."""
    found = probed("dgx2", {}, {})
    for finding in found.findings:
        assert finding.bandwidth == pytest.approx(finding.expected, rel=1e-6)
    real = load_topology("dgx2")
    for one, other in (("gpu0", "gpu1"), ("gpu0", "gpu8")):
        assert found.topology.route(one, other).latency == pytest.approx(
            real.route(one, other).latency, rel=1e-3
        )
    changed = probed("dgx2", {"nvlink": 0.8}, {"trunk": 2e-6})
    assert changed.factor["nvlink"] == pytest.approx(0.8, rel=1e-3)
    assert changed.latency == pytest.approx({"nvlink": 1.7e-6, "trunk": 2e-6}, rel=1e-3)


def test_one_route_without_latency_does_not_outweigh_the_others() -> None:
    """What the host takes may be more than a route took: an error of usual weight, no more."""
    machine = load_topology("dual_numa_pcie")
    near = machine.route("socket0/gpu0", "socket0/gpu1")
    for nothing in (-1e-6, 0.0):
        found = share_latencies(
            machine, [(near, nothing), (near, 3e-6), (near, 3e-6)], lambda link: link.kind
        )
        total = sum(found[machine.links[i].kind] for i in near.links)
        assert total == pytest.approx(2e-6, rel=1e-3)
    nowhere = share_latencies(machine, [(near, 0.0)], lambda link: link.kind)
    assert set(nowhere.values()) == {0.0}


@given(
    st.lists(st.floats(0, 1e-3), min_size=2, max_size=2),
    st.sampled_from([0.0, 1e-30, 1e-18, 1e-15, 1e-9]),
)
def test_what_rounding_leaves_is_no_latency(seconds: list[float], factor: float) -> None:
    """A file with a latency of 1e-18 s could not be read again."""
    machine = load_topology("dual_numa_pcie")
    near = machine.route("socket0/gpu0", "socket0/gpu1")
    far = machine.route("socket0/gpu0", "socket1/gpu0")
    found = share_latencies(
        machine, [(near, seconds[0] * factor), (far, seconds[1])], lambda link: link.kind
    )
    assert all(value == 0 or value >= 1e-12 for value in found.values())


def test_latencies_that_routes_leave_open_keep_the_files_proportions() -> None:
    machine = load_topology("dual_numa_pcie")
    far = machine.route("socket0/gpu0", "socket1/gpu0")
    found = share_latencies(machine, [(far, 3 * far.latency)], lambda link: link.kind)
    for index in far.links:
        link = machine.links[index]
        assert found[link.kind] == pytest.approx(3 * link.latency, rel=1e-3)


def test_slower_links_and_longer_latencies_are_found() -> None:
    found = probed(
        "dual_node_nvlink", {"network": 0.8, "nvlink": 0.9}, {"network": 50e-6, "nvlink": 9e-6}
    )
    assert found.factor["network"] == pytest.approx(0.8, rel=1e-3)
    assert found.factor["nvlink"] == pytest.approx(0.9, rel=1e-3)
    real = corrected(
        load_topology("dual_node_nvlink"),
        bandwidth={"network": 0.8, "nvlink": 0.9},
        latency={"network": 50e-6, "nvlink": 9e-6},
    )
    for one, other in (("node0/gpu0", "node1/gpu0"), ("node0/gpu0", "node0/gpu1")):
        assert found.topology.route(one, other).latency == pytest.approx(
            real.route(one, other).latency, rel=1e-3
        )


def test_what_the_host_takes_is_not_given_to_the_links() -> None:
    latency = {"network": 50e-6, "nvlink": 9e-6}
    found = probed("dual_node_nvlink", {}, latency, 2e-6)
    plain = probed("dual_node_nvlink", {}, latency)
    assert found.latency == pytest.approx(plain.latency, rel=1e-3)


def test_a_shared_socket_link_is_found_through_all_flows_at_once() -> None:
    found = probed("dual_numa_pcie", {"upi": 0.5}, {})
    alone, together = (
        next(f for f in found.findings if f.tier == "upi" and ("alone" in f.name) == single)
        for single in (True, False)
    )
    assert alone.expected == 18e9
    assert together.expected == 9e9
    assert together.bound_by == "upi"
    assert found.factor["upi"] == pytest.approx(0.5, rel=1e-3)


def test_patterns_load_each_tier_alone_and_at_once() -> None:
    topology = load_topology("four_node_nvlink")
    found = patterns(topology, topology.device_names)
    assert {(p.tier, p.alone) for p in found} == {
        (tier, alone) for tier in topology.tiers for alone in (True, False)
    }
    for pattern in found:
        senders = [a for a, _ in pattern.pairs]
        receivers = [b for _, b in pattern.pairs]
        assert len(set(senders)) == len(senders)
        assert len(set(receivers)) == len(receivers)
        assert len(pattern.plan) == len(pattern.pairs) * TIMES * 4
        if not pattern.alone:
            assert len(senders) == len(topology.devices)
