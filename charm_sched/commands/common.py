"""What the commands share: how their parsers look, how they run, how they find a machine."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from charm_sched import __version__
from charm_sched.commands.options import Help
from charm_sched.errors import TopologyError, cut_long
from charm_sched.render.terminal import guarded

if TYPE_CHECKING:
    from charm_sched.topology.graph import Topology

Handler: TypeAlias = "Callable[[ArgumentParser, Namespace], None]"


class _Parser(ArgumentParser):
    """A parser whose messages stay short, however long what was typed is."""

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and leave."""
        super().error(cut_long(message))


def run_command(parser: ArgumentParser, handler: Handler, argv: Sequence[str] | None) -> int:
    """Read arguments and run a handler; gives the exit status."""
    args = parser.parse_args(argv)
    return guarded(lambda: handler(parser, args))


def make_parser(name: str, usage: str, description: str, epilog: str = "") -> ArgumentParser:
    """Make a parser as all commands have it."""
    return _Parser(
        prog=name,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=Help,
        allow_abbrev=False,
    )


def add_version(parser: ArgumentParser) -> None:
    """Add ``--version``."""
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")


def load_machine(source: str) -> Topology:
    """Load a topology from a file or by a shipped name; a plan in its place is named as such."""
    from charm_sched.commands.output import is_plan_file
    from charm_sched.topology.graph import load_topology

    try:
        return load_topology(source)
    except TopologyError as error:
        if not is_plan_file(source):
            raise
        raise TopologyError(
            f"{source}: expected a topology, found a plan; charm-sim {source} simulates it"
        ) from error
