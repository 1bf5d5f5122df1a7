"""What no schedule can beat: `Bound`, and the facts that both kinds of bounds rest on."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from charm_sched.errors import WorkloadError
from charm_sched.topology.calling import resolved
from charm_sched.topology.conditions import SHORT_KERNELS
from charm_sched.units import format_bandwidth, format_bytes

if TYPE_CHECKING:
    from charm_sched.arrays import Bools
    from charm_sched.bounds.cuts import CutGraph
    from charm_sched.topology.graph import Domain, Topology
    from charm_sched.workload import Workload

COMPUTATION = "computation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A set of devices, and what can leave it.

    Attributes:
        devices: The devices inside.
        bandwidth: Bytes per second that can leave (or cross, both ways) all at once.
        crossing: Bytes that have to.
        words: All of it in words: "1 GB of keys and values out of node0 over 4 nic links: ...".
        kinds: Kinds of the links that cross it, "port" for a device's port; or that it is about
            all links of several sets.
    """

    devices: tuple[str, ...]
    bandwidth: float
    crossing: float
    words: str
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A time that no schedule of its class can beat.

    Attributes:
        seconds: The time.
        reason: What takes that long, in words.
        cut: The cut that communication is bound by, also where computation takes longer; None where
            nothing has to move.
        compute: Seconds that computation alone takes at least.
        communication: Seconds that communication alone takes at least.
    """

    seconds: float
    reason: str
    cut: Cut | None
    compute: float
    communication: float


def choose_devices(
    topology: Topology, ranks: int | None, devices: Sequence[str] | None
) -> tuple[str, ...]:
    """Give the device of each rank.

    Raises:
        WorkloadError: Both are given, or a device twice, or none.
        TopologyError: An unknown device, or more ranks than there are.
    """
    if ranks is not None and devices is not None:
        raise WorkloadError("ranks and devices: expected one of the two, found both")
    if devices is not None:
        if not devices or len(set(devices)) != len(devices):
            raise WorkloadError(f"devices: expected different names, found {list(devices)}")
        found = resolved(topology, devices)
        if len(set(found)) != len(found):
            raise WorkloadError(f"devices: expected different devices, found {list(devices)}")
        return found
    return topology.select(len(topology.devices) if ranks is None else ranks)


def best_rate(topology: Topology, device: str, workload: Workload, direction: str) -> float:
    """Give the most FLOP/s that a kernel of this workload gets on a device.

    A schedule may cut its kernels so that nearly all of their work is free of the mask. So the rate
    is the better of the two, with and without the mask.

    Raises:
        TopologyError: The device's profile knows nothing about the dtype.
    """
    profile = topology.device(device).compute
    masked = (False,) if workload.mask_rule.kind == "full" else (False, True)
    any_length = SHORT_KERNELS in topology.under
    return max(
        profile.rate(
            direction=direction,
            head_dim=workload.head_dim,
            causal=causal,
            dtype=workload.dtype,
            any_length=any_length,
        )[0]
        for causal in masked
    )


def delay_out(topology: Topology, devices: Sequence[str], inside: Bools) -> float:
    """Give the least latency of any way from a device inside to one outside, in seconds."""
    groups = {name: 1 - int(within) for name, within in zip(devices, inside, strict=False)}
    return _least_delay(topology, groups, [name for name, group in groups.items() if not group])


def delay_between(topology: Topology, devices: Sequence[str], groups: Sequence[int]) -> float:
    """Give the least latency of any way between devices of different groups, in seconds."""
    return _least_delay(topology, dict(zip(devices, groups, strict=True)), devices)


def _least_delay(topology: Topology, groups: Mapping[str, int], sources: Sequence[str]) -> float:
    """Give the least latency from a source to a device of another group than its own.

    One search from all sources at once. Whatever two groups have reached is not looked at again:
    for any device, one of the two is another group than its own.
    """
    after: dict[str, list[tuple[str, float]]] = {}
    for link in topology.links:
        after.setdefault(link.src, []).append((link.dst, link.latency))
    known = set(topology.device_names)
    reached: dict[str, set[int]] = {}
    queue = [(0.0, name, groups[name], True) for name in sources]
    while queue:
        latency, name, group, begins = heapq.heappop(queue)
        if groups.get(name, group) != group:
            return latency
        by = reached.setdefault(name, set())
        if not begins and (name in known or group in by or len(by) > 1):
            continue
        by.add(group)
        for other, more in after.get(name, ()):
            heapq.heappush(queue, (latency + more, other, group, False))
    return math.inf


def cut_of(
    topology: Topology,
    devices: Sequence[str],
    graph: CutGraph,
    inside: Bools,
    crossing: tuple[float, str],
) -> Cut:
    """Put a set of vertices of a graph into words and numbers.

    Args:
        topology: The machine.
        devices: The device of each rank.
        graph: What it is a cut of.
        inside: The vertices inside.
        crossing: Bytes that have to leave it, and what they are.
    """
    within = tuple(name for name, i in zip(devices, inside, strict=False) if i)
    without = tuple(name for name, i in zip(devices, inside, strict=False) if not i)
    where = _words(topology.domains(devices), within, without)
    kinds = Counter(graph.kinds[arc] for arc in graph.crossed(inside).tolist())
    over = " and ".join(
        f"{count} {'device port' if kind == 'port' else f'{kind} link'}{'s' * (count > 1)}"
        for kind, count in kinds.items()
    )
    bandwidth = graph.leaving(inside)
    size, what = crossing
    return Cut(
        devices=within,
        bandwidth=bandwidth,
        crossing=size,
        kinds=tuple(kinds),
        words=f"{format_bytes(size, digits=3)} of {what} {where} over {over}: "
        f"{format_bandwidth(bandwidth, digits=3)}",
    )


def _words(root: Domain, within: Sequence[str], without: Sequence[str]) -> str:
    """Say where bytes go: out of a domain, into one, or from so many devices to the others."""
    names = {domain.devices: domain.name for domain in families(root)}
    if tuple(without) in names and (tuple(within) not in names or len(without) < len(within)):
        return f"into {names[tuple(without)]}"
    if tuple(within) in names:
        return f"out of {names[tuple(within)]}"
    return f"from {len(within)} of {len(within) + len(without)} devices to the others"


def families(root: Domain) -> list[Domain]:
    """List the domains of a tree below its root, from large to small, single devices last."""
    found: list[Domain] = []
    frontier = [root]
    while frontier:
        frontier = [child for domain in frontier for child in domain.children]
        found += frontier
    return sorted(found, key=lambda domain: -len(domain.devices))
