"""What follows from the cases: ratios, averages, wins and how they came about."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.benchmarks.paper_cases import ABSTRACT, BOTH, Case, Row
from tests.benchmarks.paper_stops import WAITS

RINGS = ("ring", "reverse_ring", "double_ring")
PUBLISHED = (
    "ring", "reverse_ring", "double_ring", "all_gather", "tasp", "ulysses", "usp", "mesh", "pass_q",
)  # fmt: skip
OURS = ("charm", ABSTRACT, "auto")
CLEARLY = 1.05  # as fast by this factor counts as faster


@dataclass(frozen=True, kw_only=True)
class Win:
    """A case in which auto is clearly faster than the best of some strategies.

    Attributes:
        best: The fastest of these strategies.
        factor: How many times as fast auto is.
        chosen: What auto chose, in the direction in which it gains most.
        kind: What `best` hangs on there: the kind of link, or kernels.
        relieved: Whether the fullest of that kind is less busy with auto, by half of what is
            gained or more. Otherwise it is waiting that is less.
        cause: Why `best` waits most, of `WAITS`.
        before: Seconds that the fullest is busy with `best`; or that `best` waits.
        after: The same with auto.
    """

    case: Case
    best: str
    factor: float
    chosen: Row
    kind: str
    relieved: bool
    cause: str
    before: float
    after: float


def alone(cases: Iterable[Case]) -> list[Case]:
    """Keep the cases in which one direction was planned alone."""
    return [case for case in cases if case.what != BOTH]


def together(cases: Iterable[Case]) -> list[Case]:
    """Keep the cases in which both directions were planned together."""
    return [case for case in cases if case.what == BOTH]


def communicates(case: Case) -> bool:
    """Say whether a plan that moves keys needs longer for that than for its computation.

    By the bound of such plans on charm's partition, so whatever the strategies are like. Of both
    directions together, the longer one counts.
    """
    row = max(case.rows["charm"], key=lambda row: row.seconds)
    return (row.class_communication or 0.0) > (row.class_compute or 0.0)


def speedup(cases: Iterable[Case], strategy: str, base: str = "ring") -> float:
    """Average how many times as fast a strategy is, geometrically."""
    return statistics.geometric_mean(
        case.seconds(base) / case.seconds(strategy) for case in cases if strategy in case.rows
    )


def cap(cases: Iterable[Case]) -> float:
    """Average how much faster than ring a plan that moves keys and values can be at most."""
    return statistics.geometric_mean(
        case.seconds("ring") / (case.class_bound("charm") or case.seconds("charm"))
        for case in cases
    )


def of_class_bound(case: Case) -> float:
    """Give the class bound over charm's makespan."""
    return (case.class_bound("charm") or 0.0) / case.seconds("charm")


def of_bound(case: Case) -> float:
    """Give the bound of any schedule over auto's makespan."""
    return case.bound("auto") / case.seconds("auto")


def worst(cases: Iterable[Case], strategy: str, others: Sequence[str]) -> tuple[float, Case, str]:
    """Give the largest time of a strategy over that of one of the others, with case and other."""
    return max(
        (
            (case.seconds(strategy) / case.seconds(other), case, other)
            for case in cases
            for other in others
            if other in case.rows
        ),
        key=lambda found: found[0],
    )


def rivals(case: Case) -> list[str]:
    """List all strategies of a case but auto."""
    return [name for name in case.rows if name != "auto"]


def fastest(case: Case, names: Sequence[str]) -> str:
    """Give the fastest of some strategies."""
    return min((name for name in names if name in case.rows), key=case.seconds)


def wins(cases: Iterable[Case], others: Sequence[str]) -> list[Win]:
    """List the cases in which auto is clearly faster than all of some strategies."""
    found = []
    for case in cases:
        best = fastest(case, others)
        factor = case.seconds(best) / case.seconds("auto")
        if factor >= CLEARLY:
            found.append(_explained(case, best, factor))
    return found


def _explained(case: Case, best: str, factor: float) -> Win:
    """Say what auto does better, in the direction in which it gains most."""
    pairs = list(zip(case.rows[best], case.rows["auto"], strict=True))
    slow, fast = max(pairs, key=lambda pair: pair[0].seconds - pair[1].seconds)
    kind = slow.stop.kind
    before, after = slow.full[kind], fast.full.get(kind, 0.0)
    relieved = before - after >= (slow.seconds - fast.seconds) / 2
    if not relieved:
        before, after = slow.seconds - slow.stop.busy, fast.seconds - fast.stop.busy
    return Win(
        case=case, best=best, factor=factor, chosen=fast, kind=kind, relieved=relieved,
        cause=max(WAITS, key=lambda name: getattr(slow.stop, name)), before=before, after=after,
    )  # fmt: skip
