"""Building and proving plans grows with the number of operations, not with its square."""

from __future__ import annotations

import time

import pytest
from support import cases

from charm_sched.proof.verifier import verify


def seconds(strategy: str, ranks: int, params: dict[str, object]) -> tuple[float, int]:
    """Give the best time of building and verifying a forward plan, and its operations."""
    best, count = float("inf"), 0
    for _ in range(3):
        start = time.perf_counter()
        plan = cases.made(strategy, ranks, cases.small_workload(4 * ranks), params=params)
        verify(plan)
        best, count = min(best, time.perf_counter() - start), len(plan)
    return best, count


@pytest.mark.benchmark
@pytest.mark.parametrize("strategy", ["ring", "charm"])
def test_time_per_operation_does_not_grow(strategy: str) -> None:
    def tree(ranks: int) -> dict[str, object]:
        nodes = [list(range(i, i + 8)) for i in range(0, ranks, 8)]
        return {"domains": nodes} if strategy == "charm" else {}

    small, few = seconds(strategy, 64, tree(64))
    large, many = seconds(strategy, 256, tree(256))
    assert many / few > 12
    assert (large / many) / (small / few) < 3
