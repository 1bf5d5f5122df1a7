"""How much a plan suffers when parts of a machine are a little slower than they should be.

In each repetition every device and every direction of every link is slowed by a factor of its own:
1 + x with x drawn from an exponential distribution of a given mean. Kernels of the device take so
many times as long, the link has so much less bandwidth (a half-duplex link has one factor). Parts
are never faster than the file says, and what is drawn holds for the whole pass. The same seed gives
the same factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.bounds.limits import check
from charm_sched.simulator import simulate
from charm_sched.topology.rebuild import rebuilt, slowed

if TYPE_CHECKING:
    from charm_sched.search.results import Result
    from charm_sched.topology.graph import Topology

MEAN = 0.05
"""Of the slowdown of each part; an assumption, for nobody publishes it."""
REPETITIONS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """How the makespan of one plan scatters.

    Attributes:
        direction: Of the plan.
        seed: Of the generator.
        mean: Mean slowdown of a part.
        undisturbed: Seconds without jitter.
        makespans: Seconds of each repetition, in the order drawn.
    """

    direction: str
    seed: int
    mean: float
    undisturbed: float
    makespans: tuple[float, ...]

    def quantile(self, part: float) -> float:
        """Give the seconds that a part of the repetitions, 0 to 1, do not exceed."""
        return float(np.quantile(self.makespans, part))


def jittered(machine: Topology, draw: np.random.Generator, mean: float) -> Topology:
    """Draw one machine whose parts are slower than they should be."""
    devices = [
        replace(device, compute=slowed(device.compute, 1 + float(draw.exponential(mean))))
        for device in machine.devices
    ]
    factors = [1 + float(draw.exponential(mean)) for _ in machine.links]
    links = []
    for link in machine.links:
        factor = factors[link.index // 2 * 2 if link.shared else link.index]
        cap = None if link.flow_cap is None else link.flow_cap / factor
        links.append(replace(link, bandwidth=link.bandwidth / factor, flow_cap=cap))
    return rebuilt(machine, devices=devices, links=links, settled=False)


def jitter(
    results: Sequence[Result],
    machine: Topology,
    *,
    seed: int,
    mean: float = MEAN,
    repetitions: int = REPETITIONS,
    progress: Callable[[str], None] | None = None,
) -> tuple[Jitter, ...]:
    """Simulate plans several times on a machine with slower parts.

    Args:
        results: The plans, with their times and bounds on the undisturbed machine.
        machine: The undisturbed machine.
        seed: Of the generator.
        mean: Mean slowdown of a part.
        repetitions: How often.
        progress: Called with a line of text before each repetition.

    Raises:
        BoundError: A simulation is faster than the bound of the undisturbed machine.
    """
    draw = np.random.default_rng(seed)
    found: list[list[float]] = [[] for _ in results]
    for number in range(repetitions):
        if progress:
            progress(f"jitter, repetition {number + 1} of {repetitions}")
        slower = jittered(machine, draw, mean)
        for result, makespans in zip(results, found, strict=True):
            makespan = simulate(result.plan, slower).makespan
            check(result.plan, result.params, makespan, result.bound, result.class_bound)
            makespans.append(makespan)
    return tuple(
        Jitter(
            direction=result.direction,
            seed=seed,
            mean=mean,
            undisturbed=result.timeline.makespan,
            makespans=tuple(makespans),
        )
        for result, makespans in zip(results, found, strict=True)
    )


__all__ = ["MEAN", "REPETITIONS", "Jitter", "jitter", "jittered"]
