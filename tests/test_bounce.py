"""Devices without peer access: through the memory of the host, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest

from charm_sched import Workload, plan_all
from charm_sched.errors import TopologyError
from charm_sched.partition import Partition
from charm_sched.plans.builder import Builder
from charm_sched.simulator import simulate
from charm_sched.testbed.paths import find_routes
from charm_sched.topology.graph import Domain, Route, Topology

SOCKET = {
    "devices": [{"name": "gpu0..3", "profile": "rtx_4090", "peer": False}],
    "switches": [
        {"name": "sw0..1", "kind": "pcie_switch"},
        {"name": "root", "kind": "root_complex"},
        {"name": "memory", "kind": "host_memory"},
    ],
    "links": [
        {"from": "gpu0..3", "to": "sw0..1", "kind": "pcie"},
        {"from": "sw0..1", "to": "root", "kind": "uplink"},
        {"from": "root", "to": "memory", "kind": "dram"},
    ],
}


def box(**changes: Any) -> Topology:
    """Two sockets of two PCIe switches with two cards each; 20 GB/s but for DRAM and sockets."""
    links = {"bandwidth": "20 GB/s", "latency": "1 us"}
    return Topology.from_document(
        {
            "schema": "charm-sched/topology",
            "version": 1,
            "name": "box",
            "kinds": {
                "pcie": links,
                "uplink": links | changes.get("uplink", {}),
                "dram": {"bandwidth": "200 GB/s", "latency": "4 us"} | changes.get("dram", {}),
                "upi": {"bandwidth": "80 GB/s", "latency": "1 us"},
            },
            "templates": {"socket": SOCKET | changes.get("socket", {})},
            "parts": [{"name": "s0..1", "template": "socket"}],
            "links": [
                {"from": "s0/root", "to": "s1/root", "kind": "upi"}, *changes.get("links", ()),
            ],
        }
        | changes.get("top", {})
    )  # fmt: skip


def crossed(machine: Topology, route: Route) -> list[str]:
    return [machine.links[i].dst for i in route.links]


def gbps(machine: Topology, *pairs: tuple[str, str]) -> float:
    """Give the rate of each of some equal messages that flow at the same time."""
    devices = machine.device_names
    rows = 10**8
    work = Workload(seq_len=rows * len(devices), heads=1, head_dim=1, mask="full")
    b = Builder(work, Partition.contiguous(work.seq_len, len(devices)), topology=machine,
                devices=devices)  # fmt: skip
    for number, (src, dst) in enumerate(pairs):
        rank = devices.index(src)
        b.transfer(src=rank, dst=devices.index(dst), level=0, stream=f"s{number}", slot=number,
                   items=b.item("q", ((rank * rows, rank * rows + rows),)))  # fmt: skip
    line = simulate(b.build(), machine)
    route = machine.route(*pairs[0])
    return 2 * rows / (line.makespan - route.latency) / 1e9


def test_the_way_leads_through_the_receivers_memory() -> None:
    machine = box()
    near = machine.route("s0/gpu0", "s0/gpu1")
    assert crossed(machine, near) == [
        "s0/sw0", "s0/root", "s0/memory", "s0/root", "s0/sw0", "s0/gpu1",
    ]  # fmt: skip
    assert near.latency == pytest.approx(12e-6)
    far = machine.route("s0/gpu0", "s1/gpu3")
    assert crossed(machine, far) == [
        "s0/sw0", "s0/root", "s1/root", "s1/memory", "s1/root", "s1/sw1", "s1/gpu3",
    ]  # fmt: skip


def test_a_near_pair_is_slower_than_a_far_one() -> None:
    """Both ways at once, as on A100 with peer access off: 11 within a switch, 28 across."""
    machine = box()
    near = gbps(machine, ("s0/gpu0", "s0/gpu1"), ("s0/gpu1", "s0/gpu0"))
    far = gbps(machine, ("s0/gpu0", "s0/gpu2"), ("s0/gpu2", "s0/gpu0"))
    across = gbps(machine, ("s0/gpu0", "s1/gpu0"), ("s1/gpu0", "s0/gpu0"))
    assert (near, far, across) == pytest.approx((10, 20, 20), rel=1e-6)
    assert gbps(machine, ("s0/gpu0", "s0/gpu1")) == pytest.approx(20, rel=1e-6)


def test_both_copies_count_where_the_memory_is_half_duplex() -> None:
    machine = box(dram={"bandwidth": "30 GB/s", "shared": True})
    route = machine.route("s0/gpu0", "s0/gpu2")
    names = [machine.capacities[i].name for i in route.capacities]
    assert names.count("s0/root <-> s0/memory") == 2
    assert gbps(machine, ("s0/gpu0", "s0/gpu2")) == pytest.approx(15, rel=1e-6)


def test_cards_behind_one_switch_are_no_domain() -> None:
    def sizes(domain: Domain) -> set[int]:
        return {len(domain.devices)}.union(*map(sizes, domain.children))

    peers = {"devices": [{"name": "gpu0..3", "profile": "rtx_4090"}]}
    assert 2 in sizes(box(socket=peers).domains())
    assert 2 not in sizes(box().domains())


def test_what_can_leave_a_set_of_devices() -> None:
    machine = box()
    root = machine.domains(("s0/gpu0", "s0/gpu1", "s0/gpu2"))
    first = root.children[0]
    assert first.devices == ("s0/gpu0",)
    assert machine.domain_bandwidth(first) == pytest.approx(20e9)


@pytest.mark.parametrize("peers", [(False, False), (False, True), (True, False), (True, True)])
def test_neighbours_exchange_what_their_uplink_carries(peers: tuple[bool, bool]) -> None:
    first, second = ({"name": f"gpu{i}", "profile": "l40s", "peer": peers[i]} for i in range(2))
    others = {"name": "gpu2..3", "profile": "l40s", "peer": False}
    machine = box(socket={"devices": [first, second, others]}, uplink={"bandwidth": "5 GB/s"})
    expected = 20e9 if all(peers) else 5e9
    pair = machine.domains(("s0/gpu0", "s0/gpu1"))
    assert machine.domain_bandwidth(pair.children[0]) == pytest.approx(expected)


def test_from_host_to_host_each_end_without_peer_access_copies() -> None:
    card = {"kind": "nic", "bandwidth": "10 GB/s", "latency": "1 us"}
    socket = SOCKET | {
        "switches": [*SOCKET["switches"], {"name": "nic", "kind": "nic"}],
        "links": [*SOCKET["links"], {"from": "root", "to": "nic", **card}],
    }
    machine = Topology.from_document(
        box().to_document() | {"name": "hosts"}
        | {
            "templates": {"socket": socket}, "parts": [{"name": "s0..1", "template": "socket"}],
            "devices": [], "switches": [{"name": "fabric", "kind": "fabric"}],
            "links": [{"from": "s0..1/nic", "to": "fabric", **card}],
        }
    )  # fmt: skip
    way = crossed(machine, machine.route("s0/gpu0", "s1/gpu0"))
    assert way == [
        "s0/sw0", "s0/root", "s0/memory", "s0/root", "s0/nic", "fabric", "s1/nic", "s1/root",
        "s1/memory", "s1/root", "s1/sw0", "s1/gpu0",
    ]  # fmt: skip


def test_one_end_without_peer_access_is_enough() -> None:
    mixed = {"devices": [
        {"name": "gpu0..1", "profile": "rtx_4090", "peer": False},
        {"name": "gpu2..3", "profile": "l40s"},
    ]}  # fmt: skip
    machine = box(socket=mixed)
    assert "s0/memory" in crossed(machine, machine.route("s0/gpu0", "s0/gpu2"))
    assert "s0/memory" in crossed(machine, machine.route("s0/gpu2", "s0/gpu1"))
    assert "s0/memory" in crossed(machine, machine.route("s1/gpu2", "s0/gpu1"))
    assert "s0/memory" not in crossed(machine, machine.route("s0/gpu2", "s0/gpu3"))
    assert machine.domains().devices == machine.device_names


def test_a_bridge_between_two_devices_needs_no_host() -> None:
    bridge = {"from": "s0/gpu0", "to": "s0/gpu1", "kind": "bridge", "bandwidth": "50 GB/s",
              "latency": "1 us"}  # fmt: skip
    machine = box(links=[bridge])
    assert crossed(machine, machine.route("s0/gpu0", "s0/gpu1")) == ["s0/gpu1"]
    assert gbps(machine, ("s0/gpu0", "s0/gpu1")) == pytest.approx(50, rel=1e-6)
    assert "s0/memory" in crossed(machine, machine.route("s0/gpu0", "s0/gpu2"))


def test_a_host_without_memory_is_refused() -> None:
    without = {
        "switches": SOCKET["switches"][:2],
        "links": SOCKET["links"][:2],
    }
    with pytest.raises(TopologyError, match=r'kind host_memory .*"s0/gpu0" has peer: false'):
        box(socket=without)


def test_a_shaped_network_refuses_them() -> None:
    machine = box()
    with pytest.raises(TopologyError, match=r'peer: false of "s0/gpu0"'):
        find_routes(machine, machine.device_names)


def test_written_back() -> None:
    machine = box()
    document = machine.to_document()
    again = Topology.from_document(document)
    assert (again.digest, again.to_document()) == (machine.digest, document)
    peers = box(socket={"devices": [{"name": "gpu0..3", "profile": "rtx_4090"}]})
    assert peers.digest != machine.digest


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_plans_are_made_and_stay_above_their_bounds(direction: str) -> None:
    machine = box()
    work = Workload(seq_len=8192, heads=8, kv_heads=4)
    found = plan_all(machine, work, strategies=("ring", "all_gather", "charm"),
                     directions=(direction,))  # fmt: skip
    for result in found.results:
        assert result.timeline.makespan >= result.bound.seconds * (1 - 1e-9)
        assert result.class_bound is not None
        assert result.timeline.makespan >= result.class_bound.seconds * (1 - 1e-9)
