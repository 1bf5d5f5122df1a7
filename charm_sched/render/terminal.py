"""Where results, progress and errors go: stdout for results, stderr for everything else."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from charm_sched.errors import CharmSchedError, cut_long

if TYPE_CHECKING:
    from rich.console import Console

Say = Callable[[str], None]


def guarded(work: Callable[[], None]) -> int:
    """Do a command's work; turn errors that a user can meet into one line and an exit status."""
    if getattr(sys, "stdout", None) is None:
        return complain("standard output: expected an open file, found it closed")
    try:
        work()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return complain("interrupted", status=130)
    except (CharmSchedError, OSError, MemoryError, OverflowError) as error:
        return complain(explain(error))
    return 0


def explain(error: Exception) -> str:
    """Put an error that a user can meet into one line."""
    if isinstance(error, CharmSchedError):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    detail = f" ({error})" if str(error) else ""
    if isinstance(error, MemoryError):
        return f"this needs more memory than this machine has{detail}"
    return f"a number is too large to count with{detail}"


def complain(message: str, status: int = 1) -> int:
    """Print an error and give the exit status."""
    print(f"error: {cut_long(message)}", file=sys.stderr, flush=True)  # noqa: T201
    return status


def warn(message: str) -> None:
    """Print a warning."""
    print(f"warning: {cut_long(message)}", file=sys.stderr, flush=True)  # noqa: T201


@contextlib.contextmanager
def room_for(ranks: int, operations: int | None = None) -> Iterator[None]:
    """Say what was too large where the block runs out of memory.

    Args:
        ranks: Of the plans that the block works on.
        operations: Of them all together; None to estimate it: plans of one pass have an attend
            and a transfer for each pair of ranks.

    Raises:
        CharmSchedError: There is not enough memory.
    """
    try:
        yield
    except MemoryError as error:
        count = f"{operations:,}" if operations is not None else f"some {2 * ranks**2:,}"
        detail = f" ({error})" if str(error) else ""
        raise CharmSchedError(
            f"this needs more memory than this machine has: a plan for {ranks} ranks, "
            f"{count} operations{detail}; plan for fewer ranks"
        ) from error


@contextlib.contextmanager
def results(*, piped: int = 80) -> Iterator[Console]:
    """Give a console on stdout: as wide as the terminal; plain and `piped` columns when piped.

    `COLUMNS` sets another width, and rich honours `NO_COLOR`. What is piped has no blanks at the
    ends of lines.
    """
    from rich.console import Console

    console = Console(highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = piped
    if console.is_terminal:
        yield console
        return
    with console.capture() as captured:
        yield console
    sys.stdout.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))


@contextlib.contextmanager
def progress_line(what: str, *, quiet: bool = False) -> Iterator[Say | None]:
    """Show one changing line on stderr while the block runs; nothing when stderr is piped.

    Yields:
        A function that puts its text behind ``what``, or None where nothing is shown.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(what)) as status:
        yield lambda detail: status.update(escape(f"{what}: {detail}"))
