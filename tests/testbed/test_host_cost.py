"""What an op costs the processors: measured without what preparing the plan takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from charm_sched.plans.plan import TRANSFER, Plan

pytest.importorskip("torch")
from charm_sched.runtime.host_cost import measure_host_cost
from charm_sched.runtime.lab import Lab

PREPARING, MESSAGE, KERNEL = 7e-4, 2e-4, 3e-5  # seconds of processor per op
DISTURBED = 4  # the run that something else makes dearer


class Ranks:
    """Eight ranks whose processor time is known."""

    num_ranks = 8

    def __init__(self) -> None:
        self.spent = [1.0] * self.num_ranks
        self.runs = 0

    def run(
        self, plan: Plan, seconds: Sequence[Sequence[float]], *, repeat: int, warm: int,
        timeout: float,
    ) -> None:  # fmt: skip
        assert [list(each) for each in seconds] == [[0.0] * len(plan)]
        is_message = (plan.columns.op == TRANSFER).all()
        per_run = MESSAGE if is_message else KERNEL
        self.runs += 1
        for rank in (0, 1):  # others have nothing to do
            self.spent[rank] += len(plan) / 2 * (PREPARING + (warm + repeat) * per_run)
            self.spent[rank] += 10.0 if self.runs == DISTURBED else 0.0

    def call(self, work: Callable[[], float], *, patience: float) -> list[float]:
        return list(self.spent)


def test_preparing_a_plan_is_no_cost_of_its_ops() -> None:
    found = measure_host_cost(cast("Lab", Ranks()))
    cores = os.cpu_count() or 1
    assert found.message == pytest.approx(MESSAGE / cores)
    assert found.kernel == pytest.approx(KERNEL / cores)
