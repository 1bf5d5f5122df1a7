"""The system that NCCL and RCCL print with ``NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH``.

What belongs to what is told by indentation alone; a log that lost it is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from charm_sched.importers.facts import SWITCH, Cpu, Gpu, Host, Nic, PeerLink
from charm_sched.importers.reading import MAX_GPUS, Source, has_line, quoted

_LINE = re.compile(r"(.{0,200}?)NCCL INFO (.*)")
_CPU = re.compile(r"CPU/([0-9A-Fa-f-]{1,20})(?: \([^)]*\))?")
_LINK = re.compile(
    r"( *)\+ ([A-Z0-9]{2,6})\[(\d{1,6}(?:\.\d+)?)\] - "
    r"([A-Z]{3,4})/([0-9A-Fa-f-]{1,24})(?: \((.*)\))?"
)
_VIRTUAL = 1000.0  # GB/s; more is NCCL's figure for what costs nothing
GIGA = 1e9


def recognise(text: str) -> bool:
    """Say whether lines of NCCL's log print a system."""
    return has_line(text, r".{0,200}?NCCL INFO (?: *\+ [A-Z]+\[|=== System|CPU/|GPU/)")


def read(source: Source) -> Host:
    """Read the first system that a log prints.

    Raises:
        TopologyError: no system in it, its beginning or its indentation is lost, or no GPU.
    """
    lines, notes, whole = _block(source)
    reader = _Reader(source, notes=notes)
    for number, text in lines:
        reader.take(number, text)
    host = reader.host()
    if whole:
        return host
    doubt = f"{source.where}: the log ends inside the system; GPUs may be missing"
    return replace(host, doubts=(*host.doubts, doubt))


def _block(source: Source) -> tuple[list[tuple[int, str]], list[str], bool]:
    """Return the lines of the first system, by one process, and whether its end is there."""
    begun, process = False, ""
    found: list[tuple[int, str]] = []
    processes: set[str] = set()
    whole = False
    for number, line in enumerate(source.lines(), start=1):
        match = _LINE.match(line)
        if match is None:
            continue
        if match[2].startswith("=== System"):
            processes.add(match[1])
            if not begun:
                begun, process = True, match[1]
            continue
        if not begun or whole or match[1] != process:
            continue
        if match[2].startswith("====="):
            whole = True
        elif re.match(r" *\+ |CPU/[0-9A-Fa-f-]+(?: \(|$)", match[2]):
            found.append((number, match[2]))
    if not found:
        source.fail('the line "=== System" and what follows it', "none", "give the log from there "
                    "on, as NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=GRAPH prints it")  # fmt: skip
    notes = []
    if len(processes) > 1:
        notes = [f"{source.where}: {len(processes)} processes print a system; the first is taken"]
    return found, notes, whole


