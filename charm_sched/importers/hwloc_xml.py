"""hwloc's XML, version 2 and later: ``lstopo file.xml``.

NUMA nodes without processors are the memory of GPUs and no sockets. Distances named NVLinkBandwidth
and XGMIBandwidth are MB/s; those of latency are another thing and not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from charm_sched.importers import pcie
from charm_sched.importers.facts import SWITCH, Cpu, Gpu, Host, Nic, PeerLink
from charm_sched.importers.reading import MAX_GPUS, Source, quoted
from charm_sched.importers.xml_tree import Element, parse, root_of

ARRIVES = 12e9 / 15.753846e9  # of the raw rate that hwloc states, what NCCL takes to arrive
GPU_VENDORS = ("10de", "1002")
_GPU_NAME = re.compile(r"(?:nvml|cuda|rsmi|amdsmi)(\d{1,4})")
_PCI = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})\].*", re.IGNORECASE)
_BANDWIDTHS = {"NVLinkBandwidth": "nvlink", "XGMIBandwidth": "xgmi"}


def recognise(text: str) -> bool:
    """Say whether the root is hwloc's."""
    return root_of(text) == "topology" and "<object" in text


def read(source: Source) -> Host:
    """Read an hwloc XML file.

    Raises:
        TopologyError: not well-formed, version 1, or no GPU in it.
    """
    root = parse(source)
    if root.tag != "topology" or not re.match(r"[2-9]\.", root.get("version")):
        source.fail('<topology version="2.0"> or later', f"<{root.tag}> version "
                    f"{quoted(root.get('version'))}", line=root.line)  # fmt: skip
    reader = _Reader(source)
    for machine in root.all("object"):
        reader.walk(machine, (), "")
    if not reader.gpus:
        source.fail("a GPU", "none: no PCI device of class 0302 or 0380 and no GPU that nvml, cuda "
                    "or rsmi names", "was lstopo built and run with I/O devices?")  # fmt: skip
    return reader.host(root)


