"""What the search for domains asks of the graph: flows, bridges, components, what looks alike."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from charm_sched.topology.bounce import bounced_arcs
from charm_sched.topology.graph import HOST_MEMORY, Topology

if TYPE_CHECKING:
    import numpy

_CLASSES = 32  # classes of bridges told apart by their surroundings
_REACH = 3  # hops within which sets that look alike are compared
_STEP = 1.2  # bandwidths within one such step are one threshold
_LARGEST = 2**30 - 1  # capacity in a maximum flow


class Bundle(NamedTuple):
    """All links between two vertices, both directions; `rate` is of the better direction."""

    kinds: frozenset[str]
    rate: float


class Bridge(NamedTuple):
    """A bundle whose loss disconnects: its ends, and the devices on the smaller side."""

    ends: tuple[int, int]
    side: tuple[int, ...]


class DomainGraph:
    """An undirected view of a topology; vertices are integers, devices first."""

    def __init__(self, topology: Topology) -> None:
        names = topology.part_names
        index = {name: i for i, name in enumerate(names)}
        self.devices = len(topology.devices)
        self.size = len(names)
        self.kinds = ["" for _ in topology.devices] + [s.kind for s in topology.switches]
        self.ports = [device.port for device in topology.devices]
        self._peers = [device.peer for device in topology.devices]
        self.arcs: dict[tuple[int, int], float] = defaultdict(float)
        kinds: dict[tuple[int, int], set[str]] = defaultdict(set)
        for link in topology.links:
            ends = index[link.src], index[link.dst]
            self.arcs[ends] += link.bandwidth
            kinds[min(ends), max(ends)].add(link.kind)
        self.bundles: list[dict[int, Bundle]] = [{} for _ in names]
        for (a, b), between in kinds.items():
            bundle = Bundle(frozenset(between), max(self.arcs[a, b], self.arcs[b, a]))
            self.bundles[a][b] = self.bundles[b][a] = bundle
        self._flows: dict[object, float] = {}

    def whole(self) -> range:
        """Return all vertices."""
        return range(self.size)

    @functools.cached_property
    def colours(self) -> list[int]:
        """Colours of vertices by repeated refinement: alike surroundings, alike colour."""
        arcs, bundles = self.arcs, self.bundles
        first: dict[object, int] = {}
        colours = [
            first.setdefault((kind, self.ports[v] if v < self.devices else None), len(first))
            for v, kind in enumerate(self.kinds)
        ]
        edges = [
            [(w, hash((arcs[v, w], arcs[w, v], bundle.kinds))) for w, bundle in around.items()]
            for v, around in enumerate(bundles)
        ]
        count = len(first)
        while True:
            numbers: dict[object, int] = {}
            colours = [
                numbers.setdefault(
                    (colours[v], tuple(sorted((look, colours[w]) for w, look in around))),
                    len(numbers),
                )
                for v, around in enumerate(edges)
            ]
            if len(numbers) == count:
                return colours
            count = len(numbers)

    def look(self, devices: Collection[int]) -> int:
        """Return what a set of devices looks like: equal for sets that play the same part.

        The colours of the members, how many members each is joined to directly, and how many meet
        in the switches up to `_REACH` hops away: eight devices of a node and the eight of a rail
        may have the same colours.
        """
        if len(devices) == 1:
            return hash(tuple(self.colours[device] for device in devices))
        members = set(devices)
        seen = [sorted((self.colours[v], len(members & self.bundles[v].keys())) for v in members)]
        meeting = dict.fromkeys(devices, 1)
        for _ in range(_REACH):
            reached: dict[int, int] = defaultdict(int)
            for vertex, count in meeting.items():
                for near in self.bundles[vertex]:
                    if near >= self.devices:
                        reached[near] += count
            meeting = reached
            seen.append(sorted((self.colours[v], count) for v, count in meeting.items()))
        return hash(tuple(map(tuple, seen)))

    def exchange(self, inside: Collection[int], devices: Collection[int]) -> float:
        """Return the flow from `inside` to the other `devices`, per device of the smaller side."""
        smaller = min(len(inside), len(devices) - len(inside))
        if smaller == 0:
            return math.inf
        key = (self.look(inside), self.look(devices))
        if key not in self._flows:
            members = set(inside)
            self._flows[key] = self.flow(inside, [d for d in devices if d not in members])
        return self._flows[key] / smaller

    def can_meet(self, vertices: Sequence[int], devices: Sequence[int]) -> bool:
        """Say whether the devices of a part can exchange anything without leaving it."""
        if all(self._peers[device] for device in devices):
            return True
        if any(self.kinds[vertex] == HOST_MEMORY for vertex in vertices):
            return True
        members = set(devices)
        return all(members & self.bundles[device].keys() for device in devices)

    def flow(self, inside: Collection[int], outside: Collection[int]) -> float:
        """Return the most that two disjoint sets of devices can move from one to the other, in B/s.

        Other devices do not forward; ports count. The value is the sum over a minimum cut.
        """
        import numpy as np
        from scipy.sparse import csgraph, csr_matrix

        tails, heads, rates, size = self._arrays
        source, sink = size, size + 1
        sends = np.zeros(size, dtype=bool)
        takes = np.zeros(size, dtype=bool)
        sends[self.devices :] = takes[self.devices :] = True
        first, last = np.fromiter(inside, int), np.fromiter(outside, int)
        sends[first] = True
        takes[last] = True
        used = sends[tails] & takes[heads]
        ports = np.asarray(self.ports)
        tail = np.concatenate([tails[used], np.full(len(first), source), last])
        head = np.concatenate([heads[used], first, np.full(len(last), sink)])
        rate = np.concatenate([rates[used], ports[first], ports[last]])
        whole = _integers(rate, min(ports[first].sum(), ports[last].sum()))
        shape = (size + 2, size + 2)
        capacity = csr_matrix((whole, (tail, head)), shape=shape)
        residual = capacity - csgraph.maximum_flow(capacity, source, sink).flow
        residual.data = (residual.data > 0).astype(np.int8)
        residual.eliminate_zeros()
        near = np.zeros(size + 2, dtype=bool)
        near[csgraph.breadth_first_order(residual, source, return_predecessors=False)] = True
        return math.fsum(rate[near[tail] & ~near[head]].tolist())

    @functools.cached_property
    def _arrays(
        self,
    ) -> tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any], numpy.ndarray[Any, Any], int]:
        """Tails, heads and rates of the arcs that bytes take, and how many vertices these have."""
        import numpy as np

        arcs, size = dict(self.arcs), self.size
        if not all(self._peers):
            arcs, size = bounced_arcs(arcs, self.kinds, self._peers)
        ends = np.array(list(arcs), dtype=np.int64).reshape(-1, 2)
        return ends[:, 0], ends[:, 1], np.array(list(arcs.values()), dtype=float), size

    def candidates(
        self, vertices: Sequence[int], devices: Sequence[int]
    ) -> Iterator[dict[int, int]]:
        """Yield the splits of `devices` that taking away links or switches of one sort makes."""
        members = set(vertices)
        bundles = [
            (v, w, bundle)
            for v in vertices
            for w, bundle in self.bundles[v].items()
            if v < w and w in members
        ]
        seen = {tuple(range(len(devices))), (0,) * len(devices)}
        for keeps in self._removals(vertices, [bundle for _, _, bundle in bundles]):
            edges = [(v, w) for v, w, bundle in bundles if keeps(v, w, bundle)]
            labels = _components(vertices, edges, devices)
            split = tuple(labels.values())
            if split not in seen:
                seen.add(split)
                yield labels

    def _removals(
        self, vertices: Sequence[int], bundles: Sequence[Bundle]
    ) -> Iterator[Callable[[int, int, Bundle], bool]]:
        """Yield, for each way to take links away, the test whether a bundle stays."""
        for kind in sorted({kind for bundle in bundles for kind in bundle.kinds}):
            yield functools.partial(_is_no_link, kind)
        for kind in sorted({self.kinds[v] for v in vertices} - {""}):
            yield functools.partial(self._is_no_switch, kind)
        rates = sorted({bundle.rate for bundle in bundles})
        for rate, larger in itertools.pairwise(rates):
            if larger > rate * _STEP:
                yield functools.partial(_is_above, rate)

    def _is_no_switch(self, kind: str, tail: int, head: int, _bundle: Bundle) -> bool:
        return kind not in (self.kinds[tail], self.kinds[head])

    def bridge_candidates(
        self, vertices: Sequence[int], devices: Sequence[int]
    ) -> Iterator[tuple[dict[int, int], tuple[int, ...]]]:
        """Yield the split that each class of alike bridges makes, and one bridge's smaller side."""
        bridges = self._bridges(vertices, devices)
        looks = [sorted(self.colours[v] for v in bridge.ends) for bridge in bridges]
        if len({tuple(look) for look in looks}) > _CLASSES:
            kinds = sorted(set(self.kinds))
            looks = [sorted(kinds.index(self.kinds[v]) for v in b.ends) for b in bridges]
        classes: dict[tuple[int, ...], list[Bridge]] = defaultdict(list)
        for bridge, look in zip(bridges, looks, strict=True):
            key = (*look, len(bridge.side))
            classes[key].append(bridge)
        members = set(vertices)
        for alike in classes.values():
            gone = {bridge.ends for bridge in alike}
            edges = [
                (v, w)
                for v in vertices
                for w in self.bundles[v]
                if v < w and w in members and (v, w) not in gone
            ]
            labels = _components(vertices, edges, devices)
            if len(set(labels.values())) < len(devices):
                yield labels, alike[0].side

    def _bridges(self, vertices: Sequence[int], devices: Sequence[int]) -> list[Bridge]:
        """Return the bridges with devices on both sides (lowest points of a depth-first search)."""
        members = set(vertices)
        number: dict[int, int] = {}
        low: dict[int, int] = {}
        order: list[tuple[int, int]] = []  # (vertex, parent) in order of discovery
        for root in devices[:1]:
            stack = [(root, -1, iter(self.bundles[root]))]
            number[root] = low[root] = 0
            order.append((root, -1))
            while stack:
                vertex, parent, rest = stack[-1]
                for near in rest:
                    if near == parent or near not in members:
                        continue
                    if near in number:
                        low[vertex] = min(low[vertex], number[near])
                        continue
                    number[near] = low[near] = len(number)
                    order.append((near, vertex))
                    stack.append((near, vertex, iter(self.bundles[near])))
                    break
                else:
                    stack.pop()
                    if parent >= 0:
                        low[parent] = min(low[parent], low[vertex])
        return _bridge_list(order, number, low, self.devices)

    def parts(self, vertices: Sequence[int], labels: dict[int, int]) -> list[list[int]]:
        """Return the vertices of each part: its devices, and the switches nearest to them alone."""
        owner = self._owners(labels, set(vertices))
        parts: dict[int, list[int]] = defaultdict(list)
        for vertex in vertices:
            if owner.get(vertex, -1) >= 0:
                parts[owner[vertex]].append(vertex)
        return list(parts.values())

    def _owners(self, labels: dict[int, int], members: Collection[int]) -> dict[int, int]:
        """Return the label of each vertex's nearest devices, or -1 where they differ."""
        owner = dict(labels)
        frontier = list(labels)
        while frontier:
            reached: dict[int, int] = {}
            for vertex in frontier:
                for near in self.bundles[vertex]:
                    if near in members and near not in owner:
                        label = owner[vertex]
                        reached[near] = label if reached.get(near, label) == label else -1
            owner.update(reached)
            frontier = list(reached)
        return owner

    def boundary_kinds(self, labels: dict[int, int]) -> Counter[str]:
        """Return the bandwidth per kind of the links that leave the parts of a split.

        A part has its devices and the switches nearest to them alone; `labels` numbers the parts.
        """
        owner = self._owners(labels, range(self.size))
        kinds: Counter[str] = Counter()
        for (tail, head), rate in self.arcs.items():
            label = owner.get(tail, -1)
            if label >= 0 and owner.get(head) != label:
                kinds[min(self.bundles[tail][head].kinds)] += round(rate)
        return kinds


