"""The report of charm-run: what was predicted and what was measured, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from charm_sched.render.comparison import describe
from charm_sched.render.tables import fitting, names_of
from charm_sched.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from charm_sched.search.results import Comparison

HEAD = ("pass", "strategy", "predicted", "measured", "error", "spread", "max error")


def show(
    console: Console,
    comparison: Comparison,
    measured: Mapping[str, Mapping[str, Any]],
    *,
    kernel: str,
    repeat: int,
) -> None:
    """Print what was run, and a row per pass.

    Args:
        console: Where.
        comparison: What was chosen.
        measured: Of each direction.
        kernel: Backend of the kernels.
        repeat: Timed runs.
    """
    plan = next(iter(comparison.chosen.values())).plan
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
    names = names_of(comparison.chosen[direction].strategy for direction in measured)
    rows = [
        _row(direction, comparison, row, names) for direction, row in measured.items()
    ]  # fmt: skip
    width = console.width - 2
    table = fitting(HEAD, rows, width, left=(0, 1), name=1, least=16)
    console.print(Padding(table, (0, 0, 0, 2)))
    if any(row["max_error"] is None for row in measured.values()):
        console.print("Too long to compare with dense attention; results are not checked.")


def _row(
    direction: str,
    comparison: Comparison,
    row: Mapping[str, Any],
    names: Mapping[str, str],
) -> tuple[str, ...]:
    result = comparison.chosen[direction]
    spread, wrong = row["measured_spread_s"], row["max_error"]
    return (
        direction,
        names[result.strategy],
        format_seconds(result.timeline.makespan, digits=3),
        format_seconds(row["measured_s"], digits=3),
        f"{100 * row['prediction_error']:+.1f} %",
        "-" if spread is None else format_seconds(spread, digits=2),
        "-" if wrong is None else f"{wrong:.1e}",
    )
