"""What Slurm's topology.conf and topology.yaml have in common: a tree of switches over hosts."""

from __future__ import annotations

from dataclasses import dataclass, field

from charm_sched.importers.facts import Edge, Network
from charm_sched.importers.hostlist import expand
from charm_sched.importers.reading import MAX_PARTS, Source, quoted

ROOT = "core"


@dataclass(slots=True)
class Tree:
    """Switches and hosts, collected line by line."""

    source: Source
    switches: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)  # with the switch above
    lines: dict[str, int] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, kind: str, nodes: str, children: str, line: int) -> None:
        """Add one switch or block with what is below it.

        Raises:
            TopologyError: a second one of the name, a host below two, or nothing below it.
        """
        if name in self.switches:
            self.source.fail("each switch once", f"a second {quoted(name)}",
                             f"the first is at line {self.lines[name]}", line=line)  # fmt: skip
        if not nodes and not children:
            self.source.fail(f"nodes or switches below {name}", "none", line=line)
        self.switches[name] = kind
        self.lines[name] = line
        for host in expand(self.source, nodes, line) if nodes else ():
            if host in self.hosts:
                self.source.fail("each host below one switch", f"{quoted(host)} below "
                                 f"{self.hosts[host]} and {name}", line=line)  # fmt: skip
            self.hosts[host] = name
            self.edges.append(Edge(a=host, b=name, kind="network"))
        for child in expand(self.source, children, line) if children else ():
            self.edges.append(Edge(a=child, b=name, kind="trunk"))
        if len(self.edges) > MAX_PARTS:
            self.source.fail(f"at most {MAX_PARTS} hosts and switches", "more", line=line)

    def joined(self) -> None:
        """Put a root above blocks, which a file leaves out."""
        self.edges += [Edge(a=name, b=ROOT, kind="trunk") for name in list(self.switches)]
        self.switches[ROOT] = ROOT
        self.notes.append(f"{self.source.where}: the blocks are taken to hang on one core network")

    def network(self, what: str) -> Network:
        """Return the network.

        Raises:
            TopologyError: a switch that is not there, one below itself, or no host at all.
        """
        for edge in self.edges:
            if edge.a not in self.switches and edge.a not in self.hosts:
                self.source.fail("switches that the file describes", quoted(edge.a),
                                 line=self.lines.get(edge.b, 0))  # fmt: skip
        if not self.hosts:
            self.source.fail("hosts", "none", "it names no Nodes")
        self._check_loops()
        return Network(
            sources=(f"{self.source.where} ({what})",),
            hosts=tuple(self.hosts),
            switches=self.switches,
            edges=tuple(self.edges),
            notes=tuple(self.notes),
        )

    def _check_loops(self) -> None:
        """Refuse a switch that is above itself: peel off those without switches below."""
        below = dict.fromkeys(self.switches, 0)
        above: dict[str, list[str]] = {name: [] for name in self.switches}
        for edge in self.edges:
            if edge.a in self.switches:
                below[edge.b] += 1
                above[edge.a].append(edge.b)
        ready = [name for name, count in below.items() if not count]
        done = 0
        while ready:
            done += 1
            for name in above[ready.pop()]:
                below[name] -= 1
                if not below[name]:
                    ready.append(name)
        if done < len(self.switches):
            loop = next(name for name, count in below.items() if count)
            self.source.fail("a tree", f"{quoted(loop)} above itself",
                             line=self.lines.get(loop, 0))  # fmt: skip
