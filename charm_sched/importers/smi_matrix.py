"""``nvidia-smi topo -m`` and ``-mp``: a matrix of classes, with affinities at the right.

Pastes come with tabs, aligned or single spaces, as Markdown, with terminal colours (removed by
`reading`), with lost tabs, wrapped and cut. A row counts only if it has exactly one class per
column; what is written on both sides of the diagonal must agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from charm_sched.importers.facts import SWITCH, Gpu, Host, Nic, PeerLink, numbers
from charm_sched.importers.reading import MAX_GPUS, RECOGNISED, Source, has_line, quoted

CLASS = r"(?:NV\d{1,3}|SYS|NODE|PHB|PXB|PIX|PSB|SOC|X)"
ACCESS = r"(?:OK|CNS|GNS|TNS|NS|DR|U|X)"
AFFINITY = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
MOST_LINKS = 18  # NVLinks of one GPU, up to Blackwell

_HEADER = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID|NUMA(?= *$)|\S+")
_PART = re.compile(r"(?:GPU\d{1,4}|NIC\d{1,4}|[a-z][\w.-]*\d[\w.-]*)", re.ASCII)
_LEGEND = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$")


@dataclass(frozen=True, slots=True)
class Row:
    """A row: one class per column, what stands right of them, and its line."""

    cells: tuple[str, ...]
    rest: Mapping[str, str]
    line: int


@dataclass(slots=True)
class Table:
    """The table as written: columns, rows by name, NIC legend, repairs."""

    columns: tuple[str, ...]
    rows: dict[str, Row] = field(default_factory=dict)
    legend: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def recognise(text: str) -> bool:
    """Say whether this holds a matrix of classes."""
    first = next(
        (line for line in text[:RECOGNISED].split("\n") if re.match(r"[\s|]*GPU0\W", line)), ""
    )
    tokens = re.split(r"[\s|]+", first.strip(" |\t"))
    rows = has_line(text, rf"[\s|]*GPU\d+[\s|]+{CLASS}(?![\w.])")
    return tokens[0] == "GPU0" and rows and "between two GPUs" not in text


def read(source: Source) -> Host:
    """Read ``nvidia-smi topo -m``.

    Raises:
        TopologyError: a row or a class that is neither complete nor exactly recoverable.
    """
    table = read_table(source, CLASS)
    _check_symmetry(source, table)
    gpus = [name for name in table.columns if name.startswith("GPU")]
    missing = [name for name in gpus if name not in table.rows]
    if missing:
        source.fail("a row for each GPU", f"none for {missing[0]}", "the text is cut; copy it anew")
    labels = {
        (_name(a), _name(b)): cell
        for a, row in table.rows.items()
        for b, cell in zip(table.columns, row.cells, strict=True)
        if a != b
    }
    labels |= {(b, a): cell for (a, b), cell in labels.items() if (b, a) not in labels}
    described = "NV#" in source.text or not has_line(source.text, r"\s*PIX\s*=")
    links = any(cell.startswith("NV") for cell in labels.values())
    peers_known = links or (described and "topo -mp" not in source.text)
    notes = [f"{source.where}: {note}" for note in table.notes]
    if not peers_known:
        notes.append(f"{source.where}: topo -mp prints PCIe alone; NVLink is not known from it")
    cut = [name for name in table.columns if name not in table.rows]
    if cut:
        notes.append(f"{source.where}: no row for {', '.join(cut)}; taken from their columns")
    return Host(
        sources=(f"{source.where} (nvidia-smi topo -m)",),
        gpus=tuple(_gpu(name, table.rows[name], labels, gpus) for name in gpus),
        nics=tuple(
            Nic(name=_name(name), device=table.legend.get(name, ""))
            for name in table.columns if name not in gpus
        ),
        labels=labels,
        peers_known=peers_known,
        notes=tuple(notes),
    )  # fmt: skip


def _name(column: str) -> str:
    return column.lower() if re.fullmatch(r"GPU\d+|NIC\d+", column) else column


def _gpu(name: str, row: Row, labels: Mapping[tuple[str, str], str], gpus: list[str]) -> Gpu:
    own = {other: labels[_name(name), _name(other)] for other in gpus if other != name}
    counts = {other: int(label[2:]) for other, label in own.items() if label.startswith("NV")}
    switched = len(counts) > 1 and sum(counts.values()) > MOST_LINKS
    if switched:
        peers = [PeerLink(kind="nvlink", target=SWITCH, count=max(counts.values()))]
    else:
        peers = [
            PeerLink(kind="nvlink", target=_name(other), count=n) for other, n in counts.items()
        ]
    memory = row.rest.get("GPU NUMA ID", "")
    return Gpu(
        name=_name(name),
        numa=numbers(row.rest.get("NUMA Affinity", "")),
        cpus=row.rest.get("CPU Affinity", ""),
        memory_node=int(memory) if re.fullmatch(r"\d{1,9}", memory) else None,
        peers=tuple(peers),
    )


def read_table(source: Source, vocabulary: str) -> Table:
    """Read header, rows and legend; cells are words of the vocabulary.

    Raises:
        TopologyError: no header, or a row that is not exactly recoverable.
    """
    lines = [line.replace("|", "\t").rstrip() for line in source.lines()]
    start, header = _find_header(source, lines, vocabulary)
    columns = tuple(name for name, _ in header if name not in (*AFFINITY, "NUMA"))
    table = Table(columns=columns)
    number = start + 1
    while number < len(lines):
        line = lines[number]
        legend = _LEGEND.match(line)
        words = line.split()
        if legend:
            table.legend[legend[1]] = legend[2]
        elif words and words[0] in columns and words[0] not in table.rows:
            wrapped = number
            while number + 1 < len(lines) and _continues(lines[number + 1], vocabulary):
                number += 1
                line = f"{line}\t{lines[number].strip()}"
            if number > wrapped:
                table.notes.append(f"line {wrapped + 1}: a wrapped row was put together")
            reader = _RowReader(source, table, vocabulary, header)
            reader.read(
                line, wrapped + 1, last=not any(each.split() for each in lines[number + 1 :])
            )
        elif words and re.fullmatch(r"(?:GPU|NIC)\d+", words[0]) and len(words) > 2:
            _stray_row(source, words[0], table, number + 1)
        number += 1
    return table


def _stray_row(source: Source, name: str, table: Table, line: int) -> None:
    if name in table.rows:
        source.fail("one row per name", f'a second row "{name}"', "give one machine", line=line)
    source.fail("rows for the columns of the header", f'a row "{name}"', line=line, column=1)


def _continues(line: str, vocabulary: str) -> bool:
    """Say whether a line goes on with the row above it: it begins with a class."""
    words = line.split()
    return bool(words) and bool(re.fullmatch(vocabulary, words[0])) and "=" not in words


def _find_header(
    source: Source, lines: list[str], vocabulary: str
) -> tuple[int, list[tuple[str, tuple[int, int]]]]:
    for number, line in enumerate(lines):
        found = [(m.group(), m.span()) for m in _HEADER.finditer(line)]
        if not found or found[0][0] != "GPU0":
            continue
        if len(found) > 1 and re.fullmatch(vocabulary, found[1][0]):
            continue  # a row
        for name, (at, _) in found:
            if name not in (*AFFINITY, "NUMA") and not _PART.fullmatch(name):
                source.fail("names of GPUs and NICs", quoted(name), line=number + 1, column=at + 1)
        names = [name for name, _ in found]
        if len(names) > MAX_GPUS:
            source.fail(f"at most {MAX_GPUS} columns", str(len(names)), line=number + 1)
        if len(set(names)) < len(names):
            source.fail("each column once", "a second one of the same name", line=number + 1)
        return number, found
    return source.fail("a header line with GPU0, GPU1 and so on", "none")


@dataclass(frozen=True, slots=True)
class _RowReader:
    source: Source
    table: Table
    vocabulary: str
    header: list[tuple[str, tuple[int, int]]]

    def read(self, line: str, number: int, *, last: bool) -> None:
        """Read one row into the table; a cut NIC row at the very end is left out."""
        name = line.split()[0]
        wanted = len(self.table.columns)
        matches = list(re.finditer(r"\S+", line))[1:]
        cells: list[str] = []
        end = line.index(name) + len(name)
        for match in matches:
            if len(cells) >= wanted:
                break
            words = re.findall(self.vocabulary, match.group())
            if "".join(words) != match.group():
                if last and not name.startswith("GPU"):
                    self._leave_out(name, number)
                    return
                self._unknown(match.group(), number, match.start() + 1, len(cells))
            if len(words) > 1:
                self.table.notes.append(
                    f"line {number}: {match.group()} was read as {' '.join(words)}"
                )
            cells += words
            end = match.end()
        if len(cells) != wanted:
            if last and not name.startswith("GPU"):
                self._leave_out(name, number)
                return
            self.source.fail(
                f"{wanted} classes in the row {name}", str(len(cells)),
                "characters were lost; copy the text anew", line=number, column=end + 1,
            )  # fmt: skip
        self._check_diagonal(name, cells, number)
        rest = self._rest(line, end, number) if name.startswith("GPU") else {}
        self.table.rows[name] = Row(tuple(cells), rest, number)

    def _leave_out(self, name: str, number: int) -> None:
        self.table.notes.append(f"line {number}: the row {name} is cut and was left out")

    def _unknown(self, word: str, line: int, column: int, cell: int) -> None:
        self.source.fail(
            f"a class such as NV12, PIX, SYS in column {self.table.columns[cell]}", quoted(word),
            "another tool's label, or lost characters", line=line, column=column,
        )  # fmt: skip

    def _check_diagonal(self, name: str, cells: list[str], line: int) -> None:
        for column, cell in zip(self.table.columns, cells, strict=True):
            if (cell == "X") != (column == name):
                self.source.fail(
                    f"X where row and column are {name} and nowhere else",
                    f"{cell} in column {column}", "cells have moved; copy the text anew", line=line,
                )  # fmt: skip

    def _rest(self, line: str, end: int, number: int) -> dict[str, str]:
        """Tell the affinities apart: by tabs, by their number, or by the header's positions."""
        names = [name for name, _ in self.header if name in AFFINITY]
        tail = line[end:]
        words = tail.split()
        if len(words) == 2 and words[0] == "NUMA" and not names:
            return {"NUMA Affinity": words[1]}
        if "\t" in tail:
            cells = [cell.strip() for cell in tail.split("\t")[1:]]
            twice = len(cells) == len(names) + 1 and len(cells) > 2 and not cells[2]
            if "NUMA Affinity" in names and twice:
                del cells[2]  # nvidia-smi prints two tabs before the last column
            found = dict(zip(names, cells, strict=False))
        elif len(words) == len(names):
            found = dict(zip(names, words, strict=True))
        else:
            found = self._by_position(line, end)
        for name, cell in found.items():
            if cell.endswith((",", "-")):
                self.table.notes.append(f"line {number}: {name} {quoted(cell)} is cut")
                found[name] = cell.rstrip(",-")
        return {name: cell for name, cell in found.items() if cell not in ("", "N/A")}

    def _by_position(self, line: str, end: int) -> dict[str, str]:
        found: dict[str, str] = {}
        for match in re.finditer(r"\S+", line[end:]):
            at = match.start() + end
            near = min(
                (item for item in self.header if item[0] in AFFINITY),
                key=lambda item: abs(item[1][0] - at),
                default=None,
            )
            if near is not None and abs(near[1][0] - at) <= len(near[0]):
                found.setdefault(near[0], match.group())
        return found


def _check_symmetry(source: Source, table: Table) -> None:
    for a, row in table.rows.items():
        for b, cell in zip(table.columns, row.cells, strict=True):
            if b in table.rows:
                back = table.rows[b].cells[table.columns.index(a)]
                if back != cell:
                    source.fail(
                        f"the same class both ways between {a} and {b}",
                        f"{cell} here and {back} in line {table.rows[b].line}",
                        "cells have moved or were changed", line=row.line,
                    )  # fmt: skip
