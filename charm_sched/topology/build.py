"""Records to graph: templates instantiated, ranges expanded, ends checked, capacities listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from charm_sched.topology.graph import HOST_MEMORY, Capacity, Device, Link, Switch, Topology
from charm_sched.topology.patterns import MAX_PARTS, Pattern
from charm_sched.topology.profiles import ComputeProfile, source_of
from charm_sched.topology.reader import Cursor, nearest
from charm_sched.topology.spec import (
    DeviceSpec,
    Document,
    DomainSpec,
    LinkSpec,
    Section,
    SwitchSpec,
)


@dataclass(slots=True)
class Flat:
    """A section with everything inside it spelled out; names are relative to it."""

    devices: list[tuple[str, DeviceSpec]] = field(default_factory=list)
    switches: list[tuple[str, SwitchSpec]] = field(default_factory=list)
    links: list[tuple[str, str, LinkSpec]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


def build(document: Document) -> Topology:
    """Return the topology of a document.

    Raises:
        TopologyError: a duplicate name, a dangling link, ends that do not pair up, too many parts,
        a
            template inside itself, no device, an unreachable device, or a wrong domain override.
    """
    flat = _Expander(document.templates).flatten(document.body, ())
    if not flat.devices:
        document.cursor.fail("at least one device", "none", "add devices: or parts:")
    links = _links(flat)
    devices = _devices(flat, links, document.profiles)
    topology = Topology(
        name=document.name,
        description=document.description,
        devices=devices,
        switches=tuple(
            Switch(name=name, kind=spec.kind, id=spec.id) for name, spec in flat.switches
        ),
        links=links,
        **capacities_of(devices, links),
        tier_names=document.tiers,
        domain_override=_override(document, [name for name, _ in flat.devices]),
        extra_assumptions=document.assumptions,
        costs=document.costs,
        conditions=document.conditions,
        under=document.under,
        where=document.cursor.where,
    )
    _check_reachable(topology, flat)
    _check_bounces(topology, flat)
    return topology


class _Expander:
    """Expands sections, each template once."""

    def __init__(self, templates: Mapping[str, Section]) -> None:
        self._templates = templates
        self._done: dict[str, Flat] = {}

    def flatten(self, section: Section, inside: tuple[str, ...]) -> Flat:
        """Expand a section; `inside` names the templates being expanded, to refuse recursion."""
        flat = Flat()
        for part in section.parts:
            if part.template in inside:
                chain = " > ".join((*inside, part.template))
                part.pattern.cursor.fail("templates that do not contain themselves", chain)
            if part.template not in self._done:
                body = self._templates[part.template]
                self._done[part.template] = self.flatten(body, (*inside, part.template))
            self._insert(flat, part.pattern, self._done[part.template])
        for device in section.devices:
            self._check_room(len(flat.devices) + device.pattern.count, device.pattern.cursor)
            flat.devices += [(name, device) for name in self._claim(flat, device.pattern)]
        for switch in section.switches:
            self._check_room(len(flat.switches) + switch.pattern.count, switch.pattern.cursor)
            flat.switches += [(name, switch) for name in self._claim(flat, switch.pattern)]
        for link in section.links:
            self._connect(flat, link)
        return flat

    def _insert(self, flat: Flat, pattern: Pattern, inner: Flat) -> None:
        parts = max(len(inner.devices), len(inner.switches), len(inner.links), 1)
        room = max(len(flat.devices), len(flat.switches), len(flat.links))
        self._check_room(room + pattern.count * parts, pattern.cursor)
        for prefix in pattern.names():
            names = {f"{prefix}/{name}" for name in inner.names}
            taken = flat.names & names
            if taken:
                pattern.cursor.fail("each name once", f'a second "{min(taken)}"')
            flat.names |= names
            flat.devices += [(f"{prefix}/{name}", spec) for name, spec in inner.devices]
            flat.switches += [(f"{prefix}/{name}", spec) for name, spec in inner.switches]
            flat.links += [(f"{prefix}/{a}", f"{prefix}/{b}", spec) for a, b, spec in inner.links]

    def _claim(self, flat: Flat, pattern: Pattern) -> list[str]:
        names = pattern.names()
        for name in names:
            if name in flat.names:
                pattern.cursor.fail("each name once", f'a second "{name}"')
            flat.names.add(name)
        return names

    def _connect(self, flat: Flat, link: LinkSpec) -> None:
        pairs = link.src.count * link.dst.count
        most = pairs if link.pairing == "all" else max(link.src.count, link.dst.count)
        self._check_room(len(flat.links) + most * link.count, link.src.cursor)
        for a, b in _pairs(link):
            for name, end in ((a, link.src), (b, link.dst)):
                if name not in flat.names:
                    near = nearest(name, flat.names) if len(flat.names) < 10_000 else None
                    hint = f'did you mean "{near}"?' if near else ""
                    end.cursor.fail("the name of a device or switch", f'"{name}"', hint)
            if a == b:
                link.dst.cursor.fail("two different ends", f'"{a}" twice')
            flat.links += [(a, b, link)] * link.count

    def _check_room(self, count: int, cursor: Cursor) -> None:
        if count > MAX_PARTS:
            cursor.fail(f"at most {MAX_PARTS} devices, switches or links", str(count))


def _pairs(link: LinkSpec) -> list[tuple[str, str]]:
    """Pair the ends: alike counts one to one; else the shorter side by blocks, in turn, or all."""
    a, b = link.src.names(), link.dst.names()
    if link.pairing == "all":
        return [(x, y) for x in a for y in b]
    size = max(len(a), len(b))
    if size % len(a) or size % len(b):
        link.dst.cursor.fail(
            "as many ends on both sides, or a multiple",
            f"{len(a)} and {len(b)}",
            "use pairing: all to join each with each",
        )
    if link.pairing == "cycle":
        return [(a[i % len(a)], b[i % len(b)]) for i in range(size)]
    return [(a[i * len(a) // size], b[i * len(b) // size]) for i in range(size)]


def _links(flat: Flat) -> tuple[Link, ...]:
    """Make two links of each, forward at 2 i and backward at 2 i + 1."""
    links: list[Link] = []
    for a, b, spec in flat.links:
        for src, dst, bandwidth in ((a, b, spec.bandwidth), (b, a, spec.reverse)):
            links.append(
                Link(
                    index=len(links),
                    src=src,
                    dst=dst,
                    kind=spec.kind,
                    bandwidth=bandwidth,
                    latency=spec.latency,
                    flow_cap=spec.flow_cap,
                    ramp=spec.ramp,
                    shared=spec.shared,
                    assumed=bool(spec.assumed),
                    source=spec.source,
                    assumed_keys=spec.assumed,
                )
            )
    return tuple(links)


def natural_ports(names: list[str], links: tuple[Link, ...]) -> dict[str, float]:
    """Return what the links of each device add up to, in the better direction."""
    out = dict.fromkeys(names, 0.0)
    into = dict.fromkeys(names, 0.0)
    for link in links:
        if link.src in out:
            out[link.src] += link.bandwidth
        if link.dst in into:
            into[link.dst] += link.bandwidth
    return {name: max(out[name], into[name]) for name in names}


def _devices(
    flat: Flat, links: tuple[Link, ...], profiles: Mapping[str, ComputeProfile]
) -> tuple[Device, ...]:
    ports = natural_ports([name for name, _ in flat.devices], links)
    return tuple(
        _device(name, spec, profiles[spec.profile], ports[name]) for name, spec in flat.devices
    )


def _device(name: str, spec: DeviceSpec, profile: ComputeProfile, port: float) -> Device:
    """Make a device; its memory is that of the profile where the file does not say it."""
    memory, assumed, source = spec.memory, spec.assumed, spec.source
    if memory is None and profile.memory is not None:
        memory = profile.memory
        told = source_of(profile.source, "memory")
        source = "; ".join(filter(None, (f"memory: {told}" if told else "", source)))
        if "memory" in profile.assumed:
            assumed = ("memory", *assumed)
    return Device(
        name=name,
        compute=profile,
        memory=memory,
        port=spec.port if spec.port is not None else port,
        peer=spec.peer,
        assumed=assumed,
        source=source,
        id=spec.id,
    )


def capacities_of(devices: tuple[Device, ...], links: tuple[Link, ...]) -> dict[str, Any]:
    """List the capacities: links first, one for a shared pair, then two per device."""
    capacities: list[Capacity] = []
    of_link: list[int] = []
    seen: dict[str, int] = {}
    for link in links:
        if link.shared and link.index % 2:
            of_link.append(of_link[-1])
            continue
        arrow = "<->" if link.shared else "->"
        name = f"{link.src} {arrow} {link.dst}"
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name = f"{name} #{seen[name]}"
        of_link.append(len(capacities))
        capacities.append(Capacity(name=name, kind=link.kind, bandwidth=link.bandwidth))
    capacities += [
        Capacity(name=f"{device.name} {way}", kind="port", bandwidth=device.port)
        for device in devices
        for way in ("out", "in")
    ]
    return {"capacities": tuple(capacities), "link_capacity": tuple(of_link)}


def _check_reachable(topology: Topology, flat: Flat) -> None:
    """Refuse a device that no link leads to from the first one."""
    neighbours: dict[str, list[str]] = {name: [] for name in flat.names}
    for link in topology.links:
        neighbours[link.src].append(link.dst)
    reached = {topology.devices[0].name}
    frontier = list(reached)
    while frontier:
        frontier = [n for name in frontier for n in neighbours[name] if n not in reached]
        frontier = list(dict.fromkeys(frontier))
        reached.update(frontier)
    for name, spec in flat.devices:
        if name not in reached:
            spec.pattern.cursor.fail(
                "every device to be reachable",
                f'no way from "{topology.devices[0].name}" to "{name}"',
                "add a link",
            )


def _check_bounces(topology: Topology, flat: Flat) -> None:
    """Refuse a device that copies through the host's memory where there is none."""
    if any(switch.kind == HOST_MEMORY for switch in topology.switches):
        return
    for name, spec in flat.devices:
        if not spec.peer:
            spec.pattern.cursor.fail(
                f"a switch of kind {HOST_MEMORY} for a device without peer access",
                f'none, but "{name}" has peer: false',
                "add one, and a link from it to the root complex",
            )


def _override(document: Document, devices: list[str]) -> tuple[Mapping[str, Any], ...] | None:
    """Check that the override names each device once; return it as plain nested values."""
    if document.domains is None:
        return None
    left = dict.fromkeys(devices)
    known = frozenset(devices)

    def plain(spec: DomainSpec) -> dict[str, Any]:
        names: list[str] = []
        for pattern in spec.devices:
            for name in pattern.names():
                if name not in known:
                    near = nearest(name, devices) if len(devices) < 10_000 else None
                    pattern.cursor.fail(
                        "the name of a device",
                        f'"{name}"',
                        f'did you mean "{near}"?' if near else "",
                    )
                if name not in left:
                    pattern.cursor.fail("each device in one domain", f'a second "{name}"')
                del left[name]
                names.append(name)
        inner = [plain(child) for child in spec.domains]
        if not names and not inner:
            spec.cursor.fail("a domain with devices", "an empty one")
        result: dict[str, Any] = {"name": spec.name}
        if names:
            result["devices"] = names
        if inner:
            result["domains"] = inner
        return result

    domains = tuple(plain(spec) for spec in document.domains)
    if left:
        document.cursor.fail("every device in a domain", f'"{next(iter(left))}" in none')
    return domains
