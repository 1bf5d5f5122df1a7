"""What joins hosts or devices: Slurm, ibnetdiscover, simulators' files; clusters."""

from __future__ import annotations

import pytest
from foreign import Box, imported, links_of, machine, matrix, source

from charm_sched.errors import TopologyError
from charm_sched.importers import hostlist
from charm_sched.importers.choices import Choices
from charm_sched.importers.formats import format_of

NODE = matrix(Box([[1], [1]], nics=1))
TREE = """# a comment
SwitchName=leaf0 Nodes=n[00-01] LinkSpeed=5
SwitchName=leaf1 \\
  Nodes=n02,n03
SwitchName=top Switches=leaf[0-1]
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("a,b[1,3]c", ["a", "b1c", "b3c"]),
        ("r[0-1]n[0-1]", ["r0n0", "r0n1", "r1n0", "r1n1"]),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert hostlist.expand(source("x"), text, 1) == names


@pytest.mark.parametrize("text", ["n[3-1]", "n[", "n[1-99999999]", "n[a]", "", "n]1[", "n[[1]]"])
def test_wrong_host_lists_are_refused(text: str) -> None:
    with pytest.raises(TopologyError, match="text:7: expected"):
        hostlist.expand(source("x"), text, 7)


def test_a_matrix_and_a_slurm_tree_make_a_cluster() -> None:
    made = imported(NODE, TREE, choices=Choices(nic=25e9, oversubscription=2.0))
    assert made.formats == ("topo-m", "slurm-conf")
    assert any("LinkSpeed is ignored" in note for note in made.notes)
    topology = machine(NODE, TREE, choices=Choices(nic=25e9, oversubscription=2.0))
    assert topology.device_names == tuple(f"n0{i}/gpu{g}" for i in range(4) for g in range(2))
    links = links_of(topology)
    assert links[frozenset(("n03/nic1", "leaf1"))] == 25
    # Two hosts with two NICs of 25 GB/s come from below, and half of that goes up.
    assert links[frozenset(("leaf0", "top"))] == 50
    assert len(topology.domains().children) == 2


def test_slurm_yaml_takes_the_default_topology() -> None:
    text = (
        "- topology: a\n  tree:\n    switches:\n      - {switch: s, nodes: 'x[1-2]'}\n"
        "- topology: b\n  cluster_default: true\n  block:\n    block_sizes: [2]\n    blocks:\n"
        "      - {block: b1, nodes: 'y[1-2]'}\n      - {block: b2, nodes: 'y[3-4]'}\n"
    )
    assert format_of(source(text)).name == "slurm-yaml"
    made = imported(NODE, text)
    assert any("topology b of 2 was taken, the cluster's default" in n for n in made.notes)
    names = machine(NODE, text).device_names
    assert names[0] == "y1/gpu0"
    assert len(names) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=a Nodes=x\nSwitchName=a Nodes=y", r'text1:2: .* a second "a"'),
        ("SwitchName=a Nodes=x\nSwitchName=b Nodes=x", r'text1:2: .*"x" below a and b'),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Nodes=x", "above itself"),
        ("SwitchName=a Switches=b Nodes=x", r'text1:1: expected switches .* found "b"'),
        ("SwitchName=a Nodes=x[1-2] Colour=red", r'text1:1: .*found "Colour=red"'),
        ("RingName=a Nodes=x[1-2]", "a ring tells Slurm in which order"),
        ("SwitchName=a Nodes=x[1-2]\nSwitchName=b Nodes=y[1-2]", "2 parts with no known path"),
        ("- topology: a\n  tree: 's=n'", r"text1:2: \[0\].tree: expected a mapping"),
        ("- topology: a\n  flat: true", "expected a tree or a block, found flat"),
        ("topology/tree", "expected a list of topologies"),
    ],
)
def test_what_is_no_tree_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        imported(NODE, text)


def test_a_network_alone_asks_for_a_machine() -> None:
    with pytest.raises(TopologyError, match="a machine to put at its 4 hosts, found none"):
        imported(TREE)
    with pytest.raises(TopologyError, match="expected one network, found another"):
        imported(NODE, TREE, TREE)


def test_under_takes_a_part() -> None:
    two = "SwitchName=a Nodes=x[1-2]\nSwitchName=b Nodes=y[1-2]\n"
    assert machine(NODE, two, choices=Choices(under="b")).device_names[0] == "y1/gpu0"
    with pytest.raises(TopologyError, match="--under: expected a switch"):
        imported(NODE, two, choices=Choices(under="c"))


def test_alike_nodes_on_one_fabric() -> None:
    topology = machine(NODE, choices=Choices(nodes=3, nic=5e9))
    assert len(topology.devices) == 6
    assert links_of(topology)[frozenset(("node2/nic0", "fabric"))] == 5
    assert len(topology.domains().children) == 3
    with pytest.raises(TopologyError, match="--nodes: expected no number beside"):
        imported(NODE, TREE, choices=Choices(nodes=3))


def test_hosts_may_have_machines_of_their_own() -> None:
    odd = matrix(Box([[3]], nics=1))
    topology = machine(NODE, TREE, n02=odd)
    assert [sum(n.startswith(f"n0{i}/") for n in topology.device_names) for i in range(4)] == [
        2, 2, 3, 2,
    ]  # fmt: skip
    named = machine(left=NODE, right=odd)
    assert {name.split("/")[0] for name in named.device_names} == {"left", "right"}
    with pytest.raises(TopologyError, match="expected HOST= in front of every file"):
        imported(NODE, right=odd)
    with pytest.raises(TopologyError, match="n9: expected a host of"):
        imported(NODE, TREE, n9=odd)
    with pytest.raises(TopologyError, match="none for n00"):
        imported(TREE, n02=odd)


def test_a_machine_without_a_nic_gets_one_and_says_so() -> None:
    bare = matrix(Box([[2]]))
    made = imported(bare, choices=Choices(nodes=2))
    assert any("names no NIC" in each for each in made.assumptions)
    assert len(machine(bare, choices=Choices(nodes=2)).devices) == 4


IB = """
switchguid=0x1(1)
Switch  36 "S-0001"  # "MF0;sw1:X/U1" enhanced port 0 lid 2 lmc 0
[1]  "H-000a"[1](a1)   # "alpha mlx5_0" lid 3 4xHDR
[2]  "H-000b"[1](b1)   # "beta mlx5_0" lid 4 4xHDR
[3]  "S-0002"[3]       # "MF0;sw2" lid 9 4xNDR
[4]  "S-0002"[4]       # "MF0;sw2" lid 9 4xNDR

