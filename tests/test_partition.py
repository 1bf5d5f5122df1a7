from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import brute, cases

from charm_sched.errors import WorkloadError
from charm_sched.masks.mask import Mask
from charm_sched.partition import (
    PARTITIONS,
    STRIPES,
    Partition,
    Rows,
    count_rows,
    partitions_for,
    rows_of,
    split_rows,
)
from charm_sched.plans.plan import Plan
from charm_sched.proof.verifier import verify
from charm_sched.workload import Workload

BY_LENGTH = [kind for kind in PARTITIONS if kind != "per-document"]
DOCUMENTS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def work_of(mask: str, seq_len: int) -> Workload:
    return Workload(seq_len=seq_len, heads=1, head_dim=1, mask=mask)


def docs(lengths: list[int], form: str = "docs") -> str:
    return f"{form}:{','.join(map(str, lengths))}"


def areas_of(partition: Partition, mask: Mask) -> list[int]:
    """Count each rank's unmasked pairs, row by row."""
    seen = np.zeros(partition.seq_len, np.int64)
    for segment in mask.segments(partition.seq_len):
        for row in range(segment.first, segment.last):
            seen[row] = segment.upper(row) - max(segment.lower(row), 0)
    return [sum(int(seen[low:high].sum()) for low, high in shard) for shard in partition.shards]


def check_owners(partition: Partition, seq_len: int, ranks: int) -> None:
    owned = [t for shard in partition.shards for first, last in shard for t in range(first, last)]
    assert sorted(owned) == list(range(seq_len))
    assert len(partition.shards) == ranks


@given(st.sampled_from(BY_LENGTH), st.integers(1, 200), st.integers(1, 17))
def test_every_token_has_one_owner(kind: str, seq_len: int, ranks: int) -> None:
    check_owners(Partition.named(kind, seq_len, ranks), seq_len, ranks)


@given(st.sampled_from(BY_LENGTH), st.integers(1, 200), st.integers(1, 17))
def test_shards_are_even(kind: str, seq_len: int, ranks: int) -> None:
    sizes = [count_rows(shard) for shard in Partition.named(kind, seq_len, ranks).shards]
    assert max(sizes) - min(sizes) <= (2 if kind == "zigzag" else 1)


@given(st.integers(1, 90), st.integers(1, 9), st.integers(1, 12))
def test_stripes_are_dealt_out_in_turn(seq_len: int, ranks: int, block: int) -> None:
    partition = Partition.striped(seq_len, ranks, block=block)
    check_owners(partition, seq_len, ranks)
    runs = sorted((run, rank) for rank, shard in enumerate(partition.shards) for run in shard)
    if ranks > 1:
        assert [rank for _, rank in runs] == [i % ranks for i in range(len(runs))]
        assert all(last - first <= block for (first, last), _ in runs)


def test_single_tokens_can_be_dealt_out() -> None:
    shards = Partition.striped(7, 3, block=1).shards
    assert shards == (((0, 1), (3, 4), (6, 7)), ((1, 2), (4, 5)), ((2, 3), (5, 6)))


@pytest.mark.parametrize("seq_len", [999, 16384, 100_003])
@pytest.mark.parametrize("ranks", [2, 7, 16])
def test_stripes_are_few_and_balance_the_causal_mask(seq_len: int, ranks: int) -> None:
    partition = Partition.striped(seq_len, ranks)
    assert max(map(len, partition.shards)) <= STRIPES
    work = areas_of(partition, Mask(kind="causal"))
    assert max(work) <= sum(work) / ranks * (1 + 1.05 / STRIPES)


