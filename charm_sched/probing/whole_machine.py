"""What a probe of a whole machine moves: pairs alone, and flows that share links on purpose.

`charm_sched.probing.probe` asks as much as a prediction needs. Here a topology file is put to the
test, so everything it states about links is asked for: what one flow gets, what several on one link
get together, what both directions get at once, and whether alike devices are alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from charm_sched.probing.probe import Pair, all_at_once

if TYPE_CHECKING:
    from charm_sched.topology.graph import Link, Topology

MATRIX_RANKS = 16  # up to here all pairs are measured
KINDS_RANKS = 64  # up to here all pairs are looked at for kinds of route
FAN = 4  # flows of one device, where a link carries those of one device alone
LEAST_BYTES, MOST_BYTES = 1 << 20, 1 << 26  # of the largest transfer, by default
LONG_ENOUGH = 0.05  # seconds of a largest transfer, by default
SMALL_BYTES = 1 << 12  # of the smallest transfer

LinkClass = tuple[str, float, float, float | None, bool]
"""Kind, bandwidth, latency, flow cap, half duplex: links alike in these are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Transfers that start at once, repeated with several sizes.

    Attributes:
        name: What they are, for people.
        role: "pair" (an entry of the matrix: the smallest and the largest size), "alone" (one pair
            at all sizes), "exchange" (two ranks, both ways), "tier" (all ranks), "one way" (flows
            over one link), "both ways"; the last four at the largest size.
        pairs: Who sends to whom; each pair once.
        sizes: Bytes of each transfer, from the smallest to the largest.
    """

    name: str
    role: str
    pairs: tuple[Pair, ...]
    sizes: tuple[int, ...]

    def to_document(self) -> dict[str, Any]:
        """Return this as JSON values."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Traffic:
        """Return what `to_document` wrote."""
        return cls(
            name=document["name"],
            role=document["role"],
            pairs=tuple((int(a), int(b)) for a, b in document["pairs"]),
            sizes=tuple(map(int, document["sizes"])),
        )


def link_class(link: Link) -> LinkClass:
    """Return what a link has in common with links like it."""
    return (link.kind, link.bandwidth, link.latency, link.flow_cap, link.shared)


Shape = tuple[tuple[LinkClass, int], ...]


def route_shape(topology: Topology, src: str, dst: str) -> Shape:
    """Return how many links of each class a route crosses: routes alike in this are alike."""
    counts = Counter(link_class(topology.links[i]) for i in topology.route(src, dst).links)
    return tuple(sorted(counts.items(), key=repr))


def choose_traffic(
    topology: Topology, devices: Sequence[str], largest: int
) -> tuple[tuple[Traffic, ...], tuple[str, ...]]:
    """Choose what to measure.

    Args:
        topology: The machine as its file states it.
        devices: Device of each rank; at least two.
        largest: Bytes of the largest transfer.

    Returns:
        The traffic, and sentences about what was left out.
    """
    ladder = tuple(sorted({min(SMALL_BYTES, largest), largest // 64, largest // 16, largest // 4,
                           largest} - {0}))  # fmt: skip
    ends, large = (ladder[0], ladder[-1]), ladder[-1:]
    chosen, notes = _ranks(len(devices))
    pairs = [(a, b) for a in chosen for b in chosen if a != b]
    found = [
        Traffic(name=_arrow(devices, pair), role="pair", pairs=(pair,), sizes=ends)
        for pair in _matrix(len(devices))
    ]
    shapes: dict[Shape, Pair] = {}
    for a, b in pairs:
        shapes.setdefault(route_shape(topology, devices[a], devices[b]), (a, b))
    for a, b in shapes.values():
        name = f"{_arrow(devices, (a, b))} alone"
        found.append(Traffic(name=name, role="alone", pairs=((a, b),), sizes=ladder))
        name = f"{devices[a]} <-> {devices[b]}, both ways at once"
        found.append(Traffic(name=name, role="exchange", pairs=((a, b), (b, a)), sizes=large))
    for name, role, flows in (
        *_shared_links(topology, devices, pairs),
        *_tiers(topology, devices, pairs),
    ):
        found.append(Traffic(name=name, role=role, pairs=tuple(flows), sizes=large))
    return tuple(_distinct(found)), notes


def shared_traffic(
    topology: Topology, devices: Sequence[str], largest: int, avoid: Collection[int]
) -> tuple[Traffic, ...]:
    """Choose flows over shared links once more, without some ranks.

    Args:
        topology: The machine as its file states it.
        devices: Device of each rank.
        largest: Bytes of each transfer.
        avoid: Ranks whose own links would limit the flows.
    """
    ranks = [rank for rank in _ranks(len(devices))[0] if rank not in avoid]
    pairs = [(a, b) for a in ranks for b in ranks if a != b]
    return tuple(
        Traffic(name=name, role=role, pairs=tuple(flows), sizes=(largest,))
        for name, role, flows in _shared_links(topology, devices, pairs)
    )


