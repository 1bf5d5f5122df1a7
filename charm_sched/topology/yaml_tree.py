"""YAML text, or plain JSON values, to a tree of nodes that know their line.

The tree is built from parser events by one loop without recursion, so that nesting depth, duplicate
keys and exploding aliases are refused on the way, before anything is built from them. Scalars keep
their text and the tag YAML 1.1 would give them: `on`, `010` and `12:30:00` are recognised as traps
later, where it is known what was expected.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from charm_sched.errors import TopologyError

if TYPE_CHECKING:
    import yaml

MAX_DEPTH = 32
MAX_NODES = 4_000_000

_TAGS = {
    "str": "text",
    "int": "an integer",
    "float": "a number",
    "bool": "a truth value",
    "null": "nothing",
    "timestamp": "a date",
    "merge": "a merge key",
    "value": "a default key",
}


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a document.

    `value` is a dict or list of nodes, or the text of a scalar; `tag` is "mapping", "sequence" or
    what YAML 1.1 takes the scalar for; `size` counts this node and all below it, aliases expanded.
    """

    value: dict[str, Node] | list[Node] | str
    tag: str
    line: int | None = None
    size: int = 1

    def describe(self) -> str:
        """Say what was found, for a message."""
        if self.tag in ("mapping", "sequence"):
            return f"a {self.tag}" if self.value else f"an empty {self.tag}"
        if self.tag == "text":
            return f'"{shorten(str(self.value))}"'
        if self.tag == "nothing":
            return "nothing"
        return f"{shorten(str(self.value))} ({self.tag})"


def shorten(text: str, limit: int = 60) -> str:
    """Return `text` on one line and no longer than `limit`."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 3]}..."


def place(where: str, line: int | None, path: str) -> str:
    """Return the front of every message: file, line, and the path inside the document."""
    spot = where if line is None else f"{where}:{line}"
    return f"{spot}: {path}" if path else spot


def join(path: str, key: str | int) -> str:
    """Return the path of an entry: `links[3].bandwidth`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def from_value(value: object, *, where: str, path: str = "", depth: int = 0) -> Node:
    """Return the tree of a plain JSON value.

    Raises:
        TopologyError: a key is not text, the nesting is too deep, or a value is no JSON value.
    """
    if depth > MAX_DEPTH:
        _refuse_depth(where, None, path)
    match value:
        case str():
            return Node(value, "text")
        case bool():
            return Node("true" if value else "false", _TAGS["bool"])
        case int() | float():
            return Node(str(value), _TAGS[type(value).__name__])
        case None:
            return Node("", _TAGS["null"])
        case Mapping():
            entries: dict[str, Node] = {}
            for key, entry in value.items():
                if not isinstance(key, str):
                    raise TopologyError(
                        f"{place(where, None, path)}: expected text keys, found {key!r}"
                    )
                entries[key] = from_value(entry, where=where, path=join(path, key), depth=depth + 1)
            return Node(entries, "mapping")
        case Sequence():
            return Node(
                [
                    from_value(entry, where=where, path=join(path, i), depth=depth + 1)
                    for i, entry in enumerate(value)
                ],
                "sequence",
            )
    raise TopologyError(
        f"{place(where, None, path)}: expected a JSON value, found {type(value).__name__}"
    )


def from_text(text: str, *, where: str) -> Node:
    """Return the tree of one YAML document.

    Raises:
        TopologyError: not YAML, empty, several documents, duplicate keys, tags, too deep, too
        large.
    """
    import yaml

    composer = _Composer(where)
    try:
        for event in _events(text):
            composer.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or "malformed text"
        if "nesting" in problem:  # the C parser has a limit of its own
            _refuse_depth(where, mark.line + 1 if mark else None, "")
        raise TopologyError(
            f"{place(where, mark.line + 1 if mark else None, composer.path())}: expected YAML, "
            f"found a syntax error: {problem}"
        ) from error
    except yaml.YAMLError as error:
        raise TopologyError(f"{where}: expected YAML, found {shorten(str(error), 120)}") from error
    if composer.root is None:
        raise TopologyError(
            f"{where}: expected a topology, found an empty file "
            '(start with "schema: charm-sched/topology")'
        )
    return composer.root


