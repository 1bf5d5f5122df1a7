"""Where the parts of a machine stand in a drawing of it.

Devices stand in rows at the outside, what joins them towards the middle: each switch on the layer
of its distance from the nearest device, over the middle of the devices below it. The domains of the
outermost tier stand half above the middle and half below it, so that what joins them is between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from charm_sched.topology.graph import Domain, Topology

MOST_DEVICES = 72
"""Of a machine with more devices just some domains of the innermost tier are drawn."""
LEAST_ALIKE = 3
"""So many switches of a kind that join the same parts are drawn as one."""
GAP = 0.9
"""Between domains, in distances of devices."""
LAYER = 1.6
"""Between layers, in distances of devices."""

Place = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A domain in a drawing: what is drawn of it lies inside."""

    name: str
    left: float
    bottom: float
    right: float
    top: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Drawing:
    """A machine laid out in a plane.

    Attributes:
        places: Where each part that is drawn stands.
        bars: Switches that are drawn as bars over what they join, from their left to their right
            end.
        boxes: The domains of the outermost tier.
        stands_for: Parts that are drawn for several switches that join the same parts.
        left_out: How many devices are not drawn.
        mirrored: Whether domains stand above and below what joins them.
    """

    places: Mapping[str, Place]
    bars: Mapping[str, Place]
    boxes: tuple[Box, ...]
    stands_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: int = 0
    mirrored: bool = False


@dataclass(eq=False, kw_only=True)
class _Graph:
    """Distances from the nearest device, and the devices below each part."""

    near: dict[str, list[str]]
    distance: dict[str, int]
    below: dict[str, set[str]] = field(default_factory=dict)


def draw(topology: Topology, devices: Sequence[str], weight: Mapping[str, float]) -> Drawing:
    """Lay out a machine.

    Args:
        topology: The machine.
        devices: Those that are used; where all are too many, they are drawn before others.
        weight: How important each device is where not all are drawn, such as its fullest link.
    """
    chosen = _chosen(topology, devices, weight)
    graph = _graph(topology, set(chosen))
    alike = _fold(topology, graph)
    root = topology.domains(chosen)
    groups = [child for child in root.children if child.children]
    if len(groups) < 2 or len(groups) < len(root.children):
        groups = [root]
    home = _homes(graph, groups)
    middle = [part for part in graph.distance if home.get(part) is None]
    layers = {graph.distance[part] for part in middle}
    mirrored = len(groups) > 1 and len(layers) < 2
    wings = _wings(groups, mirrored=mirrored)
    found = _Layout(graph, home, middle).drawing(wings)
    left_out = len(topology.devices) - len(chosen)
    return replace(found, stands_for=alike, left_out=left_out)


def _chosen(
    topology: Topology, devices: Sequence[str], weight: Mapping[str, float]
) -> tuple[str, ...]:
    """Choose the devices that are drawn: all, or whole domains of the innermost tier."""
    if len(topology.devices) <= MOST_DEVICES:
        return topology.device_names
    inner = sorted(
        _innermost(topology.domains(devices)),
        key=lambda group: -max(weight.get(name, 0.0) for name in group),
    )
    found: list[str] = []
    for group in inner:
        if found and len(found) + len(group) > MOST_DEVICES:
            break
        found += group[:MOST_DEVICES]
    known = set(found)
    return tuple(name for name in topology.device_names if name in known)


def _innermost(domain: Domain) -> Iterable[tuple[str, ...]]:
    if not any(child.children for child in domain.children):
        yield domain.devices
        return
    for child in domain.children:
        yield from _innermost(child)


def _graph(topology: Topology, chosen: set[str]) -> _Graph:
    """Find what lies above the chosen devices, and how far; not what lies above others alone."""
    every: dict[str, list[str]] = {}
    for link in topology.links:
        every.setdefault(link.src, []).append(link.dst)
    nearest = _distances(every, topology.device_names)
    up = {part: [n for n in near if nearest[n] > nearest[part]] for part, near in every.items()}
    drawn = _distances(up, [name for name in topology.device_names if name in chosen])
    near = {part: [n for n in every.get(part, ()) if n in drawn] for part in drawn}
    distance = _distances(near, [name for name in topology.device_names if name in chosen])
    graph = _Graph(near=near, distance=distance)
    for part in sorted(distance, key=distance.__getitem__):
        graph.below[part] = {part} if part in chosen else set()
        for other in near.get(part, ()):
            if distance[other] < distance[part]:
                graph.below[part] |= graph.below[other]
    return graph


