from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machines import HEAD, cluster, link, nvlink_node, parse, section, shape, template

from charm_sched.errors import TopologyError
from charm_sched.topology.domain_graph import DomainGraph
from charm_sched.topology.graph import Domain, Topology


def sockets(*sizes: int, between: float = 36) -> str:
    """Sockets of directly attached devices, all joined."""
    names = [f"s{i}g" for i in range(len(sizes))]
    roots = range(len(sizes))
    devices = "".join(
        f"  - {{name: {name}0..{size - 1}, profile: card}}\n"
        for name, size in zip(names, sizes, strict=True)
    )
    links = [
        link(f"{name}0..{size - 1}", f"root{i}", 24, "pcie")
        for i, (name, size) in enumerate(zip(names, sizes, strict=True))
    ] + [link(f"root{a}", f"root{b}", between, "upi") for a, b in itertools.combinations(roots, 2)]
    switches = [f"root0..{len(sizes) - 1} root_complex"]
    return f"devices:\n{devices}" + section(switches=switches, links=links)


def nodes(*sizes: int, fabric: Sequence[str] = ("fabric fabric",), more: str = "") -> str:
    """Nodes with NVLink and a NIC per device, on one fabric or on rails."""
    links = [
        link(f"host{i}/nic0..{size - 1}", fabric[0].split()[0], 24, "ib", more)
        for i, size in enumerate(sizes)
    ]
    return (
        "templates:\n"
        + "".join(nvlink_node(f"node{size}", size) for size in dict.fromkeys(sizes))
        + section(
            parts=[f"host{i} node{size}" for i, size in enumerate(sizes)],
            switches=fabric,
            links=links,
        )
    )


def two_switches(between: float = 36) -> str:
    """Two sockets with two PCIe switches each; two devices share the uplink of a switch."""
    return section(
        devices="g0..7",
        switches=["switch0..3 pcie_switch", "root0..1 root_complex"],
        links=[
            link("g0..7", "switch0..3", 24, "pcie"),
            link("switch0..3", "root0..1", 24, "uplink"),
            link("root0", "root1", between, "upi"),
        ],
    )


def four_nics() -> str:
    node = section(
        devices="g0..7",
        switches=["nvswitch nvswitch", "sw0..3 pcie_switch", "nic0..3 nic"],
        links=[
            link("g0..7", "nvswitch", 160, "nvlink"),
            link("g0..7", "sw0..3", 24, "pcie"),
            link("sw0..3", "nic0..3", 24, "pcie"),
        ],
    )
    return (
        "templates:\n"
        + template("node", node)
        + section(
            parts=["host0..1 node"],
            switches=["fabric fabric"],
            links=[link("host0..1/nic0..3", "fabric", 24, "ib")],
        )
    )


def pcie_cluster() -> str:
    node = section(
        devices="g0..3",
        switches=["root0..1 root_complex", "nic nic"],
        links=[
            link("g0..3", "root0..1", 24, "pcie"),
            link("root0", "root1", 20, "upi"),
            link("root0", "nic", 24, "pcie"),
        ],
    )
    return (
        "templates:\n"
        + template("node", node)
        + section(
            parts=["host0..2 node"],
            switches=["fabric fabric"],
            links=[link("host0..2/nic", "fabric", 12, "ib")],
        )
    )


def bridged_pairs() -> str:
    return section(
        devices="g0..3",
        switches=["root root_complex"],
        links=[
            link("g0..3", "root", 24, "pcie"),
            link("g0", "g1", 100, "nvlink"),
            link("g2", "g3", 100, "nvlink"),
        ],
    )


