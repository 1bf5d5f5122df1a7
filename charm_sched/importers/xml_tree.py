"""XML, read safely: no entities, no external files, bounded depth and size, and lines kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from charm_sched.importers.reading import Source, quoted

if TYPE_CHECKING:
    from xml.etree.ElementTree import ParseError

MAX_DEPTH = 64
MAX_ELEMENTS = 200_000


@dataclass(frozen=True, slots=True)
class Element:
    """An element; `line` counts from 1."""

    tag: str
    attributes: Mapping[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def get(self, name: str) -> str:
        """Return an attribute, "" where it is not there."""
        return self.attributes.get(name, "")

    def all(self, tag: str) -> Iterator[Element]:
        """Yield the children of a tag."""
        return (child for child in self.children if child.tag == tag)


def root_of(text: str) -> str:
    """Return the tag of the first element without parsing, "" if this is no XML.

    >>> root_of("<?xml version='1.0'?><!-- a --><system version='1'>")
    'system'
    """
    rest = text.lstrip()
    while rest.startswith(("<?", "<!")):
        end = "?>" if rest.startswith("<?") else "-->" if rest.startswith("<!--") else ">"
        if end == ">" and "[" in rest.partition(">")[0]:
            end = "]>"  # a DTD inside, which the parser will refuse
        _, found, rest = rest.partition(end)
        if not found:
            return ""
        rest = rest.lstrip()
    if not rest.startswith("<"):
        return ""
    tag = rest[1:200].split(None, 1)[0] if rest[1:2].strip() else ""
    return tag.split(">")[0].rstrip("/")


def parse(source: Source) -> Element:
    """Return the root element.

    Raises:
        TopologyError: not well-formed (with line and column), an entity, too deep or too large.
    """
    from xml.etree.ElementTree import ParseError

    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import DefusedXMLParser

    builder = _Builder(source)
    parser: Any = DefusedXMLParser(target=builder)
    builder.parser = parser.parser
    try:
        parser.feed(source.text)
        parser.close()
    except DefusedXmlException as error:
        source.fail("XML without entities", type(error).__name__, "remove the DTD's contents",
                    line=parser.parser.CurrentLineNumber)  # fmt: skip
    except ParseError as error:
        _not_well_formed(source, error, builder)
    except (ValueError, LookupError) as error:
        source.fail("XML", f"what no parser takes: {error}")
    if builder.root is None:
        source.fail("an XML element", "none")
    return builder.root


def _not_well_formed(source: Source, error: ParseError, builder: _Builder) -> None:
    line, column = error.position
    if builder.root is not None and not builder.open:
        found, hint = f"more behind <{builder.root.tag}>", "this is a fragment; give the whole file"
    elif builder.open:
        found = f"a syntax error inside <{builder.open[-1].tag}>: {str(error).split(':')[0]}"
        hint = f"<{builder.open[-1].tag}> begins in line {builder.open[-1].line}; is the end cut?"
    else:
        found, hint = str(error).split(":")[0], ""
    source.fail("well-formed XML", found, hint, line=line, column=column + 1)


class _Builder:
    """The parser's target."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.root: Element | None = None
        self.open: list[Element] = []
        self.parser: Any = None
        self._count = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Open an element."""
        line = self.parser.CurrentLineNumber
        element = Element(tag, attributes, line)
        self._count += 1
        if len(self.open) >= MAX_DEPTH or self._count > MAX_ELEMENTS:
            self.source.fail(
                f"at most {MAX_ELEMENTS} elements, {MAX_DEPTH} deep", "more", line=line
            )
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def end(self, tag: str) -> None:
        """Close an element."""
        self.open.pop()

    def data(self, text: str) -> None:
        """Take text."""
        if self.open and text.strip():
            self.open[-1].text.append(text)

    def close(self) -> None:
        """End."""


def number(source: Source, element: Element, name: str, *, most: int = 10**12) -> int | None:
    """Return a whole number of an attribute, None where it is not there or empty.

    Raises:
        TopologyError: it is no whole number, or absurdly large.
    """
    text = element.get(name).strip()
    if not text:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 15 or int(digits) > most:
        source.fail(f"a whole number up to {most} for {name}", quoted(text), line=element.line)
    return int(text)
