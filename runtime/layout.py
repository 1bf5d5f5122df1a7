"""Where the numbers of an item lie: its fields, their place in a buffer, and windows into them.

The fields of a kind, all with heads in dimension 1 and rows in dimension 2:

    q (q)    kv (k, v)    o (out, lse)    g (dout, lse, delta)    dq (dq)    dkv (dk, dv)

A buffer is raw bytes. Fields with larger elements come first, so everything is aligned without
padding and a message has exactly the bytes that the plan counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from charm_sched.errors import PlanError
from charm_sched.partition import Rows, count_rows
from charm_sched.plans.items import Item
from charm_sched.runtime.numerics import Precision
from charm_sched.workload import Workload

Fields = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """One field in a buffer: its dtype, its shape and its first byte."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.dtype.itemsize * int(torch.Size(self.shape).numel())


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of some items in one buffer.

    Attributes:
        items: The fields of each item.
        nbytes: Bytes in all.
    """

    items: tuple[tuple[Spec, ...], ...]
    nbytes: int

    def views(self, buffer: Tensor) -> tuple[Fields, ...]:
        """Give the fields of each item as tensors that share the buffer's memory."""
        return tuple(tuple(_view(buffer, spec) for spec in specs) for specs in self.items)


def layout_of(
    items: Sequence[Item],
    workload: Workload,
    precision: Precision,
    *,
    finals: Sequence[bool] | None = None,
) -> Layout:
    """Lay items out in one buffer.

    Args:
        items: The items, in order.
        workload: Gives batch and head sizes.
        precision: Gives the dtypes.
        finals: Whether each is a final result, in a message; None where they are at rest and
            partial results have the dtype in which they accumulate.
    """
    if finals is None:
        dtypes = [precision.accumulate] * len(items)
    else:
        dtypes = [precision.final if final else precision.wire for final in finals]
    specs = [
        _fields(item, workload, precision, dtype) for item, dtype in zip(items, dtypes, strict=True)
    ]
    flat = [(spec, i, j) for i, fields in enumerate(specs) for j, spec in enumerate(fields)]
    placed = [list(fields) for fields in specs]
    offset = 0
    for spec, i, j in sorted(flat, key=lambda entry: -entry[0].dtype.itemsize):
        placed[i][j] = Spec(spec.dtype, spec.shape, offset)
        offset += spec.nbytes
    return Layout(tuple(tuple(fields) for fields in placed), offset)


def _fields(
    item: Item, workload: Workload, precision: Precision, partial: torch.dtype
) -> list[Spec]:
    lead = (workload.batch, item.heads[1] - item.heads[0], count_rows(item.rows))
    statistic = Spec(precision.accumulate, lead)
    key, value = (*lead, workload.head_dim), (*lead, workload.value_dim)
    match item.kind:
        case "q":
            return [Spec(precision.data, key)]
        case "kv":
            return [Spec(precision.data, key), Spec(precision.data, value)]
        case "o":
            return [Spec(partial, value), statistic]
        case "g":
            return [Spec(precision.data, value), statistic, statistic]
        case "dq":
            return [Spec(partial, key)]
        case _:
            return [Spec(partial, key), Spec(partial, value)]


def _view(buffer: Tensor, spec: Spec) -> Tensor:
    return buffer[spec.offset : spec.offset + spec.nbytes].view(spec.dtype).view(spec.shape)


@dataclass(frozen=True, slots=True)
class Window:
    """A rectangle inside a larger one, by position.

    Attributes:
        heads: First and past-the-last head.
        spans: Runs of rows, in order; one run where the rows lie together.
    """

    heads: tuple[int, int]
    spans: tuple[tuple[int, int], ...]

    def load(self, fields: Fields) -> Fields:
        """Give the rectangle's fields: views where the rows lie together, else copies."""
        if len(self.spans) == 1:
            return tuple(self._part(field, self.spans[0]) for field in fields)
        return tuple(
            torch.cat([self._part(field, span) for span in self.spans], dim=2) for field in fields
        )

    def pieces(self, fields: Fields) -> list[tuple[Fields, slice]]:
        """Give views of each run of rows, with the rows it takes inside the rectangle."""
        found, start = [], 0
        for span in self.spans:
            end = start + span[1] - span[0]
            found.append((tuple(self._part(field, span) for field in fields), slice(start, end)))
            start = end
        return found

    def _part(self, field: Tensor, span: tuple[int, int]) -> Tensor:
        return field[:, self.heads[0] : self.heads[1], span[0] : span[1]]


def window_in(
    holder_rows: Rows, rows: Rows, holder_heads: tuple[int, int], heads: tuple[int, int]
) -> Window:
    """Find a rectangle inside another, both on the same head axis.

    >>> window_in(((0, 4), (8, 12)), ((2, 4), (8, 9)), (0, 8), (4, 6))
    Window(heads=(4, 6), spans=((2, 5),))

    Raises:
        PlanError: It does not lie inside.
    """
    spans: list[tuple[int, int]] = []
    for first, last in rows:
        start = 0
        for low, high in holder_rows:
            if low <= first and last <= high:
                span = (start + first - low, start + last - low)
                if spans and spans[-1][1] == span[0]:
                    span = (spans.pop()[0], span[1])
                spans.append(span)
                break
            start += high - low
        else:
            raise PlanError(f"rows {rows} do not lie in {holder_rows}")
    if not holder_heads[0] <= heads[0] < heads[1] <= holder_heads[1]:
        raise PlanError(f"heads {heads} do not lie in {holder_heads}")
    return Window((heads[0] - holder_heads[0], heads[1] - holder_heads[0]), tuple(spans))
