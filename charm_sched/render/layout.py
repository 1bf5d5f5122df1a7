"""Parallel layouts on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from charm_sched.planners.external import short_name
from charm_sched.render.tables import CHOSEN, fitting
from charm_sched.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from charm_sched.what_if.layouts import LayoutResult

MOST_GROUPS = 4


def show_layout(console: Console, found: LayoutResult) -> None:
    """Print the attention groups, what they take together, and the links that they share."""
    layout, size = found.layout, len(found.groups)
    console.print(Text(f"\nLayout {layout}: {size} attention groups of {layout.cp}", style="bold"))
    for number, devices in enumerate(found.groups[:MOST_GROUPS]):
        shown = list(devices) if len(devices) <= 4 else [*devices[:3], "...", devices[-1]]
        console.print(Padding(Text(f"group {number}: {', '.join(shown)}"), (0, 0, 0, 2)))
    if size > MOST_GROUPS:
        console.print(Padding(Text(f"... and {size - MOST_GROUPS} more"), (0, 0, 0, 2)))
    rows = [
        (
            f"{CHOSEN if case in found.chosen else ' '} {short_name(case.strategy)}",
            case.direction,
            format_seconds(case.alone, digits=3),
            format_seconds(case.together, digits=3),
            f"{case.together / case.alone - 1:+.1%}",
        )
        for case in found.cases
    ]
    head = ("strategy", "pass", "one group alone", "all together", "slower by")
    console.print(Padding(fitting(head, rows, console.width - 2, left=(0, 1)), (0, 0, 0, 2)))
    for line in sharing_lines(found):
        console.print(Padding(Text(line), (0, 0, 0, 2)))


def sharing_lines(found: LayoutResult) -> list[str]:
    """Say how many groups use each link, kind by kind."""
    lines = []
    for one in found.sharing:
        counts = f"{one.most}" if one.least == one.most else f"{one.least} to {one.most}"
        noun = "group" if one.most == 1 else "groups"
        lines.append(f"{one.kind}: {counts} {noun} on each of {one.links} links in use")
    return lines


__all__ = ["sharing_lines", "show_layout"]