def one_kind() -> str:
    """Two cliques that only the bandwidth of their links tells apart."""
    pairs = itertools.combinations(range(6), 2)
    inside = [link(f"g{a}", f"g{b}", 50, "wire") for a, b in pairs if a // 3 == b // 3]
    across = [link("g0", "g3", 10, "wire"), link("g1", "g4", 10, "wire")]
    return section(devices="g0..5", links=inside + across)


def kinds_alone() -> str:
    """Two cliques that only the kind of their links tells apart."""
    pairs = itertools.combinations(range(6), 2)
    inside = [link(f"g{a}", f"g{b}", 50, "nvlink") for a, b in pairs if a // 3 == b // 3]
    across = [link("g0", "g3", 60, "cable"), link("g1", "g4", 60, "cable")]
    return section(devices="g0..5", links=inside + across)


def one_switch_too_many() -> str:
    """Two devices of one socket share an uplink; the six others are attached directly."""
    return section(
        devices="g0..7",
        switches=["switch pcie_switch", "root0..1 root_complex"],
        links=[
            link("g0..1", "switch", 24, "pcie"),
            link("switch", "root0", 24, "uplink"),
            link("g2..3", "root0", 24, "pcie"),
            link("g4..7", "root1", 24, "pcie"),
            link("root0", "root1", 36, "upi"),
        ],
    )


def grid(along: float) -> str:
    """A switch per row and one per column."""
    rows = [link(f"r{i}c0..3", f"row{i}", along, "east") for i in range(4)]
    columns = [link(f"r0..3c{i}", f"column{i}", 22, "south") for i in range(4)]
    return section(
        devices="r0..3c0..3", switches=["row0..3 switch", "column0..3 switch"], links=rows + columns
    )


EIGHT = "gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7"
SHORT = "g0 g1 g2 g3 g4 g5 g6 g7"
SHAPES = {
    "flat sockets": (
        sockets(4, 4),
        ("upi", "pcie"),
        "[s0g0 s0g1 s0g2 s0g3] [s1g0 s1g1 s1g2 s1g3]",
    ),
    "uneven sockets": (
        sockets(3, 5),
        ("upi", "pcie"),
        "[s0g0 s0g1 s0g2] [s1g0 s1g1 s1g2 s1g3 s1g4]",
    ),
    "four sockets": (
        sockets(2, 2, 2, 2, between=6),
        ("upi", "pcie"),
        "[s0g0 s0g1] [s1g0 s1g1] [s2g0 s2g1] [s3g0 s3g1]",
    ),
    "rich link between sockets": (sockets(2, 2, between=48), ("pcie",), "s0g0 s0g1 s1g0 s1g1"),
    "switches": (
        two_switches(),
        ("upi", "uplink", "pcie"),
        "[[g0 g1] [g2 g3]] [[g4 g5] [g6 g7]]",
    ),
    "poor uplinks": (two_switches(1000), ("uplink", "pcie"), "[g0 g1] [g2 g3] [g4 g5] [g6 g7]"),
    "two nodes": (nodes(8, 8), ("ib", "nvlink"), f"[{EIGHT}] [{EIGHT}]"),
    "uneven nodes": (
        nodes(3, 5),
        ("ib", "nvlink"),
        "[gpu0 gpu1 gpu2] [gpu0 gpu1 gpu2 gpu3 gpu4]",
    ),
    "small and large nodes": (
        nodes(2, 2, 6),
        ("ib", "nvlink"),
        "[gpu0 gpu1] [gpu0 gpu1] [gpu0 gpu1 gpu2 gpu3 gpu4 gpu5]",
    ),
    "shared NICs": (four_nics(), ("ib", "nvlink"), f"[{SHORT}] [{SHORT}]"),
    "rails": (
        nodes(8, 8, 8, fabric=("leaf0..7 leaf",), more="pairing: cycle"),
        ("ib", "nvlink"),
        f"[{EIGHT}] [{EIGHT}] [{EIGHT}]",
    ),
    "as many nodes as rails": (
        nodes(*[4] * 4, fabric=("leaf0..3 leaf",), more="pairing: cycle").replace("160", "36"),
        ("ib", "nvlink"),
        " ".join(["[gpu0 gpu1 gpu2 gpu3]"] * 4),
    ),
    "NUMA inside nodes": (
        pcie_cluster(),
        ("ib", "upi", "pcie"),
        "[[g0 g1] [g2 g3]] [[g0 g1] [g2 g3]] [[g0 g1] [g2 g3]]",
    ),
    "bridged pairs": (bridged_pairs(), ("pcie", "nvlink"), "[g0 g1] [g2 g3]"),
    "one kind of link": (one_kind(), ("wire", "wire_2"), "[g0 g1 g2] [g3 g4 g5]"),
    "pods": (
        cluster(2, 2, trunk=3),
        ("trunk", "rail", "nvlink"),
        f"[[{EIGHT}] [{EIGHT}]] [[{EIGHT}] [{EIGHT}]]",
    ),
    "pods without oversubscription": (
        cluster(2, 2, trunk=6),
        ("rail", "nvlink"),
        f"[{EIGHT}] [{EIGHT}] [{EIGHT}] [{EIGHT}]",
    ),
    "pods with a little oversubscription": (
        cluster(2, 2, trunk=5.5),
        ("rail", "nvlink"),
        f"[{EIGHT}] [{EIGHT}] [{EIGHT}] [{EIGHT}]",
    ),
    "exchange that rises slowly": (
        cluster(2, 2, trunk=5.5).replace("160 GB/s", "4 GB/s"),
        ("rail", "rail_2"),
        f"[{EIGHT}] [{EIGHT}] [{EIGHT}] [{EIGHT}]",
    ),
    "kinds alone": (kinds_alone(), ("cable", "nvlink"), "[g0 g1 g2] [g3 g4 g5]"),
    "one switch too many": (
        one_switch_too_many(),
        ("upi", "pcie", "pcie_2"),
        "[[g0 g1] [g2 g3]] [g4 g5 g6 g7]",
    ),
    "grid with rich rows": (
        grid(48),
        ("south", "east"),
        " ".join(f"[{' '.join(f'r{i}c{j}' for j in range(4))}]" for i in range(4)),
    ),
    "grid": (
        grid(24),
        ("east",),
        " ".join(f"r{i}c{j}" for i in range(4) for j in range(4)),
    ),
    "two devices": (
        section(devices="g0..1", links=[link("g0", "g1", 24, "pcie")]),
        ("pcie",),
        "g0 g1",
    ),
    "one device": (section(devices="g0"), (), "g0"),
}


@pytest.mark.parametrize("case", SHAPES)
def test_hierarchy(case: str) -> None:
    body, tiers, expected = SHAPES[case]
    topology = parse(body)
    assert shape(topology.domains()) == expected
    assert topology.tiers == tiers


def test_one_slow_link_makes_a_domain_of_the_others() -> None:
    slow = link("g0", "root", 8, "pcie")
    topology = parse(
        section(
            devices="g0..3",
            switches=["root root_complex"],
            links=[slow, link("g1..3", "root", 24, "pcie")],
        )
    )
    assert shape(topology.domains()) == "g0 [g1 g2 g3]"


def test_bandwidth_out_of_domains() -> None:
    assert bandwidths(parse(nodes(3, 5)).domains(), parse(nodes(3, 5))) == [72e9, 72e9]
    topology = parse(two_switches())
    root = topology.domains()
    assert bandwidths(root, topology) == [36e9, 36e9]
    assert bandwidths(root.children[0], topology) == [24e9, 24e9]
    assert topology.domain_bandwidth(root.children[0].children[0].children[0]) == 24e9
    assert topology.domain_bandwidth(root) == 0


def bandwidths(domain: Domain, topology: Topology) -> list[float]:
    return [topology.domain_bandwidth(child) for child in domain.children]


def test_a_port_limits_what_leaves() -> None:
    body = section(devices="g0..1", links=[link("g0", "g1", 24, "pcie")])
    topology = parse(body.replace("profile: card", "profile: card, port: 10 GB/s"))
    assert topology.domain_bandwidth(topology.domains().children[0]) == 10e9


def test_names_of_domains() -> None:
    topology = parse(cluster(2, 2, trunk=3))
    root = topology.domains()
    assert root.name == "box"
    assert [child.name for child in root.children] == ["pod0", "pod1"]
    assert [child.name for child in root.children[1].children] == ["pod1/node0", "pod1/node1"]
    assert [child.name for child in parse(sockets(2, 2)).domains().children] == [
        "s0g0..s0g1",
        "s1g0..s1g1",
    ]


def test_restricted_trees_collapse() -> None:
    topology = parse(cluster(2, 2, trunk=3))
    inside = topology.domains([f"pod1/node0/gpu{i}" for i in (3, 1)])
    assert (inside.name, inside.tier, shape(inside)) == ("pod1/node0", "nvlink", "gpu3 gpu1")
    across = topology.domains(["pod1/node1/gpu0", "pod0/node0/gpu0", "pod0/node1/gpu0"])
    assert across.devices == ("pod1/node1/gpu0", "pod0/node0/gpu0", "pod0/node1/gpu0")
    assert [child.name for child in across.children] == ["pod1/node1/gpu0", "pod0"]
    assert (across.tier, across.children[1].tier) == ("trunk", "rail")
    alone = topology.domains(["pod0/node1/gpu0"])
    assert (alone.tier, alone.children, alone.name) == (None, (), "pod0/node1/gpu0")


def test_restricted_bandwidth_counts_the_chosen_devices() -> None:
    topology = parse(nodes(8, 8))
    names = [f"host{i}/gpu{j}" for i in range(2) for j in range(3)]
    root = topology.domains(names)
    assert bandwidths(root, topology) == [72e9, 72e9]


@pytest.mark.parametrize(
    ("devices", "found"),
    [(["s0g0", "s0g0"], '"s0g0" twice'), ([], "no device"), (["s0g9"], 'found "s0g9"')],
)
def test_refused_devices(devices: list[str], found: str) -> None:
    with pytest.raises(TopologyError, match=f"^box: expected .*{found}"):
        parse(sockets(2, 2)).domains(devices)


def test_tier_of() -> None:
    topology = parse(cluster(2, 2, trunk=3))
    assert topology.tier_of("pod0/node0/gpu0", "pod0/node0/gpu7") == "nvlink"
    assert topology.tier_of("pod0/node0/gpu0", "pod0/node1/gpu0") == "rail"
    assert topology.tier_of("pod0/node0/gpu0", "pod1/node1/gpu5") == "trunk"
    with pytest.raises(TopologyError, match="expected two different devices"):
        topology.tier_of("pod0/node0/gpu0", "pod0/node0/gpu0")


def test_select() -> None:
    topology = parse(sockets(3, 5))
    assert topology.select(1) == ("s0g0",)
    assert topology.select(4) == ("s0g0", "s0g1", "s1g0", "s1g1")
    assert topology.select(7) == ("s0g0", "s0g1", "s0g2", "s1g0", "s1g1", "s1g2", "s1g3")
    assert topology.select(8) == topology.device_names
    for ranks in (0, 9):
        with pytest.raises(TopologyError, match=f"box: expected 1 to 8 ranks, found {ranks}"):
            topology.select(ranks)


OVERRIDE = """\
domains:
  - name: left
    domains:
      - {name: a, devices: [s0g0..1]}
      - {name: b, devices: [s0g2, s0g3]}
  - name: right
    devices: [s1g0..3]
"""


def test_the_file_overrides() -> None:
    topology = parse(sockets(4, 4) + OVERRIDE, head=HEAD + "tiers: [outer, middle, inner]\n")
    assert shape(topology.domains()) == "[[s0g0 s0g1] [s0g2 s0g3]] [s1g0 s1g1 s1g2 s1g3]"
    assert [child.name for child in topology.domains().children] == ["left", "right"]
    assert topology.tier_of("s0g0", "s0g2") == "middle"
    again = Topology.from_document(topology.to_document())
    assert again.domains() == topology.domains()
    assert again.digest == topology.digest == parse(sockets(4, 4)).digest


def test_a_document_may_keep_the_hierarchy() -> None:
    topology = parse(sockets(4, 4))
    assert "domains" not in topology.to_document()
    document = topology.to_document(domains=True)
    document["links"][0].update(bandwidth="2 GB/s", latency="1 us")
    assert shape(Topology.from_document(document).domains()) == shape(topology.domains())
    assert Topology.from_document(document).tiers == ("upi", "pcie")


BAD_OVERRIDES = {
    "- {name: a, devices: [s0g0..3, s1g0..2]}": 'every device in a domain, found "s1g3" in none',
    "- {name: a, devices: [s0g0..3, s0g1]}": "domains[0].devices[1]: expected each device in one",
    "- {name: a, devices: [s0g0..4]}": 'the name of a device, found "s0g4" (did you mean "s0g',
    "- {name: a}": 'domains[0]: expected the key "devices" or "domains", found none',
    "- {name: a, domains: []}": "domains[0]: expected a domain with devices, found an empty one",
}


@pytest.mark.parametrize(("text", "piece"), BAD_OVERRIDES.items())
def test_refused_overrides(text: str, piece: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse(sockets(4, 4) + f"domains:\n  {text}\n")
    assert piece in str(caught.value)


def test_tier_names_must_fit() -> None:
    topology = parse(two_switches(), head=HEAD + "tiers: [upi, pcie]\n")
    with pytest.raises(TopologyError) as caught:
        topology.domains()
    assert str(caught.value) == (
        "box.yaml: tiers: expected 3 (the depth of the hierarchy: 2 of 4; inside: 2 of 2; "
        "inside: 2 single), found 2 (change tiers, or give the hierarchy under domains)"
    )


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_order_in_the_file_does_not_matter(sizes: list[int], order: random.Random) -> None:
    document = parse(nodes(*sizes)).to_document()
    expected = groups(Topology.from_document(document).domains())
    for key in ("devices", "switches", "links"):
        order.shuffle(document[key])
    assert groups(Topology.from_document(document).domains()) == expected


def groups(domain: Domain) -> object:
    """Give a tree without its order."""
    return frozenset(map(groups, domain.children)) if domain.children else domain.name


@given(st.data())
def test_flow_is_the_least_cut(data: st.DataObject) -> None:
    """Against every cut of a small random graph, with bandwidths that have no common unit too."""
    odd = data.draw(st.sampled_from([0, 1e-9, 1.7e-8, 0.123456789]))
    speeds = st.sampled_from([*range(1, 10), 4000]).map(lambda gbps: gbps + odd)
    size = data.draw(st.integers(2, 4))
    hubs = data.draw(st.integers(1, 3))
    names = [f"g{i}" for i in range(size)] + [f"h{i}" for i in range(hubs)]
    links = [link(name, "h0", data.draw(speeds), "wire") for name in names if name != "h0"]
    for a, b in itertools.combinations(names, 2):
        if data.draw(st.booleans()):
            back = f"reverse: {data.draw(speeds)} GB/s"
            links.append(link(a, b, data.draw(speeds), "wire", back))
    topology = parse(
        section(devices=f"g0..{size - 1}", switches=[f"h0..{hubs - 1} hub"], links=links)
    )
    inside = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1))
    outside = [i for i in range(size) if i not in inside]
    best = min(
        sum(
            k.bandwidth
            for k in topology.links
            if k.src in near and k.dst not in near
        )
        for chosen in itertools.product([False, True], repeat=hubs)
        for near in [
            {f"g{i}" for i in inside} | {f"h{i}" for i, taken in enumerate(chosen) if taken}
        ]
    )  # fmt: skip
    found = DomainGraph(topology).flow(sorted(inside), outside)
    assert found == (pytest.approx(best, rel=1e-7) if odd else best)


@pytest.mark.parametrize("wide", [5, 50, 5000])
def test_a_wide_link_that_carries_flow_keeps_its_capacity_back(wide: int) -> None:
    """The narrowest cut holds `left` and `right`: what crosses between them is not part of it."""
    unit = 10.000000001  # no large common divisor: capacities need all of their 32 bits
    topology = parse(
        section(
            devices="g0..2",
            switches=["a hub", "b hub", "left hub", "right hub"],
            links=[
                link("g0", "a", 3 * unit, "wire"),
                link("a", "left", unit, "wire"),
                link("g1", "b", 2 * unit, "wire"),
                link("b", "right", 2 * unit, "wire"),
                link("left", "right", wide * unit, "wire"),
                link("right", "g2", 2.5 * unit, "wire"),
            ],
        )
    )
    for inside, outside in (([0, 1], [2]), ([2], [0, 1])):
        assert DomainGraph(topology).flow(inside, outside) == pytest.approx(2.5e9 * unit, rel=1e-7)


def test_large_clusters_are_quick() -> None:
    topology = parse(cluster(4, 32, trunk=12))
    assert len(topology.device_names) == 1024
    start = time.process_time()
    root = topology.domains()
    assert time.process_time() - start < 6  # about 0.4 s here
    assert [len(c.devices) for c in root.children] == [256] * 4
    assert topology.tiers == ("trunk", "rail", "nvlink")
    assert bandwidths(root, topology) == [8 * 8 * 12e9] * 4


def test_scattered_bandwidths_give_the_same_domains() -> None:
    document = parse(cluster(2, 8, trunk=24)).to_document()
    kinds = document.pop("kinds")
    scatter = random.Random(1)
    for entry in document["links"]:
        entry.update(json.loads(json.dumps(kinds[entry["kind"]])))
        rate = float(entry["bandwidth"].split()[0]) * scatter.uniform(0.95, 1.05)
        entry["bandwidth"] = f"{rate:.3f} GB/s"
    root = Topology.from_document(document).domains()
    assert [len(child.devices) for child in root.children] == [8] * 16
    assert all(not leaf.children for child in root.children for leaf in child.children)
