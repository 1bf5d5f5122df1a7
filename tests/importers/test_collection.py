"""Texts of real machines, where a collection of them is at hand: facts, refusals, plans.

The collection is a folder with EXPECTED.json, given by CHARM_INPUTS or beside the checkout; without
it these tests are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from foreign import topology_of

from charm_sched import Workload, plan, simulate
from charm_sched.errors import TopologyError
from charm_sched.importers import nccl_xml, pcie, rocm_smi, smi_matrix
from charm_sched.importers.build import Given, Imported, import_texts
from charm_sched.importers.choices import Choices
from charm_sched.importers.facts import SWITCH, Host, numbers
from charm_sched.importers.reading import Source, read_source

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("CHARM_INPUTS") or ROOT.parent / "shared" / "inputs")
EXPECTED: dict[str, dict[str, Any]] = (
    json.loads((FOLDER / "EXPECTED.json").read_text())
    if (FOLDER / "EXPECTED.json").is_file()
    else {}
)
FILES = sorted(
    path.relative_to(FOLDER).as_posix()
    for path in (FOLDER.rglob("*") if EXPECTED else ())
    if path.is_file() and path.name != "EXPECTED.json"
)
pytestmark = pytest.mark.skipif(not EXPECTED, reason="no collection of real texts is here")
WORKLOAD = Workload(
    seq_len=4096, heads=32, kv_heads=8, head_dim=128, dtype="bf16", mask="causal"
)  # fmt: skip


def of(kind: str) -> list[str]:
    return sorted(name for name, facts in EXPECTED.items() if facts["kind"] == kind)


def text_of(name: str) -> Source:
    return read_source(str(FOLDER / name))


@pytest.mark.parametrize("name", of("nvidia-smi topo -m"))
def test_matrices(name: str) -> None:
    facts = EXPECTED[name]
    text = text_of(name)
    assert smi_matrix.recognise(text.text)
    table = smi_matrix.read_table(text, smi_matrix.CLASS)
    gpus = [column for column in table.columns if column.startswith("GPU")]
    nics = [column for column in table.columns if column not in gpus]
    count = len(gpus)
    rows = table.rows
    affinity = {gpu: rows[gpu].rest.get("NUMA Affinity", "") for gpu in gpus}
    memory = {gpu: rows[gpu].rest.get("GPU NUMA ID") for gpu in gpus}
    found = {
        "kind": facts["kind"],
        "gpus": count,
        "nics": nics,
        "nic_legend": table.legend or None,
        "gpu_matrix": [list(rows[gpu].cells[:count]) for gpu in gpus],
        "gpu_nic": {g: dict(zip(nics, rows[g].cells[count:], strict=True)) for g in gpus if nics},
        "nic_rows_present": [nic for nic in nics if nic in rows],
        "cpu_affinity": {gpu: rows[gpu].rest.get("CPU Affinity") for gpu in gpus},
        "numa": {gpu: list(n) if (n := numbers(text)) else None for gpu, text in affinity.items()},
        "gpu_numa_id": {gpu: int(text) if text else None for gpu, text in memory.items()},
    }
    assert found == facts
    assert len(smi_matrix.read(text).gpus) == count


@pytest.mark.parametrize("name", of("nccl topo xml"))
def test_system_xml(name: str) -> None:
    facts = EXPECTED[name]
    if not facts["total_gpus"]:
        with pytest.raises(TopologyError, match="expected a GPU"):
            nccl_xml.read(text_of(name))
        return
    host = nccl_xml.read(text_of(name))
    assert len(host.gpus) == facts["total_gpus"]
    assert len([nic for nic in host.nics if nic.speed]) == facts["total_nets"]
    assert [(str(cpu.numa), cpu.vendor, cpu.family, cpu.model) for cpu in host.cpus] == [
        tuple(cpu[key] or "" for key in ("numaid", "vendor", "familyid", "modelid"))
        for cpu in facts["cpus"]
    ]
    assert _places(host) == sorted(
        (gpu["busid"], int(cpu["numaid"])) for cpu in facts["cpus"] for gpu in cpu["gpus"]
    )
    nets = [(net["name"], net["speed_mbps"]) for cpu in facts["cpus"] for net in cpu["nets"]]
    speeds = [(nic.name, nic.speed * 8 / 1e6) for nic in host.nics if nic.speed]
    assert sorted(speeds) == sorted(nets)
    for cpu in facts["cpus"]:
        for gpu in cpu["gpus"]:
            _compare_gpu(host, gpu)


def _places(host: Host) -> list[tuple[str, int]]:
    return sorted((gpu.bus, gpu.numa[0] if gpu.numa else -1) for gpu in host.gpus)


def _compare_gpu(host: Host, facts: Mapping[str, Any]) -> None:
    """Compare speed and direct links; those to NVSwitches are added up."""
    (gpu,) = [each for each in host.gpus if each.bus == facts["busid"]]
    if facts["dev"]:
        assert gpu.name == f"gpu{facts['dev'][0]}"
    width = int(facts["link_width"] or 0)
    rate = float((facts["link_speed"] or "0").split()[0])
    expected = {8.0: 0.75, 16.0: 1.5, 32.0: 3.0}.get(rate, 0.0) * width * 1e9
    assert gpu.slot == (expected or None)
    assert pcie.bus_address(facts["busid"]) == gpu.bus
    buses = {each.name: each.bus for each in host.gpus}
    links = {buses.get(peer.target, SWITCH): peer.count for peer in gpu.peers}
    told = {link["target"]: link["count"] for link in facts["links"]}
    if SWITCH in links:
        assert links == {SWITCH: sum(told.values())}
    else:
        assert links == told


@pytest.mark.parametrize(
    "name", [*of("nccl graphs xml"), *of("nccl xml fragment"), *of("nccl cpu xml"),
             *of("nccl pci xml")],
)  # fmt: skip
def test_what_is_no_system_is_refused_with_its_place(name: str) -> None:
    if EXPECTED[name]["well_formed"]:
        root = EXPECTED[name]["kind"].split()[1]
        message = f"<{root}>"
    else:
        message = r":\d+:\d+: expected well-formed XML"
    with pytest.raises(TopologyError, match=message):
        import_texts([Given(text_of(name))], Choices())


@pytest.mark.parametrize("name", of("rocm-smi --showtopo"))
def test_rocm(name: str) -> None:
    facts = EXPECTED[name]
    matrices, numa = rocm_smi.read_sections(text_of(name))
    sections = ("access", "weight", "hops", "link_type", "numa_bw")
    found: dict[str, Any] = {section: matrices.get(section) for section in sections}
    for key in ("node", "affinity"):
        found[f"numa_{key}"] = {str(gpu): node for gpu, node in numa[key].items()}
    assert found == {key: value for key, value in facts.items() if key != "kind"}


@pytest.mark.parametrize("name", FILES)
def test_every_text_is_planned_on_or_refused(name: str) -> None:
    facts = EXPECTED.get(name, {})
    made: Imported | str
    try:
        made = import_texts([Given(text_of(name))], Choices())
    except TopologyError as error:
        made = str(error)
    if isinstance(made, str):
        assert str(FOLDER) in made
        assert "expected" in made
        assert not any(facts.get(key) for key in ("gpus", "total_gpus", "link_type"))
        return
    topology = topology_of(made)
    for key in ("gpus", "total_gpus"):
        if key in facts:
            assert len(topology.devices) == facts[key]
    made_plan = plan(topology, WORKLOAD, strategy="ring", direction="forward")
    assert simulate(made_plan, topology).makespan > 0
