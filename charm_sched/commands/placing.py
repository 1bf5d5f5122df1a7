"""What ``charm-topo place`` and ``charm-topo export`` do: choose devices, and tell launchers."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.commands.common import load_machine
from charm_sched.commands.options import argument, count, device_names, workload_of
from charm_sched.errors import TopologyError
from charm_sched.files import write_whole
from charm_sched.render.terminal import progress_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from charm_sched.launch.hosts import Host
    from charm_sched.placement.place import Placement
    from charm_sched.topology.graph import Topology

FORMATS = ("nccl-xml", "hostfile", "rankfile", "slurm", "env")
PLACE = """\
Choose the devices for some ranks and their order, and say what another choice costs.

With --ranks N the best N devices are looked for; with --devices the choice given there is compared
with the best one of as many. Devices go by their names, by CUDA's index, UUID or PCI address;
--devices visible is what CUDA_VISIBLE_DEVICES lists."""
EXPORT = """\
Write what launchers and NCCL read, for the ranks of a topology.

nccl-xml: NCCL_TOPO_FILE of one host. hostfile: hosts in rank order with the torchrun line of each.
rankfile: for mpirun --rankfile. slurm: SLURM_HOSTFILE for srun --distribution=arbitrary. env:
environment variables of one host, each with its reason."""


def add_place_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``charm-topo place`` beside the workload flags."""
    parser.add_argument("topology", metavar="TOPOLOGY", help="a file, or the name of a shipped one")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def place_command(parser: ArgumentParser, args: Namespace) -> None:
    """Run ``charm-topo place``.

    Raises:
        CharmSchedError: Unknown devices, or nothing can be planned.
    """
    from charm_sched.placement.place import place
    from charm_sched.topology.calling import resolved

    workload = workload_of(parser, args)
    machine = load_machine(args.topology)
    given = resolved(machine, args.devices) if args.devices else None
    with progress_line(machine.name, quiet=args.json) as say:
        ranks = len(given) if given else args.ranks
        found = place(machine, workload, ranks=ranks, given=given, progress=say)
    if args.json:
        from charm_sched.report import documents as report

        report.write_json(_document(found))
        return
    sys.stdout.write("".join(f"{line}\n" for line in _lines(machine, found, args.devices or ())))


def _lines(machine: Topology, found: Placement, words: tuple[str, ...]) -> list[str]:
    from charm_sched.topology.calling import numbers
    from charm_sched.units import format_seconds

    best = found.best
    by = " and ".join(f"{name} {way}" for way, name in best.strategies.items())
    index = dict(zip(machine.device_names, numbers(machine), strict=True))
    lines = told(found, words)
    lines.insert(1, f"  {format_seconds(best.seconds)} with {by}")
    if all("/" not in name for name in best.devices):
        lines.append("CUDA_VISIBLE_DEVICES=" + ",".join(str(index[d]) for d in best.devices))
    how = "all kinds of sets and all orders" if found.exact else "a search, not all choices"
    lines.append(f"  from {found.sets} kinds of sets, {found.simulated} simulated ({how})")
    return lines


def told(found: Placement, words: Sequence[str]) -> list[str]:
    """Return the best choice, and what the one that was given costs, as it was written."""
    lines = [f"best: {','.join(found.best.devices)}"]
    if found.given is not None:
        order = ",".join(words if len(words) == len(found.given.devices) else found.given.devices)
        if found.cost > 0.0005 or found.ring_cost > 0.0005:
            plan = f"costs {found.cost:.1%}" if found.cost > 0.0005 else "costs these plans nothing"
            lines.append(
                f"order {order} {plan}, and a plain ring {found.ring_cost:.1%}: {found.reason()}"
            )
        else:
            lines.append(f"order {order} is as good")
    return lines


def _document(found: Placement) -> dict[str, object]:
    def one(placed: object) -> dict[str, object] | None:
        from charm_sched.placement.place import Placed

        if not isinstance(placed, Placed):
            return None
        return {
            "devices": list(placed.devices), "seconds": placed.seconds,
            "ring_seconds": placed.ring_seconds, "strategies": placed.strategies,
            "crossings": placed.crossings,
        }  # fmt: skip

    return {
        "schema": "charm-sched/placement", "version": 1, "best": one(found.best),
        "given": one(found.given), "cost": found.cost if found.given else None,
        "ring_cost": found.ring_cost if found.given else None, "reason": found.reason() or None,
        "sets": found.sets, "simulated": found.simulated, "exact": found.exact,
    }  # fmt: skip


