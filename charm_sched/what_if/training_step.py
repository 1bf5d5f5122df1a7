"""A whole training step of a model: attention of all layers, and every other product.

Every rank multiplies the tokens it owns with all weights, twice as much again in the backward.
These products take their FLOPs over the peak times the efficiency of the profile: an assumption,
listed as one. Left out are norms, the optimiser, and the exchange of weights and their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from charm_sched.errors import TopologyError, WorkloadError
from charm_sched.models import model_layers
from charm_sched.partition import count_rows
from charm_sched.plans.plan import DIRECTIONS
from charm_sched.units import format_rate

if TYPE_CHECKING:
    from charm_sched.plans.plan import Plan
    from charm_sched.search.results import Comparison
    from charm_sched.topology.graph import Topology

BACKWARD = 2
"""Products of the backward for each of the forward: gradients of inputs, and of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """A step with one kind of attention.

    Attributes:
        label: Which.
        attention: Seconds of attention, all layers, forward and backward.
        rest: Seconds of all other products.
    """

    label: str
    attention: float
    rest: float

    @property
    def seconds(self) -> float:
        """How long the step takes."""
        return self.attention + self.rest


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """A training step of a model on one machine.

    Attributes:
        model: Its name.
        layers: How many.
        tokens: In a step, all ranks and sequences together.
        chosen: With the plans that were chosen.
        ring: With Ring-Attention.
        limit: With attention that takes no longer than the bound.
        assumptions: What the rest is based on, one sentence each.
    """

    model: str
    layers: int
    tokens: int
    chosen: StepCase
    ring: StepCase
    limit: StepCase
    assumptions: tuple[str, ...]


def training_step(comparison: Comparison, model: str) -> TrainingStep:
    """Put the chosen plans of a comparison into a training step.

    Raises:
        WorkloadError: Nothing is known about the model, or a direction is missing.
        TopologyError: A profile has no peak for the dtype.
    """
    known = model_layers()
    if model not in known:
        raise WorkloadError(f"--step: expected one of {', '.join(known)}, found {model!r}")
    chosen = comparison.chosen
    if set(chosen) != set(DIRECTIONS):
        raise WorkloadError("--step: a training step needs both directions; leave out --direction")
    shape = known[model]
    plan, machine = chosen["forward"].plan, comparison.topology
    weights = shape.layers * shape.weights + shape.head
    rest = (1 + BACKWARD) * _products(plan, machine, weights)

    def case(label: str, attention: float) -> StepCase:
        return StepCase(label=label, attention=shape.layers * attention, rest=rest)

    results = chosen.values()
    names = dict.fromkeys(result.strategy for result in results)
    ring = sum(r.timeline.makespan * (r.speedup_vs_ring or 1.0) for r in results)
    return TrainingStep(
        model=model,
        layers=shape.layers,
        tokens=comparison.workload.seq_len * comparison.workload.batch,
        chosen=case(" and ".join(names), sum(r.timeline.makespan for r in results)),
        ring=case("Ring-Attention", ring),
        limit=case("attention at its bound", sum(r.bound.seconds for r in results)),
        assumptions=_assumptions(plan, machine),
    )


def _products(plan: Plan, machine: Topology, weights: int) -> float:
    """Give the seconds in which the slowest rank multiplies its tokens with some weights."""
    work, dtype = plan.workload, plan.workload.dtype
    seconds = 0.0
    for name, shard in zip(plan.devices, plan.partition.shards, strict=True):
        profile = machine.device(name).compute
        if dtype not in profile.peak:
            raise TopologyError(
                f"compute profile {profile.name}: expected a peak for {dtype} (add peak.{dtype})"
            )
        flops = 2.0 * weights * count_rows(shard) * work.batch
        seconds = max(seconds, flops / (profile.peak[dtype] * profile.efficiency))
    return seconds


def _assumptions(plan: Plan, machine: Topology) -> tuple[str, ...]:
    profiles = dict.fromkeys(machine.device(name).compute.name for name in plan.devices)
    by_name = {device.compute.name: device.compute for device in machine.devices}
    return tuple(
        f"{name}: all products but attention run at {by_name[name].efficiency:g} of the peak "
        f"{format_rate(by_name[name].peak[plan.workload.dtype])}"
        for name in profiles
    )


__all__ = ["StepCase", "TrainingStep", "training_step"]
