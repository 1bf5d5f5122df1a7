"""Cuts of a machine: what has to leave a set of devices, over what can leave it.

A transfer between a device inside a set of vertices and one outside crosses an arc that leaves the
set, whatever its route and whoever passes it on. So bytes that have to leave take at least bytes
over the bandwidth of those arcs. `worst_cut` finds the set where that is most, by Newton's method
on fractions (Dinkelbach): a minimum cut at the best time so far either gives a worse set, or
proves that there is none. Minimum cuts are found in whole numbers; the time of a set is then
computed from its own bytes and arcs, so rounding may miss a set that is hardly worse, and never
gives a time that is too long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from charm_sched.topology.graph import Topology

# SciPy's maximum flow counts in 32 bits, and adds the flow one way to the capacity of the other.
_LARGEST = 2**30 - 1
_GROWTH = 1 + 1e-12  # a cut that is worse by less is the same cut


@dataclass(frozen=True, eq=False, kw_only=True)
class CutGraph:
    """Where bytes can go between the devices of a plan; the other devices take no part.

    Vertex ``i < ranks`` is the memory of rank ``i``. A device whose port is narrower than its links
    has a vertex for each way of the port. Devices pass on what they have received, as plans may.

    Attributes:
        ranks: Number of devices.
        size: Number of vertices.
        tail: Where each arc begins, ``[arcs]``.
        head: Where it ends.
        rate: Its bytes per second.
        kinds: Kind of link of each arc.
    """

    ranks: int
    size: int
    tail: Ints
    head: Ints
    rate: Floats
    kinds: tuple[str, ...]

    def leaving(self, inside: Bools) -> float:
        """Give the bytes per second that can leave a set of vertices."""
        return math.fsum(self.rate[self.crossed(inside)].tolist())

    def colours(self) -> NDArray[np.uint64]:
        """Colour the vertices: what plays the same part in the graph has the same colour.

        By repeated refinement: vertices keep a colour while their arcs, with rates and the colours
        at the other ends, are the same.
        """
        colour = (np.arange(self.size) < self.ranks).astype(np.uint64)
        rate, count = _mixed(self.rate.view(np.uint64)), 0
        while (found := len(np.unique(colour))) > count:
            count = found
            sums = np.zeros((2, self.size), np.uint64)
            np.add.at(sums[0], self.tail, _mixed(rate ^ _mixed(colour[self.head])))
            np.add.at(sums[1], self.head, _mixed(rate + _mixed(colour[self.tail])))
            colour = _mixed(_mixed(_mixed(colour) + sums[0]) + sums[1])
        return colour

    def crossed(self, inside: Bools) -> Ints:
        """Give the arcs that leave a set of vertices."""
        found: Ints = np.flatnonzero(inside[self.tail] & ~inside[self.head])
        return found


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter 64-bit numbers (the finaliser of SplitMix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def cut_graph(topology: Topology, devices: Sequence[str], *, both: bool = False) -> CutGraph:
    """Read the graph off a topology.

    Args:
        topology: The machine.
        devices: The device of each rank.
        both: Count what crosses a cut in both directions together: every arc goes both ways, and
            the two directions of a half duplex link are one. (Not so at a port that is narrower
            than its links, where they may count twice: the bound stays valid.)
    """
    vertex = {name: i for i, name in enumerate(devices)}
    arcs: dict[tuple[int, int], float] = {}
    kinds: dict[tuple[int, int], str] = {}
    size = len(devices)
    for switch in topology.switches:
        vertex[switch.name] = size
        size += 1
    gates, size = _gates(topology, vertex, devices, size)
    wires = [(rank, gate, rank, "port") for rank, (gate, _) in gates.items()]
    wires += [(gate, rank, rank, "port") for rank, (_, gate) in gates.items()]
    widths = [topology.device(devices[rank]).port for *_, rank, _ in wires]
    seen: set[tuple[int, int, int]] = set()
    for link, capacity in zip(topology.links, topology.link_capacity, strict=True):
        if link.src not in vertex or link.dst not in vertex:
            continue
        src, dst = vertex[link.src], vertex[link.dst]
        tail, head = gates.get(src, (src,))[0], gates.get(dst, (dst, dst))[1]
        pair = (capacity, min(tail, head), max(tail, head))
        if both and pair in seen:
            continue
        seen.add(pair)
        wires.append((tail, head, -1, link.kind))
        widths.append(link.bandwidth)
    for (tail, head, _, kind), width in zip(wires, widths, strict=True):
        for arc in ((tail, head), (head, tail))[: 1 + both]:
            arcs[arc] = arcs.get(arc, 0.0) + width
            kinds[arc] = kind
    ends = np.array(list(arcs), np.int64).reshape(-1, 2)
    return CutGraph(
        ranks=len(devices),
        size=size,
        tail=ends[:, 0],
        head=ends[:, 1],
        rate=np.array(list(arcs.values())),
        kinds=tuple(kinds.values()),
    )


def _gates(
    topology: Topology, vertex: dict[str, int], devices: Sequence[str], size: int
) -> tuple[dict[int, tuple[int, int]], int]:
    """Give the vertices (out, in) of the ports that are narrower than their device's links."""
    sums = np.zeros((2, size))
    for link in topology.links:
        if link.src in vertex and link.dst in vertex:
            sums[0, vertex[link.src]] += link.bandwidth
            sums[1, vertex[link.dst]] += link.bandwidth
    gates = {}
    for rank, name in enumerate(devices):
        if sums[:, rank].max() > topology.device(name).port:
            gates[rank] = (size, size + 1)
            size += 2
    return gates, size


