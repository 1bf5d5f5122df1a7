"""The edge lists of SimAI and of ns-3 (HPCC): numbered nodes, and links in bits per second.

SimAI's first line is "nodes, GPUs per server, NVSwitches, switches, links, GPU type"; that of ns-3
"nodes, switches, links". Then come the numbers of the switches, then one link per line: source,
target, rate, delay, error rate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from charm_sched.importers.facts import Edge, Network
from charm_sched.importers.reading import MAX_PARTS, Source, has_line, quoted

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([KMGT]?)bps", re.IGNORECASE)
_DELAY = re.compile(r"(\d{0,9}\.?\d{1,15}(?:e-\d{1,2})?)(s|ms|us|ns)")
_LINK = r"\s*\d+\s+\d+\s+[\d.]+[KMGTkmgt]?bps\s+[\d.e-]+(?:s|ms|us|ns)\b"
_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"s": 0, "ms": -3, "us": -6, "ns": -9}


def recognise(text: str) -> bool:
    """Say whether there are lines of two numbers, a rate in bits and a delay."""
    return has_line(text, _LINK)


@dataclass(slots=True)
class _Words:
    """The words of a text one after another, with their lines."""

    source: Source
    words: Iterator[tuple[str, int]]
    line: int = 1

    @classmethod
    def of(cls, source: Source) -> _Words:
        """Return the words of a text."""
        lines = enumerate(source.lines(), start=1)
        return cls(source, ((word, number) for number, line in lines for word in line.split()))

    def take(self, what: str) -> tuple[str, int]:
        word, line = next(self.words, ("", 0))
        if not word:
            self.source.fail(what, "the end of the text", "is it cut?", line=self.line)
        self.line = line
        return word, line

    def number(self, what: str, most: int) -> int:
        word, line = self.take(what)
        if not (word.isascii() and word.isdigit()) or len(word) > 9 or int(word) > most:
            self.source.fail(f"{what}: a whole number up to {most}", quoted(word), line=line)
        return int(word)


def read(source: Source) -> Network:
    """Read an edge list.

    Raises:
        TopologyError: a header, a switch or a link that is not as it should be.
    """
    header = next(line for line in source.lines() if line.strip()).split()
    words = _Words.of(source)
    nodes = words.number("the number of nodes", MAX_PARTS)
    per_server = nvswitches = 0
    if len(header) == 3:
        switches = words.number("the number of switches", nodes)
    elif len(header) in (6, 7):
        per_server = words.number("the GPUs per server", nodes)
        nvswitches = words.number("the number of NVSwitches", nodes)
        switches = words.number("the number of switches", nodes)
    else:
        source.fail("a first line of 3 numbers (ns-3) or 6 entries (SimAI)", str(len(header)),
                    line=words.line)  # fmt: skip
    links = words.number("the number of links", MAX_PARTS)
    for _ in range(max(0, len(header) - 5)):
        words.take("the GPU type")
    kinds: dict[int, str] = {}
    for i in range(nvswitches + switches):
        node = words.number("the number of a switch", nodes - 1)
        if node in kinds:
            source.fail("each switch once", f"a second {node}", line=words.line)
        kinds[node] = "nvswitch" if i < nvswitches else "switch"
    edges = [_link(words, nodes, kinds, per_server) for _ in range(links)]
    word, line = next(words.words, ("", 0))
    if word:
        source.fail(f"{links} links, as the first line says", f"more: {quoted(word)}", line=line)
    devices = tuple(f"gpu{i}" for i in range(nodes) if i not in kinds)
    if not devices:
        source.fail("a node that is no switch", "none")
    return Network(
        sources=(f"{source.where} ({'SimAI' if per_server else 'ns-3'} edge list)",),
        devices=devices,
        switches={f"{kind}{node}": kind for node, kind in kinds.items()},
        edges=tuple(edges),
        notes=(f"{source.where}: rates are in bits per second",),
    )


def _link(words: _Words, nodes: int, kinds: dict[int, str], per_server: int) -> Edge:
    a = words.number("the first end of a link", nodes - 1)
    b = words.number("the second end of a link", nodes - 1)
    rate, line = words.take("a rate such as 400Gbps")
    match = _RATE.fullmatch(rate)
    if match is None or not float(match[1]) > 0:
        words.source.fail("a rate such as 400Gbps", quoted(rate), line=line)
    delay, line = words.take("a delay such as 0.0005ms")
    wait = _DELAY.fullmatch(delay)
    if wait is None:
        words.source.fail("a delay such as 0.0005ms", quoted(delay), line=line)
    error, line = words.take("an error rate")
    if not re.fullmatch(r"[01](\.\d{1,12})?|\d(\.\d{1,12})?e-\d{1,3}", error):
        words.source.fail("an error rate", quoted(error), line=line)
    if a == b:
        words.source.fail("two different ends", f"{a} twice", line=line)
    ends = (a, b) if b in kinds else (b, a)
    above = kinds.get(ends[1], "")
    kind = "nvlink" if above == "nvswitch" else "network" if ends[0] not in kinds else "trunk"
    return Edge(
        a=_name(ends[0], kinds),
        b=_name(ends[1], kinds),
        kind=kind,
        bandwidth=float(match[1]) * _SCALE[match[2].upper()] / 8,
        latency=float(Decimal(wait[1]).scaleb(_SECONDS[wait[2]])),
    )


def _name(node: int, kinds: dict[int, str]) -> str:
    return f"{kinds.get(node, 'gpu')}{node}"
