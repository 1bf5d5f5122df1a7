"""A timeline as bars: how its time splits up, and what each level does when."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from charm_sched.plans.plan import TRANSFER
from charm_sched.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from charm_sched.timelines.timeline import Level, Timeline

Spans = Sequence[tuple[float, float]]
MOST_ROWS = 4
"""Rows that one stream takes at most; more levels are put together."""


class Bar:
    """Spans of a total, drawn over as many columns as there are."""

    def __init__(self, spans: Spans, total: float, style: str) -> None:
        self._spans, self._total, self._style = spans, total, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        full, half = ("#", "-") if options.ascii_only else ("█", "▒")
        width = options.max_width
        covered = np.zeros(width)
        for start, end in self._spans:
            _cover(covered, start / self._total * width, end / self._total * width)
        cells = (full if part > 0.75 else half if part > 0.05 else " " for part in covered)
        yield Text("".join(cells), style=self._style, no_wrap=True)


def legend(console: Console) -> Text:
    """Say what the signs of a bar mean."""
    full, half = ("#", "-") if console.options.ascii_only else ("█", "▒")
    return Text(f"({full} all of the time, {half} a part of it)", style="dim")


def _cover(covered: NDArray[np.float64], start: float, end: float) -> None:
    """Add to each column the part of it that lies between two positions; a touch shows."""
    first, last = int(start), min(math.ceil(end), len(covered))
    for column in range(first, last):
        part = min(end, column + 1) - max(start, column)
        covered[column] += max(part, 0.06 if end > start else 0.0)


def meter(timeline: Timeline, *, ring: float | None, width: int) -> Table:
    """Draw how the makespan splits into computation and exposed communication.

    Args:
        timeline: Whose.
        ring: Seconds of Ring-Attention, drawn below to the same scale; None to leave it out.
        width: Columns to take.
    """
    compute, exposed = timeline.compute_s, max(timeline.exposed_comm, 0.0)
    total = max(timeline.makespan, ring or 0.0) or 1.0
    table = Table.grid(padding=(0, 2))
    table.width = width
    for justify in ("left", "right"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_column(ratio=1)
    bars = [
        ("computation", compute, (0.0, compute), "green"),
        ("exposed communication", exposed, (compute, compute + exposed), "red"),
    ]
    if ring is not None:
        bars.append(("Ring-Attention", ring, (0.0, ring), "dim"))
    for name, seconds, (start, end), style in bars:
        spans = [(start, end)] if end > start else []
        table.add_row(name, format_seconds(seconds, digits=3), Bar(spans, total, style))
    return table


def lanes(timeline: Timeline, *, width: int) -> Table:
    """Draw the computation of the busiest rank, and each stream level by level, over time."""
    total = timeline.makespan or 1.0
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", width=width)
    for name, justify in (
        ("stream", "left"), ("levels", "left"), ("moved", "right"), ("start", "right"),
        ("end", "right"),
    ):  # fmt: skip
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column(f"0 to {format_seconds(total, digits=3)}", ratio=1)
    busy = kernel_spans(timeline)
    if busy:
        rank = int(timeline.compute_seconds.argmax())
        span = (format_seconds(busy[0][0], digits=3), format_seconds(busy[-1][1], digits=3))
        table.add_row("computation", f"rank {rank}", "", *span, Bar(busy, total, "green"))
    for stream, levels in groupby(timeline.levels, lambda level: level.stream):
        for number, run in enumerate(condense(list(levels))):
            table.add_row(stream if not number else "", *_run_cells(run), _run_bar(run, total))
    return table


def kernel_spans(timeline: Timeline) -> list[tuple[float, float]]:
    """List when the busiest rank computes, spans that touch joined."""
    columns = timeline.plan.columns
    rank = int(timeline.compute_seconds.argmax())
    rows = np.flatnonzero((columns.op != TRANSFER) & (columns.rank == rank))
    return joined(zip(timeline.start[rows].tolist(), timeline.end[rows].tolist(), strict=True))


def joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Sort spans and join those that overlap or touch.

    >>> joined([(3.0, 4.0), (0.0, 1.0), (1.0, 2.0)])
    [(0.0, 2.0), (3.0, 4.0)]
    """
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def condense(levels: Sequence[Level], most: int = MOST_ROWS) -> list[Sequence[Level]]:
    """Put consecutive levels together into at most ``most`` runs of nearly equal length."""
    count = min(most, len(levels))
    cuts = [len(levels) * number // count for number in range(count + 1)] if count else []
    return [levels[first:last] for first, last in pairwise(cuts)]


def _run_cells(run: Sequence[Level]) -> tuple[str, str, str, str]:
    first, last = run[0].level, run[-1].level
    return (
        f"{first}" if first == last else f"{first} to {last}",
        format_bytes(sum(level.bytes for level in run), digits=3),
        format_seconds(min(level.start for level in run), digits=3),
        format_seconds(max(level.end for level in run), digits=3),
    )


def _run_bar(run: Sequence[Level], total: float) -> Bar:
    return Bar(joined((level.start, level.end) for level in run), total, "blue")
