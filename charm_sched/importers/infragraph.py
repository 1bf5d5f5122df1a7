"""InfraGraph YAML: devices of components, instances of devices, edges by slices of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from charm_sched.importers.facts import Edge, Network
from charm_sched.importers.reading import MAX_PARTS, Source, has_line, read_yaml
from charm_sched.topology.reader import Cursor

COMPUTE = ("npu", "xpu", "gpu")
RATES = {
    "gigabits_per_second": 1e9 / 8, "gigabytes_per_second": 1e9,
    "g_bits_per_second": 1e9 / 8, "g_bytes_per_second": 1e9,
}  # fmt: skip
_SLICE = re.compile(r"([\w.-]{1,100})(?:\[(\d{0,6})(:?)(\d{0,6})\])?", re.ASCII)


def recognise(text: str) -> bool:
    """Say whether instances, devices and edges between components are there."""
    keys = ("instances", "devices", "edges")
    return "component:" in text and all(has_line(text, rf"{k}:") for k in keys)


@dataclass(frozen=True, slots=True)
class _Device:
    """A device: how many of each component and what kind it is, and the inner edges."""

    counts: dict[str, int]
    kinds: dict[str, str]
    edges: tuple[tuple[str, str, str, bool, Cursor], ...]
    rates: dict[str, float | None]


@dataclass(slots=True)
class _Builder:
    source: Source
    devices: dict[str, str] = field(default_factory=dict)
    switches: dict[str, str] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)


def read(source: Source) -> Network:
    """Read an InfraGraph file.

    Raises:
        TopologyError: an unknown name or scheme, a slice out of range, devices inside devices.
    """
    root = read_yaml(source)
    top = root.mapping(
        ("devices", "instances", "edges"), ("name", "description", "links", "annotations")
    )
    devices = {}
    for item in top["devices"].sequence("devices"):
        entries = item.entries()
        if "name" not in entries:
            item.fail('the key "name"', "none")
        devices[entries["name"].text("a name")] = _read_device(item, entries)
    instances: dict[str, tuple[_Device, int]] = {}
    builder = _Builder(source)
    for item in top["instances"].sequence("instances"):
        values = item.mapping(("name", "device"), ("count", "description"))
        device = values["device"].text("the name of a device")
        if device not in devices:
            values["device"].fail(f"one of the devices {', '.join(devices)}")
        count = values["count"].integer("a count", most=MAX_PARTS) if "count" in values else 1
        name = values["name"].text("a name")
        instances[name] = (devices[device], count)
        _add_instance(builder, name, *instances[name], item)
    rates = _rates(top["links"]) if "links" in top else {}
    for item in top["edges"].sequence("edges"):
        _outer_edge(builder, item, instances, rates)
    if not builder.devices:
        root.fail("a component npu, xpu or gpu", "none")
    return Network(
        sources=(f"{source.where} (InfraGraph)",),
        devices=tuple(builder.devices),
        switches=builder.switches,
        edges=tuple(builder.edges),
    )


def _rates(cursor: Cursor) -> dict[str, float | None]:
    """Return bytes per second of each link by name, None where it has no bandwidth."""
    found: dict[str, float | None] = {}
    for item in cursor.sequence("links"):
        values = item.mapping(("name",), ("description", "physical", "bandwidth"))
        name = values["name"].text("a name")
        found[name] = None
        holder = values.get("physical")
        inner = holder.mapping((), ("bandwidth", "latency")) if holder else values
        if "bandwidth" in inner:
            entries = inner["bandwidth"].entries()
            for unit, scale in RATES.items():
                if unit in entries:
                    text = str(entries[unit].node.value)
                    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) or not float(text) > 0:
                        entries[unit].fail("a number above zero")
                    found[name] = float(text) * scale
            if found[name] is None:
                inner["bandwidth"].fail(f"one of {', '.join(RATES)}")
    return found


def _read_device(item: Cursor, entries: dict[str, Cursor]) -> _Device:
    item.mapping(("name", "components"), ("description", "links", "edges"))
    counts: dict[str, int] = {}
    kinds: dict[str, str] = {}
    for each in entries["components"].sequence("components"):
        values = each.entries()
        for key in ("name", "choice"):
            if key not in values:
                each.fail(f'the key "{key}"', "none")
        name = values["name"].text("a name")
        kind = values["choice"].text("a kind of component")
        if kind == "device":
            each.fail("components that are no devices themselves", "a device inside a device")
        counts[name] = values["count"].integer("a count", most=10_000) if "count" in values else 1
        kinds[name] = kind
    edges = []
    for each in entries["edges"].sequence("edges") if "edges" in entries else ():
        values = each.mapping(("ep1", "ep2", "link"), ("scheme", "description"))
        ends = [
            values[key].mapping(("component",), ("device",))["component"].text("a component")
            for key in ("ep1", "ep2")
        ]
        edges.append((ends[0], ends[1], values["link"].text("a link"), _scheme(values), each))
    rates = _rates(entries["links"]) if "links" in entries else {}
    return _Device(counts, kinds, tuple(edges), rates)


def _scheme(values: dict[str, Cursor]) -> bool:
    """Return whether every first end is joined with every second one."""
    if "scheme" not in values:
        return False
    return values["scheme"].choice(("one2one", "many2many"), "a scheme") == "many2many"


def _slice(cursor: Cursor, text: str, known: dict[str, int]) -> list[str]:
    """Return the numbered names of a slice such as "npu[0:4]" or "nic"."""
    match = _SLICE.fullmatch(text)
    if match is None or match[1] not in known:
        cursor.fail(f"a name of {', '.join(known)}, with a slice such as [0:4]", f'"{text}"')
    count = known[match[1]]
    first = int(match[2]) if match[2] else 0
    if match[3]:
        last = int(match[4]) if match[4] else count
    else:
        last = first + 1 if match[2] else count
    if not 0 <= first < last <= count:
        cursor.fail(f"a slice of the {count} {match[1]}", f'"{text}"')
    return [f"{match[1]}{i}" for i in range(first, last)]


def _join(
    builder: _Builder, cursor: Cursor, ends: tuple[list[str], list[str]], kind: str,
    rate: float | None, many: bool,
) -> None:  # fmt: skip
    a, b = ends
    if not many and len(a) != len(b):
        cursor.fail("as many ends on both sides (one2one)", f"{len(a)} and {len(b)}")
    if len(builder.edges) + len(a) * len(b) > MAX_PARTS:
        cursor.fail(f"at most {MAX_PARTS} links", "more")
    pairs = [(x, y) for x in a for y in b] if many else list(zip(a, b, strict=True))
    done: set[frozenset[str]] = set()
    for x, y in pairs:
        if x != y and frozenset((x, y)) not in done:
            done.add(frozenset((x, y)))
            builder.edges.append(Edge(a=x, b=y, kind=kind, bandwidth=rate))


def _add_instance(
    builder: _Builder, name: str, device: _Device, count: int, cursor: Cursor
) -> None:
    total = count * sum(device.counts.values())
    if len(builder.devices) + len(builder.switches) + total > MAX_PARTS:
        cursor.fail(f"at most {MAX_PARTS} components", "more")
    for i in range(count):
        for component, each in device.counts.items():
            kind = device.kinds[component]
            for j in range(each):
                full = f"{name}{i}/{component}{j}"
                if kind in COMPUTE:
                    builder.devices[full] = kind
                else:
                    builder.switches[full] = "root_complex" if kind == "cpu" else kind
        for a, b, link, many, where in device.edges:
            ends = tuple(
                [f"{name}{i}/{each}" for each in _slice(where, text, device.counts)]
                for text in (a, b)
            )
            _join(builder, where, (ends[0], ends[1]), link, device.rates.get(link), many)


def _outer_edge(
    builder: _Builder,
    item: Cursor,
    instances: dict[str, tuple[_Device, int]],
    rates: dict[str, float | None],
) -> None:
    values = item.mapping(("ep1", "ep2", "link"), ("scheme", "description"))
    ends = []
    for key in ("ep1", "ep2"):
        end = values[key].mapping(("instance", "component"))
        text = end["instance"].text("an instance")
        hosts = _slice(end["instance"], text, {n: count for n, (_, count) in instances.items()})
        device = instances[text.partition("[")[0]][0]
        parts = _slice(end["component"], end["component"].text("a component"), device.counts)
        ends.append([f"{host}/{part}" for host in hosts for part in parts])
    link = values["link"].text("a link")
    _join(builder, item, (ends[0], ends[1]), link, rates.get(link), _scheme(values))
