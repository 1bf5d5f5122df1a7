"""The PCI tree of sysfs: devices, the bridges above them, and what their links carry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from charm_sched.detection.access import Access
from charm_sched.importers import pcie

DEVICES = "/sys/bus/pci/devices"
NVIDIA, AMD = "0x10de", "0x1002"
ASLEEP = 5.0  # GT/s; GPUs lower their links to Gen1 or Gen2 while they idle
Number = TypeVar("Number", int, float)
_ADDRESS = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]"
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function of a PCI device.

    Attributes:
        code: PCI class, "0x030200".
        numa: NUMA node, None where the kernel does not know.
        root: the bus below the processor, "pci0000:00".
        bridges: addresses above it, outermost first.
        speed, width: of its link as trained, most_speed, most_width: as it could be.
        virtual: a virtual function (SR-IOV) whose physical one is here as well.
    """

    address: str
    code: str
    vendor: str
    device: str
    numa: int | None
    root: str
    bridges: tuple[str, ...]
    speed: float | None
    width: int | None
    most_speed: float | None
    most_width: int | None
    virtual: bool

    @property
    def is_gpu(self) -> bool:
        """Say whether this computes: NVIDIA's displays count, those of processors do not."""
        if self.vendor == NVIDIA:
            return pcie.is_gpu_class(self.code) or self.code.startswith("0x0300")
        return self.vendor == AMD and pcie.is_gpu_class(self.code)


def read_functions(access: Access) -> dict[str, Function]:
    """Return every PCI function by its address."""
    found = {}
    for name in access.names(DEVICES):
        address = pcie.bus_address(name)
        if address:
            found[address] = _read(access, name, address)
    return found


def addresses_in(path: str) -> list[str]:
    """Return the PCI addresses that a path of sysfs goes through, outermost first."""
    return [
        pcie.bus_address(part) for part in path.split("/") if re.fullmatch(_ADDRESS, part.lower())
    ]


def _read(access: Access, name: str, address: str) -> Function:
    folder = f"{DEVICES}/{name}"
    path = access.link(folder)
    numa = access.number(f"{folder}/numa_node")
    root = next((part for part in path.split("/") if _ROOT.fullmatch(part.lower())), "")
    return Function(
        address=address,
        code=access.text(f"{folder}/class").lower(),
        vendor=access.text(f"{folder}/vendor").lower(),
        device=access.text(f"{folder}/device").lower(),
        numa=numa if numa is not None and numa >= 0 else None,
        root=root,
        bridges=tuple(a for a in addresses_in(path) if a != address),
        speed=pcie.gigatransfers(access.text(f"{folder}/current_link_speed")),
        width=_width(access.number(f"{folder}/current_link_width")),
        most_speed=pcie.gigatransfers(access.text(f"{folder}/max_link_speed")),
        most_width=_width(access.number(f"{folder}/max_link_width")),
        virtual=access.exists(f"{folder}/physfn"),
    )


def _width(lanes: int | None) -> int | None:
    """Return a number of lanes that there are; virtual machines say 0, 63 or 255."""
    return lanes if lanes in (1, 2, 4, 8, 12, 16, 32) else None


def node_of(
    function: Function, functions: Mapping[str, Function], nodes: tuple[int, ...]
) -> int | None:
    """Return the NUMA node: as it says, as others below the same root say, or the only one."""
    if function.numa is not None:
        return function.numa
    beside = {
        other.numa
        for other in functions.values()
        if other.root == function.root and function.root and other.numa is not None
    }
    if len(beside) == 1:
        return beside.pop()
    return nodes[0] if len(nodes) == 1 else None


@dataclass(frozen=True, slots=True)
class Carried:
    """What a link carries each way, None where that is not known, and what is odd about it."""

    bandwidth: float | None
    doubt: str = ""


def carried(function: Function, functions: Mapping[str, Function], name: str) -> Carried:
    """Return what the link of a function carries, and whether it is below what both ends can."""
    if function.speed is None or function.width is None:
        return Carried(None)
    above = functions.get(function.bridges[-1]) if function.bridges else None
    speed = _least(function.most_speed, above.most_speed if above else None) or function.speed
    width = _least(function.most_width, above.most_width if above else None) or function.width
    told = f"{name} ({function.address})"
    best = f"both ends can x{width:g} of {speed:g} GT/s"
    if function.width < width:
        rate = pcie.LANE.get(function.speed)
        doubt = (
            f"{told}: the link is trained down to x{function.width} of {function.speed:g} GT/s, "
            f"{best}: a bad contact or riser?"
        )
        return Carried(rate * function.width if rate else None, doubt)
    if function.speed < speed:
        asleep = function.is_gpu and function.speed <= ASLEEP
        used = pcie.LANE.get(speed if asleep else function.speed)
        why = (
            "asleep while idle, or trained down; taken as awake (keep it busy and detect again)"
            if asleep else "trained down"
        )  # fmt: skip
        doubt = f"{told}: the link runs at {function.speed:g} GT/s, {best}: {why}"
        return Carried(used * function.width if used else None, doubt)
    rate = pcie.LANE.get(function.speed)
    return Carried(rate * function.width if rate else None)


def _least(a: Number | None, b: Number | None) -> Number | None:
    known = [value for value in (a, b) if value is not None]
    return min(known) if known else None


def bridge_widths(
    functions: Mapping[str, Function], used: set[str]
) -> tuple[dict[str, float | None], list[str]]:
    """Return what the bridges above some functions carry towards the processor, and doubts.

    Root ports and the lower ports of switches stand above a link whose other end is counted, so
    they limit nothing themselves: bridges at every second depth have a link of their own.
    """
    widths: dict[str, float | None] = {}
    doubts: list[str] = []
    for address in sorted({b for name in used for b in functions[name].bridges}):
        bridge = functions.get(address)
        if bridge is None or len(bridge.bridges) % 2 == 0:
            widths[address] = None
            continue
        found = carried(bridge, functions, "the PCIe switch")
        virtual = found.bandwidth is not None and found.bandwidth <= pcie.LANE[2.5]
        widths[address] = None if virtual else found.bandwidth
        doubts += [found.doubt] if found.doubt and not virtual else []
    return widths, doubts
