"""``rocm-smi --showtopo`` and its parts: weights, hops, link types, NUMA nodes.

A weight is 15 per XGMI hop; over PCIe it is 40 inside a NUMA node and more across (20 per segment
and what the processors' link adds). "Hops" counts no hops: it is 1 for every XGMI pair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from charm_sched.importers.facts import Gpu, Host, PeerLink
from charm_sched.importers.reading import MAX_GPUS, Source, quoted

HOP, NEAR_PCIE = 15, 40
_SECTIONS = {
    "access": r"^(?:Access|P2P) .*two GPUs$|^Link accessibility",
    "weight": r"^Weight between two GPUs$",
    "hops": r"^Hops between two GPUs$",
    "link_type": r"^Link Type between two GPUs$",
    "numa_bw": r"^Numa Nodes? Bandwidth|^.*Bandwidth.*between",
    "numa": r"^Numa Nodes$",
}
_NUMA = re.compile(
    r"\s*GPU ?\[? ?(\d{1,4})\]?\s*:\s*\(Topology\) Numa (Node|Affinity): (-?\d{1,6})\s*"
)
_TITLE = re.compile(r"=+ +(.*?) +=+")

Matrix = list[list[str]]


def recognise(text: str) -> bool:
    """Say whether this holds a section of ``rocm-smi --showtopo``."""
    return "between two GPUs" in text or "(Topology) Numa" in text


def read_sections(source: Source) -> tuple[dict[str, Matrix], dict[str, dict[int, int]]]:
    """Return the matrices by section, and NUMA "node" and "affinity" per GPU.

    Raises:
        TopologyError: a row that does not fit its header.
    """
    matrices: dict[str, Matrix] = {}
    numa: dict[str, dict[int, int]] = {"node": {}, "affinity": {}}
    section, columns = "", 0
    for number, line in enumerate(source.lines(), start=1):
        title, fact = _TITLE.fullmatch(line.strip()), _NUMA.fullmatch(line)
        words = line.split()
        if title:
            section = next((k for k, v in _SECTIONS.items() if re.search(v, title[1])), "")
            columns = 0
        elif fact:
            numa[fact[2].lower()][int(fact[1])] = int(fact[3])
        elif section and words and re.fullmatch(r"GPU\d+", words[0]):
            if not columns:
                _check_names(source, words, number)
                columns = len(words)
                if section in matrices:
                    source.fail("one machine", f"a second section {title}", line=number)
                matrices[section] = []
                continue
            if words[0] != f"GPU{len(matrices[section])}" or len(words) != columns + 1:
                source.fail(f"the row GPU{len(matrices[section])} with {columns} entries",
                            quoted(line), "is the text cut or changed?", line=number)  # fmt: skip
            matrices[section].append(words[1:])
    for name, rows in matrices.items():
        if rows and len(rows) != len(rows[0]):
            source.fail(f"{len(rows[0])} rows of {name}", str(len(rows)), "the text is cut")
    return {name: rows for name, rows in matrices.items() if rows}, numa


def _check_names(source: Source, words: list[str], line: int) -> None:
    if words != [f"GPU{i}" for i in range(len(words))] or len(words) > MAX_GPUS:
        source.fail(f"a header GPU0, GPU1 ... of at most {MAX_GPUS}", quoted(" ".join(words)),
                    line=line)  # fmt: skip


def read(source: Source) -> Host:
    """Read ``rocm-smi --showtopo``.

    Raises:
        TopologyError: incomplete matrices, or an unknown link type.
    """
    matrices, numa = read_sections(source)
    sizes = {len(rows) for rows in matrices.values()}
    if len(sizes) > 1:
        source.fail("matrices of one size", " and ".join(map(str, sorted(sizes))))
    nodes = {**numa["affinity"], **numa["node"]}
    count = sizes.pop() if sizes else max(nodes, default=-1) + 1
    if count < 1 or count > MAX_GPUS:
        source.fail(f"1 to {MAX_GPUS} GPUs", str(count))
    types, weights = matrices.get("link_type"), matrices.get("weight")
    labels = _labels(source, types, weights, count)
    lost = [f"GPU{i}" for i in range(count) if nodes and i not in nodes]
    notes = [f"{source.where}: no NUMA node of {', '.join(lost)}; the text is cut"] if lost else []
    return Host(
        sources=(f"{source.where} (rocm-smi --showtopo)",),
        gpus=tuple(
            Gpu(
                name=f"gpu{i}",
                numa=(nodes[i],) if nodes.get(i, -1) >= 0 else None,
                peers=tuple(_peers(i, types, weights)),
            )
            for i in range(count)
        ),
        labels=labels,
        access=_access(matrices.get("access")),
        peers_known=types is not None,
        links_known=types is not None or weights is not None,
        notes=tuple(notes),
    )


def _labels(
    source: Source, types: Matrix | None, weights: Matrix | None, count: int
) -> Mapping[tuple[str, str], str]:
    labels: dict[tuple[str, str], str] = {}
    for i in range(count):
        for j in range(count):
            if i == j or (types is None and weights is None):
                continue
            kind = types[i][j] if types is not None else "PCIE"
            weight = weights[i][j] if weights is not None else ""
            if kind not in ("XGMI", "PCIE"):
                source.fail("link types XGMI or PCIE", f"{quoted(kind)} from GPU{i} to GPU{j}")
            if weight and not re.fullmatch(r"\d{1,6}", weight):
                source.fail("whole weights", f"{quoted(weight)} from GPU{i} to GPU{j}")
            near = weight and int(weight) <= NEAR_PCIE
            labels[f"gpu{i}", f"gpu{j}"] = "XGMI" if kind == "XGMI" else "NODE" if near else "SYS"
            if types is not None and types[j][i] != kind:
                source.fail(f"one link type between GPU{i} and GPU{j}", f"{kind} and {types[j][i]}")
    return labels


def _peers(i: int, types: Matrix | None, weights: Matrix | None) -> list[PeerLink]:
    """Return the direct XGMI links: those of one hop where weights are given."""
    if types is None:
        return []
    return [
        PeerLink(kind="xgmi", target=f"gpu{j}", count=None)
        for j, kind in enumerate(types[i])
        if kind == "XGMI" and (weights is None or int(weights[i][j]) <= HOP)
    ]


def _access(rows: Matrix | None) -> Mapping[tuple[str, str], str]:
    return {
        (f"gpu{i}", f"gpu{j}"): "OK" if word == "True" else "NS"
        for i, row in enumerate(rows or [])
        for j, word in enumerate(row)
        if i != j and word in ("True", "False")
    }