def _distances(near: Mapping[str, Sequence[str]], start: Iterable[str]) -> dict[str, int]:
    """Give the distance from the nearest of some parts, of all that are reached."""
    distance = dict.fromkeys(start, 0)
    frontier = list(distance)
    for part in frontier:
        for other in near.get(part, ()):
            if other not in distance:
                distance[other] = distance[part] + 1
                frontier.append(other)
    return distance


def _fold(topology: Topology, graph: _Graph) -> dict[str, tuple[str, ...]]:
    """Leave one of several switches of a kind that join the same parts; give those it is for."""
    groups: dict[tuple[str, frozenset[str]], list[str]] = {}
    for switch in topology.switches:
        if switch.name in graph.distance:
            joined = frozenset(graph.near.get(switch.name, ()))
            groups.setdefault((switch.kind, joined), []).append(switch.name)
    alike = {names[0]: tuple(names) for names in groups.values() if len(names) >= LEAST_ALIKE}
    gone = {name for names in alike.values() for name in names[1:]}
    for name in gone:
        del graph.distance[name], graph.below[name], graph.near[name]
    for part, near in graph.near.items():
        graph.near[part] = [other for other in near if other not in gone]
    return alike


def _homes(graph: _Graph, groups: Sequence[Domain]) -> dict[str, int | None]:
    """Say in which group each part stands: the one with all devices below it, or none."""
    of = {name: number for number, group in enumerate(groups) for name in group.devices}
    homes: dict[str, int | None] = {}
    for part, below in graph.below.items():
        found = {of[name] for name in below}
        homes[part] = found.pop() if len(found) == 1 else None
    return homes


def _wings(groups: Sequence[Domain], *, mirrored: bool) -> list[list[tuple[int, Domain]]]:
    numbered = list(enumerate(groups))
    half = (len(groups) + 1) // 2
    return [numbered[:half], numbered[half:]] if mirrored else [numbered]


