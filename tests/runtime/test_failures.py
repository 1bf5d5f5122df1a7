"""What breaks ends every rank with a message of rank, op and peer; and a restart goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_distributed import results, spawn

import charm_sched

pytestmark = pytest.mark.distributed
ROOT = Path(charm_sched.__file__).parents[1]


def test_a_buffer_without_memory_is_told_to_all(tmp_path: Path) -> None:
    """Before the pass begins, so the group can be used afterwards."""
    found = results(spawn("no_memory", 3, tmp_path))
    for rank, (said,) in enumerate(found):
        assert re.search(
            r"slot \d+: expected 1,152,921,504,606,846,976 bytes on cpu, found no", said
        )
        assert said.startswith(f"rank {rank}: rank 1 cannot take part: slot ") == (rank != 1)


def test_a_message_without_memory_ends_all(tmp_path: Path) -> None:
    for rank, report in enumerate(spawn("no_memory_late", 3, tmp_path)):
        assert report is not None
        assert report["error"].startswith(f"rank {rank}: op "), report["error"]
        assert report["seconds"] < 5
        what = "expected 1,152,921" if rank == 1 else "rank 1 failed: the connection was closed"
        assert what in report["error"] or rank == 2


def test_a_rank_killed_at_any_time_ends_the_others(tmp_path: Path) -> None:
    reports = spawn("killed_in_backward", 4, tmp_path)
    assert reports[3] is None
    for rank, report in enumerate(reports[:3]):
        assert report is not None, f"rank {rank} hung or crashed"
        assert report["error"].startswith(f"rank {rank}: "), report["error"]
        assert re.search(r"rank \d failed: ", report["error"]), report["error"]
        assert report["seconds"] < 12


@pytest.mark.parametrize("where", ["q", "k"])
def test_not_a_number_stays_where_attention_puts_it(where: str, tmp_path: Path) -> None:
    expected = [11] if where == "q" else [11, 12, 13, 14, 15]
    for found, dense in results(spawn("not_a_number", 4, tmp_path, where=where)):
        assert found == dense == expected


def torchrun(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3",
            "--max-restarts", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
            str(ROOT / "docs" / "examples" / "torchrun" / "resume.py"), *arguments,
        ],
        cwd=folder, capture_output=True, text=True, timeout=200, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables,
    )  # fmt: skip


@pytest.mark.slow
def test_training_goes_on_from_its_checkpoint_after_a_restart(tmp_path: Path) -> None:
    straight = torchrun(tmp_path, "straight", "5")
    assert straight.returncode == 0, straight.stderr
    broken = torchrun(tmp_path, "broken", "5", DIE_ONCE="1")
    assert broken.returncode == 0, broken.stderr
    losses = [line for line in straight.stdout.splitlines() if line.startswith("step")]
    assert len(losses) == 5
    assert [line for line in broken.stdout.splitlines() if line.startswith("step")] == losses
    assert re.search(r"RuntimeFailure: rank \d: .*rank \d failed: the connection", broken.stderr)
    assert sorted(path.name for path in (tmp_path / "broken").iterdir()) == list("12345")


def test_no_process_is_left_when_the_first_one_is_killed(tmp_path: Path) -> None:
    """The ranks of charm-run end with torchrun."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "charm_sched.run",
            "dual_numa_pcie", "--seq-len", "64", "--heads", "2", "--head-dim", "8",
            "--strategy", "ring", "--repeat", "100000",
        ],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while len(ranks := children(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert len(ranks) == 2
    time.sleep(4)
    os.kill(ranks[0], signal.SIGKILL)
    assert process.wait(timeout=60) != 0
    assert not any(alive(rank) for rank in ranks)


def children(pid: int) -> list[int]:
    """List the processes that a process started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(entry.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
