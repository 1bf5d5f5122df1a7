"""The report of charm-run: what was predicted and what was measured, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from charm_sched.commands.running import AUTO, Row
from charm_sched.render.comparison import describe
from charm_sched.render.tables import fitting, names_of
from charm_sched.timelines.deviation import by_level
from charm_sched.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from charm_sched.search.results import Comparison

HEAD = ("pass", "strategy", "result", "predicted", "measured", "error", "spread", "max error")
LEVEL_HEAD = ("pass", "strategy", "stream", "level", "predicted", "measured", "error")


def show(
    console: Console,
    comparison: Comparison,
    rows: Sequence[Row],
    *,
    kernel: str,
    repeat: int,
) -> None:
    """Print what was run, a row per strategy and pass, and who was refused.

    Args:
        console: Where.
        comparison: What was planned.
        rows: What was run.
        kernel: Backend of the kernels.
        repeat: Timed runs.
    """
    plan = rows[0].result.plan
    profiles = {comparison.topology.device(name).compute.name for name in plan.devices}
    ranks = f"{plan.num_ranks} rank{'s' * (plan.num_ranks != 1)}"
    runs = f"{repeat} run{'s' * (repeat != 1)}"
    console.print(
        Text(
            f"{comparison.topology.name}, {ranks}: {describe(comparison.workload)}\n"
            f"{runs} each with {kernel} kernels; predicted for {', '.join(sorted(profiles))}, "
            "measured on this machine's processors\n"
        )
    )
    names = _names(rows)
    table = fitting(
        HEAD,
        [_row(row, names) for row in rows],
        console.width - 2,
        left=(0, 1, 2),
        name=1,
        least=16,
    )
    console.print(Padding(table, (0, 0, 0, 2)))
    refused = {r.strategy: r.reason for r in reversed(comparison.refused)}
    for strategy, reason in refused.items():
        told = reason.removeprefix(f"{strategy}: ")
        console.print(Padding(Text(f"{strategy}: refused: {told}"), (0, 0, 0, 2)))
    if any(row.max_error is None for row in rows):
        console.print("Too long to compare with dense attention; results are not checked.")


def show_levels(console: Console, rows: Sequence[Row]) -> None:
    """Print when each level of each stream ended, predicted and measured.

    An error is over the measured time of the whole pass.
    """
    names = _names(rows)
    listed = [
        (
            row.result.direction,
            names[row.name],
            level.stream,
            str(level.level),
            format_seconds(level.predicted, digits=3),
            format_seconds(level.measured, digits=3),
            f"{100 * level.error:+.1f} %",
        )
        for row in rows
        for level in by_level(row.result.timeline, row.typical)
    ]
    console.print("\nEnd of each level; the error is over the time of the pass")
    table = fitting(
        LEVEL_HEAD, listed, console.width - 2, left=(0, 1, 2), name=1, least=12
    )  # fmt: skip
    console.print(Padding(table, (0, 0, 0, 2)))


def _names(rows: Sequence[Row]) -> Mapping[str, str]:
    return names_of(row.name for row in rows)


def _row(row: Row, names: Mapping[str, str]) -> tuple[str, ...]:
    name = names[row.name]
    if row.name == AUTO:
        name = f"{AUTO}: {row.result.strategy}"
    return (
        row.result.direction,
        name,
        {None: "-", True: "exact", False: "WRONG"}[row.exact],
        format_seconds(row.result.timeline.makespan, digits=3),
        format_seconds(row.measured, digits=3),
        f"{100 * row.error:+.1f} %",
        "-" if row.spread is None else format_seconds(row.spread, digits=2),
        "-" if row.max_error is None else f"{row.max_error:.1e}",
    )
