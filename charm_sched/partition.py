"""Who owns which token rows.

A *shard* is what a rank owns, a *piece* a unit that moves. Both are row sets: sorted, disjoint,
non-touching intervals ``(first, past the last)``. Nothing requires divisibility: shards differ by
at most one token per chunk, and a shard may be empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import lt
from typing import TYPE_CHECKING

from charm_sched.errors import WorkloadError

if TYPE_CHECKING:
    from charm_sched.workload import Workload

Rows = tuple[tuple[int, int], ...]

PARTITIONS = ("contiguous", "zigzag", "striped", "per-document")

STRIPES = 32
"""Blocks per rank of a striped partition, unless its block is given.

Under a causal mask the last rank has about ``1 / STRIPES`` more work than the mean: 3 %. Plans name
each interval of what they move and compute on, so single tokens would make them as long as the
sequence.
"""


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


def is_normal(rows: Rows) -> bool:
    """Say whether a row set is as `rows_of` gives it, and not empty.

    >>> is_normal(((0, 2), (4, 8))), is_normal(((0, 2), (2, 4)))
    (True, False)
    """
    if not rows or not isinstance(rows, tuple) or set(map(type, rows)) != {tuple}:
        return False
    starts, ends = zip(*rows, strict=True)
    return starts[0] >= 0 and all(map(lt, starts, ends)) and all(map(lt, ends, starts[1:]))


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
        kind: The rule that made it, one of `PARTITIONS`, or ``custom``.
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
    def striped(cls, seq_len: int, ranks: int, block: int | None = None) -> Partition:
        """Deal blocks of tokens out over the ranks in turn.

        The partition of Striped Attention (arXiv:2311.09431). Shards differ by at most one token.

        >>> Partition.striped(8, 2, block=2).shards
        (((0, 2), (4, 6)), ((2, 4), (6, 8)))

        Args:
            seq_len: Tokens in the sequence.
            ranks: Number of ranks.
            block: Tokens per block at most; 1 deals out single tokens. None makes `STRIPES` blocks
                per rank, so that a shard has a bounded number of intervals at any length.

        Raises:
            WorkloadError: ``block`` is below 1.
        """
        if block is not None and block < 1:
            raise WorkloadError(f"partition striped: expected a block of 1 or more, found {block}")
        rounds = STRIPES if block is None else -(-seq_len // (block * ranks))
        blocks = _chunks(seq_len, ranks * max(rounds, 1))
        dealt = (blocks[rank::ranks] for rank in range(ranks))
        return cls("striped", seq_len, tuple(rows_of(sum(own, ())) for own in dealt))

    @classmethod
    def per_document(
        cls, documents: Sequence[int], ranks: int, *, two_way: bool = False
    ) -> Partition:
        """Deal each packed document out over the ranks, head and tail.

        A document is cut into ``2 * ranks`` chunks, of which chunk ``i`` and the ``i``-th from the
        end go to one rank, as in `zigzag`. The rows that are left over go to the ranks with the
        fewest rows so far: shards differ by at most one token. A rank that already has more work
        than the mean gets its row early in the document, others late. So work evens out too, where
        documents are short or do not divide evenly.

        >>> Partition.per_document([8, 3], 2).shards
        (((0, 2), (6, 10)), ((2, 6), (10, 11)))

        Args:
            documents: Their lengths, in order.
            ranks: Number of ranks.
            two_way: Whether rows see their whole document, and not just what is before them.
        """
        shards: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
        rows, work, start = [0] * ranks, [0] * ranks, 0
        for length in documents:
            for rank, pair in enumerate(_head_tail(length, rows, work)):
                shards[rank] += [(start + first, start + last) for first, last in pair]
                rows[rank] += count_rows(pair)
                work[rank] += _pairs_seen(pair, length, two_way)
            start += length
        return cls("per-document", start, tuple(rows_of(shard) for shard in shards))

    @classmethod
    def named(cls, kind: str, seq_len: int, ranks: int) -> Partition:
        """Build a partition by its name, one that does not depend on the mask.

        Raises:
            WorkloadError: The name is not known, ``ranks`` is below 1, or it is ``per-document``.
        """
        if ranks < 1:
            raise WorkloadError(f"ranks: expected 1 or more, found {ranks}")
        match kind:
            case "contiguous":
                return cls.contiguous(seq_len, ranks)
            case "zigzag":
                return cls.zigzag(seq_len, ranks)
            case "striped":
                return cls.striped(seq_len, ranks)
            case "per-document":
                raise WorkloadError(
                    "partition per-document: expected the documents, found a length alone; build "
                    "it with Partition.of or Partition.per_document"
                )
        raise WorkloadError(f"partition: expected {', '.join(PARTITIONS)}, found {kind!r}")

    @classmethod
    def of(cls, kind: str, workload: Workload, ranks: int) -> Partition:
        """Build the partition of a workload by its name.

        Raises:
            WorkloadError: The name is not known, ``ranks`` is below 1, or it is ``per-document``
                and the mask has no documents.
        """
        mask = workload.mask_rule
        if kind != "per-document" or ranks < 1:
            return cls.named(kind, workload.seq_len, ranks)
        if not mask.documents:
            raise WorkloadError(
                f"partition per-document: expected a mask of packed documents (docs:L1,L2,... or "
                f"docs-full:L1,L2,...), found {mask}; take zigzag for this mask"
            )
        return cls.per_document(mask.documents, ranks, two_way=mask.kind == "docs-full")


def _chunks(seq_len: int, count: int) -> tuple[Rows, ...]:
    """Cut ``[0, seq_len)`` into ``count`` runs, the first ones one token longer."""
    return split_rows(((0, seq_len),), count) if seq_len else ((),) * count


def _head_tail(length: int, rows: Sequence[int], work: Sequence[int]) -> list[Rows]:
    """Give each rank's head and tail chunk of a document, by the rows and work that it has."""
    ranks = len(rows)
    base, extra = divmod(length, 2 * ranks)
    total = sum(work)
    above = [each * ranks - total for each in work]  # the mean, times ranks
    emptiest = sorted(range(ranks), key=lambda rank: (rows[rank], work[rank], rank))
    extras = [0] * ranks
    for i in range(extra):
        extras[emptiest[i % ranks]] += 1
    # The outermost chunks are where a row's work differs most from the mean.
    outward = sorted(range(ranks), key=lambda rank: (extras[rank] != 1, -abs(above[rank]), rank))
    sizes = [base] * (2 * ranks)
    for i, rank in enumerate(outward):
        early = extras[rank] == 2 or (extras[rank] == 1 and above[rank] > 0)
        sizes[i] += early
        sizes[-1 - i] += extras[rank] - early
    ends = [0, *accumulate(sizes)]
    chunks = list(pairwise(ends))
    pairs = {rank: rows_of((chunks[i], chunks[-1 - i])) for i, rank in enumerate(outward)}
    return [pairs[rank] for rank in range(ranks)]


def _pairs_seen(rows: Rows, length: int, two_way: bool) -> int:
    """Count the (query, key) pairs of some query rows of a document."""
    if two_way:
        return count_rows(rows) * length
    return sum((last * (last + 1) - first * (first + 1)) // 2 for first, last in rows)


def partitions_for(workload: Workload) -> tuple[str, ...]:
    """Name the partitions that are worth trying for a workload; docs/numbers.md has the times.

    Under a full mask all partitions of equal shards do the same work. Under a causal mask no
    strategy gains from stripes over zigzag; under a window some do, whose kernels then all have
    the same work in every step. Where documents differ in length, no other balances the work.
    """
    match workload.mask_rule.kind:
        case "full":
            return ("contiguous",)
        case "window":
            return ("contiguous", "zigzag", "striped")
        case "docs" | "docs-full":
            return ("contiguous", "zigzag", "per-document")
    return ("contiguous", "zigzag")
