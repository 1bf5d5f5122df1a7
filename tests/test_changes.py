"""What-if changes: what a path names, what it sets, what is left where parts fail."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charm_sched.cost import op_seconds
from charm_sched.errors import TopologyError
from charm_sched.plans.plan import Plan
from charm_sched.search.planning import plan
from charm_sched.topology.change_apply import Changed, apply
from charm_sched.topology.changes import read_failure, read_setting, read_slowdown
from charm_sched.topology.graph import Topology, load_topology
from charm_sched.topology.rebuild import cut_off
from charm_sched.workload import Workload

WORK = Workload(seq_len=512, heads=8, kv_heads=2, head_dim=16)


@pytest.fixture(scope="module")
def nodes() -> Topology:
    return load_topology("dual_node_nvlink_4nic")


def set_(machine: Topology, *texts: str) -> Changed:
    return apply(machine, [read_setting(text) for text in texts])


def fail(machine: Topology, *texts: str) -> Changed:
    return apply(machine, [read_failure(text) for text in texts], leave_out=True)


def numbers(machine: Topology, kind: str, field: str) -> set[float | None]:
    return {getattr(link, field) for link in machine.links if link.kind == kind}


def test_a_kind_of_link_is_set_and_nothing_else(nodes: Topology) -> None:
    made = set_(nodes, "links[network].bandwidth=50 GB/s").topology
    assert numbers(made, "network", "bandwidth") == {50e9}
    for kind in ("nvlink", "pcie"):
        assert numbers(made, kind, "bandwidth") == numbers(nodes, kind, "bandwidth")
    assert numbers(nodes, "network", "bandwidth") == {24e9}
    assert made.digest != nodes.digest
    assert made.tiers == nodes.tiers
    widths = {c.bandwidth for c in made.capacities if c.kind == "network"}
    assert widths == {50e9}


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("network", 8),
        ("nic*", 16),
        ("node0/nic*", 8),
        ("nic0..1", 8),
        ("nic? <-> fabric", 8),
        ("node0/nic0 -> fabric", 1),
        ("*", 48),
    ],
)
def test_what_a_path_names_is_counted(nodes: Topology, pattern: str, count: int) -> None:
    (sentence,) = set_(nodes, f"links[{pattern}].latency=1 us").changes
    assert sentence.startswith(f"links[{pattern}].latency = 1 us ({count} link")


def test_one_direction(nodes: Topology) -> None:
    made = set_(nodes, "links[node0/nic0 -> fabric].bandwidth=1 GB/s").topology
    changed = [k for k, was in zip(made.links, nodes.links, strict=True) if k != was]
    assert [(link.src, link.dst) for link in changed] == [("node0/nic0", "fabric")]


def test_parallel_links_have_numbers() -> None:
    document = load_topology("dual_numa_pcie").to_document()
    (upi,) = (link for link in document["links"] if link["kind"] == "upi")
    upi["count"] = 2
    machine = Topology.from_document(document)
    ends = f"{upi['from']} <-> {upi['to']}"
    assert set_(machine, f"links[{ends}].latency=0 s").changes[0].endswith("(2 links)")
    one = set_(machine, f"links[{ends} #2].latency=0 s").topology
    assert [link.latency for link in one.links if link.kind == "upi"][:2] != [0, 0]
    assert [link.latency for link in one.links if link.kind == "upi"][2:] == [0, 0]
    assert not fail(machine, f"{ends} #2").left_out
    assert fail(machine, ends).left_out


def test_factors_multiply_what_is_there(nodes: Topology) -> None:
    made = set_(nodes, "links[*].bandwidth=x2", "profiles[*].overhead=x0.5").topology
    pairs = zip(made.links, nodes.links, strict=True)
    assert all(new.bandwidth == 2 * old.bandwidth for new, old in pairs)
    assert made.devices[0].compute.overhead == nodes.devices[0].compute.overhead / 2


def test_times_one_changes_nothing_physical(nodes: Topology) -> None:
    paths = (
        "links[*].bandwidth=x1", "links[*].latency=x1", "links[*].flow_cap=x1",
        "devices[*].memory=x1", "devices[*].port=x1", "profiles[*].rate=x1", "profiles[*].peak=x1",
        "profiles[*].overhead=x1", "profiles[*].memory_bandwidth=x1",
    )  # fmt: skip
    for machine in (nodes, load_topology("dual_numa_pcie")):
        assert set_(machine, *paths).topology.digest == machine.digest


def test_a_port_follows_its_links_unless_the_file_gives_it(nodes: Topology) -> None:
    made = set_(nodes, "links[nvlink].bandwidth=x2").topology
    assert made.devices[0].port == nodes.devices[0].port + 160e9
    fixed = set_(nodes, "devices[gpu0].port=100 GB/s", "links[nvlink].bandwidth=x2").topology
    assert fixed.devices[0].port == 100e9
    assert fixed.devices[1].port == made.devices[1].port


def test_profiles_and_devices(nodes: Topology) -> None:
    made = set_(
        nodes, "profiles[*].rate.forward=100 TFLOP/s", "devices[node0/gpu0..1].memory=40 GB"
    ).topology
    rates = made.devices[0].compute.rates
    assert {r.flops_per_second for r in rates if r.direction == "forward"} == {100e12}
    assert {r.flops_per_second for r in rates if r.direction == "backward"} != {100e12}
    assert [device.memory for device in made.devices[:3]] == [40e9, 40e9, 80e9]


def test_a_flow_cap_can_be_set_and_taken_away() -> None:
    machine = load_topology("dual_numa_pcie")
    assert numbers(set_(machine, "links[upi].flow_cap=none").topology, "upi", "flow_cap") == {None}
    made = set_(machine, "links[upi].flow_cap=9 GB/s").topology
    assert numbers(made, "upi", "flow_cap") == {9e9}


def test_what_was_assumed_and_is_set_is_listed_as_a_change(nodes: Topology) -> None:
    made = set_(nodes, "links[network].latency=1 us").topology
    assert any("network links: latency" in text for text in nodes.assumptions)
    assert not any("network links: latency" in text for text in made.assumptions)
    assert "what if: links[network].latency = 1 us (8 links)" in made.assumptions
    assert made.name == "dual_node_nvlink_4nic+what-if"
    again = Topology.from_document(made.to_document())
    assert again.digest == made.digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("links[network].bandwidth=50", 'a number needs its unit (write "50 GB/s")'),
        ("links[network].bandwidth=50 GBps", 'is written "GB/s"'),
        ("links[network].bandwidth=0 GB/s", "above 0"),
        ("links[network].bandwidth=x0", "a factor above 0"),
        ("links[network].bandwidth", "expected a value"),
        ("links[network].width=1 GB/s", "one of bandwidth, latency, flow_cap of links"),
        ("link[network].bandwidth=1 GB/s", "expected links, devices or profiles"),
        ("network.bandwidth=1 GB/s", "expected a path such as"),
        ("links[netwrk].bandwidth=1 GB/s", 'did you mean "network"?'),
        ("links[foo].bandwidth=1 GB/s", "its kinds of links are network, nvlink, pcie"),
        ("links[a -> b].bandwidth=1 GB/s", '"a -> b" names no link of dual_node_nvlink_4nic'),
        ("links[].bandwidth=1 GB/s", "found an empty one"),
        ("links[nic3..1].bandwidth=1 GB/s", "from a smaller to a larger number"),
        ("devices[card].memory=1 GB", "names no device of"),
        ("profiles[h100].overhead=1 us", "its profiles are a800_sxm_80gb"),
    ],
)
def test_what_is_wrong_is_told(nodes: Topology, text: str, said: str) -> None:
    with pytest.raises(TopologyError) as error:
        set_(nodes, text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_failed_device_is_gone(nodes: Topology) -> None:
    found = fail(nodes, "node0/gpu3")
    assert found.failed == ("node0/gpu3",)
    assert found.left_out == ()
    assert len(found.topology.devices) == 15
    assert all("node0/gpu3" not in (k.src, k.dst) for k in found.topology.links)


def test_devices_without_a_way_out_are_left_out(nodes: Topology) -> None:
    found = fail(nodes, "node1/nic0")
    assert found.failed == ()
    assert found.left_out == ("node1/gpu0", "node1/gpu1")
    assert set(found.topology.device_names) == set(nodes.device_names) - set(found.left_out)
    kept = apply(nodes, [read_failure("node1/nic0")])
    assert kept.left_out == found.left_out
    assert len(kept.topology.devices) == 16


def test_a_node_may_fail_as_a_whole(nodes: Topology) -> None:
    found = fail(nodes, "node1/*")
    assert len(found.topology.devices) == 8
    assert found.topology.tier_names is None  # two names no longer fit one tier
    assert found.topology.tiers == ("nvlink",)


def test_where_all_links_between_halves_fail_one_half_is_left() -> None:
    found = fail(load_topology("dual_numa_pcie"), "links[upi]")
    assert found.left_out == tuple(f"socket1/gpu{i}" for i in range(4))


def test_a_failed_switch_is_routed_around(nodes: Topology) -> None:
    found = fail(nodes, "node0/nvswitch")
    assert found.left_out == ()
    assert found.topology.route("node0/gpu0", "node0/gpu7").latency > 5e-6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu9", '"gpu9" names no part of dual_node_nvlink_4nic; it has the devices node0/gpu0'),
        ("node0/gpu0 <-> fabric", "names no link"),
        ("links[upi]", "names no link"),
        ("*", "expected a device that is left"),
        (" ", "expected a name"),
    ],
)
def test_failures_that_name_nothing(nodes: Topology, text: str, said: str) -> None:
    with pytest.raises(TopologyError) as error:
        fail(nodes, text)
    assert said in str(error.value)


def test_an_override_of_domains_survives_a_failure(nodes: Topology) -> None:
    document = nodes.to_document(domains=True)
    given_ = Topology.from_document(document)
    found = fail(given_, "node1/gpu0..6")
    assert found.topology.domains().children[0].name == "node0"
    assert len(found.topology.devices) == 9


@st.composite
def failures(draw: st.DrawFn, machine: Topology) -> list[str]:
    names = draw(st.lists(st.sampled_from(machine.part_names), min_size=1, max_size=5))
    return list(dict.fromkeys(names))


@settings(max_examples=25, deadline=None)
@given(data=st.data(), name=st.sampled_from(["dual_node_nvlink_4nic", "dual_numa_pcie_gen5"]))
def test_what_is_left_reaches_each_other(data: st.DataObject, name: str) -> None:
    machine = load_topology(name)
    found = fail(machine, *(f"{part}" for part in data.draw(failures(machine))))
    left = found.topology.device_names
    for a in left:
        for b in left:
            found.topology.route(a, b)  # raises where there is no way
    assert cut_off(found.topology) == ()
    assert set(left) | set(found.failed) | set(found.left_out) == set(machine.device_names)


@functools.cache
def slow_case() -> tuple[Topology, Plan]:
    machine = load_topology("dual_numa_pcie")
    made = plan(machine, WORK, strategy="charm", direction="forward")
    assert isinstance(made, Plan)
    return machine, made


@settings(max_examples=20, deadline=None)
@given(factor=st.floats(1, 8))
def test_a_slow_device_takes_exactly_so_many_times_as_long(factor: float) -> None:
    machine, made = slow_case()
    name = machine.device_names[2]
    slower = apply(machine, [read_slowdown(f"{name}={factor!r}")]).topology
    before, after = op_seconds(made, machine).seconds, op_seconds(made, slower).seconds
    own = np.array([made.devices[rank] == name for rank in made.columns.rank])
    assert after[own] == pytest.approx(factor * before[own], rel=1e-9)
    assert (after[~own] == before[~own]).all()


@pytest.mark.parametrize("text", ["gpu0", "gpu0=", "=2", "gpu0=0.5", "gpu0=inf", "gpu0=fast"])
def test_slowdowns_that_make_no_sense(text: str) -> None:
    with pytest.raises(TopologyError, match="expected DEVICE=FACTOR"):
        read_slowdown(text)


def test_changes_are_applied_in_order(nodes: Topology) -> None:
    found = apply(
        nodes,
        [
            read_setting("links[network].bandwidth=x2"),
            read_setting("links[node0/nic0 -> fabric].bandwidth=10 GB/s"),
            read_setting("links[network].bandwidth=x2"),
        ],
    )
    assert numbers(found.topology, "network", "bandwidth") == {96e9, 20e9}
    assert len(found.changes) == 3


def test_no_change_gives_the_machine_itself(nodes: Topology) -> None:
    assert apply(nodes, []).topology is nodes
