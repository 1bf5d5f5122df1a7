"""What shares a PCIe switch, a processor, an NVSwitch: places found from paths or from classes.

A PCIe tree (paths) is taken as it is, without bridges that lead to one thing only. A matrix of
classes is turned into the coarsest tree that has those classes; where the class is hidden (NVLink
pairs) the NUMA affinity says which processor a GPU belongs to. Where class and affinity contradict
each other the class wins, and the contradiction is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from charm_sched.importers.facts import CLASSES, NEAR, SWITCH, Gpu, Host, numbers

BRIDGE, NUMA = "bridge", "numa"


@dataclass(frozen=True, slots=True)
class Place:
    """A processor (NUMA node) or a PCIe switch, with what is attached.

    Attributes:
        members: GPUs and NICs directly below.
        inner: switches below.
        uplink: of a switch, its bandwidth towards the processor; None where unknown.
    """

    name: str
    kind: str
    members: tuple[str, ...]
    inner: tuple[Place, ...] = ()
    uplink: float | None = None

    def everything(self) -> tuple[str, ...]:
        """Return all GPUs and NICs at or below this place."""
        return (*self.members, *(name for place in self.inner for name in place.everything()))


@dataclass(frozen=True, slots=True)
class Places:
    """The processors of a host, the narrowest bridge above a single member, and contradictions."""

    processors: tuple[Place, ...]
    narrow: Mapping[str, float]
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_places(host: Host) -> Places:
    """Return where the GPUs and NICs of a host are attached."""
    return _from_paths(host) if host.paths else _FromLabels(host).places()


def connected(names: Iterable[str], joined: Callable[[str, str], bool]) -> list[tuple[str, ...]]:
    """Return the connected sets of names, in the order of their first members."""
    left = list(names)
    sets = []
    while left:
        found, todo = [left[0]], [left.pop(0)]
        while todo:
            at = todo.pop()
            near = [name for name in left if joined(at, name)]
            left = [name for name in left if name not in near]
            found += near
            todo += near
        sets.append(found)
    order = {name: i for i, name in enumerate(names)} if isinstance(names, (list, tuple)) else {}
    return [tuple(sorted(found, key=lambda n: order.get(n, 0))) for found in sets]


def _from_paths(host: Host) -> Places:
    members: dict[tuple[str, ...], list[str]] = {}
    for name in (*(gpu.name for gpu in host.gpus), *(nic.name for nic in host.nics)):
        path = host.paths.get(name, ())
        members.setdefault(path, []).append(name)
        for depth in range(len(path)):
            members.setdefault(path[:depth], [])
    children: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for path in sorted(members, key=len):
        if path:
            children.setdefault(path[:-1], []).append(path)
    narrow: dict[str, float] = {}

    def place(path: tuple[str, ...], width: float | None) -> Place:
        inner = [place(child, host.bridges.get(child[-1])) for child in children.get(path, ())]
        own = list(members[path])
        if len(path) > 1 and not inner and len(own) == 1 and width is not None:
            narrow[own[0]] = min(width, narrow.get(own[0], width))
        kept: list[Place] = []
        for each in inner:
            if len(each.members) == 1 and not each.inner:  # a bridge for one thing alone
                own.append(each.members[0])
                _narrow(narrow, each.members[0], each.uplink)
            elif not each.members and len(each.inner) == 1:
                only = each.inner[0]
                widths = [w for w in (each.uplink, only.uplink) if w is not None]
                kept.append(Place(only.name, BRIDGE, only.members, only.inner,
                                  min(widths, default=None)))  # fmt: skip
            else:
                kept.append(each)
        kind = NUMA if len(path) == 1 else BRIDGE
        return Place(path[-1], kind, tuple(own), tuple(kept), width)

    roots = [place(path, None) for path in members if len(path) == 1]
    loose = members.get((), [])
    if loose:
        roots.append(Place("numa", NUMA, tuple(loose)))
    return Places(tuple(root for root in roots if root.everything()), narrow)


def _narrow(narrow: dict[str, float], name: str, width: float | None) -> None:
    if width is not None:
        narrow[name] = min(width, narrow.get(name, width))


class _FromLabels:
    """Places out of classes and affinities."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.gpus = [gpu.name for gpu in host.gpus]
        self.nics = [nic.name for nic in host.nics]
        self.gpu = {gpu.name: gpu for gpu in host.gpus}
        self.key = {gpu.name: affinity(gpu) for gpu in host.gpus}
        self.doubts: list[str] = []
        self.notes: list[str] = []

    def label(self, a: str, b: str) -> str:
        found = self.host.labels.get((a, b), "")
        return "SYS" if found == "SOC" else "PXB" if found == "PSB" else found

    def places(self) -> Places:
        """Find processors, then the switches below each."""
        self._contradictions()
        groups = connected(self.gpus, self._same_processor)
        groups = self._with_nics(groups)
        names = self._names(groups)
        processors = tuple(
            Place(name, NUMA, *self._switches(name, group))
            for name, group in zip(names, groups, strict=True)
        )
        return Places(processors, {}, tuple(self.doubts), tuple(self.notes))

    def _alike(self, a: str, b: str) -> bool | None:
        """Say whether two GPUs have a processor in common; None where that is not known.

        Lists that overlap count as one: a cut list of CPUs is still a part of the whole.
        """
        ga, gb = self.gpu[a], self.gpu[b]
        if ga.numa is not None and gb.numa is not None:
            return bool(set(ga.numa) & set(gb.numa))
        if ga.cpus and gb.cpus:
            ours, theirs = numbers(ga.cpus), numbers(gb.cpus)
            return ga.cpus == gb.cpus or bool(ours and theirs and set(ours) & set(theirs))
        return None

    def _same_processor(self, a: str, b: str) -> bool:
        """Say whether two GPUs hang on one processor; NVLink and XGMI hide it."""
        label = self.label(a, b)
        if label in ("PIX", "PXB", "PHB"):
            return True
        if label == "SYS":
            return False
        alike = self._alike(a, b)
        if alike is None:
            return label == "NODE" or not (self.key[a] or self.key[b])
        return alike

    def _contradictions(self) -> None:
        pairs = [(a, b) for i, a in enumerate(self.gpus) for b in self.gpus[i + 1 :]]
        near = [p for p in pairs if self.label(*p) == "SYS" and self._alike(*p)]
        far = [p for p in pairs if self.label(*p) in NEAR and self._alike(*p) is False]
        if near:
            self.doubts.append(
                f"{_some(near)}: class SYS, though both have the affinity {self.key[near[0][0]]}; "
                "the class decides about paths (--numa groups GPUs by hand)"
            )
        if far:
            a, b = far[0]
            self.doubts.append(
                f"{_some(far)}: class {self.label(a, b)}, though the affinities are {self.key[a]} "
                f"and {self.key[b]}"
            )
        parts = [*self.gpus, *self.nics]
        hidden = [
            g for g in self.gpus
            if not self.key[g] and not any(self.label(g, o) in CLASSES for o in parts)
        ]  # fmt: skip
        if len(hidden) > 1:
            self.notes.append(
                f"the processor of {', '.join(hidden)} is not known; one for all is assumed"
            )

    def _with_nics(self, groups: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Attach each NIC to the processor that it is nearest to; far ones get their own."""
        found = [list(group) for group in groups]
        far: list[str] = []
        split: list[str] = []
        for nic in self.nics:
            ranks = [min((_RANK.get(self.label(g, nic), 9) for g in group), default=9)
                     for group in groups]  # fmt: skip
            best = min(ranks, default=9)
            if best >= _RANK["SYS"]:
                far.append(nic)
                continue
            if ranks.count(best) > 1:
                split.append(nic)
            found[ranks.index(best)].append(nic)
        self._far_nics(found)
        if split:
            self.notes.append(
                f"{', '.join(split)}: as near to several processors; attached to the first of them"
            )
        inside = {name: i for i, group in enumerate(found) for name in group}
        for group in connected(far, lambda a, b: self.label(a, b) in NEAR):
            near = [inside[n] for n in self.nics if n in inside and any(
                self.label(n, f) in NEAR for f in group)]  # fmt: skip
            if near:
                found[near[0]] += group
            else:
                found.append(list(group))
        return [tuple(group) for group in found]

    def _far_nics(self, groups: list[list[str]]) -> None:
        """Doubt classes that are too near: those of a NIC to GPUs of another processor."""
        for group in groups:
            for nic in self.nics:
                if nic not in group:
                    continue
                away = [
                    g for g in self.gpus
                    if g not in group and self.label(g, nic) in NEAR
                    and any(self._alike(g, o) is False for o in group if o in self.gpu)
                ]  # fmt: skip
                if away:
                    self.doubts.append(
                        f"{nic}: class {self.label(away[0], nic)} to {', '.join(away)}, though "
                        "their affinity is that of another processor"
                    )
                    return  # one is enough to tell

    def _names(self, groups: list[tuple[str, ...]]) -> list[str]:
        names: list[str] = []
        for i, group in enumerate(groups):
            nodes = {gpu.numa for gpu in self.host.gpus if gpu.name in group and gpu.numa}
            name = f"root{i}"
            if len(nodes) == 1:
                name = f"numa{'-'.join(map(str, _ends(nodes.pop())))}"
            while name in names:
                name += f"-{i}"
            names.append(name)
        return names

    def _switches(
        self, root: str, group: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[Place, ...]]:
        """Return the members directly at the processor, and the switches: PXB around PIX."""
        direct: list[str] = []
        outer: list[Place] = []
        for wide in connected(group, lambda a, b: self.label(a, b) in ("PIX", "PXB")):
            if len(wide) == 1:
                direct += wide
                continue
            tight = connected(wide, lambda a, b: self.label(a, b) == "PIX")
            name = f"{root}-switch{len(outer)}"
            if len(tight) == 1:
                outer.append(Place(name, BRIDGE, wide))
                continue
            single = tuple(t[0] for t in tight if len(t) == 1)
            inner = tuple(
                Place(f"{name}.{i}", BRIDGE, t)
                for i, t in enumerate(t for t in tight if len(t) > 1)
            )
            outer.append(Place(name, BRIDGE, single, inner))
        return tuple(direct), tuple(outer)


_RANK = {label: i for i, label in enumerate(CLASSES)}


def affinity(gpu: Gpu) -> str:
    """Return what the text says about the processor of a GPU, "" for nothing."""
    if gpu.numa is not None:
        return f"NUMA {','.join(map(str, gpu.numa))}"
    return f"CPUs {gpu.cpus}" if gpu.cpus else ""


def _ends(numbers: tuple[int, ...]) -> tuple[int, ...]:
    return numbers if len(numbers) < 2 else (numbers[0], numbers[-1])


def _some(pairs: list[tuple[str, str]]) -> str:
    shown = ", ".join(f"{a} and {b}" for a, b in pairs[:3])
    return shown + (f" and {len(pairs) - 3} more pairs" if len(pairs) > 3 else "")


def planes(host: Host) -> list[tuple[str, ...]]:
    """Return the sets of GPUs that share an NVSwitch plane."""
    switched = [g.name for g in host.gpus if any(p.target == SWITCH for p in g.peers)]
    if not host.labels:
        return [tuple(switched)] if switched else []
    return connected(switched, lambda a, b: host.labels.get((a, b), "NV").startswith("NV"))


def partitions(host: Host) -> dict[str, frozenset[frozenset[str]]]:
    """Return the groups of GPUs by processor, by PCIe switch and by direct links, to compare."""
    places = find_places(host)
    gpus = [gpu.name for gpu in host.gpus]
    known = set(gpus)

    def only(names: Iterable[str]) -> frozenset[str]:
        return frozenset(name for name in names if name in known)

    def switches(place: Place) -> list[frozenset[str]]:
        here = [only(place.everything())] if place.kind == BRIDGE else []
        return here + [found for each in place.inner for found in switches(each)]

    joined = {(g.name, p.target) for g in host.gpus for p in g.peers}
    joined |= {(a, b) for plane in planes(host) for a in plane for b in plane}
    linked = connected(gpus, lambda a, b: (a, b) in joined or (b, a) in joined)
    found = {
        "processor": [only(place.everything()) for place in places.processors],
        "PCIe switch": [group for place in places.processors for group in switches(place)],
        "direct link": [frozenset(group) for group in linked],
    }
    return {
        level: frozenset(group for group in groups if len(group) > (level != "processor"))
        for level, groups in found.items()
    }
