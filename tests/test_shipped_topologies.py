from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml

from charm_sched.topology.graph import Topology, json_schema, load_topology, shipped_names

FOLDER = Path(__file__).parent.parent / "topologies"
NODES = {  # devices, tiers, GB/s out of a node, of the port of a device
    "dual_node_nvlink": (16, ("network", "nvlink"), 8 * 24, 160 + 24),
    "dual_node_nvlink_4nic": (16, ("network", "nvlink"), 4 * 24, 160 + 24),
    "dual_node_h800": (16, ("network", "nvlink"), 8 * 48, 160 + 48),
    "four_node_nvlink": (32, ("network", "nvlink"), 8 * 48, 370.8 + 48),
    "dual_numa_pcie": (8, ("upi", "pcie"), 36, 24),
    "dual_numa_pcie_gen5": (8, ("upi", "pcie"), 83, 53.4),
    "single_node_nvlink": (8, ("nvlink",), 370.8, 370.8),
    "cluster_1024_rails": (1024, ("network", "nvlink"), 8 * 48, 370.8 + 48),
    "cluster_1024_leaf_spine": (1024, ("network", "nvlink"), 8 * 48, 370.8 + 48),
    "cluster_8192_rails": (8192, ("network", "nvlink"), 8 * 48, 370.8 + 48),
    "cluster_8192_leaf_spine": (8192, ("network", "nvlink"), 8 * 48, 370.8 + 48),
}
MANY = 64  # devices; of more, some pairs are looked at, and some domains
EACH = pytest.mark.parametrize("name", shipped_names())
# Of machines with 8,192 devices, what is written out is checked for one.
WRITTEN = pytest.mark.parametrize(
    "name",
    [name for name in shipped_names() if "8192" not in name or name == "cluster_8192_rails"],
)


def test_the_promised_files_are_there() -> None:
    assert set(NODES) <= set(shipped_names())


