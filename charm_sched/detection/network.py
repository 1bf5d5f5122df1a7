"""Network cards: RDMA devices with their ports, and Ethernet interfaces."""

from __future__ import annotations

import re
from dataclasses import dataclass

from charm_sched.detection.access import Access
from charm_sched.detection.pci import Function, addresses_in

RDMA, ETHERNET = "/sys/class/infiniband", "/sys/class/net"
GIGABIT, MEGABIT = 1e9 / 8, 1e6 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port.

    Attributes:
        name: "mlx5_0", or "mlx5_0:2" for a second port, or "eth0".
        bus: PCI address, "" where the card is on no PCI bus.
        speed: bytes per second, None where it is not told.
        interface: network interface of the same PCI device, "" for none.
        rdma: whether it is an RDMA device.
    """

    name: str
    bus: str
    speed: float | None
    interface: str
    rdma: bool


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports that can be used, and what is said about the others."""

    used: tuple[Port, ...]
    notes: tuple[str, ...]


def read_ports(access: Access, functions: dict[str, Function]) -> Ports:
    """Return the usable ports: RDMA where there is any, else Ethernet.

    Ports that are down are left out, and virtual functions whose card is here too.
    """
    interfaces = _interfaces(access)
    notes: list[str] = []
    rdma = _rdma(access, interfaces, notes)
    beside = {port.bus for port in rdma}
    ethernet = [port for port in _ethernet(access, interfaces, notes) if port.bus not in beside]
    found = _without_virtual(rdma or ethernet, functions, notes)
    if rdma and ethernet:
        names = ", ".join(port.name for port in ethernet[:8])
        notes.append(f"Ethernet beside RDMA, left out: {names}")
    return Ports(tuple(found), tuple(notes))


def _interfaces(access: Access) -> dict[str, str]:
    """Return the network interface of each PCI device; virtual ones have none."""
    found: dict[str, str] = {}
    for name in access.names(ETHERNET):
        path = addresses_in(access.link(f"{ETHERNET}/{name}"))
        if path:
            found.setdefault(path[-1], name)
    return found


def _rdma(access: Access, interfaces: dict[str, str], notes: list[str]) -> list[Port]:
    found = []
    for name in access.names(RDMA):
        folder = f"{RDMA}/{name}"
        path = addresses_in(access.link(folder)) or addresses_in(access.link(f"{folder}/device"))
        bus = path[-1] if path else ""
        for number in access.names(f"{folder}/ports"):
            state = access.text(f"{folder}/ports/{number}/state")
            if state and "ACTIVE" not in state:
                notes.append(f"{name}, port {number} is {state.rpartition(' ')[2]}: left out")
                continue
            found.append(
                Port(
                    name=name if number == "1" else f"{name}:{number}",
                    bus=bus,
                    speed=_gigabits(access.text(f"{folder}/ports/{number}/rate")),
                    interface=interfaces.get(bus, ""),
                    rdma=True,
                )
            )
    return found


def _gigabits(text: str) -> float | None:
    """Return the rate of "200 Gb/sec (4X HDR)"."""
    match = re.match(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec", text)
    return float(match[1]) * GIGABIT if match and float(match[1]) > 0 else None


def _ethernet(access: Access, interfaces: dict[str, str], notes: list[str]) -> list[Port]:
    found = []
    for bus, name in interfaces.items():
        state = access.text(f"{ETHERNET}/{name}/operstate")
        if state == "down":
            notes.append(f"{name} is down: left out")
            continue
        speed = access.number(f"{ETHERNET}/{name}/speed")
        rate = speed * MEGABIT if speed is not None and speed > 0 else None
        found.append(Port(name=name, bus=bus, speed=rate, interface=name, rdma=False))
    return found


def _without_virtual(
    ports: list[Port], functions: dict[str, Function], notes: list[str]
) -> list[Port]:
    """Leave out virtual functions beside a physical port that is up; in a container they count."""
    virtual = [p for p in ports if p.bus in functions and functions[p.bus].virtual]
    if not virtual or len(virtual) == len(ports):
        return ports
    notes.append(f"{len(virtual)} virtual functions (SR-IOV) share ports of their cards: left out")
    return [port for port in ports if port not in virtual]