def _arrow(devices: Sequence[str], pair: Pair) -> str:
    return f"{devices[pair[0]]} -> {devices[pair[1]]}"


def _ranks(count: int) -> tuple[list[int], tuple[str, ...]]:
    """Give the ranks among which kinds of route are looked for, and what is left out."""
    notes = []
    if count > MATRIX_RANKS:
        notes.append(
            f"{count} ranks: one pair per kind of route, and of the matrix three entries per "
            f"rank (to its next rank, and half way round); up to {MATRIX_RANKS} ranks it is whole"
        )
    if count <= KINDS_RANKS:
        return list(range(count)), tuple(notes)
    half = KINDS_RANKS // 2
    notes.append(
        f"kinds of route, tiers and shared links were looked for among the first {half} and the "
        f"last {half} ranks"
    )
    return [*range(half), *range(count - half, count)], tuple(notes)


def _matrix(count: int) -> list[Pair]:
    if count <= MATRIX_RANKS:
        return [(a, b) for a in range(count) for b in range(count) if a != b]
    steps = (1, count // 2, count // 2 - 1)  # two far ones, or far ends are not told apart
    return [(rank, (rank + step) % count) for step in steps for rank in range(count)]


def _tiers(
    topology: Topology, devices: Sequence[str], pairs: Sequence[Pair]
) -> Iterator[tuple[str, str, list[Pair]]]:
    """Yield what all ranks of each tier send at once."""
    of_tier: dict[str, list[Pair]] = {tier: [] for tier in topology.tiers}
    for a, b in pairs:
        of_tier[topology.tier_of(devices[a], devices[b])].append((a, b))
    for tier, inside in of_tier.items():
        together = all_at_once(inside)
        if len(together) > 1:
            yield f"all ranks over {tier} at once", "tier", together


def _shared_links(
    topology: Topology, devices: Sequence[str], pairs: Sequence[Pair]
) -> Iterator[tuple[str, str, list[Pair]]]:
    """Yield, per class of link, as many flows over one link as there can be: one way, both ways.

    Flows have senders and receivers of their own where the link allows; else they fan out.
    """
    crossing: dict[int, list[Pair]] = {}
    for a, b in pairs:
        for index in topology.route(devices[a], devices[b]).links:
            crossing.setdefault(index, []).append((a, b))
    best: dict[LinkClass, int] = {}
    for index, flows in crossing.items():
        key = link_class(topology.links[index])
        if key not in best or _width(flows) > _width(crossing[best[key]]):
            best[key] = index
    for index in best.values():
        together = _separate(crossing[index])
        if len(together) < 2:
            together = crossing[index][:FAN]
        if len(together) < 2:
            continue
        link = topology.links[index]
        count = f"{len(together)} flows"
        yield f"{count} over {link.src} -> {link.dst}", "one way", together
        back = [(b, a) for a, b in together]
        yield f"{count} each way over {link.src} <-> {link.dst}", "both ways", [*together, *back]


def _width(flows: Sequence[Pair]) -> tuple[int, int]:
    """Rank links by how many separate flows, then how many at all, may cross them."""
    return min(len({a for a, _ in flows}), len({b for _, b in flows})), len(flows)


def _separate(flows: Sequence[Pair]) -> list[Pair]:
    """Choose as many flows as possible of which each has its own sender and its own receiver."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    senders, receivers = (list(dict.fromkeys(side)) for side in zip(*flows, strict=True))
    rows = [senders.index(a) for a, _ in flows]
    columns = [receivers.index(b) for _, b in flows]
    table = csr_array(
        (np.ones(len(flows), np.int8), (rows, columns)), shape=(len(senders), len(receivers))
    )
    matched = maximum_bipartite_matching(table, perm_type="column")
    return [(a, receivers[j]) for a, j in zip(senders, matched.tolist(), strict=True) if j >= 0]


def _distinct(found: Sequence[Traffic]) -> Iterator[Traffic]:
    """Leave out concurrent traffic that was chosen before under another name."""
    seen: set[frozenset[Pair]] = set()
    for traffic in found:
        key = frozenset(traffic.pairs)
        if len(key) > 1 and key in seen:
            continue
        seen.add(key)
        yield traffic


def default_largest(topology: Topology, devices: Sequence[str], scale: float = 1.0) -> int:
    """Return the bytes of a largest transfer that takes long enough on the slowest route.

    Args:
        topology: The machine as its file states it.
        devices: Device of each rank.
        scale: What its rates are multiplied by.
    """
    ranks, _ = _ranks(len(devices))
    routes = [topology.route(devices[a], devices[b]) for a in ranks for b in ranks if a != b]
    slowest = min(
        min(route.flow_cap, *(topology.capacities[i].bandwidth for i in route.capacities))
        for route in routes
    )
    wanted = int(slowest * scale * LONG_ENOUGH)
    power = 1 << max(wanted, 1).bit_length()
    return min(MOST_BYTES, max(LEAST_BYTES, power))
