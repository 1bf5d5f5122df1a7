"""The form in which every mask is read: runs of query rows with one rule for the keys they see.

Both limits of a rule are constant or ``i + constant``, so one closed form counts the unmasked pairs
of any two intervals, and kernels need nothing but rectangles, triangles and bands.
"""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):  # thousands are made for each mask: a dataclass takes five times as long
    """One side of the visible interval: ``offset``, plus the row number itself where it slides."""

    offset: int
    slides: bool = False

    def __call__(self, row: int) -> int:
        """Give the limit for one query row."""
        return self.offset + (row if self.slides else 0)


class Segment(NamedTuple):
    """Query rows ``first <= i < last`` that share one rule: keys ``lower(i) <= k < upper(i)``.

    Rows that see several intervals of keys have several segments, with the same first and last row;
    rows that see nothing may have none.
    """

    first: int
    last: int
    lower: Limit
    upper: Limit
