"""The topology XML of NCCL and RCCL: ``NCCL_TOPO_DUMP_FILE``, and the templates of clouds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from charm_sched.importers import pcie
from charm_sched.importers.facts import SWITCH, Cpu, Gpu, Host, Nic, PeerLink
from charm_sched.importers.reading import MAX_GPUS, Source, quoted
from charm_sched.importers.xml_tree import Element, number, parse, root_of

MEGABIT = 1e6 / 8
FASTEST = 1_600_000  # Mb/s: no port is faster, so a larger figure has another unit
NVSWITCH_CLASS = "0x0680"

ROOTS = {
    "graphs": "an NCCL graph file: channels that NCCL chose, not a machine",
    "cpu": "a part of an NCCL topology",
    "pci": "a part of an NCCL topology",
    "gpu": "a part of an NCCL topology",
    "nic": "a part of an NCCL topology",
}


def recognise(text: str) -> bool:
    """Say whether the root is <system>, or a part of one."""
    return root_of(text) in ("system", "cpu", "pci", "gpu", "nic")


def read(source: Source) -> Host:
    """Read an NCCL topology file.

    Raises:
        TopologyError: not well-formed, another root, or no GPU in it.
    """
    root = parse(source)
    if root.tag != "system":
        what = ROOTS.get(root.tag, "another kind of XML")
        source.fail("the root element <system>", f"<{root.tag}>, {what}", "give the whole dump",
                    line=root.line)  # fmt: skip
    reader = _Reader(source)
    reader.system(root)
    return reader.host()


@dataclass(slots=True)
class _Reader:
    source: Source
    cpus: list[Cpu] = field(default_factory=list)
    gpus: list[tuple[Gpu, Element | None]] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    bridges: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def system(self, root: Element) -> None:
        """Read every processor and what hangs on it."""
        for cpu in root.all("cpu"):
            numa = number(self.source, cpu, "numaid", most=10**6)
            numa = -1 if numa is None else numa
            key = f"numa{numa}" if numa >= 0 else "numa"
            while key in self.bridges:
                key += "-"  # several processors without a number, or of several hosts
            self.bridges[key] = None
            if cpu.get("host_hash") and cpu.get("host_hash") != root.children[0].get("host_hash"):
                self.source.fail("one machine", "a second host_hash", "give one node's file",
                                 line=cpu.line)  # fmt: skip
            self.cpus.append(
                Cpu(
                    numa=numa,
                    vendor=cpu.get("vendor"),
                    family=cpu.get("familyid"),
                    model=cpu.get("modelid"),
                    architecture=cpu.get("arch"),
                )
            )
            for child in cpu.children:
                self._part(child, (key,), numa)

    def _part(self, element: Element, path: tuple[str, ...], numa: int) -> None:
        if element.tag == "nic":
            self._nic(element, path, None, element.get("busid") or f"{path[0]}-{element.line}")
        if element.tag != "pci":
            return
        bus = pcie.bus_address(element.get("busid")) or element.get("busid")
        if not bus:
            self.source.fail("a busid on <pci>", "none", line=element.line)
        slot = self._slot(element)
        gpus = list(element.all("gpu"))
        if gpus or pcie.is_gpu_class(element.get("class")):
            self._gpu(element, gpus, bus, path, numa, slot)
        nics = list(element.all("nic"))
        for nic in nics:
            self._nic(nic, path, slot, bus)
        if pcie.is_nic_class(element.get("class")) and not nics:
            self._add_nic(Nic(name=f"nic-{bus.replace(':', '-')}", slot=slot, card=bus), path)
        inner = [child for child in element.children if child.tag == "pci"]
        if inner:
            key = bus
            while key in self.bridges:  # real dumps repeat the address of a switch's ports
                key += "+"
            self.bridges[key] = self._trusted(element, slot)
            for child in inner:
                self._part(child, (*path, key), numa)

    def _slot(self, element: Element) -> float | None:
        width = number(self.source, element, "link_width", most=64)
        speed = element.get("link_speed")
        if speed and pcie.gigatransfers(speed) is None:
            self.source.fail('a link_speed such as "16.0 GT/s PCIe"', quoted(speed),
                             line=element.line)  # fmt: skip
        return pcie.link_bandwidth(speed, width)

    def _trusted(self, element: Element, slot: float | None) -> float | None:
        """Return the speed of a bridge, None for the x1 Gen1 that virtual bridges show."""
        if slot is not None and slot <= pcie.LANE[2.5]:
            self.notes.append(f"{self.source.where}:{element.line}: the bridge "
                              f"{element.get('busid')} says x1 of 2.5 GT/s, as virtual ones do; "
                              "that is not believed")  # fmt: skip
            return None
        return slot

    def _gpu(
        self,
        element: Element,
        ranks: list[Element],
        bus: str,
        path: tuple[str, ...],
        numa: int,
        slot: float | None,
    ) -> None:
        first = ranks[0] if ranks else None
        device = element.get("device").lower()
        architecture = ""
        if first is not None:
            gcn = first.get("gcn")
            architecture = f"gfx{gcn.removeprefix('gfx')}" if gcn else f"sm{first.get('sm')}"
        gpu = Gpu(
            name="",
            bus=bus,
            model=" ".join(filter(None, (device, architecture))),
            numa=(numa,) if numa >= 0 else None,
            slot=slot,
            ranks=len(ranks) or None,
        )
        if bus in self.paths:
            self.source.fail("one GPU at each address", f"a second at {bus}", line=element.line)
        if len(self.gpus) >= MAX_GPUS:
            self.source.fail(f"at most {MAX_GPUS} GPUs in a machine", "more", line=element.line)
        self.gpus.append((gpu, first))
        self.paths[bus] = path

    def _nic(self, element: Element, path: tuple[str, ...], slot: float | None, card: str) -> None:
        for net in element.all("net"):
            speed = number(self.source, net, "speed", most=10**12)
            name = net.get("name") or f"net{net.get('dev')}"
            if speed is not None and speed > FASTEST:
                self.doubts.append(
                    f"NIC {name} claims {speed} Mb/s, more than any port has: a slip of the unit; "
                    "its speed is taken as unknown"
                )
                speed = None
            if speed is not None and 0 < speed <= 10_000:
                self.doubts.append(f"NIC {name} has {speed} Mb/s: a management port?")
            self._add_nic(
                Nic(name=name, speed=speed * MEGABIT if speed else None, slot=slot, card=card), path
            )

    def _add_nic(self, nic: Nic, path: tuple[str, ...]) -> None:
        name, number_ = nic.name, 2
        while name in self.paths:
            name, number_ = f"{nic.name}-{number_}", number_ + 1
        if len(self.nics) >= MAX_GPUS:
            self.source.fail(f"at most {MAX_GPUS} NICs in a machine", "more")
        self.nics.append(replace(nic, name=name))
        self.paths[name] = path

    def host(self) -> Host:
        """Name the GPUs, and resolve what their links lead to.

        Raises:
            TopologyError: there is no GPU.
        """
        if not self.gpus:
            self.source.fail(
                "a GPU", "no <gpu> and no PCI device of class 0x0302", "this template alone does "
                "not say where the GPUs are; dump the file of a running job with "
                "NCCL_TOPO_DUMP_FILE, or add nvidia-smi topo -m",
            )  # fmt: skip
        names = self._names()
        gpus = []
        for gpu, element in self.gpus:
            peers = tuple(self._peers(gpu, element, names)) if element is not None else ()
            gpus.append(replace(gpu, name=names[gpu.bus], peers=peers))
            if gpu.ranks is not None and gpu.ranks > 1:
                self.notes.append(f"{names[gpu.bus]} ({gpu.bus}) holds {gpu.ranks} ranks of the "
                                  "job; it is one device here")  # fmt: skip
        paths = {names.get(key, key): path for key, path in self.paths.items()}
        gpus.sort(key=lambda gpu: (len(gpu.name), gpu.name))
        declared = [gpu for gpu, element in self.gpus if element is not None]
        return Host(
            sources=(f"{self.source.where} (NCCL topology XML)",),
            gpus=tuple(gpus),
            nics=tuple(self.nics),
            cpus=tuple(self.cpus),
            paths=paths,
            bridges=self.bridges,
            peers_known=bool(declared),
            notes=tuple(self.notes),
            doubts=tuple(self.doubts),
            faults=tuple(self.faults),
        )

    def _names(self) -> dict[str, str]:
        """Number the GPUs by `dev` where each has its own, else by PCI address."""
        devs = [element.get("dev") if element is not None else "" for _, element in self.gpus]
        if len(set(devs)) == len(devs) and all(dev.isdigit() and len(dev) < 5 for dev in devs):
            return {
                gpu.bus: f"gpu{int(dev)}" for (gpu, _), dev in zip(self.gpus, devs, strict=True)
            }
        ordered = sorted(gpu.bus for gpu, _ in self.gpus)
        return {bus: f"gpu{i}" for i, bus in enumerate(ordered)}

    def _peers(self, gpu: Gpu, element: Element, names: dict[str, str]) -> Iterator[PeerLink]:
        switched = 0
        for link in element.children:
            if link.tag not in ("nvlink", "xgmi"):
                continue
            count = number(self.source, link, "count", most=1000)
            count = 1 if count is None else count
            target = pcie.bus_address(link.get("target")) or link.get("target")
            hidden = link.get("target").startswith("fffffff")
            if link.get("tclass").lower().startswith(NVSWITCH_CLASS) or hidden:
                switched += count
            elif target == gpu.bus:
                self.doubts.append(f"{names[gpu.bus]}: its {link.tag} leads to itself, as some "
                                   "virtual machines show it; left out")  # fmt: skip
            elif target in names:
                yield PeerLink(kind=link.tag, target=names[target], count=count)
            else:
                self.notes.append(f"{names[gpu.bus]}: {count} {link.tag} to {target}, which is not "
                                  "in this file; left out")  # fmt: skip
        if switched:
            yield PeerLink(kind="nvlink", target=SWITCH, count=switched)
