"""What is drawn for a topology: no privileges needed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from support.machines import small_shipped

from charm_sched.errors import TopologyError
from charm_sched.testbed.blueprint import Blueprint, Hop, blueprint
from charm_sched.testbed.capacity import Carrying, choose_scale
from charm_sched.testbed.scripts import SETTINGS, ip_lines, tc_lines
from charm_sched.testbed.shaping import PAYLOAD, WIRE
from charm_sched.topology.graph import Topology, load_topology

Wire: TypeAlias = tuple[str, str, dict[str, Any]]


def walk(drawing: Blueprint, src: str, dst: str) -> list[Hop]:
    """Follow the routes that the namespaces are given, as the kernel will."""
    far = {(w.a, w.a_interface): w.b for w in drawing.wires}
    far |= {(w.b, w.b_interface): w.a for w in drawing.wires}
    by_name = {n.name: n for n in drawing.namespaces}
    start, end = drawing.of_device(src), drawing.of_device(dst)
    at, hops = start, []
    while at is not end:
        fitting = [r for r in at.routes if r.destination == end.address]
        special = [r for r in fitting if r.source == start.address]
        (route,) = special or [r for r in fitting if r.source is None]
        hops.append((at.name, route.interface))
        at = by_name[far[at.name, route.interface]]
        assert len(hops) < 20
    path = drawing.paths[src, dst]
    assert hops == [(hop.namespace, hop.interface) for hop in path]
    return list(path)


def check(topology: Topology) -> Blueprint:
    """Check that every pair crosses exactly the capacities of its route, each shaped once."""
    drawing = blueprint(topology, topology.device_names, scale=1e-3)
    ports = len(topology.capacities) - 2 * len(topology.devices)
    places = Counter((s.namespace, s.interface) for s in drawing.shapers.values())
    assert set(places.values()) <= {1}
    for src, dst in drawing.paths:
        route = topology.route(src, dst)
        crossed = [h.capacity for h in walk(drawing, src, dst) if h.capacity is not None]
        assert [c for c in crossed if c < ports] == [topology.link_capacity[i] for i in route.links]
        implied = set(route.capacities) - set(crossed)
        assert all(c >= ports for c in implied)
        for capacity in crossed:
            shaper = drawing.shapers[capacity]
            assert shaper.rate == pytest.approx(topology.capacities[capacity].bandwidth * 1e-3)
            (flow,) = [f for f in shaper.flows if (f.src, f.dst) == (src, dst)]
            assert flow.ceiling >= route.flow_cap * 1e-3 * (1 - 1e-12)
    return drawing


@pytest.mark.parametrize("name", small_shipped())
def test_every_pair_crosses_the_capacities_of_its_route(name: str) -> None:
    topology = load_topology(name)
    drawing = check(topology)
    assert len(drawing.paths) == len(topology.devices) * (len(topology.devices) - 1)
    assert {n.role for n in drawing.namespaces} == {"device", "switch"}
    assert [n.part for n in drawing.namespaces[: len(drawing.devices)]] == list(drawing.devices)


@pytest.mark.parametrize("name", ["dual_numa_pcie", "dual_numa_pcie_gen5"])
def test_parallel_links_are_told_apart_by_source(name: str) -> None:
    drawing = check(load_topology(name))
    assert any(route.source for n in drawing.namespaces for route in n.routes)


def test_half_duplex_link_has_a_namespace_in_its_middle(pcie_tree: Topology) -> None:
    drawing = check(pcie_tree)
    (medium,) = [n for n in drawing.namespaces if n.role == "medium"]
    (shaper,) = [s for s in drawing.shapers.values() if s.namespace == medium.name]
    assert shaper.interface == "ifb0"
    assert len(shaper.flows) == 2 * 4 * 4
    redirects = [line for line in tc_lines(drawing, medium) if "mirred" in line]
    assert len(redirects) == 2


def test_a_port_is_built_where_it_can_limit(machine: Callable[..., Topology]) -> None:
    links: list[Wire] = [("d0", "d1", {}), ("d0", "d2", {})]
    wide = check(machine(3, links))
    narrow = check(machine(3, links, ports={0: "15 MB/s"}))
    assert [n.role for n in wide.namespaces] == ["device"] * 3
    assert [n.role for n in narrow.namespaces] == ["device"] * 3 + ["port"]
    assert narrow.of_device("d0").interfaces == ("eth0",)
    assert len(narrow.shapers) == len(wide.shapers) + 2


@pytest.mark.parametrize(
    ("links", "ports"),
    [
        ([("d0", "d1", {"count": 3})], None),
        ([("d0", "d1", {"count": 2, "shared": True}), ("d1", "d2", {})], None),
        ([("d0", "d1", {"shared": True}), ("d1", "d2", {"shared": True})], {1: "5 MB/s"}),
        (
            [("d0", "d1", {"reverse": "2 MB/s"}), ("d2", "d0", {"flow_cap": "1 MB/s"})],
            {0: "9 MB/s"},
        ),
    ],
)
def test_odd_machines(
    machine: Callable[..., Topology], links: list[Wire], ports: dict[int, str] | None
) -> None:
    drawing = check(
        machine(3, [*links, ("d2", "s", {}), ("s", "d0", {})], switches=["s"], ports=ports)
    )
    assert len([n for n in drawing.namespaces if n.role == "port"]) == len(ports or {})


def test_unused_links_make_no_port_and_no_namespace() -> None:
    """Eight devices of one node do not need their NICs."""
    topology = load_topology("dual_node_nvlink")
    drawing = blueprint(topology, topology.device_names[:8], scale=1e-3)
    assert [n.role for n in drawing.namespaces] == ["device"] * 8 + ["switch"]


def test_devices_without_a_way_are_not_routed(machine: Callable[..., Topology]) -> None:
    chain = machine(3, [("d0", "d1", {}), ("d1", "d2", {})])  # devices never forward
    drawing = blueprint(chain, chain.device_names, scale=1.0)
    assert set(drawing.paths) == {("d0", "d1"), ("d1", "d0"), ("d1", "d2"), ("d2", "d1")}


def test_rates_leave_room_for_headers(machine: Callable[..., Topology]) -> None:
    topology = machine(2, [("d0", "d1", {"flow_cap": "4 MB/s"})])
    drawing = blueprint(topology, topology.device_names, scale=0.5)
    lines = list(tc_lines(drawing, drawing.namespaces[0]))
    root, flow = round(8 * 5e6 * WIRE / PAYLOAD), round(8 * 2e6 * WIRE / PAYLOAD)
    assert any(f"classid 1:1 htb rate {root}bit ceil {root}bit" in line for line in lines)
    assert any("classid 1:10 " in line and f"ceil {flow}bit" in line for line in lines)


def test_small_packets_where_links_are_slow() -> None:
    """What begins a message waits for a packet of every other flow; 1 ms each, not 16 KB."""
    topology = load_topology("dual_node_nvlink")
    scale = 4e6 / 24e9  # a NIC: 4 MB/s, NVLink 27
    drawing = blueprint(topology, topology.device_names, scale=scale)
    lines = [line for n in drawing.namespaces for line in ip_lines(drawing, n)]
    queues = [line for n in drawing.namespaces for line in tc_lines(drawing, n)]
    sizes = set()
    for wire in drawing.wires:
        (line,) = [x for x in lines if x.startswith("link add") and f"address {wire.mac} " in x]
        sizes |= {int(size) for size in re.findall(r"gso_max_size (\d+)", line)}
    assert sizes == {4000, 16384}
    for shaper in drawing.shapers.values():
        slow = shaper.rate < 5e6
        assert shaper.packet == (4000 if slow else 16384)
        mine = [x for x in queues if f"dev {shaper.interface} parent 1:1 " in x]
        assert any(f"quantum {4400 if slow else 18022} " in line for line in mine)


def test_small_packets_have_a_class_of_their_own_at_every_shaper() -> None:
    drawing = blueprint(load_topology("dual_numa_pcie"), ("socket0/gpu0", "socket1/gpu0"), scale=1)
    queues = [line for n in drawing.namespaces for line in tc_lines(drawing, n)]
    found = [line for line in queues if "0x0000 0xff80 at 2" in line]
    assert len(found) == len(drawing.shapers)
    assert all("flowid 1:2" in line and "at 33" not in line for line in found)
    assert ("ipv4/tcp_sack", "0") in SETTINGS  # overtaken packets are not lost


def test_packets_are_as_large_as_the_fastest_flow_of_an_interface_wants() -> None:
    """One port for all: packets for the other socket are large too, and so are turns there."""
    topology = load_topology("dual_numa_pcie")
    drawing = blueprint(topology, topology.device_names, scale=1e-3)
    assert {shaper.packet for shaper in drawing.shapers.values()} == {16384}
    slow = blueprint(topology, topology.device_names, scale=1e-6)
    assert {shaper.packet for shaper in slow.shapers.values()} == {2 * WIRE}


def test_wires_are_created_between_namespaces_and_names_are_short() -> None:
    topology = load_topology("four_node_nvlink")
    drawing = blueprint(topology, topology.device_names, scale=1e-3, prefix="charm-1-2-3")
    created = [
        line
        for each in drawing.namespaces
        for line in ip_lines(drawing, each)
        if "type veth" in line
    ]
    assert len(created) == len(drawing.wires)
    assert all(" netns charm-1-2-3-" in line for line in created)
    assert len({wire.mac for wire in drawing.wires}) == len(drawing.wires)


@pytest.mark.parametrize(
    ("devices", "scale", "message"),
    [
        (["d0", "d0"], 1.0, "different devices"),
        ([], 1.0, "different devices"),
        (["d0", "d7"], 1.0, 'found "d7"'),
        (["d0", "d1"], 0.0, "a scale above 0"),
        (["d0", "d1"], float("inf"), "a scale above 0"),
    ],
)
def test_wrong_arguments(
    machine: Callable[..., Topology], devices: list[str], scale: float, message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        blueprint(machine(2, [("d0", "d1", {})]), devices, scale=scale)


def test_scale_fits_the_busiest_phase(machine: Callable[..., Topology]) -> None:
    """Three devices behind one switch: 6 x 10 MB/s over two hops is not possible, 3 x 10 is."""
    star = machine(3, [(f"d{i}", "s", {}) for i in range(3)], switches=["s"])
    carrying = Carrying(endpoint=1e-9, hop=5e-10)  # 2 ns per byte over two hops
    assert choose_scale(star, carrying=carrying, share=0.3) == pytest.approx(5.0)
    assert choose_scale(star, ["d0", "d1"], carrying=carrying, share=0.3) == pytest.approx(7.5)


def test_scale_knows_shared_links(pcie_tree: Topology) -> None:
    carrying = Carrying(endpoint=0.0, hop=1e-9)
    some = choose_scale(pcie_tree, ["d0", "d4"], carrying=carrying, share=0.5)
    hops = len(blueprint(pcie_tree, ["d0", "d4"], scale=1.0).paths["d0", "d4"])
    assert hops == 6
    assert some == pytest.approx(0.5 / (6e6 * hops * 1e-9), rel=0.1)
