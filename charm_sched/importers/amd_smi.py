"""``amd-smi topology``: tables over PCI addresses, read like those of rocm-smi."""

from __future__ import annotations

import re
from collections.abc import Mapping

from charm_sched.importers.facts import Gpu, Host, PeerLink
from charm_sched.importers.pcie import bus_address
from charm_sched.importers.reading import MAX_GPUS, Source, has_line, quoted
from charm_sched.importers.rocm_smi import HOP, NEAR_PCIE

_TITLE = re.compile(r"\s*([A-Z][A-Z0-9 ]{3,60}) TABLE:\s*")
_RATE = re.compile(r"(\d{1,7})-(\d{1,7})")
_ADDRESS = r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]"
USED = ("ACCESS", "WEIGHT", "LINK TYPE", "NUMA BW")

Table = Mapping[tuple[int, int], str]


def recognise(text: str) -> bool:
    """Say whether there is a table of link types or weights over PCI addresses."""
    title = has_line(text, r"\s*(?:LINK TYPE|WEIGHT|HOPS|ACCESS) TABLE:")
    return title and has_line(text, rf"\s*{_ADDRESS}\s")


def read(source: Source) -> Host:
    """Read ``amd-smi topology``.

    Raises:
        TopologyError: no table of link types, or a row that does not fit its header.
    """
    addresses, tables = _tables(source)
    types = tables.get("LINK TYPE")
    if types is None:
        source.fail("a LINK TYPE TABLE", "none", "print amd-smi topology without options")
    weights, rates = tables.get("WEIGHT", {}), tables.get("NUMA BW", {})
    names = [f"gpu{i}" for i in range(len(addresses))]
    labels: dict[tuple[str, str], str] = {}
    for (i, j), kind in types.items():
        if i == j:
            continue
        if kind not in ("XGMI", "PCIE") or types[j, i] != kind:
            ends = f"between {addresses[i]} and {addresses[j]}"
            source.fail("XGMI or PCIE, the same both ways", f"{quoted(kind)} {ends}")
        weight = weights.get((i, j), "")
        near = weight.isdigit() and int(weight) <= NEAR_PCIE
        labels[names[i], names[j]] = "XGMI" if kind == "XGMI" else "NODE" if near else "SYS"
    access = tables.get("ACCESS", {})
    return Host(
        sources=(f"{source.where} (amd-smi topology)",),
        gpus=tuple(
            Gpu(
                name=names[i],
                bus=bus_address(address),
                peers=tuple(_peers(i, names, types, weights, rates)),
            )
            for i, address in enumerate(addresses)
        ),
        labels=labels,
        access={
            (names[i], names[j]): "OK" if word == "ENABLED" else "NS"
            for (i, j), word in access.items()
            if i != j
        },
    )


def _peers(i: int, names: list[str], types: Table, weights: Table, rates: Table) -> list[PeerLink]:
    """Return the direct XGMI links; the tables give MB/s where a link is direct."""
    found = []
    for j, name in enumerate(names):
        weight = weights.get((i, j), str(HOP))
        if i == j or types[i, j] != "XGMI" or not weight.isdigit() or int(weight) > HOP:
            continue
        rate = _RATE.fullmatch(rates.get((i, j), ""))
        bandwidth = float(rate[2]) * 1e6 if rate and int(rate[2]) else None
        found.append(PeerLink(kind="xgmi", target=name, count=None, bandwidth=bandwidth))
    return found


def _tables(source: Source) -> tuple[list[str], dict[str, dict[tuple[int, int], str]]]:
    addresses: list[str] = []
    tables: dict[str, dict[tuple[int, int], str]] = {}
    section, rows, columns = "", 0, 0
    for number, line in enumerate(source.lines(), start=1):
        title = _TITLE.fullmatch(line)
        words = re.sub(r"  +(?=N/A)", " ", line).split()
        if title:
            _check_whole(source, section, rows, columns)
            section, rows, columns = title[1], 0, 0
        elif section in USED and words and re.fullmatch(_ADDRESS, words[0]):
            if not columns:
                columns = _header(source, addresses, words, number)
                tables[section] = {}
                continue
            if rows >= columns or words[0] != addresses[rows] or len(words) != columns + 1:
                source.fail(f"a row of {columns} entries for {addresses[min(rows, columns - 1)]}",
                            quoted(line), "is the text cut or changed?", line=number)  # fmt: skip
            tables[section] |= {(rows, j): word for j, word in enumerate(words[1:])}
            rows += 1
    _check_whole(source, section, rows, columns)
    return addresses, tables


def _header(source: Source, addresses: list[str], words: list[str], line: int) -> int:
    if not addresses:
        if len(words) > MAX_GPUS or len(set(words)) < len(words):
            source.fail(f"up to {MAX_GPUS} different addresses", quoted(" ".join(words)), line=line)
        addresses += words
    if words != addresses:
        source.fail("the same addresses in every table", quoted(" ".join(words)), line=line)
    return len(words)


def _check_whole(source: Source, section: str, rows: int, columns: int) -> None:
    if section in USED and rows != columns:
        source.fail(f"{columns} rows of {section}", str(rows), "the text is cut")
