"""A host as the topology XML of NCCL (NCCL_TOPO_FILE), in the form that NCCL's own dumps have.

NCCL finds GPUs and cards in the file by PCI address. Where the topology does not say an address one
is invented: then the file is good for reading and for `charm-topo import`, not for NCCL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

from charm_sched.errors import TopologyError
from charm_sched.importers import models, pcie
from charm_sched.launch.environment import RDMA
from charm_sched.launch.hosts import NIC, Host
from charm_sched.topology.graph import Link, Topology

HIDDEN_SWITCH = "fffffff:ff:ff.0"
DIRECT = ("nvlink", "xgmi", "infinity_fabric")
LINK_RATE = 25e9  # bytes per second of an NVLink whose model is not known
MEGABIT = 1e6 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The text, and the parts whose addresses are invented."""

    text: str
    invented: tuple[str, ...]


def nccl_xml(topology: Topology, host: Host) -> Exported:
    """Return the XML of one host.

    Raises:
        TopologyError: Its devices are not GPUs.
    """
    writer = _Writer(topology, host)
    lines = ['<system version="1">', *writer.processors(), "</system>"]
    return Exported(text="\n".join(lines) + "\n", invented=tuple(writer.invented))


@dataclass(slots=True)
class _Writer:
    topology: Topology
    host: Host
    invented: list[str] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    links: dict[str, list[Link]] = field(default_factory=dict)
    buses: dict[str, str] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    ports: int = 0

    def processors(self) -> Iterator[str]:
        """Yield a <cpu> for each root complex, and one for what hangs on none."""
        self._prepare()
        roots = [name for name in self._inside() if self.kinds[name] == "root_complex"]
        if not any(self._is_gpu(name) for name in self._inside()):
            raise TopologyError(
                f"{self.topology.name}: expected GPUs on {self.host.name}, found processors"
            )
        numbers = _numbers(roots)
        self.done |= set(roots)
        for root in roots:
            yield f'  <cpu numaid="{numbers[root]}" affinity="" arch="x86_64">'
            yield from self._children(root, "    ")
            yield "  </cpu>"
        loose = [n for n in self._inside() if n not in self.done and self._is_leaf(n)]
        if loose:
            yield '  <cpu numaid="-1" affinity="" arch="x86_64">'
            yield from self._loose(loose)
            yield "  </cpu>"

    def _inside(self) -> list[str]:
        return [name for name in self.topology.part_names if name in self.host.parts]

    def _prepare(self) -> None:
        self.kinds = {d.name: "device" for d in self.topology.devices}
        self.kinds |= {s.name: s.kind for s in self.topology.switches}
        ids = {device.name: device.id for device in self.topology.devices}
        ids |= {switch.name: switch.id for switch in self.topology.switches}
        for link in self.topology.links:
            if {link.src, link.dst} <= self.host.parts:
                self.links.setdefault(link.src, []).append(link)
        taken: set[str] = set()
        for number, name in enumerate(self._inside()):
            words = (pcie.bus_address(word) for word in ids[name].split())
            bus = next((word for word in words if word), "")
            if self.kinds[name] in ("device", NIC, "pcie_switch") and (not bus or bus in taken):
                bus = f"{0xF000 + (number >> 8):04x}:{number & 0xFF:02x}:00.0"
                if self.kinds[name] != "pcie_switch":
                    self.invented.append(name)
            taken.add(bus)
            self.buses[name] = bus

    def _is_leaf(self, name: str) -> bool:
        return self.kinds[name] in ("device", NIC)

    def _is_gpu(self, name: str) -> bool:
        """Say whether this is a device that does more than share the memory of its processors."""
        kinds = {link.kind for link in self.links.get(name, ())}
        return self.kinds[name] == "device" and kinds != {"memory"}

    def _below(self, name: str) -> dict[str, list[Link]]:
        """Return what hangs on a part over PCIe, with the links."""
        found: dict[str, list[Link]] = {}
        for link in self.links.get(name, ()):
            kind = self.kinds[link.dst]
            hangs = kind in ("device", NIC, "pcie_switch") and link.kind not in DIRECT
            if hangs and link.dst not in self.done:
                found.setdefault(link.dst, []).append(link)
        return found

    def _children(self, name: str, indent: str) -> Iterator[str]:
        below = self._below(name)
        self.done |= set(below)
        for child, links in below.items():
            yield from self._part(child, links, indent)

    def _part(self, name: str, links: Iterable[Link], indent: str) -> Iterator[str]:
        width = sum(link.bandwidth for link in links)
        match self.kinds[name]:
            case "device":
                yield from self._device(name, width, indent)
            case "nic":
                yield from self._nic(name, width, indent)
            case _:
                yield f"{indent}<pci {self._pci(name, '0x060400', width)}>"
                yield from self._children(name, f"{indent}  ")
                yield f"{indent}</pci>"

    def _loose(self, names: list[str]) -> Iterator[str]:
        """Yield devices that hang on no processor, each in a switch with the cards at it."""
        for name in names:
            if name in self.done:
                continue
            self.done.add(name)
            below = self._below(name) if self.kinds[name] == "device" else {}
            self.done |= set(below)
            if not below:
                yield from self._part(name, (), "    ")
                continue
            bridge = f"{0xFE00:04x}:{len(self.done) & 0xFF:02x}:00.0"
            width = max(sum(link.bandwidth for link in links) for links in below.values())
            yield f'    <pci busid="{bridge}" class="0x060400" {_link(width)}>'
            yield from self._device(name, width, "      ")
            for child, links in below.items():
                yield from self._part(child, links, "      ")
            yield "    </pci>"

    def _pci(self, name: str, code: str, width: float) -> str:
        return f'busid="{self.buses[name]}" class="{code}" {_link(width)}'

    def _device(self, name: str, width: float, indent: str) -> Iterator[str]:
        model = self._model(name)
        code = "0x120000" if model and model.name.startswith("mi") else "0x030200"
        device = re.match(r"0x[0-9a-f]{4}", model.device) if model else None
        vendor = "0x1002" if code == "0x120000" else "0x10de"
        about = f' vendor="{vendor}" device="{device[0]}"' if device else ""
        order = [n for n in self._inside() if self.kinds[n] == "device"]
        number = order.index(name)
        rank = self.host.ranks[self.host.devices.index(name)] if name in self.host.devices else -1
        yield f"{indent}<pci {self._pci(name, code, width)}{about}>"
        yield f'{indent}  <gpu dev="{number}"{_architecture(model)} rank="{rank}" gdr="1">'
        for line in self._direct(name, model):
            yield f"{indent}    {line}"
        yield f"{indent}  </gpu>"
        yield f"{indent}</pci>"

    def _model(self, name: str) -> models.Model | None:
        profile = self.topology.device(name).compute.name.replace("_", "-")
        exact = [model for model in models.MODELS if model.name == profile]
        near = [model for model in models.MODELS if profile.startswith(model.name)]
        return next(iter(exact or sorted(near, key=lambda m: -len(m.name))), None)

    def _direct(self, name: str, model: models.Model | None) -> Iterator[str]:
        """Yield the NVLinks or XGMI links of a GPU."""
        each = model.link * 1e9 if model and model.link else LINK_RATE
        totals: dict[str, float] = {}
        for link in self.links.get(name, ()):
            switched = self.kinds[link.dst] not in ("device", NIC, "pcie_switch", "root_complex")
            if link.kind in DIRECT and (switched or self.kinds[link.dst] == "device"):
                totals[link.dst] = totals.get(link.dst, 0.0) + link.bandwidth
        for target, bandwidth in totals.items():
            count = max(1, round(bandwidth / each))
            if self.kinds[target] != "device":
                yield f'<nvlink target="{HIDDEN_SWITCH}" count="{count}" tclass="0x068000"/>'
            elif any(link.kind != "nvlink" for link in self.links[name] if link.dst == target):
                bus = self.buses[target]
                yield f'<xgmi target="{bus}" count="{count}" tclass="0x038000"/>'
            else:
                bus = self.buses[target]
                yield f'<nvlink target="{bus}" count="{count}" tclass="0x030200"/>'

    def _nic(self, name: str, width: float, indent: str) -> Iterator[str]:
        switch = next(s for s in self.topology.switches if s.name == name)
        ports = [word for word in switch.id.split() if RDMA.fullmatch(word)]
        ports = ports or [name.rpartition("/")[2]]
        out = sum(
            link.bandwidth for link in self.topology.links
            if link.src == name and link.dst not in self.host.parts
        )  # fmt: skip
        speed = round((out or width) / len(ports) / MEGABIT)
        yield f"{indent}<pci {self._pci(name, '0x020700', width)}>"
        yield f"{indent}  <nic>"
        for port, word in enumerate(ports, start=1):
            self.ports += 1
            yield (
                f'{indent}    <net name={quoteattr(word)} dev="{self.ports - 1}" speed="{speed}" '
                f'port="{port}" guid="0x0" maxconn="131072" gdr="1"/>'
            )
        yield f"{indent}  </nic>"
        yield f"{indent}</pci>"


