"""What was seen on one or several machines, as one topology file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from charm_sched.detection.cpu_machine import CpuLay, with_devices
from charm_sched.detection.host import Seen
from charm_sched.detection.processors import Node
from charm_sched.detection.rates import Rates
from charm_sched.errors import TopologyError
from charm_sched.importers.build import Imported, build_hosts, gpu_machine
from charm_sched.importers.choices import Choices
from charm_sched.importers.facts import Host
from charm_sched.importers.merge import regrouped
from charm_sched.importers.naming import plain_name

MARK = "written by charm-topo detect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One machine's part.

    Attributes:
        rank: The lowest of the ranks that run there.
        ranks: How many run there.
        rates: Of its slowest NUMA node, where it has no GPUs and they were measured.
    """

    seen: Seen
    rank: int = 0
    ranks: int = 1
    rates: Rates | None = None


def described(
    parts: Sequence[Part], choices: Choices, *, name: str, split: int | None = None
) -> Imported:
    """Return the topology file of some machines, in the order of their ranks.

    Args:
        parts: What was seen; of each machine once.
        choices: What the user adds.
        name: Of the topology.
        split: Devices per NUMA node where there are no GPUs; None for as many as ranks need.

    Raises:
        TopologyError: Machines with and without GPUs, or one that looks broken.
    """
    parts = sorted(parts, key=lambda part: part.rank)
    bare = [part for part in parts if not part.seen.host.gpus]
    if bare and len(bare) < len(parts):
        raise TopologyError(
            f"expected GPUs on all hosts or on none, found none on "
            f"{', '.join(part.seen.name for part in bare[:8])}"
        )
    names = host_names([part.seen for part in parts])
    hosts = {
        name: _with_uuids(part.seen) if len(parts) == 1 else part.seen.host
        for name, part in zip(names, parts, strict=True)
    }
    lay = gpu_machine
    if bare:
        nodes = _common_nodes(parts, names)
        shares = split or max(-(-part.ranks // len(nodes)) for part in parts)
        hosts = {name: with_devices(host, nodes, shares) for name, host in hosts.items()}
        slowest = _slowest([part.rates for part in parts])
        lay = CpuLay(nodes, shares, slowest, parts[0].seen.processor)
        choices = replace(choices, numa=())
    elif choices.numa:
        hosts = {name: regrouped(host, choices.numa) for name, host in hosts.items()}
        choices = replace(choices, numa=())
    inside, doubts = grouped(hosts)
    if doubts:
        inside = {
            name: replace(host, doubts=(*host.doubts, *doubts)) for name, host in inside.items()
        }
    return build_hosts(inside, names, choices, name=name, mark=MARK, lay=lay)


def _common_nodes(parts: Sequence[Part], names: Sequence[str]) -> tuple[Node, ...]:
    """Return the NUMA nodes with usable processors, each with the least memory of all hosts.

    Raises:
        TopologyError: The hosts differ in their nodes or processors.
    """
    usable = [tuple(node for node in part.seen.nodes if node.usable) for part in parts]
    shapes = [[(node.number, len(node.usable)) for node in nodes] for nodes in usable]
    for name, shape in zip(names, shapes, strict=True):
        if shape != shapes[0] or not shape:
            raise TopologyError(
                f"expected hosts with the same NUMA nodes and processors, found {_told(shapes[0])} "
                f"on {names[0]} and {_told(shape)} on {name}"
            )
    return tuple(
        replace(alike[0], memory=min((n.memory for n in alike if n.memory), default=None))
        for alike in zip(*usable, strict=True)
    )


def _told(shape: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"node {number} with {count}" for number, count in shape) or "none"


def _with_uuids(seen: Seen) -> Host:
    """Return a host whose GPUs have their UUIDs; hosts of one template have other ones each."""
    gpus = tuple(replace(gpu, uuid=seen.uuids.get(gpu.name, "")) for gpu in seen.host.gpus)
    return replace(seen.host, gpus=gpus)


def host_names(seen: Sequence[Seen]) -> list[str]:
    """Return a name for each machine; of several alike the later ones get a number."""
    names: list[str] = []
    for one in seen:
        base = name = plain_name(one.name)
        number = 2
        while name in names:
            name, number = f"{base}-{number}", number + 1
        names.append(name)
    return names


def grouped(hosts: Mapping[str, Host]) -> tuple[dict[str, Host], list[str]]:
    """Return one host of those that are alike under "", the others by name, and who they are."""
    kinds: list[tuple[Host, list[str]]] = []
    for name, host in hosts.items():
        bare = _facts(host)
        for known, members in kinds:
            if _facts(known) == bare:
                members.append(name)
                break
        else:
            kinds.append((host, [name]))
    kinds.sort(key=lambda kind: -len(kind[1]))
    inside = {"": kinds[0][0]}
    doubts = []
    for host, members in kinds[1:]:
        inside |= dict.fromkeys(members, host)
        if len(kinds[0][1]) > 1:
            doubts.append(
                f"{', '.join(members[:8])}: unlike the other {len(kinds[0][1])} hosts: "
                f"{_difference(host, kinds[0][0])}"
            )
    return inside, doubts


def _facts(host: Host) -> Host:
    return replace(host, sources=(), notes=(), doubts=(), faults=())


def _difference(host: Host, usual: Host) -> str:
    for what, a, b in (("GPUs", host.gpus, usual.gpus), ("NICs", host.nics, usual.nics)):
        if len(a) != len(b):
            return f"{len(a)} {what} instead of {len(b)}"
    changed = [g.name for g, u in zip(host.gpus, usual.gpus, strict=True) if g != u]
    changed += [n.name for n, u in zip(host.nics, usual.nics, strict=True) if n != u]
    return f"{', '.join(changed[:8])}" if changed else "another PCI tree"


def _slowest(rates: Sequence[Rates | None]) -> Rates | None:
    known = [each for each in rates if each is not None]
    if len(known) < len(rates) or not known:
        return None
    return Rates(
        fp32=min(r.fp32 for r in known),
        fp64=min(r.fp64 for r in known),
        copy=min(r.copy for r in known),
    )


def slowest_node(part: Part, rates: Sequence[Rates | None]) -> Part:
    """Return a part with the rates of its slowest NUMA node."""
    return replace(part, rates=_slowest(rates))


def one_each(parts: Sequence[Part]) -> tuple[list[Part], list[str]]:
    """Return each machine once, with the number of its ranks, and what is odd about them.

    The same kernel, told by its boot ID, is the same machine, whatever containers say.

    Raises:
        TopologyError: Ranks of one machine see different GPUs.
    """
    found: dict[str, Part] = {}
    for part in sorted(parts, key=lambda each: each.rank):
        known = found.get(part.seen.identity.key)
        if known is None:
            found[part.seen.identity.key] = replace(part, ranks=1)
            continue
        ours = [gpu.bus for gpu in known.seen.host.gpus]
        theirs = [gpu.bus for gpu in part.seen.host.gpus]
        if ours != theirs:
            raise TopologyError(
                f"expected ranks of one machine to see the same GPUs, found {', '.join(ours)} at "
                f"rank {known.rank} and {', '.join(theirs)} at rank {part.rank}, in containers of "
                "their own (run charm-topo detect on the machine itself)"
            )
        found[part.seen.identity.key] = replace(known, ranks=known.ranks + part.ranks)
    installations = [p.seen.identity.machine for p in found.values() if p.seen.identity.machine]
    doubts = []
    if len(set(installations)) < len(installations):
        doubts.append("several machines have one machine ID, as clones of an image do; they are "
                      "told apart by the boot IDs of their kernels")  # fmt: skip
    return list(found.values()), doubts
