"""Foreign text, brought in safely: bounded, decoded, cleaned; and the messages about it."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from charm_sched.errors import TopologyError
from charm_sched.topology.reader import Cursor
from charm_sched.topology.yaml_tree import shorten

MAX_BYTES = 16 * 2**20
MAX_YAML = 2**20  # characters; YAML is slow to read
MAX_LINE = 2**14  # characters; XML has no lines
RECOGNISED = 2**20  # characters that a format is recognised by
MAX_GPUS = 512  # in one machine, and as many NICs
MAX_PARTS = 100_000  # hosts, switches or links of a network

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")


@dataclass(frozen=True, slots=True)
class Source:
    """A text, and what messages call it."""

    text: str
    where: str

    def lines(self) -> list[str]:
        """Return the lines without their ends."""
        return self.text.split("\n")

    def fail(
        self, expected: str, found: str, hint: str = "", *, line: int = 0, column: int = 0
    ) -> NoReturn:
        """Raise the one error message for a place; lines and columns count from 1."""
        spot = ":".join(str(part) for part in (self.where, line, column) if part)
        raise TopologyError(
            f"{spot}: expected {expected}, found {found}" + (f" ({hint})" if hint else "")
        )


def read_source(name: str) -> Source:
    """Read a file, or standard input for "-".

    Raises:
        TopologyError: it cannot be read, is too large, or is no text.
    """
    where = "standard input" if name == "-" else name
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TopologyError(f"{where}: expected a readable file, found: {reason}") from error
    return decode(data, where)


def decode(data: bytes, where: str) -> Source:
    """Return the text of bytes, without terminal colours and with plain line ends.

    Raises:
        TopologyError: too large, a NUL or another byte that no such text has.
    """
    blank = Source("", where)
    if len(data) > MAX_BYTES:
        blank.fail(f"at most {MAX_BYTES // 2**20} MiB", "more", "cut it down to the topology")
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        found = f"byte 0x{data[error.start]:02x}" if error.start < len(data) else "a cut character"
        blank.fail("UTF-8 text", found, "save it as UTF-8", line=line, column=column)
    if "\0" in text:
        at = text.index("\0")
        line = text.count("\n", 0, at) + 1
        column = at - text.rfind("\n", 0, at)
        blank.fail("text", "a NUL character", "is this a binary file?", line=line, column=column)
    text = _ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    if not text.strip():
        blank.fail("a topology", "an empty text")
    if not text.lstrip().startswith("<"):
        for number, each in enumerate(text.split("\n"), start=1):
            if len(each) > MAX_LINE:
                blank.fail(f"lines of at most {MAX_LINE} characters", str(len(each)), line=number)
    return Source(text, where)


def has_line(text: str, pattern: str) -> bool:
    """Say whether some line begins with a pattern."""
    match = re.compile(pattern, re.ASCII).match
    return any(match(line) for line in text[:RECOGNISED].split("\n"))


def read_yaml(source: Source) -> Cursor:
    """Return the root of a YAML text, read strictly and without anything that expands.

    Raises:
        TopologyError: no YAML, or too much of it.
    """
    from charm_sched.topology import yaml_tree as topology_yaml

    if len(source.text) > MAX_YAML:
        source.fail(f"at most {MAX_YAML // 2**20} MiB of YAML", "more")
    return Cursor(topology_yaml.from_text(source.text, where=source.where), "", source.where)


def quoted(text: str) -> str:
    """Return a text in quotes, on one line and short."""
    return f'"{shorten(text)}"'
