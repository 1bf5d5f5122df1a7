"""MagiAttention's H100 charts, predicted: what their baselines do, as plans of ours."""

from __future__ import annotations

import math
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np

from charm_sched.partition import Partition, split_rows
from charm_sched.planners.reverse_ring import reverse_ring
from charm_sched.planners.ring import ring
from charm_sched.planners.strategies import build, residents
from charm_sched.planners.ulysses import ulysses
from charm_sched.planners.usp import usp
from charm_sched.plans.plan import Plan
from charm_sched.simulator import simulate
from charm_sched.topology.graph import Topology
from tests.benchmarks.validation_cases import (
    CHART,
    DIM,
    NODE,
    PACKS,
    STRATEGIES,
    Case,
    cases,
    flops,
)
from tests.benchmarks.validation_kernels import Constants, copies, length_factor, tile_excess
from tests.benchmarks.validation_rings import many_rings

FITTED = ("full", "causal", "backward", "scatter")


def shards(case: Case) -> Partition:
    """Give the rows of each rank as the published code deals them out.

    Ulysses: contiguous. Rings and the all-gather: head and tail of the sequence, or of each
    document. Where heads are exchanged inside nodes, nodes are dealt rows so, and a node's ranks
    get equal runs of them.
    """
    work, ranks = case.workload, case.ranks
    if case.strategy == "ulysses" or case.name.startswith("full"):
        return Partition.contiguous(work.seq_len, ranks)
    dealt = ranks if case.strategy in ("ring", "all_gather") else ranks // NODE
    if case.documents:
        wide = Partition.per_document(case.documents, dealt)
    else:
        wide = Partition.zigzag(work.seq_len, dealt)
    if dealt == ranks:
        return wide
    runs = tuple(run for rows in wide.shards for run in split_rows(rows, NODE))
    return Partition("custom", work.seq_len, runs)


def plan_of(case: Case, topology: Topology) -> Plan:
    """Write the plan that is nearest to what the published code does."""
    head: dict[str, Any] = {"topology": topology, "devices": topology.device_names}
    work, rows = case.workload, shards(case)
    planner, params = {
        "ulysses": (ulysses, {"save": True}), "ring": (ring, {}),
        "all_gather": (many_rings, {}), "usp": (usp, {"degree": NODE, "save": True}),
        "loongtrain": (usp, {"degree": NODE, "save": True}),
    }[case.strategy]  # fmt: skip
    if case.direction == "forward":
        params = params | ({"save": False} if "save" in params else {})
        return build(planner, case.strategy, work, rows, direction="forward", params=params, **head)
    if case.strategy == "ring":
        planner = reverse_ring  # TransformerEngine's, which the benchmark has taken over
    saved: tuple[Any, ...] = ()
    if case.strategy != "all_gather":  # which gathers again
        ahead = build(
            planner, case.strategy, work, rows, direction="forward", params=params, **head
        )
        saved = residents(ahead)
    params = params | ({"save": False} if "save" in params else {})
    return build(
        planner, case.strategy, work, rows, direction="backward", params=params, saved=saved, **head
    )


@cache
def machine(
    nodes: int, full: float = 6e14, masked: float = 6e14, overhead: float = 0.0
) -> Topology:
    """Give nodes of eight H100 with a network card each.

    Links are those of the shipped `four_node_nvlink`: NVLink 370.8 GB/s (the constant of NCCL), 48
    GB/s per card (measured, NVIDIA/nccl-tests#290), the latencies of NCCL's cost model.

    Args:
        nodes: How many.
        full: FLOP/s of kernels without mask, either way.
        masked: Of kernels with one.
        overhead: Seconds that each kernel call takes besides.
    """
    rates = [
        {"direction": way, "head_dim": DIM, "causal": causal, "dtypes": ["bf16"],
         "rate": f"{rate / 1e12!r} TFLOP/s"}
        for way in ("forward", "backward")
        for causal, rate in ((False, full), (True, masked))
    ]  # fmt: skip
    profile = {
        "peak": {"bf16": "989 TFLOP/s"}, "efficiency": 0.5, "overhead": f"{overhead!r} s",
        "memory_bandwidth": "3350 GB/s", "rates": rates,
    }  # fmt: skip
    node = {
        "devices": [{"name": "gpu0..7", "profile": "h100"}],
        "switches": [{"name": "nvswitch", "kind": "nvswitch"}, {"name": "nic0..7", "kind": "nic"}],
        "links": [
            {"from": "gpu0..7", "to": "nvswitch", "kind": "nvlink"},
            {"from": "gpu0..7", "to": "nic0..7", "kind": "pcie"},
        ],
    }
    return Topology.from_document(
        {
            "schema": "charm-sched/topology",
            "version": 1,
            "name": f"h100_{nodes}_nodes",
            "profiles": {"h100": profile},
            "kinds": {
                "nvlink": {"bandwidth": "370.8 GB/s", "latency": "1.7 us"},
                "pcie": {"bandwidth": "48 GB/s", "latency": "1 us"},
                "network": {"bandwidth": "48 GB/s", "latency": "6 us"},
            },
            "templates": {"node": node},
            "parts": [{"name": f"node0..{nodes - 1}", "template": "node"}],
            "switches": [{"name": "fabric", "kind": "fabric"}],
            "links": [{"from": f"node0..{nodes - 1}/nic0..7", "to": "fabric", "kind": "network"}],
        }
    )


@cache
def _plan(case: Case) -> Plan:
    return plan_of(case, machine(case.ranks // NODE))


def seconds(case: Case, constants: Constants) -> float:
    """Predict how long the slowest rank takes."""
    per_kernel, once = (part.seconds(constants) for part in copies(case))
    full, masked = constants.full, constants.causal
    if case.direction == "backward":
        full = masked = constants.backward
    elif not case.name.startswith("full"):
        # Just the first of a ring's kernels is causal, the others see half of a shard whole.
        masked = case.rings / (1 / masked + (case.rings - 1) / full)
    factor = length_factor(case)
    full, masked = factor * full, factor * masked
    per_kernel += tile_excess(case) / masked
    topology = machine(case.ranks // NODE, full, masked, per_kernel)
    return simulate(_plan(case), topology).makespan + once


def predict(
    name: str, strategy: str, ranks: int, constants: Constants, packs: int = PACKS
) -> float:
    """Predict one bar, TFLOP/s per GPU."""
    found = cases(name, strategy, ranks, packs)
    return fmean(flops(c) / seconds(c, constants) / ranks / 1e12 for c in found)


def fit(packs: int = PACKS) -> Constants:
    """Fit the constants to the bars of 8 GPUs: least squares of the logarithms of the ratios."""
    from scipy.optimize import least_squares

    bars = [(name, strategy) for name in CHART for strategy in STRATEGIES]

    def constants_of(logs: Any) -> Constants:
        return Constants(**dict(zip(FITTED, np.exp(logs).tolist(), strict=True)))

    def misses(logs: Any) -> list[float]:
        constants = constants_of(logs)
        return [
            math.log(predict(*bar, 8, constants, packs) / CHART[bar[0]][bar[1]][0]) for bar in bars
        ]

    start = np.log([6.5e14, 6.5e14, 6.5e14, 1.5e12])
    found = least_squares(misses, start, diff_step=1e-3, xtol=1e-4)
    return constants_of(found.x)
