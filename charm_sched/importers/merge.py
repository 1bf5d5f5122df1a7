"""Several texts about one machine put together, and a list of what they disagree about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from charm_sched.errors import TopologyError
from charm_sched.importers.facts import ANYWHERE, Gpu, Host, Nic
from charm_sched.importers.grouping import partitions

Value = TypeVar("Value")


def merged(hosts: Iterable[Host]) -> Host:
    """Return one host with the facts of all, the earlier text first where both say something.

    Raises:
        TopologyError: they have different numbers of GPUs.
    """
    first, *rest = hosts
    for other in rest:
        first = _two(first, other)
    return first


def _two(a: Host, b: Host) -> Host:
    if len(a.gpus) != len(b.gpus):
        raise TopologyError(
            f"{b.sources[0]}: expected {len(a.gpus)} GPUs as in {a.sources[0]}, found "
            f"{len(b.gpus)} (are these two machines? write HOST=FILE for a machine of its own)"
        )
    b = _renamed(a, b)
    gpus = {gpu.name: gpu for gpu in b.gpus}
    a_direct = a.peers_known and _targets(a)
    return Host(
        sources=(*a.sources, *b.sources),
        gpus=tuple(
            _gpu(gpu, gpus[gpu.name], a_direct, b.peers_known and _targets(b)) for gpu in a.gpus
        ),
        nics=_nics(a.nics, b.nics),
        cpus=a.cpus or b.cpus,
        labels=a.labels or b.labels,
        paths=a.paths or b.paths,
        bridges={**b.bridges, **a.bridges},
        access=a.access or b.access,
        peers_known=a.peers_known or b.peers_known,
        links_known=a.links_known or b.links_known,
        rate=_first(a.rate, b.rate),
        socket=_first(a.socket, b.socket),
        notes=(*a.notes, *b.notes),
        doubts=(*a.doubts, *b.doubts, *differences(a, b)),
        faults=(*a.faults, *b.faults),
    )


def _targets(host: Host) -> bool:
    return all(peer.target != ANYWHERE for gpu in host.gpus for peer in gpu.peers)


def _first(a: Value | None, b: Value | None) -> Value | None:
    return a if a is not None else b


def _renamed(a: Host, b: Host) -> Host:
    """Return b with the GPU names of a: by PCI address where both have it, else as they are.

    NICs of a matrix are renamed to their RDMA device where the other text names it so.
    """
    buses = {gpu.bus: gpu.name for gpu in a.gpus if gpu.bus}
    names = {gpu.name: buses.get(gpu.bus, gpu.name) for gpu in b.gpus}
    if len(set(names.values())) < len(names):
        names = {gpu.name: gpu.name for gpu in b.gpus}
    known = {nic.name for nic in a.nics}
    devices = {nic.device: nic.name for nic in a.nics if nic.device}
    for nic in b.nics:
        names[nic.name] = devices.get(nic.name, nic.name)
        if nic.device in known:
            names[nic.name] = nic.device
    if {gpu.name for gpu in a.gpus} != {names[gpu.name] for gpu in b.gpus}:
        ours = {gpu.name for gpu in a.gpus}
        theirs = {names[gpu.name] for gpu in b.gpus}
        raise TopologyError(
            f"{b.sources[0]}: expected the GPUs of {a.sources[0]}, found "
            f"{', '.join(sorted(theirs - ours))} instead of {', '.join(sorted(ours - theirs))}"
        )
    return replace(
        b,
        gpus=tuple(
            replace(
                gpu,
                name=names[gpu.name],
                peers=tuple(replace(p, target=names.get(p.target, p.target)) for p in gpu.peers),
            )
            for gpu in b.gpus
        ),
        nics=tuple(replace(nic, name=names[nic.name]) for nic in b.nics),
        labels={
            (names.get(x, x), names.get(y, y)): label for (x, y), label in b.labels.items()
        },
        paths={names.get(key, key): path for key, path in b.paths.items()},
        access={(names.get(x, x), names.get(y, y)): word for (x, y), word in b.access.items()},
    )  # fmt: skip


def _gpu(a: Gpu, b: Gpu, a_direct: bool, b_direct: bool) -> Gpu:
    peers = a.peers if a_direct else b.peers if b_direct else a.peers or b.peers
    return replace(
        a,
        bus=a.bus or b.bus,
        model=" ".join(dict.fromkeys(filter(None, (a.model, b.model)))),
        numa=_first(a.numa, b.numa),
        cpus=a.cpus or b.cpus,
        memory_node=_first(a.memory_node, b.memory_node),
        slot=_first(a.slot, b.slot),
        ranks=_first(a.ranks, b.ranks),
        uuid=a.uuid or b.uuid,
        peers=peers,
    )


def _nics(a: tuple[Nic, ...], b: tuple[Nic, ...]) -> tuple[Nic, ...]:
    others = {nic.name: nic for nic in b}
    found = []
    for nic in a:
        other = others.pop(nic.name, nic)
        found.append(
            replace(
                nic,
                device=nic.device or other.device,
                speed=_first(nic.speed, other.speed),
                slot=_first(nic.slot, other.slot),
                card=nic.card or other.card,
                id=nic.id or other.id,
            )
        )
    return (*found, *others.values())


def differences(a: Host, b: Host) -> list[str]:
    """Return how two descriptions of one machine group its GPUs differently, one line each."""
    if not (a.links_known and b.links_known):
        return _count_differences(a, b)
    ours, theirs = partitions(a), partitions(b)
    found = []
    for level in ours:
        if level == "direct link" and not (a.peers_known and b.peers_known):
            continue
        if level == "PCIe switch" and not (_sees_switches(a) and _sees_switches(b)):
            continue
        if ours[level] != theirs[level]:
            found.append(
                f"groups of GPUs by {level}: {_listed(ours[level])} in {a.sources[0]}, "
                f"{_listed(theirs[level])} in {b.sources[0]}"
            )
    return found + _count_differences(a, b)


def _sees_switches(host: Host) -> bool:
    """Say whether a text shows PCIe switches: classes hidden by NVLink do not."""
    gpus = {gpu.name for gpu in host.gpus}
    return bool(host.paths) or not any(
        label.startswith(("NV", "XGMI")) for pair, label in host.labels.items() if gpus >= set(pair)
    )


def _count_differences(a: Host, b: Host) -> list[str]:
    found = []
    for gpu, other in zip(a.gpus, sorted(b.gpus, key=lambda g: _order(a, g)), strict=True):
        ours, theirs = _links(gpu), _links(other)
        if a.peers_known and b.peers_known and None not in (ours, theirs) and ours != theirs:
            found.append(
                f"{gpu.name}: {ours} direct links in {a.sources[0]}, {theirs} in {b.sources[0]}"
            )
    return found


def _order(host: Host, gpu: Gpu) -> int:
    return [each.name for each in host.gpus].index(gpu.name)


def _links(gpu: Gpu) -> int | None:
    counts = [peer.count for peer in gpu.peers]
    return None if None in counts else sum(count or 0 for count in counts)


def _listed(groups: frozenset[frozenset[str]]) -> str:
    def numbers(group: Iterable[str]) -> list[str]:
        return sorted((name.removeprefix("gpu") for name in group), key=lambda n: (len(n), n))

    shown = sorted((numbers(group) for group in groups), key=lambda g: (len(g[0]), g[0]))
    return " ".join("{" + ",".join(group) + "}" for group in shown) or "none"


def regrouped(host: Host, groups: tuple[tuple[int, ...], ...]) -> Host:
    """Return the host with its GPUs on the processors that the user says.

    Raises:
        TopologyError: the groups do not hold every GPU once.
    """
    numbers = [int(gpu.name.removeprefix("gpu")) for gpu in host.gpus]
    if sorted(n for group in groups for n in group) != sorted(numbers):
        raise TopologyError(
            f"--numa: expected each of the GPUs {', '.join(map(str, sorted(numbers)))} once, found "
            + ",".join("-".join(map(str, group)) for group in groups)
        )
    node = {f"gpu{n}": i for i, group in enumerate(groups) for n in group}
    labels: Mapping[tuple[str, str], str] = {
        (a, b): _relabelled(label, node.get(a), node.get(b))
        for (a, b), label in host.labels.items()
    }
    paths = {
        name: ((f"numa{node[name]}", *path[1:]) if name in node else path)
        for name, path in host.paths.items()
    }
    return replace(
        host,
        gpus=tuple(replace(gpu, numa=(node[gpu.name],), cpus="") for gpu in host.gpus),
        labels=labels,
        paths=paths,
        notes=(*host.notes, "which GPUs share a processor was given by --numa"),
    )


def _relabelled(label: str, a: int | None, b: int | None) -> str:
    if a is None or b is None or label.startswith(("NV", "XGMI")):
        return label
    if a != b:
        return "SYS"
    return label if label in ("PIX", "PXB", "PHB") else "NODE"
