"""The topology document, section by section, read strictly into plain records.

Here is what each key means; `build` turns the records into a graph. Names may hold ranges:
`gpu0..7` stands for gpu0 to gpu7, `node000..127/nic0..7` for 1,024 names, the last range turning
fastest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from charm_sched.topology.compute import read_assumed, read_profile, read_source
from charm_sched.topology.costs import RunningCost, read_costs
from charm_sched.topology.profiles import ComputeProfile
from charm_sched.topology.reader import Cursor, nearest

SCHEMA = "charm-sched/topology"
VERSION = 1
MAX_PARTS = 1_000_000  # devices, switches or links; more is a mistake in a range
PAIRINGS = ("block", "cycle", "all")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One entry of `devices`."""

    pattern: Pattern
    profile: str
    memory: float | None
    port: float | None
    assumed: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSpec:
    """One entry of `switches`."""

    pattern: Pattern
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """One entry of `links`; `reverse` is the bandwidth from `dst` to `src`."""

    src: Pattern
    dst: Pattern
    pairing: str
    count: int
    kind: str
    bandwidth: float
    reverse: float
    latency: float
    flow_cap: float | None
    shared: bool
    assumed: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSpec:
    """One entry of `parts`: instances of a template."""

    pattern: Pattern
    template: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What the top level and every template have in common."""

    cursor: Cursor
    parts: tuple[PartSpec, ...]
    devices: tuple[DeviceSpec, ...]
    switches: tuple[SwitchSpec, ...]
    links: tuple[LinkSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSpec:
    """One entry of `domains`."""

    cursor: Cursor
    name: str
    devices: tuple[Pattern, ...]
    domains: tuple[DomainSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole topology document."""

    cursor: Cursor
    name: str
    description: str
    tiers: tuple[str, ...] | None
    profiles: Mapping[str, ComputeProfile]
    templates: Mapping[str, Section]
    body: Section
    domains: tuple[DomainSpec, ...] | None
    assumptions: tuple[str, ...]
    costs: RunningCost | None = None


SECTION_KEYS = ("parts", "devices", "switches", "links")
DOCUMENT_REQUIRED = ("schema", "version", "name", "profiles")
DOCUMENT_OPTIONAL = (
    *("description", "tiers", "kinds", "templates"),
    *SECTION_KEYS,
    *("domains", "assumptions", "costs"),
)


def read_document(cursor: Cursor) -> Document:
    """Read a whole document.

    Raises:
        TopologyError: anything that is not exactly as the schema says.
    """
    _check_version(cursor)
    top = cursor.mapping(DOCUMENT_REQUIRED, DOCUMENT_OPTIONAL)
    profiles = {
        entry.name("a profile name"): read_profile(name, value)
        for name, value in top["profiles"].entries().items()
        for entry in [_key(value, name)]
    }
    kinds = top["kinds"].entries() if "kinds" in top else {}
    kinds = {_key(entry, name).name("a kind of link"): entry for name, entry in kinds.items()}
    for entry in kinds.values():
        entry.mapping((), LINK_VALUES)
    templates = top["templates"].entries() if "templates" in top else {}
    known = (frozenset(profiles), kinds, frozenset(templates))
    return Document(
        cursor=cursor,
        name=top["name"].name("a name"),
        description=top["description"].text() if "description" in top else "",
        tiers=_read_tiers(top["tiers"]) if "tiers" in top else None,
        profiles=profiles,
        templates={
            _key(entry, name).name("a template name"): read_section(
                entry, entry.mapping((), ("description", *SECTION_KEYS)), *known
            )
            for name, entry in templates.items()
        },
        body=read_section(cursor, top, *known),
        domains=tuple(read_domain(entry) for entry in top["domains"].sequence("domains"))
        if "domains" in top
        else None,
        assumptions=tuple(entry.text() for entry in top["assumptions"].sequence("sentences"))
        if "assumptions" in top
        else (),
        costs=read_costs(top["costs"]) if "costs" in top else None,
    )


def _key(cursor: Cursor, key: str) -> Cursor:
    """Return the key of an entry as something to check."""
    return Cursor(type(cursor.node)(key, "text", cursor.node.line), cursor.path, cursor.where)


def _check_version(cursor: Cursor) -> None:
    """Refuse a foreign document before its keys are looked at."""
    entries = cursor.entries()
    for key in ("schema", "version"):
        if key not in entries:
            cursor.fail(
                f'the key "{key}"', "none", f'add "schema: {SCHEMA}" and "version: {VERSION}"'
            )
    if entries["schema"].text("a schema name") != SCHEMA:
        entries["schema"].fail(f'"{SCHEMA}"')
    if entries["version"].integer("a version", most=999_999) != VERSION:
        entries["version"].fail(f"version {VERSION}", hint="this release reads version 1 only")


def _read_tiers(cursor: Cursor) -> tuple[str, ...]:
    tiers: list[str] = []
    for entry in cursor.sequence("tier names, outermost first"):
        tier = entry.name("a tier name")
        if tier in tiers:
            entry.fail("each tier name once", f'a second "{tier}"')
        tiers.append(tier)
    if not tiers:
        cursor.fail("tier names, outermost first", hint="leave the key out to have them named")
    return tuple(tiers)


