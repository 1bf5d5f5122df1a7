"""Machines side by side: the same workload's time, bound and cost on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from charm_sched.search.results import Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCost:
    """What the attention of one layer costs on a machine, over all directions that were planned.

    Attributes:
        money: Per million tokens; None where the file states no price.
        currency: Of `money`; empty without.
        energy: kWh per million tokens; None where the file states no power.
    """

    money: float | None
    currency: str
    energy: float | None


def total_seconds(comparison: Comparison) -> float:
    """Give the makespans of the chosen plans together."""
    return sum(result.timeline.makespan for result in comparison.chosen.values())


def total_bound(comparison: Comparison) -> float:
    """Give the seconds that no schedule can beat, over the directions that were planned."""
    return sum(result.bound.seconds for result in comparison.chosen.values())


def cost_of(comparison: Comparison) -> MachineCost | None:
    """Give what a workload costs on a machine; None where its file states no cost."""
    costs = comparison.topology.costs
    if costs is None:
        return None
    seconds = total_seconds(comparison)
    tokens = comparison.workload.seq_len * comparison.workload.batch
    money = costs.money(seconds, tokens)
    return MachineCost(
        money=money,
        currency="" if money is None else costs.currency,
        energy=costs.energy(seconds, tokens),
    )


def cost_document(comparison: Comparison) -> dict[str, Any] | None:
    """Give a cost as JSON; null where the file states none."""
    found = cost_of(comparison)
    if found is None:
        return None
    return {
        "of": "attention of one layer, in the directions planned",
        "per_million_tokens": found.money,
        "currency": found.currency or None,
        "kwh_per_million_tokens": found.energy,
    }


def machine_documents(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Give one row per machine, as JSON."""
    first = total_seconds(comparisons[0]) if comparisons else 0.0
    return [
        {
            "name": comparison.topology.name,
            "ranks": max(result.plan.num_ranks for result in comparison.chosen.values()),
            "makespan_s": {d: r.timeline.makespan for d, r in comparison.chosen.items()},
            "bound_s": {d: r.bound.seconds for d, r in comparison.chosen.items()},
            "speed_vs_first": first / total_seconds(comparison),
            "cost": cost_document(comparison),
        }
        for comparison in comparisons
    ]


__all__ = [
    "MachineCost", "cost_document", "cost_of", "machine_documents", "total_bound", "total_seconds",
]  # fmt: skip