def _is_no_link(kind: str, _tail: int, _head: int, bundle: Bundle) -> bool:
    return bundle.kinds != {kind}


def _is_above(rate: float, _tail: int, _head: int, bundle: Bundle) -> bool:
    return bundle.rate > rate


def _bridge_list(
    order: list[tuple[int, int]], number: dict[int, int], low: dict[int, int], devices: int
) -> list[Bridge]:
    """Read the bridges off a depth-first numbering; a subtree is a range of numbers."""
    total = sum(vertex < devices for vertex, _ in order)
    below = [int(vertex < devices) for vertex, _ in order]
    size = [1] * len(order)
    for vertex, parent in reversed(order):
        if parent >= 0:
            below[number[parent]] += below[number[vertex]]
            size[number[parent]] += size[number[vertex]]
    bridges = []
    for vertex, parent in order:
        at = number[vertex]
        if parent >= 0 and low[vertex] > number[parent] and 0 < below[at] < total:
            subtree = range(at, at + size[at])
            if 2 * below[at] > total:
                inside = set(subtree)
                numbers = [i for i in range(len(order)) if i not in inside]
            else:
                numbers = list(subtree)
            side = tuple(order[i][0] for i in numbers if order[i][0] < devices)
            bridges.append(Bridge((min(vertex, parent), max(vertex, parent)), side))
    return bridges


