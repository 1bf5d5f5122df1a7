"""Names with ranges: `gpu0..7` stands for gpu0 to gpu7, the last range turning fastest."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from charm_sched.topology.reader import Cursor

MAX_PARTS = 200_000  # devices, switches or links; more is a mistake in a range

_RANGE = re.compile(r"(\d+)\.\.(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A name with ranges, and where it was written."""

    text: str
    cursor: Cursor

    @property
    def count(self) -> int:
        """How many names it stands for."""
        return math.prod(int(b) - int(a) + 1 for a, b in _RANGE.findall(self.text))

    def names(self) -> list[str]:
        """Return the names in order, the last range turning fastest."""
        names = [""]
        end = 0
        for match in _RANGE.finditer(self.text):
            first, last = match.groups()
            width = len(first) if first.startswith("0") and len(first) > 1 else 0
            fixed = self.text[end : match.start()]
            numbers = [f"{fixed}{i:0{width}d}" for i in range(int(first), int(last) + 1)]
            names = [head + number for head in names for number in numbers]
            end = match.end()
        return [name + self.text[end:] for name in names]


def read_pattern(cursor: Cursor, noun: str) -> Pattern:
    """Read a name with ranges."""
    text = cursor.text(noun)
    plain = Cursor(
        type(cursor.node)(_RANGE.sub("0", text), "text", cursor.node.line), *_spot(cursor)
    )
    try:
        plain.name(noun)
    except ValueError:
        cursor.fail(f'{noun} of letters, digits and _ - + : . /, with ranges such as "gpu0..7"')
    for first, last in _RANGE.findall(text):
        if len(first) > 9 or len(last) > 9 or not int(first) <= int(last):
            cursor.fail("a range from a smaller to a larger number", f'"{first}..{last}"')
    pattern = Pattern(text, cursor)
    if pattern.count > MAX_PARTS:
        cursor.fail(f"at most {MAX_PARTS} names", f'{pattern.count} in "{text}"')
    return pattern


def _spot(cursor: Cursor) -> tuple[str, str]:
    return cursor.path, cursor.where
