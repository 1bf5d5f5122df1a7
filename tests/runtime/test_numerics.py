"""The numerics gate: errors of distributed attention against those of one device.

One device means the same fused kernel on the whole sequence; both are compared with fp64.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import cache, lru_cache
from typing import Any

import attention_cases as cases
import pytest
import torch
from support.cases import ranks_for
from torch import Tensor

from charm_sched.planners import PLANNERS
from charm_sched.plans.plan import Schedule
from charm_sched.runtime.numerics import merge_into
from charm_sched.workload import Workload

LENGTH = 96
TIMES = 2.5  # an error may be so many times as large as that of one device
SLACK = {"bf16": 2.0**-12, "fp16": 2.0**-15}  # 1/32 of the spacing of numbers just above 1
MASKS = (
    "full", "causal", "window:20", "docs:50,1,45", "docs-full:50,1,45",
    "blocks:0:40x0:40c,48:96x48:96c30,48:96x3:30",
)  # fmt: skip
HEADS = ((8, 8), (16, 2))
GATE = list(itertools.product(HEADS, MASKS, (64, 128), ("bf16", "fp16")))
STRATEGIES = ("ring", "charm", "all_gather", "usp", "mesh", "double_ring", "pass_q", "reverse_ring")


@lru_cache(maxsize=1)
def compared(dtype: str, size: int, heads: tuple[int, int], mask: str) -> tuple[Any, ...]:
    """Give workload, tensors, exact results and those of one device."""
    work = Workload(
        seq_len=LENGTH, heads=heads[0], kv_heads=heads[1], head_dim=size, dtype=dtype, mask=mask
    )
    tensors = cases.make_tensors(work, seed=size)
    return work, tensors, cases.dense_attention(work, *tensors), one_device(work, tensors)


def one_device(work: Workload, tensors: tuple[Tensor, ...]) -> cases.Results:
    """Attend with the fused kernel of torch on the whole sequence, with autograd."""
    seen = cases.dense_mask(work)
    q, k, v = (x.clone().requires_grad_() for x in tensors[:3])
    bias = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, -torch.inf)
    bias[~seen.any(1)] = 0  # rows that see nothing: any finite result, masked below
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, scale=work.scale, enable_gqa=True
        )
    out = out.masked_fill(~seen.any(1).unsqueeze(1), 0)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), tensors[3])
    return out.detach(), dq, dk, dv


@cache
def planned(number: int, ranks: int, heads: tuple[int, int], mask: str) -> Schedule:
    """Plan heads and mask once for all dtypes and head sizes, each time with another strategy."""
    name = STRATEGIES[(number + ranks) % len(STRATEGIES)]
    work = Workload(seq_len=LENGTH, heads=heads[0], kv_heads=heads[1], head_dim=64, mask=mask)
    return cases.make_schedule(name, work, ("zigzag", "contiguous")[(number + ranks) % 2], ranks)


def for_workload(schedule: Schedule, work: Workload) -> Schedule:
    """Give the same operations for another dtype or head size."""
    first, second = (dataclasses.replace(plan, workload=work) for plan in schedule.plans)
    return Schedule(forward=first, backward=second)


def sizes(found: cases.Results, exact: cases.Results) -> list[tuple[float, float]]:
    """Give the largest error and the root of the mean square error, of each result."""
    wrong = [(x.double() - y).abs() for x, y in zip(found, exact, strict=True)]
    return [(float(w.max()), float(w.square().mean().sqrt())) for w in wrong]


@pytest.mark.parametrize(("heads", "mask", "size", "dtype"), GATE)
def test_error_is_that_of_one_device(
    heads: tuple[int, int], mask: str, size: int, dtype: str
) -> None:
    """At most 2.5 times as large, and no larger on 8 ranks than on 1."""
    work, tensors, exact, single = compared(dtype, size, heads, mask)
    allowed = sizes(single, exact)
    number, spread = GATE.index((heads, mask, size, dtype)) // 4, []
    for ranks in range(1, 9):
        schedule = for_workload(planned(number, ranks, heads, mask), work)
        found = sizes(cases.run_in_process(schedule, tensors, seed=ranks), exact)
        spread.append(found)
        for what, have, want in zip(cases.NAMES, found, allowed, strict=True):
            near = SLACK[dtype]
            assert have[0] <= TIMES * want[0] + near, (ranks, what, "largest", have, want)
            assert have[1] <= TIMES * want[1] + near, (ranks, what, "mean", have, want)
    for result, what in enumerate(cases.NAMES):
        first = spread[0][result][1]
        last = max(found[result][1] for found in spread[5:])
        assert last <= 1.25 * first, (what, "grows with the ranks", [s[result] for s in spread])


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("mask", [MASKS[2], MASKS[5]], ids=["window", "blocks"])
def test_double_precision_is_exact(name: str, mask: str) -> None:
    work = Workload(
        seq_len=LENGTH, heads=8, kv_heads=2, head_dim=16, v_head_dim=8, dtype="fp64", mask=mask
    )
    tensors = cases.make_tensors(work)
    schedule = cases.make_schedule(name, work, "zigzag", ranks_for(name, 8))
    found = cases.run_in_process(schedule, tensors, seed=8)
    assert max(cases.errors(found, cases.dense_attention(work, *tensors)).values()) < 1e-10


@pytest.mark.parametrize("name", PLANNERS)
def test_results_are_the_same_to_the_bit_in_any_order(name: str) -> None:
    work = Workload(seq_len=61, heads=8, kv_heads=2, head_dim=64, dtype="bf16", mask="causal")
    tensors = cases.make_tensors(work)
    schedule = cases.make_schedule(name, work, "zigzag", ranks_for(name, 4))
    first, *others = (cases.run_in_process(schedule, tensors, seed=seed) for seed in range(3))
    for other in others:
        assert all(torch.equal(*pair) for pair in zip(first, other, strict=True))


def test_scores_far_apart_between_ranks_do_not_overflow() -> None:
    """Partial log-sum-exps that differ by 89 and more, in fp32."""
    work = Workload(seq_len=16, heads=2, head_dim=8, dtype="fp32", mask="full", softmax_scale=1.0)
    q, k, v, dout = cases.make_tensors(work)
    for factor in (30.0, 1000.0):
        large = k.clone()
        large[:, :, 8:] *= factor
        tensors = (q, large, v, dout)
        schedule = cases.make_schedule("ring", work, "contiguous", 4)
        found = cases.run_in_process(schedule, tensors, seed=1)
        exact = cases.dense_attention(work, *tensors)
        for have, want in zip(found, exact, strict=True):
            assert torch.isfinite(have).all()
            torch.testing.assert_close(have.double(), want, rtol=1e-3, atol=1e-3 * factor)


@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_nan_stays_where_attention_puts_it(where: str) -> None:
    """In its head, and in the rows that see it; a product 0 x NaN may spread it inside a tile."""
    work = Workload(seq_len=16, heads=2, head_dim=4, dtype="fp64")
    q, k, v, dout = cases.make_tensors(work)
    {"q": q, "k": k, "v": v}[where][:, 1, 9] = math.nan
    schedule = cases.make_schedule("charm", work, "zigzag", 4)
    out, *_ = cases.run_in_process(schedule, (q, k, v, dout), seed=3)
    bad = torch.isnan(out).any(-1)[0]
    seeing = torch.arange(16) == 9 if where == "q" else torch.arange(16) >= 9
    assert not bad[0].any()
    assert bad[1][seeing].all()
    if where != "v":
        assert torch.equal(bad[1], seeing)


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_merging_many_parts_is_as_good_as_one(parts: int) -> None:
    generator = torch.Generator().manual_seed(parts)
    scores = 20 * torch.randn(4, 64, generator=generator, dtype=torch.float64)
    values = torch.randn(64, 8, generator=generator, dtype=torch.float64)
    exact, exact_lse = torch.softmax(scores, -1) @ values, torch.logsumexp(scores, -1)
    out, lse = torch.zeros(1, 1, 4, 8), torch.full((1, 1, 4), -math.inf)
    for some, shown in zip(
        scores.float().chunk(parts, -1), values.float().chunk(parts), strict=True
    ):
        part = torch.softmax(some, -1) @ shown
        merge_into(out, lse, part[None, None], torch.logsumexp(some, -1)[None, None])
    torch.testing.assert_close(out[0, 0].double(), exact, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse[0, 0].double(), exact_lse, rtol=1e-6, atol=1e-6)
