"""What a probe found, in words and as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from charm_sched.probing.outliers import Slow
from charm_sched.probing.probe import Pair
from charm_sched.probing.result import Found
from charm_sched.probing.whole_machine import link_class
from charm_sched.units import format_bandwidth, format_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from charm_sched.probing.numbers import ClassFit, Number
    from charm_sched.probing.whole_machine import LinkClass

SCHEMA, VERSION = "charm-sched/probe", 1
MANY = 0.25  # of all kinds of traffic; more unexplained ones mean that the graph is wrong
LATENCY_TOLERANCE = 0.25  # relative; latencies scatter more than bandwidths


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where the machine is not as its file says.

    Attributes:
        what: The class of links, or the links themselves.
        number: "bandwidth", "flow_cap", "latency", "duplex", or "slow" for odd pairs.
        file: Base units; None where the file has no number.
        measured: Likewise.
        text: The same in words.
    """

    what: str
    number: str
    file: float | None
    measured: float | None
    text: str


def rate(value: float) -> str:
    """Write bytes per second as reports do."""
    return format_bandwidth(value, digits=3)


def ratio(measured: float, file: float) -> str:
    """Write a difference in per cent, or as a multiple where it is large."""
    if file > 0 and measured / file <= 3:
        return f"{100 * (measured / file - 1):+.0f} %"
    return f"{measured / file:.3g} times" if file > 0 else "from 0"


def differences(found: Found) -> tuple[Difference, ...]:
    """Name what differs by more than the tolerance: slow links first, then classes of links."""
    named = [_slow(found, group) for group in _both_directions(found)]
    for fit in found.fit.classes:
        for key, number in (("bandwidth", fit.bandwidth), ("flow_cap", fit.flow_cap)):
            named += _number(fit, key, number, found.tolerance)
        named += _duplex(found, fit)
        named += _latency(found, fit)
    return tuple(named)


def _number(fit: ClassFit, key: str, number: Number, tolerance: float) -> Iterator[Difference]:
    file, value = number.file, number.value
    if value is None or number.status == "unseen":
        return
    what = "flow cap" if key == "flow_cap" else "bandwidth"
    if file is None:
        text = f"the file has no flow cap, one flow gets no more than {rate(value)}"
    elif abs(value / file - 1) <= tolerance:
        return
    elif number.status == "at least":
        text = f"{what}: the file says {rate(file)}, {rate(value)} was seen to pass"
        text += f" ({ratio(value, file)})"
    else:
        text = f"{what}: the file says {rate(file)}, measured {rate(value)} ({ratio(value, file)})"
    if number.others:
        text += f"; could as well be: {', '.join(number.others)}"
    yield Difference(
        what=fit.name, number=key, file=file, measured=value, text=f"{fit.name}: {text}"
    )


def _duplex(found: Found, fit: ClassFit) -> Iterator[Difference]:
    words = ("full duplex", "half duplex")
    says, measured = fit.link_class[4], fit.shared
    if measured == says:
        return
    text = f"{fit.name}: the file says {words[says]}, it is {words[measured]}"
    made = {
        role: max(
            (r for r in found.readings
             if r.traffic.role == role and _loads(found, r.traffic.pairs, fit)),
            key=lambda r: len(r.traffic.pairs), default=None,
        )
        for role in ("one way", "both ways")
    }  # fmt: skip
    one, both = made["one way"], made["both ways"]
    if one is not None and both is not None:
        alone, together = (rate(r.rate * len(r.traffic.pairs)) for r in (one, both))
        text += f": {both.traffic.name} move {together} in all, one way alone {alone}"
    yield Difference(
        what=fit.name, number="duplex", file=float(says), measured=float(measured), text=text
    )


