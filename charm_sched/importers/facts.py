"""What a text says about machines, and nothing that it does not say: None and "" are unknown.

Two records: a `Host` is the inside of one machine, a `Network` is what joins hosts or devices.
Base units: bytes per second and seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

SWITCH = ""  # the target of a peer link that ends in an NVSwitch
ANYWHERE = "?"  # the target of links of which only the number is known
NEAR = ("PIX", "PXB", "PHB", "NODE")  # classes inside a NUMA node, nearest first
CLASSES = (*NEAR, "SYS")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLink:
    """Direct links from a GPU to another one, or to the NVSwitch plane.

    Attributes:
        kind: "nvlink" or "xgmi".
        target: name of a GPU, or `SWITCH`.
        count: how many; None where the text says only that there are some.
        bandwidth: of all of them together, where the tool states it.
    """

    kind: str
    target: str
    count: int | None
    bandwidth: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU (or one die of a package that shows as several).

    Attributes:
        name: "gpu0" and so on, in the numbering of the tool.
        bus: PCI address, as "0000:c1:00.0".
        model: product name or PCI device ID or architecture, as the text has it.
        numa: NUMA nodes it belongs to; usually one.
        cpus: CPU affinity as written.
        memory_node: NUMA node that its own memory shows as.
        slot: bandwidth of its own PCIe link, each way.
        peers: direct links to other GPUs.
        ranks: number of its ranks, where a job's dump says so.
        uuid: as its driver names it.
    """

    name: str
    bus: str = ""
    model: str = ""
    numa: tuple[int, ...] | None = None
    cpus: str = ""
    memory_node: int | None = None
    slot: float | None = None
    peers: tuple[PeerLink, ...] = ()
    ranks: int | None = None
    uuid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One port of a network card.

    Attributes:
        name: as links and classes name it: "nic0", "mlx5_0".
        device: name of the RDMA device, from a legend.
        id: what the system calls the card: PCI address, interface.
        speed: line rate.
        slot: bandwidth of the card's PCIe link, which all its ports share.
        card: what tells the cards apart.
    """

    name: str
    device: str = ""
    speed: float | None = None
    slot: float | None = None
    card: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """A NUMA node with processors; `numa` is -1 where the kernel does not know."""

    numa: int
    vendor: str = ""
    family: str = ""
    model: str = ""
    architecture: str = ""


Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The inside of one machine.

    Attributes:
        sources: what was read, for comments.
        labels: the class of a pair of GPUs or NICs as written ("NV12", "PIX", "SYS", "XGMI").
        paths: per GPU or NIC, the NUMA node and the PCIe bridges above it, outermost first.
        bridges: the bandwidth towards the processor, per bridge.
        access: peer access per pair of GPUs, as ``topo -p2p`` writes it ("OK", "GNS").
        peers_known: False where a text leaves direct links out altogether.
        links_known: False where nothing is said about any path between GPUs.
        rate: bandwidth of one NVLink, as the tool states it.
        socket: bandwidth between NUMA nodes as a tool takes it.
        notes: what was repaired or left out.
        doubts: what looks wrong with the machine.
        faults: what is too wrong to go on with, unless the user says so.
    """

    sources: tuple[str, ...]
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    cpus: tuple[Cpu, ...] = ()
    labels: Mapping[Pair, str] = field(default_factory=dict)
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bridges: Mapping[str, float | None] = field(default_factory=dict)
    access: Mapping[Pair, str] = field(default_factory=dict)
    peers_known: bool = True
    links_known: bool = True
    rate: float | None = None
    socket: float | None = None
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A link of a network, alike in both directions.

    Attributes:
        count: parallel links, of `bandwidth` each.
        port: of a host's link, the name of its adapter where the text has it.
    """

    a: str
    b: str
    kind: str
    bandwidth: float | None = None
    latency: float | None = None
    count: int = 1
    port: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """How hosts or devices are joined.

    Attributes:
        hosts: names of hosts, whose inside another file says; in order.
        devices: names of devices, where the text goes down to them; in order.
        switches: kind of each switch, by name.
    """

    sources: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    switches: Mapping[str, str] = field(default_factory=dict)
    edges: tuple[Edge, ...] = ()
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def numbers(text: str) -> tuple[int, ...] | None:
    """Return the numbers of a list with ranges such as "0,3-9"; None for N/A and nothing.

    >>> numbers("0-1,8")
    (0, 1, 8)
    """
    if not re.fullmatch(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*", text, re.ASCII):
        return None
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        stop = int(last or first)
        found += range(int(first), min(stop, int(first) + 4096) + 1)
    return tuple(dict.fromkeys(found[:4096]))
