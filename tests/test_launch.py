"""What is written for launchers and NCCL, and read back."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from charm_sched.errors import TopologyError
from charm_sched.importers import nccl_xml as reader
from charm_sched.importers.build import Given, import_texts
from charm_sched.importers.choices import Choices
from charm_sched.importers.grouping import partitions
from charm_sched.importers.reading import decode
from charm_sched.launch import environment, nccl_xml, ranks
from charm_sched.launch.hosts import hosts_of
from charm_sched.topo import main
from charm_sched.topology.file import parse_topology
from charm_sched.topology.graph import Topology, load_topology

SYSTEM = """<system version="1">
<cpu numaid="0" arch="x86_64"><pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
<pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x20b5" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="80" rank="0"><nvlink target="0000:22:00.0" count="12" tclass="0x030200"/></gpu></pci>
<pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" device="0x20b5" link_speed="16.0 GT/s PCIe" link_width="8"><gpu dev="1" sm="80" rank="1"/></pci>
<pci busid="0000:13:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16"><nic><net name="mlx5_0" dev="0" speed="200000" port="1"/></nic></pci>
</pci></cpu>
<cpu numaid="1" arch="x86_64">
<pci busid="0000:21:00.0" class="0x030200" vendor="0x10de" device="0x20b5" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="2" sm="80" rank="2"/></pci>
<pci busid="0000:22:00.0" class="0x030200" vendor="0x10de" device="0x20b5" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="3" sm="80" rank="3"><nvlink target="0000:11:00.0" count="12" tclass="0x030200"/></gpu></pci>
</cpu></system>
"""  # noqa: E501


def topology_of(text: str, **choices: object) -> Topology:
    given = [Given(decode(text.encode(), "text"))]
    made = import_texts(given, Choices(as_is=True, **choices))  # type: ignore[arg-type]
    return parse_topology(made.text, where="made")


def test_an_xml_comes_back_as_the_same_machine() -> None:
    machine = topology_of(SYSTEM)
    (host,) = hosts_of(machine, machine.device_names)
    made = nccl_xml.nccl_xml(machine, host)
    assert made.invented == ()
    before, after = (
        reader.read(decode(text.encode(), "x")) for text in (SYSTEM, made.text)
    )  # fmt: skip
    assert partitions(before) == partitions(after)
    for ours, theirs in zip(before.gpus, after.gpus, strict=True):
        assert (ours.bus, ours.slot, ours.peers) == (theirs.bus, theirs.slot, theirs.peers)
    assert [nic.name for nic in after.nics] == ["mlx5_0"]
    again = topology_of(made.text)
    assert again.digest == machine.digest


@pytest.mark.parametrize("name", ["dual_numa_pcie", "dual_node_nvlink", "single_node_nvlink"])
def test_shipped_machines_come_back_with_the_same_groups(name: str) -> None:
    machine = load_topology(name)
    host = hosts_of(machine, machine.device_names)[0]
    made = nccl_xml.nccl_xml(machine, host)
    assert made.invented  # the shipped files have no addresses
    again = topology_of(made.text)
    assert len(again.devices) == len(host.devices)
    sizes = sorted(len(domain.devices) for domain in machine.domains(host.devices).children)
    assert sorted(len(domain.devices) for domain in again.domains().children) == sizes


def test_hosts_are_what_no_card_separates() -> None:
    machine = load_topology("dual_node_nvlink")
    hosts = hosts_of(machine, machine.device_names)
    assert [(h.name, h.ranks) for h in hosts] == [
        ("node0", tuple(range(8))), ("node1", tuple(range(8, 16))),
    ]  # fmt: skip
    assert "node0/nic0" in hosts[0].parts
    assert [h.name for h in hosts_of(machine, machine.device_names, ["a", "b"])] == ["a", "b"]
    with pytest.raises(TopologyError, match="--hosts: expected 2 names"):
        hosts_of(machine, machine.device_names, ["a"])
    alone = load_topology("dual_numa_pcie")
    assert [h.name for h in hosts_of(alone, alone.device_names)] == ["localhost"]


def test_launchers_read_the_order_of_ranks() -> None:
    machine = load_topology("dual_node_nvlink")
    turned = [f"node{i % 2}/gpu{i // 2}" for i in range(4)]
    hosts = hosts_of(machine, turned)
    assert ranks.slurm_hostfile(hosts).split() == ["node0", "node1", "node0", "node1"]
    assert ranks.rankfile(hosts).splitlines()[:2] == ["rank 0=node0 slot=0", "rank 1=node1 slot=0"]
    with pytest.raises(TopologyError, match="consecutive ranks on each host"):
        ranks.hostfile(hosts, [[0, 1], [0, 1]])
    straight = hosts_of(machine, machine.device_names)
    text = ranks.hostfile(straight, [list(range(8))] * 2)
    assert re.findall(r"^(\w+) slots=(\d+)$", text, re.M) == [("node0", "8"), ("node1", "8")]
    assert "--node-rank 1" in text


def test_environment_lines_are_read_by_a_shell_and_give_reasons(tmp_path: Path) -> None:
    machine = topology_of(SYSTEM)
    (host,) = hosts_of(machine, ("gpu3", "gpu0"))
    text = environment.environment(machine, host, [3, 0], topo_file="nccl.xml")
    lines = [line for line in text.splitlines() if line.startswith("export")]
    assert all(re.fullmatch(r"export \S+  # \S.*", line) for line in lines)
    (tmp_path / "env.sh").write_text(text)
    shown = subprocess.run(
        ["sh", "-c", f". {shlex.quote(str(tmp_path / 'env.sh'))}; env"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for line in ("CUDA_VISIBLE_DEVICES=3,0", "CUDA_DEVICE_ORDER=PCI_BUS_ID",
                 "NCCL_IB_HCA==mlx5_0", "NCCL_TOPO_FILE=nccl.xml"):  # fmt: skip
        assert line in shown
    assert "# NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME: the topology names no interface" in text


def test_uuids_are_used_where_every_device_has_one() -> None:
    machine = topology_of(SYSTEM)
    document = machine.to_document()
    for i, device in enumerate(document["devices"]):
        device["id"] += f" GPU-{i}"
    document["switches"] = [
        {**s, "id": "0000:13:00.0 ens1f0"} if s["kind"] == "nic" else s
        for s in document["switches"]
    ]
    named = Topology.from_document(document)
    assert named.digest == machine.digest
    assert Topology.from_document(named.to_document()).devices[1].id.endswith("GPU-1")
    (host,) = hosts_of(named, named.device_names)
    text = environment.environment(named, host, [0, 1, 2, 3])
    assert "export CUDA_VISIBLE_DEVICES=GPU-0,GPU-1,GPU-2,GPU-3  #" in text
    assert "export NCCL_SOCKET_IFNAME==ens1f0  #" in text
    assert "export GLOO_SOCKET_IFNAME=ens1f0  #" in text


def test_the_command_writes_each_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for form in ("nccl-xml", "hostfile", "rankfile", "slurm", "env"):
        assert main(["export", "dual_node_nvlink", "--format", form]) == 0
        assert capsys.readouterr().out
    assert main(["export", "dual_node_nvlink", "--format", "env", "--host", "node7"]) == 1
    assert "--host: expected one of node0, node1, found node7" in capsys.readouterr().err
    arguments = ["export", "dual_node_nvlink", "--format", "slurm", "--hosts", "n1..2", "-o", "h"]
    assert main(arguments) == 0
    assert Path("h").read_text().split() == ["n1"] * 8 + ["n2"] * 8
    assert main(arguments) == 1
    assert "stands there already" in capsys.readouterr().err
