"""The same workload and machine with other values of one number, and where what is best changes.

At each value a comparison is made. Between two neighbours where another strategy is chosen, or
something else decides, the value at which that happens is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from charm_sched.planners.external import short_name
from charm_sched.timelines.link_usage import PORT

if TYPE_CHECKING:
    from charm_sched.bounds.bound import Bound
    from charm_sched.search.results import Comparison
    from charm_sched.what_if.sweep_axis import Axis

FINE = 0.02
"""A crossover is known to this part of its value."""
COMPUTATION = "computation"

Evaluate: TypeAlias = "Callable[[float], Comparison]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value and direction.

    Attributes:
        value: The value, in base units.
        direction: ``forward`` or ``backward``.
        strategy: Of the plan that was chosen.
        makespan: Seconds that it takes.
        compute: Seconds of computation of its busiest rank.
        bound: Seconds that no schedule can beat.
        ring: Seconds that Ring-Attention takes; None where that is not known.
        limit: What its bound is by: ``computation``, or the kinds of links across the binding cut;
            the bound is that of plans that move keys and values where it is one of these.
        others: Seconds of other strategies that were simulated to their end.
    """

    value: float
    direction: str
    strategy: str
    makespan: float
    compute: float
    bound: float
    ring: float | None
    limit: str
    others: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Where what is best changes.

    Attributes:
        direction: ``forward`` or ``backward``.
        what: ``strategy``, or ``limit`` for what the bound is by.
        before: Up to `below`.
        after: From `above` on.
        below: Largest value looked at where `before` held.
        above: Smallest value looked at where `after` held.
        margin: At the next value asked for, how much longer what was best before takes, as a part;
            None where that is not known.
        at: That value.
    """

    direction: str
    what: str
    before: str
    after: str
    below: float
    above: float
    margin: float | None
    at: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Sweep:
    """What other values of one number do.

    Attributes:
        axis: What was varied.
        samples: At the values asked for, by value, then direction.
        crossovers: By direction, then value.
        evaluated: How many values were looked at.
    """

    axis: Axis
    samples: tuple[Sample, ...]
    crossovers: tuple[Crossover, ...]
    evaluated: int


def run_sweep(
    axis: Axis,
    evaluate: Evaluate,
    *,
    steps: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Sweep:
    """Compare at each value of an axis, and find the crossovers in between.

    Args:
        axis: What is varied.
        evaluate: Gives the comparison at one value.
        steps: How many values; None for the axis' own choice.
        progress: Called with a line of text before each value.
    """
    seen = _Seen(axis, evaluate, progress)
    values = axis.values(steps)
    columns = [seen.at(value) for value in values]
    crossovers = []
    for number in range(len(columns[0])):
        for what in ("strategy", "limit"):
            for low, high in pairwise(values):
                crossovers += seen.between(number, what, low, high, high)
    return Sweep(
        axis=axis,
        samples=tuple(sample for column in columns for sample in column),
        crossovers=tuple(sorted(crossovers, key=lambda c: (c.direction != "forward", c.above))),
        evaluated=len(seen),
    )


class _Seen:
    """Values that were looked at."""

    def __init__(
        self, axis: Axis, evaluate: Evaluate, progress: Callable[[str], None] | None
    ) -> None:
        self._axis, self._evaluate, self._progress = axis, evaluate, progress
        self._known: dict[float, tuple[Sample, ...]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def at(self, value: float) -> tuple[Sample, ...]:
        """Give one sample per direction at a value."""
        if value not in self._known:
            if self._progress:
                self._progress(f"{self._axis.path} = {self._axis.show(value)}")
            self._known[value] = tuple(samples_of(value, self._evaluate(value)))
        return self._known[value]

    def between(
        self, number: int, what: str, low: float, high: float, asked: float
    ) -> list[Crossover]:
        """Find where one label changes between two values, however often it does."""
        first, last = self.at(low)[number], self.at(high)[number]
        if getattr(first, what) == getattr(last, what):
            return []
        middle = self._axis.between(low, high, FINE)
        if middle is None:
            return [self._crossover(first, last, what, self.at(asked)[number])]
        halves = ((low, middle), (middle, high))
        return [c for half in halves for c in self.between(number, what, *half, asked)]

    def _crossover(self, first: Sample, last: Sample, what: str, asked: Sample) -> Crossover:
        before, after = getattr(first, what), getattr(last, what)
        margin = None
        if what == "strategy" and asked.strategy == after:
            slower = dict(asked.others).get(before)
            margin = None if slower is None else slower / asked.makespan - 1
        return Crossover(
            direction=first.direction, what=what, before=before, after=after, below=first.value,
            above=last.value, margin=margin, at=asked.value,
        )  # fmt: skip


def samples_of(value: float, comparison: Comparison) -> Sequence[Sample]:
    """Give one sample per direction of a comparison."""
    found = []
    for direction, result in comparison.chosen.items():
        timeline = result.timeline
        rows = [row for row in comparison.results if row.direction == direction]
        speedup = result.speedup_vs_ring
        found.append(
            Sample(
                value=value,
                direction=direction,
                strategy=result.strategy,
                makespan=timeline.makespan,
                compute=timeline.compute_s,
                bound=result.bound.seconds,
                ring=None if speedup is None else speedup * timeline.makespan,
                limit=limit_of(result.class_bound or result.bound),
                others=tuple((row.strategy, row.timeline.makespan) for row in rows),
            )
        )
    return found


def limit_of(bound: Bound) -> str:
    """Name what a bound is by: ``computation``, or the kinds of links across its cut."""
    if bound.cut is None or bound.compute >= bound.communication:
        return COMPUTATION
    return " and ".join(sorted("device port" if k == PORT else k for k in bound.cut.kinds))


def words(crossover: Crossover, axis: Axis) -> str:
    """Put a crossover into a sentence."""
    where = f"{crossover.direction}: from {axis.show(crossover.above)} on"
    if crossover.what == "limit":
        return f"{where} the limit is {crossover.after}, below {crossover.before}"
    after, before = short_name(crossover.after), short_name(crossover.before)
    margin = ""
    if crossover.margin is not None:
        margin = f" ({crossover.margin:.1%} slower at {axis.show(crossover.at)})"
    return f"{where} {after} is best, below {before}{margin}"


__all__ = ["FINE", "Crossover", "Sample", "Sweep", "limit_of", "run_sweep", "samples_of", "words"]
