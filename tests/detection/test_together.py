"""Machines without GPUs, and several machines in one file."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from trees import Tree, box, smi

from charm_sched.detection.rates import Rates, measure_rates
from charm_sched.detection.together import Part, described, host_names, one_each
from charm_sched.errors import TopologyError
from charm_sched.importers.choices import Choices
from charm_sched.launch.hosts import hosts_of
from charm_sched.launch.nccl_xml import nccl_xml
from charm_sched.topo import main
from charm_sched.topology.file import parse_topology
from charm_sched.topology.graph import Topology, load_topology

RATES = Rates(fp32=1e12, fp64=5e11, copy=40e9)


def read(parts: list[Part], split: int | None = None, **choices: object) -> Topology:
    made = described(parts, Choices(**choices), name="all", split=split)  # type: ignore[arg-type]
    return parse_topology(made.text, where="made")


def test_nodes_with_processors_are_devices(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "n1")
    tree.node(9, "")  # memory of a device
    part = Part(seen=tree.seen(), rates=RATES)
    topology = read([part])
    assert topology.device_names == ("cpu0", "cpu1")
    assert topology.devices[0].memory == 65536000 * 1024
    assert topology.devices[0].compute.peak["fp32"] == 1e12
    assert topology.devices[0].compute.memory_bandwidth == 80e9
    assert topology.device("cpu0").port == 40e9
    assert any(link.kind == "socket" for link in topology.links)
    shared = read([part], split=4)
    assert len(shared.devices) == 8
    assert shared.devices[0].compute.peak["fp32"] == 2.5e11
    assert len(read([replace(part, ranks=6)]).devices) == 6  # three of each of the two nodes


def test_only_processors_that_may_be_used_count(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "n1")
    tree.write("/proc/self/status", "Name: x\nCpus_allowed_list:\t0-3")
    seen = tree.seen()
    assert [len(node.usable) for node in seen.nodes] == [4, 0]
    topology = read([Part(seen=seen)])
    assert topology.device_names == ("cpu0",)
    assert topology.devices[0].compute.name == "cpu_4_cores"


def test_hosts_without_gpus_are_alike_or_refused(tmp_path: Path) -> None:
    less = Tree(tmp_path / "n1")
    less.write("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1000 kB")
    parts = [Part(seen=less.seen()), Part(seen=Tree(tmp_path / "n0").seen(), rank=1)]
    topology = read(parts)
    assert topology.device_names == ("n1/cpu0", "n1/cpu1", "n0/cpu0", "n0/cpu1")
    assert topology.device("n0/cpu0").memory == 1000 * 1024
    other = Part(seen=Tree(tmp_path / "n2", nodes=1).seen(), rank=2)
    with pytest.raises(TopologyError, match="node 0 with 16, node 1 with 16 on n1 and node 0 with"):
        read([*parts, other])


def test_processors_are_no_gpus_for_nccl(tmp_path: Path) -> None:
    machine = read([Part(seen=Tree(tmp_path / "n1").seen(), rates=RATES)])
    (host,) = hosts_of(machine, machine.device_names)
    with pytest.raises(TopologyError, match="expected GPUs on localhost, found processors"):
        nccl_xml(machine, host)


def test_what_is_not_measured_is_assumed_and_said(tmp_path: Path) -> None:
    made = described([Part(seen=Tree(tmp_path / "n1").seen())], Choices(), name="box")
    assert any("nothing was measured" in each for each in made.assumptions)
    with pytest.raises(TopologyError, match="--strict"):
        described([Part(seen=Tree(tmp_path / "n2").seen())], Choices(strict=True), name="box")


def test_rates_are_measured_in_a_process_of_its_own() -> None:
    rates = measure_rates([0])
    assert rates is not None
    assert min(rates.fp32, rates.fp64, rates.copy) > 1e7


def gpu_hosts(folder: Path, count: int) -> list[Part]:
    parts = []
    for i in range(count):
        tree = box(folder / f"n{i}")
        smi(tree)
        parts.append(Part(seen=tree.seen(), rank=8 * i))
    return parts


def test_alike_hosts_share_a_template_and_the_odd_one_is_named(tmp_path: Path) -> None:
    parts = gpu_hosts(tmp_path, 3)
    topology = read(parts)
    assert len(topology.devices) == 12
    assert topology.device_names[0] == "n0/gpu0"
    assert topology.device("n2/gpu3").id == "0000:c4:00.0"  # UUIDs differ from host to host
    made = described(parts, Choices(), name="all")
    assert made.text.count("template: node") == 1
    short = box(tmp_path / "n9")
    smi(short, listed=[0, 1, 2])
    made = described([*parts, Part(seen=short.seen(), rank=99)], Choices(), name="all")
    assert any("n9: unlike the other 3 hosts: 3 GPUs instead of 4" in d for d in made.doubts)
    assert len(parse_topology(made.text, where="made").devices) == 15


def test_order_is_that_of_ranks(tmp_path: Path) -> None:
    parts = gpu_hosts(tmp_path, 2)
    turned = [replace(parts[0], rank=4), replace(parts[1], rank=0)]
    assert read(turned).device_names[0] == "n1/gpu0"


def test_one_machine_is_told_by_its_boot_and_not_by_its_name(tmp_path: Path) -> None:
    parts = gpu_hosts(tmp_path, 2)
    again = replace(parts[0], rank=1)
    found, doubts = one_each([parts[0], again, parts[1]])
    assert [(part.rank, part.ranks) for part in found] == [(0, 2), (8, 1)]
    assert doubts == []
    identity = replace(parts[1].seen.identity, name="n0", machine="same")
    clone = replace(parts[1], seen=replace(parts[1].seen, identity=identity))
    first = replace(parts[0].seen, identity=replace(parts[0].seen.identity, machine="same"))
    found, doubts = one_each([replace(parts[0], seen=first), clone])
    assert len(found) == 2
    assert "clones of an image" in doubts[0]
    assert host_names([part.seen for part in found]) == ["n0", "n0-2"]


def test_containers_of_one_machine_with_other_gpus_are_refused(tmp_path: Path) -> None:
    (part,) = gpu_hosts(tmp_path, 1)
    other = box(tmp_path / "c1")
    smi(other, listed=[2])
    seen = replace(other.seen(), identity=replace(part.seen.identity, name="pod"))
    with pytest.raises(TopologyError, match="expected ranks of one machine to see the same GPUs"):
        one_each([part, Part(seen=seen, rank=1)])


def test_hosts_with_and_without_gpus_do_not_mix(tmp_path: Path) -> None:
    (part,) = gpu_hosts(tmp_path, 1)
    bare = Part(seen=Tree(tmp_path / "bare").seen(), rank=8)
    with pytest.raises(TopologyError, match="GPUs on all hosts or on none, found none on bare"):
        described([part, bare], Choices(), name="all")


def test_the_command_describes_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    assert main(["detect", "--no-measure", "-o", "here.yaml"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "looked at " in said.err
    assert load_topology("here.yaml").name == "here"
    assert main(["detect", "--no-measure", "-o", "here.yaml"]) == 0
    assert "replaced an earlier one" in capsys.readouterr().err
    Path("mine.yaml").write_text("mine: 1\n")
    assert main(["detect", "--no-measure", "-o", "mine.yaml"]) == 1
    assert "was not written by charm-topo detect" in capsys.readouterr().err


@pytest.mark.distributed
def test_ranks_of_one_host_report_once(tmp_path: Path) -> None:
    target = tmp_path / "two.yaml"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
        "-m", "charm_sched.topo", "detect", "--no-measure", "-o", str(target),
    ]  # fmt: skip
    root = str(Path(__file__).parent.parent.parent)
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": root}, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Saved") == 1
    assert len(load_topology(target).devices) >= 1
