"""A machine on a terminal: its domains, its links, and what of it is assumed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from charm_sched.report.documents import inside_bandwidth, link_kinds
from charm_sched.topology.conditions import possible
from charm_sched.units import format_bandwidth, format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from charm_sched.topology.graph import Domain, Topology
    from charm_sched.topology.listing import Shipped

LEGEND = "(each can send so much over all its links together, not over one link)"
NUMBER = re.compile(r"[0-9]+(?:\.\.[0-9]+)?")
ALONE = 16
"""Siblings are told apart by their bandwidth up to this number, by their shape alone beyond it."""


def domain_tree(topology: Topology) -> Tree:
    """Draw the domains, with what can leave each part; alike neighbours once."""
    root = topology.domains()
    tree = Tree(Text(_label(topology, root, topology.name), style="bold"), guide_style="dim")
    _grow(tree, topology, root)
    return tree


def _grow(tree: Tree, topology: Topology, domain: Domain) -> None:
    inner = [child for child in domain.children if child.children]
    tell = len(inner) <= ALONE
    for _, alike in groupby(inner, lambda child: _look(topology, child, exactly=tell)):
        same = list(alike)
        name = same[0].name
        if len(same) > 2:
            name = f"{name} to {same[-1].name} ({len(same)} alike)"
            same = same[:1]
        for child in same:
            label = _label(topology, child, name if len(same) == 1 else child.name)
            _grow(tree.add(Text(label)), topology, child)


def _look(topology: Topology, domain: Domain, *, exactly: bool) -> tuple[object, ...]:
    """Give what makes two domains alike."""
    inner = tuple(_look(topology, c, exactly=False) for c in domain.children if c.children)
    bandwidth = topology.domain_bandwidth(domain) if exactly else None
    return len(domain.devices), inner, bandwidth


def _label(topology: Topology, domain: Domain, name: str) -> str:
    devices = len(domain.devices)
    label = f"{name}: {devices} device{'s' if devices != 1 else ''}"
    if not domain.children:
        return label
    if any(child.children for child in domain.children):
        label += f" in {len(domain.children)} domains"
    out = format_bandwidth(inside_bandwidth(topology, domain), digits=3)
    return f"{label}; {domain.tier}: each can send {out}"


def show_topology(topology: Topology) -> Iterator[Tree | Text | Padding]:
    """Yield what ``charm-topo show`` prints, but for the assumptions."""
    yield domain_tree(topology)
    yield Text(LEGEND, style="dim")
    if topology.description:
        yield Padding(Text(topology.description), (1, 0, 0, 0))
    yield Text("\nDevices", style="bold")
    yield Padding(_devices(topology), (0, 0, 0, 2))
    yield Text("\nNames, as --devices takes them", style="bold")
    yield Padding(Text("\n".join(device_lines(topology))), (0, 0, 0, 2))
    yield Text("\nLinks (each direction of a link is one)", style="bold")
    yield Padding(_links(topology), (0, 0, 0, 2))
    if names := possible(topology):
        yield Text("\nConditions, as --under takes them", style="bold")
        yield Padding(Text(", ".join(names)), (0, 0, 0, 2))


def device_lines(topology: Topology) -> list[str]:
    """Name the devices of each innermost domain, in the range form of topology files."""
    inner = list(_innermost(topology.domains()))
    if len(inner) <= ALONE:
        return [f"devices {', '.join(ranges(domain.devices))}" for domain in inner]
    return [f"devices {', '.join(ranges(topology.device_names))}"]


def _innermost(domain: Domain) -> Iterator[Domain]:
    if any(not child.children for child in domain.children) or not domain.children:
        yield domain
        return
    for child in domain.children:
        yield from _innermost(child)


def ranges(names: Sequence[str]) -> list[str]:
    """Write names with ranges, so that expanding them gives the same names in the same order.

    >>> ranges(["node0/gpu0", "node0/gpu1", "node1/gpu0", "node1/gpu1", "spare"])
    ['node0..1/gpu0..1', 'spare']
    """
    found = list(names)
    for place in range(1, max((len(NUMBER.findall(name)) for name in found), default=0) + 1):
        found = _joined(found, place)
    return found


def _joined(patterns: Sequence[str], place: int) -> list[str]:
    """Join neighbours that differ by one in their number at a place, counted from the end."""
    found: list[tuple[str, int, int, str]] = []
    for pattern in patterns:
        numbers = list(NUMBER.finditer(pattern))
        if len(numbers) < place or ".." in numbers[-place].group():
            found.append((pattern, -1, -1, ""))
            continue
        number = numbers[-place]
        head, tail, text = pattern[: number.start()], pattern[number.end() :], number.group()
        value = int(text) if text == str(int(text)) else -1  # 007 stays as it is
        if value < 0:
            found.append((pattern, -1, -1, ""))
        elif found and found[-1][0] == head and found[-1][3] == tail and found[-1][2] == value - 1:
            found[-1] = (head, found[-1][1], value, tail)
        else:
            found.append((head, value, value, tail))
    return [
        head if first < 0
        else f"{head}{first}{tail}" if first == last
        else f"{head}{first}..{last}{tail}"
        for head, first, last, tail in found
    ]  # fmt: skip


def _devices(topology: Topology) -> Table:
    table = _table("devices", "profile", "peak", "memory", "port")
    seen: dict[tuple[str, ...], int] = {}
    for device in topology.devices:
        profile = device.compute
        dtype, peak = next(iter(profile.peak.items()))
        memory = "unknown" if device.memory is None else format_bytes(device.memory, digits=3)
        port = format_bandwidth(device.port, digits=3)
        facts = (profile.name, f"{format_rate(peak, digits=3)} {dtype}", memory, port)
        seen[facts] = seen.get(facts, 0) + 1
    for alike, count in seen.items():
        table.add_row(str(count), *alike)
    return table


def _links(topology: Topology) -> Table:
    table = _table("links", "kind", "bandwidth", "one flow", "latency", "")
    for kind in link_kinds(topology):
        cap = kind["flow_cap"]
        remarks = ["half duplex"] * kind["shared"] + ["assumed"] * kind["assumed"]
        table.add_row(
            str(kind["count"]),
            kind["kind"],
            format_bandwidth(kind["bandwidth"], digits=3),
            "" if cap is None else format_bandwidth(cap, digits=3),
            format_seconds(kind["latency"], digits=3),
            ", ".join(remarks),
        )
    return table


def listing(machines: Sequence[Shipped]) -> Iterator[Text | Table]:
    """Give what ``charm-topo list`` prints: a heading and a table for each group."""
    longest = max((len(machine.name) for machine in machines), default=0)
    for group, members in groupby(machines, lambda machine: machine.group):
        yield Text(group, style="bold")
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        table.add_column("name", no_wrap=True, min_width=longest + 2)
        table.add_column("devices", justify="right", min_width=4)
        table.add_column("what it is")
        for machine in members:
            table.add_row(f"  {machine.name}", str(machine.devices), Text(machine.description))
        yield table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, justify="right" if column == columns[0] else "left", no_wrap=True)
    return table
