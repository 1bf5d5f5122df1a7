"""Profile files: the shipped ones, and topologies that name them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from charm_sched import Workload, load_plan, plan, save_plan
from charm_sched.errors import TopologyError
from charm_sched.topo import main
from charm_sched.topology.graph import (
    Topology,
    json_schema,
    load_topology,
    profile_schema,
    shipped_names,
)
from charm_sched.topology.library import (
    SHIPPED_PROFILES,
    load_profile,
    parse_profile,
    shipped_profile,
    shipped_profiles,
)
from charm_sched.topology.profile_document import profile_document

PROMISED = {
    "a100_sxm_80gb", "a100_pcie_80gb", "a800_sxm_80gb", "h100_sxm_80gb", "h800_sxm_80gb",
    "h200_sxm_141gb", "l40s", "rtx_4090", "rtx_pro_6000_server", "mi300x",
}  # fmt: skip
EACH = pytest.mark.parametrize("name", shipped_profiles())
PROFILE = """\
schema: charm-sched/profile
version: 1
name: card
description: A card.
peak: {bf16: 100 TFLOP/s}
efficiency: 0.5
overhead: 5 us
memory: 24 GB
memory_bandwidth: 1 TB/s
interference: 1.5
assumed: [memory]
source: {memory: a guess}
rates:
  - {direction: forward, head_dim: 64, causal: true, dtypes: [bf16], rate: 50 TFLOP/s,
     by_length: {"512": 10 TFLOP/s, 2K: 30 TFLOP/s}}
