"""A machine without GPUs: each NUMA node, or a share of it, is a device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from charm_sched import units
from charm_sched.detection.processors import Node
from charm_sched.detection.rates import Rates
from charm_sched.importers import pcie
from charm_sched.importers.choices import Choices, Figure, Ledger
from charm_sched.importers.facts import Gpu, Host
from charm_sched.importers.figures import NIC_RATE, Figures
from charm_sched.importers.grouping import find_places
from charm_sched.importers.machine import Machine
from charm_sched.importers.models import Model
from charm_sched.importers.sheet import Entry, Section, Sheet
from charm_sched.topology.profiles import ComputeProfile

# One core of a server processor, where nothing is measured: 2 GHz and 16 multiply-adds of fp32.
CORE_FP32, CORE_COPY = 64e9, 10e9
OVERHEAD, EFFICIENCY = 20e-6, 0.5
_EVERY: tuple[str, ...] = ("peak", "memory_bandwidth")
MODEL = Model(name="processor", product="(?!)", memory=16, pcie=3)


def with_devices(host: Host, nodes: tuple[Node, ...], split: int) -> Host:
    """Return the host with a device for each NUMA node, or for each of `split` equal shares."""
    devices: list[Gpu] = []
    paths = dict(host.paths)
    for node in nodes:
        for _ in range(split):
            name = f"cpu{len(devices)}"
            devices.append(Gpu(name=name, numa=(node.number,), model=f"of NUMA node {node.number}"))
            paths[name] = (f"numa{node.number}",)
    bridges = {**dict.fromkeys((path[0] for path in paths.values()), None), **host.bridges}
    return replace(
        host, gpus=tuple(devices), paths=paths, bridges=bridges, peers_known=True, links_known=True
    )


@dataclass(frozen=True, slots=True)
class CpuFigures(Figures):
    """Numbers of a machine without GPUs."""

    def slot(self, known: float | None) -> Figure:
        """Return the bandwidth of a NIC's PCIe link, each way."""
        if known is not None or self.choices.pcie is not None:
            return Figures.slot(self, known)
        self.ledger.assume("a NIC whose PCIe link is not shown has x16 of Gen3", "--pcie")
        return Figure(pcie.x16(3), pcie.SOURCE.format("Gen3", 16), assumed=True)

    def port(self, known: float | None) -> Figure:
        """Return the bandwidth of one NIC port, each way."""
        if known is not None or self.choices.nic is not None:
            return Figures.port(self, known)
        rate = NIC_RATE[3] / 10
        self.ledger.assume("a NIC port whose speed is not told carries 10 Gb/s", "--nic")
        return Figure(rate, "not told by the system", assumed=True)


@dataclass(slots=True)
class CpuMachine(Machine):
    """The section of a machine without GPUs under construction."""

    device_link = "memory"
    nodes: tuple[Node, ...] = ()
    split: int = 1
    rates: Rates | None = None
    processor: str = ""

    def _devices(self) -> None:
        profile = self._profile()
        self.sheet.profiles[profile.name] = profile
        memory = {f"numa{node.number}": node.memory for node in self.nodes}
        for device in self.host.gpus:
            fields: dict[str, object] = {"name": device.name, "profile": profile.name}
            total = memory.get(self.host.paths[device.name][0])
            if total:
                fields["memory"] = units.format_bytes(float(round(total / self.split)), digits=None)
                fields["source"] = {"memory": "MemTotal of its NUMA node"}
            self.section.devices.append(Entry(fields, device.model))

    def _profile(self) -> ComputeProfile:
        cores = max(1, min(len(node.usable) for node in self.nodes) // self.split)
        if self.rates is None:
            fp32, fp64 = CORE_FP32 * cores, CORE_FP32 * cores / 2
            copy, assumed = self._copy(cores), _EVERY
            told = f"{CORE_FP32 / 1e9:g} GFLOP/s of fp32 and {CORE_COPY / 1e9:g} GB/s for each core"
            self.figures.ledger.assume(f"nothing was measured: {told}, {cores} to a device", "")
        else:
            fp32, fp64 = self.rates.fp32 / self.split, self.rates.fp64 / self.split
            copy, assumed = self._copy(cores), ("peak.bf16", "peak.fp16")
            told = "measured here, matrix products and copies of NumPy"
        told += f", {self.processor}" if self.processor else ""
        return ComputeProfile(
            name=f"cpu_{cores}_cores",
            peak={"bf16": fp32, "fp16": fp32, "fp32": fp32, "fp64": fp64},
            rates=(),
            efficiency=EFFICIENCY,
            overhead=OVERHEAD,
            memory_bandwidth=2 * copy,
            assumed=(*assumed, "efficiency", "overhead"),
            source=f"peak: {told}; memory_bandwidth: {told}, read and written; peak.bf16: taken as "
            "fp32; peak.fp16: taken as fp32; efficiency: no attention rate was measured; overhead: "
            "a margin over what PyTorch takes to call a kernel",
        )

    def _copy(self, cores: int) -> float:
        """Return the bytes that one device copies per second."""
        return CORE_COPY * cores if self.rates is None else self.rates.copy / self.split

    def _peer_access(self) -> bool:
        return True

    def _slot(self, name: str, known: float | None) -> Figure:
        if name not in {device.name for device in self.host.gpus}:
            return Machine._slot(self, name, known)
        cores = max(1, min(len(node.usable) for node in self.nodes) // self.split)
        if self.rates is not None:
            self.figures.ledger.assume(
                "between devices of one NUMA node bytes move as fast as they are copied there; "
                "charm-topo probe measures what arrives", ""
            )  # fmt: skip
            return Figure(self._copy(cores), "a copy by its processors, measured", assumed=True)
        return Figure(self._copy(cores), f"{CORE_COPY / 1e9:g} GB/s for each core", assumed=True)


@dataclass(frozen=True, slots=True)
class CpuLay:
    """Begins the layout of machines without GPUs."""

    nodes: tuple[Node, ...]
    split: int
    rates: Rates | None
    processor: str

    def __call__(self, sheet: Sheet, host: Host, choices: Choices, ledger: Ledger) -> Machine:
        """Return a machine, ready to be laid out."""
        figures = CpuFigures(host, MODEL, True, choices, ledger)
        return CpuMachine(
            sheet, host, find_places(host), figures, Section(),
            nodes=self.nodes, split=self.split, rates=self.rates, processor=self.processor,
        )  # fmt: skip
