"""The links of a machine as the lines of a drawing, with what each tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from charm_sched.export.markup import label
from charm_sched.units import format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
    from charm_sched.timelines.link_load import LinkLoad
    from charm_sched.topology.graph import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The links between two parts in both directions, or one of several parallel ones.

    Attributes:
        ends: The parts, in alphabetical order.
        kind: Of the links.
        loads: Of each direction of each link.
        number: Which of the parallel lines this is.
        of: How many parallel lines there are.
        links: How many links it stands for: several where an end stands for several switches.
    """

    ends: tuple[str, str]
    kind: str
    loads: tuple[LinkLoad, ...]
    number: int
    of: int
    links: int = 1

    @property
    def utilisation(self) -> float:
        """The part of the bandwidth of its fullest link that is used."""
        return max((load.utilisation for load in self.loads), default=0.0)


def lines_of(
    machine: Topology, loads: Sequence[LinkLoad], stands_for: Mapping[str, tuple[str, ...]]
) -> Iterator[Line]:
    """Put the two directions of each link together, and count parallel links.

    Args:
        machine: The machine.
        loads: Of its capacities.
        stands_for: Parts that are drawn for several; links to those are one line.
    """
    drawn_as = {part: name for name, parts in stands_for.items() for part in parts}
    pairs: dict[tuple[str, str], list[tuple[str, tuple[LinkLoad, ...]]]] = {}
    for first, back in zip(machine.links[::2], machine.links[1::2], strict=True):
        one, other = sorted(drawn_as.get(end, end) for end in (first.src, first.dst))
        numbers = dict.fromkeys(machine.link_capacity[link.index] for link in (first, back))
        found = tuple(loads[number] for number in numbers)
        pairs.setdefault((one, other), []).append((first.kind, found))
    for ends, links in pairs.items():
        if not stands_for.keys().isdisjoint(ends):
            together = tuple(load for _, found in links for load in found)
            yield Line(
                ends=ends, kind=links[0][0], loads=together, number=0, of=1, links=len(links)
            )
            continue
        for number, (kind, found) in enumerate(links):
            yield Line(ends=ends, kind=kind, loads=found, number=number, of=len(links))


def words_of(line: Line) -> str:
    """Say what crosses a line: of several links all together, and the fullest."""
    bandwidth = format_bandwidth(line.loads[0].bandwidth, digits=3)
    if line.links == 1:
        told = [f"<b>{label(line.kind)}</b>, {bandwidth}"]
        return "<br>".join([*told, *map(_facts, line.loads)])
    mean = sum(load.utilisation for load in line.loads) / len(line.loads)
    moved = format_bytes(sum(load.bytes for load in line.loads), digits=3)
    return "<br>".join([
        f"<b>{label(line.kind)}</b>, {line.links} links of {bandwidth}",
        f"together {mean:.0%} used, {moved}; the fullest:",
        _facts(max(line.loads, key=lambda load: load.utilisation)),
    ])  # fmt: skip


def _facts(load: LinkLoad) -> str:
    facts = [f"{load.utilisation:.0%} used", format_bytes(load.bytes, digits=3)]
    if load.busy:
        facts.append(f"busy {format_seconds(load.busy, digits=3)}")
    if load.rate:
        facts.append(f"{format_bandwidth(load.rate, digits=3)} while busy")
    return f"{label(load.name)}<br>  {', '.join(facts)}"


__all__ = ["Line", "lines_of", "words_of"]