@dataclass(slots=True)
class _Reader:
    source: Source
    notes: list[str] = field(default_factory=list)
    cpus: list[str] = field(default_factory=list)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    bridges: dict[str, float | None] = field(default_factory=dict)
    gpus: dict[str, tuple[int | None, float | None]] = field(default_factory=dict)
    nics: dict[str, float | None] = field(default_factory=dict)
    nets: dict[str, tuple[str, float]] = field(default_factory=dict)
    peers: dict[str, list[tuple[str, str, str, float]]] = field(default_factory=dict)
    socket: float | None = None
    _open: list[tuple[int, str, str]] = field(default_factory=list)  # column, type, key

    def take(self, number: int, text: str) -> None:
        """Read one line of the system."""
        cpu = _CPU.match(text)
        if cpu:
            _number(self.source, cpu[1], number)
            key = self._cpu_key(cpu[1])
            self.cpus.append(key)
            self.bridges[key] = None
            self._open = [(-1, "CPU", key)]
            return
        link = _LINK.fullmatch(text.rstrip())
        if link is None:
            self.source.fail("a line such as + PCI[24.0] - GPU/2000 (0)", quoted(text), line=number)
        column, kind, rate = len(link[1]), link[2], float(link[3])
        if link[4] == "GPU":
            _number(self.source, link[5], number)
        while self._open and self._open[-1][0] >= column:
            self._open.pop()
        if not self._open:
            self.source.fail("a line CPU/... before it", quoted(text), line=number)
        self._part(number, column, kind, rate, link[4], link[5].upper(), link[6] or "")

    def _cpu_key(self, text: str) -> str:
        number = text.rpartition("-")[2].upper()
        return "numa" if number.startswith("FFFFFFFF") else f"numa{int(number, 16)}"

    def _part(
        self, number: int, column: int, kind: str, rate: float, type_: str, name: str, more: str
    ) -> None:
        _, above, owner = self._open[-1]
        width = rate * GIGA if rate < _VIRTUAL else None
        path = tuple(key for _, type_above, key in self._open if type_above in ("CPU", "PCI"))
        if kind == "SYS" and type_ == "CPU":
            self.socket = width if self.socket is None else self.socket
        elif kind == "PCI" and type_ == "PCI":
            key = name
            while key in self.bridges:
                key += "+"
            self.bridges[key] = width
            self._open.append((column, "PCI", key))
        elif kind == "PCI" and type_ == "GPU":
            if name in self.gpus or len(self.gpus) >= MAX_GPUS:
                self.source.fail(f"up to {MAX_GPUS} GPUs, each once", f"GPU/{name}", line=number)
            index = int(more) if more.isdigit() and len(more) < 5 else None
            self.gpus[name], self.paths[name] = (index, width), path
            self._open.append((column, "GPU", name))
        elif kind == "PCI" and type_ == "NIC":
            self.nics[name], self.paths[f"NIC/{name}"] = width, path
            self._open.append((column, "NIC", name))
        elif kind == "NET" and above == "NIC":
            stated = re.search(r"(\d{1,6}\.\d+)\D*$", more)
            self.nets[name] = (owner, float(stated[1]) if stated else rate)
        elif kind in ("NVL", "XGMI") and above == "GPU":
            self.peers.setdefault(owner, []).append((kind, type_, name, rate))
        elif kind in ("NVL", "XGMI", "NET"):
            self.source.fail(f"{kind} below its GPU or NIC", "it beside others", "the indentation "
                             "is lost; copy the log anew", line=number)  # fmt: skip

    def host(self) -> Host:
        """Return what was read.

        Raises:
            TopologyError: no GPU, or bridges without anything below, as lost indentation shows it.
        """
        used = {key for path in self.paths.values() for key in path}
        empty = [key for key in self.bridges if key not in used and key not in self.cpus]
        if empty and len(empty) == len([k for k in self.bridges if k not in self.cpus]):
            self.source.fail("something below the PCI lines", "none", "the indentation or the end "
                             "is lost; copy the log anew")  # fmt: skip
        if not self.gpus:
            self.source.fail("a GPU in the system", "none")
        names = self._names()
        cpus = [Cpu(numa=int(key.removeprefix("numa") or -1)) for key in dict.fromkeys(self.cpus)]
        gpus = sorted(
            (self._gpu(key, names) for key in self.gpus), key=lambda g: (len(g.name), g.name)
        )
        nics = [
            Nic(name=f"net{net.lower()}", speed=rate * GIGA, slot=self.nics[nic], card=nic)
            for net, (nic, rate) in self.nets.items()
        ]
        paths = {names[key]: path for key, path in self.paths.items() if key in names}
        paths |= {nic.name: self.paths[f"NIC/{nic.card}"] for nic in nics}
        return Host(
            sources=(f"{self.source.where} (NCCL log)",),
            gpus=tuple(gpus),
            nics=tuple(nics),
            cpus=tuple(cpus),
            paths=paths,
            bridges=self.bridges,
            socket=self.socket,
            notes=tuple(self.notes),
        )

    def _names(self) -> dict[str, str]:
        numbers = [index for index, _ in self.gpus.values()]
        if None in numbers or len(set(numbers)) < len(numbers):
            return {key: f"gpu{i}" for i, key in enumerate(self.gpus)}
        return {key: f"gpu{index}" for key, (index, _) in self.gpus.items()}

    def _gpu(self, key: str, names: dict[str, str]) -> Gpu:
        peers = []
        for kind, type_, target, rate in self.peers.get(key, ()):
            link = "nvlink" if kind == "NVL" else "xgmi"
            if type_ == "NVS":
                peers.append(PeerLink(kind=link, target=SWITCH, count=1, bandwidth=rate * GIGA))
            elif target in names:
                peers.append(
                    PeerLink(kind=link, target=names[target], count=1, bandwidth=rate * GIGA)
                )
            else:
                self.notes.append(f"{names[key]}: {kind} to GPU/{target}, which is not in the log; "
                                  "left out")  # fmt: skip
        numa = self.paths[key][0].removeprefix("numa")
        return Gpu(
            name=names[key],
            bus=_bus(key),
            numa=(int(numa),) if numa else None,
            slot=self.gpus[key][1],
            peers=tuple(peers),
        )


def _number(source: Source, text: str, line: int) -> None:
    """Refuse a name that does not end in a hexadecimal number, "0-118000" or "C1000"."""
    if not re.fullmatch(r"(?:[0-9A-Fa-f]{1,16}-)?[0-9A-Fa-f]{1,16}", text):
        source.fail("a hexadecimal number such as 0-118000", quoted(text), line=line)


def _bus(key: str) -> str:
    """Return the PCI address of NCCL's number: "0-118000" is 0001:18:00.0."""
    number = int(key.rpartition("-")[2], 16)
    bus, slot = (number >> 12) & 0xFF, (number >> 4) & 0xFF
    return f"{(number >> 20) & 0xFFFF:04x}:{bus:02x}:{slot:02x}.{number & 0xF:x}"
