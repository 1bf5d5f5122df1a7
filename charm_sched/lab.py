"""The command charm-lab: a topology as a real network on this machine, and plans that run on it.

Results go to stdout, everything else to stderr. Exit 0: done; 1: a problem in what the user gave or
in the machine; 2: usage.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.commands.common import add_version, load_machine, make_parser, run_command
from charm_sched.commands.options import (
    add_workload_flags,
    argument,
    count,
    positive,
    read_workload,
    seconds,
    strategy_list,
)
from charm_sched.errors import RuntimeFailure
from charm_sched.files import write_whole
from charm_sched.testbed.faults import parse_fault, place_of

if TYPE_CHECKING:
    from charm_sched.runtime.lab import Lab
    from charm_sched.testbed import Testbed
    from charm_sched.testbed.experiment import Experiment
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload

PIECES = (1 << 20, 1 << 22)
LAB_HEADS = 8
AUTO = "auto"
MARKDOWN_START = b"<!-- written by charm-lab -->\n\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run charm-lab."""
    return run_command(_parser(), lambda parser, args: _run(args), argv)


def _parser() -> ArgumentParser:
    parser = make_parser(
        "charm-lab",
        "charm-lab TOPOLOGY... [workload flags] [options]",
        "Build a topology as a network of namespaces on this machine, rates scaled\n"
        "alike, measure transfers, predict plans from these, run them, and compare.\n"
        "Needs Linux, root and PyTorch.",
    )
    parser.add_argument(
        "topologies", metavar="TOPOLOGY", nargs="+", help="a file, or the name of a shipped one"
    )
    parser.add_argument(
        "--strategy",
        metavar="NAME[,NAME...]",
        type=argument(strategy_list),
        default=("ring", "auto"),
        help="strategies to run; auto: the best found (default: ring,auto)",
    )
    parser.add_argument(
        "--direction",
        choices=("forward", "backward", "both"),
        default="both",
        help="pass to run (default: both)",
    )
    _add_run_flags(parser)
    add_workload_flags(
        parser, "8 heads of 128, 1 and then 4 MiB of keys and values per rank, bf16, full", "full"
    )
    return parser


