"""Sweeps on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from charm_sched.render.tables import fitting, names_of
from charm_sched.units import format_seconds
from charm_sched.what_if.sweep_values import FINE, words

if TYPE_CHECKING:
    from rich.console import Console

    from charm_sched.what_if.sweep_values import Sample, Sweep


def show_sweep(console: Console, sweep: Sweep) -> None:
    """Print a table per direction, and where what is best changes."""
    names = names_of(sample.strategy for sample in sweep.samples)
    head = ("value", "best", "", "computation", "bound", "ring", "limit")
    for direction in dict.fromkeys(sample.direction for sample in sweep.samples):
        title = f"\n{direction.capitalize()} by {sweep.axis.path}"
        console.print(Text(title, style="bold"))
        rows = [
            _cells(sample, sweep.axis.show(sample.value), names[sample.strategy])
            for sample in sweep.samples
            if sample.direction == direction
        ]
        table = fitting(head, rows, console.width - 2, left=(0, 2, 6), name=2, least=16)
        console.print(Padding(table, (0, 0, 0, 2)))
    for crossover in sweep.crossovers:
        console.print(Padding(Text(words(crossover, sweep.axis)), (0, 0, 0, 2)))
    if not sweep.crossovers:
        text = "The same strategy is best, and the same is the limit, at all of them."
        console.print(Padding(Text(text), (0, 0, 0, 2)))
    note = (
        "The limit is what the bound is by: computation, or the links across the narrowest cut. "
        "Each strategy was tried with its first parameters alone. Where something changes is found "
        f"to {FINE:.0%}, from {sweep.evaluated} values in all."
    )
    console.print(Padding(Text(note, style="dim"), (0, 0, 0, 2)))


def _cells(sample: Sample, value: str, name: str) -> tuple[str, ...]:
    return (
        value,
        format_seconds(sample.makespan, digits=3),
        name,
        format_seconds(sample.compute, digits=3),
        format_seconds(sample.bound, digits=3),
        "" if sample.ring is None else format_seconds(sample.ring, digits=3),
        sample.limit,
    )


__all__ = ["show_sweep"]
