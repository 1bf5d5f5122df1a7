"""Machines joined by a network: alike nodes on one fabric, or hosts below a tree of switches."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from charm_sched.errors import TopologyError
from charm_sched.importers.choices import Choices, Figure, Ledger
from charm_sched.importers.facts import Edge, Network, Nic
from charm_sched.importers.figures import LATENCY
from charm_sched.importers.machine import Card, Machine
from charm_sched.importers.naming import plain_name, ranges
from charm_sched.importers.sheet import Entry, Sheet

FABRIC = "fabric"


@dataclass(slots=True)
class Cluster:
    """A cluster under construction; `machines` by host, "" for all that have none of their own."""

    sheet: Sheet
    choices: Choices
    ledger: Ledger
    machines: Mapping[str, Machine]
    notes: list[str] = field(default_factory=list)

    def lay_out(self, network: Network | None) -> None:
        """Fill the sheet.

        Raises:
            TopologyError: a host without a machine, or hosts that no network joins.
        """
        if network is None:
            network = self._plain()
        else:
            network = self._chosen(network)
        for name, machine in self.machines.items():
            self._give_nic(machine)
            self.sheet.templates[self._template(name)] = machine.section
        self._parts(network.hosts)
        for name, kind in network.switches.items():
            self.sheet.body.switches.append(Entry({"name": plain_name(name), "kind": kind}))
        self._links(network)

    def _plain(self) -> Network:
        """Return a fabric with as many hosts as the user says."""
        named = [name for name in self.machines if name]
        if named and len(named) < len(self.machines):
            raise TopologyError(
                "expected HOST= in front of every file about a machine, as no file joins hosts, "
                "found some without"
            )
        count = self.choices.nodes or len(named)
        if named and count != len(named):
            raise TopologyError(
                f"--nodes: expected {len(named)}, as so many hosts are named, found {count}"
            )
        hosts = named or [f"node{i}" for i in range(count)]
        return one_fabric(hosts, "the command line", self.ledger)

    def _chosen(self, network: Network) -> Network:
        """Check the network, and take the part of it that the user wants."""
        network = upwards(network)
        if self.choices.under is not None:
            network = under(network, self.choices.under)
        trees = components(network)
        if len(trees) > 1:
            tops = ", ".join(sorted(min(tree) for tree in trees)[:8])
            raise TopologyError(
                f"{network.sources[0]}: expected one network, found {len(trees)} parts with no "
                f"known path between them (--under SWITCH takes one part; they hold {tops})"
            )
        if self.choices.nodes is not None and self.choices.nodes != len(network.hosts):
            raise TopologyError(
                f"--nodes: expected no number beside {network.sources[0]}, which names "
                f"{len(network.hosts)} hosts"
            )
        missing = [h for h in network.hosts if h not in self.machines and "" not in self.machines]
        if missing:
            raise TopologyError(
                f"{network.sources[0]}: expected a file for each of its hosts, found none for "
                f"{missing[0]} (a file without HOST= in front stands for all others)"
            )
        strange = [name for name in self.machines if name and name not in network.hosts]
        if strange:
            raise TopologyError(
                f"{strange[0]}: expected a host of {network.sources[0]}, found no such name there"
            )
        return network

    def _give_nic(self, machine: Machine) -> None:
        """Give a machine without a NIC one, as something must join it."""
        if machine.cards:
            return
        self.ledger.assume("the text names no NIC: each machine has one, at its first processor",
                           "a text with NICs")  # fmt: skip
        root = next(
            entry.fields["name"] for entry in machine.section.switches
            if entry.fields["kind"] == "root_complex"
        )  # fmt: skip
        machine.section.switches.append(Entry({"name": "nic0", "kind": "nic"}))
        value, source = LATENCY["pcie"]
        self.sheet.link(machine.section, "nic0", root, "pcie",
                        machine.figures.slot(None),
                        Figure(value, source, assumed=True))  # fmt: skip
        machine.cards.append(Card("nic0", (Nic(name="nic0"),)))

    def _template(self, host: str) -> str:
        return plain_name(f"node-{host}") if host else "node"

    def _machine_of(self, host: str) -> str:
        return host if host in self.machines else ""

    def _parts(self, hosts: Sequence[str]) -> None:
        for own in self.machines:
            mine = [plain_name(host) for host in hosts if self._machine_of(host) == own]
            self.sheet.body.parts += [
                Entry({"name": pattern, "template": self._template(own)})
                for pattern in ranges(mine)
            ]

    def _links(self, network: Network) -> None:
        """Join every card to the switches of its host, then switch to switch."""
        below: dict[str, float] = defaultdict(float)  # bytes per second that hosts bring to it
        hosts = set(network.hosts)
        edges: dict[str, list[Edge]] = defaultdict(list)
        trunks: list[Edge] = []
        for edge in network.edges:
            host = edge.a if edge.a in hosts else edge.b if edge.b in hosts else ""
            (edges[host] if host else trunks).append(edge)
        groups: dict[tuple[str, tuple[Edge, ...]], list[str]] = {}
        for host in network.hosts:
            ends = tuple(replace(edge, a="") for edge in edges[host])
            groups.setdefault((self._machine_of(host), ends), []).append(plain_name(host))
        for (own, ends), members in groups.items():
            for pattern in ranges(members):
                count = _size(pattern)
                self._host_links(self.machines[own], pattern, count, ends, below)
        for edge in trunks:
            self._trunk(edge, below, trunks)

    def _host_links(
        self,
        machine: Machine,
        pattern: str,
        count: int,
        ends: Sequence[Edge],
        below: dict[str, float],
    ) -> None:
        cards = sorted(machine.cards, key=lambda card: (len(card.name), card.name))
        if len(ends) not in (1, len(cards)):
            self.ledger.assume(
                f"{len(cards)} NICs per machine and {len(ends)} links per host in the network; "
                "they are dealt out in turn", ""
            )  # fmt: skip
        for i, card in enumerate(cards):
            known = {nic.name for nic in card.ports} | {nic.device for nic in card.ports}
            own = [end for end in ends if end.port and end.port in known]
            end = (own or [ends[i % len(ends)]])[0]
            speed = end.bandwidth if end.bandwidth is not None else card.ports[0].speed
            port = machine.figures.port(speed)
            value, source = LATENCY["network"]
            self.sheet.link(self.sheet.body, f"{pattern}/{card.name}", plain_name(end.b), end.kind,
                            port, Figure(value, source, assumed=True),
                            count=len(card.ports))  # fmt: skip
            below[end.b] += port.value * len(card.ports) * count

    def _trunk(self, edge: Edge, below: dict[str, float], trunks: Sequence[Edge]) -> None:
        """Add a link between switches: as given, or as wide as what comes from below."""
        value, source = LATENCY["network"]
        if edge.bandwidth is not None:
            figure = Figure(edge.bandwidth, "from the text")
        else:
            ratio = self.choices.oversubscription or 1.0
            if self.choices.oversubscription is None:
                self.ledger.assume("switches have as much bandwidth upwards as from below",
                                   "--oversubscription")  # fmt: skip
            beside = sum(other.count for other in trunks if other.a == edge.a)
            wide = max(below[edge.a], 1.0) / ratio / max(1, beside)
            given = self.choices.oversubscription is not None
            figure = Figure(wide, f"what comes from below, divided by {ratio:g}", not given)
        below[edge.b] += figure.value * edge.count
        self.sheet.link(self.sheet.body, plain_name(edge.a), plain_name(edge.b), edge.kind, figure,
                        Figure(value, source, assumed=True), count=edge.count)  # fmt: skip


def one_fabric(hosts: Sequence[str], source: str, ledger: Ledger) -> Network:
    """Return a network that joins hosts as well as their NICs allow."""
    ledger.assume("all NICs are on one fabric without oversubscription", "")
    return Network(
        sources=(source,),
        hosts=tuple(hosts),
        switches={FABRIC: FABRIC},
        edges=tuple(Edge(a=host, b=FABRIC, kind="network") for host in hosts),
    )


def _size(pattern: str) -> int:
    match = re.search(r"(\d+)\.\.(\d+)$", pattern)
    return int(match[2]) - int(match[1]) + 1 if match else 1


def upwards(network: Network) -> Network:
    """Return the network with every edge from the lower to the upper end, lower edges first."""
    level = dict.fromkeys(network.hosts, 0)
    neighbours: dict[str, list[str]] = defaultdict(list)
    for edge in network.edges:
        neighbours[edge.a].append(edge.b)
        neighbours[edge.b].append(edge.a)
    frontier = list(level)
    depth = 0
    while frontier:
        depth += 1
        found = dict.fromkeys(n for at in frontier for n in neighbours[at] if n not in level)
        level.update(dict.fromkeys(found, depth))
        frontier = list(found)
    turned = [
        edge if level.get(edge.a, 0) <= level.get(edge.b, 0) else replace(edge, a=edge.b, b=edge.a)
        for edge in network.edges
    ]
    return replace(network, edges=tuple(sorted(turned, key=lambda e: level.get(e.a, 0))))


def components(network: Network) -> list[set[str]]:
    """Return the sets of hosts that are joined, each with the switches between them."""
    neighbours: dict[str, list[str]] = defaultdict(list)
    for edge in network.edges:
        neighbours[edge.a].append(edge.b)
        neighbours[edge.b].append(edge.a)
    found: list[set[str]] = []
    seen: set[str] = set()
    for host in network.hosts:
        if host in seen:
            continue
        part, todo = {host}, [host]
        while todo:
            for name in neighbours[todo.pop()]:
                if name not in part:
                    part.add(name)
                    todo.append(name)
        seen |= part
        found.append(part)
    return found


def under(network: Network, switch: str) -> Network:
    """Return the part of a network below a switch; edges lead upwards, from `a` to `b`.

    Raises:
        TopologyError: there is no such switch, or no host below it.
    """
    if switch not in network.switches:
        raise TopologyError(f"--under: expected a switch of {network.sources[0]}, found {switch}")
    lower: dict[str, list[str]] = defaultdict(list)
    for edge in network.edges:
        lower[edge.b].append(edge.a)
    inside, todo = {switch}, [switch]
    while todo:
        for name in lower[todo.pop()]:
            if name not in inside:
                inside.add(name)
                todo.append(name)
    hosts = tuple(host for host in network.hosts if host in inside)
    if not hosts:
        raise TopologyError(f"--under: expected hosts below {switch}, found none")
    return replace(
        network,
        hosts=hosts,
        switches={name: kind for name, kind in network.switches.items() if name in inside},
        edges=tuple(e for e in network.edges if e.a in inside and e.b in inside),
    )
