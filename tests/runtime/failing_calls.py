"""Tasks of `ranks` in which something breaks, and one in which an input holds NaN."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import attention_cases as cases
import torch
from differing_calls import WAIT, make, simple

from charm_sched.errors import CharmSchedError
from charm_sched.runtime import attention, memory, shard, unshard


def no_memory(rank: int, ranks: int) -> list[str]:
    """Let rank 1 have no memory for a buffer, then enough."""
    work, schedule = simple(ranks)
    q, k, v, _ = (shard(x, schedule) for x in cases.make_tensors(work))
    made = memory.Slots._made

    def refuse(self: Any, nbytes: int, what: str) -> Any:
        return made(self, 1 << 60, what)

    said = ""
    if rank == 1:
        memory.Slots._made = refuse  # type: ignore[method-assign]
    try:
        attention(q, k, v, plan=schedule, timeout=WAIT)
    except CharmSchedError as error:
        said = str(error)
    memory.Slots._made = made  # type: ignore[method-assign]
    attention(q, k, v, plan=schedule, timeout=WAIT)
    return [said]


def no_memory_late(rank: int, ranks: int) -> None:
    """Let rank 1 run out of memory when a message is to be packed, in the middle of a pass."""
    work, schedule = simple(ranks)
    q, k, v, _ = (shard(x, schedule) for x in cases.make_tensors(work))
    if rank == 1:

        def refuse(self: Any, nbytes: int, lane: int) -> Any:
            return self._made(1 << 60, f"a message of stream {lane}")

        memory.Slots.lend = refuse  # type: ignore[method-assign]
    try:
        attention(q, k, v, plan=schedule, timeout=2.0)
    finally:
        time.sleep(1.5)


def killed_in_backward(rank: int, ranks: int) -> None:
    """Let the last rank be killed from outside while the backwards run."""
    shape = {"seq_len": 64 * ranks, "heads": 2, "head_dim": 8, "dtype": "fp64"}
    work, schedule = make(
        {"workload": shape, "planner": "charm", "partition": "zigzag", "params": {}}, ranks
    )
    q, k, v, dout = (shard(x, schedule) for x in cases.make_tensors(work))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    torch.autograd.grad(attention(*inputs, plan=schedule, timeout=WAIT), inputs, dout)
    if rank == ranks - 1:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        out = attention(*inputs, plan=schedule, timeout=3.0)
        torch.autograd.grad(out, inputs, dout)


def not_a_number(rank: int, ranks: int, where: str) -> list[list[int]]:
    """Put NaN into one row; give the rows of the output that hold NaN, and those of dense."""
    shape = {"seq_len": 8 * ranks, "heads": 2, "head_dim": 4, "dtype": "fp64", "mask": "window:5"}
    work, schedule = make(
        {"workload": shape, "planner": "charm", "partition": "zigzag", "params": {}}, ranks
    )
    q, k, v, dout = cases.make_tensors(work)
    {"q": q, "k": k}[where][:, :, 11] = torch.nan
    parts = (shard(x, schedule) for x in (q, k, v))
    with torch.no_grad():
        out = unshard(attention(*parts, plan=schedule, timeout=WAIT), schedule)
    exact = cases.dense_attention(work, q, k, v, dout)[0]
    return [rows.isnan().any(-1).any(1)[0].nonzero().flatten().tolist() for rows in (out, exact)]
