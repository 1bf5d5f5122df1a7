"""What a search hands out: rows, the chosen plans, and why they were chosen."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from charm_sched.planners.external import short_name
from charm_sched.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from charm_sched.search.results import Result
    from charm_sched.search.trials import Trial

HARDLY = 0.0005  # a difference below this is not told as a percentage


def fastest(trials: Sequence[Trial], directions: Sequence[str]) -> list[Trial]:
    """Choose a trial per direction: what fits first, then the fastest, then the smallest.

    Trials of two directions have one partition, and the backward starts from what the forward
    keeps. Empty where a direction has none.
    """
    options: dict[tuple[str, str], dict[str, Trial]] = {}
    for trial in trials:
        here = options.setdefault((trial.partition, trial.origin), {})
        if trial.direction not in here or _rank([trial]) < _rank([here[trial.direction]]):
            here[trial.direction] = trial
    complete = [
        [found[direction] for direction in directions]
        for found in options.values()
        if len(found) == len(directions)
    ]
    return min(complete, key=_rank, default=[])


def _rank(trials: Sequence[Trial]) -> tuple[bool, float, int]:
    too_large = any(trial.fits is False for trial in trials)
    return too_large, sum(t.seconds for t in trials), sum(t.peak_bytes for t in trials)


def rows_of(trials: Sequence[Trial], directions: Sequence[str]) -> list[Trial]:
    """Give what stands for one strategy: its fastest pair, or what it has of single directions."""
    found = fastest(trials, directions)
    if found:
        return found
    single = [fastest([t for t in trials if t.direction == d], [d]) for d in directions]
    return list(itertools.chain.from_iterable(single))


def with_speedup(result: Result, ring: Sequence[Result]) -> Result:
    """Compare a result with Ring-Attention's."""
    for other in ring:
        if other.direction == result.direction:
            ratio = other.timeline.makespan / result.timeline.makespan
            return replace(result, speedup_vs_ring=ratio)
    return result


def reason(
    chosen: Sequence[Result], rows: Sequence[Result], ring: Sequence[Result], memory: float | None
) -> str:
    """Say in one sentence why the chosen plans were chosen."""
    names = list(dict.fromkeys(short_name(result.strategy) for result in chosen))
    total = _total(chosen)
    facts = [
        *_memory_fact(chosen, memory),
        *_bytes_fact(chosen, ring),
        _time_fact(chosen),
        _bound_fact(chosen),
        _second_fact(chosen, rows, total),
    ]
    return f"{' and '.join(names)}: {'; '.join(facts)}"


def _total(results: Sequence[Result]) -> float:
    return sum(result.timeline.makespan for result in results)


def _memory_fact(chosen: Sequence[Result], memory: float | None) -> list[str]:
    largest = max(chosen, key=lambda result: result.peak_bytes)
    if largest.fits is not False:
        return []
    limit = "its device has" if memory is None else f"the {format_bytes(memory, digits=3)} allowed"
    need = format_bytes(largest.peak_bytes, digits=3)
    return [f"NOTHING THAT WAS FOUND FITS: this needs {need} per device, more than {limit}"]


def _bytes_fact(chosen: Sequence[Result], ring: Sequence[Result]) -> list[str]:
    """Say what crosses the outermost tier, against Ring-Attention."""
    moved = [result.timeline.tier_bytes for result in chosen]
    tier = next((name for name in moved[0] if len(moved[0]) > 1), None)
    if tier is None or any(result.strategy == "ring" for result in chosen):
        return []
    own = sum(tiers[tier] for tiers in moved)
    base = sum(result.timeline.tier_bytes[tier] for result in ring)
    text = f"{format_bytes(own, digits=3)} over {tier}"
    return [f"{text}, Ring-Attention {format_bytes(base, digits=3)}" if base else text]


def _time_fact(chosen: Sequence[Result]) -> str:
    share = sum(result.timeline.compute_s for result in chosen) / _total(chosen)
    return f"{share:.0%} of its time is computation"


def _bound_fact(chosen: Sequence[Result]) -> str:
    bound = sum(result.bound.seconds for result in chosen)
    return f"{min(bound / _total(chosen), 1.0):.0%} of the bound of any schedule"


def _second_fact(chosen: Sequence[Result], rows: Sequence[Result], total: float) -> str:
    """Name the next best strategy."""
    wanted = {result.direction for result in chosen}
    others: dict[str, list[Result]] = {}
    for row in rows:
        others.setdefault(row.strategy, []).append(row)
    used = {result.strategy for result in chosen}
    totals = {
        name: _total(found)
        for name, found in others.items()
        if {row.direction for row in found} == wanted and not used >= {name}
    }
    if not totals:
        return f"{format_seconds(total, digits=3)} in all, and no other strategy came near"
    second = min(totals, key=lambda name: totals[name])
    slower = totals[second] / total - 1
    how = f"{slower:.1%} slower" if slower >= HARDLY else "as fast"
    return f"second: {short_name(second)}, {how}"


__all__ = ["fastest", "reason", "rows_of", "with_speedup"]
