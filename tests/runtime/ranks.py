"""Runs one task on several real processes: ``python ranks.py TASK WORLD FOLDER [NAME=VALUE...]``.

torch is imported once and the ranks are forked, which is much faster than importing it in each.
Every rank writes what its task returns, or how it failed, to ``FOLDER/RANK.json``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import attention_cases as cases
from composed_calls import changing_masks, composed, meshed, refused_masks
from differing_calls import PLANNERS, WAIT, agreed_before, cannot, make, run, simple
from failing_calls import killed_in_backward, no_memory, no_memory_late, not_a_number
from queued_runs import hangs, queued

from charm_sched.errors import CharmSchedError
from charm_sched.plans.plan import Schedule
from charm_sched.runtime import attention, compute, shard, unshard
from charm_sched.runtime.execution import Execution
from charm_sched.runtime.gloo import GlooTransport
from charm_sched.runtime.recording import Recorder


def exactness(rank: int, ranks: int, listed: str) -> list[dict[str, float]]:
    """Give the errors of every case against dense attention; rank 0 compares."""
    found = []
    for case in json.loads(Path(listed).read_text()):
        work, schedule = make(case, ranks)
        tensors = cases.make_tensors(work)
        results = run(schedule, tensors)
        exact = cases.dense_attention(work, *tensors) if rank == 0 else results
        found.append(cases.errors(results, exact))
    return found


def repeatability(rank: int, ranks: int) -> list[str]:
    """Give a digest of the results of several runs with random delays."""
    delay_arrivals(rank)
    digests = []
    for planner in ("ring", "charm", "scattered"):
        if planner not in (*PLANNERS, *cases.PLANNERS):
            continue
        params = {"seed": 7} if planner == "scattered" else {}
        work, schedule = make(
            {
                "workload": {"seq_len": 61, "heads": 4, "kv_heads": 2, "head_dim": 8,
                             "dtype": "fp32"},
                "planner": planner, "partition": "zigzag", "params": params,
            },
            ranks,
        )  # fmt: skip
        tensors = cases.make_tensors(work)
        for _ in range(4):
            digest = hashlib.sha256()
            for result in run(schedule, tensors):
                digest.update(result.contiguous().numpy().tobytes())
            digests.append(f"{planner} {digest.hexdigest()}")
    return digests


def delay_arrivals(seed: int) -> None:
    """Let transfers seem to end in a random order."""
    draw, follow = random.Random(seed), GlooTransport._follow

    def slow(self: GlooTransport, post: Any, done: Any) -> None:
        pause = draw.random() * 0.01

        def late(error: Exception | None) -> None:
            time.sleep(pause)
            done(error)

        follow(self, post, late)

    GlooTransport._follow = slow  # type: ignore[method-assign]


def mismatch(rank: int, ranks: int) -> None:
    """Let rank 1 have another plan."""
    work, schedule = simple(ranks, mask="full" if rank == 1 else "causal")
    run(schedule, cases.make_tensors(work))


def odd_scale(rank: int, ranks: int) -> None:
    work, schedule = simple(ranks)
    run(schedule, cases.make_tensors(work), softmax_scale=0.5 if rank == 0 else 0.25)


def own_scale(rank: int, ranks: int) -> dict[str, float]:
    """Override the softmax scale, alike on all ranks."""
    work, schedule = simple(ranks)
    tensors = cases.make_tensors(work)
    found = run(schedule, tensors, softmax_scale=0.123)
    return cases.errors(found, cases.dense_attention(work, *tensors, scale=0.123))


def bad_shape(rank: int, ranks: int) -> None:
    """Let rank 2 come with one token less."""
    work, schedule = simple(ranks)
    q, k, v, _ = (shard(x, schedule) for x in cases.make_tensors(work))
    attention(q[:, :, 1:] if rank == 2 else q, k, v, plan=schedule, timeout=WAIT)


def needs_backward(rank: int, ranks: int) -> None:
    work, schedule = simple(ranks)
    q, k, v, _ = (shard(x, schedule) for x in cases.make_tensors(work))
    with torch.no_grad():
        attention(q.requires_grad_(), k, v, plan=schedule.forward, timeout=WAIT)
    attention(q, k, v, plan=schedule.forward, timeout=WAIT)


def wrong_size(rank: int, ranks: int) -> None:
    work, schedule = simple(ranks + 1)
    q, k, v, _ = (shard(x, schedule) for x in cases.make_tensors(work))
    attention(q, k, v, plan=schedule, timeout=WAIT)


def wrong_dtype(rank: int, ranks: int) -> None:
    work, schedule = simple(ranks)
    q, k, v, _ = (shard(x, schedule).float() for x in cases.make_tensors(work))
    attention(q, k, v, plan=schedule, timeout=WAIT)


def bad_plan(rank: int, ranks: int) -> None:
    """Run a plan that leaves out what another mask shows."""
    _, schedule = simple(ranks, partition="contiguous")
    wider = Schedule(
        forward=schedule.forward.rebind("full"), backward=schedule.backward.rebind("full")
    )
    run(wider, cases.make_tensors(wider.forward.workload))


def killed(rank: int, ranks: int) -> None:
    """Let rank 1 die in the second run."""
    second_run(rank, ranks, lambda: break_kernel(die))


def silent(rank: int, ranks: int) -> None:
    """Let rank 1 hang in the second run, longer than the timeout of the others."""
    second_run(rank, ranks, lambda: hold_transfers(6))


def broken(rank: int, ranks: int) -> None:
    """Let the kernel of rank 1 fail."""

    def fail(*args: Any) -> None:
        raise ValueError("the kernel broke")

    try:
        second_run(rank, ranks, lambda: break_kernel(fail))
    finally:
        time.sleep(3)  # the others must learn of it though this process lives on


def killed_between(rank: int, ranks: int) -> None:
    second_run(rank, ranks, die)


def silent_between(rank: int, ranks: int) -> None:
    second_run(rank, ranks, lambda: time.sleep(6))


def die(*args: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hold_transfers(seconds: float) -> None:
    post = Execution.post

    def late(*args: Any) -> None:
        time.sleep(seconds)
        post(*args)

    Execution.post = late  # type: ignore[method-assign]


def break_kernel(instead: Callable[..., None]) -> None:
    compute.attend_forward = instead


def second_run(rank: int, ranks: int, before: Callable[[], None]) -> None:
    work, schedule = simple(ranks)
    q, k, v, _ = (shard(x, schedule) for x in cases.make_tensors(work))
    attention(q, k, v, plan=schedule, timeout=2.0)
    if rank == 1:
        before()
    attention(q, k, v, plan=schedule, timeout=2.0)


def again(rank: int, ranks: int) -> None:
    """Use a group after it has failed; a rank may have ended its own part before."""
    with contextlib.suppress(CharmSchedError):
        broken(rank, ranks)
    work, schedule = simple(ranks)
    run(schedule, cases.make_tensors(work))


def later_timeout(rank: int, ranks: int) -> None:
    """Let a call have a shorter timeout than the first; rank 1 is late for its transfers."""
    work, schedule = simple(ranks)
    q, k, v, _ = (shard(x, schedule) for x in cases.make_tensors(work))
    attention(q, k, v, plan=schedule, timeout=WAIT)
    if rank == 1:
        hold_transfers(2)
    attention(q, k, v, plan=schedule, timeout=WAIT if rank == 1 else 0.3)


def tiny_timeout(rank: int, ranks: int) -> None:
    work, schedule = simple(ranks)
    q, k, v, _ = (shard(x, schedule) for x in cases.make_tensors(work))
    attention(q, k, v, plan=schedule, timeout=WAIT)
    if rank == 1:
        time.sleep(2)
    attention(q, k, v, plan=schedule, timeout=1e-5)


def barrier(rank: int, ranks: int) -> None:
    """Let rank 1 stay away from the barrier of a record."""
    work, schedule = simple(ranks)
    q, k, v, _ = (shard(x, schedule) for x in cases.make_tensors(work))
    recorder = Recorder()
    attention(q, k, v, plan=schedule, timeout=2.0, recorder=recorder)
    if rank == 1:
        recorder.begin = lambda *args: time.sleep(7)  # type: ignore[assignment, return-value]
    attention(q, k, v, plan=schedule, timeout=2.0, recorder=recorder)


def timeline(rank: int, ranks: int) -> dict[str, Any]:
    """Record both passes; give what rank 0 sees."""
    work, schedule = simple(ranks, seq_len=400)
    recorder = Recorder()
    run(schedule, cases.make_tensors(work), recorder=recorder)
    lines = recorder.timelines()
    return {
        "passes": [line.plan.direction for line in lines],
        "sources": [line.source for line in lines],
        "starts": [line.start.tolist() for line in lines],
        "ends": [line.end.tolist() for line in lines],
        "expected": [len(plan) for plan in schedule.plans],
    }


def two_layers(rank: int, ranks: int) -> list[dict[str, float]]:
    """Run two forwards before their backwards, with keys and values that stay resident."""
    shape = {"seq_len": 8 * ranks, "heads": 2, "head_dim": 4, "dtype": "fp64"}
    work, schedule = make(
        {"workload": shape, "planner": "charm", "partition": "zigzag", "params": {"save": True}},
        ranks,
    )
    layers = []
    for seed in range(2):
        tensors = cases.make_tensors(work, seed)
        q, k, v, dout = (shard(x, schedule) for x in tensors)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        layers.append((tensors, inputs, dout, attention(*inputs, plan=schedule, timeout=WAIT)))
    found = []
    for tensors, inputs, dout, out in layers:
        results = [out, *torch.autograd.grad(out, inputs, dout)]
        whole = [unshard(x, schedule) for x in results]
        found.append(cases.errors(whole, cases.dense_attention(work, *tensors)))
    return found


def groups(rank: int, ranks: int) -> dict[str, float]:
    """Run on the upper half of the ranks alone, in a group of its own."""
    members = list(range(ranks // 2, ranks))
    group = dist.new_group(members)
    if rank not in members:
        dist.barrier()
        return {}
    work, schedule = simple(len(members))
    tensors = cases.make_tensors(work)
    q, k, v, dout = (shard(x, schedule, group=group) for x in tensors)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = attention(*inputs, plan=schedule, group=group, timeout=WAIT)
    gradients = torch.autograd.grad(out, inputs, dout)
    found = [unshard(x, schedule, group=group) for x in (out, *gradients)]
    dist.barrier()
    return cases.errors(found, cases.dense_attention(work, *tensors))


_TASKS_ELSEWHERE = (
    agreed_before, cannot, changing_masks, composed, hangs, killed_in_backward, meshed, no_memory,
    no_memory_late, not_a_number, queued, refused_masks,
)  # fmt: skip


def one_rank(task: str, rank: int, ranks: int, folder: Path, options: dict[str, str]) -> None:
    torch.set_num_threads(1)
    began = time.monotonic()
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks,
            timeout=timedelta(seconds=30),
        )  # fmt: skip
        if task not in globals():
            globals().update(vars(importlib.import_module("training_calls")))
        report = {"result": globals()[task](rank, ranks, **options)}
    except CharmSchedError as error:
        report = {"error": str(error), "kind": type(error).__name__}
    report["seconds"] = time.monotonic() - began  # of work, imports left out
    (folder / f"{rank}.json").write_text(json.dumps(report))


def main() -> None:
    """Fork the ranks and wait for them."""
    task, ranks, folder, *options = sys.argv[1:]
    named = dict(option.split("=", 1) for option in options)
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=one_rank, args=(task, rank, int(ranks), Path(folder), named))
        for rank in range(int(ranks))
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + 90
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0))
    for process in processes:
        if process.is_alive():
            process.kill()


if __name__ == "__main__":
    main()
