"""Blocks: masks given as ranges of queries and keys, and packed documents with padding.

A block lets the query rows ``[q, q')`` see the keys ``[k, k')``: all of them, or under ``causal``
those up to its diagonal, which ends in the block's last row and key (a square's own diagonal; the
alignment of FlashAttention from 2.1 on). With a window each row sees the last ``window`` of those.
Rows in no block see nothing: their output is 0, and so is every gradient through them.

Text form of one block: ``0:128x0:256``, with ``c`` behind it for causal, ``c512`` for a window.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from charm_sched.errors import WorkloadError
from charm_sched.masks.segments import Limit, Segment

_BLOCK = re.compile(r"(\d+):(\d+)x(\d+):(\d+)(?:(c)(\d+)?)?", re.ASCII)
BLOCK_FORM = "Q:Q'xK:K' with c behind it for causal, cN for a window of N"


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """Query rows that see a range of keys.

    Attributes:
        rows: First and past-the-last query row.
        keys: First and past-the-last key.
        causal: Whether a row sees keys up to the diagonal alone; it ends in the last row and key.
        window: Keys that a row sees at most, its own included; None for all. Causal blocks alone.

    Raises:
        WorkloadError: A range is empty or negative, or a window stands without ``causal``.
    """

    rows: tuple[int, int]
    keys: tuple[int, int]
    causal: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        for first, last in (self.rows, self.keys):
            if not 0 <= first < last:
                raise WorkloadError(f"block {self}: expected ranges of 1 token or more")
        if self.window is not None and (self.window < 1 or not self.causal):
            raise WorkloadError(
                f"block {self}: expected a window of 1 or more, on a causal block, "
                f"found {self.window}"
            )

    def __str__(self) -> str:
        (q, q_end), (k, k_end) = self.rows, self.keys
        rule = f"c{self.window or ''}" if self.causal else ""
        return f"{q}:{q_end}x{k}:{k_end}{rule}"

    def segments(self) -> list[Segment]:
        """Give its rules; every row of each sees at least one key."""
        (first, last), (low, high) = self.rows, self.keys
        if not self.causal:
            return [Segment(first, last, Limit(low), Limit(high))]
        upper = Limit(high - last + 1, slides=True)
        first = max(first, low - upper.offset + 1)
        if self.window is None:
            return [Segment(first, last, Limit(low), upper)]
        lower = Limit(upper.offset - self.window, slides=True)
        turn = min(max(low - lower.offset + 1, first), last)
        found = [Segment(first, turn, Limit(low), upper), Segment(turn, last, lower, upper)]
        return [segment for segment in found if segment.first < segment.last]


def parse_blocks(text: str) -> tuple[Block, ...]:
    """Read blocks from their text form, separated by commas.

    Raises:
        WorkloadError: One is not a block.
    """
    blocks = []
    for part in text.split(","):
        match = _BLOCK.fullmatch(part.strip())
        if match is None:
            raise WorkloadError(f"mask blocks: expected {BLOCK_FORM}, found {part!r}")
        *ends, causal, window = match.groups()
        q, q_end, k, k_end = map(int, ends)
        size = None if window is None else int(window)
        blocks.append(Block((q, q_end), (k, k_end), causal is not None, size))
    return tuple(blocks)


def block_segments(blocks: Iterable[Block]) -> tuple[Segment, ...]:
    """Give the rules of blocks together, in order of rows, cut where any block begins or ends.

    Raises:
        WorkloadError: Two blocks show the same pair.
    """
    whole = sorted(
        (segment for block in blocks for segment in block.segments()), key=attrgetter("first")
    )
    marks = sorted({mark for segment in whole for mark in (segment.first, segment.last)})
    found: list[Segment] = []
    active: list[Segment] = []
    waiting = iter([*whole, None])
    ahead = next(waiting)
    for first, last in pairwise(marks):
        active = [segment for segment in active if segment.last > first]
        while ahead is not None and ahead.first == first:
            active.append(ahead)
            ahead = next(waiting)
        here = [Segment(first, last, segment.lower, segment.upper) for segment in active]
        here.sort(key=lambda segment: segment.lower(segment.first))
        _check_disjoint(here)
        found += here
    return tuple(found)


def _check_disjoint(segments: Sequence[Segment]) -> None:
    """Check rules of the same rows: limits are straight lines, so both ends of the rows decide."""
    for one, other in pairwise(segments):
        for row in (one.first, one.last - 1):
            if one.upper(row) > other.lower(row):
                raise WorkloadError(
                    f"mask blocks: expected blocks that share no (query, key) pair, found query "
                    f"{row} with key {other.lower(row)} in two; cut one of them"
                )


def document_blocks(
    spans: Iterable[tuple[int, int]], *, causal: bool, window: int | None
) -> tuple[Block, ...]:
    """Give the block of each packed document; a window is for causal ones."""
    return tuple(Block(span, span, causal, window) for span in spans)
