"""Which devices share a host: those that reach each other without a network card."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from charm_sched.errors import TopologyError
from charm_sched.topology.graph import Topology

NIC = "nic"
LOCAL = "localhost"


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host.

    Attributes:
        name: As the topology has it, or as the user calls it.
        parts: Its devices and switches.
        devices: Its devices among the ranks, in rank order.
        ranks: Their ranks.
    """

    name: str
    parts: frozenset[str]
    devices: tuple[str, ...]
    ranks: tuple[int, ...]


def hosts_of(
    topology: Topology, devices: Sequence[str], names: Sequence[str] | None = None
) -> tuple[Host, ...]:
    """Return the hosts of some ranks, in the order of their first ranks.

    Args:
        topology: The machine.
        devices: The device of each rank.
        names: What the hosts are called, in that order; None for the names in the topology.

    Raises:
        TopologyError: Another number of names than of hosts.
    """
    label = _labels(topology)
    members: dict[int, list[int]] = defaultdict(list)
    for rank, device in enumerate(devices):
        members[label[device]].append(rank)
    inside: dict[int, set[str]] = defaultdict(set)
    for part, number in label.items():
        inside[number].add(part)
    for link in topology.links:
        for card, other in ((link.src, link.dst), (link.dst, link.src)):
            if card not in label and other in label:
                inside[label[other]].add(card)
    if names is not None and len(names) != len(members):
        raise TopologyError(
            f"--hosts: expected {len(members)} names, one for each host of {topology.name}, found "
            f"{len(names)}"
        )
    found = names or [_name(sorted(inside[number]), len(members)) for number in members]
    return tuple(
        Host(
            name=name,
            parts=frozenset(inside[number]),
            devices=tuple(devices[rank] for rank in ranks),
            ranks=tuple(ranks),
        )
        for name, (number, ranks) in zip(found, members.items(), strict=True)
    )


def _labels(topology: Topology) -> dict[str, int]:
    """Return a number for each part but network cards: that of its host, or of the network."""
    cards = {switch.name for switch in topology.switches if switch.kind == NIC}
    neighbours: dict[str, list[str]] = {name: [] for name in topology.part_names}
    for link in topology.links:
        neighbours[link.src].append(link.dst)
    label: dict[str, int] = {}
    for start in topology.part_names:
        if start in label or start in cards:
            continue
        number, todo = len(label), [start]
        label[start] = number
        while todo:
            for name in neighbours[todo.pop()]:
                if name not in label and name not in cards:
                    label[name] = number
                    todo.append(name)
    return label


def _name(parts: Sequence[str], hosts: int) -> str:
    """Return what all names begin with, as far as a slash; a machine alone is this one."""
    first, last = parts[0].split("/"), parts[-1].split("/")
    shared = []
    for a, b in zip(first[:-1], last[:-1], strict=False):
        if a != b:
            break
        shared.append(a)
    return "/".join(shared) or (LOCAL if hosts == 1 else parts[0].replace("/", "-"))
