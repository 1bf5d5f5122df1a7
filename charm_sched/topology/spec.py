"""The topology document, section by section, read strictly into plain records.

Here is what each key means; `build` turns the records into a graph. Names may hold ranges:
`gpu0..7` stands for gpu0 to gpu7, `node000..127/nic0..7` for 1,024 names, the last range turning
fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from charm_sched.topology.compute import read_assumed, read_profile, read_source
from charm_sched.topology.conditions import Condition, read_conditions, read_under
from charm_sched.topology.costs import RunningCost, read_costs
from charm_sched.topology.library import load_profile, shipped_profile, shipped_profiles
from charm_sched.topology.patterns import Pattern, read_pattern
from charm_sched.topology.profiles import ComputeProfile
from charm_sched.topology.ramp import Ramp, read_ramp
from charm_sched.topology.reader import Cursor, nearest

SCHEMA = "charm-sched/topology"
VERSION = 1
PAIRINGS = ("block", "cycle", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One entry of `devices`."""

    pattern: Pattern
    profile: str
    memory: float | None
    port: float | None
    peer: bool
    assumed: tuple[str, ...]
    source: str
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSpec:
    """One entry of `switches`."""

    pattern: Pattern
    kind: str
    id: str = ""


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
    ramp: Ramp | None
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
    conditions: tuple[Condition, ...] = ()
    under: tuple[str, ...] = ()


SECTION_KEYS = ("parts", "devices", "switches", "links")
DOCUMENT_REQUIRED = ("schema", "version", "name")
DOCUMENT_OPTIONAL = (
    *("description", "tiers", "profiles", "kinds", "templates"),
    *SECTION_KEYS,
    *("domains", "assumptions", "costs", "conditions", "under"),
)


def read_document(cursor: Cursor, folder: Path | None = None) -> Document:
    """Read a whole document.

    Args:
        cursor: Its top.
        folder: Where the profile files are that it names; None: it may name none.

    Raises:
        TopologyError: anything that is not exactly as the schema says.
    """
    cursor.document(SCHEMA, VERSION)
    top = cursor.mapping(DOCUMENT_REQUIRED, DOCUMENT_OPTIONAL)
    profiles = _read_profiles(top["profiles"], folder) if "profiles" in top else {}
    kinds = top["kinds"].entries() if "kinds" in top else {}
    kinds = {_key(entry, name).name("a kind of link"): entry for name, entry in kinds.items()}
    for entry in kinds.values():
        entry.mapping((), LINK_VALUES)
    templates = top["templates"].entries() if "templates" in top else {}
    known = (frozenset(profiles) | set(shipped_profiles()), kinds, frozenset(templates))
    sections = {
        _key(entry, name).name("a template name"): read_section(
            entry, entry.mapping((), ("description", *SECTION_KEYS)), *known
        )
        for name, entry in templates.items()
    }
    body = read_section(cursor, top, *known)
    used = {device.profile for s in (*sections.values(), body) for device in s.devices}
    return Document(
        cursor=cursor,
        name=top["name"].name("a name"),
        description=top["description"].text() if "description" in top else "",
        tiers=_read_tiers(top["tiers"]) if "tiers" in top else None,
        profiles=profiles | {name: shipped_profile(name) for name in sorted(used - set(profiles))},
        templates=sections,
        body=body,
        domains=tuple(read_domain(entry) for entry in top["domains"].sequence("domains"))
        if "domains" in top
        else None,
        assumptions=tuple(entry.text() for entry in top["assumptions"].sequence("sentences"))
        if "assumptions" in top
        else (),
        costs=read_costs(top["costs"]) if "costs" in top else None,
        conditions=read_conditions(top["conditions"]) if "conditions" in top else (),
        under=read_under(top["under"]) if "under" in top else (),
    )


def _read_profiles(cursor: Cursor, folder: Path | None) -> dict[str, ComputeProfile]:
    """Read the profiles of a document: each spelled out, or the name of a file beside it."""
    found = {}
    for key, entry in cursor.entries().items():
        name = _key(entry, key).name("a profile name")
        if not isinstance(entry.node.value, str) or entry.node.tag != "text":
            found[name] = read_profile(name, entry)
            continue
        if folder is None:
            entry.fail("a profile (peak: ..., overhead: ...): only a topology file names files")
        found[name] = replace(load_profile(folder / entry.text("the name of a file")), name=name)
    return found


def _key(cursor: Cursor, key: str) -> Cursor:
    """Return the key of an entry as something to check."""
    return Cursor(type(cursor.node)(key, "text", cursor.node.line), cursor.path, cursor.where)


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
    entries = cursor.mapping(
        ("name", "profile"), (*DEVICE_NUMBERS, "peer", "assumed", "source", "id")
    )
    return DeviceSpec(
        pattern=read_pattern(entries["name"], "a device name"),
        profile=_known(entries["profile"], profiles, "profile"),
        memory=entries["memory"].bytes() if "memory" in entries else None,
        port=entries["port"].bandwidth() if "port" in entries else None,
        peer=entries["peer"].flag() if "peer" in entries else True,
        assumed=read_assumed(entries, DEVICE_NUMBERS),
        source=read_source(entries, DEVICE_NUMBERS),
        id=entries["id"].text("what the system calls it") if "id" in entries else "",
    )


def _read_switch(cursor: Cursor) -> SwitchSpec:
    entries = cursor.mapping(("name", "kind"), ("id",))
    return SwitchSpec(
        pattern=read_pattern(entries["name"], "a switch name"),
        kind=entries["kind"].name("a kind of switch"),
        id=entries["id"].text("what the system calls it") if "id" in entries else "",
    )


DEVICE_NUMBERS = ("memory", "port")
LINK_NUMBERS = ("bandwidth", "reverse", "latency", "flow_cap", "ramp")
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
        ramp=read_ramp(values["ramp"]) if "ramp" in values else None,
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
