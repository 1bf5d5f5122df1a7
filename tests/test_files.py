"""Output is whole or absent, whatever stands in its place or goes wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.machines import HEAD, link, section

from charm_sched import load_plan, load_topology, plan, save_plan
from charm_sched.commands.output import check_target
from charm_sched.errors import PlanFileError, TopologyError
from charm_sched.files import write_whole
from charm_sched.topology.file import parse_topology
from charm_sched.units import parse_bandwidth, parse_seconds
from charm_sched.workload import Workload


def test_a_file_is_replaced_with_its_permissions(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_bytes(b"old")
    target.chmod(0o640)
    write_whole(target, b"new")
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    link_path = tmp_path / "link"
    link_path.symlink_to("real")
    write_whole(link_path, b"new")
    assert link_path.is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_what_goes_wrong_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a.json"
    target.write_bytes(b"old")

    def full(self: Path, other: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(target, b"new")
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_users_file_with_a_similar_name_is_left_alone(tmp_path: Path) -> None:
    made = plan(
        load_topology("dual_numa_pcie"),
        Workload(seq_len=8, heads=2, head_dim=4),
        strategy="ring", direction="forward", ranks=2,
    )  # fmt: skip
    for name in ("a.json.part", "a.json~", ".a.json"):
        (tmp_path / name).write_text("precious")
    save_plan(made, tmp_path / "a.json")
    assert {path.read_text() for path in tmp_path.iterdir() if path.name != "a.json"} == {
        "precious"
    }


def test_plans_are_not_read_from_devices_nor_written_over_pipes(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="expected a plan file, found a device"):
        load_plan("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    for name in ("pipe.json", "folder.json"):
        with pytest.raises(PlanFileError, match="expected the name of a file"):
            check_target(tmp_path / name)
    (tmp_path / "loop.json").symlink_to("loop.json")
    with pytest.raises(PlanFileError, match="cannot be read"):
        load_plan(tmp_path / "loop.json")


def test_a_folder_in_place_of_a_topology_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(tmp_path)
    assert str(caught.value).count("expected a topology file") == 1


@pytest.mark.parametrize("text", ["1e300 B/s", "1e-300 B/s", "1e-20 B/s", "1e16 PB/s"])
def test_numbers_that_no_machine_has_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the number is too (large|small)"):
        parse_bandwidth(text)
    body = section(
        devices="g0..1", switches=["hub hub"], links=[link("g0..1", "hub", 1, "w")]
    ).replace("1 GB/s", text)
    with pytest.raises(TopologyError, match=r"links\[0\].bandwidth: .* the number is too"):
        parse_topology(HEAD + body, where="box.yaml")


def test_zero_is_a_number() -> None:
    assert parse_seconds("0 s") == 0.0