def read_section(
    cursor: Cursor,
    entries: Mapping[str, Cursor],
    profiles: frozenset[str],
    kinds: Mapping[str, Cursor],
    templates: frozenset[str],
) -> Section:
    """Read parts, devices, switches and links of the top level or of a template."""

    def items(key: str) -> list[Cursor]:
        return entries[key].sequence(key) if key in entries else []

    return Section(
        cursor=cursor,
        parts=tuple(_read_part(item, templates) for item in items("parts")),
        devices=tuple(_read_device(item, profiles) for item in items("devices")),
        switches=tuple(_read_switch(item) for item in items("switches")),
        links=tuple(_read_link(item, kinds) for item in items("links")),
    )


def _read_part(cursor: Cursor, templates: frozenset[str]) -> PartSpec:
    entries = cursor.mapping(("name", "template"))
    return PartSpec(
        pattern=read_pattern(entries["name"], "a name"),
        template=_known(entries["template"], templates, "template"),
    )


def _known(cursor: Cursor, known: frozenset[str], noun: str) -> str:
    name = cursor.text(f"the name of a {noun}")
    if name not in known:
        near = nearest(name, sorted(known))
        hint = f'did you mean "{near}"?' if near else f"add it under {noun}s"
        cursor.fail(f"the name of a {noun}", None, hint)
    return name


def _read_device(cursor: Cursor, profiles: frozenset[str]) -> DeviceSpec:
    entries = cursor.mapping(("name", "profile"), ("memory", "port", "assumed", "source"))
    return DeviceSpec(
        pattern=read_pattern(entries["name"], "a device name"),
        profile=_known(entries["profile"], profiles, "profile"),
        memory=entries["memory"].bytes() if "memory" in entries else None,
        port=entries["port"].bandwidth() if "port" in entries else None,
        assumed=read_assumed(entries, ("memory", "port")),
        source=read_source(entries, ("memory", "port")),
    )


def _read_switch(cursor: Cursor) -> SwitchSpec:
    entries = cursor.mapping(("name", "kind"))
    return SwitchSpec(
        pattern=read_pattern(entries["name"], "a switch name"),
        kind=entries["kind"].name("a kind of switch"),
    )


LINK_NUMBERS = ("bandwidth", "reverse", "latency", "flow_cap")
LINK_VALUES = (*LINK_NUMBERS, "shared", "assumed", "source")
LINK_OPTIONAL = (*LINK_VALUES, "pairing", "count")


def _read_link(cursor: Cursor, kinds: Mapping[str, Cursor]) -> LinkSpec:
    own = cursor.mapping(("from", "to", "kind"), LINK_OPTIONAL)
    kind = own["kind"].name("a kind of link")
    defaults = kinds[kind].entries() if kind in kinds else {}
    values = {**defaults, **own}
    for key in ("bandwidth", "latency"):
        if key not in values:
            near = nearest(kind, kinds)
            cursor.fail(
                f'the key "{key}" here or under kinds.{kind}',
                "none",
                f'did you mean kind "{near}"?' if near and kind not in kinds else f"add {key}: ...",
            )
    bandwidth = values["bandwidth"].bandwidth()
    own_numbers = {key for key in own if key in LINK_NUMBERS}
    assumed = {
        *(set(read_assumed(defaults, LINK_NUMBERS)) - own_numbers),
        *read_assumed(own, LINK_NUMBERS),
    }
    shared = values["shared"].flag() if "shared" in values else False
    if shared and "reverse" in values:
        values["reverse"].fail(
            "no reverse bandwidth on a shared link", hint="remove one of the two"
        )
    return LinkSpec(
        src=read_pattern(own["from"], "a device or switch name"),
        dst=read_pattern(own["to"], "a device or switch name"),
        pairing=own["pairing"].choice(PAIRINGS, "a pairing") if "pairing" in own else "block",
        count=own["count"].integer("a count", most=1024) if "count" in own else 1,
        kind=kind,
        bandwidth=bandwidth,
        reverse=values["reverse"].bandwidth() if "reverse" in values else bandwidth,
        latency=values["latency"].seconds(),
        flow_cap=values["flow_cap"].bandwidth() if "flow_cap" in values else None,
        shared=shared,
        assumed=tuple(key for key in LINK_NUMBERS if key in assumed),
        source=read_source(values, LINK_NUMBERS),
    )


def read_domain(cursor: Cursor) -> DomainSpec:
    """Read one domain of the override: devices, further domains, or both."""
    entries = cursor.mapping(("name",), ("devices", "domains"))
    if len(entries) == 1:
        cursor.fail('the key "devices" or "domains"', "none")
    return DomainSpec(
        cursor=cursor,
        name=entries["name"].text("a domain name"),
        devices=tuple(
            read_pattern(item, "a device name")
            for item in entries["devices"].sequence("device names")
        )
        if "devices" in entries
        else (),
        domains=tuple(read_domain(item) for item in entries["domains"].sequence("domains"))
        if "domains" in entries
        else (),
    )
