"""What ``charm-topo probe`` does: under torchrun on the cluster, else on a shaped network.

Rank 0 chooses, prints and writes; the others measure with it.
"""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.commands.common import load_machine
from charm_sched.commands.options import argument, count, device_names, positive, seconds
from charm_sched.errors import CharmSchedError, RuntimeFailure, TopologyError
from charm_sched.render.terminal import Say, progress_line

if TYPE_CHECKING:
    from charm_sched.probing.result import Found, Measured
    from charm_sched.probing.whole_machine import Traffic
    from charm_sched.topology.graph import Topology

DESCRIPTION = """\
Measure transfers, compare them with a topology file, and write the file with measured numbers.

Under torchrun it measures the machine at hand: rank i stands for the i-th device, one process
per device (torchrun --nproc-per-node N -m charm_sched.topo probe TOPOLOGY). NCCL is meant for
GPUs but has not been run yet; gloo has. Otherwise, as root on Linux, it builds the topology as a
shaped network on this machine, as charm-lab does, and measures that; what is measured is
divided by the scale."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``charm-topo probe``."""
    parser.add_argument("topology", metavar="TOPOLOGY", help="a file, or the name of a shipped one")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path,
        help="write the topology with measured numbers (.yaml, .json)",
    )  # fmt: skip
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--ranks", metavar="N", type=count, help="N devices, spread evenly over the domains"
    )
    who.add_argument(
        "--devices", metavar="A,B,...", type=argument(device_names),
        help="these devices, in rank order (default: all; under torchrun one per process)",
    )  # fmt: skip
    parser.add_argument(
        "--backend", choices=("gloo", "nccl"),
        help="under torchrun (default: nccl where there is a CUDA device, else gloo)",
    )  # fmt: skip
    parser.add_argument(
        "--largest", metavar="SIZE", type=argument(_size),
        help="largest transfer, such as 16 MiB (default: 1 to 64 MiB, about 50 ms)",
    )  # fmt: skip
    parser.add_argument(
        "--repeat", metavar="N", type=count, default=5, help="repetitions per size (default: 5)"
    )
    parser.add_argument(
        "--tolerance", metavar="PART", type=argument(_part), default=0.1,
        help="rates that differ by less are the same (default: 0.1)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, default=60.0,
        help="longest time for one transfer (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--scale", metavar="FACTOR", type=argument(positive),
        help="shaped network: what rates are multiplied by (default: what this machine carries)",
    )  # fmt: skip
    parser.add_argument(
        "--network", metavar="OTHER",
        help="shaped network: build it from this topology, as if TOPOLOGY were wrong about it",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _part(text: str) -> float:
    if not (value := positive(text)) < 0.5:
        raise ArgumentTypeError(f"expected a part below 0.5 such as 0.1, found {text!r}")
    return value


def _size(text: str) -> int:
    from charm_sched.units import parse_bytes

    value = int(parse_bytes(text))
    if not 1 << 10 <= value <= 1 << 32:
        raise ArgumentTypeError(f"expected from 1 KiB to 4 GiB, found {text!r}")
    return value


def probe_command(parser: ArgumentParser, args: Namespace) -> None:
    """Run ``charm-topo probe``.

    Raises:
        CharmSchedError: A problem in what the user gave, or in the machine.
    """
    started = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if started and (args.scale or args.network):
        parser.error("--scale and --network are for a shaped network, not under torchrun")
    if not started and args.backend == "nccl":
        parser.error("--backend nccl needs torchrun")
    if find_spec("torch") is None:
        raise RuntimeFailure("charm-topo probe needs PyTorch: pip install 'charm-sched[runtime]'")
    if started:
        _on_cluster(args)
    else:
        _on_shaped_network(args)


@dataclass(frozen=True, kw_only=True)
class _Task:
    """What is to be probed.

    Attributes:
        devices: Device of each rank.
        replaces: Whether a file of an earlier probe will be replaced.
    """

    topology: Topology
    devices: tuple[str, ...]
    traffics: tuple[Traffic, ...]
    notes: tuple[str, ...]
    replaces: bool


def _prepare(args: Namespace, ranks: int | None, scale: float = 1.0) -> _Task:
    """Do all that can fail before anything is measured."""
    from charm_sched.probing.whole_machine import choose_traffic, default_largest
    from charm_sched.probing.write import check_output

    sources = [name for name in (args.topology, args.network) if name]
    replaces = args.output is not None and check_output(args.output, *sources)
    topology = load_machine(args.topology)
    if ranks is not None and (
        args.ranks not in (None, ranks) or (args.devices and len(args.devices) != ranks)
    ):
        raise TopologyError(f"ranks: torchrun started {ranks} processes; probe as many devices")
    number = ranks or args.ranks or len(topology.devices)
    devices = tuple(args.devices or topology.select(number))
    for device in devices:
        topology.device_index(device)
    if len(devices) < 2:
        raise TopologyError(f"{topology.name}: expected at least 2 ranks to probe, found 1")
    if len(set(devices)) < len(devices):
        raise TopologyError(f"{topology.name}: expected each device once in --devices")
    largest = args.largest or default_largest(topology, devices, scale)
    traffics, notes = choose_traffic(topology, devices, largest)
    return _Task(
        topology=topology, devices=devices, traffics=traffics, notes=notes, replaces=replaces
    )


def _on_cluster(args: Namespace) -> None:
    from charm_sched.probing.result import second_look, together
    from charm_sched.probing.whole_machine import Traffic
    from charm_sched.runtime import probe, trial

    rank, size = probe.join_world(args.timeout)
    try:
        task: _Task | None = None
        problem: Exception | None = None
        content = b""
        if rank == 0:
            try:
                task = _prepare(args, size)
            except (CharmSchedError, OSError) as error:
                problem = error
            else:
                job = {"backend": args.backend or probe.default_backend(),
                       "traffics": [each.to_document() for each in task.traffics]}  # fmt: skip
                content = json.dumps(job).encode()
        content = trial.broadcast(content)
        if problem is not None:
            raise problem
        if not content:
            raise SystemExit(1)  # rank 0 says why
        told = json.loads(content)
        traffics = [Traffic.from_document(each) for each in told["traffics"]]
        with progress_line("probing", quiet=args.json or rank > 0) as say:

            def run(chosen: Sequence[Traffic]) -> Measured | None:
                record = probe.measure(
                    chosen, backend=told["backend"], repeat=args.repeat, timeout=args.timeout,
                    say=say,
                )  # fmt: skip
                records = probe.gather(record)
                if records is None:
                    return None
                return list(zip(chosen, probe.slowest(records), strict=True))

            measured = run(traffics)
            how = f"{told['backend']}, {size} ranks"
            content = b""
            if task is not None and measured is not None:
                again = second_look(_find(args, task, measured, how))
                content = json.dumps([each.to_document() for each in again]).encode()
            chosen = [Traffic.from_document(x) for x in json.loads(trial.broadcast(content))]
            more = run(chosen) if chosen else []
        if task is not None and measured is not None and more is not None:
            _finish(args, task, together(measured, more), how)
    finally:
        trial.leave_world()


def _on_shaped_network(args: Namespace) -> None:
    from charm_sched.testbed import missing
    from charm_sched.testbed.capacity import choose_scale

    if reason := missing():
        raise RuntimeFailure(
            "charm-topo probe measures a cluster under torchrun (torchrun --nproc-per-node N -m "
            "charm_sched.topo probe TOPOLOGY), or builds a shaped network on this machine as "
            f"root, and here {reason}"
        )
    network = load_machine(args.network or args.topology)
    with progress_line("probing", quiet=args.json) as say:
        tell = say or (lambda text: None)
        scale = args.scale
        if scale is None:
            number = args.ranks or len(network.devices)
            scale = choose_scale(network, args.devices or network.select(number))
        task = _prepare(args, None, scale)
        how = f"gloo on a shaped network at scale {scale:g}, {len(task.devices)} ranks"
        measured = _on_bed(args, task, network, scale, how, tell)
    _finish(args, task, measured, how, scale)


def _on_bed(
    args: Namespace, task: _Task, network: Topology, scale: float, how: str, tell: Say
) -> Measured:
    from charm_sched.probing.result import second_look, together
    from charm_sched.runtime import probe
    from charm_sched.runtime.lab import Lab
    from charm_sched.testbed import Testbed

    def run(chosen: Sequence[Traffic]) -> Measured:
        tell(f"measuring {len(chosen)} kinds of traffic")
        work = partial(
            probe.measure, chosen, backend="gloo", repeat=args.repeat, timeout=args.timeout
        )
        transfers = sum((args.repeat + 1) * len(each.sizes) for each in chosen)
        records = lab.call(work, patience=transfers * args.timeout)
        return list(zip(chosen, probe.slowest(records), strict=True))

    tell("building the network")
    timeout = max(args.timeout, 60.0)
    with (
        Testbed(network, task.devices, scale=scale) as bed,
        Lab(bed, task.devices, timeout=timeout) as lab,
    ):
        measured = run(task.traffics)
        again = second_look(_find(args, task, measured, how, scale))
        return together(measured, run(again)) if again else measured


def _find(
    args: Namespace, task: _Task, measured: Measured, how: str, scale: float | None = None
) -> Found:
    """Fit; a scale stands for a shaped network."""
    from charm_sched.probing.result import find

    notes = list(task.notes)
    if scale is not None:
        notes.append(f"rates are those of the network divided by {scale:g}, the file's own scale")
    return find(
        task.topology, task.devices, measured, how=how,
        scale=scale or 1.0, latencies=scale is None, tolerance=args.tolerance, notes=notes,
    )  # fmt: skip


def _finish(
    args: Namespace, task: _Task, measured: Measured, how: str, scale: float | None = None
) -> None:
    from charm_sched.probing.write import calibrated, save

    found = _find(args, task, measured, how, scale)
    if args.output is not None:
        save(calibrated(found, date.today().isoformat()), args.output)
    _show(args, found, replaced=task.replaces)


def _show(args: Namespace, found: Found, *, replaced: bool) -> None:
    if args.json:
        from charm_sched.probing.report import document
        from charm_sched.report import documents as report

        report.write_json(document(found, args.output))
        return
    from charm_sched.render import terminal
    from charm_sched.render.probe import show

    with terminal.results() as console:
        show(console, found)
        if args.output is not None:
            earlier = " (replaced that of an earlier probe)" if replaced else ""
            console.print(f"Saved {args.output}{earlier}.", soft_wrap=True)
