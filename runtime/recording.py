"""Measured timelines: when each op of a plan started and ended.

The clock is `time.monotonic`, in seconds since a barrier before the pass. Processes of one machine
share that clock, so they count from the same instant; ranks of another machine count from the
moment they themselves left the barrier, which is off by the time the barrier takes to let go
(about one network round trip).
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from charm_sched.errors import RuntimeFailure
from charm_sched.plans.plan import TRANSFER, Plan
from charm_sched.runtime.gloo import Communicators
from charm_sched.timelines.timeline import Timeline


class PassRecord:
    """When the steps of one rank started and ended in one pass, in seconds; NaN for others'.

    Args:
        plan: The plan of the pass.
        communicators: All its ranks make a record together.
        timeout: Seconds that the others may take to come to the barrier, and to `gather`.
        delay: Seconds from the barrier to the instant that counts as zero; see `wait`.
    """

    def __init__(
        self, plan: Plan, communicators: Communicators, timeout: float, delay: float = 0.0
    ) -> None:
        self.plan = plan
        self._communicators, self._timeout = communicators, timeout
        self.start: NDArray[np.float64] = np.full(len(plan), np.nan)
        self.end: NDArray[np.float64] = np.full(len(plan), np.nan)
        self._zero = _agree_on_zero(communicators, timeout) + delay

    def wait(self) -> None:
        """Wait for the instant zero, so that all ranks of one machine start together."""
        time.sleep(max(0.0, self._zero - time.monotonic()))

    def started(self, row: int, when: float) -> None:
        """Note a start; see `Observer`."""
        self.start[row] = when - self._zero

    def ended(self, row: int, when: float) -> None:
        """Note an end; see `Observer`."""
        self.end[row] = when - self._zero

    def gather(self) -> Timeline | None:
        """Put the records of all ranks together, on rank 0; all ranks must call."""
        start, end = self.own
        records = self._communicators.gather((start.tolist(), end.tolist()), self._timeout)
        if self._communicators.rank:
            return None
        return merged(self.plan, [(np.array(s), np.array(e)) for s, e in records])

    @property
    def own(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """This rank's starts and ends, for `merged`; a transfer's end is the receiver's."""
        columns = self.plan.columns
        sends = (columns.op == TRANSFER) & (columns.rank == self._communicators.rank)
        return self.start, np.where(sends, np.nan, self.end)


def merged(
    plan: Plan, records: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]
) -> Timeline:
    """Put the records of all ranks of a pass together.

    A transfer starts when the later of its two ends was posted, and ends when the receiver has it.

    Raises:
        RuntimeFailure: Some op was not run.
    """
    start, end = (np.fmax.reduce(np.array(column)) for column in zip(*records, strict=True))
    if np.isnan(start).any() or np.isnan(end).any():
        raise RuntimeFailure("timeline: some op was not run; gather after the pass has ended")
    return Timeline(
        plan=plan,
        start=np.minimum(start, end),
        end=end,
        source="measured",
        topology=plan.topology,
    )


class Recorder:
    """Records passes; give it to `attention`, then ask for their timelines.

    Attributes:
        passes: One record per pass, in order.
    """

    def __init__(self) -> None:
        self.passes: list[PassRecord] = []

    def begin(self, plan: Plan, communicators: Communicators, timeout: float) -> PassRecord:
        """Start recording a pass; the other ranks may take ``timeout`` seconds to come."""
        self.passes.append(PassRecord(plan, communicators, timeout))
        return self.passes[-1]

    def timelines(self) -> list[Timeline]:
        """Give the timelines of all passes on rank 0, nothing elsewhere; all ranks must call."""
        gathered = [record.gather() for record in self.passes]
        return [line for line in gathered if line is not None]


def _agree_on_zero(communicators: Communicators, timeout: float) -> float:
    """Let all ranks start counting together."""
    communicators.gather(None, timeout)
    mine = time.monotonic()
    clocks = communicators.gather((platform.node(), mine), timeout)
    nodes, times = zip(*clocks, strict=True)
    return float(min(t for node, t in zip(nodes, times, strict=True) if node == platform.node()))
