"""Every kind of mask on tensors, and masks that change under a plan."""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any

import attention_cases as cases
import numpy as np
import pytest
import torch
from support.cases import ranks_for

from charm_sched.errors import PlanError, RuntimeFailure, WorkloadError
from charm_sched.masks.mask import Mask, parse_mask
from charm_sched.planners import PLANNERS
from charm_sched.proof.verifier import verify
from charm_sched.runtime import packed_mask
from charm_sched.runtime.checks import check_dropout
from charm_sched.runtime.prepare import prepare
from charm_sched.runtime.rebinding import chosen_mask, rebound_plan, shows_no_more
from charm_sched.runtime.tiles import Cutter
from charm_sched.workload import Workload

EXACT = 1e-10
SPARSE = "blocks:0:9x3:8,0:9x20:31,9:14x0:14c,9:14x25:31,20:31x2:13c4"  # rows 14 to 19 see nothing
PADDED = "blocks:0:9x0:9c,12:20x12:20c,20:28x20:28c5"
MASKS = ("full", "causal", "window:6", "docs:13,1,17", "docs-full:13,1,17", SPARSE, PADDED)


def workload(mask: str | Mask, **other: Any) -> Workload:
    shape = {"seq_len": 31, "batch": 2, "heads": 6, "kv_heads": 2, "head_dim": 5, "v_head_dim": 3}
    return Workload(mask=mask, dtype="fp64", **shape | other)


def worst(found: cases.Results, work: Workload, tensors: tuple[torch.Tensor, ...]) -> float:
    return max(cases.errors(found, cases.dense_attention(work, *tensors)).values())


@pytest.mark.parametrize("mask", [SPARSE, PADDED], ids=["sparse", "padded"])
@pytest.mark.parametrize("name", PLANNERS)
def test_blocks_are_exact_with_every_strategy(name: str, mask: str) -> None:
    for ranks, partition in ((3, "zigzag"), (5, "contiguous")):
        work = workload(mask)
        schedule = cases.make_schedule(name, work, partition, ranks_for(name, ranks))
        tensors = cases.make_tensors(work)
        found = cases.run_in_process(schedule, tensors, seed=ranks)
        assert worst(found, work, tensors) < EXACT
        empty = ~cases.dense_mask(work).any(1)
        assert empty.any()
        assert not found[0][:, :, empty].any(), "rows that see nothing give 0"
        assert not found[1][:, :, empty].any()


def test_only_what_a_mask_needs_is_moved() -> None:
    """Documents that lie on one rank each move nothing; one that is cut, its first half alone."""
    moved = {}
    for mask in ("causal", "docs:16,16,16,16", "docs:16,32,16", "blocks:0:16x48:64"):
        work = workload(mask, seq_len=64)
        plan = cases.make_schedule("charm", work, "contiguous", 4).forward
        moved[mask] = int(plan.op_bytes.sum()) // (16 * 2 * work.row_bytes("kv"))
    assert moved == {
        "causal": 6, "docs:16,16,16,16": 0, "docs:16,32,16": 1, "blocks:0:16x48:64": 1
    }  # fmt: skip


@pytest.mark.parametrize("name", ["ulysses", "usp", "tasp", "reverse_ring"])
def test_nothing_is_sent_of_what_no_rank_computes(name: str) -> None:
    """On 8 ranks some shard's queries see nothing, and some gradient begins far from its owner."""
    work = workload(SPARSE, heads=8)
    tensors = cases.make_tensors(work)
    for partition in ("zigzag", "contiguous"):
        schedule = cases.make_schedule(name, work, partition, 8)
        assert worst(cases.run_in_process(schedule, tensors, seed=8), work, tensors) < EXACT


@pytest.mark.parametrize("name", PLANNERS)
def test_every_mask_can_be_bound_to_a_plan_for_the_full_mask(name: str) -> None:
    schedule = cases.make_schedule(name, workload("full"), "zigzag", ranks_for(name, 3))
    for mask in MASKS:
        work = workload(mask)
        tensors = cases.make_tensors(work)
        assert (
            worst(cases.run_in_process(schedule, tensors, seed=1, mask=mask), work, tensors) < EXACT
        )


@pytest.mark.parametrize("name", PLANNERS)
def test_causal_masks_can_be_bound_to_a_causal_plan(name: str) -> None:
    schedule = cases.make_schedule(name, workload("causal"), "zigzag", ranks_for(name, 4))
    for mask in ("window:6", "docs:13,1,17", PADDED):
        work = workload(mask)
        tensors = cases.make_tensors(work)
        assert (
            worst(cases.run_in_process(schedule, tensors, seed=2, mask=mask), work, tensors) < EXACT
        )


@pytest.mark.parametrize(
    ("made_for", "mask"),
    [("causal", "full"), ("causal", "docs-full:13,1,17"), ("docs:13,18", "causal"),
     ("window:3", "window:20"), (PADDED, "docs:13,18")],
)  # fmt: skip
def test_a_mask_that_shows_more_is_refused(made_for: str, mask: str) -> None:
    schedule = cases.make_schedule("ring", workload(made_for), "contiguous", 4)
    for plan in schedule.plans:
        with pytest.raises(PlanError) as caught:
            rebound_plan(plan, parse_mask(mask), check=True)
        message = str(caught.value)
        assert "are never attended" in message
        assert f"plan of test was made for the mask {made_for}" in message
        assert "causal for causal ones, full for others" in message


