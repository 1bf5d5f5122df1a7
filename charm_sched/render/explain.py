"""Explanations on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from charm_sched.render.tables import fitting
from charm_sched.units import format_seconds
from charm_sched.what_if.explain import COMPUTATION
from charm_sched.what_if.levers import CLEAR

if TYPE_CHECKING:
    from rich.console import RenderableType

    from charm_sched.what_if.explain import Explanation
    from charm_sched.what_if.levers import Lever

MOST_CAUSES = 8
HARDLY = 0.02
"""A part of the makespan below this is not worth a line of its own."""


def path_facts(explanation: Explanation) -> Iterator[tuple[str, str]]:
    """Say in two lines what is on the critical path, and what its longest wait is."""
    total = explanation.makespan or 1.0
    shares = [
        f"{seconds / total:.0%} {name}"
        for name, seconds in explanation.shares.items()
        if seconds >= HARDLY * total
    ]
    yield "critical path", ", ".join(shares)
    waits = [cause for cause in explanation.causes if cause.stretches[0].kind != COMPUTATION]
    if waits:
        longest = max(waits, key=lambda cause: cause.seconds)
        if longest.seconds >= HARDLY * total:
            yield "", longest.words


def details(explanation: Explanation, width: int) -> Iterator[RenderableType]:
    """Give the whole explanation: each cause in words, the cut, and what would help."""
    yield Text("why it takes that long", style="dim")
    yield _causes(explanation)
    if explanation.levers is not None:
        yield Text()
        yield Text("what would help: one thing twice as good", style="dim")
        yield Padding(_levers(explanation.levers, width - 2), (0, 0, 0, 2))
        yield Padding(Text(verdict(explanation.levers)), (0, 0, 0, 2))


def _causes(explanation: Explanation) -> Padding:
    total = explanation.makespan or 1.0
    longest = sorted(explanation.causes, key=lambda cause: -cause.seconds)[:MOST_CAUSES]
    listing = Table.grid(padding=(0, 2))
    listing.add_column(justify="right", no_wrap=True)
    for cause in explanation.causes:
        if cause in longest:
            listing.add_row(f"{cause.seconds / total:.0%}", Text(cause.words))
    left = len(explanation.causes) - len(longest)
    if left:
        rest = total - sum(cause.seconds for cause in longest)
        took = format_seconds(rest, digits=3)
        listing.add_row(f"{rest / total:.0%}", Text(f"{left} shorter ones, {took} in all"))
    return Padding(listing, (0, 0, 0, 2))


def _levers(levers: tuple[Lever, ...], width: int) -> Table:
    head = ("changed", "this plan", "gain", "a new plan, at most")
    rows = [
        (
            lever.name,
            format_seconds(lever.makespan, digits=3),
            f"{lever.gain:.2f}x",
            f"{lever.at_most:.2f}x",
        )
        for lever in levers
    ]
    return fitting(head, rows, width, least=40)


def verdict(levers: tuple[Lever, ...]) -> str:
    """Say in a sentence what would help this plan the most, and where a new one might gain more.

    The last column is a bound: no plan of the same class, made for that machine, gains more.
    """
    best = max(levers, key=lambda lever: lever.gain)
    room = max(levers, key=lambda lever: lever.at_most)
    if best.gain < CLEAR:
        text = "None of these makes this plan faster"
    else:
        text = f"{best.name} would help this plan most: {best.gain:.2f} times as fast"
    if room.at_most > CLEAR * best.gain:
        where = "then" if room is best else f"with {room.name}"
        text += f"; {where} a new plan could be {room.at_most:.2f} times as fast as this at most"
    return f"{text}."


__all__ = ["details", "path_facts", "verdict"]