def _components(
    vertices: Sequence[int], edges: Sequence[tuple[int, int]], devices: Sequence[int]
) -> dict[int, int]:
    """Return the component of each device, numbered by first appearance."""
    root = {vertex: vertex for vertex in vertices}
    for a, b in edges:
        while root[a] != a:
            root[a] = a = root[root[a]]
        while root[b] != b:
            root[b] = b = root[root[b]]
        if a != b:
            root[max(a, b)] = min(a, b)
    numbers: dict[int, int] = {}
    labels: dict[int, int] = {}
    for device in devices:
        top = device
        while root[top] != top:
            top = root[top]
        labels[device] = numbers.setdefault(top, len(numbers))
    return labels


def _integers(rates: numpy.ndarray[Any, Any], total: float) -> numpy.ndarray[Any, Any]:
    """Return capacities as 32-bit integers: exact where they have a common unit that allows it.

    SciPy's maximum flow counts in 32 bits, and adds the flow one way to the capacity of the other.
    No flow is larger than `total`, so an arc of twice as much is never full, and with it in half of
    the range no sum overflows.
    """
    import numpy as np

    whole = np.rint(np.minimum(rates, 2.0**62)).astype(np.int64)
    unit = float(max(1, int(np.gcd.reduce(whole))))
    unit = max(unit, 2 * total / _LARGEST)
    capped = np.rint(np.minimum(rates, 2 * total) / unit)
    return np.clip(capped, 1, _LARGEST).astype(np.int32)