@pytest.mark.parametrize("seed", range(40))
def test_what_is_said_of_two_masks_is_true(seed: int) -> None:
    """`shows_no_more` may say no where it does not know, but never a wrong yes."""
    draw = random.Random(seed)
    masks = (*MASKS, "window:1", "window:30", "docs:31", "blocks:0:31x0:31c", "blocks:5:9x0:31")
    one, other = (parse_mask(draw.choice(masks)) for _ in range(2))
    shown, allowed = (cases.dense_mask(workload(mask)) for mask in (one, other))
    if shows_no_more(one, other, 31):
        assert not (shown & ~allowed).any(), (str(one), str(other))


def test_what_is_known_of_two_masks() -> None:
    for one, other in (("window:4", "window:9"), (PADDED, "causal"), (SPARSE, "full"),
                       ("docs:13,18", "causal"), ("blocks:3:9x3:9c", "window:6")):  # fmt: skip
        assert shows_no_more(parse_mask(one), parse_mask(other), 31), (one, other)


def test_a_rebound_program_differs_in_its_tiles_alone() -> None:
    schedule = cases.make_schedule("charm", workload("causal"), "zigzag", 4)
    for plan in schedule.plans:
        program, mask = prepare(plan, 1), parse_mask("docs:13,1,17")
        rebound = program.rebound(rebound_plan(plan, mask, check=True), Cutter(mask, 31))
        again = prepare(plan.rebind(mask), 1)
        assert [repr(step) for step in rebound.steps] == [repr(step) for step in again.steps]
        for name in ("waits", "releases", "gates", "versions", "slots", "residents", "started"):
            assert getattr(rebound, name) == getattr(program, name) == getattr(again, name)
        verify(rebound.plan)


@pytest.mark.benchmark
def test_a_new_mask_costs_less_than_a_millisecond() -> None:
    """Processor time, both passes of 8 ranks, 32 documents, median of 21 masks."""
    length, draw = 131072, random.Random(3)
    work = Workload(seq_len=length, heads=32, kv_heads=8, head_dim=128)
    schedule = cases.make_schedule("ring", work, "zigzag", 8)
    programs = [prepare(plan, 3) for plan in schedule.plans]
    took = []
    for _ in range(21):
        offsets = [0, *sorted(draw.sample(range(1, length), 31)), length]
        began = time.thread_time()
        mask = packed_mask(offsets, length)
        cut = Cutter(mask, length)
        for plan, program in zip(schedule.plans, programs, strict=True):
            program.rebound(rebound_plan(plan, mask, check=True), cut)
        took.append(time.thread_time() - began)
    assert sorted(took)[10] < 1e-3, took


@pytest.mark.parametrize(
    "offsets",
    [[0, 9, 31], torch.tensor([0, 9, 31], dtype=torch.int32), np.array([0, 9, 31], np.int32)],
    ids=["list", "tensor", "array"],
)
def test_offsets_may_be_of_any_kind(offsets: Any) -> None:
    assert str(packed_mask(offsets, 31)) == "docs:9,22"


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (torch.tensor([0.0, 9.0]), r"numbers \[documents \+ 1\], found torch.float32"),
        (torch.tensor([[0, 9]]), r"found torch.int64 \[1, 2\]"),
        ([0, 2.5], r"expected whole numbers, found \[0, 2.5\]"),
    ],
)  # fmt: skip
def test_offsets_that_are_no_whole_numbers_are_refused(offsets: Any, message: str) -> None:
    with pytest.raises(RuntimeFailure, match=message):
        packed_mask(offsets, 31)


def test_the_mask_of_a_call() -> None:
    causal, full, window = (
        cases.make_schedule("ring", workload(mask), "zigzag", 2).forward
        for mask in ("causal", "full", "window:6")
    )
    assert chosen_mask(None, None, causal) is None
    assert chosen_mask("causal", None, causal) is None
    assert str(chosen_mask("window:5", None, causal)) == "window:5"
    assert str(chosen_mask(None, [0, 4, 31], causal)) == "docs:4,27"
    assert str(chosen_mask(None, [0, 4, 31], full)) == "docs-full:4,27"
    assert str(chosen_mask(None, [0, 4, 31], window)) == "blocks:0:4x0:4c6,4:31x4:31c6"
    with pytest.raises(RuntimeFailure, match="expected mask or cu_seqlens, found both"):
        chosen_mask("causal", [0, 31], causal)
    with pytest.raises(RuntimeFailure, match="expected a Mask or its text form, found Tensor"):
        chosen_mask(torch.ones(31, 31), None, causal)  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="hold 30 tokens in all"):
        chosen_mask("docs:30", None, causal)


@pytest.mark.parametrize("probability", [0.1, 1, True, "no", float("nan")])
def test_dropout_is_refused(probability: Any) -> None:
    with pytest.raises(RuntimeFailure, match=r"dropout_p: expected 0, found .* drop the output"):
        check_dropout(probability)
    check_dropout(0.0)


def test_blocks_survive_a_plan_file() -> None:
    plan = cases.make_schedule("ring", workload(SPARSE), "zigzag", 2).forward
    document = plan.workload.to_document()
    assert Workload.from_document(document) == plan.workload
    assert dataclasses.replace(plan.workload, mask=SPARSE) == plan.workload
