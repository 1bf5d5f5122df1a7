"""What the executor costs: per op, in memory, and beside a ring written by hand."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from benchmarks import ring_side_by_side, runtime_cost
from torch.utils._python_dispatch import TorchDispatchMode

from charm_sched.runtime.memory import Slots
from charm_sched.runtime.prepare import prepare

STRATEGIES = ("ring", "charm", "mesh", "ulysses", "all_gather")
MOST = 30  # additions of a few numbers per op: a microsecond each, where 30 us were asked for
SLOWER = 1.1


def seconds_of_an_addition() -> float:
    """Give what the smallest tensor operation costs here, at best."""
    some, more, least = torch.zeros(16), torch.ones(16), float("inf")
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(200):
            some.add_(more)
        least = min(least, (time.perf_counter() - start) / 200)
    return least


@pytest.mark.benchmark
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_op_costs_little(strategy: str) -> None:
    """The fastest of many runs: others are made slower by what else the machine does."""
    torch.set_num_threads(1)
    for plan in runtime_cost.plans(strategy, 16):
        most = MOST * seconds_of_an_addition()
        assert runtime_cost.cost_of(plan, repeat=60).least <= most, plan.direction


class Counter(TorchDispatchMode):
    """Counts operators that make a new tensor out of nothing."""

    NAMES = ("aten.empty", "aten.zeros", "aten.full", "aten.ones", "aten.new_", "aten.clone")

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if str(func).startswith(self.NAMES):
            self.made.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_is_allocated_once_a_plan_has_run(strategy: str) -> None:
    """Slots and messages are there; what a call returns is made before and after its pass."""
    for plan in runtime_cost.plans(strategy, 6):
        program = prepare(plan, 0)
        slots = Slots(program.slots)
        counts = []
        for _ in range(3):
            execution = runtime_cost.set_up(plan, program, slots)
            with Counter() as counter:
                runtime_cost.Nowhere().drive(execution)
            counts.append(len(counter.made))
        assert counts[0] > 0
        assert counts[1:] == [0, 0], counter.made


@pytest.mark.benchmark
@pytest.mark.distributed
@pytest.mark.slow
def test_a_ring_is_as_fast_as_one_by_hand() -> None:
    found = ring_side_by_side.measure("large")
    assert found.difference < 1e-5
    assert found.ours <= SLOWER * found.by_hand, found
    if found.torch is not None:
        assert found.ours <= SLOWER * found.torch, found
