"""charm-topo probe under torchrun, on few processes; and what arrives is looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import charm_sched
from charm_sched.errors import RuntimeFailure
from charm_sched.probing.whole_machine import Traffic
from charm_sched.runtime import probe

PAIR = Traffic(name="a -> b", role="pair", pairs=((0, 1),), sizes=(8, 64))


@pytest.mark.distributed
def test_four_processes_are_measured_and_a_file_is_written(tmp_path: Path) -> None:
    root = Path(charm_sched.__file__).parents[1]
    arguments = ("dual_numa_pcie", "--largest", "256 KiB", "--repeat", "2", "--json",
                 "-o", "new.yaml")  # fmt: skip
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
            "-m", "charm_sched.topo", "probe", *arguments,
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "charm-sched/probe"
    assert document["how"].startswith(f"{probe.default_backend()}, 4 ranks")
    stated = charm_sched.load_topology("dual_numa_pcie")
    assert tuple(document["devices"]) == stated.select(4)
    pairs = {tuple(*r["pairs"]) for r in document["readings"] if r["role"] == "pair"}
    assert pairs == {(a, b) for a in range(4) for b in range(4) if a != b}
    for reading in document["readings"]:
        assert 1e5 < reading["bandwidth"] < 1e12, reading["name"]
        assert 0 <= reading["latency_s"] < 1
    made = charm_sched.load_topology(tmp_path / "new.yaml")
    assert made.device_names == stated.device_names
    assert made.tiers == stated.tiers
    assert "measured by charm-topo probe" in (tmp_path / "new.yaml").read_text()


def measured(task: str, folder: Path) -> list[Any]:
    """Run a task of ``probe_ranks.py``; give what each rank wrote, None where nothing."""
    script = Path(__file__).parent / "probe_ranks.py"
    subprocess.run([sys.executable, str(script), task, str(folder)], timeout=120, check=True)
    files = [folder / f"{rank}.json" for rank in range(3)]
    return [json.loads(path.read_text()) if path.exists() else None for path in files]


@pytest.mark.distributed
@pytest.mark.parametrize("task", ["gloo", "batches"])
def test_each_sender_measures_its_own_transfers(task: str, tmp_path: Path) -> None:
    """On both ways of posting: gloo's, and NCCL's batches (which go over gloo here)."""
    records = measured(task, tmp_path)
    senders = [{0}, {0, 1}, {0, 1, 2}, {0, 1}]
    for rank, record in enumerate(records):
        for number, sending in enumerate(senders):
            assert np.shape(record[number]) == (2, 2)
            assert (np.array(record[number]) > 0).all() == (rank in sending)
            assert (np.array(record[number]) < 5).all()


@pytest.mark.distributed
def test_a_rank_that_ends_is_told_by_the_others(tmp_path: Path) -> None:
    first, nothing, last = measured("death", tmp_path)
    assert nothing is None
    for rank, message in ((0, first), (2, last)):
        assert message.startswith(f"rank {rank}: ")
        assert "both ways" in message
        assert "closed from the other side" in message or "no answer within 5 s" in message


def test_a_transfer_ends_with_its_last_flow() -> None:
    records = [[[[0.1, 0.2], [0.3, 0.4]]], [[[0.2, 0.1], [0.0, 0.5]]]]
    (seconds,) = probe.slowest(records)
    assert seconds.tolist() == [[0.2, 0.2], [0.3, 0.5]]


def test_what_arrives_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = object.__new__(probe._Ranks)
    receiver.rank = 1
    receiver._in = torch.zeros((1, 64), dtype=torch.uint8)
    monkeypatch.setattr(receiver, "_meet", lambda traffic: None)
    monkeypatch.setattr(receiver, "_move", lambda traffic, size: receiver._in.fill_(1))
    receiver.check(PAIR)  # rank 0 sends ones
    monkeypatch.setattr(receiver, "_move", lambda traffic, size: receiver._in[0, :63].fill_(1))
    with pytest.raises(RuntimeFailure, match="rank 1: a -> b: what rank 0 sent arrived changed"):
        receiver.check(PAIR)


def test_traffic_survives_its_document() -> None:
    assert Traffic.from_document(json.loads(json.dumps(PAIR.to_document()))) == PAIR
