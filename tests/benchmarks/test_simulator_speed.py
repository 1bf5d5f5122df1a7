"""How simulating scales: ratios of times of one run, never seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from charm_sched.cost import Costs, op_seconds
from charm_sched.partition import Partition
from charm_sched.planners.ring import ring
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.simulator import engine, simulate
from charm_sched.topology.graph import Topology
from charm_sched.workload import Workload

pytestmark = pytest.mark.benchmark


def ring_plan(ranks: int) -> Plan:
    topology = Topology.from_document(
        {
            "schema": "charm-sched/topology",
            "version": 1,
            "name": "star",
            "profiles": {
                "gpu": {
                    "peak": {"bf16": "100 TFLOP/s"},
                    "efficiency": 0.5,
                    "overhead": "5 us",
                    "memory_bandwidth": "1 TB/s",
                }
            },
            "kinds": {"wire": {"bandwidth": "50 GB/s", "latency": "1 us"}},
            "devices": [{"name": f"d0..{ranks - 1}", "profile": "gpu"}],
            "switches": [{"name": "hub", "kind": "switch"}],
            "links": [{"from": f"d0..{ranks - 1}", "to": "hub", "kind": "wire"}],
        }
    )
    work = Workload(seq_len=512 * ranks, mask="full")
    b = Builder(work, Partition.contiguous(work.seq_len, ranks), topology=topology,
                devices=topology.device_names)  # fmt: skip
    ring(b)
    return b.build("ring")


def best_of(runs: int, action: Callable[[], object]) -> float:
    seconds = []
    for _ in range(runs):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def test_time_grows_no_faster_than_ops_do() -> None:
    """From 32 to 128 ranks the ring has 16 times the ops; measured: 10 times the time."""
    small, large = ring_plan(32), ring_plan(128)
    simulate(small)
    ratio = best_of(3, lambda: simulate(large)) / best_of(3, lambda: simulate(small))
    assert ratio < 2 * len(large) / len(small)


def test_many_instants_of_few_ops_are_affordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random kernel durations give 30 times the instants; measured: 2 to 4 times the time."""
    plan = ring_plan(64)
    even = best_of(3, lambda: simulate(plan))

    def uneven(plan: Plan, topology: Topology) -> Costs:
        costs = op_seconds(plan, topology)
        factor = np.random.default_rng(0).uniform(0.5, 1.5, len(plan))
        return Costs(seconds=costs.seconds * factor, notes=costs.notes)

    monkeypatch.setattr(engine, "op_seconds", uneven)
    random = best_of(3, lambda: simulate(plan))
    assert random < 10 * even
