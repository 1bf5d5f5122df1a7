"""What a better machine would gain: one part twice as good, the same plan simulated on it.

A better part may not help the plan at hand and yet help another one. So the bounds on the better
machine stand beside: the least that any plan, made anew for it, could take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from charm_sched.bounds.limits import Limits, check
from charm_sched.simulator import simulate
from charm_sched.topology.rebuild import rebuilt, slowed

if TYPE_CHECKING:
    from charm_sched.bounds.bound import Bound
    from charm_sched.search.results import Result
    from charm_sched.topology.graph import Topology
    from charm_sched.topology.profiles import ComputeProfile

CLEAR = 1.01
"""A gain below this is none: a model of a machine is not better than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One part of the machine made twice as good.

    Attributes:
        name: Which, such as ``network bandwidth x2``.
        makespan: Seconds that the same plan takes then.
        gain: How many times as fast that is.
        bound: Seconds that no schedule made for that machine can beat.
        class_bound: The same for those that move keys and values; None for plans that do not.
        at_most: How many times as fast as now a plan of the same class may become, at most.
    """

    name: str
    makespan: float
    gain: float
    bound: float
    class_bound: float | None
    at_most: float


def better_machines(machine: Topology, devices: Sequence[str]) -> Iterator[tuple[str, Topology]]:
    """Yield machines with one thing twice as good: links, latency, kernels.

    Links are tried kind by kind, and all kinds together that a way over a tier crosses, for a
    faster card behind a slow bus helps nobody.
    """
    for kinds in _bundles(machine, devices):
        yield f"{' and '.join(kinds)} bandwidth x2", _wider(machine, kinds)
    if any(link.latency for link in machine.links):
        quick = [replace(link, latency=link.latency / 2) for link in machine.links]
        yield "latency of all links / 2", rebuilt(machine, links=quick)
    yield "kernel rates x2", _computing(machine, _faster)
    if any(device.compute.overhead for device in machine.devices):
        yield "overhead of each kernel / 2", _computing(machine, _lighter)


def _bundles(machine: Topology, devices: Sequence[str]) -> list[tuple[str, ...]]:
    """List kinds of links to make wider together: each alone, and those of each tier's ways."""
    found: dict[tuple[str, ...], None] = {}
    for link in machine.links:
        found[(link.kind,)] = None
    root = machine.domains(devices)
    frontier = [root]
    while frontier:
        domain = frontier.pop()
        frontier += domain.children
        if len(domain.children) > 1:
            first, second = (child.devices[0] for child in domain.children[:2])
            route = machine.route(first, second)
            kinds = sorted({machine.links[link].kind for link in route.links})
            found[tuple(kinds)] = None
    return list(found)


def _wider(machine: Topology, kinds: Sequence[str]) -> Topology:
    links = [
        replace(
            link,
            bandwidth=2 * link.bandwidth,
            flow_cap=None if link.flow_cap is None else 2 * link.flow_cap,
        )
        if link.kind in kinds
        else link
        for link in machine.links
    ]
    return rebuilt(machine, links=links)


def _computing(machine: Topology, better: Callable[[ComputeProfile], ComputeProfile]) -> Topology:
    made = {id(d.compute): better(d.compute) for d in machine.devices}
    devices = [replace(d, compute=made[id(d.compute)]) for d in machine.devices]
    return rebuilt(machine, devices=devices)


def _faster(profile: ComputeProfile) -> ComputeProfile:
    return replace(slowed(profile, 0.5, profile.name), overhead=profile.overhead)


def _lighter(profile: ComputeProfile) -> ComputeProfile:
    return replace(profile, overhead=profile.overhead / 2)


def find_levers(
    results: Sequence[Result],
    machine: Topology,
    *,
    progress: Callable[[str], None] | None = None,
) -> tuple[tuple[Lever, ...], ...]:
    """Try every lever on some results of one machine: for each its levers, the most gain first.

    Raises:
        BoundError: A simulation is faster than a bound of its machine.
    """
    found: list[list[Lever]] = [[] for _ in results]
    first = results[0].plan
    for name, better in better_machines(machine, first.devices):
        if progress:
            progress(f"with {name}")
        limits = Limits(better, first.workload, first.devices)
        for result, levers in zip(results, found, strict=True):
            levers.append(_lever(name, better, result, limits))
    return tuple(
        tuple(sorted(levers, key=lambda lever: (-lever.gain, -lever.at_most))) for levers in found
    )


def _lever(name: str, better: Topology, result: Result, limits: Limits) -> Lever:
    before = result.timeline.makespan
    makespan = simulate(result.plan, better).makespan
    limit, class_limit = limits.of(result.plan)
    check(result.plan, result.params, makespan, limit, class_limit)
    tightest: Bound = class_limit or limit
    return Lever(
        name=name,
        makespan=makespan,
        gain=before / makespan,
        bound=limit.seconds,
        class_bound=None if class_limit is None else class_limit.seconds,
        at_most=before / tightest.seconds,
    )


__all__ = ["CLEAR", "Lever", "better_machines", "find_levers"]