@dataclass(slots=True)
class _Reader:
    source: Source
    cpus: dict[int, str] = field(default_factory=dict)
    gpus: list[tuple[Gpu, str]] = field(default_factory=list)  # with the number of the tool
    nics: list[Nic] = field(default_factory=list)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    bridges: dict[str, float | None] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)  # GPU address or SWITCH by gp_index

    def walk(self, element: Element, path: tuple[str, ...], nodeset: str) -> None:
        """Read an object and everything below it."""
        kind = element.get("type")
        nodeset = element.get("nodeset") or nodeset
        if kind == "NUMANode" and element.get("subtype") != "GPUMemory":
            number = element.get("os_index")
            if number.isdigit() and len(number) < 7:
                self.cpus[int(number)] = ""
        if kind == "Bridge":
            path = self._bridge(element, path, nodeset)
        if kind == "PCIDev":
            self._device(element, path or (self._node(nodeset),))
        for child in element.all("object"):
            self.walk(child, path, nodeset)

    def _node(self, nodeset: str) -> str:
        nodes = [n for n in bits(nodeset) if n in self.cpus or not self.cpus]
        ends = nodes if len(nodes) < 2 else (nodes[0], nodes[-1])
        key = f"numa{'-'.join(map(str, ends))}"
        self.bridges.setdefault(key, None)
        return key

    def _bridge(self, element: Element, path: tuple[str, ...], nodeset: str) -> tuple[str, ...]:
        if element.get("bridge_type").startswith("0-"):
            return (self._node(nodeset),)
        key = element.get("pci_busid") or f"bridge{element.line}"
        while key in self.bridges:
            key += "+"
        self.bridges[key] = self._rate(element)
        return (*(path or (self._node(nodeset),)), key)

    def _rate(self, element: Element) -> float | None:
        text = element.get("pci_link_speed")
        if not re.fullmatch(r"\d{1,5}(\.\d{1,9})?", text):
            return None
        rate = float(text) * 1e9 * ARRIVES
        return rate if rate > pcie.LANE[5.0] else None  # links asleep show Gen1

    def _device(self, element: Element, path: tuple[str, ...]) -> None:
        match = _PCI.match(element.get("pci_type"))
        bus = pcie.bus_address(element.get("pci_busid"))
        names = [child.get("name") for child in element.all("object") if child.get("name")]
        index = element.get("gp_index")
        if element.get("subtype") == "NVSwitch" or (match and match[1] == "0680" and
                                                    match[2] == "10de"):  # fmt: skip
            self.keys[f"PCIDev:{index}"] = SWITCH
            return
        if match is None or not bus:
            return
        numbered = [m[1] for name in names if (m := _GPU_NAME.fullmatch(name))]
        compute = pcie.is_gpu_class(f"0x{match[1]}") and match[2].lower() in GPU_VENDORS
        if numbered or compute:
            if bus in self.paths or len(self.gpus) >= MAX_GPUS:
                self.source.fail(f"up to {MAX_GPUS} GPUs at different addresses", bus,
                                 line=element.line)  # fmt: skip
            self._gpu(element, match[3], bus, path, numbered[0] if numbered else "")
            return
        if match[1].startswith("02") and names and len(self.nics) < MAX_GPUS:
            rdma = [n for n in names if re.match(r"mlx|bnxt_re|irdma|efa|hfi|rocep|ibp", n)]
            name = (rdma or names)[0]
            if name not in self.paths:
                self.nics.append(Nic(name=name, slot=self._rate(element), card=bus[:-2], id=bus))
                self.paths[name] = path

    def _gpu(
        self, element: Element, device: str, bus: str, path: tuple[str, ...], number: str
    ) -> None:
        for child in element.all("object"):
            self.keys[f"OSDev:{child.get('gp_index')}"] = bus
        self.keys[f"PCIDev:{element.get('gp_index')}"] = bus
        product = next(
            (info.get("value") for child in element.all("object") for info in child.all("info")
             if info.get("name") in ("GPUModel", "CUDAModel")), "",
        )  # fmt: skip
        numa = path[0].removeprefix("numa")
        gpu = Gpu(
            name="",
            bus=bus,
            model=" ".join(filter(None, (f"0x{device.lower()}", product))),
            numa=(int(numa),) if numa.isdigit() else None,
            slot=self._rate(element),
        )
        self.gpus.append((gpu, number))
        self.paths[bus] = path

    def host(self, root: Element) -> Host:
        """Name the GPUs and join them by the bandwidth matrices."""
        numbers = [number for _, number in self.gpus]
        if all(numbers) and len(set(numbers)) == len(numbers):
            names = {gpu.bus: f"gpu{int(n)}" for gpu, n in self.gpus}
        else:
            names = {bus: f"gpu{i}" for i, bus in enumerate(sorted(g.bus for g, _ in self.gpus))}
        peers, known = self._peers(root, names)
        gpus = [
            replace(gpu, name=names[gpu.bus], peers=tuple(peers.get(gpu.bus, ())))
            for gpu, _ in self.gpus
        ]
        return Host(
            sources=(f"{self.source.where} (hwloc XML)",),
            gpus=tuple(sorted(gpus, key=lambda gpu: (len(gpu.name), gpu.name))),
            nics=tuple(self.nics),
            cpus=tuple(Cpu(numa=number) for number in self.cpus),
            paths={names.get(key, key): path for key, path in self.paths.items()},
            bridges=self.bridges,
            peers_known=known,
        )

    def _peers(
        self, root: Element, names: dict[str, str]
    ) -> tuple[dict[str, list[PeerLink]], bool]:
        found: dict[str, list[PeerLink]] = {}
        known = False
        for element in root.children:
            kind = _BANDWIDTHS.get(element.get("name"))
            if not element.tag.startswith("distances2") or kind is None:
                continue
            known = True
            objects, values = self._matrix(element)
            for i, a in enumerate(objects):
                bus = self.keys.get(a, "")
                total: dict[str, float] = {}
                for b, value in zip(objects, values[i * len(objects) :], strict=False):
                    target = self.keys.get(b)
                    if bus and value and target is not None and target != bus:
                        name = names.get(target, SWITCH)
                        total[name] = total.get(name, 0.0) + value * 1e6
                if total:
                    found[bus] = [
                        PeerLink(kind=kind, target=t, count=None, bandwidth=rate)
                        for t, rate in total.items()
                    ]
        return found, known

    def _matrix(self, element: Element) -> tuple[list[str], list[int]]:
        kind = element.get("type")
        objects = [
            word if ":" in word else f"{kind}:{word}"
            for part in element.all("indexes")
            for word in _words(part)
        ]
        words = [word for part in element.all("u64values") for word in _words(part)]
        bad = next((w for w in words if not w.isdigit() or len(w) > 12), None)
        if len(words) != len(objects) ** 2 or bad is not None:
            found = quoted(bad) if bad else str(len(words))
            self.source.fail(f"{len(objects) ** 2} whole numbers", found, line=element.line)
        return objects, [int(word) for word in words]


def _words(element: Element) -> Iterator[str]:
    return iter("".join(element.text).split())


def bits(text: str) -> list[int]:
    """Return the numbers of the bits of hwloc's sets.

    >>> bits("0x00000001,0x80000000")
    [31, 32]
    """
    words = text.split(",")
    if len(words) > 1024 or not all(re.fullmatch(r"(0x[0-9a-fA-F]{1,8})?", w) for w in words):
        return []
    number = 0
    for word in words:
        number = (number << 32) | (int(word, 16) if word else 0)
    return [i for i in range(number.bit_length()) if number >> i & 1][:4096]
