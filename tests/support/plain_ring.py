"""Ring-Attention's traffic, written by hand with torch.distributed: what our executor must match.

The loops do what public implementations do, and nothing else: no plan, no check, no threads.
Kernels are sleeps, as in a paced pass.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

from charm_sched.testbed import Testbed

HEAD_START = 0.02  # seconds from agreeing on a start to the start
PATIENCE = 120.0  # seconds for all repetitions
Loop = Callable[[int, int, int, float, Any], None]


def forward(rank: int, ranks: int, size: int, kernel: float, gradients: Any) -> None:
    """Send what is held to the right while attending to it."""
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    held, spare = (torch.zeros(size, dtype=torch.uint8) for _ in range(2))
    for step in range(ranks):
        works: list[Any] = []
        if step < ranks - 1:
            works = [dist.irecv(spare, left), dist.isend(held, right)]
        time.sleep(kernel)
        for work in works:
            work.wait()
        held, spare = spare, held


def backward(rank: int, ranks: int, size: int, kernel: float, gradients: Any) -> None:
    """The same, and gradients of twice the size travel behind on a group of their own."""
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    held, spare = (torch.zeros(size, dtype=torch.uint8) for _ in range(2))
    own, travels, arrives = (torch.zeros(size // 2, dtype=torch.float32) for _ in range(3))
    back: list[Any] = []
    for step in range(ranks):
        works: list[Any] = []
        if step < ranks - 1:
            works = [dist.irecv(spare, left), dist.isend(held, right)]
        time.sleep(kernel)
        for work in back:
            work.wait()
        travels, arrives = arrives, travels
        travels.add_(own)
        back = [
            dist.irecv(arrives, left, group=gradients),
            dist.isend(travels, right, group=gradients),
        ]
        for work in works:
            work.wait()
        held, spare = spare, held
    for work in back:
        work.wait()


def plain_ring(
    bed: Testbed, devices: Sequence[str], loop: Loop, *, size: int, kernel: float, repeat: int
) -> list[float]:
    """Run a loop on a network, once to warm up and then ``repeat`` times.

    Args:
        bed: The network.
        devices: Device of each rank.
        loop: `forward` or `backward`.
        size: Bytes of one rank's keys and values.
        kernel: Seconds of one attend.
        repeat: Timed runs.

    Returns:
        Seconds of each run, from the common start to the last rank's end.
    """
    forked = multiprocessing.get_context("fork")
    ends, processes = [], []
    with tempfile.TemporaryDirectory(prefix="charm-ring-") as folder:
        for rank, device in enumerate(devices):
            mine, theirs = forked.Pipe()
            process = forked.Process(
                target=_rank,
                args=(theirs, bed, device, rank, len(devices), folder, loop, size, kernel, repeat),
                daemon=True,
            )
            process.start()
            theirs.close()
            ends.append(mine)
            processes.append(process)
        try:
            found = [end.recv() for end in ends if end.poll(PATIENCE)]
        finally:
            for process in processes:
                process.kill()
                process.join()
    assert len(found) == len(devices), "a rank did not answer"
    return [max(times) for times in zip(*found, strict=True)][1:]


def _rank(
    end: Connection,
    bed: Testbed,
    device: str,
    rank: int,
    ranks: int,
    folder: str,
    loop: Loop,
    size: int,
    kernel: float,
    repeat: int,
) -> None:
    bed.enter(device)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = bed.interfaces(device)[0]
    store = FileStore(str(Path(folder) / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    gradients = dist.new_group(list(range(ranks)), backend="gloo")
    times = []
    for _ in range(repeat + 1):
        dist.barrier()
        zero = torch.tensor([time.monotonic() + HEAD_START], dtype=torch.float64)
        dist.broadcast(zero, 0)
        time.sleep(max(0.0, zero.item() - time.monotonic()))
        loop(rank, ranks, size, kernel, gradients)
        times.append(time.monotonic() - zero.item())
    end.send(times)
    time.sleep(PATIENCE)  # until the parent ends us: nobody's connection closes early
