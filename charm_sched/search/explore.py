"""Which candidates are tried, and which need not be: the part of the search that looks.

A candidate is left out where a time that it cannot beat shows that it would not be chosen. What is
known before it is built: the bound of its class and partition, and where its parameters only cut
the work and bytes of an earlier one differently, that one's. Once it is built: its computation and
its bytes over each link. And its simulation ends where it has lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from charm_sched.errors import CharmSchedError
from charm_sched.planners.strategies import (
    KEEPING,
    MOST_OPERATIONS,
    alike,
    distinct,
    may_keep,
    residents,
    takes,
    variants_of,
)
from charm_sched.search.results import NotTried
from charm_sched.search.trials import Bench, Candidate, Trial
from charm_sched.units import format_seconds

if TYPE_CHECKING:
    from charm_sched.planners.external import Planner
    from charm_sched.search.standing import Standing

SAME = 1.005  # a plan this near to a bound is not improved on: less than a model can promise
SHOWN = 1.25  # a plan that loses by less is simulated to its end, so that it can be compared


class PassError(Exception):
    """A strategy cannot serve one direction.

    Attributes:
        direction: Which one.
    """

    def __init__(self, message: str, direction: str) -> None:
        super().__init__(message, direction)
        self.direction = direction

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How a search goes about it.

    Attributes:
        directions: What is planned.
        fixed: Parameters that the user fixed.
        slack: A loser is simulated up to so many times the time that it had to beat.
        thorough: Try all parameters, and what to keep resident; not just the first parameters.
    """

    directions: tuple[str, ...]
    fixed: Mapping[str, Any]
    slack: float = 1.0
    thorough: bool = True


