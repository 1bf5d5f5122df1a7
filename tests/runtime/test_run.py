"""charm-run under torchrun, on few processes and little work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import charm_sched
from charm_sched.runtime.trial import dense_attention, draw_tensors
from charm_sched.workload import Workload

pytestmark = pytest.mark.distributed
SMALL = (
    "--seq-len", "64", "--heads", "4", "--kv-heads", "2", "--head-dim", "8", "--dtype", "fp64",
    "--repeat", "2",
)  # fmt: skip


def charm_run(
    folder: Path, *arguments: str, processes: int = 2
) -> subprocess.CompletedProcess[str]:
    root = Path(charm_sched.__file__).parents[1]
    return subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes),
            "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
            "-m", "charm_sched.run", *arguments,
        ],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_topology_is_planned_run_and_checked(tmp_path: Path) -> None:
    done = charm_run(tmp_path, "dual_numa_pcie", *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "charm-sched/report"
    assert [row["direction"] for row in document["results"]] == ["forward", "backward"]
    for row in document["results"]:
        assert row["ranks"] == 2
        assert row["max_error"] < 1e-10
        assert 0 <= row["measured_spread_s"] < 5
        assert 0 < row["measured_s"] < 5
        assert row["prediction_error"] == pytest.approx(row["makespan_s"] / row["measured_s"] - 1)


def test_a_stored_plan_is_run(tmp_path: Path) -> None:
    topology = charm_sched.load_topology("dual_numa_pcie")
    work = Workload(seq_len=64, heads=2, head_dim=8, dtype="fp32")
    stored = charm_sched.plan(topology, work, strategy="ring", ranks=2, direction="forward")
    charm_sched.save_plan(stored, tmp_path / "stored.plan.json")
    done = charm_run(tmp_path, "stored.plan.json", "--repeat", "1")
    assert done.returncode == 0, done.stderr
    row = done.stdout.splitlines()[-2]
    assert row.split()[:2] == ["forward", "ring"]
    assert float(row.split()[-1]) < 1e-5


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("no_such_machine", *SMALL), "no_such_machine"),
        (("dual_numa_pcie", *SMALL, "--ranks", "3"), "torchrun started 2 processes"),
    ],
)
def test_problems_are_one_message(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    done = charm_run(tmp_path, *arguments)
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(told) == 1
    assert expected in told[0]
    assert not done.stdout


def test_it_says_how_it_is_started() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "charm_sched.run", "dual_numa_pcie"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "torchrun --nproc-per-node N" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("mask", ["full", "causal", "window:9", "docs:300,1,19"])
def test_the_comparison_is_right(mask: str) -> None:
    """charm-run's own dense attention against autograd."""
    import attention_cases as cases

    work = Workload(
        seq_len=320, heads=4, kv_heads=2, head_dim=3, v_head_dim=2, mask=mask, dtype="fp64"
    )
    tensors = draw_tensors(work, 1)
    found, expected = dense_attention(work, *tensors), cases.dense_attention(work, *tensors)
    for have, want in zip(found, expected, strict=True):
        torch.testing.assert_close(have, want)
