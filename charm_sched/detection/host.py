"""One machine's facts: the PCI tree of sysfs, with what the drivers and tools know beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from charm_sched.detection import pci
from charm_sched.detection.access import Access
from charm_sched.detection.network import Port, read_ports
from charm_sched.detection.pci import Function
from charm_sched.detection.processors import (
    Identity,
    Node,
    processor_name,
    read_identity,
    read_nodes,
)
from charm_sched.detection.tools import Listed, Told, ask
from charm_sched.errors import TopologyError
from charm_sched.importers.facts import Cpu, Gpu, Host, Nic
from charm_sched.importers.merge import merged

SYSFS = "sysfs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was found on one machine; `host` has no GPUs on a machine without any."""

    identity: Identity
    nodes: tuple[Node, ...]
    processor: str
    host: Host
    uuids: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The host's name."""
        return self.identity.name or "host"


def look(access: Access, *, as_is: bool = False) -> Seen:
    """Look at the machine.

    Args:
        access: Its files and tools.
        as_is: Keep GPUs in MIG mode.

    Raises:
        TopologyError: All its GPUs are in MIG mode.
    """
    eyes = _Eyes(access, pci.read_functions(access), read_nodes(access), ask(access), as_is)
    host = eyes.host()
    return Seen(
        identity=read_identity(access),
        nodes=eyes.nodes,
        processor=processor_name(access),
        host=host,
        uuids={f"gpu{gpu.index}": gpu.uuid for gpu in eyes.told.gpus if gpu.uuid},
    )


