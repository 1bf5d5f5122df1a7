"""The hierarchy of domains, found from what sets of devices can exchange.

What counts is the **exchange** of a set of devices with the others around it: the maximum flow from
all of them at once to all the others, per device of the smaller side. (Per smaller side, since
three devices can take no more than their own share from a hundred.)

1. Candidates are the splits that appear when a class of alike bridges (links whose loss
   disconnects), all links of one kind, all links up to some bandwidth, or all switches of one kind
   are taken away; and the split into single devices. The one with the least exchange is taken.
2. Each part is split again in the same way. A part whose own split exchanges less than `FACTOR`
   times what is exchanged around it is no domain; its parts take its place, and are compared
   with the same surroundings. So pairs of GPUs that share a NIC but have NVLink for themselves are
   no tier, as a pair is hardly poorer than its members. Nor are devices without peer
   access a domain where no memory of a host lies among them: what they exchange leaves the part.

A part keeps the switches whose nearest devices all lie in it. Splits of parts that look alike
(`DomainGraph.look`) are measured once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from charm_sched.errors import TopologyError
from charm_sched.topology.domain_graph import DomainGraph
from charm_sched.topology.graph import Domain, Topology

FACTOR = 1.2
"""How much richer the exchange inside a domain must be than the exchange around it.

