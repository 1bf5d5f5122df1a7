"""On CUDA devices: one rank on one, every strategy on several, and the script that measures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def test_the_script_measures() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "measure.py"), "--seconds", "60"],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kernels"], found
    assert found["overlap"]["together_s"] > 0
    assert found["runtime"] is not None, found["runtime_reason"]
    assert found["runtime"]["largest_difference"] < 0.05


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_every_strategy_is_exact_over_nccl() -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node",
            str(min(torch.cuda.device_count(), 8)), str(HERE / "ranks.py"),
        ],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if len(line.split()) > 1]
    assert len(lines) > 5
    assert all(line[1] == "exact" for line in lines), done.stdout
