"""What is to be built for a topology: namespaces, wires, shapers, routes. Pure; builds nothing.

Every device and every switch that a route crosses is a network namespace, every link a veth pair
between two. Each capacity of the topology is enforced at exactly one place, by one `Shaper`:

* one direction of a link: where it leaves its source;
* a half-duplex link: a namespace in its middle, in which both directions pass one ifb device;
* a device's port, where it is narrower than the device's links together: a namespace between the
  device and its links, shaped towards it (out) and from it (in). A wider port never limits.

A flow is what one device sends to one other: an ordered pair. Its flow cap is enforced at the link
that has it. Routes are those of `Topology.route`, static, by source and destination.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from charm_sched.errors import TopologyError
from charm_sched.testbed.paths import (
    Pair,
    StaticRoute,
    find_routes,
    find_windows,
    narrow_ports,
    narrowest,
    static_routes,
)
from charm_sched.testbed.shaping import GSO_BYTES, Flow, Shaper, packet_bytes
from charm_sched.topology.graph import Link, Topology

Role: TypeAlias = Literal["device", "port", "switch", "medium"]

MEDIUM = "ifb0"  # the device in the middle of a half-duplex link that both directions pass
_MOST_DEVICES = 250 * 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A veth pair. Both ends have one MAC address, so that no neighbour is ever looked up.

    Attributes:
        a: namespace.
        a_packet: most bytes of a packet that leaves by this end.
    """

    a: str
    a_interface: str
    b: str
    b_interface: str
    mac: str
    a_packet: int = GSO_BYTES
    b_packet: int = GSO_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A network namespace.

    Attributes:
        part: the device or switch; for a medium, the name of its capacity.
        address: IPv4, of devices alone.
        interfaces: its ends of wires, in order.
    """

    name: str
    role: Role
    part: str
    address: str | None
    interfaces: tuple[str, ...]
    routes: tuple[StaticRoute, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A step of a path: out of a namespace by an interface, past a shaper's capacity or none."""

    namespace: str
    interface: str
    capacity: int | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Blueprint:
    """Everything that is built for some devices of a topology.

    Attributes:
        devices: those that take part, in order of rank.
        scale: what nominal rates are multiplied by.
        prefix: what names of namespaces begin with.
        wires: in the order of creation.
        shapers: by index of the capacity.
        paths: of every ordered pair of devices that has a way there and back.
    """

    topology: Topology = field(repr=False)
    devices: tuple[str, ...]
    scale: float
    prefix: str
    namespaces: tuple[Namespace, ...] = field(repr=False)
    wires: tuple[Wire, ...] = field(repr=False)
    shapers: Mapping[int, Shaper] = field(repr=False)
    paths: Mapping[Pair, tuple[Hop, ...]] = field(repr=False)

    def of_device(self, device: str) -> Namespace:
        """Return the namespace of a device.

        Raises:
            TopologyError: the device does not take part.
        """
        for namespace, name in zip(self.namespaces, self.devices, strict=False):
            if name == device:
                return namespace
        raise TopologyError(
            f"{self.topology.name}: expected one of the devices {', '.join(self.devices)}, "
            f'found "{device}"'
        )


def blueprint(
    topology: Topology, devices: Sequence[str], *, scale: float, prefix: str = "charm"
) -> Blueprint:
    """Return what to build so that the devices exchange at `scale` times the modelled rates.

    The first namespaces are those of the devices, in order.

    Raises:
        TopologyError: an unknown device, one named twice, none, too many, or a scale not above 0.
    """
    names = tuple(devices)
    for name in names:
        topology.device_index(name)
    if len(set(names)) != len(names) or not 1 <= len(names) <= _MOST_DEVICES:
        raise TopologyError(
            f"{topology.name}: expected from 1 to {_MOST_DEVICES} different devices, "
            f"found {len(names)} with {len(set(names))} names"
        )
    if not 0 < scale < float("inf"):
        raise TopologyError(f"{topology.name}: expected a scale above 0, found {scale}")
    return _Draft(topology, names, scale, prefix).finish()