"""
MACHINE: dict[str, Any] = {
    "schema": "charm-sched/topology",
    "version": 1,
    "name": "box",
    "devices": [{"name": "gpu0..1", "profile": "h100_sxm_80gb"}],
    "links": [{"from": "gpu0", "to": "gpu1", "kind": "w", "bandwidth": "1 GB/s", "latency": "0 s"}],
}


def test_the_promised_profiles_are_there() -> None:
    assert set(shipped_profiles()) >= PROMISED


@EACH
def test_shipped_files(name: str) -> None:
    text = (SHIPPED_PROFILES / f"{name}.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    jsonschema.Draft202012Validator(profile_schema()).validate(yaml.safe_load(text))
    profile = shipped_profile(name)
    assert profile.name == name
    assert profile.memory is not None
    for key in ("peak", "memory", "memory_bandwidth", "overhead"):
        assert f"{key}: " in profile.source
    for rate in profile.rates:
        assert rate.source
        # Boost clocks above the nominal one of the datasheet are the rule.
        highest = max(rate.flops_per_second, *(value for _, value in rate.by_length), 0.0)
        assert highest <= 1.05 * profile.peak["bf16" if "bf16" in rate.dtypes else "fp16"]


@EACH
def test_a_profile_written_into_a_topology_reads_back(name: str) -> None:
    machine = Topology.from_document(MACHINE | {"devices": [{"name": "gpu0..1", "profile": name}]})
    document = machine.to_document()
    again = Topology.from_document(json.loads(json.dumps(document)))
    assert again.devices == machine.devices
    assert (again.digest, again.to_document()) == (machine.digest, document)
    jsonschema.Draft202012Validator(json_schema()).validate(document)


def test_the_exported_schema_is_current() -> None:
    text = (SHIPPED_PROFILES / "schema.json").read_text()
    assert text == json.dumps(profile_schema(), indent=2) + "\n"
    broken = yaml.safe_load(PROFILE) | {"memory": 24}
    assert not jsonschema.Draft202012Validator(profile_schema()).is_valid(broken)


def test_charm_topo_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--profile"]) == 0
    assert json.loads(capsys.readouterr().out) == profile_schema()


def test_a_file_is_read_whole() -> None:
    profile = parse_profile(PROFILE, where="card.yaml")
    assert (profile.name, profile.memory, profile.interference) == ("card", 24e9, 1.5)
    assert profile.rates[0].by_length == ((512, 10e12), (2048, 30e12))
    assert profile_document(profile)["rates"][0]["by_length"] == {
        "512": "10 TFLOP/s", "2048": "30 TFLOP/s",
    }  # fmt: skip


def test_the_order_of_lengths_is_that_of_numbers() -> None:
    """Canonical JSON sorts keys as texts: "16384" before "2048"."""
    machine = Topology.from_document(MACHINE)
    text = json.dumps(machine.to_document(), sort_keys=True)
    assert text.index('"16384"') < text.index('"2048"')
    assert Topology.from_document(json.loads(text)).devices == machine.devices


def test_a_plan_keeps_the_rates(tmp_path: Path) -> None:
    machine = load_topology("single_node_nvlink")
    made = plan(machine, Workload(seq_len=1024), strategy="ring", direction="forward", ranks=2)
    again = load_plan(save_plan(made, tmp_path / "p.json"))
    assert again.topology.devices == machine.devices
    assert again.topology.links == machine.links


def test_rates_between_lengths() -> None:
    rate = parse_profile(PROFILE, where="card.yaml").rates[0]
    assert [rate.at(n) for n in (1, 512, 1024, 2048, 10**6)] == [10e12, 10e12, 20e12, 30e12, 30e12]
    assert rate.best == 50e12
    faster = rate.scaled_to(100e12)
    assert (faster.flops_per_second, faster.at(2048), faster.at(512)) == (100e12, 60e12, 20e12)


@pytest.mark.parametrize(
    ("old", "new", "piece"),
    [
        ("version: 1", "version: 2", "expected version 1"),
        ("charm-sched/profile", "charm-sched/topology", 'expected "charm-sched/profile"'),
        ("memory: 24 GB", "memory: 24", "memory"),
        ("interference: 1.5", "interference: 0.5", "a number from 1 to 100"),
        ("interference: 1.5", 'interference: "2"', "a number from 1 to 100"),
        ('"512": 10 TFLOP/s, 2K', '2K: 10 TFLOP/s, "2048"', "each length once"),
        ('"512"', "x", "a length in tokens, such as 512 or 16K"),
        ('{"512": 10 TFLOP/s, 2K: 30 TFLOP/s}', "{}", "a rate for at least one length"),
        ("description: A card.\n", "descripton: A card.\n", 'did you mean "description"?'),
    ],
)
def test_refused(old: str, new: str, piece: str) -> None:
    assert PROFILE.count(old) == 1
    with pytest.raises(TopologyError) as caught:
        parse_profile(PROFILE.replace(old, new), where="card.yaml")
    assert piece in str(caught.value)
    assert str(caught.value).startswith("card.yaml:")


def test_a_topology_names_a_shipped_profile() -> None:
    machine = Topology.from_document(MACHINE)
    assert machine.devices[0].compute == shipped_profile("h100_sxm_80gb")
    assert machine.devices[0].memory == 80e9
    assert machine.devices[0].source == "memory: H100 SXM datasheet"


def test_a_profile_of_the_file_goes_before_a_shipped_one() -> None:
    own = profile_document(parse_profile(PROFILE, where="card.yaml"))
    machine = Topology.from_document(MACHINE | {"profiles": {"h100_sxm_80gb": own}})
    first = machine.devices[0]
    assert first.compute.peak == {"bf16": 100e12}
    assert (first.memory, first.assumed, first.source) == (24e9, ("memory",), "memory: a guess")
    assert "devices with h100_sxm_80gb: memory 24 GB is assumed (a guess)" in machine.assumptions


def test_the_memory_of_a_device_goes_before_that_of_its_profile() -> None:
    document = copy.deepcopy(MACHINE)
    document["devices"][0]["memory"] = "40 GB"
    assert Topology.from_document(document).devices[0].memory == 40e9


def test_an_unknown_profile() -> None:
    document = copy.deepcopy(MACHINE)
    document["devices"][0]["profile"] = "h100_sxm"
    with pytest.raises(TopologyError, match='did you mean "h100_sxm_80gb"'):
        Topology.from_document(document)


def test_a_profile_file_beside_the_topology(tmp_path: Path) -> None:
    (tmp_path / "measured.yaml").write_text(PROFILE)
    document = copy.deepcopy(MACHINE) | {"profiles": {"mine": "measured.yaml"}}
    document["devices"][0]["profile"] = "mine"
    file = tmp_path / "box.yaml"
    file.write_text(yaml.safe_dump(document))
    machine = load_topology(file)
    assert machine.devices[0].compute.name == "mine"
    assert machine.devices[0].compute.rates == load_profile(tmp_path / "measured.yaml").rates
    (tmp_path / "measured.yaml").unlink()
    with pytest.raises(TopologyError, match=r"measured\.yaml: expected a readable file"):
        load_topology(file)
    with pytest.raises(TopologyError, match="only a topology file names files"):
        Topology.from_document(document)


def test_shipped_topologies_leave_profiles_to_their_files() -> None:
    for name in shipped_names():
        text = (SHIPPED_PROFILES.parent / f"{name}.yaml").read_text()
        assert "\nprofiles:" not in text