def _events(text: str) -> Iterator[yaml.Event]:
    """Parse with the C parser where PyYAML has one; no loader constructs anything here."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.parse(text, Loader=loader)


@functools.cache
def _resolver() -> Any:  # noqa: ANN401  (yaml.resolver is only imported here)
    from yaml.resolver import Resolver

    return Resolver()


def _tag_of(text: str) -> str:
    """Return what YAML 1.1 takes a plain scalar for."""
    from yaml.nodes import ScalarNode

    tag: str = _resolver().resolve(ScalarNode, text, (True, False))
    return _TAGS.get(tag.rpartition(":")[2], "text")


@dataclass(slots=True)
class _Frame:
    """A mapping or sequence that is still open."""

    tag: str
    line: int
    anchor: str | None
    entries: dict[str, Node] = field(default_factory=dict)
    items: list[Node] = field(default_factory=list)
    key: str | None = None
    size: int = 1


class _Composer:
    """Builds the tree out of events."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.root: Node | None = None
        self._frames: list[_Frame] = []
        self._anchors: dict[str, Node] = {}
        self._documents = 0

    def path(self) -> str:
        """Return the path of the value that is being read."""
        path = ""
        for frame in self._frames:
            if frame.tag == "sequence":
                path = join(path, len(frame.items))
            elif frame.key is not None:
                path = join(path, frame.key)
        return path

    def take(self, event: yaml.Event) -> None:
        """Read one event."""
        import yaml

        line = event.start_mark.line + 1 if event.start_mark else 0
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    self._fail(line, "one document", 'a second one ("---")')
            case yaml.AliasEvent():
                self._alias(event.anchor, line)
            case yaml.ScalarEvent():
                self._scalar(event, line)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._open(event, line)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._close()

    def _fail(self, line: int, expected: str, found: str, hint: str = "") -> NoReturn:
        spot = place(self.where, line, self.path())
        raise TopologyError(
            f"{spot}: expected {expected}, found {found}" + (f" ({hint})" if hint else "")
        )

    def _open(self, event: yaml.CollectionStartEvent, line: int) -> None:
        if event.tag is not None:
            self._fail(line, "plain YAML", f"the tag {shorten(event.tag)}", "remove the tag")
        if len(self._frames) >= MAX_DEPTH:
            _refuse_depth(self.where, line, shorten(self.path()))
        tag = "mapping" if type(event).__name__.startswith("Mapping") else "sequence"
        frame = self._frames[-1] if self._frames else None
        if frame is not None and frame.tag == "mapping" and frame.key is None:
            self._fail(line, "a text as key", f"a {tag}")
        self._frames.append(_Frame(tag, line, event.anchor))

    def _close(self) -> None:
        frame = self._frames.pop()
        value = frame.entries if frame.tag == "mapping" else frame.items
        self._add(Node(value, frame.tag, frame.line, frame.size), frame.anchor, frame.line)

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        if event.tag is not None and event.tag != "!":
            self._fail(line, "plain YAML", f"the tag {shorten(event.tag)}", "remove the tag")
        tag = _tag_of(event.value) if event.implicit[0] else "text"
        self._add(Node(event.value, tag, line), event.anchor, line)

    def _alias(self, anchor: str | None, line: int) -> None:
        node = self._anchors.get(anchor or "")
        if node is None:
            self._fail(line, "an alias of something above", f"*{anchor}")
        self._add(node, None, line)

    def _add(self, node: Node, anchor: str | None, line: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._frames:
            self.root = node
            return
        frame = self._frames[-1]
        if frame.tag == "mapping" and frame.key is None:
            self._take_key(frame, node, line)
            return
        frame.size += node.size
        if frame.size > MAX_NODES:
            self._fail(line, f"at most {MAX_NODES} values", "aliases that expand to more")
        if frame.key is not None:
            frame.entries[frame.key] = node
            frame.key = None
        else:
            frame.items.append(node)

    def _take_key(self, frame: _Frame, node: Node, line: int) -> None:
        if not isinstance(node.value, str) or node.tag != "text":
            hint = f"write '{node.value}' in quotes" if isinstance(node.value, str) else ""
            self._fail(line, "a text as key", node.describe(), hint)
        if node.value in frame.entries:
            first = frame.entries[node.value].line
            frame.key = node.value
            self._fail(
                line,
                "each key once",
                f'a second "{shorten(node.value)}"',
                f"the first is at line {first}",
            )
        frame.key = node.value


def _refuse_depth(where: str, line: int | None, path: str) -> NoReturn:
    raise TopologyError(
        f"{place(where, line, path)}: expected at most {MAX_DEPTH} levels of nesting, found more"
    )
