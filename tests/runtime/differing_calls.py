"""What the tasks of `ranks` share, and its tasks in which ranks call differently."""

from __future__ import annotations

import time
from typing import Any

import attention_cases as cases
import torch
from custom_planners import query_moving, scattered

from charm_sched.plans.plan import Schedule
from charm_sched.runtime import attention, shard, unshard
from charm_sched.runtime.recording import Recorder
from charm_sched.workload import Workload

PLANNERS = {"query_moving": query_moving, "scattered": scattered}
WAIT = 20.0


def make(case: dict[str, Any], ranks: int) -> tuple[Workload, Schedule]:
    """Make the schedule that a case describes."""
    work = Workload(**case["workload"])
    planner = PLANNERS.get(case["planner"], case["planner"])
    return work, cases.make_schedule(planner, work, case["partition"], ranks, case.get("params"))


def run(schedule: Schedule, tensors: tuple[torch.Tensor, ...], **options: Any) -> cases.Results:
    """Run forward and backward on this rank's shard; give whole results."""
    q, k, v, dout = (shard(x, schedule) for x in tensors)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = attention(*inputs, plan=schedule, timeout=WAIT, **options)
    out.backward(dout)
    found = [out, *(x.grad for x in inputs)]
    return tuple(unshard(x, schedule) for x in found)  # type: ignore[return-value]


def simple(ranks: int, partition: str = "zigzag", **other: Any) -> tuple[Workload, Schedule]:
    shape = {"seq_len": 4 * ranks, "heads": 2, "head_dim": 4, "dtype": "fp64"}
    return make({"workload": shape | other, "planner": "ring", "partition": partition}, ranks)


def agreed_before(rank: int, ranks: int, what: str) -> None:
    """Run two combinations on all ranks, then one here and the other there."""
    work, schedule = simple(ranks, partition="contiguous", mask="full")
    q, k, v, dout = (shard(x, schedule) for x in cases.make_tensors(work))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    causal = Schedule(
        forward=schedule.forward.rebind("causal"), backward=schedule.backward.rebind("causal")
    )
    combinations: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "plan": ({"plan": schedule}, {"plan": causal}),
        "scale": ({"softmax_scale": 0.5}, {"softmax_scale": 0.25}),
        "backend": ({"backend": "reference"}, {"backend": "cpu_flash"}),
        "recorder": ({"recorder": Recorder()}, {}),
    }
    settings = {"plan": schedule, "timeout": WAIT}
    if what == "gradient":
        for needed in (True, False, rank == 0):
            with torch.set_grad_enabled(needed):
                attention(*inputs, **settings)
    elif what == "backward":
        outs = [attention(*inputs, **settings) for _ in range(2)]
        outs[rank == 0].backward(dout)
    else:
        first, second = combinations[what]
        for chosen in (first, second, first if rank == 0 else second):
            attention(*inputs, **settings | chosen)


def cannot(rank: int, ranks: int, what: str) -> list[str]:
    """Let rank 1 call wrongly, after a good call; then all call well again."""
    work, schedule = simple(ranks)
    q, k, v, _ = (shard(x, schedule) for x in cases.make_tensors(work))
    good: dict[str, Any] = {"q": q, "plan": schedule, "timeout": WAIT}
    wrong: dict[str, dict[str, Any]] = {
        "shape": {"q": q[:, :, 1:]},
        "dtype": {"q": q.float()},
        "no q": {"q": None},
        "backend": {"backend": "none"},
        "backend type": {"backend": 3},
        "backward plan": {"plan": schedule.backward},
        "no plan": {"plan": None},
        "scale type": {"softmax_scale": "half"},
        "scale nan": {"softmax_scale": float("nan")},
        "scale 0": {"softmax_scale": 0.0},
        "scale negative": {"softmax_scale": torch.tensor(-1.0)},
        "bug": {"plan": _Raising()},
    }
    attention(k=k, v=v, **good)
    began, said = time.monotonic(), ""
    try:
        attention(k=k, v=v, **good | (wrong[what] if rank == 1 else {}))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    took = time.monotonic() - began
    assert took < WAIT / 2, took
    attention(k=k, v=v, **good)
    return [said]


class _Raising(Schedule):
    """A schedule whose first use fails in a way that nobody foresaw."""

    def __init__(self) -> None:
        pass

    @property
    def forward(self) -> Any:
        raise KeyError("unforeseen")
