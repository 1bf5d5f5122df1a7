"""A strict cursor over a document: every mismatch is one TopologyError that says where and what.

Nothing is ignored and nothing guessed: an unknown key, a number without its unit, a YAML 1.1 trap
or a value out of range is refused with the line, the path, what was expected and what was found.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from charm_sched import units
from charm_sched.errors import TopologyError
from charm_sched.topology.yaml_tree import Node, join, place, shorten

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_:+-]|\.(?!\.)|/(?=[A-Za-z0-9]))*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A node together with its place."""

    node: Node
    path: str
    where: str

    def fail(
        self, expected: str, found: str | None = None, hint: str = "", *, line: int | None = None
    ) -> NoReturn:
        """Raise the one error message for this place."""
        spot = place(self.where, line or self.node.line, self.path)
        found = self.node.describe() if found is None else found
        raise TopologyError(
            f"{spot}: expected {expected}, found {found}" + (f" ({hint})" if hint else "")
        )

    def mapping(self, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Cursor]:
        """Return the entries of a mapping with all of `required` and nothing beyond `optional`."""
        entries = self.entries()
        known = (*required, *optional)
        for key, entry in entries.items():
            if key not in known:
                near = nearest(key, known)
                entry.fail(
                    f"one of the keys {', '.join(known)}",
                    f'the unknown key "{shorten(key)}"',
                    f'did you mean "{near}"?' if near else "",
                )
        for key in required:
            if key not in entries:
                self.fail(f'the key "{key}"', "none", f"add {key}: ...")
        return entries

    def document(self, schema: str, version: int) -> None:
        """Refuse a foreign document before its keys are looked at."""
        entries = self.entries()
        for key in ("schema", "version"):
            if key not in entries:
                self.fail(
                    f'the key "{key}"', "none", f'add "schema: {schema}" and "version: {version}"'
                )
        if entries["schema"].text("a schema name") != schema:
            entries["schema"].fail(f'"{schema}"')
        if entries["version"].integer("a version", most=999_999) != version:
            entries["version"].fail(
                f"version {version}", hint=f"this release reads version {version} only"
            )

    def entries(self) -> dict[str, Cursor]:
        """Return the entries of a mapping with free keys."""
        if not isinstance(self.node.value, dict):
            self.fail("a mapping (key: value)")
        return {
            key: Cursor(node, join(self.path, key), self.where)
            for key, node in self.node.value.items()
        }

    def sequence(self, noun: str) -> list[Cursor]:
        """Return the items of a sequence; `noun` says of what."""
        if not isinstance(self.node.value, list):
            self.fail(f"a sequence of {noun}")
        return [
            Cursor(node, join(self.path, i), self.where) for i, node in enumerate(self.node.value)
        ]

    def text(self, noun: str = "a text") -> str:
        """Return a non-empty text."""
        value = self.node.value
        if not isinstance(value, str) or self.node.tag == "nothing":
            self.fail(noun)
        if self.node.tag != "text":
            self.fail(noun, None, f'YAML reads this as {self.node.tag}; write "{value}" in quotes')
        if not value.strip():
            self.fail(noun, "an empty text")
        return value

    def name(self, noun: str) -> str:
        """Return a name of letters, digits and _ - + : . /, beginning with a letter or digit."""
        value = self.text(noun)
        if _NAME.fullmatch(value) is None:
            self.fail(f"{noun} of letters, digits and _ - + : . /", f'"{shorten(value)}"')
        return value

    def choice(self, options: Sequence[str], noun: str) -> str:
        """Return one of `options`."""
        value = self.text(f"{noun}: {' or '.join(options)}")
        if value not in options:
            near = nearest(value, options)
            self.fail(
                f"{noun}: {' or '.join(options)}", None, f'did you mean "{near}"?' if near else ""
            )
        return value

    def flag(self) -> bool:
        """Return true or false; `on`, `yes` and friends are refused."""
        if self.node.tag != "a truth value" or self.node.value not in ("true", "false"):
            self.fail("true or false")
        return self.node.value == "true"

    def integer(self, noun: str, *, least: int = 1, most: int) -> int:
        """Return a plain decimal whole number within the limits."""
        value = self.node.value
        plain = isinstance(value, str) and self.node.tag == "an integer"
        if not plain or re.fullmatch(r"0|[1-9][0-9]*", str(value), re.ASCII) is None:
            self.fail(f"{noun}: a plain whole number from {least} to {most}")
        digits = str(value)
        if len(digits) > len(str(most)) or not least <= int(digits) <= most:
            self.fail(f"{noun}: a whole number from {least} to {most}", shorten(digits))
        return int(digits)

    def fraction(self, noun: str) -> float:
        """Return a number above 0 and not above 1."""
        value = str(self.node.value) if self.node.tag in ("a number", "an integer") else ""
        if re.fullmatch(r"0?\.[0-9]+|1(?:\.0+)?", value, re.ASCII) is None or not float(value):
            self.fail(f"{noun}: a number above 0 and at most 1")
        return float(value)

    def factor(self, noun: str, most: float = 100.0) -> float:
        """Return a plain number from 1 to `most`."""
        value = str(self.node.value) if self.node.tag in ("a number", "an integer") else ""
        plain = re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]+)?", value, re.ASCII)
        if plain is None or not 1 <= float(value) <= most:
            self.fail(f"{noun}: a number from 1 to {most:g}")
        return float(value)

    def bandwidth(self) -> float:
        """Return bytes per second, above zero."""
        return self._quantity(units.parse_bandwidth, units.BANDWIDTH, positive=True)

    def seconds(self) -> float:
        """Return seconds, zero or more."""
        return self._quantity(units.parse_seconds, units.TIME, positive=False)

    def rate(self) -> float:
        """Return FLOP/s, above zero."""
        return self._quantity(units.parse_rate, units.RATE, positive=True)

    def bytes(self) -> float:
        """Return bytes, above zero."""
        return self._quantity(units.parse_bytes, units.SIZE, positive=True)

    def _quantity(
        self, parse: Callable[[str], float], dimension: units.Dimension, *, positive: bool
    ) -> float:
        text = self.node.value
        expected = f'{dimension.noun} such as "{dimension.example}"'
        if not isinstance(text, str) or self.node.tag == "nothing":
            self.fail(expected)
        try:
            value = parse(text)
        except ValueError as error:
            spot = place(self.where, self.node.line, self.path)
            raise TopologyError(f"{spot}: {shorten(str(error), 300)}") from error
        if not math.isfinite(value) or value < 0 or (positive and value == 0):
            self.fail(f"{expected}, {'above' if positive else 'not below'} zero")
        return value


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` most resembles, if any does."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None
