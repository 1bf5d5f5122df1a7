"""The command charm-topo: the shipped machines, and the files of one's own.

Results go to stdout, everything else to stderr. Exit 0: done; 1: a problem in what the user gave;
2: usage. Whatever costs time to import is imported in the handlers.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence

from charm_sched.commands import detecting as detect_command
from charm_sched.commands import importing as import_command
from charm_sched.commands import placing as place_command
from charm_sched.commands import profiling as profile_command
from charm_sched.commands.common import Handler, add_version, load_machine, make_parser, run_command
from charm_sched.commands.options import Help, add_workload_flags, workload_of
from charm_sched.commands.probing import DESCRIPTION, add_arguments, probe_command
from charm_sched.errors import CharmSchedError, TopologyError

LISTING_COLUMNS = 100  # at most, and where the listing is piped
WORD_HELP = "only those whose name or description has it"


def main(argv: Sequence[str] | None = None) -> int:
    """Run charm-topo."""
    parser = _parser()
    return run_command(parser, lambda parser, args: args.handler(parser, args), argv)


def _parser() -> ArgumentParser:
    parser = make_parser(
        "charm-topo",
        "charm-topo COMMAND ...",
        "Look at machines: the shipped ones and your own files.",
    )
    add_version(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, arguments: str, what: str, handler: Handler) -> ArgumentParser:
        usage = " ".join(filter(None, ["charm-topo", name, arguments]))
        added = commands.add_parser(
            name, prog=f"charm-topo {name}", usage=usage, help=what, description=f"{what}.",
            formatter_class=Help,
        )  # fmt: skip
        added.set_defaults(handler=handler)
        return added

    listing = command("list", "[WORD] [--json]", "List the shipped machines", _list)
    listing.add_argument("word", metavar="WORD", nargs="?", default="", help=WORD_HELP)
    show = command("show", "TOPOLOGY [--json]", "Show domains, links and assumptions", _show)
    show.add_argument("topology", metavar="TOPOLOGY", help="a file, or the name of a shipped one")
    for parser_with_json in (listing, show):
        parser_with_json.add_argument("--json", action="store_true", help="print JSON")
    check = command("validate", "FILE...", "Check topology files", _validate)
    check.add_argument("files", metavar="FILE", nargs="+", help="a topology file")
    schema = command(
        "schema", "[--profile]", "Print the JSON Schema of topology files, for editors", _schema
    )
    schema.add_argument("--profile", action="store_true", help="of profile files instead")
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
    profiling = command(
        "profile", "[-o FILE] [options]", "Measure a compute profile on the machine at hand",
        profile_command.profile_command,
    )  # fmt: skip
    profiling.description = profile_command.DESCRIPTION
    profile_command.add_arguments(profiling)
    _add_machine_commands(command)
    return parser


def _add_machine_commands(command: Callable[[str, str, str, Handler], ArgumentParser]) -> None:
    """Add what describes the machine at hand, and what starts a job on it."""
    importing = command(
        "import", "FILE... [--format F] [-o FILE] [options]",
        "Make a topology file out of what other tools print", import_command.import_command,
    )  # fmt: skip
    importing.description = import_command.DESCRIPTION
    import_command.add_arguments(importing)
    detecting = command(
        "detect", "[-o FILE] [options]", "Make a topology file of the machine at hand",
        detect_command.detect_command,
    )  # fmt: skip
    detecting.description = detect_command.DESCRIPTION
    detect_command.add_arguments(detecting)
    placing = command(
        "place", "TOPOLOGY [workload flags] [--json]", "Choose devices for ranks, and their order",
        place_command.place_command,
    )  # fmt: skip
    placing.description = place_command.PLACE
    place_command.add_place_arguments(placing)
    add_workload_flags(placing)
    exporting = command(
        "export", "TOPOLOGY --format F [-o FILE] [options]", "Write what launchers and NCCL read",
        place_command.export_command,
    )  # fmt: skip
    exporting.description = place_command.EXPORT
    place_command.add_export_arguments(exporting)


def _list(parser: ArgumentParser, args: Namespace) -> None:
    from charm_sched.topology.listing import shipped_machines

    machines = shipped_machines(args.word)
    if args.json:
        from charm_sched.report import documents as report

        report.write_json([report.shipped_summary(machine) for machine in machines])
        return
    if not machines:
        raise TopologyError(
            f'expected a word that a shipped machine has, found none with "{args.word}" '
            "(charm-topo list)"
        )
    from charm_sched.render import terminal
    from charm_sched.render import topology as render_topology

    with terminal.results(piped=LISTING_COLUMNS) as console:
        for part in render_topology.listing(machines):
            console.print(part, width=LISTING_COLUMNS)


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
    wrong = []
    for name in args.files:
        try:
            machine = load_machine(name)
        except CharmSchedError as error:
            wrong.append(str(error))
            continue
        tiers = ", ".join(machine.tiers) or "none"
        sys.stdout.write(f"{name}: valid, {len(machine.devices)} devices, tiers: {tiers}\n")
    if wrong:
        raise TopologyError("\nerror: ".join(wrong))


def _schema(parser: ArgumentParser, args: Namespace) -> None:
    from charm_sched.report import documents as report
    from charm_sched.topology.graph import json_schema, profile_schema

    report.write_json(profile_schema() if args.profile else json_schema())


if __name__ == "__main__":
    sys.exit(main())
