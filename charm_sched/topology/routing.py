"""Static routes: fewest hops, then the widest bottleneck, equal paths dealt out evenly.

A breadth-first search per source, run no further than the destination asks for, gives hop counts
and the widest bottleneck of every shortest path. The path is then walked backwards from the
destination. Where several predecessors are equally good, the half of the path near the destination
chooses by the destination's rank among the devices equally far below the switch (which sends any
shift of ranks over disjoint links, as destination-based routing does in fat trees), the half near
the source by the source's.

Where an end has no peer access the way goes through the memory of a host: that of the receiver, as
with NCCL's shared-memory transport (transport/shm.cc), or of the end without peer access; and where
it leaves the host by a network card, through that of each end without peer access.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from dataclasses import dataclass, field

from charm_sched.errors import TopologyError
from charm_sched.topology.graph import HOST_MEMORY, Route, Topology

_SEARCH_BYTES = 64 * 2**20  # kept breadth-first searches
_ROUTES = 1 << 17  # kept routes
_BUSY = 16  # links of a vertex from which on its options are kept
_FAR = 0  # hop count of what is not reached yet; the source itself has 1


@dataclass(slots=True)
class _Search:
    """A breadth-first search that can be continued.

    Attributes:
        hops: hops from the source, plus one; 0 where not reached yet.
        width: the widest bottleneck over the shortest paths, for one flow.
        frontier: vertices of the last level reached.
        options: what may come before a vertex with many links, for a bottleneck: (link, vertex).
    """

    hops: array[int]
    width: array[float]
    frontier: list[int] = field(default_factory=list)
    options: dict[tuple[int, float], list[tuple[int, int]]] = field(default_factory=dict)


class Router:
    """Routes of one topology, found on demand and kept."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._devices = len(topology.devices)
        names = topology.part_names
        self._index = index = {name: i for i, name in enumerate(names)}
        self._out: list[list[tuple[int, int, float]]] = [[] for _ in names]
        self._into: list[list[tuple[int, int, float]]] = [[] for _ in names]
        for link in topology.links:
            cap = math.inf if link.flow_cap is None else link.flow_cap
            width = min(link.bandwidth, cap)
            src, dst = index[link.src], index[link.dst]
            self._out[src].append((dst, link.index, width))
            self._into[dst].append((src, link.index, width))
        self._searches: OrderedDict[int, _Search] = OrderedDict()
        self._keep = max(16, _SEARCH_BYTES // (12 * len(names) + 1))
        self._routes: dict[tuple[int, int], Route] = {}
        self._bounces = {i for i, device in enumerate(topology.devices) if not device.peer}
        self._kinds = [""] * self._devices + [switch.kind for switch in topology.switches]
        self._memories: dict[int, int] = {}
        self._below: dict[tuple[int, int], dict[int, int]] = {}

    def route(self, src: int, dst: int) -> Route:
        """Return the route between two devices, given by index."""
        route = self._routes.get((src, dst))
        if route is None:
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            links = self._path(src, dst)
            if len(links) > 1 and (src in self._bounces or dst in self._bounces):
                links = self._bounced(src, dst)
            route = self._routes[src, dst] = self._make(links, src, dst)
        return route

    def _bounced(self, src: int, dst: int) -> list[int]:
        """Return the links from `src` through the memory of hosts to `dst`."""
        stops = [self._memory(end) for end in (src, dst) if end in self._bounces]
        links = self._through(src, stops[-1:], dst)
        if len(set(stops)) > 1 and any(self._is_card(i) for i in links):
            links = self._through(src, stops, dst)
        return links

    def _through(self, src: int, stops: list[int], dst: int) -> list[int]:
        legs = zip((src, *stops), (*stops, dst), strict=True)
        return [link for start, end in legs for link in self._path(start, end)]

    def _is_card(self, index: int) -> bool:
        return self._kinds[self._index[self._topology.links[index].dst]] == "nic"

    def _memory(self, device: int) -> int:
        """Return the host's memory nearest to a device."""
        if device not in self._memories:
            hosts = [v for v, kind in enumerate(self._kinds) if kind == HOST_MEMORY]
            search = self._search(device, hosts[0])
            near = [host for host in hosts if search.hops[host] != _FAR]
            self._memories[device] = min(near, key=lambda host: search.hops[host])
        return self._memories[device]

    def _make(self, links: list[int], src: int, dst: int) -> Route:
        if not links:
            return Route(links=(), capacities=(), latency=0.0, flow_cap=math.inf)
        topology = self._topology
        ports = len(topology.capacities) - 2 * self._devices
        crossed = [topology.link_capacity[i] for i in links]
        caps = [topology.links[i].flow_cap for i in links]
        return Route(
            links=tuple(links),
            capacities=(ports + 2 * src, *crossed, ports + 2 * dst + 1),
            latency=math.fsum(topology.links[i].latency for i in links),
            flow_cap=min((cap for cap in caps if cap is not None), default=math.inf),
        )

    def _path(self, src: int, dst: int) -> list[int]:
        """Return the links from `src` to `dst`, walking back from `dst`."""
        if src == dst:
            return []
        search = self._search(src, dst)
        hops, width = search.hops, search.width
        length, bottleneck = hops[dst] - 1, width[dst]
        links: list[int] = []
        at, dealt = dst, [1, 1]  # what earlier choices near the destination, the source, divided by
        while at != src:
            left = hops[at] - 1
            options = search.options.get((at, bottleneck))
            if options is None:
                options = [
                    (link, before)
                    for before, link, wide in self._into[at]
                    if hops[before] == left
                    and (before >= self._devices or before == src)
                    and min(wide, width[before]) >= bottleneck
                ]
                if len(self._into[at]) > _BUSY:
                    search.options[at, bottleneck] = options
            link, before = options[0]
            if len(options) > 1:
                near_source = 2 * (length - left) >= length
                end, distance = (src, left) if near_source else (dst, length - left)
                rank = self._rank(at, end, distance)
                link, before = options[rank // dealt[near_source] % len(options)]
                dealt[near_source] *= len(options)
            links.append(link)
            at = before
        return links[::-1]

    def _rank(self, at: int, end: int, distance: int) -> int:
        """Return the place of device `end` among the devices `distance` hops from vertex `at`."""
        ranks = self._below.get((at, distance))
        if ranks is None:
            seen, frontier = {at}, [at]
            for _ in range(distance):
                found = dict.fromkeys(
                    n for v in frontier if v >= self._devices or v == at for n, _, _ in self._out[v]
                )
                frontier = [n for n in found if n not in seen]
                seen.update(frontier)
            below = sorted(v for v in frontier if v < self._devices)
            ranks = self._below[at, distance] = {v: i for i, v in enumerate(below)}
        return ranks.get(end, end)

    def _search(self, src: int, dst: int) -> _Search:
        """Return the search from `src`, continued until it has reached `dst`."""
        search = self._searches.pop(src, None)
        if search is None:
            size = len(self._out)
            search = _Search(array("i", bytes(4 * size)), array("d", bytes(8 * size)), [src])
            search.hops[src], search.width[src] = 1, math.inf
            while len(self._searches) >= self._keep:
                self._searches.popitem(last=False)
        self._searches[src] = search
        while search.hops[dst] == _FAR:
            if not search.frontier:
                names = self._topology.part_names
                raise TopologyError(
                    f"{self._topology.name}: expected a route from "
                    f'"{names[src]}" to "{names[dst]}", found none that '
                    "does not cross a third device (devices never forward); join them by a link "
                    "or a switch, or choose other devices"
                )
            self._expand(search, src)
        return search

    def _expand(self, search: _Search, src: int) -> None:
        """Reach the next level."""
        hops, width = search.hops, search.width
        reached: list[int] = []
        for vertex in search.frontier:
            if vertex < self._devices and vertex != src:
                continue
            level, wide = hops[vertex] + 1, width[vertex]
            for neighbour, _, link_width in self._out[vertex]:
                if hops[neighbour] == _FAR:
                    hops[neighbour] = level
                    reached.append(neighbour)
                if hops[neighbour] == level:
                    width[neighbour] = max(width[neighbour], min(wide, link_width))
        search.frontier = reached
