"""Items: what is moved and computed on.

An item is ``(kind, rows, heads, part)``. ``q``, ``kv`` and ``g`` are *copied* when they move; the
partial results ``o``, ``dq`` and ``dkv`` *move*, or they would count twice. Heads are query heads
for q, o, g, dq and KV heads for kv, dkv; the two are compared on the query-head axis.

Text form: ``kv[0:128+896:1024]h0:8`` with ``.1`` behind it for part 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from charm_sched.errors import PlanError
from charm_sched.partition import Rows, is_normal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from charm_sched.masks.mask import Mask

KINDS = ("q", "kv", "o", "g", "dq", "dkv")
Q, KV, O, G, DQ, DKV = range(6)  # noqa: E741  (the usual name of attention's output)
COPIED = (Q, KV, G)
PARTIAL = (O, DQ, DKV)
KV_AXIS = (KV, DKV)
HOME = -1

_ITEM = re.compile(
    r"(q|kv|o|g|dq|dkv)\[((?:\d+:\d+\+)*\d+:\d+)\]h(\d+):(\d+)(?:\.(\d+))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Item:
    """A piece of one tensor.

    Attributes:
        kind: ``q``, ``kv``, ``o`` (partial output with its log-sum-exp), ``g`` (gradient of the
            output, log-sum-exp, delta), ``dq`` or ``dkv``.
        rows: Token rows.
        heads: First and past-the-last head, on the kind's own axis.
        part: Tells apart partial results of the same thing on one rank.

    Raises:
        PlanError: An unknown kind, no rows, an empty head range, or a part on a copied kind.
    """

    kind: str
    rows: Rows
    heads: tuple[int, int]
    part: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PlanError(f"item: expected a kind of {', '.join(KINDS)}, found {self.kind!r}")
        if not is_normal(self.rows):
            raise PlanError(f"item {self.kind}: expected sorted disjoint rows, found {self.rows}")
        if not 0 <= self.heads[0] < self.heads[1]:
            raise PlanError(f"item {self.kind}: expected a range of heads, found {self.heads}")
        if self.part and KINDS.index(self.kind) in COPIED:
            raise PlanError(f"item {self.kind}: expected part 0, found {self.part}")
        if not 0 <= self.part < 2**15:
            raise PlanError(f"item {self.kind}: expected a part up to 32767, found {self.part}")

    def __str__(self) -> str:
        rows = "+".join(f"{first}:{last}" for first, last in self.rows)
        part = f".{self.part}" if self.part else ""
        return f"{self.kind}[{rows}]h{self.heads[0]}:{self.heads[1]}{part}"


def parse_item(text: str) -> Item:
    """Read an item's text form.

    >>> str(parse_item("dkv[0:4+8:12]h0:2.1"))
    'dkv[0:4+8:12]h0:2.1'

    Raises:
        PlanError: The text is not an item.
    """
    match = _ITEM.fullmatch(text)
    if match is None:
        raise PlanError(f"item: expected a form such as kv[0:128]h0:8, found {text!r}")
    kind, rows, low, high, part = match.groups()
    intervals = tuple(
        (int(first), int(last)) for first, last in (run.split(":") for run in rows.split("+"))
    )
    return Item(kind, intervals, (int(low), int(high)), int(part or 0))


@dataclass(frozen=True, eq=False, kw_only=True)
class ItemTable:
    """All items of a plan, in columns; an item is its position here.

    Attributes:
        kind: Index into `KINDS`, uint8.
        rows: Index of the row set, int32. Row sets are stored once.
        head_lo: First head, int32.
        head_hi: Past the last head, int32.
        part: int16.
        row_ptr: Row set ``i`` is ``row_lo/row_hi[row_ptr[i]:row_ptr[i + 1]]``, int64.
        row_lo: First tokens, int64.
        row_hi: Past the last tokens, int64.
    """

    kind: NDArray[np.uint8]
    rows: NDArray[np.int32]
    head_lo: NDArray[np.int32]
    head_hi: NDArray[np.int32]
    part: NDArray[np.int16]
    row_ptr: NDArray[np.int64]
    row_lo: NDArray[np.int64]
    row_hi: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, index: int) -> Item:
        return Item(
            KINDS[self.kind[index]],
            self.row_set(int(self.rows[index])),
            (int(self.head_lo[index]), int(self.head_hi[index])),
            int(self.part[index]),
        )

    def row_set(self, index: int) -> Rows:
        """Give row set ``index`` as intervals."""
        span = slice(self.row_ptr[index], self.row_ptr[index + 1])
        return tuple(zip(self.row_lo[span].tolist(), self.row_hi[span].tolist(), strict=True))

    @cached_property
    def row_counts(self) -> NDArray[np.int64]:
        """Tokens per row set."""
        import numpy as np

        ends = np.concatenate([[0], np.cumsum(self.row_hi - self.row_lo)])
        counts: NDArray[np.int64] = ends[self.row_ptr[1:]] - ends[self.row_ptr[:-1]]
        return counts

    def holding(self, row_set: int) -> NDArray[np.bool_]:
        """Say which row sets hold all rows of one."""
        import numpy as np

        span = slice(self.row_ptr[row_set], self.row_ptr[row_set + 1])
        sets, stride = np.arange(len(self.row_counts)), int(self.row_hi.max(initial=0)) + 1
        starts = np.repeat(sets, np.diff(self.row_ptr)) * stride + self.row_lo
        sought = sets[:, None] * stride + self.row_lo[span]
        near = np.searchsorted(starts, sought, side="right") - 1
        there = near >= self.row_ptr[:-1, None]
        there &= self.row_hi[near] >= self.row_hi[span]
        return np.asarray(there.all(axis=1))

    @cached_property
    def known_areas(self) -> dict[Mask, dict[int, int]]:
        """Unmasked pairs of row sets that were counted already, by mask (see `areas`)."""
        return {}

    @cached_property
    def padded_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Row sets as ``[row sets, most intervals]`` arrays of first and past-the-last token.

        Missing intervals are empty: 0 to 0.
        """
        import numpy as np

        counts = np.diff(self.row_ptr)
        columns = np.arange(max(counts.max(initial=0), 1))
        there = columns < counts[:, None]
        low, high = np.zeros(there.shape, np.int64), np.zeros(there.shape, np.int64)
        low[there], high[there] = self.row_lo, self.row_hi
        return low, high


