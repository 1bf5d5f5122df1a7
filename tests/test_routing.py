from __future__ import annotations

import itertools
import math
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machines import cluster, link, nvlink_node, parse, section

from charm_sched.errors import TopologyError
from charm_sched.topology.graph import Route, Topology


def parts_on(topology: Topology, route: Route) -> list[str]:
    """Name the parts a route passes."""
    links = [topology.links[i] for i in route.links]
    assert all(a.dst == b.src for a, b in itertools.pairwise(links))
    return [links[0].src, *(k.dst for k in links)]


def capacity_names(topology: Topology, route: Route) -> list[str]:
    return [topology.capacities[i].name for i in route.capacities]


def box(*links: str, devices: str = "g0..3", switches: tuple[str, ...] = ()) -> Topology:
    return parse(section(devices=devices, switches=switches, links=links))


def test_latency_cap_and_capacities() -> None:
    topology = box(
        link("g0..1", "root0", 24, "pcie"),
        link("g2..3", "root1", 24, "pcie"),
        link("root0", "root1", 36, "upi", "flow_cap: 18 GB/s"),
        switches=("root0..1 root_complex",),
    )
    near, far = topology.route("g0", "g1"), topology.route("g0", "g3")
    assert parts_on(topology, near) == ["g0", "root0", "g1"]
    assert (near.latency, near.flow_cap) == (2e-6, math.inf)
    assert parts_on(topology, far) == ["g0", "root0", "root1", "g3"]
    assert (far.latency, far.flow_cap) == (3e-6, 18e9)
    assert capacity_names(topology, far) == [
        "g0 out", "g0 -> root0", "root0 -> root1", "root1 -> g3", "g3 in",
    ]  # fmt: skip
    assert [topology.capacities[i].kind for i in far.capacities] == [
        "port", "pcie", "upi", "pcie", "port",
    ]  # fmt: skip
    back = topology.route("g3", "g0")
    assert not set(back.capacities) & set(far.capacities)


def test_a_shared_link_is_one_capacity() -> None:
    topology = box(link("g0", "g1", 10, "bus", "shared: true"), devices="g0..1")
    there, back = topology.route("g0", "g1"), topology.route("g1", "g0")
    assert there.links != back.links
    assert set(there.capacities) & set(back.capacities) == {0}
    assert [c.name for c in topology.capacities] == [
        "g0 <-> g1", "g0 out", "g0 in", "g1 out", "g1 in",
    ]  # fmt: skip


def test_directions_may_differ() -> None:
    topology = box(link("g0", "g1", 10, "wire", "reverse: 4 GB/s"), devices="g0..1")
    assert [k.bandwidth for k in topology.links] == [10e9, 4e9]
    assert [d.port for d in topology.devices] == [10e9, 10e9]


def test_to_itself() -> None:
    topology = box(link("g0", "g1", 10, "wire"), devices="g0..1")
    assert topology.route("g0", "g0") == Route(
        links=(), capacities=(), latency=0.0, flow_cap=math.inf
    )


def test_devices_never_forward() -> None:
    topology = box(*(link(f"g{i}", f"g{i + 1}", 10, "wire") for i in range(3)))
    with pytest.raises(TopologyError) as caught:
        topology.route("g0", "g2")
    assert str(caught.value) == (
        'box: expected a route from "g0" to "g2", found none that does not cross a third device '
        "(devices never forward); join them by a link or a switch, or choose other devices"
    )
    detour = box(
        link("g0", "g1", 10, "wire"),
        link("g1", "g2", 10, "wire"),
        link("g0..3", "sw0..3", 5, "wire"),
        link("sw0..2", "sw1..3", 5, "wire"),
        switches=("sw0..3 switch",),
    )
    assert parts_on(detour, detour.route("g0", "g2")) == ["g0", "sw0", "sw1", "sw2", "g2"]


def test_unknown_device() -> None:
    topology = box(link("card0", "card1", 10, "wire"), devices="card0..1")
    with pytest.raises(
        TopologyError, match=r'2 devices \(card0, card1\), found "cart0" \(did you mean "card0"\?\)'
    ):
        topology.route("card1", "cart0")


def test_fewest_hops_before_width() -> None:
    topology = box(
        link("g0..1", "slow", 1, "wire"),
        link("g0", "fast0", 99, "wire"),
        link("fast0", "fast1", 99, "wire"),
        link("g1", "fast1", 99, "wire"),
        devices="g0..1",
        switches=("slow switch", "fast0..1 switch"),
    )
    assert parts_on(topology, topology.route("g0", "g1")) == ["g0", "slow", "g1"]


