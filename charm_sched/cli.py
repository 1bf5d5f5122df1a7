"""The commands charm-plan and charm-sim.

Each handler reads its arguments, calls the library once and renders what came back. Results go to
stdout, everything else to stderr. Exit 0: done; 1: a problem in what the user gave; 2: usage.
Whatever costs time to import is imported in the handlers, so that ``--help`` is immediate.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charm_sched.commands import add_version, load_machine, make_parser, run_command
from charm_sched.errors import PlanFileError
from charm_sched.options import (
    STRATEGY_HELP,
    add_workload_flags,
    argument,
    names_workload,
    parameter,
    strategy_names,
    workload_of,
)
from charm_sched.terminal import progress_line, room_for
from charm_sched.units import parse_bytes

if TYPE_CHECKING:
    from charm_sched.output import Saved
    from charm_sched.plans import Plan, Schedule
    from charm_sched.results import Comparison
    from charm_sched.sweep import Point
    from charm_sched.topology import Topology
    from charm_sched.workload import Workload

DIRECTIONS = ("forward", "backward")


def plan_main(argv: Sequence[str] | None = None) -> int:
    """Run charm-plan."""
    return run_command(_plan_parser(), _plan, argv)


def sim_main(argv: Sequence[str] | None = None) -> int:
    """Run charm-sim."""
    return run_command(_sim_parser(), _simulate, argv)


def _add_outputs(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="write the timeline for Perfetto or chrome://tracing; two directions go to "
        "two files, NAME.forward.json and NAME.backward.json",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else"
    )


def _plan_parser() -> ArgumentParser:
    parser = make_parser(
        "charm-plan",
        "charm-plan TOPOLOGY... [workload flags] [options]",
        "Compile the best attention schedule for a machine, save it, and compare it with\n"
        "Ring-Attention. Without workload flags it also shows several sequence lengths:\n"
        "where communication is the limit, and where computation is.",
        "examples:\n"
        "  charm-plan dual_node_nvlink\n"
        "  charm-plan rack.yaml --model llama3-70b --seq-len 256K --strategy all\n"
        "  charm-plan dual_node_nvlink dual_node_nvlink_4nic   (side by side)",
    )
    parser.add_argument(
        "topologies",
        metavar="TOPOLOGY",
        nargs="+",
        help="a topology file, or the name of a shipped one (charm-topo list)",
    )
    parser.add_argument(
        "--strategy",
        metavar="WHAT",
        type=argument(strategy_names),
        default=("auto",),
        help=STRATEGY_HELP,
    )
    parser.add_argument(
        "--direction",
        choices=("forward", "backward", "both"),
        default="both",
        help="pass to plan (default: both)",
    )
    parser.add_argument(
        "--param",
        metavar="NAME=VALUE",
        dest="params",
        type=argument(parameter),
        action="append",
        default=[],
        help="fix a parameter of the strategies that take it, such as pieces=2, save=true, or an "
        "ablation: levels=false, decouple=false, remerge=false (repeatable)",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        type=argument(parse_bytes),
        help='most that a plan may need per device, such as "40 GB" (default: what the device has)',
    )
    parser.add_argument(
        "-o",
        metavar="PLAN",
        dest="output",
        type=Path,
        help="where to save the plan (default: NAME.plan.json or .npz; with --json nowhere)",
    )
    _add_outputs(parser)
    add_version(parser)
    add_workload_flags(parser)
    return parser


def _sim_parser() -> ArgumentParser:
    parser = make_parser(
        "charm-sim",
        "charm-sim PLAN [options]",
        "Verify a saved plan, simulate it and compare it with Ring-Attention.",
        "example:\n  charm-sim dual_node_nvlink.plan.json --topology dual_node_nvlink_4nic",
    )
    parser.add_argument("plan", metavar="PLAN", help="a plan saved by charm-plan")
    parser.add_argument(
        "--topology",
        metavar="TOPOLOGY",
        help="another machine with the same device names (default: the one in the plan)",
    )
    _add_outputs(parser)
    add_version(parser)
    return parser


def _plan(parser: ArgumentParser, args: Namespace) -> None:
    from charm_sched import report

    if len(args.topologies) > 1 and (args.output or args.trace):
        parser.error("-o and --trace take one topology; plan several machines one by one")
    workload = workload_of(parser, args)
    machines = [load_machine(name) for name in args.topologies]
    _check_outputs(args, machines)
    comparisons, documents = [], []
    for machine in machines:
        comparison = _compare(args, machine, workload)
        saved, traces = _write(args, machine, comparison)
        if args.json:
            documents.append(report.document(comparison, saved.path if saved else None, traces))
        else:
            points = () if names_workload(args) else _sweep(args, machine, comparison)
            footer = _next_steps(saved, comparison) if saved else []
            _show(comparison, points, [*footer, *_trace_lines(traces)])
        comparisons.append(comparison)
    if args.json:
        report.write_json(report.combined(documents))
    elif len(comparisons) > 1:
        from charm_sched import render, terminal

        with terminal.results() as console:
            render.machines(console, comparisons)


def _check_outputs(args: Namespace, machines: Sequence[Topology]) -> None:
    """Refuse names that cannot be written to, before the long work."""
    from charm_sched import output

    targets = [args.output] if args.output else []
    if not targets and not args.json:
        targets = [path for m in machines for path in output.default_targets(m.name)]
    if args.trace:
        output.check_traces(args.trace, _choices(args)["directions"], targets)
    for target in targets:
        output.check_target(target)


def _write(
    args: Namespace, machine: Topology, comparison: Comparison
) -> tuple[Saved | None, Sequence[Path]]:
    """Save the plan, and the traces where they are asked for."""
    from charm_sched import output, report

    saved = None
    if args.output or not args.json:
        saved = output.save(comparison.schedule(), args.output, machine.name)
    return saved, report.write_traces(comparison, args.trace) if args.trace else ()


def _choices(args: Namespace) -> dict[str, Any]:
    """Give the flags that `plan_all` takes."""
    return {
        "strategies": args.strategy,
        "directions": DIRECTIONS if args.direction == "both" else (args.direction,),
        "partition": args.partition or "auto",
        "ranks": args.ranks,
        "devices": args.devices,
        "params": dict(args.params),
        "memory": args.memory,
    }


def _compare(args: Namespace, machine: Topology, workload: Workload) -> Comparison:
    from charm_sched.search import plan_all

    ranks = len(args.devices or ()) or args.ranks or len(machine.devices)
    with progress_line(machine.name, quiet=args.json) as say, room_for(ranks):
        return plan_all(machine, workload, progress=say, **_choices(args))


def _sweep(args: Namespace, machine: Topology, known: Comparison) -> Sequence[Point]:
    from charm_sched.sweep import sweep

    with progress_line(machine.name, quiet=args.json) as say:
        return sweep(machine, known.workload, _choices(args), known=known, progress=say)


def _next_steps(saved: Saved, comparison: Comparison) -> list[str]:
    """Say how a saved plan is used."""
    ranks = next(iter(comparison.chosen.values())).plan.num_ranks
    return [
        str(saved),
        f"Simulate: charm-sim {saved.path} --topology OTHER",
        f"Run:      torchrun --nproc-per-node {ranks} -m charm_sched.run {saved.path}",
    ]


def _trace_lines(traces: Sequence[Path]) -> list[str]:
    """Say which traces were written."""
    return [f"Timeline: {path} (open it in ui.perfetto.dev)" for path in traces]


def _show(comparison: Comparison, points: Sequence[Point], footer: Sequence[str]) -> None:
    from charm_sched import render, terminal

    with terminal.results() as console:
        render.show(console, comparison, points=points, footer=footer)


def _simulate(parser: ArgumentParser, args: Namespace) -> None:
    from charm_sched import output, report
    from charm_sched.assess import assess
    from charm_sched.plans import Schedule

    stored = _stored(args.plan)
    plans = stored.plans if isinstance(stored, Schedule) else (stored,)
    machine = load_machine(args.topology) if args.topology else None
    if args.trace:
        directions = [plan.direction for plan in plans]
        output.check_traces(args.trace, directions, [Path(args.plan)])
    room = room_for(plans[0].num_ranks, sum(map(len, plans)))
    with progress_line(args.plan, quiet=args.json) as say, room:
        comparison = assess(stored, machine, progress=say)
    traces = report.write_traces(comparison, args.trace) if args.trace else ()
    if args.json:
        report.write_json(report.document(comparison, args.plan, traces))
    else:
        _show(comparison, (), _trace_lines(traces))


def _stored(source: str) -> Plan | Schedule:
    from charm_sched.output import is_topology
    from charm_sched.storage import load_plan

    try:
        return load_plan(source)
    except PlanFileError as error:
        if not is_topology(source):
            raise
        raise PlanFileError(
            f"{source}: expected a plan, found a topology; charm-plan {source} makes a plan for it"
        ) from error
