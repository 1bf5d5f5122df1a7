"""Machines as files of the kernel below some folder, and as what tools print about them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from charm_sched.detection.access import Access
from charm_sched.detection.host import Seen, look
from charm_sched.detection.together import Part, described
from charm_sched.importers.build import Imported
from charm_sched.importers.choices import Choices
from charm_sched.topology.file import parse_topology
from charm_sched.topology.graph import Topology

GEN4 = {
    "current_link_speed": "16.0 GT/s PCIe", "max_link_speed": "16.0 GT/s PCIe",
    "current_link_width": "16", "max_link_width": "16",
}  # fmt: skip
A100 = {"class": "0x030200", "vendor": "0x10de", "device": "0x20b5", **GEN4}
BRIDGE = {"class": "0x060400", "vendor": "0x10b5", "device": "0x8796", **GEN4}
CARD = {"class": "0x020700", "vendor": "0x15b3", "device": "0x101b", **GEN4}


class Tree:
    """A root folder that is filled step by step."""

    def __init__(self, root: Path, nodes: int = 2) -> None:
        self.root = root
        self.outputs: dict[str, str] = {}
        self.write("/proc/sys/kernel/random/boot_id", f"boot-of-{root.name}")
        self.write("/proc/sys/kernel/hostname", root.name)
        self.write("/proc/cpuinfo", "processor : 0\nmodel name : AMD EPYC 7763\n")
        for node in range(nodes):
            self.node(node, f"{16 * node}-{16 * node + 15}")

    def write(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")

    def node(self, number: int, cpus: str) -> None:
        folder = f"/sys/devices/system/node/node{number}"
        self.write(f"{folder}/cpulist", cpus)
        self.write(f"{folder}/meminfo", f"Node {number} MemTotal:       65536000 kB")
        self.write(f"{folder}/distance", "10 32")

    def pci(self, path: str, numa: int = -1, **facts: str) -> None:
        """Add a function; `path` is "0000:c0:01.1/0000:c1:00.0", from its root bus down."""
        parts = path.split("/")
        folder = f"/sys/devices/pci{parts[0][:7]}/{path}"
        for name, text in facts.items():
            self.write(f"{folder}/{name.rstrip('_')}", text)
        self.write(f"{folder}/numa_node", str(numa))
        self.link(f"/sys/bus/pci/devices/{parts[-1]}", f"../../../{folder.removeprefix('/sys/')}")

    def link(self, path: str, target: str) -> None:
        link = self.root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, link)

    def rdma(
        self, name: str, path: str, state: str = "4: ACTIVE", rate: str = "200 Gb/sec (4X HDR)",
        interface: str = "",
    ) -> None:  # fmt: skip
        base = f"devices/pci{path.split('/')[0][:7]}/{path}"
        self.link(f"/sys/class/infiniband/{name}", f"../../{base}/infiniband/{name}")
        for file, text in (("state", state), ("rate", rate)):
            self.write(f"/sys/{base}/infiniband/{name}/ports/1/{file}", text)
        if interface:
            self.ethernet(interface, path)

    def ethernet(self, name: str, path: str, speed: str = "25000", state: str = "up") -> None:
        base = f"devices/pci{path.split('/')[0][:7]}/{path}"
        self.link(f"/sys/class/net/{name}", f"../../{base}/net/{name}")
        self.write(f"/sys/{base}/net/{name}/speed", speed)
        self.write(f"/sys/{base}/net/{name}/operstate", state)

    def tool(self, command: str, text: str) -> None:
        self.outputs[command] = text

    def access(self) -> Access:
        return Access(root=self.root, run=self._run)

    def _run(self, command: Sequence[str]) -> str:
        line = " ".join(command)
        return next((text for key, text in self.outputs.items() if line.startswith(key)), "")

    def seen(self, **options: bool) -> Seen:
        return look(self.access(), **options)

    def made(self, choices: Choices | None = None) -> Imported:
        return described([Part(seen=self.seen())], choices or Choices(), name="box")

    def topology(self, choices: Choices | None = None) -> Topology:
        return parse_topology(self.made(choices).text, where="made")


PLACES = ("0000:40:01.1/0000:41:00.0", "0000:c0:01.1/0000:c1:00.0")  # root port and switch


def box(root: Path, *, numa: Sequence[int] = (0, 1), gpu: Mapping[str, str] = A100) -> Tree:
    """Give two sockets, each with a PCIe switch, two GPUs and a network card."""
    tree = Tree(root)
    for socket, place in enumerate(PLACES):
        start = int(place[18:20], 16)
        tree.pci(place.split("/")[0], numa[socket], **BRIDGE)
        tree.pci(place, numa[socket], **BRIDGE)
        for slot in range(3):
            down = f"{place}/0000:{start + 1:02x}:{slot:02x}.0"
            tree.pci(down, numa[socket], **BRIDGE)
            end = f"{down}/0000:{start + 2 + slot:02x}:00.0"
            tree.pci(end, numa[socket], **(gpu if slot < 2 else CARD))
            if slot == 2:
                tree.rdma(f"mlx5_{socket}", end, interface=f"ens{socket}")
    return tree


GPUS = ("0000:43:00.0", "0000:44:00.0", "0000:c3:00.0", "0000:c4:00.0")


def smi(tree: Tree, *, mig: Sequence[int] = (), listed: Sequence[int] = range(4)) -> None:
    """Let nvidia-smi list the GPUs."""
    tree.tool(
        "nvidia-smi --query-gpu",
        "".join(
            f"{i}, 0000{GPUS[i].upper()}, GPU-0000000{i}-1111-2222-3333-444444444444, "
            f"{'Enabled' if i in mig else 'Disabled'}, NVIDIA A100 80GB PCIe\n"
            for i in listed
        ),
    )
