"""Which parts of a machine a pattern names: links by kind or ends, devices and switches by name.

`*` stands for any characters, `?` for one, `0..3` for the numbers 0 to 3. A name matches in full or
from one of its segments on: `nic*` names `node0/nic0`. Links are named as reports name them
(`node0/gpu0 -> node0/nic0` is one direction, `<->` both, `#2` the second of parallel ones), by
their kind, or by one of their ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NoReturn

from charm_sched.errors import TopologyError
from charm_sched.topology.reader import nearest

if TYPE_CHECKING:
    from charm_sched.topology.graph import Link, Topology

Test = Callable[[str], bool]

_TOKEN = re.compile(r"(\d{1,6})\.\.(\d{1,6})|(\*)|(\?)", re.ASCII)
_ENDS = re.compile(r"(.+?)\s*(<->|->)\s*(.+?)(?:\s+#(\d+))?", re.ASCII)
_MOST = 10_000  # numbers of a range
_SHOWN = 6  # names in a message


def name_test(pattern: str) -> Test:
    """Make the test that a pattern is.

    >>> test = name_test("nic0..1")
    >>> [test(name) for name in ("node0/nic1", "node0/nic2", "nic0", "x/mynic0")]
    [True, False, True, False]

    Raises:
        TopologyError: An empty pattern, or a range that goes down or is far too long.
    """
    if not pattern.strip():
        raise TopologyError('expected a name such as gpu0 or "nic*", found an empty one')
    expression, end = "", 0
    for match in _TOKEN.finditer(pattern):
        expression += re.escape(pattern[end : match.start()])
        expression += _expression(match, pattern)
        end = match.end()
    compiled = re.compile(f"(?:.*/)?{expression}{re.escape(pattern[end:])}", re.DOTALL)
    return lambda name: compiled.fullmatch(name) is not None


def _expression(match: re.Match[str], pattern: str) -> str:
    first, last, many, _ = match.groups()
    if first is None:
        return ".*" if many else "."
    low, high = int(first), int(last)
    if low > high or high - low >= _MOST:
        raise TopologyError(
            f'"{pattern}": expected a range from a smaller to a larger number, of at most {_MOST} '
            f"numbers, found {first}..{last}"
        )
    width = len(first) if first.startswith("0") else 0
    return f"(?:{'|'.join(f'{number:0{width}d}' for number in range(low, high + 1))})"


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """List the names that a pattern names, in order."""
    test = name_test(pattern)
    return [name for name in names if test(name)]


def matching_links(machine: Topology, pattern: str) -> list[Link]:
    """List the links that a pattern names, both directions unless it says ``->``.

    Raises:
        TopologyError: It names none; the message says what there is.
    """
    ends = _ENDS.fullmatch(pattern.strip())
    if ends is None:
        test = name_test(pattern)
        known = {name: test(name) for name in machine.part_names}
        found = [k for k in machine.links if test(k.kind) or known[k.src] or known[k.dst]]
    else:
        found = _between(machine, *ends.groups())
    if not found:
        no_links(machine, pattern)
    return found


def _between(machine: Topology, a: str, arrow: str, b: str, number: str | None) -> list[Link]:
    left, right = name_test(a), name_test(b)
    pairs = [(k, left(k.src) and right(k.dst)) for k in machine.links]
    if arrow == "<->":
        pairs = [(k, hit or (left(k.dst) and right(k.src))) for k, hit in pairs]
    found = [k for k, hit in pairs if hit]
    if number is None:
        return found
    place: dict[tuple[str, str], int] = {}
    kept = []
    for link in found:
        ends = (link.src, link.dst)
        place[ends] = place.get(ends, 0) + 1
        if place[ends] == int(number):
            kept.append(link)
    return kept


def no_links(machine: Topology, pattern: str) -> NoReturn:
    """Raise the message for a pattern that names no link: it says what there is."""
    kinds = sorted({link.kind for link in machine.links})
    near = nearest(pattern.strip("*"), [*kinds, *machine.part_names[:_MOST]])
    raise TopologyError(
        f'"{pattern}" names no link of {machine.name}'
        + (f' (did you mean "{near}"?)' if near else "")
        + f"; its kinds of links are {', '.join(kinds)}, and its links end at "
        f"{some(name for link in machine.links for name in (link.src, link.dst))}"
    )


def some(names: Iterable[str]) -> str:
    """Name different things, at most so many that a message stays readable.

    >>> some(f"gpu{i}" for i in range(9))
    'gpu0, gpu1, gpu2, gpu3, gpu4, ..., gpu8'
    """
    every = list(dict.fromkeys(names))
    if len(every) > _SHOWN:
        every[_SHOWN - 1 : -1] = ["..."]
    return ", ".join(every)


__all__ = ["matching", "matching_links", "name_test", "no_links", "some"]
