"""What changes of a machine do, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from charm_sched.planners.external import short_name
from charm_sched.render.tables import fitting
from charm_sched.topology.change_paths import some
from charm_sched.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from charm_sched.commands.what_if import Case, WhatIf
    from charm_sched.what_if.jitter import Jitter

SAME = 0.001
"""Times that differ by less are told as equal."""


def show_what_if(console: Console, found: WhatIf) -> None:
    """Print what was changed, and the times before and after."""
    if found.changed.changes:
        console.print(Text(f"\nWhat if: {'; '.join(found.changed.changes)}", style="bold"))
        for line in _lost(found):
            console.print(Padding(Text(line), (0, 0, 0, 2)))
        console.print(Padding(_cases(found.cases, console.width - 2), (0, 0, 0, 2)))
        for case in found.cases[1:]:
            console.print(Padding(Text(compared(found.cases[0], case)), (0, 0, 0, 2)))
    if found.jitter:
        _show_jitter(console, found.jitter)


def _lost(found: WhatIf) -> list[str]:
    lines = []
    if found.changed.failed:
        lines.append(f"gone: {some(found.changed.failed)}")
    if found.changed.left_out:
        names = some(found.changed.left_out)
        lines.append(f"left out of a new plan, for they no longer reach all others: {names}")
    return lines


def _cases(cases: Sequence[Case], width: int) -> Table:
    directions = list(cases[0].seconds)
    head = ("case", "ranks", *directions, "total", "speed", "strategies")
    rows = []
    for case in cases:
        names = dict.fromkeys(short_name(name) for name in case.strategies.values())
        rows.append(
            (
                case.label,
                str(case.ranks),
                *(format_seconds(case.seconds[d], digits=3) for d in directions),
                format_seconds(case.total, digits=3),
                f"{cases[0].total / case.total:.2f}x",
                ", ".join(names),
            )
        )
    return fitting(head, rows, width, left=(0, len(head) - 1), least=32)


def compared(before: Case, after: Case) -> str:
    """Compare two cases in words.

    >>> from charm_sched.commands.what_if import Case
    >>> one = Case(label="as it is", ranks=2, seconds={"forward": 2.0}, strategies={})
    >>> two = Case(label="without a card", ranks=2, seconds={"forward": 2.5}, strategies={})
    >>> compared(one, two)
    'without a card: 25.0% more time, 500 ms lost.'
    """
    change = after.total / before.total - 1
    took = format_seconds(abs(after.total - before.total), digits=3)
    if abs(change) < SAME:
        return f"{after.label}: no difference."
    if change > 0:
        return f"{after.label}: {change:.1%} more time, {took} lost."
    return f"{after.label}: {-change:.1%} less time, {took} gained."


def _show_jitter(console: Console, found: Sequence[Jitter]) -> None:
    first = found[0]
    title = (
        f"\nJitter: each device and link {100 * first.mean:g}% slower on average, "
        f"{len(first.makespans)} repetitions, seed {first.seed}"
    )
    console.print(Text(title, style="bold"))
    head = ("direction", "undisturbed", "least", "median", "90%", "most", "median loss")
    rows = []
    for one in found:
        times = [one.undisturbed, *(one.quantile(q) for q in (0.0, 0.5, 0.9, 1.0))]
        loss = one.quantile(0.5) / one.undisturbed - 1
        rows.append((one.direction, *(format_seconds(t, digits=3) for t in times), f"{loss:+.1%}"))
    console.print(Padding(fitting(head, rows, console.width - 2), (0, 0, 0, 2)))
    note = (
        "A part is 1 + x times as slow, x exponentially distributed and drawn anew for each part "
        "and repetition; it stays so for the whole pass."
    )
    console.print(Padding(Text(note, style="dim"), (0, 0, 0, 2)))


__all__ = ["compared", "show_what_if"]
