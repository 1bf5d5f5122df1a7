"""Memory of chosen plans, for JSON, the terminal and stderr."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from charm_sched.timelines.memory_use import MOST_OPERATIONS, fullest, memory_use
from charm_sched.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from charm_sched.search.results import Comparison, Result
    from charm_sched.timelines.memory_use import RankMemory

MOST_RANKS = 64
"""Ranks up to which each one is listed."""


def memory_documents(comparison: Comparison) -> dict[str, Any]:
    """Give the memory of each chosen plan by direction; null for a plan too long to look at."""
    found: dict[str, Any] = {}
    for direction, result in comparison.chosen.items():
        ranks = _ranks(result)
        found[direction] = ranks and {
            "fullest": asdict(fullest(ranks)),
            "ranks": [asdict(rank) for rank in ranks] if len(ranks) <= MOST_RANKS else None,
        }
    return found


def _ranks(result: Result) -> tuple[RankMemory, ...] | None:
    return memory_use(result.timeline) if len(result.plan) <= MOST_OPERATIONS else None


def memory_words(result: Result) -> str:
    """Say what is in use at the most, when, and what it is; empty for a plan too long for that."""
    ranks = _ranks(result)
    if ranks is None:
        return ""
    most = max(ranks, key=lambda rank: rank.in_use)
    parts = [f"{_size(sum(most.own.values()))} its own shards"]
    parts += [f"{_size(n)} {_WORDS[kind]}" for kind, n in most.slots.items()]
    where = f" on {most.device}" if most.device else ""
    when = format_seconds(most.at, digits=3)
    return f"at most {_size(most.in_use)}{where}, from {when} on: {', '.join(parts)}"


_WORDS = {
    "q": "queries of others",
    "kv": "keys and values of others",
    "o": "partial outputs",
    "g": "output gradients of others",
    "dq": "partial query gradients",
    "dkv": "partial key and value gradients",
}


def shortages(comparison: Comparison) -> Iterator[str]:
    """Yield a warning for each chosen plan that does not fit."""
    for direction, result in comparison.chosen.items():
        if result.fits is not False:
            continue
        need = format_bytes(result.peak_bytes, digits=3)
        memories = [comparison.topology.device(name).memory for name in result.plan.devices]
        limit = min(m for m in (*memories, comparison.memory) if m is not None)
        yield (
            f"{comparison.topology.name}: the {direction} plan needs {need} on a device and "
            f"{format_bytes(limit, digits=3)} are there; take more ranks, a shorter sequence, a "
            "smaller batch, or another strategy"
        )


def _size(number: float) -> str:
    return format_bytes(number, digits=3)
