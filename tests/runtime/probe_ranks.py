"""Measures traffic on three forked processes: ``python probe_ranks.py TASK FOLDER``.

Every rank writes what it measured, or how it failed, to ``FOLDER/RANK.json``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

from charm_sched.errors import RuntimeFailure
from charm_sched.probing.whole_machine import Traffic
from charm_sched.runtime import probe

RANKS = 3
PAIRS = {
    "alone": ((0, 2),),
    "both ways": ((0, 1), (1, 0)),
    "all at once": ((0, 1), (1, 2), (2, 0)),
    "fan": ((0, 1), (0, 2), (1, 2)),
}
TRAFFIC = [
    Traffic(name=name, role="tier", pairs=pairs, sizes=(1 << 10, 1 << 16))
    for name, pairs in PAIRS.items()
]


def stand_in_for_nccl() -> None:
    """Let the way of NCCL, one group and batches, go over gloo."""
    new_group = dist.new_group

    def group(*args: Any, backend: str, **options: Any) -> Any:
        return new_group(*args, backend="gloo", **options)

    dist.new_group = group
    probe._own_gpu = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda: None


def die_later() -> None:
    """Let this process end in the second traffic."""
    time = probe._Ranks.time

    def end(self: probe._Ranks, traffic: Traffic, size: int) -> float:
        if traffic is TRAFFIC[1]:
            os._exit(3)
        return time(self, traffic, size)

    probe._Ranks.time = end  # type: ignore[method-assign]


def one_rank(task: str, rank: int, folder: Path) -> None:
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=20)
    )
    if task == "batches":
        stand_in_for_nccl()
    if task == "death" and rank == 1:
        die_later()
    try:
        backend = "nccl" if task == "batches" else "gloo"
        found: Any = probe.measure(TRAFFIC, backend=backend, repeat=2, timeout=5.0)
        probe.gather(found)
    except RuntimeFailure as failure:
        found = str(failure)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # without waiting for connections to peers that are gone


def main() -> None:
    task, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    forked = multiprocessing.get_context("fork")
    ranks = [forked.Process(target=one_rank, args=(task, r, folder)) for r in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)


if __name__ == "__main__":
    main()
