"""The command charm-topo: the shipped machines, and the files of one's own.

Results go to stdout, everything else to stderr. Exit 0: done; 1: a problem in what the user gave;
2: usage. Whatever costs time to import is imported in the handlers.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from charm_sched.commands import importing as import_command
from charm_sched.commands.common import Handler, add_version, load_machine, make_parser, run_command
from charm_sched.commands.options import Help, add_workload_flags, workload_of
from charm_sched.commands.probing import DESCRIPTION, add_arguments, probe_command
from charm_sched.errors import CharmSchedError, TopologyError


def main(argv: Sequence[str] | None = None) -> int:
    """Run charm-topo."""
    parser = _parser()
    return run_command(parser, lambda parser, args: args.handler(parser, args), argv)


def _parser() -> ArgumentParser:
    parser = make_parser(
        "charm-topo",
        "charm-topo {list,show,validate,schema,bound,probe,import} ...",
        "Look at machines: the shipped ones and your own files.",
    )
    add_version(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, arguments: str, what: str, handler: Handler) -> ArgumentParser:
        usage = " ".join(filter(None, ["charm-topo", name, arguments]))
        added = commands.add_parser(
            name, usage=usage, help=what, description=f"{what}.", formatter_class=Help
        )
        added.set_defaults(handler=handler)
        return added

    listing = command("list", "[--json]", "List the shipped machines", _list)
    show = command("show", "TOPOLOGY [--json]", "Show domains, links and assumptions", _show)
    show.add_argument("topology", metavar="TOPOLOGY", help="a file, or the name of a shipped one")
    for parser_with_json in (listing, show):
        parser_with_json.add_argument("--json", action="store_true", help="print JSON")
    check = command("validate", "FILE...", "Check topology files", _validate)
    check.add_argument("files", metavar="FILE", nargs="+", help="a topology file")
    command("schema", "", "Print the JSON Schema of topology files, for editors", _schema)
    limit = command(
        "bound", "TOPOLOGY [workload flags] [options]", "Say what no schedule can beat", _bound
    )
    limit.add_argument("topology", metavar="TOPOLOGY", help="a file, or the name of a shipped one")
    limit.add_argument(
        "--direction",
        choices=("forward", "backward", "both"),
        default="both",
        help="pass to bound (default: both)",
    )
    limit.add_argument("--json", action="store_true", help="print JSON")
    add_workload_flags(limit)
    probe = command(
        "probe", "TOPOLOGY [-o FILE] [options]", "Measure transfers, compare and calibrate",
        probe_command,
    )  # fmt: skip
    probe.description = DESCRIPTION
    add_arguments(probe)
    importing = command(
        "import", "FILE... [--format F] [-o FILE] [options]",
        "Make a topology file out of what other tools print", import_command.import_command,
    )  # fmt: skip
    importing.description = import_command.DESCRIPTION
    import_command.add_arguments(importing)
    return parser


def _list(parser: ArgumentParser, args: Namespace) -> None:
    from charm_sched.topology.graph import load_topology, shipped_names

    machines = [load_topology(name) for name in shipped_names()]
    if args.json:
        from charm_sched.report import documents as report

        report.write_json([report.topology_summary(machine) for machine in machines])
        return
    from charm_sched.render import terminal
    from charm_sched.render import topology as render_topology

    with terminal.results() as console:
        console.print(render_topology.listing(machines))


def _show(parser: ArgumentParser, args: Namespace) -> None:
    machine = load_machine(args.topology)
    if args.json:
        from charm_sched.report import documents as report

        report.write_json(report.topology_report(machine))
        return
    from charm_sched.render import comparison as render
    from charm_sched.render import terminal
    from charm_sched.render import topology as render_topology

    with terminal.results() as console:
        for part in render_topology.show_topology(machine):
            console.print(part)
        render.assumptions(console, machine.assumptions)


def _bound(parser: ArgumentParser, args: Namespace) -> None:
    workload = workload_of(parser, args)
    machine = load_machine(args.topology)
    from charm_sched.bounds import limits
    from charm_sched.report import documents as report

    found = limits.machine_limits(
        machine,
        workload,
        directions=("forward", "backward") if args.direction == "both" else (args.direction,),
        partition=args.partition or "auto",
        ranks=args.ranks,
        devices=args.devices,
    )
    if args.json:
        report.write_json([report.limit_document(limit) for limit in found])
        return
    from charm_sched.render import bounds as render_bounds
    from charm_sched.render import terminal

    with terminal.results() as console:
        render_bounds.show_limits(console, found)


def _validate(parser: ArgumentParser, args: Namespace) -> None:
    from charm_sched.topology.graph import load_topology

    wrong = []
    for name in args.files:
        try:
            machine = load_topology(name)
        except CharmSchedError as error:
            wrong.append(str(error))
            continue
        tiers = ", ".join(machine.tiers) or "none"
        sys.stdout.write(f"{name}: valid, {len(machine.devices)} devices, tiers: {tiers}\n")
    if wrong:
        raise TopologyError("\nerror: ".join(wrong))


def _schema(parser: ArgumentParser, args: Namespace) -> None:
    from charm_sched.report import documents as report
    from charm_sched.topology.graph import json_schema

    report.write_json(json_schema())


if __name__ == "__main__":
    sys.exit(main())
