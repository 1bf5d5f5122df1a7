"""PCI Express: addresses and classes, and what a link of some speed and width carries."""

from __future__ import annotations

import re

from charm_sched.errors import TopologyError

# Bytes per second of one lane, by transfer rate in GT/s: the constants that NCCL takes for what
# really arrives (graph/topo.cc), which gives 12, 24 and 48 GB/s for x16 of Gen3, Gen4 and Gen5.
LANE = {2.5: 0.1875e9, 5.0: 0.375e9, 8.0: 0.75e9, 16.0: 1.5e9, 32.0: 3.0e9, 64.0: 6.0e9}
GENERATIONS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
SOURCE = "NCCL's constant for PCIe {} x{} (graph/topo.cc)"

_BUS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-9a-f])")
_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s(?: PCIe)?")


def bus_address(text: str) -> str:
    """Return a PCI address in one spelling, "" if it is none.

    >>> bus_address("00000000:C1:00.0")
    '0000:c1:00.0'
    """
    match = _BUS.fullmatch(text.strip().lower())
    if match is None:
        return ""
    domain, bus, slot, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(slot, 16):02x}.{function}"


def gigatransfers(speed: str) -> float | None:
    """Return the transfer rate of "16.0 GT/s PCIe", None for an empty or unknown text."""
    match = _SPEED.fullmatch(speed.strip())
    return float(match[1]) if match else None


def link_bandwidth(speed: str, width: int | None) -> float | None:
    """Return bytes per second each way; None where speed or width are not known.

    >>> link_bandwidth("16.0 GT/s PCIe", 16)
    24000000000.0
    """
    rate = gigatransfers(speed)
    lane = None if rate is None else LANE.get(rate)
    return lane * width if lane and width else None


def x16(generation: int) -> float:
    """Return bytes per second of sixteen lanes.

    Raises:
        TopologyError: no such generation.
    """
    if generation not in GENERATIONS:
        raise TopologyError(f"expected a PCIe generation from 1 to 6, found {generation}")
    return 16 * LANE[GENERATIONS[generation]]


def generation_of(bandwidth: float) -> int:
    """Return the generation whose sixteen lanes come nearest to a bandwidth."""
    return min(GENERATIONS, key=lambda g: abs(x16(g) - bandwidth))


def is_gpu_class(text: str) -> bool:
    """Say whether a PCI class is that of a compute device: 3D, display or accelerator."""
    return text.lower()[:6] in ("0x0302", "0x0380", "0x1200")


def is_nic_class(text: str) -> bool:
    """Say whether a PCI class is that of a network card (Ethernet, InfiniBand)."""
    return text.lower()[:4] == "0x02"
