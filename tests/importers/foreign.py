"""Small machines as the texts that foreign tools would print of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from charm_sched.importers.build import Given, Imported, import_texts
from charm_sched.importers.choices import Choices
from charm_sched.importers.reading import Source, decode
from charm_sched.topology.file import parse_topology
from charm_sched.topology.graph import Topology


@dataclass(frozen=True)
class Box:
    """A machine: GPUs per PCIe switch, per processor; GPUs below 0-sized "switches" are direct.

    `nv` gives NVLinks of every pair; 0 for none. `nics` per switch.
    """

    processors: Sequence[Sequence[int]]
    nv: int = 0
    nics: int = 0

    def places(self) -> list[tuple[int, int]]:
        """Give processor and switch of each GPU."""
        return [
            (p, s)
            for p, switches in enumerate(self.processors)
            for s, count in enumerate(switches)
            for _ in range(count)
        ]

    def nic_places(self) -> list[tuple[int, int]]:
        """Give processor and switch of each NIC."""
        return [
            (p, s)
            for p, switches in enumerate(self.processors)
            for s in range(len(switches))
            for _ in range(self.nics)
        ]

    def labels(self) -> list[list[str]]:
        """Give the class of every two parts, GPUs before NICs."""
        gpus = self.places()
        parts = [*gpus, *self.nic_places()]
        rows = []
        for i, a in enumerate(parts):
            row = []
            for j, b in enumerate(parts):
                near = "PIX" if a == b else "NODE" if a[0] == b[0] else "SYS"
                both = i < len(gpus) and j < len(gpus)
                row.append("X" if i == j else f"NV{self.nv}" if both and self.nv else near)
            rows.append(row)
        return rows

    def names(self) -> list[str]:
        return [f"GPU{i}" for i in range(len(self.places()))] + [
            f"NIC{i}" for i in range(len(self.nic_places()))
        ]


STYLES = ("tabs", "aligned", "single", "markdown", "colour")


def matrix(box: Box, style: str = "tabs", *, numa: bool = True, cpus: bool = True) -> str:
    """Print a machine as ``nvidia-smi topo -m`` does, or as it looks after a paste."""
    names, labels = box.names(), box.labels()
    extra = (["CPU Affinity"] if cpus else []) + (["NUMA Affinity"] if numa else [])
    rows = [["", *names, *extra]]
    for name, row in zip(names, labels, strict=True):
        cells = [name, *row]
        if name.startswith("GPU"):
            processor = box.places()[int(name[3:])][0]
            cells += [f"{16 * processor}-{16 * processor + 15}"] if cpus else []
            cells += [str(processor)] if numa else []
        rows.append(cells)
    return "\n".join(_line(cells, style, i) for i, cells in enumerate(rows)) + "\n"


def _line(cells: Sequence[str], style: str, number: int) -> str:
    match style:
        case "single":
            return " ".join(filter(None, cells))
        case "aligned":
            return "".join(f"{cell:16}" for cell in cells).rstrip()
        case "markdown":
            rule = "\n" + " | ".join("--" for _ in cells) if number == 0 else ""
            return "| " + " | ".join(cells) + " |" + rule
        case "colour" if number == 0:
            return "\t\x1b[4m" + "\t".join(cells[1:]) + "\x1b[0m"
    return "\t".join(f" {cell} " if cell == "X" else cell for cell in cells)


def nccl_xml(box: Box, *, gpu: str = "", speed: str = "16.0 GT/s PCIe") -> str:
    """Print a machine as NCCL dumps it."""
    lines = ['<system version="1">']
    index = nic = 0
    for p, switches in enumerate(box.processors):
        lines.append(f'<cpu numaid="{p}" arch="x86_64" vendor="AuthenticAMD" familyid="143">')
        for s, count in enumerate(switches):
            bridge = count + box.nics > 1
            link = f'link_speed="{speed}" link_width="16"'
            if bridge:
                lines.append(f'<pci busid="0000:{p:x}{s:x}:00.0" class="0x060400" {link}>')
            for _ in range(count):
                bus = f"00{p + 1:x}{s:x}:{index:02x}:00.0"
                peers = (
                    f'<nvlink target="fffffff:ff:ff.0" count="{box.nv}" tclass="0x068000"/>'
                    if box.nv
                    else ""
                )
                lines.append(
                    f'<pci busid="{bus}" class="0x030200" {gpu} {link}>'
                    f'<gpu dev="{index}" sm="80" rank="{index}" gdr="1">{peers}</gpu></pci>'
                )
                index += 1
            for _ in range(box.nics):
                lines.append(
                    f'<pci busid="0f{p:x}{s:x}:{nic:02x}:00.0" class="0x020700" {link}><nic>'
                    f'<net name="mlx5_{nic}" dev="{nic}" speed="200000" port="1"/></nic></pci>'
                )
                nic += 1
            if bridge:
                lines.append("</pci>")
        lines.append("</cpu>")
    return "\n".join([*lines, "</system>"]) + "\n"


def source(text: str | bytes, where: str = "text") -> Source:
    """Give a text as it comes in."""
    return decode(text if isinstance(text, bytes) else text.encode(), where)


def imported(*texts: str | bytes, choices: Choices | None = None, **hosts: str) -> Imported:
    """Import texts about one machine, or about the hosts named."""
    given = [Given(source(text, f"text{i}")) for i, text in enumerate(texts)]
    given += [Given(source(text, host), host) for host, text in hosts.items()]
    return import_texts(given, choices or Choices())


def topology_of(made: Imported) -> Topology:
    """Read the file that an import makes."""
    return parse_topology(made.text, where="made")


def machine(*texts: str | bytes, choices: Choices | None = None, **hosts: str) -> Topology:
    """Import texts and read what comes out."""
    return topology_of(imported(*texts, choices=choices, **hosts))


def links_of(topology: Topology) -> Mapping[frozenset[str], float]:
    """Give the bandwidth of every joined pair of parts, in GB/s; parallel links add up."""
    found: dict[frozenset[str], float] = {}
    for link in topology.links[::2]:
        key = frozenset((link.src, link.dst))
        found[key] = found.get(key, 0.0) + link.bandwidth / 1e9
    return found
