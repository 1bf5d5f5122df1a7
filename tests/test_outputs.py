"""What commands write: no two flags to one place, nothing over what is not theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Call, caller

from charm_sched import lab
from charm_sched.cli import plan_main, sim_main
from charm_sched.commands.running import check_profile
from charm_sched.errors import CharmSchedError, TopologyError
from charm_sched.probing.write import MARK, TOPOLOGY_MARK, check_output
from charm_sched.topo import main as topo_main

SMALL = ("dual_node_nvlink", "--seq-len", "4K", "--ranks", "4", "--strategy", "ring")


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    """Run a command in an empty folder, as if piped."""
    return caller(capsys, tmp_path, monkeypatch, 80)


ONE = ("--direction", "forward")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--trace", "x.html", "--report", "x.html"), "--trace and --report have one name"),
        (("--trace", "x.html", "--report", "./x.html", *ONE), "have one name"),
        (("--trace", "x.html", "--report", "x.forward.html"), "have one name"),
        (("--trace", "x", "--chakra", "x"), "--trace and --chakra have one name"),
        (("--trace", "c/x.json", "--chakra", "c"), "are a folder and a file in it"),
        (("--chakra", "c", "-o", "c/p.json"), "the plan and --chakra are a folder and a file in"),
        (("--report", "p.html", "-o", "p.html"), "the plan has this name"),
        (("--report", "link.html", "--trace", "real.html", *ONE), "have one name"),
        (("--trace", "."), ".: expected the name of a file for --trace, found a folder"),
        (("--trace", "..", *ONE), "expected the name of a file for --trace, found a folder"),
        (("--trace", "c"), "expected the name of a file for --trace, found a folder"),
    ],
)
def test_flags_that_write_to_one_place_are_refused_before_planning(
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    message: str,
) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "link.html").symlink_to("real.html")
    monkeypatch.setattr("charm_sched.search.planning.plan_all", None)  # not reached
    done = call(plan_main, *SMALL, *flags)
    assert (done.status, done.out) == (1, "")
    assert message in done.err
    assert {path.name for path in tmp_path.iterdir()} == {"c", "link.html"}


def test_charm_sim_refuses_one_place_as_well(call: Call, tmp_path: Path) -> None:
    assert call(plan_main, *SMALL, "--json", "-o", "p.json").status == 0
    for flags, message in (
        (("--trace", "x.html", "--report", "x.html"), "--trace and --report have one name"),
        (("--trace", "p.json"), "the plan has this name"),
    ):
        done = call(sim_main, "p.json", *flags)
        assert (done.status, done.out) == (1, "")
        assert message in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]


def test_files_of_different_names_are_all_written(call: Call, tmp_path: Path) -> None:
    files = ("--trace", "x.json", "--report", "x.html", "--chakra", "x", "-o", "p.json")
    assert call(plan_main, *SMALL, *files, "--json").status == 0
    names = {"x.forward.json", "x.backward.json", "x.html", "x", "p.json"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_plans_of_two_machines_with_one_name_do_not_replace_each_other(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("charm_sched.search.planning.plan_all", None)  # not reached
    done = call(plan_main, "dual_node_nvlink", *SMALL)
    assert (done.status, done.out) == (1, "")
    assert "dual_node_nvlink.plan.json: the plans of two of these topologies" in done.err
    assert not list(tmp_path.iterdir())


def test_traces_of_a_plan_by_symmetry_are_refused_before_planning(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("charm_sched.search.planning.plan_all", None)  # not reached
    done = call(plan_main, "cluster_8192_rails", "--mask", "full", "--chakra", "c", "--json")
    assert (done.status, done.out) == (1, "")
    assert "--chakra: plans for 8,192 ranks are stored by symmetry" in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [".", "there"])
def test_a_profile_is_no_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(CharmSchedError, match="expected the name of a file for --profile, found"):
        check_profile(tmp_path / name, ())


def test_tables_of_charm_lab_replace_only_their_own(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("charm_sched.testbed.missing", lambda: "stopped before the network")
    (tmp_path / "notes.md").write_text("mine")
    (tmp_path / "ours.md").write_bytes(lab.MARKDOWN_START)
    for name, message in (
        ("notes.md", "is no page of charm-lab"),
        ("nowhere/x.md", "there is no folder nowhere"),
        (".", "expected the name of a file for --markdown"),
        ("ours.md", "stopped before the network"),
        ("new.md", "stopped before the network"),
    ):
        done = call(lab.main, "dual_numa_pcie", "--markdown", name)
        assert (done.status, done.out) == (1, "")
        assert message in done.err
    assert (tmp_path / "notes.md").read_text() == "mine"


def test_a_probe_does_not_replace_the_network_it_builds(tmp_path: Path) -> None:
    network = tmp_path / "network.yaml"
    network.write_bytes(TOPOLOGY_MARK + f" measured by {MARK}".encode())
    assert check_output(network, "dual_numa_pcie")
    with pytest.raises(TopologyError, match="is the file that is probed"):
        check_output(network, "dual_numa_pcie", str(network))


def test_an_export_is_refused_before_the_work(call: Call, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("mine")
    for name, message in (
        ("hosts", "stands there already"), ("nowhere/hosts", "there is no folder nowhere"),
    ):  # fmt: skip
        done = call(topo_main, "export", "dual_numa_pcie", "--format", "hostfile", "-o", name)
        assert (done.status, done.out) == (1, "")
        assert message in done.err
    assert (tmp_path / "hosts").read_text() == "mine"