Switch  36 "S-0002"  # "MF0;sw2:X/U1" enhanced port 0 lid 9 lmc 0
[1]  "H-000c"[1](c1)   # "alpha mlx5_1" lid 5 4xHDR
[3]  "S-0001"[3]       # "MF0;sw1" lid 2 4xNDR
[4]  "S-0001"[4]       # "MF0;sw1" lid 2 4xNDR
[5]  "H-000d"[1](d1)   # "beta mlx5_1" lid 6 4xHDR

Ca  1 "H-000a"  # "alpha mlx5_0"
[1](a1)  "S-0001"[1]   # lid 3 lmc 0 "MF0;sw1" lid 2 4xHDR
Ca  1 "H-000b"  # "beta mlx5_0"
[1](b1)  "S-0001"[2]   # lid 4 lmc 0 "MF0;sw1" lid 2 4xHDR
Ca  1 "H-000c"  # "alpha mlx5_1"
[1](c1)  "S-0002"[1]   # lid 5 lmc 0 "MF0;sw2" lid 9 4xHDR
Ca  1 "H-000d"  # "beta mlx5_1"
[1](d1)  "S-0002"[5]   # lid 6 lmc 0 "MF0;sw2" lid 9 4xHDR
"""


def test_ibnetdiscover_joins_each_adapter_to_its_own_switch() -> None:
    assert format_of(source(IB)).name == "ibnetdiscover"
    node = matrix(Box([[1], [1]], nics=1)).replace("NIC0", "mlx5_0").replace("NIC1", "mlx5_1")
    links = links_of(machine(node, IB))
    assert links[frozenset(("alpha/mlx5_0", "S-0001"))] == 25  # 4 lanes of 50 Gb/s
    assert links[frozenset(("alpha/mlx5_1", "S-0002"))] == 25
    assert frozenset(("alpha/mlx5_1", "S-0001")) not in links
    assert links[frozenset(("S-0001", "S-0002"))] == 100  # two of 400 Gb/s
    crossed = IB.replace("mlx5_0", "other").replace("mlx5_1", "mlx5_0").replace("other", "mlx5_1")
    assert frozenset(("alpha/mlx5_0", "S-0002")) in links_of(machine(node, crossed))
    with pytest.raises(TopologyError, match="width and speed such as 4xHDR"):
        imported(node, IB.replace("4xHDR", "4xWARP", 1))
    with pytest.raises(TopologyError, match='a description of each node, found none of "H-000d"'):
        imported(node, IB.split('Ca  1 "H-000d"')[0])


ASTRA = """topology: [ Ring, Switch ]
npus_count: [ 4, 2 ]
bandwidth: [ 100, 25.0 ]
latency: [ 500, 1000 ]
"""


def test_astra_sim_counts_in_gibi_and_forwards_through_routers() -> None:
    assert format_of(source(ASTRA)).name == "astra-sim"
    topology = machine(ASTRA)
    assert len(topology.devices) == 8
    links = links_of(topology)
    assert links[frozenset(("router0", "router1"))] == pytest.approx(100 * 2**30 / 1e9)
    assert links[frozenset(("router0", "switch1.0"))] == pytest.approx(25 * 2**30 / 1e9)
    assert links[frozenset(("router4", "switch1.0"))] == links[frozenset(("router0", "switch1.0"))]
    # Once around half a ring of four, 500 ns each; a switch is two links of 1000 ns.
    assert topology.route("npu0", "npu2").latency == pytest.approx(1000e-9)
    assert topology.route("npu0", "npu4").latency == pytest.approx(2000e-9)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("100,", "tbd,", r"text0:3: bandwidth\[0\]: expected a number above zero, found \"tbd\""),
        ("[ 4, 2 ]", "[ 4 ]", r"text0:2: npus_count: expected 2 entries"),
        ("Ring", "Torus", r"text0:1: topology\[0\]: expected a shape"),
        ("[ 4, 2 ]", "[ 40000, 2 ]", r"text0:2: npus_count\[0\]"),
        ("latency", "delay", "unknown key"),
    ],
)
def test_astra_sim_refuses_with_key_and_line(old: str, new: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        imported(ASTRA.replace(old, new, 1))


def test_astra_sim_doubts_units() -> None:
    text = "topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 3.125 ]\nlatency: [ 3.39 ]\n"
    assert any("another unit" in doubt for doubt in imported(text).doubts)


SIMAI = "7 2 2 1 8 H100\n4 5 6\n" + "".join(
    f"{gpu} {4 + gpu // 2} 2880Gbps 0.000025ms 0\n{gpu} 6 400Gbps 0.0005ms 0\n" for gpu in range(4)
)


def test_edge_lists_count_in_bits() -> None:
    assert format_of(source(SIMAI)).name == "edge-list"
    topology = machine(SIMAI)
    links = links_of(topology)
    assert links[frozenset(("gpu0", "nvswitch4"))] == 360  # 2880 Gb/s
    assert links[frozenset(("gpu3", "switch6"))] == 50
    assert topology.route("gpu0", "gpu1").latency == pytest.approx(50e-9)
    assert topology.tiers == ("network", "nvlink")
    ns3 = "3 1 2\n2\n0 2 100Gbps 1us 0\n1 2 100Gbps 1us 0\n"
    assert links_of(machine(ns3))[frozenset(("gpu0", "switch2"))] == 12.5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2880Gbps", "2880GB", 'text0:3: expected a rate such as 400Gbps, found "2880GB"'),
        ("0.000025ms", "0.000025", "text0:3: expected a delay"),
        ("7 2 2 1 8", "7 2 2 1 9", "the end of the text"),
        ("7 2 2 1 8", "7 2 2 1 7", "7 links, as the first line says, found more"),
        ("4 5 6\n", "4 5 5\n", "text0:2: expected each switch once"),
        ("\n0 4", "\n9 4", "text0:3: expected the first end of a link"),
        ("7 2 2 1 8 H100", "7 2 2 1", "text0:1: expected a first line of 3 numbers"),
    ],
)
def test_edge_lists_refuse_with_the_line(old: str, new: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        imported(SIMAI.replace(old, new, 1))


INFRA = """name: two
devices:
- name: server
  components:
  - {name: npu, choice: npu, count: 2}
  - {name: nvl, choice: switch, count: 1}
  - {name: nic, choice: nic, count: 2}
  links:
  - {name: nvlink, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 300}}}
  - {name: pcie}
  edges:
  - {ep1: {component: npu}, ep2: {component: nvl}, scheme: many2many, link: nvlink}
  - {ep1: {component: "npu[0:2]"}, ep2: {component: "nic[0:2]"}, scheme: one2one, link: pcie}
