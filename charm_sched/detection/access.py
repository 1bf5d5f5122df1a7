"""The machine as files and commands, both of which a test replaces."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MOST_TEXT = 2**16  # bytes of one file of the kernel
MOST_OUTPUT = 2**24  # bytes that a tool may print
MOST_ENTRIES = 4096  # of one folder
PATIENCE = 30.0  # seconds that a tool may take

Runner = Callable[[Sequence[str]], str]


def run_tool(command: Sequence[str]) -> str:
    """Return what a command prints; "" where it is not installed, fails or takes too long."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, timeout=PATIENCE, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if done.returncode != 0 or len(done.stdout) > MOST_OUTPUT:
        return ""
    return done.stdout.decode("utf-8", "replace")


@dataclass(frozen=True)
class Access:
    """Files below a root, and tools.

    Attributes:
        root: What stands for ``/``.
        run: Runs a command; "" where there is none.
        denied: Files that could not be read for want of permission; grows.
    """

    root: Path = Path("/")
    run: Runner = run_tool
    denied: list[str] = field(default_factory=list)

    def text(self, path: str) -> str:
        """Return a file without blanks around it, "" where there is none or it cannot be read."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as file:
                return file.read(MOST_TEXT).decode("utf-8", "replace").strip()
        except PermissionError:
            self.denied.append(path)
        except (OSError, ValueError):
            pass
        return ""

    def number(self, path: str) -> int | None:
        """Return the whole number in a file, None where there is none."""
        text = self.text(path)
        digits = text.removeprefix("-")
        known = digits.isascii() and digits.isdigit() and len(digits) < 16
        return int(text) if known else None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none where there is none."""
        try:
            found = os.listdir(self.root / folder.lstrip("/"))
        except PermissionError:
            self.denied.append(folder)
            return []
        except OSError:
            return []
        return sorted(found)[:MOST_ENTRIES]

    def link(self, path: str) -> str:
        """Return where a symbolic link leads, as it is written; "" where there is none."""
        try:
            return os.readlink(self.root / path.lstrip("/"))
        except OSError:
            return ""

    def exists(self, path: str) -> bool:
        """Say whether something stands there."""
        return os.path.lexists(self.root / path.lstrip("/"))