def _architecture(model: models.Model | None) -> str:
    found = re.match(r"(sm|gfx)(\w+?)(?:\||$)", model.architecture) if model else None
    if found is None:
        return ' sm="80"' if model is None or not model.name.startswith("mi") else ' gcn="gfx942"'
    return f' sm="{found[2]}"' if found[1] == "sm" else f' gcn="gfx{found[2]}"'


def _link(width: float) -> str:
    """Return speed and lanes that carry a bandwidth, or less where nothing carries just that."""
    options: Mapping[float, float] = pcie.LANE
    if width <= 0:
        return 'link_speed="" link_width="0"'
    exact = [
        (lanes, speed) for speed, lane in options.items() for lanes in (16, 8, 4, 2, 1)
        if lanes * lane <= width * 1.001
    ]  # fmt: skip
    if not exact:
        return 'link_speed="2.5 GT/s PCIe" link_width="1"'
    lanes, speed = max(exact, key=lambda each: (each[0] * options[each[1]], each[0]))
    return f'link_speed="{speed:.1f} GT/s PCIe" link_width="{lanes}"'


def _numbers(roots: list[str]) -> dict[str, int]:
    """Return NUMA numbers: those that the names end in, if they differ, else counted."""
    ends = [re.search(r"(\d{1,4})$", name) for name in roots]
    found = [int(end[1]) for end in ends if end]
    if len(found) < len(roots) or len(set(found)) < len(roots):
        found = list(range(len(roots)))
    return dict(zip(roots, found, strict=True))
