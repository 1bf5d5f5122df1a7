"""Values that no machine has, and values of any length, at the commands."""

from __future__ import annotations

import pytest

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