def add_export_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``charm-topo export``."""
    parser.add_argument("topology", metavar="TOPOLOGY", help="a file, or the name of a shipped one")
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write here instead of standard output"
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--ranks", metavar="N", type=count, help="N devices, spread evenly over the domains"
    )
    who.add_argument(
        "--devices", metavar="A,B,...", type=argument(device_names),
        help="these devices, in rank order (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--hosts", metavar="A,B,...", type=argument(device_names),
        help="names of the hosts, in rank order; n1..8 is n1 to n8 (default: as in the file)",
    )  # fmt: skip
    parser.add_argument("--host", metavar="NAME", help="nccl-xml, env: which host (default: first)")
    parser.add_argument(
        "--topo-file", metavar="FILE", default="", help="env: also export NCCL_TOPO_FILE"
    )


def export_command(parser: ArgumentParser, args: Namespace) -> None:
    """Run ``charm-topo export``.

    Raises:
        CharmSchedError: Unknown devices or hosts, or ranks that the format cannot say.
    """
    if args.output is not None:
        _check_output(args.output)
    text, notes = exported(args)
    for note in notes:
        sys.stderr.write(f"{note}\n")
    if args.output is None:
        sys.stdout.write(text)
        return
    write_whole(args.output, text.encode())
    sys.stderr.write(f"Saved {args.output}\n")


def _check_output(path: Path) -> None:
    from charm_sched.commands.output import check_folder

    check_folder(path)
    if path.exists():
        raise TopologyError(f"{path}: stands there already; choose another name with -o")


def exported(args: Namespace) -> tuple[str, list[str]]:
    """Return the text and what to say beside it."""
    from charm_sched.bounds.bound import choose_devices
    from charm_sched.launch import environment, nccl_xml, ranks
    from charm_sched.launch.hosts import hosts_of
    from charm_sched.topology.calling import resolved

    machine = load_machine(args.topology)
    words = resolved(machine, args.devices) if args.devices else None
    hosts = hosts_of(machine, choose_devices(machine, args.ranks, words), args.hosts)
    numbers = [_numbers(machine, host) for host in hosts]
    match args.format:
        case "hostfile":
            return ranks.hostfile(hosts, numbers), []
        case "rankfile":
            told = "use it so: mpirun --rankfile FILE ...; slots are counted on each host"
            return ranks.rankfile(hosts), [told]
        case "slurm":
            told = "use it so: SLURM_HOSTFILE=FILE srun --distribution=arbitrary -n "
            return ranks.slurm_hostfile(hosts), [f"{told}{sum(len(h.ranks) for h in hosts)} ..."]
    host = _chosen(hosts, args.host)
    if args.format == "env":
        own = numbers[hosts.index(host)]
        return environment.environment(machine, host, own, topo_file=args.topo_file), []
    made = nccl_xml.nccl_xml(machine, host)
    notes = [f"of {host.name}; --host chooses another"] if len(hosts) > 1 else []
    if made.invented:
        notes.append(
            f"WARNING: the topology has no PCI addresses of {', '.join(made.invented[:8])}: "
            "they are invented, and NCCL, which looks GPUs up by address, will not find its own "
            "there (charm-topo detect, or import of an NCCL XML, writes addresses)"
        )
    return made.text, notes


def _chosen(hosts: tuple[Host, ...], name: str | None) -> Host:
    if name is None:
        return hosts[0]
    for host in hosts:
        if host.name == name:
            return host
    names = ", ".join(host.name for host in hosts[:8])
    raise TopologyError(f"--host: expected one of {names}, found {name}")


def _numbers(machine: Topology, host: Host) -> list[int]:
    """Return CUDA's index of each device of a host: counted among the devices of that host."""
    from charm_sched.topology.calling import numbers

    inside = tuple(device for device in machine.devices if device.name in host.parts)
    own = replace(machine, devices=inside)
    index = dict(zip((device.name for device in inside), numbers(own), strict=True))
    return [index[name] for name in host.devices]


__all__ = [
    "EXPORT", "PLACE", "add_export_arguments", "add_place_arguments", "export_command",
    "place_command", "told",
]  # fmt: skip
