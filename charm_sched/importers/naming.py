"""Names as topology files allow them, and ranges of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBERED = re.compile(r"(.*?)(\d{1,9})", re.ASCII)


def plain_name(text: str) -> str:
    """Return a name as topology files allow it.

    >>> plain_name("S-0002c9 switch,4/-port")
    'S-0002c9-switch-4/port'
    """
    parts = [
        re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9_:+.-]+", "-", part, flags=re.ASCII)).strip("-")
        for part in text.split("/")
    ]
    return "/".join(part if part[0].isalnum() else f"x{part}" for part in parts if part) or "x"


def printable(text: str) -> str:
    """Return a text on one line, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def ranges(names: Sequence[str]) -> list[str]:
    """Return patterns for names, consecutive numbers at the end as one range.

    >>> ranges(["node08", "node09", "node10", "login"])
    ['node08..10', 'login']
    """
    found: list[tuple[str, str, str]] = []  # prefix, first and last number
    for name in names:
        match = _NUMBERED.fullmatch(name)
        prefix, number = match.groups() if match else (name, "")
        last = found[-1] if found else ("", "", "")
        follows = number and last[1] and prefix == last[0] and int(number) == int(last[2]) + 1
        zeros = last[1].startswith("0") and len(last[1]) > 1
        padded = len(number) == len(last[1]) if zeros else not number.startswith("0")
        if follows and padded:
            found[-1] = (prefix, last[1], number)
        else:
            found.append((prefix, number, number))
    return [f"{p}{a}" + (f"..{b}" if a != b else "") for p, a, b in found]
