"""Whole plans on numbers, all ranks in this process, in random orders."""

from __future__ import annotations

import itertools
from typing import Any

import attention_cases as cases
import numpy as np
import pytest
import torch
from custom_planners import query_moving, scattered
from support.cases import ranks_for

from charm_sched.partition import PARTITIONS, Partition
from charm_sched.planners import PLANNERS
from charm_sched.plans.builder import Builder
from charm_sched.runtime.sharding import join, shard
from charm_sched.workload import Workload

EXACT = 1e-10
MASKS = ("full", "causal", "window:9", "docs:13,1,17", "docs-full:13,1,17")
CHARM: tuple[dict[str, Any], ...] = (
    {"pieces": 2},
    {"save": True},
    {"remerge": False},
    {"levels": False},
    {"decouple": False},
    {"domains": ((0, 1), (2, 3)), "pieces": 2},
    {"domains": ((0, 1, 2), (3,))},
)
KEYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("double_ring", {"window": 2}),
    ("double_ring", {"window": 3}),
    ("double_ring", {"window": 1}),
    ("double_ring", {"domains": ((5, 1, 2), (3, 4, 0))}),
    ("all_gather", {"chunks": 2}),
    ("all_gather", {"chunks": 3, "algorithm": "direct"}),
    ("all_gather", {"chunks": 2, "save": True}),
)
HEADS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ulysses", {"chunks": 2}),
    ("ulysses", {"chunks": 3, "save": True}),
    ("usp", {"degree": 2, "chunks": 2}),
    ("usp", {"degree": 2, "inside": "ring"}),
    ("usp", {"degree": 2, "chunks": 3, "save": True}),
    ("usp", {"degree": 1, "chunks": 2}),
    ("mesh", {"tile_rows": 2}),
    ("mesh", {"tile_rows": 4}),
    ("pass_q", {"direct": False}),
    ("pass_q", {"pieces": 1}),
)


def workload(seq_len: int = 31, **other: Any) -> Workload:
    shape = {"batch": 2, "heads": 6, "kv_heads": 2, "head_dim": 5, "dtype": "fp64"}
    return Workload(seq_len=seq_len, **shape | other)


def check(schedule: Any, work: Workload, *, seed: int | None = 0, tolerance: float = EXACT) -> None:
    tensors = cases.make_tensors(work)
    found = cases.run_in_process(schedule, tensors, seed=seed)
    wrong = cases.errors(found, cases.dense_attention(work, *tensors))
    assert max(wrong.values()) <= tolerance, wrong


EVERYWHERE = [  # of most planners every second combination, to save time
    (name, ranks, mask, partition)
    for name, ranks, mask, partition in itertools.product(
        PLANNERS, (1, 2, 3, 4, 7, 8), MASKS, ("contiguous", "zigzag")
    )
    if name in ("ring", "charm") or (ranks + MASKS.index(mask)) % 2 == (partition == "zigzag")
]


@pytest.mark.parametrize(("name", "ranks", "mask", "partition"), EVERYWHERE)
def test_planners_are_exact(name: str, ranks: int, mask: str, partition: str) -> None:
    work = workload(mask=mask, heads=cases.heads_for(name, ranks, 6))
    check(cases.make_schedule(name, work, partition, ranks_for(name, ranks)), work)


@pytest.mark.parametrize(
    ("partition", "mask"),
    [
        ("striped", "causal"),
        ("striped", "window:9"),
        ("per-document", "docs:13,1,17"),
        ("per-document", "docs-full:2,5,1,1,14,8"),
    ],
)
@pytest.mark.parametrize("name", PLANNERS)
def test_shards_of_many_intervals_are_exact(name: str, partition: str, mask: str) -> None:
    ranks = 3 if name == "tasp" else 4
    work = workload(mask=mask, heads=cases.heads_for(name, ranks, 6))
    schedule = cases.make_schedule(name, work, partition, ranks_for(name, ranks))
    assert max(map(len, schedule.forward.partition.shards)) > 3
    check(schedule, work)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_sharding_and_joining_give_the_whole(partition: str, ranks: int) -> None:
    work = workload(mask="docs:13,1,17", heads=3, kv_heads=3)
    plan = Builder(work, Partition.of(partition, work, ranks)).build()
    whole = torch.randn(2, 3, 31, 5)
    parts = [shard(whole, plan, rank=rank) for rank in range(ranks)]
    rows = [[t for run in own for t in range(*run)] for own in plan.partition.shards]
    assert all(torch.equal(part, whole[:, :, own]) for part, own in zip(parts, rows, strict=True))
    assert torch.equal(join(parts, plan), whole)


