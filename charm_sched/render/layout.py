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

    from charm_sched.what_if.layouts import LayoutResult, Together

LAYOUT_HEAD = ("strategy", "pass", "one group alone", "all together", "slower by")
MOST_GROUPS = 4


def show_layout(console: Console, found: LayoutResult) -> None:
    """Print the attention groups, what they take together, and the links that they share."""
    size = len(found.groups)
    console.print(Text(f"\n{layout_title(found)}", style="bold"))
    for number, devices in enumerate(found.groups[:MOST_GROUPS]):
        shown = list(devices) if len(devices) <= 4 else [*devices[:3], "...", devices[-1]]
        console.print(Padding(Text(f"group {number}: {', '.join(shown)}"), (0, 0, 0, 2)))
    if size > MOST_GROUPS:
        console.print(Padding(Text(f"... and {size - MOST_GROUPS} more"), (0, 0, 0, 2)))
    rows = [
        (
            f"{CHOSEN if case in found.chosen else ' '} {short_name(case.strategy)}",
            *layout_cells(case),
        )
        for case in found.cases
    ]
    console.print(Padding(fitting(LAYOUT_HEAD, rows, console.width - 2, left=(0, 1)), (0, 0, 0, 2)))
    for line in sharing_lines(found):
        console.print(Padding(Text(line), (0, 0, 0, 2)))


def layout_title(found: LayoutResult) -> str:
    """Name the layout."""
    return f"Layout {found.layout}: {len(found.groups)} attention groups of {found.layout.cp}"


def layout_cells(case: Together) -> tuple[str, ...]:
    """Give what a table tells of a case beside its strategy, under `LAYOUT_HEAD`."""
    return (
        case.direction,
        format_seconds(case.alone, digits=3),
        format_seconds(case.together, digits=3),
        f"{case.together / case.alone - 1:+.1%}",
    )


def sharing_lines(found: LayoutResult) -> list[str]:
    """Say how many groups use each link, kind by kind."""
    lines = []
    for one in found.sharing:
        counts = f"{one.most}" if one.least == one.most else f"{one.least} to {one.most}"
        noun = "group" if one.most == 1 else "groups"
        lines.append(f"{one.kind}: {counts} {noun} on each of {one.links} links in use")
    return lines


__all__ = ["LAYOUT_HEAD", "layout_cells", "layout_title", "sharing_lines", "show_layout"]