class Explorer:
    """Tries one strategy on one partition after the other, against a standing.

    Attributes:
        not_tried: What was left out, and why.
    """

    def __init__(self, bench: Bench, standing: Standing, rules: Rules) -> None:
        self._bench, self._standing, self._rules = bench, standing, rules
        self.not_tried: list[NotTried] = []

    def explore(self, name: str, planner: Planner, kind: str) -> None:
        """Try a strategy on a partition.

        Raises:
            PassError: It cannot serve this.
        """
        rules = self._rules
        variants = variants_of(name, planner, rules.fixed)[: None if rules.thorough else 1]
        ideas = [
            Candidate(
                strategy=name, planner=planner, params=params,
                direction=rules.directions[0], partition=kind,
            )
            for params in variants
        ]  # fmt: skip
        if len(rules.directions) == 2 and may_keep(name, ideas[0].params):
            if self._chain(ideas, ideas) is None:
                last = replace(ideas[0], direction=rules.directions[1])
                least = self._bench.work(name, last.direction, kind)
                self._leave_out(last, least, "its forward could not be chosen")
            return
        found = [self._plain(ideas, direction) for direction in rules.directions]
        if len(found) == 2 and rules.thorough:
            self._keep(ideas, *found)

    def _others(self, direction: str, kind: str) -> float:
        """Give seconds that the other direction takes at least without residents."""
        others = [d for d in self._rules.directions if d != direction]
        return sum(self._bench.any_floor(other, kind) for other in others)

    def _plain(self, ideas: Sequence[Candidate], direction: str) -> Trial | None:
        """Try candidates of one direction that keep nothing and start from nothing."""
        name, kind = ideas[0].strategy, ideas[0].partition
        others = self._others(direction, kind)
        ranks = len(self._bench.devices)
        return self._try(
            [
                replace(ideas[0], params=params, direction=direction)
                for params in distinct([idea.params for idea in ideas], direction, ranks)
            ],
            self._bench.floors(name, direction, kind),
            lambda: self._standing.to_beat(direction, kind, others),
        )

    def _keep(self, ideas: Sequence[Candidate], *plain: Trial | None) -> None:
        """Try to keep what the forward received, where the backward waits for communication.

        With the parameters that were the fastest of each direction without.
        """
        name, kind = ideas[0].strategy, ideas[0].partition
        if not takes(ideas[0].planner, KEEPING) or KEEPING in self._rules.fixed:
            return
        backward = plain[1] or self._standing.best("backward", kind)
        if backward is None or backward.timeline.exposed_comm < (1 - 1 / SAME) * backward.seconds:
            return
        known = [trial.candidate.params for trial in plain if trial] or [ideas[0].params]
        if any(trial and len(trial.plan) > MOST_OPERATIONS for trial in plain):
            return
        for params in {repr(sorted(params.items())): params for params in known}.values():
            kept = [replace(ideas[0], strategy=name, params={**params, KEEPING: True})]
            try:
                self._chain(kept, kept)
            except PassError:  # the strategy serves this without
                continue

    def _chain(self, forwards: Sequence[Candidate], backwards: Sequence[Candidate]) -> Trial | None:
        """Try backwards that start from what the fastest forward keeps; give that forward."""
        name, kind = forwards[0].strategy, forwards[0].partition
        bench, (first, second) = self._bench, self._rules.directions
        least = bench.work(name, second, kind)
        forward = self._try(
            forwards,
            bench.floors(name, first, kind),
            lambda: self._standing.total - least,
        )
        if forward is None:
            return None
        saved = residents(forward.plan)
        self._try(
            [replace(b, direction=second, saved=saved, origin=forward.origin) for b in backwards],
            [least],
            lambda: self._standing.total - forward.seconds,
        )
        return forward

    def _try(
        self, ideas: Sequence[Candidate], floors: Iterable[float], to_beat: Callable[[], float]
    ) -> Trial | None:
        """Try candidates that differ in their parameters; give the fastest, those that fit first.

        Raises:
            PassError: The strategy can serve none.
        """
        least = self._least(ideas[0], floors, to_beat)
        if least is None:
            return None
        known: dict[str, float] = {}
        tried: list[Trial] = []
        failure: CharmSchedError | None = None
        served = large = False
        for idea in ideas:
            floor = max(least, known.get(alike(idea.params), 0.0))
            if (tried and floor * SAME >= to_beat()) or large:
                continue
            try:
                trial = self._trial(idea, self._patience(tried, to_beat()), known)
            except CharmSchedError as error:
                failure = failure or error
                continue
            served = True
            if trial is not None:
                tried.append(trial)
                self._standing.add(trial)
                large = len(trial.plan) > MOST_OPERATIONS
        if not served and failure is not None:
            raise PassError(str(failure), ideas[0].direction) from failure
        return min(tried, key=lambda t: (t.fits is False, t.seconds), default=None)

    def _least(
        self, idea: Candidate, floors: Iterable[float], to_beat: Callable[[], float]
    ) -> float | None:
        """Give seconds that no candidate beats; None where that shows that none would be chosen."""
        least = 0.0
        for floor in floors:
            least = max(least, floor)
            if least * SAME >= to_beat():
                what = f"bound {format_seconds(least, digits=3)} on {idea.partition} shards"
                self._leave_out(idea, least, what)
                return None
        return least

    def _patience(self, tried: Sequence[Trial], to_beat: float) -> float:
        """Give seconds up to which it is of interest how long a candidate takes."""
        own = min((trial.seconds for trial in tried if trial.fits is not False), default=math.inf)
        return min(own, self._rules.slack * to_beat)

    def _trial(self, idea: Candidate, until: float, known: dict[str, float]) -> Trial | None:
        bench = self._bench
        plan = bench.build(idea)
        floor = bench.floor(plan)
        known.setdefault(alike(idea.params), floor)
        if floor >= until:
            what = f"its computation and bytes take {format_seconds(floor, digits=3)} at least"
            self._leave_out(idea, floor, what)
            return None
        trial = bench.simulate(idea, plan, until)
        if trial is None:
            self._leave_out(idea, until, f"stopped after {format_seconds(until, digits=3)}")
        return trial

    def _leave_out(self, idea: Candidate, bound: float, reason: str) -> None:
        self.not_tried.append(
            NotTried(strategy=idea.strategy, direction=idea.direction, bound=bound, reason=reason)
        )


__all__ = ["SAME", "SHOWN", "Explorer", "PassError", "Rules"]