@pytest.mark.parametrize("name", NODES)
def test_figures(name: str) -> None:
    devices, tiers, out, port = NODES[name]
    topology = load_topology(name)
    assert topology.name == name
    assert (len(topology.devices), topology.tiers) == (devices, tiers)
    root = topology.domains()
    assert root.tier == tiers[0]
    for domain in root.children[:: -(-len(root.children) // MANY)]:
        assert topology.domain_bandwidth(domain) == pytest.approx(out * 1e9, rel=1e-12)
    sizes = {"network": 8, "upi": 4, "nvlink": 1}
    assert {len(domain.devices) for domain in root.children} == {sizes[tiers[0]]}
    for device in topology.devices:
        assert device.port == pytest.approx(port * 1e9, rel=1e-12)


@EACH
def test_every_pair_has_a_route(name: str) -> None:
    topology = load_topology(name)
    ports = {capacity.name: i for i, capacity in enumerate(topology.capacities)}
    for a, b in pairs(topology):
        route = topology.route(a, b)
        assert route.capacities[0] == ports[f"{a} out"]
        assert route.capacities[-1] == ports[f"{b} in"]
        if name not in NODES:
            continue
        kinds = {topology.links[i].kind for i in route.links}
        outer = topology.tier_of(a, b) == topology.tiers[0]
        assert ("nvlink" in kinds) == (topology.tier_of(a, b) == "nvlink")
        assert ("upi" in kinds) == (outer and topology.tiers[0] == "upi")


def pairs(topology: Topology) -> Iterator[tuple[str, str]]:
    """Give all pairs of devices; of very many devices a sample."""
    names = topology.device_names
    if len(names) <= MANY:
        return itertools.permutations(names, 2)
    draw = random.Random(0)
    few = draw.sample(names, 8)
    return ((a, b) for a in few for b in (*draw.sample(names, MANY), *names[:MANY]) if a != b)


@pytest.mark.parametrize(
    ("name", "near_us", "far_us", "cap"),
    [("dual_numa_pcie", 1.5, 2.5, 18e9), ("dual_numa_pcie_gen5", 0.72, 1.3, 38e9)],
)
def test_across_sockets(name: str, near_us: float, far_us: float, cap: float) -> None:
    topology = load_topology(name)
    a, b, *_, far = topology.device_names
    near = topology.route(a, b)
    assert near.latency == pytest.approx(near_us * 1e-6)
    assert near.flow_cap == math.inf
    across = topology.route(a, far)
    assert across.latency == pytest.approx(far_us * 1e-6)
    assert across.flow_cap == cap
    assert len(across.links) == 5


def test_four_flows_across_sockets_use_both_uplinks() -> None:
    topology = load_topology("dual_numa_pcie_gen5")
    names = topology.device_names
    uplinks = [
        [i for i in topology.route(a, b).links if topology.links[i].kind == "uplink"]
        for a, b in zip(names[:4], names[4:], strict=True)
    ]
    flat = list(itertools.chain.from_iterable(uplinks))
    assert {flat.count(i) for i in flat} == {2}
    assert len(set(flat)) == 4


def test_network_latency_is_that_of_the_nccl_model() -> None:
    for name in (
        "dual_node_nvlink", "dual_node_nvlink_4nic", "four_node_nvlink", "cluster_1024_rails",
        "cluster_8192_leaf_spine",
    ):  # fmt: skip
        topology = load_topology(name)
        first, second, *_, last = topology.device_names
        assert topology.route(first, second).latency == pytest.approx(3.4e-6)
        assert topology.route(first, last).latency == pytest.approx(14e-6)


@WRITTEN
def test_round_trip(name: str) -> None:
    topology = load_topology(name)
    document = topology.to_document()
    again = Topology.from_document(json.loads(json.dumps(document)))
    assert again.digest == topology.digest
    assert again.to_document() == document
    assert again.assumptions == topology.assumptions
    assert again.domains() == topology.domains()


@EACH
def test_every_number_has_a_source(name: str) -> None:
    topology = load_topology(name)
    for link in topology.links:
        assert re.search(r"bandwidth: .*latency: ", link.source)
    for device in topology.devices:
        assert device.memory is not None
        assert device.source
        profile = device.compute
        for key in ("peak", "memory_bandwidth", "efficiency", "overhead"):
            assert f"{key}: " in profile.source
        assert all(rate.source for rate in profile.rates)
        most = 1.05 * profile.peak["bf16"]  # GeForce cards boost above the clock of the peak
        assert all(rate.flops_per_second < most for rate in profile.rates)
        assert not profile.rates or {
            (r.direction, r.causal, r.head_dim) for r in profile.rates
        } == set(itertools.product(("forward", "backward"), (False, True), (64, 128, 256)))
    for sentence in topology.assumptions:
        assert sentence.endswith(")") or ":" in sentence, f"no reason: {sentence}"


@EACH
def test_the_readme_names_every_file(name: str) -> None:
    assert f"`{name}`" in (FOLDER / "README.md").read_text()


def test_the_exported_schema_is_current() -> None:
    text = (FOLDER / "schema.json").read_text()
    assert text == json.dumps(json_schema(), indent=2) + "\n"


@EACH
def test_files_follow_the_schema(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    validator = jsonschema.Draft202012Validator(json_schema())
    validator.check_schema(json_schema())
    document = yaml.safe_load(text)
    validator.validate(document)
    if "8192" not in name:
        validator.validate(load_topology(name).to_document(domains=True))
    document["links"][0]["bandwidth"] = 24
    assert not validator.is_valid(document)


def examples() -> list[str]:
    """Give the YAML examples of the README that are whole files."""
    blocks = re.findall(r"```yaml\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    return [block for block in blocks if block.startswith("schema:")]


@pytest.mark.parametrize("text", examples(), ids=lambda text: text.split("name: ")[1].split()[0])
def test_examples_of_the_readme(text: str, tmp_path: Path) -> None:
    file = tmp_path / "example.yaml"
    file.write_text(text)
    assert len(load_topology(file).devices) in (4, 8192)
    jsonschema.Draft202012Validator(json_schema()).validate(yaml.safe_load(text))
