"""Values that no machine has, and values of any length, at the commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from charm_sched import lab, run, topo
from charm_sched.cli import plan_main
from charm_sched.errors import WorkloadError
from charm_sched.search.planning import plan, plan_all
from charm_sched.topology.graph import load_topology
from charm_sched.workload import Workload

WORK = Workload(seq_len=64, heads=2, kv_heads=1, head_dim=16)


@pytest.mark.parametrize("size", ["0 GB", "-4 GB", "-0 B"])
def test_no_memory_is_refused(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        plan_main(["dual_numa_pcie", f"--memory={size}"])
    assert stop.value.code == 2
    assert "--memory: expected a memory size above zero" in capsys.readouterr().err


@pytest.mark.parametrize("memory", [0.0, -1.0, float("nan"), float("inf")])
def test_no_memory_is_refused_in_python(memory: float) -> None:
    machine = load_topology("single_node_nvlink")
    with pytest.raises(WorkloadError, match="memory: expected bytes above zero"):
        plan(machine, WORK, memory=memory)
    with pytest.raises(WorkloadError, match="memory: expected bytes above zero"):
        plan_all(machine, WORK, memory=memory)


LONG = "x" * 3000


@pytest.mark.parametrize(
    "arguments",
    [
        [LONG], ["dual_numa_pcie", "--dtype", LONG], ["dual_numa_pcie", "--mask", LONG],
        ["dual_numa_pcie", "--devices", LONG], ["dual_numa_pcie", "--memory", LONG],
        ["dual_numa_pcie", "--strategy", LONG], ["dual_numa_pcie", "--set", f"{LONG}=1 GB/s"],
        ["dual_numa_pcie", f"--{LONG}"], ["dual_numa_pcie", "-o", f"{LONG}.json"],
    ],
    ids=range(9),
)  # fmt: skip
def test_long_values_are_cut_in_every_message(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = plan_main(arguments)
    except SystemExit as stop:
        status = int(stop.code or 0)
    said = capsys.readouterr().err
    assert status in (1, 2)
    assert "xxxx" in said
    assert len(said) < 2000


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (run.main, ["--timeout", "0"], "--timeout: expected a positive number of seconds"),
        (run.main, ["--timeout", "nan"], "--timeout: expected a positive number of seconds"),
        (lab.main, ["--timeout=-1 s"], "--timeout: expected a positive number of seconds"),
        (lab.main, ["--scale", "0"], "--scale: expected a positive factor"),
        (lab.main, ["--strategy", "ring,"], "--strategy: expected strategies such as ring,charm"),
        (topo.main, ["--timeout", "inf"], "--timeout: expected a positive number of seconds"),
        (topo.main, ["--largest", "0 B"], "--largest: expected from 1 KiB"),
        (plan_main, ["--batch", "0"], "--batch: expected a whole number of 1 or more"),
        (plan_main, ["--steps", "0"], "--steps: expected a whole number of 1 or more"),
    ],
)
def test_numbers_that_mean_nothing_are_refused_by_every_command(
    main: Callable[[Sequence[str]], int],
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["probe", "dual_numa_pcie"] if main is topo.main else ["dual_numa_pcie"]
    with pytest.raises(SystemExit) as stop:
        main([*command, *arguments])
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategy", "ring,nope"], "strategy: expected ring, "),
        (["--model", "llama3-8b", "--heads", "8"], "--model llama3-8b fixes the heads"),
        (["--devices", "gpu9"], "gpu9"),
        (["nowhere"], "nowhere"),
        (["--fault", "cut:a->b@1"], "fault cut: dual_numa_pcie has no link 'a->b'"),
        (["--fault", "kill:8@1"], "fault kill: expected a rank below 8"),
    ],
)
def test_charm_lab_refuses_before_it_builds_a_network(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("charm_sched.testbed.missing", lambda: "THE NETWORK")
    assert lab.main(["dual_numa_pcie", *arguments]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert "THE NETWORK" not in said


def test_messages_of_charm_topo_name_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        topo.main(["bound", "dual_numa_pcie", "--seq-len", "0"])
    assert "\ncharm-topo bound: error: argument --seq-len: " in capsys.readouterr().err


def test_a_closed_standard_output_is_one_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert topo.main(["list"]) == 1
    assert capsys.readouterr().err == (
        "error: standard output: expected an open file, found it closed\n"
    )