class ItemInterner:
    """Gives each distinct item a number, in order of first mention."""

    def __init__(self) -> None:
        self._items: dict[Item, int] = {}
        self._rows: dict[Rows, int] = {}
        self._columns: list[tuple[int, int, int, int, int]] = []
        self._known_areas: dict[Mask, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __call__(self, item: Item) -> int:
        """Give an item's number, a new one at first mention."""
        number = self._items.get(item)
        if number is None:
            number = self._items[item] = len(self._items)
            rows = self._rows.setdefault(item.rows, len(self._rows))
            kind = KINDS.index(item.kind)
            self._columns.append((kind, rows, item.heads[0], item.heads[1], item.part))
        return number

    def table(self) -> ItemTable:
        """Give the items numbered so far as columns; tables of one interner share `known_areas`."""
        import numpy as np

        columns = np.array(self._columns, dtype=np.int64).reshape(-1, 5)
        bounds = np.array([run for rows in self._rows for run in rows], np.int64).reshape(-1, 2)
        table = ItemTable(
            kind=columns[:, 0].astype(np.uint8),
            rows=columns[:, 1].astype(np.int32),
            head_lo=columns[:, 2].astype(np.int32),
            head_hi=columns[:, 3].astype(np.int32),
            part=columns[:, 4].astype(np.int16),
            row_ptr=np.cumsum([0, *map(len, self._rows)], dtype=np.int64),
            row_lo=bounds[:, 0].copy(),
            row_hi=bounds[:, 1].copy(),
        )
        table.__dict__["known_areas"] = self._known_areas
        return table
