"""Files beside the report on the terminal: traces, a page of HTML, execution traces of Chakra."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.commands.output import (
    check_apart,
    check_is_name,
    check_place,
    check_traces,
    trace_targets,
)
from charm_sched.errors import CharmSchedError

if TYPE_CHECKING:
    from charm_sched.commands.extras import Extras
    from charm_sched.search.results import Comparison
    from charm_sched.what_if.lengths import Point

MOST_LEVER_OPERATIONS = 50_000
"""Plans of more operations get no levers in a page, unless ``--explain`` asks for them."""


def add_export_flags(parser: ArgumentParser) -> None:
    """Add the flags of files that are written beside the report."""
    parser.add_argument(
        "--report",
        metavar="FILE",
        type=Path,
        help="write everything as one HTML page, with the machine, the load of its links, the "
        "timeline and what would help most; needs plotly",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        help="write the timeline for Perfetto or chrome://tracing; two directions go to "
        "two files, NAME.forward.json and NAME.backward.json",
    )
    parser.add_argument(
        "--chakra",
        metavar="FOLDER",
        type=Path,
        help="write one execution trace of MLCommons Chakra per rank, DIRECTION.RANK.et; needs "
        "protobuf",
    )


def wants_export(args: Namespace) -> bool:
    """Say whether any such file is asked for."""
    return bool(args.trace or args.report or args.chakra)


def check_exports(args: Namespace, directions: Sequence[str], plans: Sequence[Path]) -> None:
    """Check, before long work, that everything that is asked for can be written.

    Args:
        args: Of the command.
        directions: Of the plans.
        plans: Files that plans are read from or go to.

    Raises:
        CharmSchedError: Something that is not ours stands there, or a library is missing.
    """
    if args.trace:
        check_is_name(args.trace, "--trace")
    check_apart(plans, _targets(args, directions))
    if args.trace:
        check_traces(args.trace, directions, "--trace")
    if args.report:
        _check_report(args.report)
    if args.chakra:
        from charm_sched.export.chakra import check_chakra

        check_chakra(args.chakra)


def _targets(args: Namespace, directions: Sequence[str]) -> list[tuple[str, Path]]:
    """Give each flag with what it writes; a trace also as it was named."""
    traces = [args.trace, *trace_targets(args.trace, directions).values()] if args.trace else []
    found = [("--trace", path) for path in dict.fromkeys(traces)]
    if args.report:
        found.append(("--report", args.report))
    if args.chakra:
        found.append(("--chakra", args.chakra))
    return found


def _check_report(path: Path) -> None:
    from charm_sched.export.page import START, check_plotly

    check_plotly()
    if path.suffix not in (".html", ".htm"):
        raise CharmSchedError(f"{path}: expected a name that ends in .html for --report")
    check_place(path, START, "report", "--report")


def write_exports(
    args: Namespace, comparison: Comparison, extras: Extras, points: Sequence[Point]
) -> tuple[Sequence[Path], list[str]]:
    """Write what is asked for.

    Returns:
        The traces, and a line on each thing that was written.
    """
    traces: Sequence[Path] = ()
    lines = []
    if args.trace:
        from charm_sched.report.documents import write_traces

        traces = write_traces(comparison, args.trace)
        lines += [f"Timeline: {path} (open it in ui.perfetto.dev)" for path in traces]
    if args.report:
        from charm_sched.export.page import write_report

        write_report(comparison, args.report, extras=extras, points=points)
        lines.append(f"Report:   {args.report} (open it in a browser)")
    if args.chakra:
        from charm_sched.export.chakra import write_chakra

        count = write_chakra(comparison, args.chakra)
        lines.append(f"Chakra:   {count} execution traces in {args.chakra}")
    return traces, lines


def wants_levers(args: Namespace, comparison: Comparison) -> bool:
    """Say whether it is to be tried what a better machine would gain."""
    operations = sum(len(result.plan) for result in comparison.chosen.values())
    return bool(args.explain or (args.report and operations <= MOST_LEVER_OPERATIONS))


__all__ = ["add_export_flags", "check_exports", "wants_export", "wants_levers", "write_exports"]
