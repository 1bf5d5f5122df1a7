"""``ibnetdiscover``: the switches and adapters of an InfiniBand fabric, port by port."""

from __future__ import annotations

import re
from collections import Counter

from charm_sched.importers.facts import Edge, Network
from charm_sched.importers.reading import MAX_PARTS, Source, has_line, quoted

# Bits per second that one lane carries, after line coding.
LANE = {"SDR": 2e9, "DDR": 4e9, "QDR": 8e9, "FDR10": 10e9, "FDR": 13.64e9, "EDR": 25e9,
        "HDR": 50e9, "NDR": 100e9, "XDR": 200e9}  # fmt: skip
_NODE = re.compile(r'(Switch|Ca|Rt)\s+\d{1,5}\s+"([^"]{1,64})"\s*(?:#\s*"([^"]*)")?.*')
_PORT = re.compile(r'\[(\d{1,4})\](?:\[ext \d+\])?(?:\([0-9a-fA-F]+\))?\s+"([^"]{1,64})"'
                   r"\[(\d{1,4})\](?:\[ext \d+\])?(?:\([0-9a-fA-F]+\))?(.*)")  # fmt: skip
_SPEED = re.compile(r"(\d{1,2})x([A-Z]+\d*)\s*$")


def recognise(text: str) -> bool:
    """Say whether there are switches and adapters with their GUIDs."""
    return has_line(text, r'(?:Switch|Ca)\s+\d+\s+"[SH]-[0-9a-fA-F]+"')


def read(source: Source) -> Network:
    """Read the output of ibnetdiscover.

    Raises:
        TopologyError: a port without a node, a node that is not described, an unknown speed, or no
            host.
    """
    kinds: dict[str, str] = {}
    about: dict[str, str] = {}
    links: dict[tuple[tuple[str, str], tuple[str, str]], float] = {}
    here = ""
    for number, line in enumerate(source.lines(), start=1):
        node, port = _NODE.fullmatch(line.strip()), _PORT.fullmatch(line.strip())
        if node:
            here = node[2]
            kinds[here], about[here] = node[1], node[3] or ""
        elif port:
            if not here:
                source.fail("a Switch or Ca line before its ports", quoted(line), line=number)
            ends = sorted([(here, port[1]), (port[2], port[3])])
            speed = _speed(source, port[4], number)
            links.setdefault((ends[0], ends[1]), speed)
        if len(links) > MAX_PARTS:
            source.fail(f"at most {MAX_PARTS} links", "more", line=number)
    for (a, _), (b, _) in links:
        for guid in (a, b):
            if guid not in kinds:
                source.fail("a description of each node", f"none of {quoted(guid)}", "is it cut?")
    return _network(source, kinds, about, links)


def _speed(source: Source, text: str, line: int) -> float:
    match = _SPEED.search(text)
    if match is None or match[2] not in LANE:
        source.fail("width and speed such as 4xHDR at the end", quoted(text), line=line)
    return int(match[1]) * LANE[match[2]] / 8


def _network(
    source: Source,
    kinds: dict[str, str],
    about: dict[str, str],
    links: dict[tuple[tuple[str, str], tuple[str, str]], float],
) -> Network:
    """Join the adapters of a host by the first word of their description."""
    hosts = {
        guid: (about[guid].split() or [guid])[0] for guid, kind in kinds.items() if kind == "Ca"
    }
    agents = {
        guid for guid in hosts if "Aggregation Node" in about[guid] or "AggNode" in about[guid]
    }
    names = {guid: hosts.get(guid, guid) for guid in kinds}
    ports = {guid: (about[guid].split()[1:2] or [""])[0] for guid in hosts}
    count: Counter[tuple[str, str, float, str | None]] = Counter()
    for ((a, _), (b, _)), speed in links.items():
        if a in agents or b in agents:
            continue
        if a in hosts and b in hosts:
            source.fail("hosts joined by switches", f"{names[a]} and {names[b]} back to back")
        low, high = (b, a) if b in hosts else (a, b)
        count[names[low], names[high], speed, ports.get(low)] += 1
    found = tuple(dict.fromkeys(names[guid] for guid in hosts if guid not in agents))
    if not found:
        source.fail("hosts (Ca)", "none")
    edges: list[Edge] = []
    for (a, b, speed, port), times in count.items():
        if port is not None:
            edges += [Edge(a=a, b=b, kind="network", bandwidth=speed, port=port)] * times
        else:
            edges.append(Edge(a=a, b=b, kind="trunk", bandwidth=speed, count=times))
    return Network(
        sources=(f"{source.where} (ibnetdiscover)",),
        hosts=found,
        switches={guid: "switch" for guid, kind in kinds.items() if kind != "Ca"},
        edges=tuple(edges),
        notes=tuple(f"{source.where}: {about[g]} is an aggregation node; left out" for g in agents),
    )