class _Draft:
    """A blueprint being drawn."""

    def __init__(
        self, topology: Topology, devices: tuple[str, ...], scale: float, prefix: str
    ) -> None:
        self._topology, self._devices = topology, devices
        self._scale, self._prefix = scale, prefix
        self._routes = find_routes(topology, devices)
        self._narrow = narrow_ports(topology, self._routes)
        self._address = {name: _address(i) for i, name in enumerate(devices)}
        self._parts: dict[str, tuple[Role, str]] = {}  # namespace to role and part
        self._inside: dict[str, str] = {}  # device to its own namespace
        self._outside: dict[str, str] = {}  # part to the namespace that its links end in
        self._interfaces: dict[str, list[str]] = {}
        self._wires: list[Wire] = []
        self._exit: dict[Pair, str] = {}  # (from, to) namespaces to the interface of the last wire
        self._cables: dict[tuple[int, str], str] = {}  # (cable, namespace) to interface
        self._add_namespaces()
        self._add_wires()

    def _add_namespaces(self) -> None:
        used = {i // 2: self._topology.links[i] for r in self._routes.values() for i in r.links}
        self._used = dict(sorted(used.items()))
        for i, name in enumerate(self._devices):
            self._inside[name] = self._outside[name] = self._add("device", f"d{i}", name)
        ends = {end for link in self._used.values() for end in (link.src, link.dst)}
        for i, switch in enumerate(self._topology.switches):
            if switch.name in ends:
                self._outside[switch.name] = self._add("switch", f"s{i}", switch.name)
        for i, name in enumerate(self._devices):
            if name in self._narrow:
                self._outside[name] = self._add("port", f"p{i}", name)
        for cable, link in self._used.items():
            if link.shared:
                capacity = self._topology.capacities[self._topology.link_capacity[link.index]]
                self._add("medium", f"m{cable}", capacity.name)

    def _add(self, role: Role, short: str, part: str) -> str:
        name = f"{self._prefix}-{short}"
        self._parts[name], self._interfaces[name] = (role, part), []
        return name

    def _add_wires(self) -> None:
        for name in self._devices:
            if name in self._narrow:
                self._connect(self._inside[name], self._outside[name])
        for cable, link in self._used.items():
            ends = self._outside[link.src], self._outside[link.dst]
            if link.shared:
                middle = f"{self._prefix}-m{cable}"
                for end in ends:
                    self._cables[cable, end] = self._connect(end, middle)
            else:
                wire = self._connect(*ends), self._wires[-1].b_interface
                self._cables.update({(cable, end): x for end, x in zip(ends, wire, strict=True)})

    def _connect(self, a: str, b: str) -> str:
        """Add a wire; return its interface in `a`."""
        at_a, at_b = (f"eth{len(self._interfaces[end])}" for end in (a, b))
        self._interfaces[a].append(at_a)
        self._interfaces[b].append(at_b)
        mac = "02:63:" + ":".join(f"{b:02x}" for b in (len(self._wires) + 1).to_bytes(4, "big"))
        self._wires.append(Wire(a=a, a_interface=at_a, b=b, b_interface=at_b, mac=mac))
        self._exit[a, b], self._exit[b, a] = at_a, at_b
        return at_a

    def _path(self, src: str, dst: str) -> tuple[Hop, ...]:
        topology = self._topology
        hops: list[Hop] = []
        ports = len(topology.capacities) - 2 * len(topology.devices)
        if src in self._narrow:
            out = ports + 2 * topology.device_index(src)
            hops.append(Hop(namespace=self._inside[src], interface="eth0", capacity=out))
        for index in self._routes[src, dst].links:
            hops += self._cross(topology.links[index])
        if dst in self._narrow:
            into = ports + 2 * topology.device_index(dst) + 1
            port = self._outside[dst]
            leave = self._exit[port, self._inside[dst]]
            hops.append(Hop(namespace=port, interface=leave, capacity=into))
        return tuple(hops)

    def _cross(self, link: Link) -> list[Hop]:
        """Return the one hop of a link, or the two of a half-duplex one."""
        capacity, cable = self._topology.link_capacity[link.index], link.index // 2
        start, end = self._outside[link.src], self._outside[link.dst]
        leave = self._cables[cable, start]
        if not link.shared:
            return [Hop(namespace=start, interface=leave, capacity=capacity)]
        middle = f"{self._prefix}-m{cable}"
        return [
            Hop(namespace=start, interface=leave, capacity=None),
            Hop(namespace=middle, interface=self._exit[middle, end], capacity=capacity),
        ]

    def _packets(self, paths: Mapping[Pair, tuple[Hop, ...]]) -> dict[tuple[str, str], int]:
        """Return the size of packets by the interface of a device that they leave by.

        It is that of the fastest flow there: small packets of fast flows would cost the processors
        too much.
        """
        found: dict[tuple[str, str], int] = {}
        for pair, hops in paths.items():
            rate = narrowest(self._topology, self._routes[pair]) * self._scale
            place = hops[0].namespace, hops[0].interface
            found[place] = max(found.get(place, 0), packet_bytes(rate))
        return found

    def _shapers(
        self, paths: Mapping[Pair, tuple[Hop, ...]], packets: Mapping[tuple[str, str], int]
    ) -> dict[int, Shaper]:
        topology = self._topology
        caps = {
            topology.link_capacity[link.index]: link.flow_cap * self._scale
            for link in topology.links
            if link.flow_cap is not None
        }
        flows: dict[int, list[Flow]] = {}
        packet: dict[int, int] = {}
        places: dict[int, tuple[str, str]] = {}
        for (src, dst), hops in paths.items():
            for hop in hops:
                if hop.capacity is None:
                    continue
                medium = self._parts[hop.namespace][0] == "medium"
                place = hop.namespace, MEDIUM if medium else hop.interface
                assert places.setdefault(hop.capacity, place) == place
                flow = Flow(
                    src=src,
                    dst=dst,
                    src_address=self._address[src],
                    dst_address=self._address[dst],
                    ceiling=caps.get(hop.capacity, float("inf")),
                )
                flows.setdefault(hop.capacity, []).append(flow)
                size = packets[hops[0].namespace, hops[0].interface]
                packet[hop.capacity] = max(packet.get(hop.capacity, 0), size)
        return {
            capacity: Shaper(
                capacity=capacity,
                namespace=places[capacity][0],
                interface=places[capacity][1],
                rate=topology.capacities[capacity].bandwidth * self._scale,
                packet=packet[capacity],
                flows=tuple(flows[capacity]),
            )
            for capacity in sorted(flows)
        }

    def finish(self) -> Blueprint:
        paths = {pair: self._path(*pair) for pair in self._routes}
        leave: dict[str, dict[Pair, str]] = {name: {} for name in self._parts}
        for pair, hops in paths.items():
            for hop in hops:
                leave[hop.namespace][pair] = hop.interface
        address, windows = self._address, find_windows(self._topology, self._routes, self._scale)
        packets = self._packets(paths)
        namespaces = tuple(
            Namespace(
                name=name,
                role=role,
                part=part,
                address=address[part] if role == "device" else None,
                interfaces=tuple(self._interfaces[name]),
                routes=static_routes(leave[name], address, windows if role == "device" else {}),
            )
            for name, (role, part) in self._parts.items()
        )
        return Blueprint(
            topology=self._topology,
            devices=self._devices,
            scale=self._scale,
            prefix=self._prefix,
            namespaces=namespaces,
            wires=tuple(
                replace(
                    wire,
                    a_packet=packets.get((wire.a, wire.a_interface), GSO_BYTES),
                    b_packet=packets.get((wire.b, wire.b_interface), GSO_BYTES),
                )
                for wire in self._wires
            ),
            shapers=self._shapers(paths, packets),
            paths=paths,
        )


def _address(index: int) -> str:
    return f"10.77.{index // 250}.{index % 250 + 1}"


__all__ = [
    "MEDIUM",
    "Blueprint",
    "Hop",
    "Namespace",
    "Wire",
    "blueprint",
]
