"""Measured timelines: when each op of a plan started and ended.

The clock is `time.monotonic`, in seconds since a barrier before the pass. Processes of one machine
share that clock, so they count from the same instant; ranks of another machine count from the
moment they themselves left the barrier, which is off by the time the barrier takes to let go
(about one network round trip).
"""

from __future__ import annotations

import platform
import time

import numpy as np
from numpy.typing import NDArray

from charm_sched.errors import RuntimeFailure
from charm_sched.plans import TRANSFER, Plan
from charm_sched.runtime.gloo import Communicators
from charm_sched.timeline import Timeline

_PATIENCE = 300.0


class PassRecord:
    """When the steps of one rank started and ended in one pass, in seconds; NaN for others'."""

    def __init__(self, plan: Plan, communicators: Communicators) -> None:
        self.plan = plan
        self._communicators = communicators
        self.start: NDArray[np.float64] = np.full(len(plan), np.nan)
        self.end: NDArray[np.float64] = np.full(len(plan), np.nan)
        self._zero = _agree_on_zero(communicators)

    def started(self, row: int, when: float) -> None:
        """Note a start; see `Observer`."""
        self.start[row] = when - self._zero

    def ended(self, row: int, when: float) -> None:
        """Note an end; see `Observer`."""
        self.end[row] = when - self._zero

    def gather(self) -> Timeline | None:
        """Put the records of all ranks together, on rank 0; all ranks must call.

        A transfer starts when the later of its two ends was posted, and ends when the receiver has
        it.
        """
        columns, rank = self.plan.columns, self._communicators.rank
        sends = (columns.op == TRANSFER) & (columns.rank == rank)
        end = np.where(sends, np.nan, self.end)
        records = self._communicators.gather((self.start.tolist(), end.tolist()), _PATIENCE)
        if rank:
            return None
        start, last = (np.fmax.reduce(np.array(column)) for column in zip(*records, strict=True))
        if np.isnan(start).any() or np.isnan(last).any():
            raise RuntimeFailure("timeline: some op was not run; gather after the pass has ended")
        return Timeline(
            plan=self.plan,
            start=np.minimum(start, last),
            end=last,
            source="measured",
            topology=self.plan.topology,
        )


class Recorder:
    """Records passes; give it to `attention`, then ask for their timelines.

    Attributes:
        passes: One record per pass, in order.
    """

    def __init__(self) -> None:
        self.passes: list[PassRecord] = []

    def begin(self, plan: Plan, communicators: Communicators) -> PassRecord:
        """Start recording a pass."""
        self.passes.append(PassRecord(plan, communicators))
        return self.passes[-1]

    def timelines(self) -> list[Timeline]:
        """Give the timelines of all passes on rank 0, nothing elsewhere; all ranks must call."""
        gathered = [record.gather() for record in self.passes]
        return [line for line in gathered if line is not None]


def _agree_on_zero(communicators: Communicators) -> float:
    """Let all ranks start counting together."""
    communicators.gather(None, _PATIENCE)
    mine = time.monotonic()
    clocks = communicators.gather((platform.node(), mine), _PATIENCE)
    nodes, times = zip(*clocks, strict=True)
    return float(min(t for node, t in zip(nodes, times, strict=True) if node == platform.node()))
