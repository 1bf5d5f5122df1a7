"""ASTRA-sim's analytical network file: dimensions of rings, switches and full meshes.

Its bandwidths are in units of 2^30 bytes per second, its latencies in nanoseconds and per link; the
first dimension is the innermost. NPUs forward there, devices do not here: each gets a router.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

from charm_sched.importers.facts import Edge, Network
from charm_sched.importers.reading import MAX_PARTS, Source, has_line, read_yaml
from charm_sched.topology.reader import Cursor

GIBI = float(2**30)
SHAPES = ("Ring", "Switch", "FullyConnected")
MAX_NPUS = 16_384
SLOW, SHORT = 10 * GIBI, 10e-9  # below both, the units are doubted


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension: its shape, how many NPUs, and its links."""

    shape: str
    size: int
    bandwidth: float
    latency: float


def recognise(text: str) -> bool:
    """Say whether topology, npus_count and bandwidth are keys."""
    keys = ("topology", "npus_count", "bandwidth")
    return all(has_line(text, rf"{key}:") for key in keys)


def read(source: Source) -> Network:
    """Read an ASTRA-sim network file.

    Raises:
        TopologyError: lists of different lengths, an unknown shape, "tbd" or another non-number.
    """
    root = read_yaml(source)
    keys = root.mapping(("topology", "npus_count", "bandwidth", "latency"))
    shapes = [item.choice(SHAPES, "a shape") for item in keys["topology"].sequence("shapes")]
    sizes = [
        item.integer("a number of NPUs", most=MAX_NPUS)
        for item in keys["npus_count"].sequence("numbers of NPUs")
    ]
    rates = [_positive(item) * GIBI for item in keys["bandwidth"].sequence("GB/s per dimension")]
    delays = [_positive(item, "e-9") for item in keys["latency"].sequence("ns per dimension")]
    for key, values in (("npus_count", sizes), ("bandwidth", rates), ("latency", delays)):
        if len(values) != len(shapes):
            keys[key].fail(f"{len(shapes)} entries, one per dimension", str(len(values)))
    if not shapes:
        keys["topology"].fail("at least one dimension")
    if math.prod(sizes) > MAX_NPUS:
        keys["npus_count"].fail(f"at most {MAX_NPUS} NPUs", str(math.prod(sizes)))
    dimensions = [Dimension(*each) for each in zip(shapes, sizes, rates, delays, strict=True)]
    doubts = [
        f"dimension {i}: {d.bandwidth / GIBI:g} GB/s and {d.latency * 1e9:g} ns are both very "
        "small: another unit than GB/s (2^30 bytes) and ns?"
        for i, d in enumerate(dimensions) if d.bandwidth < SLOW and d.latency < SHORT
    ]  # fmt: skip
    return _network(source, dimensions, doubts)


def _positive(cursor: Cursor, exponent: str = "e0") -> float:
    """Return a number times a power of ten, exactly rounded."""
    text = str(cursor.node.value)
    if cursor.node.tag not in ("an integer", "a number") or not re.fullmatch(
        r"\d{1,12}(\.\d{0,12})?", text
    ):
        cursor.fail("a number above zero")
    if not float(text) > 0:
        cursor.fail("a number above zero")
    return float(text + exponent)


def _network(source: Source, dimensions: list[Dimension], doubts: list[str]) -> Network:
    """Lay out every dimension over the routers of the NPUs."""
    sizes = [d.size for d in dimensions]
    places = [tuple(reversed(at)) for at in itertools.product(*(range(n) for n in reversed(sizes)))]
    number = {at: i for i, at in enumerate(places)}
    switches = {f"router{i}": "router" for i in range(len(places))}
    edges: list[Edge] = []
    port = sum(_per_npu(d) for d in dimensions)
    edges += [
        Edge(a=f"npu{i}", b=f"router{i}", kind="npu", bandwidth=port, latency=0.0)
        for i in range(len(places))
    ]
    for axis, dimension in enumerate(dimensions):
        groups: dict[tuple[int, ...], list[int]] = {}
        for at in places:
            groups.setdefault((*at[:axis], *at[axis + 1 :]), []).append(number[at])
        for index, members in enumerate(groups.values()):
            hub = f"switch{axis}.{index}"
            if dimension.shape == "Switch":
                switches[hub] = f"switch{axis}"
            for a, b in _pairs(dimension, members, hub):
                edges.append(
                    Edge(
                        a=a, b=b, kind=f"{dimension.shape.lower()}{axis}",
                        bandwidth=dimension.bandwidth, latency=dimension.latency,
                    )
                )  # fmt: skip
            if len(edges) > MAX_PARTS:
                source.fail(f"at most {MAX_PARTS} links", "more")
    return Network(
        sources=(f"{source.where} (ASTRA-sim network)",),
        devices=tuple(f"npu{i}" for i in range(len(places))),
        switches=switches,
        edges=tuple(edges),
        notes=(f"{source.where}: GB/s is read as 2^30 bytes per second, as ASTRA-sim does",),
        doubts=tuple(doubts),
    )


def _per_npu(dimension: Dimension) -> float:
    """Return what one NPU can send in a dimension over all its links."""
    links = {"Ring": min(2, dimension.size - 1), "Switch": 1, "FullyConnected": dimension.size - 1}
    return dimension.bandwidth * max(links[dimension.shape], 1)


def _pairs(dimension: Dimension, members: list[int], hub: str) -> list[tuple[str, str]]:
    names = [f"router{i}" for i in members]
    if dimension.shape == "Switch":
        return [(name, hub) for name in names]
    if dimension.shape == "FullyConnected":
        return list(itertools.combinations(names, 2))
    around = list(itertools.pairwise(names))
    return [*around, (names[-1], names[0])] if len(names) > 2 else around