@given(DOCUMENTS, st.integers(1, 17), st.sampled_from(["docs", "docs-full"]))
def test_documents_are_dealt_out_evenly(lengths: list[int], ranks: int, form: str) -> None:
    seq_len = sum(lengths)
    partition = Partition.of("per-document", work_of(docs(lengths, form), seq_len), ranks)
    check_owners(partition, seq_len, ranks)
    sizes = [count_rows(shard) for shard in partition.shards]
    assert max(sizes) - min(sizes) <= 1
    start = 0
    for length in lengths:  # each document by itself as well
        own = [rows_within(shard, start, start + length) for shard in partition.shards]
        assert max(own) - min(own) <= 2
        start += length


def rows_within(shard: Rows, low: int, high: int) -> int:
    return sum(max(min(last, high) - max(first, low), 0) for first, last in shard)


@given(DOCUMENTS, st.integers(1, 17))
def test_no_rank_has_much_more_work_than_the_mean(lengths: list[int], ranks: int) -> None:
    """A row is a whole one, so work can differ by rows; not by more with every document."""
    partition = Partition.per_document(lengths, ranks)
    work = areas_of(partition, Mask(kind="docs", documents=tuple(lengths)))
    assert max(work) - min(work) <= 2 * max(lengths)


@pytest.mark.parametrize("form", ["docs", "docs-full"])
def test_short_documents_spread_over_many_ranks(form: str) -> None:
    lengths, ranks = [1 + i % 23 for i in range(1000)], 16
    work = work_of(docs(lengths, form), sum(lengths))
    partition = Partition.of("per-document", work, ranks)
    assert partition == Partition.of("per-document", work, ranks)
    found = areas_of(partition, work.mask_rule)
    assert max(found) <= 1.01 * sum(found) / ranks
    zigzag = areas_of(Partition.zigzag(work.seq_len, ranks), work.mask_rule)
    assert max(zigzag) > 1.02 * sum(zigzag) / ranks


def test_one_document_is_dealt_out_like_zigzag() -> None:
    assert Partition.per_document([96], 8).shards == Partition.zigzag(96, 8).shards


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ("full", ("contiguous",)),
        ("causal", ("contiguous", "zigzag")),
        ("window:3", ("contiguous", "zigzag", "striped")),
        ("docs:5,3", ("contiguous", "zigzag", "per-document")),
        ("docs-full:5,3", ("contiguous", "zigzag", "per-document")),
    ],
)
def test_what_is_worth_trying(mask: str, expected: tuple[str, ...]) -> None:
    work = work_of(mask, 8)
    assert partitions_for(work) == expected
    for kind in expected:
        assert Partition.of(kind, work, 3).kind == kind


@given(cases.plans(most_ranks=4, most_tokens=14))
def test_plans_of_any_partition_are_exact(made: Plan) -> None:
    brute.run(made)
    verify(made)


def test_sizes_users_ask_about() -> None:
    assert [count_rows(s) for s in Partition.contiguous(2999, 4).shards] == [750, 750, 750, 749]
    assert Partition.contiguous(7, 2).shards == (((0, 4),), ((4, 7),))
    assert Partition.contiguous(2, 4).shards == (((0, 1),), ((1, 2),), (), ())


@given(st.integers(1, 16))
def test_zigzag_balances_the_causal_mask(ranks: int) -> None:
    assert len(set(areas_of(Partition.zigzag(6 * ranks, ranks), Mask(kind="causal")))) == 1


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
    with pytest.raises(WorkloadError, match="striped, per-document, found 'random'"):
        Partition.named("random", 8, 2)
    with pytest.raises(WorkloadError, match="block of 1 or more, found 0"):
        Partition.striped(8, 2, block=0)
    with pytest.raises(WorkloadError, match="found a length alone"):
        Partition.named("per-document", 8, 2)
    with pytest.raises(WorkloadError, match="found causal; take zigzag for this mask"):
        Partition.of("per-document", work_of("causal", 8), 2)
    with pytest.raises(WorkloadError, match="ranks: expected 1 or more, found 0"):
        Partition.of("per-document", work_of("docs:5,3", 8), 0)
    with pytest.raises(WorkloadError, match="ranks: expected 1 or more, found 0"):
        Partition.named("zigzag", 8, 0)
