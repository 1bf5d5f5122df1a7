"""Machines side by side on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from charm_sched.units import format_seconds
from charm_sched.what_if.machines import cost_of, total_bound, total_seconds

if TYPE_CHECKING:
    from charm_sched.search.results import Comparison


def machine_rows(
    comparisons: Sequence[Comparison],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Give the head and one row per machine: time, bound, and cost where a file states it."""
    costs = [cost_of(comparison) for comparison in comparisons]
    money = any(cost is not None and cost.money is not None for cost in costs)
    energy = any(cost is not None and cost.energy is not None for cost in costs)
    head = (
        "machine", "ranks", *(d.capitalize() for d in comparisons[0].chosen), "vs first", "bound",
        *(["per 1M tokens"] if money else []), *(["kWh"] if energy else []),
    )  # fmt: skip
    first = total_seconds(comparisons[0])
    rows = []
    for comparison, cost in zip(comparisons, costs, strict=True):
        chosen = comparison.chosen.values()
        price = "" if cost is None or cost.money is None else f"{cost.money:.3g} {cost.currency}"
        power = "" if cost is None or cost.energy is None else f"{cost.energy:.3g}"
        rows.append(
            (
                comparison.topology.name,
                str(max(result.plan.num_ranks for result in chosen)),
                *(format_seconds(result.timeline.makespan, digits=3) for result in chosen),
                f"{first / total_seconds(comparison):.2f}x",
                format_seconds(total_bound(comparison), digits=3),
                *([price] if money else []),
                *([power] if energy else []),
            )
        )
    return head, rows


def cost_notes(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Say what costs are of, and for which machines they are not known."""
    known = [c.topology.name for c in comparisons if c.topology.costs is not None]
    if not known:
        return
    yield (
        "Costs are those of the whole machine for the attention of one layer, in the directions "
        "above, per million tokens."
    )
    unknown = [c.topology.name for c in comparisons if c.topology.costs is None]
    if unknown:
        yield f"No price or power stands in the files of {', '.join(unknown)}."


def cost_facts(comparison: Comparison) -> Iterator[str]:
    """Say what one machine costs, where its file says so."""
    cost = cost_of(comparison)
    if cost is None:
        return
    parts = []
    if cost.money is not None:
        parts.append(f"{cost.money:.3g} {cost.currency}")
    if cost.energy is not None:
        parts.append(f"{cost.energy:.3g} kWh")
    yield f"{' and '.join(parts)} per million tokens, for the attention of one layer"


__all__ = ["cost_facts", "cost_notes", "machine_rows"]
