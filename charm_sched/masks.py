"""Attention masks, as the interval of keys that each query row may see.

Every mask here lets query row ``i`` see the keys ``lower(i) <= k < upper(i)``, where both limits
are piecewise constant or ``i + constant``. So one closed form gives the exact number of unmasked
(query, key) pairs of any two intervals, whatever the mask.

Changing or adding a mask: give it `segments`; areas, the verifier and the kernels follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from charm_sched.arrays import Ints
from charm_sched.errors import WorkloadError

if TYPE_CHECKING:
    pass


MASK_FORMS = "full, causal, window:N, docs:L1,L2,... or docs-full:L1,L2,..."


@dataclass(frozen=True, slots=True)
class Limit:
    """One side of the visible interval: ``offset``, plus the row number itself where it slides."""

    offset: int
    slides: bool = False

    def __call__(self, row: int) -> int:
        """Give the limit for one query row."""
        return self.offset + (row if self.slides else 0)


@dataclass(frozen=True, slots=True)
class Segment:
    """Query rows ``first <= i < last`` that share one rule: keys ``lower(i) <= k < upper(i)``."""

    first: int
    last: int
    lower: Limit
    upper: Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A mask over a sequence.

    Attributes:
        kind: ``full``, ``causal``, ``window`` (causal, sees itself and the ``window - 1`` keys
            before), ``docs`` (causal inside each document) or ``docs-full`` (two-way inside each).
        window: Keys a row sees under ``window``, itself included; None otherwise.
        documents: Lengths of the packed documents, in order; empty otherwise.
    """

    kind: str
    window: int | None = None
    documents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("full", "causal", "window", "docs", "docs-full"):
            raise WorkloadError(f"mask: expected {MASK_FORMS}, found {self.kind!r}")
        if (self.kind == "window") != (self.window is not None):
            raise WorkloadError(f"mask {self.kind}: expected a window length exactly for window:N")
        if self.kind.startswith("docs") != bool(self.documents):
            raise WorkloadError(f"mask {self.kind}: expected document lengths exactly for docs")
        for name, length in [("window", self.window), *(("docs", n) for n in self.documents)]:
            if length is not None and length < 1:
                raise WorkloadError(f"mask {name}: expected lengths of 1 or more, found {length}")

    def __str__(self) -> str:
        if self.window is not None:
            return f"window:{self.window}"
        if self.documents:
            return f"{self.kind}:{','.join(map(str, self.documents))}"
        return self.kind

    def check_length(self, seq_len: int) -> None:
        """Check that the mask fits a sequence.

        Raises:
            WorkloadError: The document lengths do not add up to ``seq_len``.
        """
        if self.documents and sum(self.documents) != seq_len:
            raise WorkloadError(
                f"mask {self.kind}: the documents hold {sum(self.documents)} tokens in all, "
                f"but the sequence length is {seq_len}; leave the length out or make them agree"
            )

    def segments(self, seq_len: int) -> Iterator[Segment]:
        """Yield the rules, covering the query rows ``0 .. seq_len - 1`` in order."""
        match self.kind:
            case "full":
                yield Segment(0, seq_len, Limit(0), Limit(seq_len))
            case "causal":
                yield Segment(0, seq_len, Limit(0), Limit(1, slides=True))
            case "window":
                lower = Limit(1 - (self.window or 1), slides=True)
                yield Segment(0, seq_len, lower, Limit(1, slides=True))
            case _:
                start = 0
                for length in self.documents:
                    upper = Limit(1, slides=True) if self.kind == "docs" else Limit(start + length)
                    yield Segment(start, start + length, Limit(start), upper)
                    start += length


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
