"""What a search has found so far, and the time that a candidate has to beat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from charm_sched.search.trials import Trial

Key = tuple[str, str, str]


class Standing:
    """The fastest trial that fits, per (direction, partition, origin of residents).

    Attributes:
        trials: All trials, in the order in which they were made.
    """

    def __init__(self, directions: Sequence[str]) -> None:
        self._directions = tuple(directions)
        self._best: dict[Key, Trial] = {}
        self.trials: list[Trial] = []

    def add(self, trial: Trial) -> None:
        """Note a trial; one that does not fit beats nobody."""
        self.trials.append(trial)
        if trial.fits is False:
            return
        key = (trial.direction, trial.partition, trial.origin)
        if key not in self._best or trial.seconds < self._best[key].seconds:
            self._best[key] = trial

    def best(self, direction: str, partition: str) -> Trial | None:
        """Give the fastest trial of a direction that fits and has no residents."""
        return self._best.get((direction, partition, ""))

    @property
    def total(self) -> float:
        """Seconds of the fastest plans that fit and belong together; infinite for none yet."""
        first = self._directions[0]
        totals = [math.inf]
        for (direction, *rest), trial in self._best.items():
            if direction != first:
                continue
            others = [self._best.get((d, *rest)) for d in self._directions[1:]]  # type: ignore[arg-type]
            totals.append(trial.seconds + sum(o.seconds if o else math.inf for o in others))
        return min(totals)

    def to_beat(self, direction: str, partition: str, others: float) -> float:
        """Give the seconds below which a candidate without residents would change what is chosen.

        Args:
            direction: Its direction.
            partition: Its partition.
            others: Seconds that the other direction takes at least; 0 where there is none.
        """
        rival = self.best(direction, partition)
        return min(rival.seconds if rival else math.inf, self.total - others)


__all__ = ["Standing"]