def test_the_widest_of_the_shortest() -> None:
    topology = box(
        link("g0..1", "plane", 160, "nvlink"),
        link("g0..1", "switch", 24, "pcie"),
        link("g0..1", "capped", 500, "wire", "flow_cap: 20 GB/s"),
        devices="g0..1",
        switches=("switch switch", "capped switch", "plane switch"),
    )
    assert parts_on(topology, topology.route("g0", "g1")) == ["g0", "plane", "g1"]


def test_parallel_links_are_dealt_out() -> None:
    topology = box(
        link("g0..3", "left", 24, "pcie"),
        link("h0..3", "right", 24, "pcie"),
        link("left", "middle", 24, "uplink", "count: 2"),
        link("right", "middle", 24, "uplink", "count: 2"),
        devices="g0..3, profile: card}\n  - {name: h0..3",
        switches=("left switch", "right switch", "middle switch"),
    )
    everything = Counter(
        i
        for a, b in itertools.permutations(topology.device_names, 2)
        for i in topology.route(a, b).links
        if topology.links[i].kind == "uplink"
    )
    assert set(everything.values()) == {8}
    assert len(everything) == 8
    shift = Counter(i for j in range(4) for i in topology.route(f"g{j}", f"h{j}").links)
    assert [n for i, n in shift.items() if topology.links[i].kind == "uplink"] == [2, 2, 2, 2]
    assert [c.name for c in topology.capacities if c.kind == "uplink"][:4] == [
        "left -> middle", "middle -> left", "left -> middle #2", "middle -> left #2",
    ]  # fmt: skip


@pytest.mark.parametrize("by", [8, 16, 64, 65, 71, 120])
def test_shifts_through_a_fat_tree_meet_nowhere(by: int) -> None:
    topology = parse(cluster(2, 8, trunk=24))
    names = topology.device_names
    assert len(names) == 128
    shift = [topology.route(a, b) for a, b in zip(names, names[by:] + names[:by], strict=True)]
    assert set(Counter(i for route in shift for i in route.links).values()) == {1}


def test_both_ends_of_every_route() -> None:
    topology = parse("templates:\n" + nvlink_node("node", 2) + section(
        parts=["host0..1 node"],
        switches=["fabric fabric"],
        links=[link("host0..1/nic0..1", "fabric", 24, "ib")],
    ))  # fmt: skip
    for a, b in itertools.permutations(topology.device_names, 2):
        passed = parts_on(topology, topology.route(a, b))
        same_node = a.split("/")[0] == b.split("/")[0]
        assert (passed[0], passed[-1], len(passed)) == (a, b, 3 if same_node else 5)


@settings(max_examples=40)
@given(st.data())
def test_against_all_paths(data: st.DataObject) -> None:
    """Hops and width equal the best over every simple path of a small random graph."""
    size, hubs = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 4))
    names = [f"g{i}" for i in range(size)] + [f"h{i}" for i in range(hubs)]
    links = [
        link(name, "h0", data.draw(st.integers(1, 4)), "wire") for name in names if name != "h0"
    ]
    for a, b in itertools.combinations(names, 2):
        if data.draw(st.booleans()):
            links.append(link(a, b, data.draw(st.integers(1, 4)), "wire"))
    topology = parse(
        section(devices=f"g0..{size - 1}", switches=[f"h0..{hubs - 1} hub"], links=links)
    )
    for a, b in itertools.permutations(topology.device_names, 2):
        route = topology.route(a, b)
        passed = parts_on(topology, route)
        assert not {name for name in passed[1:-1] if name.startswith("g")}
        width = min(topology.links[i].bandwidth for i in route.links)
        assert (len(route.links), -width) == min(
            _paths(topology, a, b, frozenset([a]), 0, math.inf)
        )


def _paths(
    topology: Topology, at: str, end: str, seen: frozenset[str], hops: int, width: float
) -> list[tuple[int, float]]:
    """List (hops, -width) of every simple path through hubs."""
    found = []
    for k in topology.links:
        if k.src != at or k.dst in seen:
            continue
        thinner = min(width, k.bandwidth)
        if k.dst == end:
            found.append((hops + 1, -thinner))
        elif k.dst.startswith("h"):
            found += _paths(topology, k.dst, end, seen | {k.dst}, hops + 1, thinner)
    return found


def test_graph() -> None:
    topology = box(link("g0", "g1", 10, "wire", "count: 3"), devices="g0..1")
    assert topology.graph.number_of_edges() == 6
    assert topology.graph.nodes["g0"]["part"] is topology.devices[0]
    assert topology.graph.edges["g0", "g1", 2]["link"] is topology.links[2]


def test_routes_of_a_large_cluster_are_quick() -> None:
    topology = parse(cluster(4, 32, trunk=24))
    names = topology.device_names
    start = time.process_time()
    for i in range(0, len(names), 8):
        for hop in range(1, len(names), 32):
            topology.route(names[i], names[(i + hop) % len(names)])
    assert time.process_time() - start < 4  # about 0.3 s here