class _Layout:
    """Puts parts at places, wing by wing, then what joins the wings."""

    def __init__(
        self, graph: _Graph, home: Mapping[str, int | None], middle: Sequence[str]
    ) -> None:
        self._graph, self._home, self._middle = graph, home, middle
        self._places: dict[str, Place] = {}
        inner = [p for p in home if home[p] is not None and not self._ends_there(p)]
        self._height = max((graph.distance[part] for part in inner), default=0)

    def _ends_there(self, part: str) -> bool:
        """Say whether a switch joins devices alone: it leads nowhere else."""
        distance = self._graph.distance
        return distance[part] > 0 and all(not distance[n] for n in self._graph.near.get(part, ()))

    def drawing(self, wings: Sequence[Sequence[tuple[int, Domain]]]) -> Drawing:
        """Give the drawing of some wings, the first one above."""
        base = LAYER * (1 if self._middle or len(wings) > 1 else 0)
        for sign, wing in zip((1, -1), wings, strict=False):
            self._place_wing(wing, sign, base)
        self._place_middle()
        bars = self._bars()
        boxes = [self._box(number, group.name) for wing in wings for number, group in wing]
        return Drawing(
            places=self._places,
            bars=bars,
            boxes=tuple(boxes),
            mirrored=len(wings) > 1,
        )

    def _place_wing(self, wing: Sequence[tuple[int, Domain]], sign: int, base: float) -> None:
        row = self._columns([group for _, group in wing])
        at = dict(zip(row, _centred(row.values()), strict=True))
        numbers = {number for number, _ in wing}
        parts = [part for part, number in self._home.items() if number in numbers]
        rows: dict[float, dict[str, float]] = {}
        alone = all(self._ends_there(part) for part in parts if part not in at)
        for part in parts:
            layer: float = self._graph.distance[part]
            if self._ends_there(part) and not (alone and not self._middle):
                layer = -1.0
            y = sign * (base + LAYER * (self._height - layer))
            rows.setdefault(y, {})[part] = _mean(at[name] for name in self._graph.below[part])
        for y, wanted in rows.items():
            for part, x in _apart(wanted).items():
                self._places[part] = (x, y)

    def _columns(self, groups: Sequence[Domain]) -> dict[str, float]:
        """Give each device a column, with gaps between domains."""
        found: dict[str, float] = {}
        column = 0.0
        for group in groups:
            column = self._column(group, found, column) + GAP
        return found

    def _column(self, domain: Domain, found: dict[str, float], column: float) -> float:
        if not domain.children:
            found[domain.name] = column
            return column + 1
        for number, child in enumerate(domain.children):
            if number and (child.children or domain.children[number - 1].children):
                column += GAP / 2
            column = self._column(child, found, column)
        return column

    def _place_middle(self) -> None:
        rows: dict[int, dict[str, float]] = {}
        for part in self._middle:
            if part in self._places:
                continue
            below = [self._places[name][0] for name in self._graph.below[part]]
            rows.setdefault(self._graph.distance[part], {})[part] = _mean(below)
        for number, distance in enumerate(sorted(rows)):
            for part, x in _apart(rows[distance], 2.0).items():
                self._places[part] = (x, -LAYER * 1.3 * number)

    def _bars(self) -> dict[str, Place]:
        """Give the switches that join several parts, where no two of one row would overlap."""
        found: dict[str, Place] = {}
        rows: dict[float, list[str]] = {}
        for part, (_, y) in self._places.items():
            if self._graph.distance[part]:
                rows.setdefault(y, []).append(part)
        for row in rows.values():
            spans = {part: self._span(part) for part in row}
            ordered = sorted(spans.values())
            if all(a[1] + 0.3 < b[0] for a, b in pairwise(ordered)):
                found |= {part: span for part, span in spans.items() if span[1] - span[0] >= 1}
        for part, (left, right) in found.items():
            self._places[part] = ((left + right) / 2, self._places[part][1])
        return found

    def _span(self, part: str) -> Place:
        """Give the columns that the parts below one stand in."""
        distance, x = self._graph.distance, self._places[part][0]
        near = [n for n in self._graph.near.get(part, ()) if distance[n] < distance[part]]
        xs = [self._places[n][0] for n in near] or [x]
        return min(xs), max(xs)

    def _box(self, number: int, name: str) -> Box:
        inside = [self._places[part] for part, home in self._home.items() if home == number]
        xs, ys = [x for x, _ in inside], [y for _, y in inside]
        return Box(
            name=name,
            left=min(xs) - 0.6,
            right=max(xs) + 0.6,
            bottom=min(ys) - 0.6,
            top=max(ys) + 0.6,
        )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def _centred(values: Iterable[float]) -> list[float]:
    found = list(values)
    middle = (min(found) + max(found)) / 2 if found else 0.0
    return [value - middle for value in found]


def _apart(wanted: Mapping[str, float], least: float = 1.0) -> dict[str, float]:
    """Keep parts of one row at least so far apart, as near as possible to where they belong.

    Parts that would overlap are spread evenly around their common middle.

    >>> _apart({"a": 0.0, "b": 0.0, "c": 5.0})
    {'a': -0.5, 'b': 0.5, 'c': 5.0}
    """
    order = sorted(wanted, key=lambda part: wanted[part])
    runs = [[part] for part in order]
    while True:
        spans = [_spread(run, wanted, least) for run in runs]
        near = next(
            (i for i, (a, b) in enumerate(pairwise(spans)) if b[0] - a[-1] < least - 1e-9), None
        )
        if near is None:
            return {
                p: x
                for run, xs in zip(runs, spans, strict=True)
                for p, x in zip(run, xs, strict=True)
            }
        runs[near : near + 2] = [runs[near] + runs[near + 1]]


def _spread(run: Sequence[str], wanted: Mapping[str, float], least: float) -> list[float]:
    middle = _mean(wanted[part] for part in run)
    return [middle + least * (number - (len(run) - 1) / 2) for number in range(len(run))]


__all__ = ["Box", "Drawing", "draw"]
