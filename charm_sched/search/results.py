"""What planning finds: one result per strategy and direction, and results side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from charm_sched.plans.plan import Plan, Schedule

if TYPE_CHECKING:
    from charm_sched.bounds.bound import Bound
    from charm_sched.timelines.timeline import Timeline
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """One strategy in one direction, with its best parameters.

    Attributes:
        strategy: Its name.
        params: Its parameters.
        direction: ``forward`` or ``backward``.
        partition: Name of the partition.
        plan: The verified plan.
        timeline: Its simulation.
        peak_bytes: Largest peak memory of any rank.
        fits: Whether every rank's peak fits its device; None where some memory is unknown.
        bound: What no schedule with its partition can beat.
        class_bound: What no plan that moves just keys, values and their gradients can beat; None
            for a plan that moves other things too.
        speedup_vs_ring: Ring-Attention's makespan, with its best partition, over this one's.
    """

    strategy: str
    params: Mapping[str, Any]
    direction: str
    partition: str
    plan: Plan
    timeline: Timeline
    peak_bytes: int
    fits: bool | None
    bound: Bound
    class_bound: Bound | None
    speedup_vs_ring: float | None = None

    def efficiency(self, limit: Bound) -> float:
        """Give a bound's time over the makespan, 0 to 1."""
        return min(limit.seconds / self.timeline.makespan, 1.0) if limit.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A strategy that cannot serve the workload, and why."""

    strategy: str
    direction: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class NotTried:
    """A strategy not simulated to its end: it could not have been chosen, or was not asked for.

    Attributes:
        strategy: Its name.
        direction: ``forward`` or ``backward``.
        bound: Seconds that it takes at least.
        reason: How that is known, in words.
    """

    strategy: str
    direction: str
    bound: float
    reason: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """Strategies side by side.

    Attributes:
        topology: The machine.
        workload: What is computed.
        results: One per strategy and direction.
        refused: Strategies that cannot serve the workload.
        chosen: Per direction a result. Together they are the fastest that fit; both directions have
            one partition, and the backward starts from what the forward keeps.
        seconds: Where the time of the comparison went.
        assumptions: What the times rest on that is not measured or published.
        not_tried: Strategies that could not have been chosen.
        why: One sentence on why the chosen plans were chosen.
        memory: Bytes per device that plans were to fit in; None for what the devices have.
        simulated: How many plans were simulated to their end.
    """

    topology: Topology
    workload: Workload
    results: tuple[Result, ...]
    refused: tuple[Refusal, ...]
    chosen: Mapping[str, Result]
    seconds: Mapping[str, float]
    assumptions: tuple[str, ...]
    not_tried: tuple[NotTried, ...] = ()
    why: str = ""
    memory: float | None = None
    simulated: int = 0

    def schedule(self) -> Schedule | Plan:
        """Give the chosen plans: a schedule of two, or one plan."""
        if len(self.chosen) == 2:
            return Schedule(
                forward=self.chosen["forward"].plan, backward=self.chosen["backward"].plan
            )
        return next(iter(self.chosen.values())).plan


def fits(
    peaks: Sequence[int], plan: Plan, topology: Topology, limit: float | None = None
) -> bool | None:
    """Say whether each rank's peak memory fits its device; None where some memory is unknown.

    ``limit`` is bytes that no rank may exceed, where its device has more or is not known.
    """
    memories = [topology.device(device).memory for device in plan.devices]
    if limit is not None:
        memories = [limit if memory is None else min(memory, limit) for memory in memories]
    if any(memory is None for memory in memories):
        return None
    return all(
        peak <= memory for peak, memory in zip(peaks, memories, strict=True) if memory is not None
    )