@dataclass(slots=True)
class _Eyes:
    access: Access
    functions: dict[str, Function]
    nodes: tuple[Node, ...]
    told: Told
    as_is: bool
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def host(self) -> Host:
        """Put everything together."""
        gpus = self._gpus()
        ports = read_ports(self.access, self.functions)
        self.notes += ports.notes
        own = self._from_tree(gpus, ports.used)
        return self._with_tools(own)

    def _gpus(self) -> tuple[Listed, ...]:
        """Return the GPUs: those that a driver lists, else those on the bus, in its order."""
        present = {
            f.address: f for f in self.functions.values() if f.is_gpu and not f.virtual
        }  # fmt: skip
        listed = self.told.gpus
        if not listed:
            vendors = [f.vendor for f in present.values()]
            first = max(sorted(set(vendors)), key=vendors.count, default="")
            own = sorted(f.address for f in present.values() if f.vendor == first)
            if own:
                tool = "nvidia-smi" if first == pci.NVIDIA else "rocm-smi or amd-smi"
                self.doubts.append(
                    f"{tool} does not run here: {len(own)} GPUs were found on the PCI bus, their "
                    "direct links are not known"
                )
            return tuple(Listed(index=i, bus=bus) for i, bus in enumerate(own))
        hidden = sorted(set(present) - {gpu.bus for gpu in listed})
        if hidden:
            self.notes.append(
                f"{len(hidden)} GPUs on the PCI bus that the driver does not list here, left out: "
                f"{', '.join(hidden[:8])}"
            )
        return self._without_mig(listed)

    def _without_mig(self, listed: tuple[Listed, ...]) -> tuple[Listed, ...]:
        split = [f"gpu{gpu.index}" for gpu in listed if gpu.mig]
        if not split:
            return listed
        why = "in MIG mode, whose instances have no direct way to other GPUs"
        if self.as_is:
            self.doubts.append(f"{', '.join(split)}: {why}; described as whole GPUs")
            return listed
        kept = tuple(gpu for gpu in listed if not gpu.mig)
        if not kept:
            raise TopologyError(
                f"expected GPUs, found all of them {why} (nvidia-smi -mig 0 ends it; --as-is "
                "describes them as whole GPUs)"
            )
        self.doubts.append(f"{', '.join(split)}: {why}; left out (--as-is keeps them)")
        return kept

    def _from_tree(self, gpus: tuple[Listed, ...], ports: tuple[Port, ...]) -> Host:
        """Return what sysfs alone says; without paths where it does not show every GPU."""
        whole = all(gpu.bus in self.functions for gpu in gpus)
        if gpus and not whole:
            self.doubts.append(
                "the PCI tree does not show every GPU, as in some virtual machines and containers: "
                "paths are those of the vendor's tool"
            )
        used = {name for name in (*(g.bus for g in gpus), *(p.bus for p in ports))
                if name in self.functions}  # fmt: skip
        bridges, doubts = pci.bridge_widths(self.functions, used)
        self.doubts += doubts
        facts = tuple(self._gpu(gpu) for gpu in gpus)
        nics = tuple(self._nic(port) for port in ports)
        places = {f"gpu{g.index}": g.bus for g in gpus} | {p.name: p.bus for p in ports}
        paths = {name: self._path(bus, name) for name, bus in places.items()} if whole else {}
        roots = {path[0]: None for path in paths.values()}
        if self.access.denied:
            self.notes.append(f"no permission to read {len(self.access.denied)} files, the first: "
                              f"{self.access.denied[0]}")  # fmt: skip
        return Host(
            sources=(SYSFS,),
            gpus=facts,
            nics=nics,
            cpus=tuple(Cpu(numa=node.number) for node in self.nodes),
            paths=paths,
            bridges={**roots, **bridges},
            peers_known=False,
            links_known=bool(paths),
            notes=tuple(self.notes),
            doubts=tuple(dict.fromkeys(self.doubts)),
        )

    def _gpu(self, gpu: Listed) -> Gpu:
        function = self.functions.get(gpu.bus)
        name = f"gpu{gpu.index}"
        if function is None:
            return Gpu(name=name, bus=gpu.bus, model=gpu.model)
        link = pci.carried(function, self.functions, name)
        self.doubts += [link.doubt] if link.doubt else []
        node = self._node(function)
        return Gpu(
            name=name,
            bus=gpu.bus,
            model=" ".join(filter(None, (function.device, gpu.model))),
            numa=None if node is None else (node,),
            slot=link.bandwidth,
        )

    def _nic(self, port: Port) -> Nic:
        function = self.functions.get(port.bus)
        link = pci.carried(function, self.functions, port.name) if function else pci.Carried(None)
        self.doubts += [link.doubt] if link.doubt else []
        return Nic(
            name=port.name,
            speed=port.speed,
            slot=link.bandwidth,
            card=port.bus.rpartition(".")[0],
            id=" ".join(filter(None, (port.bus, port.interface))),
        )

    def _node(self, function: Function) -> int | None:
        numbers = tuple(node.number for node in self.nodes)
        return pci.node_of(function, self.functions, numbers)

    def _path(self, bus: str, name: str) -> tuple[str, ...]:
        """Return the NUMA node and the bridges above something."""
        function = self.functions.get(bus)
        node = self._node(function) if function else self.nodes[0].number
        if node is None:
            node = self._told_node(name)
        if node is None:
            node = self.nodes[0].number
            self.doubts.append(
                f"{name}: the kernel does not know its NUMA node (numa_node is -1); taken for node "
                f"{node} (--numa says which GPUs share one)"
            )
        return (f"numa{node}", *(function.bridges if function else ()))

    def _told_node(self, name: str) -> int | None:
        """Return the NUMA node that a tool states for a GPU."""
        known = {node.number for node in self.nodes}
        for host in self.told.hosts:
            for gpu in host.gpus:
                if gpu.name == name and gpu.numa and len(gpu.numa) == 1 and gpu.numa[0] in known:
                    return gpu.numa[0]
        return None

    def _with_tools(self, own: Host) -> Host:
        """Add what tools say about the same GPUs; whatever is about others is left out."""
        found, doubts = own, list(self.told.doubts)
        for host in self.told.hosts if own.gpus else ():
            fit = _about(host, {gpu.name for gpu in own.gpus})
            try:
                found = merged([found, fit])
            except TopologyError as error:
                doubts.append(f"not used: {error}")
        return replace(found, doubts=tuple(dict.fromkeys((*found.doubts, *doubts))))


def _about(host: Host, names: set[str]) -> Host:
    """Return what a text says about some GPUs, where it numbers them alike."""
    if {gpu.name for gpu in host.gpus} <= names or not names <= {g.name for g in host.gpus}:
        return host
    gone = {gpu.name for gpu in host.gpus} - names
    return replace(
        host,
        gpus=tuple(
            replace(gpu, peers=tuple(p for p in gpu.peers if p.target not in gone))
            for gpu in host.gpus if gpu.name in names
        ),
        labels={pair: label for pair, label in host.labels.items() if not gone & set(pair)},
        paths={name: path for name, path in host.paths.items() if name not in gone},
        access={pair: word for pair, word in host.access.items() if not gone & set(pair)},
    )  # fmt: skip