- name: switch
  components:
  - {name: port, choice: port, count: 4}
  - {name: asic, choice: cpu, count: 1}
  edges:
  - {ep1: {component: asic}, ep2: {component: port}, scheme: many2many, link: ic}
instances:
- {name: host, device: server, count: 2}
- {name: leaf, device: switch, count: 1}
links:
- {name: eth, physical: {bandwidth: {gigabits_per_second: 100}}}
edges:
- ep1: {instance: "host[0]", component: nic}
  ep2: {instance: "leaf[0]", component: "port[0:2]"}
  scheme: one2one
  link: eth
- ep1: {instance: "host[1]", component: nic}
  ep2: {instance: "leaf[0]", component: "port[2:4]"}
  scheme: one2one
  link: eth
"""


def test_infragraph_is_expanded() -> None:
    assert format_of(source(INFRA)).name == "infragraph"
    topology = machine(INFRA)
    assert topology.device_names == tuple(f"host{i}/npu{j}" for i in range(2) for j in range(2))
    links = links_of(topology)
    assert links[frozenset(("host0/npu1", "host0/nvl0"))] == 300
    assert links[frozenset(("host1/nic0", "leaf0/port2"))] == 12.5
    assert frozenset(("host0/npu0", "host0/nic1")) not in links
    assert any("whose speed the text does not say" in a for a in imported(INFRA).assumptions)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nic[0:2]", "nic[0:3]", "a slice of the 2 nic"),
        ("nic[0:2]", "nic[0:1]", "as many ends on both sides"),
        ("device: server", "device: servant", "one of the devices server, switch"),
        ("choice: nic", "choice: device", "a device inside a device"),
        ("scheme: one2one", "scheme: ring", "a scheme: one2one or many2many"),
        ("gigabits_per_second: 100", "parsecs: 100", "gigabits_per_second"),
        ("count: 2}\n- {name: leaf", "count: 99999}\n- {name: leaf", "at most 100000 components"),
    ],
)
def test_infragraph_refuses_with_the_path(old: str, new: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        imported(INFRA.replace(old, new, 1))


def test_a_network_of_devices_comes_alone() -> None:
    with pytest.raises(TopologyError, match="expected to be imported alone"):
        imported(NODE, INFRA)