@dataclass(frozen=True, eq=False, kw_only=True)
class Gain:
    """What is won by having vertices inside a set, in bytes; the part of a demand that adds up.

    Attributes:
        each: Bytes for each rank inside, of either sign, ``[ranks]``.
        inside: Ranks that have to be inside.
        outside: Ranks that have to be outside.
        together: (bytes, ranks): won when all these ranks are inside.
    """

    each: Floats
    inside: Ints
    outside: Ints
    together: Sequence[tuple[float, Ints]] = field(default=())

    def with_complement(self, other: Gain) -> Gain:
        """Add what another gain wins for the complement; what is won together there is left out."""
        return replace(self, each=self.each - other.each)


def worst_cut(
    graph: CutGraph, gain: Gain, demand: Callable[[Bools], float], least: float
) -> tuple[float, Bools | None]:
    """Find the set of vertices whose demand takes longest to leave.

    Args:
        graph: The machine.
        gain: At most the demand of every set that it admits, up to a constant of the set's terms.
        demand: Bytes that have to leave a set of ranks, ``[ranks]`` to bytes.
        least: Seconds; only longer times are of interest.

    Returns:
        The time in seconds, exactly bytes over bandwidth of the set found, and the set (vertices);
        ``least`` and None where no set takes longer.
    """
    best: Bools | None = None
    start = np.ones(graph.size, np.bool_)
    start[gain.outside] = False
    if not len(gain.outside):
        start[:] = False
        start[gain.inside] = True
    inside = start
    while True:
        bandwidth = graph.leaving(inside)
        bytes_out = demand(inside[: graph.ranks])
        seconds = bytes_out / bandwidth if bandwidth else math.inf if bytes_out else 0.0
        if seconds > least * _GROWTH:
            least, best = seconds, inside
        elif inside is not start:
            return least, best
        if not 0 < least < math.inf:
            return least, best
        inside = _minimum_cut(graph, gain, least)


def narrowest(graph: CutGraph, inside: Ints, outside: Ints) -> Bools:
    """Give the set of vertices with some ranks, without others, that least can leave."""
    none = np.zeros(graph.ranks)
    return _minimum_cut(graph, Gain(each=none, inside=inside, outside=outside), 1.0)


def _minimum_cut(graph: CutGraph, gain: Gain, seconds: float) -> Bools:
    """Give the vertices with the most gain less what can leave in some seconds."""
    from scipy.sparse import csgraph, csr_matrix

    tail, head, size, most = _network(graph, gain, seconds)
    source, sink = graph.size, graph.size + 1
    shape = (graph.size + 2 + len(gain.together),) * 2
    # No flow is larger than `most`, so an arc of twice as much is never full.
    scale = _LARGEST / (2 * most) if most else 0.0
    whole = np.rint(np.minimum(size, 2 * most) * scale).astype(np.int32)
    capacity = csr_matrix((whole, (tail, head)), shape=shape)
    residual = capacity - csgraph.maximum_flow(capacity, source, sink).flow
    residual.data = (residual.data > 0).astype(np.int8)
    residual.eliminate_zeros()
    inside = np.zeros(shape[0], np.bool_)
    inside[csgraph.breadth_first_order(residual, source, return_predecessors=False)] = True
    return inside[: graph.size]


def _network(graph: CutGraph, gain: Gain, seconds: float) -> tuple[Ints, Ints, Floats, float]:
    """Give the arcs (tail, head, bytes) of the flow problem, and a bound on its flow.

    The source follows the vertices, then the sink, then one vertex for each of `Gain.together`.
    """
    source, sink = graph.size, graph.size + 1
    free = np.ones(graph.ranks, np.bool_)
    free[gain.inside] = free[gain.outside] = False
    more, less = (np.flatnonzero(free & (sign * gain.each > 0)) for sign in (1, -1))
    bundles = sink + 1 + np.arange(len(gain.together))
    holders = [ranks for _, ranks in gain.together]
    prizes = np.array([prize for prize, _ in gain.together])
    every = np.inf
    parts = [
        (graph.tail, graph.head, graph.rate * seconds),
        (np.full(len(more), source), more, gain.each[more]),
        (less, np.full(len(less), sink), -gain.each[less]),
        (np.full(len(gain.inside), source), gain.inside, np.full(len(gain.inside), every)),
        (gain.outside, np.full(len(gain.outside), sink), np.full(len(gain.outside), every)),
        (np.full(len(bundles), source), bundles, prizes),
    ]
    for bundle, ranks in zip(bundles, holders, strict=True):
        parts.append((np.full(len(ranks), bundle), ranks, np.full(len(ranks), every)))
    rates = np.bincount(graph.tail, graph.rate, minlength=graph.size)
    intake = np.bincount(graph.head, graph.rate, minlength=graph.size)
    pushed = gain.each[more].sum() + prizes.sum() + seconds * rates[gain.inside].sum()
    pulled = -gain.each[less].sum() + seconds * intake[gain.outside].sum()
    tail, head, size = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return tail, head, size, float(min(pushed, pulled))