def _loads(found: Found, pairs: Sequence[Pair], fit: ClassFit) -> bool:
    """Say whether traffic was made for a class: all its flows cross one link of it."""
    routes = [found.topology.route(found.devices[a], found.devices[b]).links for a, b in pairs]
    common = set.intersection(*({i // 2 for i in route} for route in routes))
    return any(link_class(found.topology.links[2 * i]) == fit.link_class for i in common)


def _latency(found: Found, fit: ClassFit) -> Iterator[Difference]:
    value = found.latencies.get(fit.link_class)
    file = fit.link_class[2]
    if value is None or abs(value - file) <= LATENCY_TOLERANCE * file:
        return
    text = f"{fit.name}: latency: the file says {format_seconds(file, digits=3)}, measured "
    text += f"{format_seconds(value, digits=3)} ({ratio(value, file)})"
    yield Difference(what=fit.name, number="latency", file=file, measured=value, text=text)


def _both_directions(found: Found) -> Iterator[tuple[Slow, ...]]:
    """Put both directions of a link together where they are as slow."""
    left = list(found.slow)
    while left:
        one = left.pop(0)
        back = {i ^ 1 for i in one.links}
        other = next((s for s in left if s.links and set(s.links) == back), None)
        if other is None or abs(other.rate / one.rate - 1) > found.tolerance:
            yield (one,)
            continue
        left.remove(other)
        yield one, other


def _slow(found: Found, group: tuple[Slow, ...]) -> Difference:
    first = group[0]
    pairs = [pair for each in group for pair in each.pairs]
    measured = min(each.rate for each in group)
    speed = f"{rate(measured)}, pairs like these get {rate(first.usual)}"
    speed += f" ({ratio(measured, first.usual)})"
    if not first.links:
        (a, b), *_ = pairs
        what = f"{found.devices[a]} -> {found.devices[b]}"
        text = f"{what}: {speed}; no link explains it: other pairs over the same links are faster"
    else:
        what = _place(found, group)
        text = f"{what}: {_count(len(pairs))} it: {speed}"
        if len(first.links) > 1:
            text += "; the same pairs cross all of it, so where on it is not told"
    return Difference(what=what, number="slow", file=first.usual, measured=measured, text=text)


def _count(pairs: int) -> str:
    return f"{pairs} pairs cross" if pairs > 1 else "1 pair crosses"


def _place(found: Found, group: tuple[Slow, ...]) -> str:
    """Name links to blame, with the device that they belong to."""
    links = [found.topology.links[i] for i in group[0].links]
    arrow = "<->" if len(group) > 1 else "->"
    chain = [f"{link.src} {arrow} {link.dst}" for link in links]
    kinds = " and ".join(dict.fromkeys(link.kind for link in links))
    devices = set(found.devices)
    ends = {end for link in links for end in (link.src, link.dst)} & devices
    whose = f"{ends.pop()}'s {kinds}" if len(ends) == 1 else kinds
    return f"{whose} ({', '.join(chain)})"


def undetermined(found: Found) -> tuple[str, ...]:
    """Say what the measurements leave open, and what therefore stays as in the file."""
    told = []
    for fit in found.fit.classes:
        for key, number in (("bandwidth", fit.bandwidth), ("flow_cap", fit.flow_cap)):
            what = f"{fit.name} {'flow cap' if key == 'flow_cap' else 'bandwidth'}"
            if number.status == "unseen" and number.file is not None:
                told.append(
                    f"{what}: never the limit, {rate(number.seen)} was the most that passed; the "
                    f"file's {rate(number.file)} stays"
                )
            elif number.status == "together" and number.value is not None and number.others:
                told.append(
                    f"{what}: {rate(number.value)}, but not told apart from: "
                    f"{', '.join(number.others)}"
                )
        if fit.shared_status == "unseen" and not fit.is_port:
            says = ("full", "half")[fit.shared]
            told.append(f"{fit.name}: nothing told half from full duplex; the file's {says} stays")
    crossed = {fit.link_class for fit in found.fit.classes}
    every = dict.fromkeys(link_class(link) for link in found.topology.links)
    told += [f"{own[0]}: no route between these ranks crosses it" for own in every
             if own not in crossed]  # fmt: skip
    if not found.latencies:
        told.append("latencies: the network that was measured does not have the machine's; the "
                    "file's stay")  # fmt: skip
    return tuple(told)


def unexplained(found: Found) -> tuple[str, ...]:
    """Name measurements that the fitted machine does not give."""
    count, every = len(found.fit.unexplained), found.fit.cases
    head = (
        (
            f"{count} of {every} kinds of traffic: links as the file draws them do not describe "
            "this machine, so its numbers say little",
        )
        if count > every * MANY
        else ()
    )
    return head + tuple(
        f"{each.name}: measured {rate(each.rate)} per flow, by the fitted links it would be "
        f"{rate(each.fitted)}: something that the file does not know limits it"
        for each in found.fit.unexplained
    )


def document(found: Found, written: Path | None) -> dict[str, Any]:
    """Give everything as JSON values: bytes per second, seconds."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "topology": {"name": found.topology.name, "digest": found.topology.digest},
        "devices": list(found.devices),
        "how": found.how,
        "tolerance": found.tolerance,
        "readings": [
            {
                "name": r.traffic.name, "role": r.traffic.role,
                "pairs": [list(pair) for pair in r.traffic.pairs],
                "sizes": list(r.traffic.sizes), "latency_s": r.latency, "bandwidth": r.rate,
                "expected_bandwidth": r.expected,
            }
            for r in found.readings
        ],
        "links": [_class_document(fit, found.latencies) for fit in found.fit.classes],
        "slow": [
            {
                "links": [f"{found.topology.links[i].src} -> {found.topology.links[i].dst}"
                          for i in s.links],
                "pairs": [list(pair) for pair in s.pairs], "bandwidth": s.rate,
                "usual_bandwidth": s.usual,
            }
            for s in found.slow
        ],
        "differences": [asdict(each) for each in differences(found)],
        "undetermined": list(undetermined(found)),
        "unexplained": list(unexplained(found)),
        "notes": list(found.notes),
        "topology_file": None if written is None else str(written),
    }  # fmt: skip


def _class_document(fit: ClassFit, latencies: Mapping[LinkClass, float]) -> dict[str, Any]:
    kind, _, latency, _, shared = fit.link_class
    return {
        "name": fit.name,
        "kind": kind,
        "bandwidth": asdict(fit.bandwidth),
        "flow_cap": asdict(fit.flow_cap),
        "latency": {"file": latency, "value": latencies.get(fit.link_class)},
        "half_duplex": {"file": shared, "value": fit.shared, "status": fit.shared_status},
    }
