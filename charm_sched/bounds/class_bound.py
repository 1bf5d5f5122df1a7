"""The bound of plans in which the owner of a query computes it, and keys and values move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Bools, Floats, Ints
from charm_sched.bounds.bound import (
    COMPUTATION,
    Bound,
    Cut,
    best_rate,
    choose_devices,
    cut_of,
    delay_between,
    delay_out,
    families,
)
from charm_sched.bounds.covers import worst_cover
from charm_sched.bounds.cuts import CutGraph, cut_graph, worst_cut
from charm_sched.bounds.demands import NO_RANKS, Demand, Saved, demand_of
from charm_sched.errors import WorkloadError
from charm_sched.masks.mask import area
from charm_sched.partition import Partition
from charm_sched.plans.plan import DIRECTIONS
from charm_sched.units import format_bandwidth, format_bytes

if TYPE_CHECKING:
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload

MOST_SETS = 32  # sets of devices that are tried one by one; of more, one of those that look alike


def class_bound(
    topology: Topology,
    workload: Workload,
    *,
    direction: str = "forward",
    partition: str | Partition = "zigzag",
    ranks: int | None = None,
    devices: Sequence[str] | None = None,
    saved: Saved = (),
) -> Bound:
    """Bound the time of plans that move keys, values and their gradients, and no queries.

    The longest of these:

    * Computation: the work of a device's own queries at its best rate, and one kernel's overhead.
    * Communication, for a set S of devices: (keys owned in S that somebody outside needs, once
      each, + in the backward gradients of keys owned outside that somebody in S attends to, once
      each) / (bandwidth that leaves S) + the least latency out of S (+ in the forward the overhead
      of one kernel, which attends to what came last). Devices may pass on what they get, and sum
      gradients. On half duplex links also both ways together, over the capacities that either way
      crosses.

    * The same for sets that hold each device once, all together (`covers`).

    Every set gives a valid bound. The worst set is sought with a maximum flow for each way to fix
    who is outside (single devices, domains of all tiers, their complements), in the backward also
    who is inside, and Newton's method over all sets that fit. That is exact wherever needs are
    nested, as under full and causal masks; otherwise a worse set may be missed. With more than 32
    devices and domains, of those that look alike in the graph one is tried, the one that needs
    most: exact where what looks alike is symmetric, valid always.

    Args:
        topology: The machine.
        workload: What is computed.
        direction: ``forward`` or ``backward``.
        partition: Who owns which rows, or the name of a partition.
        ranks: That many devices, spread evenly over the top-level domains.
        devices: These devices, in this order. Not together with ``ranks``.
        saved: (rank, item, slot) of what is resident when the backward begins.

    Raises:
        WorkloadError: An unknown direction or partition, one of another length or number of ranks,
            or both ``ranks`` and ``devices``.
        TopologyError: Unknown devices, or no rate for the dtype.
    """
    chosen = choose_devices(topology, ranks, devices)
    shards = _partition(partition, workload, len(chosen))
    if direction not in DIRECTIONS:
        raise WorkloadError(f"direction: expected forward or backward, found {direction!r}")
    compute, slowest = own_work(topology, chosen, workload, shards, direction)
    demand = demand_of(workload, shards, direction=direction, saved=saved)
    communication, cut = _communicate(topology, chosen, demand, direction)
    by_cut = cut is not None and communication > compute
    return Bound(
        seconds=max(compute, communication),
        reason=cut.words if cut and by_cut else f"{COMPUTATION} on {slowest}",
        cut=cut,
        compute=compute,
        communication=communication,
    )


def _partition(partition: str | Partition, workload: Workload, ranks: int) -> Partition:
    if isinstance(partition, str):
        return Partition.of(partition, workload, ranks)
    if (partition.seq_len, partition.num_ranks) != (workload.seq_len, ranks):
        raise WorkloadError(
            f"partition: expected {workload.seq_len} tokens on {ranks} ranks, "
            f"found {partition.seq_len} on {partition.num_ranks}"
        )
    return partition


def own_work(
    topology: Topology,
    devices: Sequence[str],
    workload: Workload,
    partition: Partition,
    direction: str,
) -> tuple[float, str]:
    """Give the seconds of the device that needs most for its own queries, and its name."""
    shards = [(run, rank) for rank, shard in enumerate(partition.shards) for run in shard]
    rows = np.array([run for run, _ in shards], np.int64)
    everything = (np.zeros(1, np.int64), np.full(1, workload.seq_len))
    pairs = area(workload.mask_rule, workload.seq_len, (rows[:, 0], rows[:, 1]), everything)
    work = np.zeros(len(devices), np.int64)
    np.add.at(work, [rank for _, rank in shards], pairs)
    per_pair = float(workload.flops_per_pair(direction) * workload.heads)
    rates: dict[int, float] = {}
    seconds = np.zeros(len(devices))
    for rank, name in enumerate(devices):
        profile = topology.device(name).compute
        if id(profile) not in rates:
            rates[id(profile)] = best_rate(topology, name, workload, direction)
        if work[rank]:
            seconds[rank] = work[rank] * per_pair / rates[id(profile)] + profile.overhead
    slowest = int(seconds.argmax())
    return float(seconds[slowest]), devices[slowest]


@dataclass(frozen=True, kw_only=True)
class _Worst:
    """The worst cut so far: its time without latency, and the graph it is a set of."""

    seconds: float = 0.0
    inside: Bools | None = None
    graph: CutGraph | None = None
    both: bool = False


def _communicate(
    topology: Topology, devices: Sequence[str], demand: Demand, direction: str
) -> tuple[float, Cut | None]:
    """Give the seconds that communication alone takes, and its cut; None where nothing moves."""
    cut, cover = (kind(topology, devices, demand, direction) for kind in (_by_cut, _by_cover))
    return max(cut, cover, key=lambda found: found[0])


def moved(direction: str) -> str:
    """Name what moves."""
    return "keys and values" if direction == "forward" else "keys, values and gradients"


def _by_cover(
    topology: Topology, devices: Sequence[str], demand: Demand, direction: str
) -> tuple[float, Cut | None]:
    """Give the same by the worst cover."""
    worst = worst_cover(topology, devices, cut_graph(topology, devices), demand)
    if worst is None or not worst.crossing:
        return 0.0, None
    groups = np.zeros(len(devices), np.int64)
    for number, ranks in enumerate(worst.sets):
        groups[ranks] = number
    extra = delay_between(topology, devices, groups.tolist())
    if direction == "forward":
        extra += min(topology.device(name).compute.overhead for name in devices)
    what = f"{moved(direction)} between all {len(worst.sets)} {worst.kind}"
    return worst.seconds + extra, Cut(
        devices=tuple(devices),
        bandwidth=worst.bandwidth,
        crossing=worst.crossing,
        kinds=(f"links of all {worst.kind}",),
        words=f"{format_bytes(worst.crossing, digits=3)} of {what}: "
        f"{format_bandwidth(worst.bandwidth, digits=3)} in all",
    )


def _by_cut(
    topology: Topology, devices: Sequence[str], demand: Demand, direction: str
) -> tuple[float, Cut | None]:
    """Give the same by the worst cut alone."""
    worst = _Worst()
    half_duplex = any(link.shared for link in topology.links)
    for both in (False, True)[: 1 + half_duplex]:
        worst = _search(topology, devices, demand, worst, both=both)
    if worst.inside is None or worst.graph is None:
        return 0.0, None
    within = worst.inside[: len(devices)]
    crossing = demand.leaving(within) + (demand.leaving(~within) if worst.both else 0.0)
    cut = cut_of(topology, devices, worst.graph, worst.inside, (crossing, moved(direction)))
    extra = delay_out(topology, devices, within)
    if worst.both:
        extra = min(extra, delay_out(topology, devices, ~within))
    if direction == "forward":
        outside = np.flatnonzero(~within) if not worst.both else np.arange(len(devices))
        extra += min(topology.device(devices[rank]).compute.overhead for rank in outside.tolist())
    return worst.seconds + extra, cut


def _search(
    topology: Topology, devices: Sequence[str], demand: Demand, worst: _Worst, *, both: bool
) -> _Worst:
    graph = cut_graph(topology, devices, both=both)

    def leaving(inside: Bools) -> float:
        return demand.leaving(inside) + (demand.leaving(~inside) if both else 0.0)

    two_sided = both or demand.two_sided
    for inside, outside in _terms(topology, devices, graph, demand, two_sided):
        gain = demand.gain(inside, outside)
        if both:
            gain = gain.with_complement(demand.gain(outside, inside))
        seconds, found = worst_cut(graph, gain, leaving, worst.seconds)
        if found is not None:
            worst = _Worst(seconds=seconds, inside=found, graph=graph, both=both)
    return worst


def _terms(
    topology: Topology,
    devices: Sequence[str],
    graph: CutGraph,
    demand: Demand,
    two_sided: bool,
) -> Iterator[tuple[Ints, Ints]]:
    """Yield who has to be inside, and who outside: large sets first."""
    everyone = np.arange(len(devices))
    index = {name: rank for rank, name in enumerate(devices)}
    domains = [
        np.array(sorted(index[name] for name in domain.devices))
        for domain in families(topology.domains(devices))
    ]
    wants = demand.needed.astype(np.float64).T @ demand.rows
    if len(domains) > MOST_SETS:
        domains = _different(domains, graph, wants)
    neediest = np.array([int(wants.argmax())])
    for domain in domains:
        others = np.setdiff1d(everyone, domain)
        for group in (domain, others) if len(domain) > 1 else (domain,):
            yield NO_RANKS, group
            if two_sided:
                yield group, NO_RANKS
                if neediest[0] not in group:
                    yield neediest, group
                    yield group, neediest
        if two_sided:
            yield domain, others
            yield others, domain


def _different(domains: Sequence[Ints], graph: CutGraph, wants: Floats) -> list[Ints]:
    """Keep, of sets that look alike, the one that wants most."""
    colours = graph.colours()[: graph.ranks]
    found: dict[bytes, tuple[float, Ints]] = {}
    for domain in domains:
        look, wanted = np.sort(colours[domain]).tobytes(), float(wants[domain].sum())
        if look not in found or wanted > found[look][0]:
            found[look] = (wanted, domain)
    return [domain for _, domain in found.values()]
