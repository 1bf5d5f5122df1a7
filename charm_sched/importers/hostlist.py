"""Slurm's host lists: ``node[01-08,12],login``."""

from __future__ import annotations

import re

from charm_sched.importers.reading import MAX_PARTS, Source, quoted

_PIECE = re.compile(r"[^\[\],]+|\[[0-9,-]+\]")


def expand(source: Source, text: str, line: int) -> list[str]:
    """Return the names of a host list, in order.

    Raises:
        TopologyError: it is no host list, or names more hosts than can be.
    """
    names: list[str] = []
    for part in _split(source, text, line):
        found = [""]
        end = 0
        for piece in _PIECE.finditer(part):
            if piece.start() != end:
                break
            end = piece.end()
            options = [piece.group()]
            if piece.group().startswith("["):
                options = _numbers(source, piece.group()[1:-1], line)
            if len(found) * len(options) + len(names) > MAX_PARTS:
                source.fail(f"at most {MAX_PARTS} names", f"more in {quoted(text)}", line=line)
            found = [head + option for head in found for option in options]
        if end != len(part) or not part:
            source.fail('a host list such as "node[01-08,12]"', quoted(text), line=line)
        names += found
    return names


def _split(source: Source, text: str, line: int) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            source.fail('a host list such as "node[01-08,12]"', quoted(text), line=line)
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def _numbers(source: Source, text: str, line: int) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part, re.ASCII)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            source.fail('a range such as "01-08"', quoted(part), line=line)
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) + len(found) >= MAX_PARTS:
            source.fail(f"at most {MAX_PARTS} names", f"more in {quoted(part)}", line=line)
        found += [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
    return found
