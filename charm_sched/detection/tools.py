"""What the vendors' tools print about the machine, through the importers of their formats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from charm_sched.detection.access import Access
from charm_sched.errors import TopologyError
from charm_sched.importers import pcie
from charm_sched.importers.facts import Host
from charm_sched.importers.formats import format_of
from charm_sched.importers.reading import decode

QUERY = ("index", "pci.bus_id", "uuid", "mig.mode.current", "name")
_NVIDIA = ("nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader")
_AMD = ("rocm-smi", "--showbus")
TOOLS: tuple[tuple[tuple[str, ...], str], ...] = (  # commands, and the formats of their outputs
    (("nvidia-smi", "topo", "-m"), "topo-m"),
    (("nvidia-smi", "nvlink", "-s"), "nvlink-s"),
    (("nvidia-smi", "topo", "-p2p", "r"), "topo-p2p"),
    (("rocm-smi", "--showtopo"), "rocm-smi"),
    (("amd-smi", "topology"), "amd-smi"),
    (("lstopo-no-graphics", "--of", "xml"), "hwloc"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A GPU as its driver lists it."""

    index: int
    bus: str
    uuid: str = ""
    model: str = ""
    mig: bool = False


@dataclass(slots=True)
class Told:
    """What the tools say: the GPUs of a driver, and facts in the order of `TOOLS`."""

    gpus: tuple[Listed, ...] = ()
    hosts: list[Host] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def ask(access: Access) -> Told:
    """Run the tools that are there, and read what they print."""
    told = Told(gpus=_nvidia(access) or _amd(access))
    for command, name in TOOLS:
        text = access.run(command)
        if not text and command[0] == "lstopo-no-graphics":
            text = access.run(("lstopo", *command[1:]))
        if text:
            _read(told, command, name, text)
    return told


def _read(told: Told, command: Sequence[str], name: str, text: str) -> None:
    """Read an output; what is not in its format, such as "No devices were found", says nothing."""
    try:
        source = decode(text.encode(), " ".join(command))
        form = format_of(source, name)
        if form.recognise(source.text):
            fact = form.read(source)
            assert isinstance(fact, Host)
            told.hosts.append(fact)
    except TopologyError as error:
        if told.gpus or "expected a GPU, found none" not in str(error):
            told.doubts.append(f"not used: {error}")


def _nvidia(access: Access) -> tuple[Listed, ...]:
    found = []
    for line in access.run(_NVIDIA).splitlines():
        cells = [cell.strip() for cell in line.split(",", len(QUERY) - 1)]
        if len(cells) != len(QUERY) or not re.fullmatch(r"\d{1,4}", cells[0]):
            continue
        index, bus, uuid, mig, model = cells
        found.append(
            Listed(
                index=int(index), bus=pcie.bus_address(bus), model=model, mig=mig == "Enabled",
                uuid=uuid if re.fullmatch(r"GPU-[0-9a-fA-F-]{8,40}", uuid) else "",
            )
        )  # fmt: skip
    return tuple(found)


def _amd(access: Access) -> tuple[Listed, ...]:
    pattern = r"GPU\[(\d{1,4})\]\s*: PCI Bus: (\S+)"
    return tuple(
        Listed(index=int(index), bus=pcie.bus_address(bus))
        for index, bus in re.findall(pattern, access.run(_AMD))
    )
