from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charm_sched.errors import WorkloadError
from charm_sched.masks import Mask, area
from charm_sched.partition import PARTITIONS, Partition, count_rows, rows_of, split_rows


@given(st.sampled_from(PARTITIONS), st.integers(1, 60), st.integers(1, 17))
def test_every_token_has_one_owner(kind: str, seq_len: int, ranks: int) -> None:
    shards = Partition.named(kind, seq_len, ranks).shards
    owned = [t for shard in shards for first, last in shard for t in range(first, last)]
    assert sorted(owned) == list(range(seq_len))
    assert len(shards) == ranks


@given(st.sampled_from(PARTITIONS), st.integers(1, 60), st.integers(1, 17))
def test_shards_are_even(kind: str, seq_len: int, ranks: int) -> None:
    sizes = [count_rows(shard) for shard in Partition.named(kind, seq_len, ranks).shards]
    assert max(sizes) - min(sizes) <= (1 if kind == "contiguous" else 2)


def test_sizes_users_ask_about() -> None:
    assert [count_rows(s) for s in Partition.contiguous(2999, 4).shards] == [750, 750, 750, 749]
    assert Partition.contiguous(7, 2).shards == (((0, 4),), ((4, 7),))
    assert Partition.contiguous(2, 4).shards == (((0, 1),), ((1, 2),), (), ())


@given(st.integers(1, 16))
def test_zigzag_balances_the_causal_mask(ranks: int) -> None:
    seq_len = 6 * ranks
    work = {
        sum(int(area(Mask(kind="causal"), seq_len, run, (0, seq_len))) for run in shard)
        for shard in Partition.zigzag(seq_len, ranks).shards
    }
    assert len(work) == 1


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=5), st.integers(1, 9))
def test_splitting_keeps_every_row(runs: list[tuple[int, int]], parts: int) -> None:
    intervals, start = [], 0
    for length, gap in runs:
        intervals.append((start, start + length))
        start += length + gap
    rows = rows_of(intervals)
    pieces = split_rows(rows, parts)
    assert len(pieces) == parts
    assert rows_of(run for piece in pieces for run in piece) == rows
    sizes = [count_rows(piece) for piece in pieces]
    assert max(sizes) - min(sizes) <= 1


def test_overlaps_and_gaps_are_refused() -> None:
    with pytest.raises(WorkloadError, match=r"\[2:5\] overlaps \[0:3\]"):
        rows_of([(0, 3), (2, 5)])
    with pytest.raises(WorkloadError, match=r"cover \[0:6\] exactly once"):
        Partition("custom", 6, (((0, 3),), ((4, 6),)))
    with pytest.raises(WorkloadError, match="expected contiguous, zigzag, found 'striped'"):
        Partition.named("striped", 8, 2)
    with pytest.raises(WorkloadError, match="ranks: expected 1 or more, found 0"):
        Partition.named("zigzag", 8, 0)
