"""NUMA nodes with their processors and memory, and who this machine is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from charm_sched.detection.access import Access
from charm_sched.importers.facts import numbers

NODES = "/sys/devices/system/node"
CPUS = "/sys/devices/system/cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A NUMA node that has processors.

    Attributes:
        usable: those of its processors that this process may run on.
        memory: bytes, None where it is not told.
        distances: to the nodes in their order, as firmware states them; 10 is itself.
    """

    number: int
    cpus: tuple[int, ...]
    usable: tuple[int, ...]
    memory: float | None
    distances: tuple[int, ...]


def read_nodes(access: Access) -> tuple[Node, ...]:
    """Return the NUMA nodes with processors; a kernel without NUMA has one.

    Nodes without processors are memory of devices or of CXL, and no sockets.
    """
    status = re.search(r"^Cpus_allowed_list:\s*(\S+)", access.text("/proc/self/status"), re.M)
    allowed = numbers(status[1]) if status else None
    found = []
    for name in access.names(NODES):
        match = re.fullmatch(r"node(\d{1,6})", name)
        cpus = numbers(access.text(f"{NODES}/{name}/cpulist")) if match else None
        if match and cpus:
            found.append(
                Node(
                    number=int(match[1]),
                    cpus=cpus,
                    usable=_allowed(cpus, allowed),
                    memory=_kilobytes(access.text(f"{NODES}/{name}/meminfo")),
                    distances=_numbers(access.text(f"{NODES}/{name}/distance")),
                )
            )
    if found:
        return tuple(sorted(found, key=lambda node: node.number))
    cpus = numbers(access.text(f"{CPUS}/online")) or (0,)
    memory = _kilobytes(access.text("/proc/meminfo"))
    usable = _allowed(cpus, allowed)
    return (Node(number=0, cpus=cpus, usable=usable, memory=memory, distances=(10,)),)


def _allowed(cpus: tuple[int, ...], allowed: tuple[int, ...] | None) -> tuple[int, ...]:
    return cpus if allowed is None else tuple(cpu for cpu in cpus if cpu in allowed)


def _kilobytes(text: str) -> float | None:
    match = re.search(r"MemTotal:\s+(\d{1,15}) kB", text)
    return float(match[1]) * 1024 if match else None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split() if word.isdigit() and len(word) < 6)


def processor_name(access: Access) -> str:
    """Return the product name of the processor, "" where it is not told."""
    match = re.search(r"^(?:model name|cpu|Model)\s*: *(\S.*)$", access.text("/proc/cpuinfo"), re.M)
    return match[1].strip() if match else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a machine is.

    Attributes:
        boot: of its kernel since it was started: one for all containers of a machine.
        machine: of its installation; clones of an image may share it.
        name: of the host.
    """

    boot: str
    machine: str
    name: str

    @property
    def key(self) -> str:
        """What is equal on one machine, and only there."""
        return self.boot or self.machine or self.name


def read_identity(access: Access) -> Identity:
    """Return who this machine is."""
    return Identity(
        boot=access.text("/proc/sys/kernel/random/boot_id"),
        machine=access.text("/etc/machine-id"),
        name=access.text("/proc/sys/kernel/hostname").partition(".")[0],
    )
