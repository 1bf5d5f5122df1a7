"""NCCL's graph XML (``NCCL_GRAPH_DUMP_FILE``): the channels that NCCL chose, to compare.

It describes no machine, so it is only read beside a file that does.
"""

from __future__ import annotations

from dataclasses import dataclass

from charm_sched.importers.facts import Host
from charm_sched.importers.grouping import find_places
from charm_sched.importers.reading import MAX_GPUS, Source, quoted
from charm_sched.importers.xml_tree import number, parse, root_of

PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "NVLS", 6: "CollNet"}


@dataclass(frozen=True, slots=True)
class Graph:
    """Channels by pattern: GPU numbers in order."""

    source: str
    channels: tuple[tuple[int, tuple[int, ...]], ...]


def recognise(text: str) -> bool:
    """Say whether the root is <graphs>."""
    return root_of(text) == "graphs"


def read(source: Source) -> Graph:
    """Read an NCCL graph file.

    Raises:
        TopologyError: not well-formed, or another root.
    """
    root = parse(source)
    if root.tag != "graphs":
        source.fail("the root element <graphs>", f"<{root.tag}>", line=root.line)
    found = []
    for graph in root.all("graph"):
        pattern = number(source, graph, "pattern", most=99) or 0
        for channel in graph.all("channel"):
            devs = [number(source, gpu, "dev", most=MAX_GPUS) for gpu in channel.all("gpu")]
            if None in devs:
                source.fail("a dev on every <gpu>", quoted("<gpu>"), line=channel.line)
            found.append((pattern, tuple(dev for dev in devs if dev is not None)))
    return Graph(f"{source.where} (NCCL graph XML)", tuple(found))


def compared(graph: Graph, host: Host) -> list[str]:
    """Return what the rings of a graph cross on a machine, one line per different ring."""
    place = {
        name: processor.name
        for processor in find_places(host).processors
        for name in processor.everything()
    }
    lines: dict[str, int] = {}
    for pattern, order in graph.channels:
        names = [f"gpu{dev}" for dev in order]
        strange = [name for name in names if name not in place]
        if strange:
            return [f"{graph.source}: names {strange[0]}, which is not in the machine"]
        if PATTERNS.get(pattern) != "ring" or len(names) < 2:
            continue
        pairs = zip(names, [*names[1:], names[0]], strict=True)
        crossings = sum(place[a] != place[b] for a, b in pairs)
        used = len({place[name] for name in names})
        least = used if used > 1 else 0
        text = (f"{graph.source}: the ring {' '.join(map(str, order))} crosses between processors "
                f"{crossings} times, {least} are needed")  # fmt: skip
        lines[text] = lines.get(text, 0) + 1
    return [text + (f" ({n} such channels)" if n > 1 else "") for text, n in lines.items()]
