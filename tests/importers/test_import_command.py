"""``charm-topo import`` as it is typed."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from unittest import mock

import pytest
from foreign import Box, matrix, nccl_xml

from charm_sched.cli import plan_main
from charm_sched.topo import main
from charm_sched.topology.graph import load_topology

TEXT = matrix(Box([[2], [2]]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topo.txt").write_text(TEXT)
    return tmp_path


def piped(text: bytes) -> mock.Mock:
    return mock.Mock(buffer=io.BytesIO(text))


def test_from_standard_input_to_a_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cat topo.txt | charm-topo import - -o box.yaml && charm-plan box.yaml`, as documented."""
    monkeypatch.setattr(sys, "stdin", piped(TEXT.encode()))
    assert main(["import", "-", "-o", "box.yaml"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("read as topo-m\n")
    assert "assumed: the GPU model is not in the text" in said.err
    assert "Saved box.yaml" in said.err
    assert load_topology("box.yaml").name == "box"
    assert plan_main(["box.yaml", "--strategy", "ring", "--seq-len", "4K"]) == 0


def test_the_file_goes_to_standard_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "topo.txt", "--name", "mine", "--gpu", "l40s"]) == 0
    said = capsys.readouterr()
    (folder / "copy.yaml").write_text(said.out)
    topology = load_topology("copy.yaml")
    assert topology.name == "mine"
    assert topology.devices[0].compute.name == "l40s"


def test_flags_reach_the_import(folder: Path) -> None:
    flags = ["--pcie", "gen5", "--socket", "30 GB/s", "--numa", "0+3,1-2", "--nodes", "2",
             "--nic", "100 Gb/s", "--peer", "on"]  # fmt: skip
    assert main(["import", "topo.txt", "-o", "a.yaml", *flags]) == 0
    topology = load_topology("a.yaml")
    rates = {link.kind: link.bandwidth for link in topology.links}
    assert rates["pcie"] == 48e9
    assert rates["socket"] == 30e9
    assert rates["network"] == 12.5e9
    assert len(topology.devices) == 8


def test_hosts_by_name(folder: Path) -> None:
    (folder / "b.xml").write_text(nccl_xml(Box([[3]], nics=1)))
    (folder / "topology.conf").write_text("SwitchName=s Nodes=n[1-3]\n")
    assert main(["import", "topo.txt", "n2=b.xml", "topology.conf", "-o", "c.yaml"]) == 0
    assert len(load_topology("c.yaml").devices) == 4 + 3 + 4
    (folder / "odd=name.txt").write_text(TEXT)
    assert main(["import", "odd=name.txt", "-o", "d.yaml"]) == 0


def test_nothing_foreign_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "topo.txt", "-o", "a.yaml"]) == 0
    assert main(["import", "topo.txt", "-o", "a.yaml"]) == 0
    assert "(replaced an earlier import)" in capsys.readouterr().err
    (folder / "mine.yaml").write_text("mine: true\n")
    for target, message in (
        ("mine.yaml", "stands there already and was not written by charm-topo import"),
        ("no/a.yaml", "a folder that can be written to"),
        ("a.json", "a name that ends in .yaml"),
    ):
        assert main(["import", "topo.txt", "-o", target]) == 1
        assert message in capsys.readouterr().err
    assert (folder / "mine.yaml").read_text() == "mine: true\n"
    (folder / "topo.yaml").write_text(TEXT)
    assert main(["import", "topo.yaml", "-o", "topo.yaml"]) == 1
    assert "is one of the files to import" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.txt"], "absent.txt: expected a readable file, found: No such file"),
        (["topo.txt", "--format", "hwlok"], "--format: expected one of"),
        (["topo.txt", "--format", "hwloc"], "topo.txt:1:2: expected well-formed XML"),
        (["topo.txt", "--gpu", "h100"], "--gpu: expected one of"),
        (["topo.txt", "--strict"], "--strict"),
        (["topo.txt", "topo.txt", "--numa", "0-3,4-7"], "--numa: expected each of the GPUs"),
    ],
)
def test_problems_are_one_message(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["import", *arguments]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert message in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["-", "-"], ["topo.txt", "--pcie", "24"], ["topo.txt", "--numa", "a"],
        ["topo.txt", "--nvlink", "0 GB/s"], ["topo.txt", "--oversubscription", "0.5"],
        ["topo.txt", "--nodes", "0"], ["topo.txt", "--peer", "maybe"],
    ],
)  # fmt: skip
def test_wrong_usage(folder: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["import", *arguments])
    assert stop.value.code == 2
