"""Probing: transfers alone, and what their times say about the links.

A probe is a handful of plans without any attention: one pair of ranks alone at several sizes, and
all ranks of a tier at once. Their measured times give a latency and a bandwidth factor per kind of
link. So a prediction can be calibrated without ever having seen the run that it predicts.

The model that is fitted: the host works on all transfers that begin together at once, then each
takes the latencies of its links, then its bytes at its max-min share of what it crosses. What the
host costs is measured apart.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Floats
from charm_sched.partition import Partition
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.probing.latency import share_latencies
from charm_sched.testbed.host_cost import HostCost
from charm_sched.topology.scaling import corrected
from charm_sched.workload import Workload

if TYPE_CHECKING:
    from charm_sched.timelines.timeline import Timeline
    from charm_sched.topology.graph import Route, Topology

ROW_BYTES = 512  # of the probe's items: one head of 64, keys and values, fp32
SIZES = (1 << 16, 1 << 18, 1 << 20, 1 << 22)
TIMES = 3  # transfers of each size, one after another
Pair = tuple[int, int]


@dataclass(frozen=True, eq=False, kw_only=True)
class Pattern:
    """One plan of transfers.

    Attributes:
        name: What it asks, for people.
        tier: The tier that it loads.
        alone: Whether one pair has everything for itself.
        pairs: Ranks that send, and to whom, at once in every level.
        plan: The transfers: `TIMES` levels per size.
    """

    name: str
    tier: str
    alone: bool
    pairs: tuple[Pair, ...]
    plan: Plan


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one pattern says, beside what the file says.

    Attributes:
        name: The pattern.
        tier: Its tier.
        latency: Seconds before bytes flow, fitted over sizes.
        bandwidth: Bytes per second of one flow, fitted over sizes.
        expected: Bytes per second of one flow by the file.
        bound_by: Kind of the link that limits it by the file.
    """

    name: str
    tier: str
    latency: float
    bandwidth: float
    expected: float
    bound_by: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Calibration:
    """A probe's result.

    Attributes:
        findings: One per pattern.
        latency: Seconds per kind of link.
        factor: Measured over expected bandwidth per kind of link that was the limit somewhere.
        host: What an op costs the computer that all ranks share.
        topology: The machine with these latencies and bandwidths.
    """

    findings: tuple[Finding, ...]
    latency: Mapping[str, float]
    factor: Mapping[str, float]
    host: HostCost
    topology: Topology


def patterns(
    topology: Topology, devices: Sequence[str], sizes: Sequence[int] = SIZES
) -> tuple[Pattern, ...]:
    """Choose what to measure: per tier and kind of route one pair alone, and all ranks at once."""
    found = []
    ranks = range(len(devices))
    for tier in topology.tiers:
        pairs = [
            (a, b)
            for a in ranks
            for b in ranks
            if a != b and topology.tier_of(devices[a], devices[b]) == tier
        ]
        shapes: dict[tuple[tuple[str, int], ...], Pair] = {}
        for a, b in pairs:
            shapes.setdefault(_shape(topology, topology.route(devices[a], devices[b])), (a, b))
        for a, b in shapes.values():
            name = f"{devices[a]} to {devices[b]} alone"
            found.append(_pattern(name, tier, [(a, b)], topology, devices, sizes))
        together = all_at_once(pairs)
        if len(together) > 1:
            name = f"all ranks over {tier} at once"
            found.append(_pattern(name, tier, together, topology, devices, sizes))
    return tuple(found)


def _shape(topology: Topology, route: Route) -> tuple[tuple[str, int], ...]:
    kinds = Counter(topology.links[i].kind for i in route.links)
    return tuple(sorted(kinds.items()))


def all_at_once(pairs: Sequence[Pair]) -> list[Pair]:
    """Give each rank one peer to send to, so that each receives from one as well where possible."""
    taken: set[int] = set()
    chosen = []
    for src in dict.fromkeys(a for a, _ in pairs):
        peers = [b for a, b in pairs if a == src]
        # Starting behind the sender spreads the receivers.
        order = sorted(peers, key=lambda b: (b <= src, b))
        free = [b for b in order if b not in taken]
        peer = (free or order)[0]
        taken.add(peer)
        chosen.append((src, peer))
    return chosen


