"""Positions of the tokens of a rank, for rotary embeddings."""

from __future__ import annotations

import attention_cases as cases
import pytest
import torch

from charm_sched.partition import PARTITIONS, Partition
from charm_sched.plans.builder import Builder
from charm_sched.runtime import packed_mask, positions, shard
from charm_sched.runtime.sharding import join
from charm_sched.workload import Workload


def rotated(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Turn pairs of numbers by angles that grow with the position, ``[..., tokens, size]``."""
    half = x.shape[-1] // 2
    angles = at[:, None] * 0.3 ** torch.arange(half, dtype=torch.float64)
    one, other = x[..., :half], x[..., half:]
    turned = one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()
    return torch.cat(turned, -1)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_rotating_shards_is_rotating_the_whole(partition: str, ranks: int) -> None:
    mask = packed_mask([0, 9, 20, 37], 37)
    work = Workload(seq_len=37, heads=2, head_dim=4, dtype="fp64", mask=mask)
    plan = Builder(work, Partition.of(partition, work, ranks)).build()
    x, *_ = cases.make_tensors(work)
    inside = torch.cat([torch.arange(length) for length in (9, 11, 17)])
    for given, at in ((None, inside), (work.mask_rule, inside),
                      (Workload(seq_len=37).mask_rule, torch.arange(37))):  # fmt: skip
        parts = [
            rotated(shard(x, plan, rank=rank), positions(plan, rank=rank, mask=given))
            for rank in range(ranks)
        ]
        assert torch.equal(join(parts, plan), rotated(x, at))


def test_positions_start_again_behind_padding() -> None:
    mask = packed_mask([0, 3, 5], 10, padded=[0, 4, 10])
    plan = Builder(Workload(seq_len=10, mask=mask), Partition.contiguous(10, 2)).build()
    assert positions(plan, rank=0).tolist() == [0, 1, 2, 3, 0]
    assert positions(plan, rank=1).tolist() == [1, 2, 3, 4, 5]


def test_other_blocks_count_the_sequence() -> None:
    work = Workload(seq_len=6, mask="blocks:2:6x0:3")
    plan = Builder(work, Partition.contiguous(6, 8)).build()
    assert [positions(plan, rank=rank).tolist() for rank in (0, 5, 7)] == [[0], [5], []]
