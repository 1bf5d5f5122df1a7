"""Where results and progress go: stdout for results, stderr for everything else."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Say = Callable[[str], None]


@contextlib.contextmanager
def results() -> Iterator[Console]:
    """Give a console on stdout: as wide as the terminal; plain and 80 columns when piped.

    `COLUMNS` sets another width, and rich honours `NO_COLOR`. What is piped has no blanks at the
    ends of lines.
    """
    from rich.console import Console

    console = Console(highlight=False, emoji=False)
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
