"""Attention masks, as the intervals of keys that each query row may see.

Every mask here lets query row ``i`` see the keys ``lower(i) <= k < upper(i)``, where both limits
are piecewise constant or ``i + constant``. So one closed form gives the exact number of unmasked
(query, key) pairs of any two intervals, whatever the mask. Blocks may show a row several such
intervals, or none.

Changing or adding a mask: give it `segments`; areas, the verifier and the kernels follow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import attrgetter

from charm_sched.arrays import Ints
from charm_sched.errors import WorkloadError
from charm_sched.masks.blocks import Block, block_segments, document_blocks, parse_blocks
from charm_sched.masks.segments import Limit, Segment

MASK_FORMS = "full, causal, window:N, docs:L1,L2,... or docs-full:L1,L2,..."
MASK_KINDS = ("full", "causal", "window", "docs", "docs-full", "blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A mask over a sequence.

    Attributes:
        kind: ``full``, ``causal``, ``window`` (causal, sees itself and the ``window - 1`` keys
            before), ``docs`` (causal inside each document), ``docs-full`` (two-way inside each) or
            ``blocks`` (ranges of queries and keys; documents with padding between them).
        window: Keys a row sees under ``window``, itself included; None otherwise.
        documents: Lengths of the packed documents, in order; empty otherwise.
        blocks: What ``blocks`` shows, sorted; empty otherwise.
    """

    kind: str
    window: int | None = None
    documents: tuple[int, ...] = ()
    blocks: tuple[Block, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in MASK_KINDS:
            raise WorkloadError(f"mask: expected {MASK_FORMS}, found {self.kind!r}")
        if (self.kind == "window") != (self.window is not None):
            raise WorkloadError(f"mask {self.kind}: expected a window length exactly for window:N")
        if self.kind.startswith("docs") != bool(self.documents):
            raise WorkloadError(f"mask {self.kind}: expected document lengths exactly for docs")
        if (self.kind == "blocks") != bool(self.blocks):
            raise WorkloadError(f"mask {self.kind}: expected blocks exactly for blocks")
        if self.blocks:
            object.__setattr__(self, "blocks", tuple(sorted(self.blocks, key=_block_order)))
            block_segments(self.blocks)
        for name, length in [("window", self.window), *(("docs", n) for n in self.documents)]:
            if length is not None and length < 1:
                raise WorkloadError(f"mask {name}: expected lengths of 1 or more, found {length}")

    def __str__(self) -> str:
        if self.window is not None:
            return f"window:{self.window}"
        if self.documents:
            return f"{self.kind}:{','.join(map(str, self.documents))}"
        if self.blocks:
            return f"blocks:{','.join(map(str, self.blocks))}"
        return self.kind

    @classmethod
    def packed(
        cls,
        offsets: Sequence[int],
        seq_len: int,
        *,
        padded: Sequence[int] | None = None,
        causal: bool = True,
        window: int | None = None,
    ) -> Mask:
        """Give the mask of packed documents, as kernels take them (``cu_seqlens``).

        Document ``i`` has ``offsets[i + 1] - offsets[i]`` tokens; it may be empty. Rows of padding
        see nothing and are seen by none.

        >>> str(Mask.packed([0, 3, 7], 7)), str(Mask.packed([0, 3, 7], 8))
        ('docs:3,4', 'blocks:0:3x0:3c,3:7x3:7c')

        Args:
            offsets: Where each document starts among the valid tokens, and where the last ends.
            seq_len: Tokens in the sequence; those behind the last document are padding.
            padded: Where each document starts in the sequence, and where the last one's padding
                ends, if there is padding between documents.
            causal: Whether a row sees what is before it alone.
            window: Keys that a row sees at most, its own included; for causal documents.

        Raises:
            WorkloadError: Offsets do not start at 0 or decrease, documents overlap or do not fit.
        """
        spans = _document_spans(offsets, seq_len, padded)
        if window is not None and not causal:
            raise WorkloadError(
                "mask packed: a window is for causal documents; leave one of them out"
            )
        gapless = all(
            one[1] == other[0] for one, other in pairwise([(0, 0), *spans, (seq_len,) * 2])
        )
        if gapless and window is None:
            lengths = tuple(last - first for first, last in spans)
            return cls(kind="docs" if causal else "docs-full", documents=lengths)
        return cls(kind="blocks", blocks=document_blocks(spans, causal=causal, window=window))

    def check_length(self, seq_len: int) -> None:
        """Check that the mask fits a sequence.

        Raises:
            WorkloadError: The document lengths do not add up to ``seq_len``, or a block does not
                fit.
        """
        end = max((max(block.rows[1], block.keys[1]) for block in self.blocks), default=0)
        if end > seq_len:
            raise WorkloadError(
                f"mask blocks: the blocks end at token {end}, but the sequence length is {seq_len}"
            )
        if self.documents and sum(self.documents) != seq_len:
            raise WorkloadError(
                f"mask {self.kind}: the documents hold {sum(self.documents)} tokens in all, "
                f"but the sequence length is {seq_len}; leave the length out or make them agree"
            )

    def segments(self, seq_len: int) -> tuple[Segment, ...]:
        """Give the rules, in order of rows; they cover the rows that see anything."""
        if self.documents:
            return tuple(self._documents_from(0, seq_len))
        return _segments(self, seq_len)

    def segments_of(self, seq_len: int, rows: Sequence[tuple[int, int]]) -> Iterator[Segment]:
        """Yield the rules that hold for some row of sorted intervals, each once, in order.

        Of thousands of documents just those are looked at.
        """
        done = -1
        for first, last in rows:
            for segment in self._segments_between(seq_len, first, last):
                if segment.first > done:
                    yield segment
            done = max(done, last - 1)

    def _segments_between(self, seq_len: int, first: int, last: int) -> Iterator[Segment]:
        if self.documents:
            yield from self._documents_from(first, last)
            return
        segments = _segments(self, seq_len)
        for at in range(bisect_right(segments, first, key=attrgetter("last")), len(segments)):
            if segments[at].first >= last:
                return
            yield segments[at]

    def _documents_from(self, first: int, last: int) -> Iterator[Segment]:
        """Yield the rule of each document that has one of the rows ``first .. last - 1``."""
        ends = _ends(self.documents)
        for at in range(bisect_right(ends, first), len(ends)):
            end = ends[at]
            start = end - self.documents[at]
            if start >= last:
                return
            upper = Limit(1, slides=True) if self.kind == "docs" else Limit(end)
            yield Segment(start, end, Limit(start), upper)


@lru_cache(maxsize=16)
def _ends(documents: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(accumulate(documents))


@lru_cache(maxsize=16)
def _segments(mask: Mask, seq_len: int) -> tuple[Segment, ...]:
    match mask.kind:
        case "full":
            return (Segment(0, seq_len, Limit(0), Limit(seq_len)),)
        case "causal":
            return (Segment(0, seq_len, Limit(0), Limit(1, slides=True)),)
        case "window":
            lower = Limit(1 - (mask.window or 1), slides=True)
            return (Segment(0, seq_len, lower, Limit(1, slides=True)),)
    return block_segments(mask.blocks)


def _block_order(block: Block) -> tuple[object, ...]:
    return block.rows, block.keys, block.causal, block.window or 0


def _document_spans(
    offsets: Sequence[int], seq_len: int, padded: Sequence[int] | None
) -> list[tuple[int, int]]:
    """Give the rows of each document that has any."""
    starts = offsets if padded is None else padded
    for name, ends in (("cu_seqlens", offsets), ("padded", starts)):
        if len(ends) < 2 or ends[0] != 0 or any(one > other for one, other in pairwise(ends)):
            raise WorkloadError(
                f"mask packed: {name}: expected offsets that start at 0 and never decrease, "
                f"found {_shortened(ends)}"
            )
        if ends[-1] > seq_len:
            raise WorkloadError(
                f"mask packed: {name}: the documents end at token {ends[-1]}, but the sequence "
                f"length is {seq_len}; a batch is not packed, every sequence has the same documents"
            )
    if len(starts) != len(offsets):
        raise WorkloadError(
            f"mask packed: expected as many padded offsets as offsets, found {len(starts)} and "
            f"{len(offsets)}"
        )
    spans = []
    for (begin, end), (start, room) in zip(pairwise(offsets), pairwise(starts), strict=True):
        if end - begin > room - start:
            raise WorkloadError(
                f"mask packed: the document of {end - begin} tokens at padded offset {start} has "
                f"room for {room - start}"
            )
        if end > begin:
            spans.append((start, start + end - begin))
    if not spans:
        raise WorkloadError("mask packed: expected a document with tokens, found none")
    return spans


def _shortened(values: Sequence[int]) -> str:
    text = ", ".join(map(str, values[:8]))
    return f"[{text}{', ...' if len(values) > 8 else ''}]"


def parse_mask(text: str) -> Mask:
    """Read a mask as the command line spells it.

    >>> str(parse_mask("window:512"))
    'window:512'

    Raises:
        WorkloadError: The text is none of the known forms.
    """
    kind, colon, argument = text.strip().partition(":")
    try:
        if kind in ("full", "causal") and not colon:
            return Mask(kind=kind)
        if kind == "window" and argument:
            return Mask(kind=kind, window=int(argument))
        if kind in ("docs", "docs-full") and argument:
            return Mask(kind=kind, documents=tuple(int(part) for part in argument.split(",")))
        if kind == "blocks" and argument:
            return Mask(kind=kind, blocks=parse_blocks(argument))
    except WorkloadError:
        raise
    except ValueError as error:
        raise WorkloadError(f"mask: expected {MASK_FORMS}, found {text!r}") from error
    raise WorkloadError(f"mask: expected {MASK_FORMS}, found {text!r}")


def area(mask: Mask, seq_len: int, queries: tuple[Ints, Ints], keys: tuple[Ints, Ints]) -> Ints:
    """Count the unmasked (query, key) pairs of intervals, element by element.

    Args:
        mask: The mask.
        seq_len: Tokens in the sequence.
        queries: First and past-the-last query rows, int64 arrays.
        keys: First and past-the-last key rows; broadcast against ``queries``.

    Returns:
        Pairs per broadcast element, exact.
    """
    import numpy as np

    first, last = (np.asarray(bound, dtype=np.int64) for bound in queries)
    low, high = (np.asarray(bound, dtype=np.int64) for bound in keys)
    total = np.zeros(np.broadcast_shapes(first.shape, low.shape), dtype=np.int64)
    for segment in mask.segments(seq_len):
        begin = np.clip(first, segment.first, segment.last)
        end = np.clip(last, segment.first, segment.last)
        total += _sum_clipped(segment.upper, begin, end, low, high)
        total -= _sum_clipped(segment.lower, begin, end, low, high)
    return total


def _sum_clipped(limit: Limit, begin: Ints, end: Ints, low: Ints, high: Ints) -> Ints:
    """Sum ``clip(limit(i), low, high)`` over the rows ``begin <= i < end``."""
    import numpy as np

    if not limit.slides:
        return (end - begin) * np.clip(limit.offset, low, high)
    rises = np.clip(low - limit.offset, begin, end)
    tops = np.clip(high - limit.offset, begin, end)
    middle = (tops - rises) * (rises + tops - 1) // 2 + (tops - rises) * limit.offset
    return low * (rises - begin) + middle + high * (end - tops)
