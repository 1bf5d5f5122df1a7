"""Tasks of `ranks` in which plans run under NCCL's rules, over gloo."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import attention_cases as cases
import torch
from differing_calls import make
from support.nccl_over_gloo import GlooGroups, HostDevice, Running

from charm_sched.plans.plan import Plan
from charm_sched.proof.hazards import find_hazards
from charm_sched.runtime import shard, unshard
from charm_sched.runtime.kernels import Reference
from charm_sched.runtime.memory import Slots
from charm_sched.runtime.passes import Worker, set_up_backward, set_up_forward
from charm_sched.runtime.prepare import prepare
from charm_sched.runtime.streams import Message, Script, StreamCarrier, StreamPool


def queued(rank: int, ranks: int, listed: str) -> list[dict[str, float]]:
    """Give the errors of every case against dense attention; rank 0 compares."""
    device = HostDevice()
    groups, pool = GlooGroups(device, 6, timeout=20.0), StreamPool(device, lambda count: None)

    def worker(plan: Plan) -> tuple[Worker, StreamCarrier]:
        hazards = find_hazards(plan)
        program = prepare(plan, rank, hazards)
        carrier = StreamCarrier(Script(program, hazards), pool, groups)
        slots = Slots(program.slots)
        return Worker(
            program=program, slots=slots, transport=carrier, memory=carrier.memory
        ), carrier

    found = []
    for case in json.loads(Path(listed).read_text()):
        work, schedule = make(case, ranks)
        tensors = cases.make_tensors(work)
        q, k, v, dout = (shard(x, schedule) for x in tensors)
        part, carrier = worker(schedule.forward)
        first = set_up_forward(part, q, k, v, kernel=Reference(), scale=work.scale)
        with Running(device):
            carrier.drive(first.execution)
        out, lse, residents = first.result()
        part, carrier = worker(schedule.backward)
        second = set_up_backward(
            part, (q, k, v, out, lse, dout), kernel=Reference(), scale=work.scale,
            residents=residents,
        )  # fmt: skip
        with Running(device):
            carrier.drive(second.execution)
        results = tuple(unshard(x, schedule) for x in (out, *second.result()))
        exact = cases.dense_attention(work, *tensors) if rank == 0 else results
        found.append(cases.errors(results, exact))
    return found


def hangs(rank: int, ranks: int, how: str) -> None:
    """Hand groups over in orders that hang."""
    device = HostDevice()
    groups = GlooGroups(device, 2, timeout=1.5)
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    sent, got = torch.zeros(1 << 20, dtype=torch.uint8), torch.zeros(1 << 20, dtype=torch.uint8)
    away, here = Message(sent, right, True, rank), Message(got, left, False, left)
    orders: dict[str, list[tuple[int, list[Message]]]] = {
        "apart": [(0, [away]), (0, [here])],  # everybody sends first, as single calls
        "crossed": [(0, [away]), (1, [here])] if rank % 2 else [(1, [away]), (0, [here])],
        "together": [(0, [away, here])],
    }
    try:
        _run(device, groups, orders[how], one_queue=how == "crossed")
    finally:
        time.sleep(1.5)  # a rank that ends closes its connections, which the others would see


def _run(device: Any, groups: GlooGroups, order: list[Any], *, one_queue: bool) -> None:
    for number, messages in order:
        groups.issue(number, messages).wait()
        event = device.current().record_event()
        if one_queue:  # what comes next waits for it, as with an event between communicators
            device.current().wait_event(event)
    device.current().wait_event(device.current().record_event())
