"""Conditions: what a machine does when it is not at its best, off unless somebody turns it on.

Some rest on facts that links and profiles carry: `ramp` (small messages get a part of the
bandwidth), `short_kernels` (short kernels run below the rate of long ones) and `interference`
(kernels are slower while transfers cross their device). Others are named in the file, as other
numbers for parts of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from charm_sched.errors import TopologyError
from charm_sched.topology.changes import Setting, read_setting
from charm_sched.topology.profiles import source_of
from charm_sched.topology.reader import Cursor, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from charm_sched.topology.graph import Topology

RAMP, SHORT_KERNELS, INTERFERENCE = "ramp", "short_kernels", "interference"
BUILT_IN: Mapping[str, str] = {
    RAMP: "a link with `ramp`",
    SHORT_KERNELS: "a profile with rates `by_length`",
    INTERFERENCE: "a profile with `interference`",
}
"""The conditions that are no names of a file, and what a machine needs for them."""
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Other numbers that parts of the machine have under a condition.

    Attributes:
        name: By which it is turned on.
        settings: The numbers, as on the command line: "links[uplink].bandwidth=2.7 GB/s".
        source: Where that was seen.
    """

    name: str
    settings: tuple[str, ...]
    source: str = ""

    def changes(self) -> tuple[Setting, ...]:
        """Return the settings read."""
        return tuple(read_setting(text) for text in self.settings)

    def to_document(self) -> dict[str, Any]:
        """Return it as a file writes it."""
        source = {"source": self.source} if self.source else {}
        return {"set": list(self.settings), **source}


def read_conditions(cursor: Cursor) -> tuple[Condition, ...]:
    """Read `conditions`: by name `set` (a sequence of settings) and `source`."""
    found = []
    for name, entry in cursor.entries().items():
        key = Cursor(type(entry.node)(name, "text", entry.node.line), entry.path, entry.where)
        key.name("a condition name")
        if name in BUILT_IN or name == ALL:
            entry.fail("a name of its own", f'"{name}", which has a meaning already')
        entries = entry.mapping(("set",), ("source",))
        settings = entries["set"].sequence("settings such as links[upi].bandwidth=10 GB/s")
        for setting in settings:
            try:
                read_setting(setting.text("a setting"))
            except TopologyError as error:
                setting.fail("a setting such as links[upi].bandwidth=10 GB/s", None, str(error))
        if not settings:
            entries["set"].fail("at least one setting")
        found.append(
            Condition(
                name=name,
                settings=tuple(setting.text() for setting in settings),
                source=entries["source"].text() if "source" in entries else "",
            )
        )
    return tuple(found)


def read_under(cursor: Cursor) -> tuple[str, ...]:
    """Read `under`: the built-in conditions that hold without being asked for."""
    names = [item.choice(tuple(BUILT_IN), "a condition") for item in cursor.sequence("conditions")]
    return tuple(name for name in BUILT_IN if name in names)


def possible(machine: Topology) -> tuple[str, ...]:
    """Return the names of the conditions that a machine has facts for."""
    profiles = {id(device.compute): device.compute for device in machine.devices}.values()
    has = {
        RAMP: any(link.ramp for link in machine.links),
        SHORT_KERNELS: any(rate.by_length for profile in profiles for rate in profile.rates),
        INTERFERENCE: any(profile.interference > 1 for profile in profiles),
    }
    return (*(name for name in BUILT_IN if has[name]), *(c.name for c in machine.conditions))


def turned_on(machine: Topology, name: str) -> Topology:
    """Return the machine under a condition that rests on its own facts.

    Raises:
        TopologyError: nothing of the machine has them.
    """
    if name not in possible(machine):
        raise TopologyError(
            f"{machine.name}: condition {name}: expected {BUILT_IN[name]}, found none"
        )
    names = {*machine.under, name}
    return replace(machine, under=tuple(known for known in BUILT_IN if known in names))


def chosen(machine: Topology, names: Sequence[str]) -> tuple[str, ...]:
    """Return the conditions that names stand for: themselves, and `all` for every possible one.

    Raises:
        TopologyError: the machine knows no such condition.
    """
    known = possible(machine)
    if ALL in names:
        return known
    for name in names:
        if name not in BUILT_IN and name not in known:
            near = nearest(name, [*BUILT_IN, *known])
            raise TopologyError(
                f"{machine.name}: expected a condition ({', '.join([*BUILT_IN, *known][:12])}), "
                f'found "{name}"' + (f' (did you mean "{near}"?)' if near else "")
            )
    return tuple(dict.fromkeys(names))


def sentences(machine: Topology) -> Iterator[str]:
    """Yield what the conditions that are on take for granted, alike facts once."""
    if RAMP in machine.under:
        for link in machine.links:
            if link.ramp is not None:
                reason = source_of(link.source, "ramp")
                yield f"under ramp: {link.kind} links give a message {link.ramp}" + _because(reason)
    for profile in {id(d.compute): d.compute for d in machine.devices}.values():
        if SHORT_KERNELS in machine.under:
            without = sum(not rate.by_length for rate in profile.rates)
            yield (
                f"under short_kernels: {profile.name}: a kernel runs at the rate of as many "
                "queries and keys as would be the same work without a mask"
                + (f"; {without} of {len(profile.rates)} rates are the same at any length"
                   if without else "")
            )  # fmt: skip
        if INTERFERENCE in machine.under and profile.interference > 1:
            reason = source_of(profile.source, "interference")
            yield (
                f"under interference: {profile.name}: kernels take {profile.interference:g} times "
                "as long while transfers cross their device" + _because(reason)
            )


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


__all__ = [
    "BUILT_IN", "INTERFERENCE", "RAMP", "SHORT_KERNELS", "Condition", "chosen", "possible",
    "read_conditions", "read_under", "sentences", "turned_on",
]  # fmt: skip
