"""Machines that look wrong: lost NVLinks, hidden sockets, cards without their bridge."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from charm_sched.importers.facts import NEAR, SWITCH, Host
from charm_sched.importers.grouping import planes

AS_IS = "--as-is imports the machine as it is"


def examined(host: Host) -> Host:
    """Return the host with doubts and faults added."""
    faults = [*host.faults, *_lost_switch_links(host), *_one_way(host)]
    doubts = [*host.doubts, *_flattened(host), *_unbridged(host), *_access(host)]
    return replace(host, faults=tuple(faults), doubts=tuple(dict.fromkeys(doubts)))


def _lost_switch_links(host: Host) -> list[str]:
    """Find GPUs that have fewer links to the NVSwitches than their siblings, or none."""
    totals = {
        gpu.name: sum(p.count or 1 for p in gpu.peers if p.target == SWITCH) for gpu in host.gpus
    }
    if not any(totals.values()):
        return []
    most = max(totals.values())
    faults = [
        f"{name} has {count or 'no'} NVLink{'' if count == 1 else 's'}, its siblings have {most}"
        for name, count in totals.items()
        if count < most
    ]
    for plane in planes(host):
        for i, a in enumerate(plane):
            for b in plane[i + 1 :]:
                label = host.labels.get((a, b), "NV")
                if not label.startswith("NV"):
                    faults.append(f"{a} and {b}: {label}, all others are joined by NVSwitches")
    return faults


def _one_way(host: Host) -> list[str]:
    """Find direct links that only one of their ends names."""
    counts = {
        (gpu.name, peer.target): peer.count
        for gpu in host.gpus
        for peer in gpu.peers
        if peer.target != SWITCH
    }
    return [
        f"{a} names {count or 1} links to {b}, {b} names {counts.get((b, a), 0)} to {a}"
        for (a, b), count in counts.items()
        if counts.get((b, a), 0) != count and (a < b or (b, a) not in counts)
    ]


def _flattened(host: Host) -> list[str]:
    """Find machines whose text hides the processors, as virtual machines and numa=off do."""
    gpus = [gpu.name for gpu in host.gpus]
    pairs = [(a, b) for i, a in enumerate(gpus) for b in gpus[i + 1 :]]
    classes = {host.labels.get(pair, "") for pair in pairs}
    nodes = {gpu.numa for gpu in host.gpus}
    if len(gpus) < 2 or len(nodes) > 1:
        return []
    if classes == {"SYS"} and None not in nodes:
        return ["every pair of GPUs is SYS in one NUMA node: a virtual machine that hides its "
                "buses? --numa 0-3,4-7 says which GPUs share a processor"]  # fmt: skip
    if len(gpus) > 3 and len(classes) == 1 and classes <= set(NEAR) and classes & {"NODE", "PHB"}:
        return [f"every pair of GPUs is {classes.pop()} in one NUMA node: two sockets would not be "
                "seen (numa=off, a virtual machine); --numa 0-3,4-7 says it"]  # fmt: skip
    return []


def _unbridged(host: Host) -> list[str]:
    """Find cards without the NVLink bridge that others of the machine have."""
    if not host.peers_known or any(p.target == SWITCH for gpu in host.gpus for p in gpu.peers):
        return []
    linked = {gpu.name for gpu in host.gpus if any(p.kind == "nvlink" for p in gpu.peers)}
    bare = [gpu.name for gpu in host.gpus if gpu.name not in linked]
    if not linked or not bare:
        return []
    return [f"{', '.join(bare)}: no NVLink, while {', '.join(sorted(linked))} have it: a bridge "
            "that is missing or not seated?"]  # fmt: skip


CODES = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "NS": "it is not supported",
    "DR": "it is switched off by a registry key",
    "U": "it is unknown",
}


def _access(host: Host) -> list[str]:
    """Say why pairs have no peer access."""
    words = Counter(word for word in host.access.values() if word != "OK")
    told = [f"{word} ({CODES.get(word, 'unknown')})" for word in sorted(words)]
    if not told:
        return []
    every = "no pair of GPUs has" if "OK" not in host.access.values() else "not every pair has"
    return [f"{every} peer access: {', '.join(told)}"]