def _pattern(
    name: str,
    tier: str,
    pairs: Sequence[Pair],
    topology: Topology,
    devices: Sequence[str],
    sizes: Sequence[int],
) -> Pattern:
    ranks = len(devices)
    most = max(sizes) // ROW_BYTES
    work = Workload(
        seq_len=ranks * most, heads=1, kv_heads=1, head_dim=64, dtype="fp32", mask="full"
    )
    b = Builder(work, Partition.contiguous(work.seq_len, ranks), topology=topology, devices=devices)
    level = 0
    for size in sizes:
        items = [b.item("kv", ((src * most, src * most + size // ROW_BYTES),)) for src, _ in pairs]
        for _ in range(TIMES):
            b.transfer(
                src=[src for src, _ in pairs], dst=[dst for _, dst in pairs], items=items,
                level=level, stream="probe", slot=[src for src, _ in pairs],
            )  # fmt: skip
            level += 1
    return Pattern(
        name=name,
        tier=tier,
        alone=len(pairs) == 1,
        pairs=tuple(pairs),
        plan=b.build("probe"),
    )


def calibrate(
    topology: Topology,
    measured: Sequence[tuple[Pattern, Sequence[Timeline]]],
    host: HostCost,
) -> Calibration:
    """Fit a latency and a bandwidth factor per kind of link to measured patterns.

    Args:
        topology: The machine as its file states it.
        measured: Patterns with their repetitions.
        host: What an op costs the computer that all ranks share.
    """
    findings = tuple(_finding(topology, pattern, lines) for pattern, lines in measured)
    routes = _routes(topology, [pattern for pattern, _ in measured], findings, host)
    latency = share_latencies(topology, routes, lambda link: link.kind)
    factor = {
        kind: statistics.median(f.bandwidth / f.expected for f in findings if f.bound_by == kind)
        for kind in dict.fromkeys(f.bound_by for f in findings)
    }
    return Calibration(
        findings=findings,
        latency=latency,
        factor=factor,
        host=host,
        topology=corrected(topology, bandwidth=factor, latency=latency),
    )


def _finding(topology: Topology, pattern: Pattern, lines: Sequence[Timeline]) -> Finding:
    plan = pattern.plan
    sizes, seconds = _steps(pattern, lines, _slowest(topology, pattern))
    latency, bandwidth = fit_line(sizes, seconds)
    expected, bound_by = expected_rate(topology, plan.devices, pattern.pairs)
    return Finding(
        name=pattern.name,
        tier=pattern.tier,
        latency=latency,
        bandwidth=bandwidth,
        expected=expected,
        bound_by=bound_by,
    )


def _slowest(topology: Topology, pattern: Pattern) -> list[int]:
    """Give the numbers of the flows whose routes are like that of the slowest one by the file.

    Routes of a tier may differ, as on one board and between two. The slowest flow, and of equal
    ones that with the longest latency, never waits for its neighbours: their delays reach the
    others level by level, as sizes grow, and would count as bytes.
    """
    devices = pattern.plan.devices
    rates = _flow_rates(topology, devices, pattern.pairs)
    routes = [topology.route(devices[a], devices[b]) for a, b in pattern.pairs]
    order = [(rate, -route.latency) for (rate, _), route in zip(rates, routes, strict=True)]
    shapes = [_shape(topology, route) for route in routes]
    least = shapes[order.index(min(order))]
    return [number for number, shape in enumerate(shapes) if shape == least]


def _steps(
    pattern: Pattern, lines: Sequence[Timeline], flows: Sequence[int]
) -> tuple[Floats, Floats]:
    """Give bytes and seconds of each level: from the end of the level before to its own end.

    What passes between two transfers (a thread that wakes up, a receive that is posted) is part of
    what a level costs, and so of the latency.
    """
    shape = (-1, len(pattern.pairs))
    sizes = pattern.plan.op_bytes.astype(np.float64).reshape(shape)[1:, flows]
    ends = np.median([line.end.reshape(shape)[:, flows] for line in lines], axis=0)
    return sizes.reshape(-1), np.diff(ends, axis=0).reshape(-1)


def fit_line(sizes: Floats, seconds: Floats) -> tuple[float, float]:
    """Fit seconds = latency + size / bandwidth to the medians per size, by relative error."""
    distinct = np.unique(sizes)
    medians = np.array([np.median(seconds[sizes == size]) for size in distinct])
    weights = 1 / medians
    columns = np.stack([np.ones_like(distinct), distinct], axis=1) * weights[:, None]
    (latency, slope), *_ = np.linalg.lstsq(columns, medians * weights, rcond=None)
    if latency < 0:
        latency = 0.0
        slope = float((columns[:, 1] @ (medians * weights)) / (columns[:, 1] @ columns[:, 1]))
    return float(latency), float(1 / slope)


def expected_rate(
    topology: Topology, devices: Sequence[str], pairs: Sequence[Pair]
) -> tuple[float, str]:
    """Give the slowest flow's rate by the file while all pairs send, and what limits it."""
    return min(_flow_rates(topology, devices, pairs), key=lambda flow: flow[0])


def _flow_rates(
    topology: Topology, devices: Sequence[str], pairs: Sequence[Pair]
) -> list[tuple[float, str]]:
    """Give what each flow gets at least by the file while all pairs send, and what limits it.

    That is its least equal share of what it crosses: for the slowest flow just what max-min sharing
    gives (`charm_sched.simulator.maxmin`).
    """
    routes = [topology.route(devices[a], devices[b]) for a, b in pairs]
    load = Counter(i for route in routes for i in route.capacities)
    found = []
    for route in routes:
        shares = [
            (topology.capacities[i].bandwidth / load[i], topology.capacities[i].kind)
            for i in route.capacities
        ]
        if route.flow_cap < float("inf"):
            capped = min(
                (topology.links[i] for i in route.links if topology.links[i].flow_cap),
                key=lambda link: link.flow_cap or 0.0,
            )
            shares.append((route.flow_cap, capped.kind))
        rate, kind = min(share for share in shares)
        if kind == "port":
            kind = topology.links[route.links[0]].kind
        found.append((rate, kind))
    return found


def _routes(
    topology: Topology, probed: Sequence[Pattern], findings: Sequence[Finding], host: HostCost
) -> list[tuple[Route, float]]:
    """Give routes with the latency that links cause.

    Where all ranks of a tier were probed at once, that counts for routes of that shape: in a run
    they all are busy. What the host takes for as many messages is not of the links.
    """
    routes = []
    for pattern in probed:
        a, b = pattern.pairs[_slowest(topology, pattern)[0]]
        routes.append(topology.route(pattern.plan.devices[a], pattern.plan.devices[b]))
    shapes = [_shape(topology, route) for route in routes]
    together = [shape for shape, p in zip(shapes, probed, strict=True) if not p.alone]
    return [
        (route, finding.latency - len(pattern.pairs) * host.message)
        for pattern, finding, route, shape in zip(probed, findings, routes, shapes, strict=True)
        if not (pattern.alone and shape in together)
    ]
