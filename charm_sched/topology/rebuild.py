"""A machine made again from changed parts, and what is left of one where some parts fail."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from charm_sched.errors import TopologyError
from charm_sched.topology.build import capacities_of, natural_ports

if TYPE_CHECKING:
    from charm_sched.topology.graph import Device, Link, Switch, Topology
    from charm_sched.topology.profiles import ComputeProfile


def rebuilt(
    machine: Topology,
    *,
    devices: Sequence[Device] | None = None,
    switches: Sequence[Switch] | None = None,
    links: Sequence[Link] | None = None,
    settled: bool = True,
) -> Topology:
    """Make a machine of changed parts; what is not given stays.

    A port that was the sum of its device's links is that of the new ones. The hierarchy is found
    again; where the file's names of tiers no longer fit it, it gets the names of its links
    (without ``settled`` that is left to be, for a machine that is only simulated on).

    Raises:
        TopologyError: No device is left.
    """
    devices = machine.devices if devices is None else devices
    if not devices:
        raise TopologyError(f"{machine.name}: expected a device that is left, found none")
    links = machine.links if links is None else links
    numbered = tuple(replace(link, index=index) for index, link in enumerate(links))
    ported = _with_ports(machine, devices, numbered)
    kept = {device.name for device in ported}
    made = replace(
        machine,
        devices=ported,
        switches=machine.switches if switches is None else tuple(switches),
        links=numbered,
        domain_override=_pruned(machine.domain_override, kept),
        **capacities_of(ported, numbered),
    )
    if not settled:
        return made
    try:
        made.domains()
    except TopologyError:
        made = replace(made, tier_names=None)
        made.domains()
    return made


def _with_ports(
    machine: Topology, devices: Sequence[Device], links: tuple[Link, ...]
) -> tuple[Device, ...]:
    old = natural_ports(list(machine.device_names), machine.links)
    new = natural_ports([device.name for device in devices], links)
    return tuple(
        replace(device, port=new[device.name]) if device.port == old[device.name] else device
        for device in devices
    )


def _pruned(
    domains: tuple[Mapping[str, Any], ...] | None, kept: Collection[str]
) -> tuple[Mapping[str, Any], ...] | None:
    """Leave devices that are gone out of a hierarchy, and domains that they leave empty."""
    if domains is None:
        return None
    found = []
    for domain in domains:
        names = [name for name in domain.get("devices", ()) if name in kept]
        inner = _pruned(tuple(domain.get("domains", ())), kept)
        if names or inner:
            parts = {"devices": names, "domains": list(inner or ())}
            full = {key: value for key, value in parts.items() if value}
            found.append({"name": domain["name"], **full})
    return tuple(found)


def without(machine: Topology, parts: Collection[str], links: Collection[int]) -> Topology:
    """Take devices and switches out of a machine, by name, and links by index (both directions).

    Raises:
        TopologyError: No device is left.
    """
    gone = {index // 2 for index in links}
    return rebuilt(
        machine,
        devices=[device for device in machine.devices if device.name not in parts],
        switches=[switch for switch in machine.switches if switch.name not in parts],
        links=[
            link
            for link in machine.links
            if link.index // 2 not in gone and link.src not in parts and link.dst not in parts
        ],
    )


def cut_off(machine: Topology) -> tuple[str, ...]:
    """List devices without which each of the others can reach each other one.

    Devices never forward, so a device without its network card reaches its neighbours alone.
    Whatever reaches the fewest others is left out first, of equals the last in the file.
    """
    reach = _meeting_points(machine)
    groups: dict[frozenset[str], list[str]] = {}
    for name in machine.device_names:
        groups.setdefault(reach[name], []).append(name)
    left: list[str] = []
    while True:
        missing = {
            places: sum(len(names) for other, names in groups.items() if not places & other)
            - (not places)  # itself
            for places in groups
        }
        most = max(missing.values(), default=0)
        if not most:
            return tuple(name for name in machine.device_names if name in set(left))
        worst = [places for places, count in missing.items() if count == most][-1]
        left.append(groups[worst].pop())
        if not groups[worst]:
            del groups[worst]


def _meeting_points(machine: Topology) -> dict[str, frozenset[str]]:
    """Give where each device can meet others: networks of switches, and links between devices."""
    neighbours: dict[str, list[str]] = {switch.name: [] for switch in machine.switches}
    found: dict[str, set[str]] = {name: set() for name in machine.device_names}
    for link in machine.links:
        if link.src in neighbours and link.dst in neighbours:
            neighbours[link.src].append(link.dst)
    network: dict[str, str] = {}
    for start in neighbours:
        frontier = [] if start in network else [start]
        while frontier:
            at = frontier.pop()
            if at not in network:
                network[at] = start
                frontier += neighbours[at]
    for link in machine.links:
        if link.src in found:
            direct = " - ".join(sorted((link.src, link.dst)))
            found[link.src].add(network.get(link.dst, direct))
    return {name: frozenset(places) for name, places in found.items()}


def slowed(profile: ComputeProfile, factor: float, name: str | None = None) -> ComputeProfile:
    """Make every kernel of a profile take ``factor`` times as long."""
    return replace(
        profile,
        name=name or f"{profile.name}-slow{factor:g}",
        peak={dtype: peak / factor for dtype, peak in profile.peak.items()},
        rates=tuple(rate.scaled_to(rate.flops_per_second / factor) for rate in profile.rates),
        overhead=profile.overhead * factor,
        memory_bandwidth=profile.memory_bandwidth / factor,
    )


__all__ = ["cut_off", "rebuilt", "slowed", "without"]
