"""Routes of the devices of a testbed, their windows, and the tables that a namespace needs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from charm_sched.errors import TopologyError
from charm_sched.topology.graph import Route, Topology

Pair: TypeAlias = tuple[str, str]  # source and destination device

_WINDOW_SECONDS = 1e-2  # of a flow alone: rides over the pauses of a busy machine's processes
_LEAST_WINDOW = 1 << 16  # bytes; a few packets, so that a queue never runs empty
_MOST_WINDOW = 1 << 22
_TOLERANCE = 1e-9  # relative; a port this close to its links' sum does not limit


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticRoute:
    """Where a namespace sends what is for an address.

    Attributes:
        source: for packets from that address alone; None: from any.
        window: of a device: the most bytes it lets the destination have on the way to it.
    """

    destination: str
    interface: str
    source: str | None = None
    window: int | None = None


def find_routes(topology: Topology, devices: Sequence[str]) -> dict[Pair, Route]:
    """Return the routes of all ordered pairs that have a way there and back (TCP needs both).

    Raises:
        TopologyError: A device has no peer access: no network leads to a memory and back.
    """
    for name in devices:
        if not topology.device(name).peer:
            raise TopologyError(
                f"{topology.name}: expected devices with peer access for a shaped network, found "
                f'peer: false of "{name}"; its traffic turns in the memory of the host'
            )
    found: dict[Pair, Route] = {}
    for src in devices:
        for dst in devices:
            if src != dst:
                try:
                    found[src, dst] = topology.route(src, dst)
                except TopologyError:
                    continue
    return {pair: route for pair, route in found.items() if pair[::-1] in found}


def narrow_ports(topology: Topology, routes: Mapping[Pair, Route]) -> set[str]:
    """Return the devices whose port is narrower than those of their links that routes cross."""
    links = {index for route in routes.values() for index in route.links}
    sums: defaultdict[Pair, float] = defaultdict(float)
    for index in links:
        link = topology.links[index]
        sums[link.src, "out"] += link.bandwidth
        sums[link.dst, "in"] += link.bandwidth
    return {
        name
        for name, _ in routes
        for way in ("out", "in")
        if topology.device(name).port < sums[name, way] * (1 - _TOLERANCE)
    }


def find_windows(topology: Topology, routes: Mapping[Pair, Route], scale: float) -> dict[Pair, int]:
    """Return, per pair, the bytes on the way: what the flow alone moves in a hundredth second.

    More would stand in queues of later links, past shared ones where it took others' time.
    """
    windows = {}
    for pair, route in routes.items():
        wanted = round(narrowest(topology, route) * scale * _WINDOW_SECONDS)
        windows[pair] = min(max(wanted, _LEAST_WINDOW), _MOST_WINDOW)
    return windows


def narrowest(topology: Topology, route: Route) -> float:
    """Return the bytes per second that a flow alone gets on a route."""
    widths = [topology.capacities[index].bandwidth for index in route.capacities]
    return min(route.flow_cap, *widths)


def static_routes(
    leave: Mapping[Pair, str], address: Mapping[str, str], windows: Mapping[Pair, int]
) -> tuple[StaticRoute, ...]:
    """Return, per destination, the interface most sources leave by, then the exceptions."""
    votes: dict[str, Counter[str]] = {}
    for (_, dst), interface in leave.items():
        votes.setdefault(dst, Counter())[interface] += 1
    usual = {dst: count.most_common(1)[0][0] for dst, count in votes.items()}
    receive = {src: window for (src, dst), window in windows.items() if (dst, src) in leave}
    general = [
        StaticRoute(destination=address[dst], interface=name, window=receive.get(dst))
        for dst, name in usual.items()
    ]
    special = [
        StaticRoute(destination=address[dst], interface=name, source=address[src])
        for (src, dst), name in leave.items()
        if usual[dst] != name
    ]
    return (*general, *special)


__all__ = [
    "Pair",
    "StaticRoute",
    "find_routes",
    "find_windows",
    "narrow_ports",
    "narrowest",
    "static_routes",
]
