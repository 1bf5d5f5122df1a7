"""The machine as a graph: devices, switches and links; what flows compete for; domains and tiers.

A `Topology` is a directed multigraph. Each link of a file becomes two `Link`s, one per direction.
What flows compete for is a `Capacity`: a directed link, a half-duplex pair, or what a device's port
takes in or gives out. Devices end routes and never forward. The hierarchy of `Domain`s is found
from what sets of devices can exchange with the rest (`charm_sched.topology.domains`), or given by
the file.

>>> topo = load_topology("dual_node_nvlink")
>>> topo.tiers, len(topo.devices)
(('network', 'nvlink'), 16)
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from charm_sched.errors import TopologyError
from charm_sched.topology.profiles import ComputeProfile

if TYPE_CHECKING:
    import networkx

    from charm_sched.topology.conditions import Condition
    from charm_sched.topology.costs import RunningCost
    from charm_sched.topology.domains import Hierarchy
    from charm_sched.topology.ramp import Ramp
    from charm_sched.topology.routing import Router


HOST_MEMORY = "host_memory"
"""The kind of the switches that stand for a host's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A participant: computes, stores, and moves at most `port` bytes per second each way.

    Attributes:
        memory: bytes, or None where unknown.
        port: by default the sum of the device's links.
        peer: whether other devices reach its memory; if not, what it sends and receives is copied
            through the memory of the host, but over a link of its own to another device.
        id: what the system calls it: PCI address, UUID; several words where there are several.
    """

    name: str
    compute: ComputeProfile
    memory: float | None
    port: float
    peer: bool = True
    assumed: tuple[str, ...] = ()
    source: str = ""
    id: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """What forwards: "nvswitch", "pcie_switch", "root_complex", "nic", "leaf", "spine" ...

    Attributes:
        id: what the system calls it: PCI address, RDMA device, network interface.
    """

    name: str
    kind: str
    id: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One direction of a link.

    Attributes:
        bandwidth: bytes per second of all flows together (of both directions, if `shared`).
        latency: seconds.
        flow_cap: the most a single flow gets, in bytes per second.
        ramp: what part of the bandwidth a message gets by its size, under the condition "ramp".
        shared: half duplex; the opposite direction has the same capacity.
        assumed_keys: which of the numbers are assumed rather than sourced.
    """

    index: int
    src: str
    dst: str
    kind: str
    bandwidth: float
    latency: float
    flow_cap: float | None
    shared: bool
    assumed: bool
    source: str
    assumed_keys: tuple[str, ...] = ()
    ramp: Ramp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Something flows compete for: a directed link, a shared pair, one way of a device's port.

    `kind` is the kind of the link, or "port".
    """

    name: str
    kind: str
    bandwidth: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How a flow gets from one device to another.

    Attributes:
        links: indices of the links crossed, in order.
        capacities: indices of everything the flow competes for, both device ports included; one
            that it crosses twice, to the host's memory and back, stands there twice.
        latency: seconds, the sum over the links.
        flow_cap: bytes per second, the least along the way; infinite when none.
    """

    links: tuple[int, ...]
    capacities: tuple[int, ...]
    latency: float
    flow_cap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A set of devices that exchange faster among each other than with the rest.

    `tier` names the exchange between the children; a leaf is one device and has neither. `scope`
    holds all devices of the tree this domain is part of: what lies outside the domain.
    """

    name: str
    tier: str | None
    devices: tuple[str, ...]
    children: tuple[Domain, ...]
    scope: tuple[str, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Topology:
    """A machine; immutable. Compare two by their `digest`, which covers the physical part alone.

    Attributes:
        extra_assumptions: sentences the file itself adds to those about its numbers.
        costs: what the whole machine costs to run; None where the file does not say.
        conditions: other numbers that can be turned on by name, as the file gives them.
        under: the built-in conditions that hold (`charm_sched.topology.conditions`).
        tier_names: outermost first, as the file names them; None to have them named.
        domain_override: the hierarchy as the file gives it (nested name, devices, domains); None to
        find it.
    """

    name: str
    description: str
    devices: tuple[Device, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    capacities: tuple[Capacity, ...]
    link_capacity: tuple[int, ...] = field(repr=False)  # capacity index of each link
    tier_names: tuple[str, ...] | None = None
    domain_override: tuple[Mapping[str, Any], ...] | None = field(default=None, repr=False)
    extra_assumptions: tuple[str, ...] = field(default=(), repr=False)
    costs: RunningCost | None = field(default=None, repr=False)
    conditions: tuple[Condition, ...] = field(default=(), repr=False)
    under: tuple[str, ...] = ()
    where: str = field(default="topology", repr=False)

    @functools.cached_property
    def device_names(self) -> tuple[str, ...]:
        """The names of the devices in file order; rank i is device i unless devices are chosen."""
        return tuple(device.name for device in self.devices)

    @functools.cached_property
    def part_names(self) -> tuple[str, ...]:
        """The names of all parts of the graph, devices first, then switches."""
        return (*self.device_names, *(switch.name for switch in self.switches))

    @functools.cached_property
    def tiers(self) -> tuple[str, ...]:
        """The names of the exchanges between domains, outermost first."""
        return self.tier_names if self.tier_names is not None else self._hierarchy.tiers

    @functools.cached_property
    def assumptions(self) -> tuple[str, ...]:
        """One sentence per number that is marked assumed, alike links taken together."""
        from charm_sched.topology.document import assumptions

        return assumptions(self)

    @functools.cached_property
    def basic_assumptions(self) -> tuple[str, ...]:
        """Those of `assumptions` that every plan rests on: all but the rates of kernels."""
        from charm_sched.topology.document import assumptions

        return assumptions(self, rates=False)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of devices, switches and links with their numbers, in file order."""
        from charm_sched.topology.document import digest

        return digest(self)

    @functools.cached_property
    def graph(self) -> networkx.MultiDiGraph[str]:
        """Nodes carry `part` (a Device or Switch), edges `link`, keyed by the link's index."""
        import networkx

        graph: networkx.MultiDiGraph[str] = networkx.MultiDiGraph(name=self.name)
        for device in self.devices:
            graph.add_node(device.name, part=device)
        for switch in self.switches:
            graph.add_node(switch.name, part=switch)
        for link in self.links:
            graph.add_edge(link.src, link.dst, key=link.index, link=link)
        return graph

    @functools.cached_property
    def _device_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.device_names)}

    @functools.cached_property
    def _router(self) -> Router:
        from charm_sched.topology.routing import Router

        return Router(self)

    @functools.cached_property
    def _hierarchy(self) -> Hierarchy:
        from charm_sched.topology.domains import Hierarchy

        return Hierarchy.of(self)

    def device_index(self, name: str) -> int:
        """Return the position of a device in `devices`.

        Raises:
            TopologyError: there is no device of that name.
        """
        index = self._device_index.get(name)
        if index is None:
            import difflib

            near = difflib.get_close_matches(name, self.device_names, n=1)
            some = list(self.device_names)
            if len(some) > 4:
                some[2:-1] = ["..."]
            raise TopologyError(
                f"{self.name}: expected one of its {len(self.devices)} devices "
                f'({", ".join(some)}), found "{name}"'
                + (f' (did you mean "{near[0]}"?)' if near else "")
            )
        return index

    def device(self, name: str) -> Device:
        """Return the device of that name; TopologyError if there is none."""
        return self.devices[self.device_index(name)]

    def route(self, src: str, dst: str) -> Route:
        """Return the static route between two devices.

        Fewest hops, then the widest bottleneck for one flow; several equally good paths are dealt
        out evenly over the pairs. Devices never forward. From a device to itself nothing is
        crossed.

        Raises:
            TopologyError: an unknown device, or no way that does not cross a third device.
        """
        return self._router.route(self.device_index(src), self.device_index(dst))

    def message_cap(self, route: Route, size: float) -> float:
        """Return the most that a message of so many bytes gets on its way, in bytes per second.

        The caps of flows and, under the condition "ramp", what its size gets of each link.
        """
        if "ramp" not in self.under or not size:
            return route.flow_cap
        links = (self.links[i] for i in route.links)
        parts = (k.ramp.part(size) * k.bandwidth for k in links if k.ramp is not None)
        return min((route.flow_cap, *parts))

    def planned_latency(self, route: Route) -> float:
        """Return the seconds that a message takes beside its bytes, for planning.

        The latency and, under the condition "ramp", what the slowest ramp of its links costs it.
        """
        if "ramp" not in self.under:
            return route.latency
        links = (self.links[i] for i in route.links)
        return route.latency + max(
            (link.ramp.delay(link.bandwidth) for link in links if link.ramp), default=0.0
        )

    def domains(self, devices: Sequence[str] | None = None) -> Domain:
        """Return the tree of domains, restricted to `devices` (all of them by default).

        Order follows `devices`. Domains left empty or with a single child are collapsed away.

        Raises:
            TopologyError: an unknown device, one named twice, none at all, or a number of tier
            names
                that is not the depth of the hierarchy.
        """
        return self._hierarchy.restricted(devices)

    def tier_of(self, a: str, b: str) -> str:
        """Return the tier whose exchange joins two devices: that of the lowest domain with both."""
        return self._hierarchy.tier_of(self.device_index(a), self.device_index(b))

    def domain_bandwidth(self, domain: Domain) -> float:
        """Return the bytes per second that can leave a domain, all its devices sending at once.

        The minimum cut towards the other devices of the tree the domain is part of; 0 if there are
        none.
        """
        return self._hierarchy.bandwidth(domain)

    def select(self, ranks: int) -> tuple[str, ...]:
        """Return `ranks` devices spread evenly over the top-level domains, in file order.

        Raises:
            TopologyError: fewer than one, or more than there are.
        """
        return self._hierarchy.select(ranks)

    def to_document(self, *, domains: bool = False) -> dict[str, Any]:
        """Return the explicit document (no templates, no ranges), made of JSON values.

        With `domains` the hierarchy is spelled out even where it was found from the graph, so that
        it stays as it is when the document is changed (a slower link, one link less).
        """
        from charm_sched.topology.document import to_document

        return to_document(self, domains=domains)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], where: str = "topology") -> Topology:
        """Return the topology of a document, as strictly as from a file; `where` begins messages.

        Raises:
            TopologyError: anything that is not exactly as the schema says.
        """
        from charm_sched.topology.file import read_topology

        return read_topology(document, where=where)


def load_topology(source: str | os.PathLike[str]) -> Topology:
    """Return the topology of a shipped name (without .yaml) or of a file.

    Raises:
        TopologyError: with file, line, path, what was expected and what was found.
    """
    from charm_sched.topology import file as topology_file

    return topology_file.load_topology(source)


def shipped_names() -> tuple[str, ...]:
    """Return the names of the topologies that come with the package, sorted."""
    from charm_sched.topology import file as topology_file

    return topology_file.shipped_names()


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of topology files, for editors."""
    from charm_sched.topology.schema import json_schema as build

    return build()


def profile_schema() -> dict[str, Any]:
    """Return the JSON Schema of profile files, for editors."""
    from charm_sched.topology.schema import profile_schema as build

    return build()
