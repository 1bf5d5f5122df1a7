"""The same machine at several lengths: where communication limits, and where computation does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from charm_sched.planners.external import short_name
from charm_sched.search.planning import plan_all
from charm_sched.units import format_tokens

if TYPE_CHECKING:
    from charm_sched.search.results import Comparison
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload

LENGTHS = tuple(1024 * n for n in (8, 16, 32, 64, 128, 256))
CLEAR = 1.05
HARDLY = 1.1
"""Ratios below these count as equal: a model of a machine is not better than a few per cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One length and direction: computation alone, Ring-Attention, and the best plan found.

    Attributes:
        seq_len: The length.
        direction: ``forward`` or ``backward``.
        strategy: Of the best plan.
        compute_s: Seconds of computation of the best plan.
        ring_s: Seconds that Ring-Attention takes.
        best_s: Seconds that the best plan takes.
        ring_compute_s: Seconds of computation of Ring-Attention; None where that is not known.
    """

    seq_len: int
    direction: str
    strategy: str
    compute_s: float
    ring_s: float
    best_s: float
    ring_compute_s: float | None = None

    @property
    def speedup(self) -> float:
        """How many times as fast as Ring-Attention the best plan is."""
        return self.ring_s / self.best_s

    @property
    def limit(self) -> str:
        """What decides here: ``strategy``, ``kernels``, ``computation`` or ``communication``.

        The strategy does where the best plan is clearly faster than Ring-Attention; if
        Ring-Attention waits for nothing, it is because its kernels take longer. Elsewhere
        computation does if the best plan takes hardly more, and communication if it takes more.
        """
        if self.speedup >= CLEAR:
            waits = self.ring_compute_s is None or self.ring_s >= CLEAR * self.ring_compute_s
            return "strategy" if waits else "kernels"
        return "computation" if self.best_s < HARDLY * self.compute_s else "communication"


def sweep(
    topology: Topology,
    workload: Workload,
    choices: Mapping[str, Any],
    *,
    lengths: Sequence[int] = LENGTHS,
    known: Comparison | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Point, ...]:
    """Plan one workload at several lengths, each strategy with its first parameters alone.

    Args:
        topology: The machine.
        workload: What is computed; its length is replaced.
        choices: What `plan_all` gets as well.
        lengths: The lengths.
        known: What is known of one of them already.
        progress: Called with a line of text before each length.
    """
    points: list[Point] = []
    for length in lengths:
        work = replace(workload, seq_len=length)
        if known is not None and known.workload == work:
            points += points_of(known)
            continue
        if progress:
            progress(f"{format_tokens(length)} tokens")
        points += points_of(plan_all(topology, work, **choices, thorough=False))
    return tuple(points)


def points_of(comparison: Comparison) -> Iterator[Point]:
    """Yield one point per direction of a comparison."""
    for direction, result in comparison.chosen.items():
        best = result.timeline.makespan
        rings = (r for r in comparison.results if (r.strategy, r.direction) == ("ring", direction))
        yield Point(
            seq_len=comparison.workload.seq_len,
            direction=direction,
            strategy=result.strategy,
            compute_s=result.timeline.compute_s,
            ring_s=best * (result.speedup_vs_ring or 1.0),
            best_s=best,
            ring_compute_s=next((ring.timeline.compute_s for ring in rings), None),
        )


def verdict(points: Sequence[Point]) -> str:
    """Say in one sentence per stretch of lengths what decides in one direction.

    >>> point = Point(seq_len=8192, direction="forward", strategy="charm",
    ...               compute_s=1.0, ring_s=3.0, best_s=1.5)
    >>> verdict([point, replace(point, seq_len=16384, ring_s=2.4)])
    'At 8K to 16K communication limits Ring-Attention: charm is 1.60 to 2.00 times as fast.'
    """
    stretches = [list(stretch) for _, stretch in groupby(points, lambda point: point.limit)]
    return " ".join(
        _sentence(stretch, last=stretch is stretches[-1], only=len(stretches) == 1)
        for stretch in stretches
    )


def _sentence(points: Sequence[Point], *, last: bool, only: bool) -> str:
    first, final = format_tokens(points[0].seq_len), format_tokens(points[-1].seq_len)
    where = f"At {first}" if first == final else f"At {first} to {final}"
    match points[0].limit:
        case "computation":
            where = f"From {first} on" if last and not only else where
            return f"{where} computation is the limit: every good schedule is as fast there."
        case "communication":
            return f"{where} communication limits every plan found, and Ring-Attention no more."
        case decides:
            names = " or ".join(dict.fromkeys(short_name(point.strategy) for point in points))
            least, most = (f"{f(point.speedup for point in points):.2f}" for f in (min, max))
            times = least if least == most else f"{least} to {most}"
            limit = f"{where} communication limits Ring-Attention"
            if decides == "kernels":
                where = f"From {first} on" if last and not only else where
                limit = f"{where} computation is the limit, and other kernels take less of it"
            return f"{limit}: {names} is {times} times as fast."
