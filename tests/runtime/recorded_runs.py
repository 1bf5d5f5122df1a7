"""Runs of whole schedules on recording devices, one thread per rank."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import attention_cases as cases
import torch
from support.recording_device import Post, RecordedGroups, RecordingDevice

from charm_sched.plans.plan import Plan, Schedule
from charm_sched.proof.hazards import find_hazards
from charm_sched.runtime.kernels import Reference
from charm_sched.runtime.memory import Slots
from charm_sched.runtime.passes import Worker, set_up_backward, set_up_forward
from charm_sched.runtime.prepare import prepare
from charm_sched.runtime.sharding import join, shard
from charm_sched.runtime.streams import Script, StreamCarrier, StreamPool

Change = Callable[[Script], None]


class Opaque:
    """A kernel as one access: what it does inside is tested where kernels are."""

    def __init__(self, kernel: Any, device: RecordingDevice) -> None:
        self._kernel, self._device, self.name = kernel, device, kernel.name

    def forward(self, *tensors: torch.Tensor, **options: Any) -> Any:
        return self._device.whole(self._kernel.forward, *tensors, **options)

    def backward(self, *tensors: torch.Tensor, **options: Any) -> Any:
        return self._device.whole(self._kernel.backward, *tensors, **options)


class Rank:
    """One rank: its device, its communicators, and its prepared plans."""

    def __init__(self, rank: int, post: Post) -> None:
        self.rank = rank
        self.device = RecordingDevice()
        self.groups = RecordedGroups(self.device, post, rank)
        self.pool = StreamPool(self.device, lambda count: None)
        self.prepared: dict[int, tuple[Script, Slots]] = {}

    def worker(self, plan: Plan, change: Change | None) -> tuple[Worker, StreamCarrier]:
        if id(plan) not in self.prepared:
            hazards = find_hazards(plan)
            program = prepare(plan, self.rank, hazards)
            script = Script(program, hazards)
            if change is not None:
                change(script)
            self.prepared[id(plan)] = script, Slots(program.slots)
        script, slots = self.prepared[id(plan)]
        slots.fill()
        carrier = StreamCarrier(script, self.pool, self.groups)
        worker = Worker(
            program=script.program, slots=slots, transport=carrier, memory=carrier.memory
        )
        return worker, carrier

    def run(self, schedule: Schedule, tensors: Any, change: Change | None) -> list[Any]:
        """Run forward and backward; what the caller drops is given back at once."""
        forward, backward = schedule.plans
        scale = forward.workload.scale
        kernel = Opaque(Reference(), self.device)
        q, k, v, dout = (shard(x, schedule, rank=self.rank).clone() for x in tensors)
        self.device.adopt(q, k, v, dout)
        with self.device.recording():
            worker, carrier = self.worker(forward, change)
            first = set_up_forward(worker, q, k, v, kernel=kernel, scale=scale)
            carrier.drive(first.execution)
            out, lse, residents = first.result()
            del first
            worker, carrier = self.worker(backward, change)
            second = set_up_backward(
                worker, (q, k, v, out, lse, dout), kernel=kernel, scale=scale, residents=residents
            )
            carrier.drive(second.execution)
            results = [out, *second.result()]
            del second, residents, worker, carrier, lse
        self.device.check()
        return results


def run_recorded(
    schedule: Schedule,
    tensors: cases.Results,
    *,
    change: Change | None = None,
    repeat: int = 1,
    ranks: list[Rank] | None = None,
) -> cases.Results:
    """Run a schedule on recording devices; give whole results.

    Args:
        schedule: The plans.
        tensors: Whole q, k, v and the gradient of the output.
        change: Changes a rank's script before it is run.
        repeat: How often it is run.
        ranks: Filled with the ranks.
    """
    post = Post(schedule.forward.num_ranks)
    crew = [Rank(rank, post) for rank in range(post.ranks)]
    if ranks is not None:
        ranks.extend(crew)
    found: list[Any] = [None] * post.ranks
    problems: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            for _ in range(repeat):
                found[rank] = crew[rank].run(schedule, tensors, change)
        except BaseException as problem:
            problems.append(problem)
            post.give_up(f"rank {rank} failed")

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(post.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    out, dq, dk, dv = (join(list(column), schedule) for column in zip(*found, strict=True))
    return out, dq, dk, dv