def _add_run_flags(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--scale",
        metavar="FACTOR",
        type=argument(_factor),
        help="what all rates are multiplied by (default: what this machine carries, measured)",
    )
    parser.add_argument(
        "--real",
        action="store_true",
        help="compute real attention and compare it with dense attention; otherwise kernels take "
        "the time of the model (paced)",
    )
    parser.add_argument(
        "--fault",
        metavar="FAULT",
        type=argument(parse_fault),
        help="disturb one run: slow:LINK=FACTOR@SECONDS, cut:LINK@SECONDS, flap:LINK@SECONDS or "
        "kill:RANK@SECONDS; LINK is FROM->TO; prints what every rank says",
    )
    parser.add_argument(
        "--repeat", metavar="N", type=count, default=5, help="timed runs (default: 5)"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=60.0,
        help="longest time for one transfer (default: 60)",
    )
    parser.add_argument(
        "--markdown", metavar="FILE", type=Path, help="also write the tables as Markdown"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_version(parser)


def _factor(text: str) -> float:
    return positive(text, "factor such as 5e-4")


def _run(args: Namespace) -> None:
    from charm_sched.render.terminal import progress_line
    from charm_sched.testbed import experiment, missing
    from charm_sched.topology.scaling import scaled

    if find_spec("torch") is None:
        raise RuntimeFailure("charm-lab needs PyTorch: pip install 'charm-sched[runtime]'")
    if args.markdown:
        _check_markdown(args.markdown)
    tasks = _tasks(args)
    if reason := missing():
        raise RuntimeFailure(reason)
    found: list[Experiment] = []
    for topology, devices, workloads in tasks:
        with progress_line(topology.name, quiet=args.json) as say:
            tell = say or (lambda text: None)
            scale = args.scale or _measured_scale(topology, devices)
            tell("building the network")
            slow = scaled(topology, scale)
            with experiment.laboratory(
                topology, devices, scale, timeout=max(args.timeout, 60.0)
            ) as (bed, lab):
                tell("probing")
                calibration = experiment.probe(lab, slow, timeout=args.timeout)
                for workload in workloads:
                    if args.fault:
                        _disturb(args, bed, lab, slow, workload)
                        continue
                    found.append(
                        experiment.experiment(
                            lab, topology, workload, calibration,
                            scale=scale,
                            strategies=args.strategy,
                            directions=_directions(args),
                            partition=args.partition or "auto",
                            repeat=args.repeat,
                            timeout=args.timeout,
                            paced=not args.real,
                            say=tell,
                        )
                    )  # fmt: skip
    if found:
        _report(args, found)


def _tasks(args: Namespace) -> list[tuple[Topology, tuple[str, ...], list[Workload]]]:
    """Give the machines, the devices of each and its workloads, before any network is built.

    Raises:
        CharmSchedError: An unknown machine, device, strategy or place of a fault, or flags that
            contradict each other.
    """
    from charm_sched.bounds.bound import choose_devices
    from charm_sched.planners.strategies import load_strategy

    for name in args.strategy:
        if name != AUTO:
            load_strategy(name)
    tasks = []
    for topology in map(load_machine, args.topologies):
        devices = choose_devices(topology, args.ranks, args.devices)
        if args.fault:
            place_of(args.fault, len(devices), topology)
        tasks.append((topology, devices, _workloads(args, len(devices))))
    return tasks


def _check_markdown(path: Path) -> None:
    from charm_sched.commands.output import check_is_name, check_place

    check_is_name(path, "--markdown")
    check_place(path, MARKDOWN_START, "page of charm-lab", "--markdown")


def _directions(args: Namespace) -> tuple[str, ...]:
    if args.direction == "both" or args.real:  # a real backward needs its forward
        return ("forward", "backward")
    return (args.direction,)


def _measured_scale(topology: Topology, devices: Sequence[str]) -> float:
    from charm_sched.testbed.capacity import choose_scale

    return choose_scale(topology, devices)


def _workloads(args: Namespace, ranks: int) -> list[Workload]:
    """Give the workload of the flags, or the two of the laboratory."""
    from dataclasses import replace

    from charm_sched.masks.mask import parse_mask

    if args.model is None and args.heads is None:
        args.heads, args.kv_heads = LAB_HEADS, args.kv_heads or LAB_HEADS
    if args.mask is None:
        args.mask = parse_mask("full")
    one = read_workload(args)
    if args.seq_len is not None or one.mask_rule.documents:
        return [one]
    row = one.num_kv_heads * one.row_bytes("kv")
    return [replace(one, seq_len=ranks * max(1, piece // row)) for piece in PIECES]


def _disturb(args: Namespace, bed: Testbed, lab: Lab, slow: Topology, workload: Workload) -> None:
    """Run one plan, disturb it, and print what every rank says."""
    from charm_sched.cost import op_seconds
    from charm_sched.plans.plan import Plan
    from charm_sched.runtime.lab import LabFailure
    from charm_sched.search.planning import plan
    from charm_sched.testbed.faults import action, finish_disturbed

    name = args.strategy[-1]
    made = plan(slow, workload, strategy=name, direction="forward", devices=lab.devices)
    assert isinstance(made, Plan)
    act = action(args.fault, bed, lab, slow)
    lab.start(made, [op_seconds(made, slow).seconds.tolist()], repeat=1, timeout=args.timeout)
    try:
        found, seconds = finish_disturbed(lab, args.fault, act)
    except LabFailure as failure:
        for rank, message in enumerate(failure.messages):
            _say(message or f"rank {rank}: finished")
        raise
    (line,) = found.timelines["forward"]
    _say(f"all ranks finished after {seconds:.2f} s; makespan {line.makespan:.3f} s")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def _report(args: Namespace, found: Sequence[Experiment]) -> None:
    from charm_sched.render import terminal
    from charm_sched.render.lab import lab_document, markdown, show
    from charm_sched.report import documents as report

    if args.markdown:
        write_whole(args.markdown, MARKDOWN_START + markdown(found).encode())
    if args.json:
        report.write_json(report.combined([lab_document(each) for each in found]))
        return
    with terminal.results() as console:
        for each in found:
            show(console, each)


if __name__ == "__main__":
    sys.exit(main())
