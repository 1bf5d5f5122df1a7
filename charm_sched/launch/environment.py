"""Environment variables for one host's ranks, each with the reason for it.

Sources: the environment variables of CUDA (CUDA Programming Guide, 5.2), of NCCL (NCCL user guide,
"Environment Variables") and of PyTorch's gloo backend (torch.distributed).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from charm_sched.launch.hosts import NIC, Host
from charm_sched.topology.graph import Topology

RDMA = re.compile(r"(?:mlx|bnxt_re|irdma|efa|hfi|rocep|ibp|ionic|mana)[\w.-]*(?::\d+)?")
INTERFACE = re.compile(r"(?:eth|en[ospx]|ib|bond|wl)[\w.]*")
MOST_QUEUES = 32


def environment(
    topology: Topology, host: Host, numbers: Sequence[int], *, topo_file: str = ""
) -> str:
    """Return ``export`` lines for one host, to be sourced by a shell.

    Args:
        topology: The machine.
        host: The host.
        numbers: CUDA's index of each of its ranks' devices.
        topo_file: An NCCL topology file that is to be used; "" for none.
    """
    lines = [f"# {topology.name}, host {host.name}: ranks {_span(host.ranks)}"]

    def export(name: str, value: str, reason: str) -> None:
        lines.append(f"export {name}={value}  # {reason}")

    uuids = _uuids(topology, host)
    export("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "indices count by PCI address, as nvidia-smi does")
    visible = ",".join(uuids or map(str, numbers))
    export("CUDA_VISIBLE_DEVICES", visible, "device of each local rank, in rank order")
    if topology_streams := _queues(host):
        export("CUDA_DEVICE_MAX_CONNECTIONS", str(topology_streams),
               "compute and each stream of transfers get a hardware queue of their own, so that "
               "none waits behind another (default 8)")  # fmt: skip
    cards, interfaces = _network(topology, host)
    if cards:
        export("NCCL_IB_HCA", f"={','.join(cards)}",
               "the cards that the plan counts on, by exact name (=)")  # fmt: skip
    else:
        lines.append("# NCCL_IB_HCA: the topology names no RDMA device of this host")
    if interfaces:
        first = interfaces[0]
        export("NCCL_SOCKET_IFNAME", f"={first}", "NCCL's own meeting goes over this interface")
        export("GLOO_SOCKET_IFNAME", first, "gloo binds to one interface; others may not be routed")
    else:
        lines.append("# NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME: the topology names no interface; "
                     "set both to the one with the route to the other hosts")  # fmt: skip
    if topo_file:
        export("NCCL_TOPO_FILE", topo_file, "NCCL takes the tree from this file instead of sysfs")
    else:
        lines.append("# NCCL_TOPO_FILE: only where NCCL does not see the PCI tree, as in virtual "
                     "machines; charm-topo export --format nccl-xml writes one")  # fmt: skip
    return "\n".join(lines) + "\n"


def _span(ranks: Sequence[int]) -> str:
    whole = tuple(ranks) == tuple(range(ranks[0], ranks[-1] + 1))
    if whole and len(ranks) > 1:
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks))


def _uuids(topology: Topology, host: Host) -> list[str]:
    """Return the UUIDs of the host's devices, none unless each has one."""
    found = [
        [word for word in topology.device(name).id.split() if word.startswith("GPU-")]
        for name in host.devices
    ]
    return [words[0] for words in found] if all(found) else []


def _queues(host: Host) -> int:
    """Return the number of hardware queues: the most, where there are transfers at all."""
    return MOST_QUEUES if len(host.ranks) > 1 or host.ranks[0] > 0 else 0


def _network(topology: Topology, host: Host) -> tuple[list[str], list[str]]:
    """Return the RDMA devices and the network interfaces that the file names for a host."""
    words = [
        word
        for switch in topology.switches
        if switch.kind == NIC and switch.name in host.parts
        for word in (*switch.id.split(), switch.name.rpartition("/")[2])
    ]
    words = list(dict.fromkeys(words))
    cards = [word for word in words if RDMA.fullmatch(word)]
    return cards, [w for w in words if INTERFACE.fullmatch(w) and w not in cards]
