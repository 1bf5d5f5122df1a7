"""Batches that are cut for ranks: nothing is lost at the edges of shards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_cases import make_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from charm_sched.errors import RuntimeFailure, WorkloadError
from charm_sched.plans.plan import Schedule
from charm_sched.runtime import LocalBatch, batches, shard, shard_batch
from charm_sched.runtime.sharding import join
from charm_sched.workload import Workload

LENGTH, RANKS = 23, 3


def schedule_for(partition: str = "zigzag", mask: str = "causal") -> Schedule:
    work = Workload(seq_len=LENGTH, heads=2, kv_heads=2, head_dim=4, mask=mask)
    return make_schedule("ring", work, partition, RANKS)


SCHEDULES = {name: schedule_for(name) for name in ("zigzag", "contiguous", "striped")}


def on_all(tokens: Tensor, schedule: Schedule, **options: Any) -> list[LocalBatch]:
    """Cut for every rank, as if each were this one."""
    found = []
    for rank in range(RANKS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "charm_sched.runtime.sharding.dist.get_rank", lambda group=None, r=rank: r
            )
            found.append(shard_batch(tokens, schedule, **options))
    return found


def whole(parts: list[Tensor], schedule: Schedule) -> Tensor:
    return join(parts, schedule, dim=1)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    marks=st.sets(st.integers(1, LENGTH - 1), max_size=4),
    end=st.integers(0, 3),
    by_positions=st.booleans(),
)
def test_cut_batches_are_the_whole_one(
    name: str, marks: set[int], end: int, by_positions: bool
) -> None:
    schedule, batch = SCHEDULES[name], 2
    tokens = torch.randint(50, (batch, LENGTH), generator=torch.Generator().manual_seed(1))
    last = LENGTH if by_positions else LENGTH - end
    offsets = [0, *sorted(mark for mark in marks if mark < last), last]
    at, labels = torch.arange(LENGTH), tokens.clone()
    for first in offsets[:-1]:
        at[first:] = torch.arange(LENGTH - first)
        labels[:, first] = -100
    labels[:, last:] = -100
    options = {"position_ids": at} if by_positions else {"cu_seqlens": offsets}
    parts = on_all(tokens, schedule, **options)
    shifted = torch.cat([labels[:, 1:], torch.full((batch, 1), -100)], 1)
    assert torch.equal(whole([x.input_ids for x in parts], schedule), tokens)
    assert torch.equal(whole([x.labels for x in parts], schedule), shifted)
    assert {x.num_items for x in parts} == {int((shifted != -100).sum())}
    found = whole([x.position_ids for x in parts], schedule)
    assert torch.equal(found[:, :last], at.expand(batch, -1)[:, :last])
    if len(offsets) == 2 and by_positions:
        assert parts[0].cu_seqlens is None
    else:
        assert parts[0].cu_seqlens is not None
        assert parts[0].cu_seqlens.tolist() == offsets


def test_labels_of_the_user_are_shifted_and_no_more() -> None:
    schedule, tokens = SCHEDULES["zigzag"], torch.zeros(1, LENGTH, dtype=torch.int64)
    labels = torch.arange(LENGTH).unsqueeze(0)
    parts = on_all(tokens, schedule, labels=labels, cu_seqlens=[0, 5, LENGTH])
    found = whole([x.labels for x in parts], schedule)
    assert found[0].tolist() == [*range(1, LENGTH), -100]


def test_documents_of_the_plan_start_again() -> None:
    schedule = schedule_for("per-document", "docs:9,14")
    parts = on_all(torch.ones(1, LENGTH, dtype=torch.int64), schedule)
    assert whole([x.position_ids for x in parts], schedule)[0].tolist() == [*range(9), *range(14)]
    labels = whole([x.labels for x in parts], schedule)[0]
    assert labels[8] == -100
    assert parts[0].num_items == LENGTH - 2


@pytest.mark.parametrize(
    ("tokens", "options", "said"),
    [
        (torch.zeros(LENGTH), {}, r"input_ids: expected \[batch, 23\], found \[23\]"),
        (torch.zeros(1, 24), {}, r"found \[1, 24\]"),
        (torch.zeros(1, LENGTH), {"labels": torch.zeros(1, 22)}, r"labels: expected \[1, 23\]"),
        (torch.zeros(1, LENGTH), {"position_ids": torch.arange(22)}, "position_ids: expected"),
        (
            torch.zeros(2, LENGTH),
            {"position_ids": torch.stack([torch.arange(23), torch.arange(23) % 7])},
            "expected the same in all rows",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tokens: Tensor, options: Any, said: str) -> None:
    with pytest.raises(RuntimeFailure, match=said):
        shard_batch(tokens, SCHEDULES["zigzag"], **options)
    with pytest.raises(WorkloadError):
        shard_batch(torch.zeros(1, LENGTH), SCHEDULES["zigzag"], cu_seqlens=[0, 30])


def test_any_dimension_can_be_cut() -> None:
    schedule = SCHEDULES["zigzag"]
    x = torch.randn(LENGTH, 2, 3)
    parts = [shard(x, schedule, dim=0, rank=rank) for rank in range(RANKS)]
    assert torch.equal(join(parts, schedule, dim=0), x)
    turned = [shard(x.permute(2, 1, 0), schedule, dim=-1, rank=rank) for rank in range(RANKS)]
    assert all(torch.equal(a.permute(2, 1, 0), b) for a, b in zip(turned, parts, strict=True))
    with pytest.raises(RuntimeFailure, match="expected 23 in dim 3"):
        shard(x, schedule, dim=3, rank=0)
    assert batches.IGNORED == -100