@pytest.mark.parametrize("partition", ["contiguous", "zigzag"])
@pytest.mark.parametrize("params", CHARM, ids=str)
def test_charm_variants_are_exact(params: dict[str, Any], partition: str) -> None:
    work = workload()
    check(cases.make_schedule("charm", work, partition, 4, params), work)


@pytest.mark.parametrize("partition", ["contiguous", "zigzag"])
@pytest.mark.parametrize(("name", "params"), KEYS, ids=str)
def test_variants_that_move_keys_are_exact(
    name: str, params: dict[str, Any], partition: str
) -> None:
    work = workload(mask="window:9" if partition == "zigzag" else "causal", heads=6, kv_heads=3)
    check(cases.make_schedule(name, work, partition, 6, params), work)


@pytest.mark.parametrize("partition", ["contiguous", "zigzag"])
@pytest.mark.parametrize(("name", "params"), HEADS, ids=str)
def test_head_and_query_variants_are_exact(
    name: str, params: dict[str, Any], partition: str
) -> None:
    work = workload(heads=6, kv_heads=3, v_head_dim=3)
    check(cases.make_schedule(name, work, partition, 4, params), work)


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("seq_len", [1, 3, 7])
def test_fewer_tokens_than_ranks(name: str, seq_len: int) -> None:
    work = workload(seq_len)
    check(cases.make_schedule(name, work, "zigzag", ranks_for(name, 4)), work)


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize(
    "shape",
    [
        {"heads": 4, "kv_heads": 4},
        {"heads": 4, "kv_heads": 1, "batch": 1},
        {"head_dim": 8, "v_head_dim": 3},
        {"head_dim": 3, "v_head_dim": 8},
        {"softmax_scale": 0.7},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_shapes(name: str, shape: dict[str, Any], dtype: str) -> None:
    work = workload(**shape, dtype=dtype)
    tolerance = EXACT if dtype == "fp64" else 2e-5
    check(cases.make_schedule(name, work, "zigzag", 3), work, tolerance=tolerance)


@pytest.mark.parametrize("mask", MASKS)
def test_queries_may_move_and_outputs_return(mask: str) -> None:
    work = workload(mask=mask)
    check(cases.make_schedule(query_moving, work, "zigzag", 4), work)


@pytest.mark.parametrize("seed", range(24))
def test_anything_that_verifies_is_exact(seed: int) -> None:
    work = workload(mask=MASKS[seed % len(MASKS)])
    ranks = 1 + seed % 5
    partition = ("contiguous", "zigzag")[seed % 2]
    schedule = cases.make_schedule(scattered, work, partition, ranks, {"seed": seed})
    check(schedule, work, seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_partial_results_may_travel_in_a_smaller_dtype(seed: int) -> None:
    """Then messages are converted on both sides; fp32 on the wire, fp64 at rest."""
    work = workload(grad_dtype="fp32")
    schedule = cases.make_schedule(scattered, work, "zigzag", 3, {"seed": seed})
    check(schedule, work, seed=seed, tolerance=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_partial_results_may_travel_in_a_larger_dtype(seed: int) -> None:
    work = workload(grad_dtype="fp64", dtype="fp32")
    schedule = cases.make_schedule(scattered, work, "zigzag", 3, {"seed": seed})
    check(schedule, work, seed=seed, tolerance=1e-4)


ROUNDED: tuple[tuple[Any, dict[str, Any]], ...] = (
    ("ulysses", {}),
    ("ulysses", {"chunks": 2, "save": True}),
    ("usp", {"degree": 2}),
    ("domain_mesh", {"domains": ((0, 1, 2, 3),), "inner_groups": 4}),
    (scattered, {"seed": 4}),
)


@pytest.mark.parametrize("planner", ROUNDED, ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_final_results_have_the_same_bits_as_if_they_travelled_like_partial_ones(
    planner: tuple[Any, dict[str, Any]], dtype: str
) -> None:
    """Rounded before they leave or when they are there."""
    work = workload(64, heads=8, kv_heads=4, head_dim=8, dtype=dtype)
    schedules = [cases.make_schedule(planner[0], work, "zigzag", 4, planner[1]) for _ in range(2)]
    tensors = cases.make_tensors(work)
    for plan in schedules[1].plans:
        plan.__dict__["finals"] = np.zeros(len(plan.columns.arg), np.bool_)
    rounded, others = (
        sum(int(plan.op_bytes.sum()) for plan in schedule.plans) for schedule in schedules
    )
    assert rounded < others
    found, expected = (cases.run_in_process(schedule, tensors) for schedule in schedules)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    found, expected = (cases.log_sum_exps(schedule, tensors) for schedule in schedules)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("planner", [*PLANNERS, query_moving, scattered])
def test_results_do_not_depend_on_the_order_of_arrival(planner: Any) -> None:
    """Floating-point sums depend on their order, so equal bits mean one order."""
    work = workload(dtype="fp32")
    params = {"seed": 5} if planner is scattered else None
    schedule = cases.make_schedule(planner, work, "zigzag", ranks_for(planner, 4), params)
    tensors = cases.make_tensors(work)
    first, *others = (cases.run_in_process(schedule, tensors, seed=seed) for seed in range(6))
    for other in others:
        assert all(torch.equal(*pair) for pair in zip(first, other, strict=True))


def test_mask_can_be_changed_under_a_plan() -> None:
    """The same transfers, new areas: what the new mask hides is empty, not wrong."""
    work = workload(mask="full")
    schedule = cases.make_schedule("ring", work, "contiguous", 3)
    bound = type(schedule)(
        forward=schedule.forward.rebind("docs:13,18"),
        backward=schedule.backward.rebind("docs:13,18"),
    )
    check(bound, bound.forward.workload)


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_error_is_that_of_one_device_and_does_not_grow_with_ranks(name: str, dtype: str) -> None:
    work = workload(256, heads=cases.heads_for(name, 8, 4), kv_heads=2, head_dim=16, dtype=dtype)
    tensors = cases.make_tensors(work)
    exact = cases.dense_attention(work, *tensors)
    single = cases.errors(one_device(work, tensors), exact)
    for ranks in (1, 2, 4, 8):
        schedule = cases.make_schedule(name, work, "zigzag", ranks_for(name, ranks))
        found = cases.errors(cases.run_in_process(schedule, tensors), exact)
        for what, error in found.items():
            assert error <= 2.5 * single[what] + 1e-6, (ranks, what, error, single[what])


def one_device(work: Workload, tensors: tuple[torch.Tensor, ...]) -> cases.Results:
    """Attend with the fused kernel on one device, as a user without this package would."""
    q, k, v = (x.clone().requires_grad_() for x in tensors[:3])
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=work.scale, enable_gqa=True
    )
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), tensors[3])
    return out.detach(), dq, dk, dv


@pytest.mark.parametrize("backend", ["reference", "cpu_flash"])
def test_autocast_does_not_lower_the_precision(backend: str) -> None:
    work = workload(dtype="fp32")
    schedule, tensors = cases.make_schedule("ring", work, "zigzag", 2), cases.make_tensors(work)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = cases.run_in_process(schedule, tensors, backend=backend)
    wrong = cases.errors(found, cases.dense_attention(work, *tensors))
    assert max(wrong.values()) < 2e-5, wrong
