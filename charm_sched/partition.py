"""Who owns which token rows.

A *shard* is what a rank owns, a *piece* a unit that moves. Both are row sets: sorted, disjoint,
non-touching intervals ``(first, past the last)``. Nothing requires divisibility: shards differ by
at most one token per chunk, and a shard may be empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from charm_sched.errors import WorkloadError

Rows = tuple[tuple[int, int], ...]


def rows_of(intervals: Iterable[tuple[int, int]]) -> Rows:
    """Sort intervals, drop empty ones and join those that touch.

    >>> rows_of([(4, 8), (0, 2), (2, 4), (9, 9)])
    ((0, 8),)

    Raises:
        WorkloadError: Two intervals overlap, or one is negative.
    """
    merged: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if first < 0 or last < first:
            raise WorkloadError(f"rows: expected 0 <= first <= last, found [{first}:{last}]")
        if first == last:
            continue
        if merged and first < merged[-1][1]:
            raise WorkloadError(
                f"rows: [{first}:{last}] overlaps [{merged[-1][0]}:{merged[-1][1]}]"
            )
        if merged and first == merged[-1][1]:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return tuple(merged)


def count_rows(rows: Rows) -> int:
    """Count the tokens of a row set."""
    return sum(last - first for first, last in rows)


def split_rows(rows: Rows, parts: int) -> tuple[Rows, ...]:
    """Split a row set, in order, into ``parts`` of equal size (the first ones take the remainder).

    >>> split_rows(((0, 2), (6, 9)), 2)
    (((0, 2), (6, 7)), ((7, 9),))
    """
    total = count_rows(rows)
    pieces, start = [], 0
    for part in range(parts):
        end = start + total // parts + (part < total % parts)
        pieces.append(_slice_rows(rows, start, end))
        start = end
    return tuple(pieces)


def _slice_rows(rows: Rows, start: int, end: int) -> Rows:
    """Take the tokens number ``start .. end - 1`` of a row set."""
    taken, passed = [], 0
    for first, last in rows:
        low, high = max(start - passed, 0), min(end - passed, last - first)
        if low < high:
            taken.append((first + low, first + high))
        passed += last - first
    return tuple(taken)


@dataclass(frozen=True, slots=True)
class Partition:
    """The shards of all ranks: disjoint, and together the whole sequence.

    Attributes:
        kind: The rule that made it (``contiguous``, ``zigzag``) or ``custom``.
        seq_len: Tokens in the sequence.
        shards: One row set per rank.

    Raises:
        WorkloadError: The shards overlap or leave rows out.
    """

    kind: str
    seq_len: int
    shards: tuple[Rows, ...]

    def __post_init__(self) -> None:
        if not self.shards:
            raise WorkloadError("partition: expected at least one rank, found none")
        everything = rows_of(interval for shard in self.shards for interval in shard)
        if everything != ((0, self.seq_len),):
            raise WorkloadError(
                f"partition: expected shards that cover [0:{self.seq_len}] exactly once, "
                f"found {everything[:4]}"
            )

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.shards)

    @classmethod
    def contiguous(cls, seq_len: int, ranks: int) -> Partition:
        """Give rank ``r`` the ``r``-th run of tokens.

        >>> Partition.contiguous(7, 2).shards
        (((0, 4),), ((4, 7),))
        """
        return cls("contiguous", seq_len, _chunks(seq_len, ranks))

    @classmethod
    def zigzag(cls, seq_len: int, ranks: int) -> Partition:
        """Give rank ``r`` chunks ``r`` and ``2 * ranks - 1 - r`` of ``2 * ranks``.

        Under a causal mask every rank then has the same work (head-tail balancing).

        >>> Partition.zigzag(8, 2).shards
        (((0, 2), (6, 8)), ((2, 6),))
        """
        chunks = _chunks(seq_len, 2 * ranks)
        pairs = ((chunks[rank], chunks[2 * ranks - 1 - rank]) for rank in range(ranks))
        return cls("zigzag", seq_len, tuple(rows_of(early + late) for early, late in pairs))

    @classmethod
    def named(cls, kind: str, seq_len: int, ranks: int) -> Partition:
        """Build a partition by its name.

        Raises:
            WorkloadError: The name is not known, or ``ranks`` is below 1.
        """
        if ranks < 1:
            raise WorkloadError(f"ranks: expected 1 or more, found {ranks}")
        if kind not in PARTITIONS:
            raise WorkloadError(f"partition: expected {', '.join(PARTITIONS)}, found {kind!r}")
        return (
            cls.contiguous(seq_len, ranks) if kind == "contiguous" else cls.zigzag(seq_len, ranks)
        )


PARTITIONS = ("contiguous", "zigzag")


def _chunks(seq_len: int, count: int) -> tuple[Rows, ...]:
    """Cut ``[0, seq_len)`` into ``count`` runs, the first ones one token longer."""
    return split_rows(((0, seq_len),), count) if seq_len else ((),) * count
