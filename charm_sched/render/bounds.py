"""Bounds on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from charm_sched.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from charm_sched.bounds.bound import Bound
    from charm_sched.bounds.limits import MachineLimit
    from charm_sched.search.results import Result


def bound_facts(result: Result) -> Iterator[tuple[str, str]]:
    """Say what the bounds of a result are, and which cut is the narrowest for it."""
    limit = result.class_bound
    yield "bound", f"{_judged(result, result.bound)} for any schedule, by {result.bound.reason}"
    if limit is not None:
        yield "", f"{_judged(result, limit)} for those that move KV, by {limit.reason}"
    tightest = limit or result.bound
    if tightest.cut is not None and tightest.cut.words != tightest.reason:
        yield "cut", _cut(tightest)


def _judged(result: Result, limit: Bound) -> str:
    return f"{format_seconds(limit.seconds, digits=3)} ({result.efficiency(limit):.0%} reached)"


def _cut(limit: Bound) -> str:
    words = limit.cut.words if limit.cut else ""
    return f"{format_seconds(limit.communication, digits=3)} at least for {words}"


def show_limits(console: Console, limits: Sequence[MachineLimit]) -> None:
    """Print the bounds of a machine, direction by direction."""
    for number, limit in enumerate(limits):
        console.print(Text(f"{chr(10) * (number > 0)}{limit.direction.capitalize()}", style="bold"))
        facts = Table.grid(padding=(0, 2))
        facts.add_column(no_wrap=True)
        for title, found in (
            ("any schedule", limit.bound),
            (f"moving KV, {limit.partition}", limit.class_bound),
        ):
            took = format_seconds(found.seconds, digits=3)
            facts.add_row(title, Text(f"{took} at least, by {found.reason}"))
            if found.cut is not None and found.cut.words != found.reason:
                facts.add_row("", Text(_cut(found)))
        console.print(Padding(facts, (0, 0, 0, 2)))
