"""Measuring what messages and kernels cost the processors that all ranks of a testbed share.

Counted is the processor time of the ranks themselves, so that what else runs here does not matter.
"""

from __future__ import annotations

import os
import statistics
import time

from charm_sched.partition import Partition
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.runtime.lab import Lab
from charm_sched.testbed.host_cost import HostCost
from charm_sched.workload import Workload

_OPS = 400  # of a plan: two ranks, half of it each
_RUNS = 10
_TRIES = 3


def measure_host_cost(lab: Lab, *, timeout: float = 60.0) -> HostCost:
    """Measure what a message and a paced kernel cost, with the first two ranks.

    Args:
        lab: Two ranks or more.
        timeout: Seconds that a transfer may take.

    Raises:
        LabFailure: The ranks failed.
    """
    return HostCost(
        message=_per_op(lab, _messages(lab.num_ranks), timeout),
        kernel=_per_op(lab, _kernels(lab.num_ranks), timeout),
    )


def _per_op(lab: Lab, plan: Plan, timeout: float) -> float:
    """Give the seconds of the whole machine per op, without what preparing the plan takes.

    That is what more runs of a prepared plan take more than one. The median of a few tries, after
    one that is not counted: what else happens on the machine makes single ones dearer.
    """

    def spent(repeat: int) -> float:
        before = sum(lab.call(time.process_time, patience=timeout)[:2])
        lab.run(plan, [[0.0] * len(plan)], repeat=repeat, warm=0, timeout=timeout)
        return float(sum(lab.call(time.process_time, patience=timeout)[:2]) - before)

    spent(1)
    once, often = (
        statistics.median(spent(repeat) for _ in range(_TRIES)) for repeat in (1, 1 + _RUNS)
    )
    return max(0.0, often - once) / _RUNS / len(plan) / (os.cpu_count() or 1)


def _builder(ranks: int) -> Builder:
    rows = ranks * _OPS // 2
    work = Workload(seq_len=rows, heads=1, kv_heads=1, head_dim=64, dtype="fp32", mask="full")
    return Builder(work, Partition.contiguous(rows, ranks))


def _rows(b: Builder, number: int) -> list[int]:
    """Give one key of each of the first two ranks."""
    firsts = [rank * _OPS // 2 + number for rank in (0, 1)]
    return [b.item("kv", ((first, first + 1),)) for first in firsts]


def _messages(ranks: int) -> Plan:
    """Give a plan in which two ranks send each other one row after another."""
    b = _builder(ranks)
    for level in range(_OPS // 2):
        b.transfer(
            src=[0, 1], dst=[1, 0], items=_rows(b, level), level=level, stream="wire", slot=0
        )
    return b.build("messages")


def _kernels(ranks: int) -> Plan:
    """Give a plan in which two ranks attend to one row after another."""
    b = _builder(ranks)
    queries = b.shards("q")[:2]
    for number in range(_OPS // 2):
        b.attend(rank=[0, 1], queries=queries, keys=_rows(b, number))
    return b.build("kernels")


__all__ = ["measure_host_cost"]