Two thirds of a tier's rate and less are common (oversubscription 2:1, NVLink against a NIC: 3 and
more); differences below a fifth are within what measured bandwidths of one class of link scatter.
"""

_SAMPLE = 16  # parts measured of a split whose parts all differ


@dataclass(frozen=True, slots=True)
class Tree:
    """A domain by device indices: `children` are trees or single devices, in file order."""

    name: str
    devices: tuple[int, ...]
    children: tuple[Tree | int, ...]

    def depth(self) -> int:
        """Return the number of tiers below and including this one."""
        return 1 + max((c.depth() for c in self.children if isinstance(c, Tree)), default=0)


def find_tree(graph: DomainGraph, name: str) -> Tree:
    """Return the hierarchy found from the graph."""
    children = _split(graph, graph.whole(), 0.0)
    whole = tuple(range(graph.devices))
    only = children[0]
    return Tree(name, whole, only.children if isinstance(only, Tree) else (only,))


def _split(graph: DomainGraph, vertices: Sequence[int], around: float) -> list[Tree | int]:
    """Return a part as one domain, or what takes its place where it exchanges as `around` it."""
    devices = sorted(v for v in vertices if v < graph.devices)
    if len(devices) == 1:
        return [devices[0]]
    labels, exchange = _poorest_split(graph, vertices, devices)
    rich = exchange >= FACTOR * around and graph.can_meet(vertices, devices)
    children = [
        child
        for members in graph.parts(vertices, labels)
        for child in _split(graph, members, exchange if rich else around)
    ]
    children.sort(key=lambda c: c.devices[0] if isinstance(c, Tree) else c)
    return [Tree("", tuple(devices), tuple(children))] if rich else children


def _poorest_split(
    graph: DomainGraph, vertices: Sequence[int], devices: Sequence[int]
) -> tuple[dict[int, int], float]:
    """Return the split with the least exchange, as the part number of each device, and that."""
    single = {device: i for i, device in enumerate(devices)}
    measured = [
        (labels, _exchange(graph, labels, devices))
        for labels in (single, *graph.candidates(vertices, devices))
    ]
    for labels, side in graph.bridge_candidates(vertices, devices):
        measured.append((labels, graph.exchange(side, devices)))
    return min(measured, key=lambda pair: pair[1])


def _exchange(graph: DomainGraph, labels: Mapping[int, int], devices: Sequence[int]) -> float:
    """Return the exchange of a split: what all parts send, per device of the smaller sides.

    Of parts that look alike one is measured; of very many different ones, some spread over all.
    """
    members: dict[int, list[int]] = {}
    for device, label in labels.items():
        members.setdefault(label, []).append(device)
    kinds: dict[object, tuple[int, list[int]]] = {}
    for inside in members.values():
        look = graph.look(inside)
        count, first = kinds.get(look, (0, inside))
        kinds[look] = (count + 1, first)
    sample = list(kinds.values())
    sample = sample[:: max(1, len(sample) // _SAMPLE)]
    sent, size = 0.0, 0
    for count, inside in sample:
        smaller = min(len(inside), len(devices) - len(inside))
        sent += count * smaller * graph.exchange(inside, devices)
        size += count * smaller
    return sent / size


@dataclass(slots=True)
class Hierarchy:
    """The domains of one topology with the names of their tiers."""

    topology: Topology
    graph: DomainGraph
    tree: Tree
    tiers: tuple[str, ...]
    _parents: dict[int, list[Tree]] = field(default_factory=dict)
    _bandwidths: dict[tuple[tuple[str, ...], tuple[str, ...]], float] = field(default_factory=dict)
    _prefixes: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, topology: Topology) -> Hierarchy:
        """Find the hierarchy, or take the one the file gives.

        Raises:
            TopologyError: the file names another number of tiers than the hierarchy has.
        """
        graph = DomainGraph(topology)
        if topology.domain_override is None:
            tree = find_tree(graph, topology.name)
        else:
            tree = _given(topology, topology.name, topology.domain_override, [])
        depth = tree.depth() if len(topology.devices) > 1 else 0
        tiers = topology.tier_names
        if tiers is None:
            tiers = _default_tiers(graph, tree, depth)
        elif len(tiers) != depth:
            raise TopologyError(
                f"{topology.where}: tiers: expected {depth} (the depth of the hierarchy: "
                f"{_shape(tree)}), found {len(tiers)} "
                "(change tiers, or give the hierarchy under domains)"
            )
        hierarchy = cls(topology, graph, tree, tiers)
        for name in topology.device_names:
            segments = name.split("/")
            hierarchy._prefixes.update("/".join(segments[:i]) for i in range(1, len(segments)))
        return hierarchy

    def restricted(self, devices: Sequence[str] | None) -> Domain:
        """Return the tree of `devices`, in their order."""
        names = self.topology.device_names
        if devices is None:
            order = {i: i for i in range(len(names))}
        else:
            order = {self.topology.device_index(name): i for i, name in enumerate(devices)}
            if len(order) != len(devices) or not order:
                twice = [name for name, n in Counter(devices).items() if n > 1]
                found = f'"{twice[0]}" twice' if twice else "no device"
                raise TopologyError(
                    f"{self.topology.name}: expected devices, each once, found {found}"
                )
        scope = tuple(names[i] for i in sorted(order, key=order.__getitem__))
        found_tree = self._restrict(self.tree, order, 0, scope)
        assert found_tree is not None
        return found_tree

    def _restrict(
        self, tree: Tree | int, order: Mapping[int, int], depth: int, scope: tuple[str, ...]
    ) -> Domain | None:
        names = self.topology.device_names
        if isinstance(tree, int):
            if tree not in order:
                return None
            return Domain(
                name=names[tree], tier=None, devices=(names[tree],), children=(), scope=scope
            )
        found = [self._restrict(child, order, depth + 1, scope) for child in tree.children]
        children = [child for child in found if child is not None]
        if len(children) < 2:
            return children[0] if children else None
        index = self.topology.device_index
        children.sort(key=lambda child: min(order[index(name)] for name in child.devices))
        inside = sorted((i for i in tree.devices if i in order), key=order.__getitem__)
        return Domain(
            name=tree.name or _common_name([names[i] for i in tree.devices], self._prefixes),
            tier=self.tiers[depth],
            devices=tuple(names[i] for i in inside),
            children=tuple(children),
            scope=scope,
        )

    def tier_of(self, a: int, b: int) -> str:
        """Return the tier of the lowest domain that holds two devices."""
        if a == b:
            raise TopologyError(
                f"{self.topology.name}: expected two different devices, "
                f'found "{self.topology.device_names[a]}" twice'
            )
        if not self._parents:
            self._note_parents(self.tree, [])
        depth = -1
        for x, y in zip(self._parents[a], self._parents[b], strict=False):
            if x is not y:
                break
            depth += 1
        return self.tiers[depth]

    def _note_parents(self, tree: Tree, above: list[Tree]) -> None:
        chain = [*above, tree]
        for child in tree.children:
            if isinstance(child, Tree):
                self._note_parents(child, chain)
            else:
                self._parents[child] = chain

    def bandwidth(self, domain: Domain) -> float:
        """Return what can leave a domain towards the rest of its tree, in bytes per second."""
        index = self.topology.device_index
        scope = domain.scope or self.topology.device_names
        key = (domain.devices, scope)
        if key not in self._bandwidths:
            inside = [index(name) for name in domain.devices]
            members = set(inside)
            outside = [i for i in map(index, scope) if i not in members]
            self._bandwidths[key] = self.graph.flow(inside, outside) if outside else 0.0
        return self._bandwidths[key]

    def select(self, ranks: int) -> tuple[str, ...]:
        """Return devices spread evenly over the top-level domains."""
        names = self.topology.device_names
        if not 1 <= ranks <= len(names):
            raise TopologyError(
                f"{self.topology.name}: expected 1 to {len(names)} ranks, found {ranks}"
            )
        groups = [list(c.devices) if isinstance(c, Tree) else [c] for c in self.tree.children]
        chosen = [0] * len(groups)
        while sum(chosen) < ranks:
            open_groups = [i for i, group in enumerate(groups) if chosen[i] < len(group)]
            for i in open_groups[: ranks - sum(chosen)]:
                chosen[i] += 1
        taken = sorted(i for group, n in zip(groups, chosen, strict=True) for i in group[:n])
        return tuple(names[i] for i in taken)


def _given(
    topology: Topology, name: str, domains: Iterable[Mapping[str, Any]], devices: Iterable[str]
) -> Tree:
    """Return the tree of an override; a domain of one child is that child."""
    children: list[Tree | int] = [topology.device_index(device) for device in devices]
    for domain in domains:
        child = _given(
            topology, domain["name"], domain.get("domains", ()), domain.get("devices", ())
        )
        children.append(child if len(child.children) > 1 else child.children[0])
    children.sort(key=lambda c: min(c.devices) if isinstance(c, Tree) else c)
    if len(children) == 1 and isinstance(children[0], Tree):
        only = children[0]
        return Tree(name, only.devices, only.children)
    inside = sorted(i for c in children for i in (c.devices if isinstance(c, Tree) else (c,)))
    return Tree(name, tuple(inside), tuple(children))


def _default_tiers(graph: DomainGraph, tree: Tree, depth: int) -> tuple[str, ...]:
    """Name each tier by the kind of link that most of the bandwidth out of its domains is of."""
    if depth == 0:
        return ()
    weights: list[Counter[str]] = []
    frontier: list[Tree | int] = [tree]
    for _ in range(depth):
        frontier = [child for part in frontier if isinstance(part, Tree) for child in part.children]
        labels = {
            device: label
            for label, part in enumerate(frontier)
            for device in (part.devices if isinstance(part, Tree) else (part,))
        }
        weights.append(graph.boundary_kinds(labels))
    tiers: list[str] = []
    for level, weight in enumerate(weights):
        best = max(weight, key=lambda kind: (weight[kind], kind)) if weight else f"tier{level}"
        twin = 2
        name = best
        while name in tiers:
            name = f"{best}_{twin}"
            twin += 1
        tiers.append(name)
    return tuple(tiers)


def _shape(tree: Tree) -> str:
    """Say in a few words how the hierarchy looks: "2 domains of 4 devices"."""
    sizes = Counter(len(c.devices) if isinstance(c, Tree) else 1 for c in tree.children)
    words = [
        f"{count} of {size}" if size > 1 else f"{count} single" for size, count in sizes.items()
    ]
    inner = next((c for c in tree.children if isinstance(c, Tree)), None)
    return ", ".join(words) + (f"; inside: {_shape(inner)}" if inner else "")


def _common_name(names: Sequence[str], prefixes: Mapping[str, int]) -> str:
    """Name a domain by the path that its devices alone share, or by its first and last device."""
    first, last = names[0].split("/"), names[-1].split("/")
    shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    prefix = "/".join(segment for segment, _ in shared)
    if prefix and prefixes[prefix] == sum(name.startswith(f"{prefix}/") for name in names):
        return prefix
    return f"{names[0]}..{names[-1].rpartition('/')[2]}"
