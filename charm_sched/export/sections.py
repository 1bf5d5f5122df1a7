"""The parts of a report in HTML: what was found, why, what would help, what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from charm_sched.export.markup import escape, listing, table, tag
from charm_sched.render.comparison import against_ring, describe
from charm_sched.render.explain import HARDLY, verdict
from charm_sched.render.machines import cost_facts
from charm_sched.units import format_bandwidth, format_bytes, format_seconds
from charm_sched.what_if.error_band import band_of

if TYPE_CHECKING:
    from charm_sched.search.results import Comparison, Result
    from charm_sched.timelines.link_load import LinkLoad
    from charm_sched.timelines.timeline import Timeline
    from charm_sched.what_if.explain import Explanation
    from charm_sched.what_if.levers import Lever

TITLES = {"forward": "Forward", "backward": "Backward"}
MOST_CAUSES = 10
MOST_LEVELS = 40


def section(title: str, *parts: str, anchor: str = "", class_: str | None = None) -> str:
    """Give a section with a heading; without any part there is none."""
    body = [part for part in parts if part]
    if not body:
        return ""
    return tag("section", tag("h2", escape(title)), *body, id=anchor or None, class_=class_)


def head(comparison: Comparison) -> str:
    """Name the machine and the workload."""
    machine = comparison.topology
    ranks = next(iter(comparison.chosen.values())).plan.num_ranks
    noun = "rank" if ranks == 1 else "ranks"
    return tag(
        "header",
        tag("p", "charm-sched", class_="kicker"),
        tag("h1", escape(machine.name)),
        tag("p", escape(machine.description), class_="lead") if machine.description else "",
        tag("p", escape(f"{describe(comparison.workload)}; {ranks} {noun}"), class_="work"),
    )


def cards(comparison: Comparison, names: Mapping[str, str]) -> str:
    """Give one card per direction with its time and what stands beside it, and the reason."""
    found = [_card(d, r, names[r.strategy]) for d, r in comparison.chosen.items()]
    notes = [("Why this one", comparison.why)] if comparison.why else []
    notes += [("What it costs", sentence) for sentence in cost_facts(comparison)]
    words = [
        tag("p", tag("b", escape(f"{title}: ")), escape(_sentence(note)), class_="why")
        for title, note in notes
    ]
    return tag("section", tag("div", *found, class_="cards"), *words, id="result")


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _card(direction: str, result: Result, name: str) -> str:
    timeline = result.timeline
    number, _, unit = format_seconds(timeline.makespan, digits=3).partition(" ")
    beside = against_ring(result).lstrip(", ") or "Ring-Attention itself"
    part = timeline.compute_s / timeline.makespan if timeline.makespan else 1.0
    reached = result.efficiency(result.bound)
    bars = [
        _meter("computation", part, format_seconds(timeline.compute_s, digits=3), "compute"),
        _meter("bound reached", reached, format_seconds(result.bound.seconds, digits=3), "bound"),
    ]
    return tag(
        "div",
        tag("h3", escape(TITLES[direction])),
        tag("p", tag("strong", escape(number)), f" {escape(unit)}", class_="big"),
        tag("p", escape(f"{name}, {beside}"), class_="beside"),
        *bars,
        tag("dl", *(_fact(title, value) for title, value in _facts(result))),
        tag("p", escape(f"Such predictions were {band_of(timeline)}."), class_="note"),
        class_="card",
    )  # fmt: skip


def _meter(name: str, part: float, words: str, kind: str) -> str:
    bar = tag("span", tag("i", style=f"width:{min(part, 1.0):.1%}"), class_=f"meter {kind}")
    text = tag("span", escape(f"{name} {part:.0%}")) + tag("span", escape(words), class_="right")
    return tag("div", tag("p", text), bar, class_="metered")


def _fact(title: str, value: str) -> str:
    return tag("div", tag("dt", escape(title)), tag("dd", escape(value)))


def _facts(result: Result) -> Iterable[tuple[str, str]]:
    timeline = result.timeline
    if result.speedup_vs_ring is not None and result.strategy != "ring":
        ring = result.speedup_vs_ring * timeline.makespan
        yield "Ring-Attention takes", format_seconds(ring, digits=3)
    yield "exposed communication", format_seconds(timeline.exposed_comm, digits=3)
    for tier, moved in timeline.tier_bytes.items():
        yield f"moved over {tier}", format_bytes(moved, digits=3)
    if timeline.total_bytes:
        name, busy = timeline.busiest_link
        yield "busiest link", f"{name}, {busy:.0%}"
    memory = format_bytes(result.peak_bytes, digits=3)
    fits = {True: ", fits", False: ": MORE THAN IT HAS", None: ""}[result.fits]
    yield "memory, fullest device", memory + fits
    yield "shards", result.partition
    if result.params:
        yield "parameters", ", ".join(f"{k}={v}" for k, v in result.params.items())


def legend(*entries: tuple[str, str]) -> str:
    """Explain the colours of the figures that follow."""
    marks = [
        tag("span", tag("i", style=f"background:{colour}"), escape(name))
        for name, colour in entries
    ]
    return tag("p", *marks, class_="legend")


def strategy_table(comparison: Comparison, names: Mapping[str, str]) -> str:
    """Give every strategy and direction with its numbers."""
    title = (
        "strategy", "direction", "time", "vs ring", "computation", "exposed", "bound", "reached",
        "memory", "shards",
    )  # fmt: skip
    order = sorted(
        comparison.results, key=lambda r: (r.direction == "backward", r.timeline.makespan)
    )
    rows = [
        (
            names[r.strategy],
            r.direction,
            format_seconds(r.timeline.makespan, digits=3),
            "" if r.speedup_vs_ring is None else f"{r.speedup_vs_ring:.2f}x",
            format_seconds(r.timeline.compute_s, digits=3),
            format_seconds(r.timeline.exposed_comm, digits=3),
            format_seconds(r.bound.seconds, digits=3),
            f"{r.efficiency(r.bound):.0%}",
            format_bytes(r.peak_bytes, digits=3),
            r.partition,
        )
        for r in order
    ]
    return table(title, rows, left=2)


def absent(comparison: Comparison, names: Mapping[str, str]) -> str:
    """Say which strategies have no row, and why."""
    lines = [
        f"{names[one.strategy]}, {one.direction}: not tried to its end, {one.reason}"
        for one in comparison.not_tried
    ]
    lines += [f"{names[r.strategy]}, {r.direction}: {r.reason}" for r in comparison.refused]
    if not lines:
        return ""
    summary = tag("summary", escape("Strategies that are not shown, and why"))
    return tag("details", summary, listing(lines))


def reasons(told: Explanation) -> str:
    """Say what is on the critical path: each cause with its part of the time."""
    total = told.makespan or 1.0
    longest = sorted(told.causes, key=lambda cause: -cause.seconds)[:MOST_CAUSES]
    rows = [
        _share(cause.seconds / total, cause.words, cause.stretches[0].kind)
        for cause in told.causes
        if cause in longest and cause.seconds >= HARDLY / 4 * total
    ]
    left = total - sum(cause.seconds for cause in longest)
    if len(told.causes) > len(longest):
        rows.append(_share(left / total, f"{len(told.causes) - len(longest)} shorter ones", ""))
    words = [tag("p", escape(f"Narrowest cut for it: {told.cut}."))] if told.cut else []
    return tag("ol", *rows, class_="shares") + "".join(words)


def _share(part: float, words: str, kind: str) -> str:
    bar = tag("i", style=f"width:{part:.1%}", class_=kind or None)
    return tag(
        "li",
        tag("b", escape(f"{part:.0%}")),
        tag("span", escape(words)),
        tag("span", bar, class_="bar"),
    )


def help_most(levers: Sequence[Lever]) -> str:
    """Say what a better machine would gain, the most first."""
    most = max((lever.at_most for lever in levers), default=1.0)
    rows = []
    for lever in levers:
        now = (lever.gain - 1) / max(most - 1, 1e-9)
        then = (lever.at_most - 1) / max(most - 1, 1e-9)
        bar = tag(
            "span",
            tag("i", class_="then", style=f"width:{_part(then):.1%}"),
            tag("i", class_="now", style=f"width:{_part(now):.1%}"),
            class_="bar two",
        )
        words = f"{lever.gain:.2f}x this plan, {lever.at_most:.2f}x a new plan at most"
        rows.append(tag("li", tag("span", escape(lever.name)), bar, tag("small", escape(words))))
    note = (
        "One part of the machine twice as good. Dark: the same plan, simulated there. Light: what "
        "the bound there leaves to a plan made for it."
    )
    return tag(
        "div",
        tag("p", escape(verdict(tuple(levers)))),
        tag("ul", *rows, class_="levers"),
        tag("p", escape(note), class_="note"),
    )


def _part(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def link_table(loads: Sequence[LinkLoad], numbers: Sequence[int]) -> str:
    """Give the load of some links."""
    rows = [
        (
            load.name,
            load.kind,
            f"{load.utilisation:.0%}",
            format_bytes(load.bytes, digits=3),
            "" if load.busy is None else format_seconds(load.busy, digits=3),
            "" if load.rate is None else format_bandwidth(load.rate, digits=3),
            format_bandwidth(load.bandwidth, digits=3),
        )
        for load in (loads[number] for number in numbers)
    ]
    title = ("link", "kind", "used", "bytes", "busy", "rate while busy", "bandwidth")
    return table(title, rows, left=2, caption="The fullest links")


def level_table(timeline: Timeline) -> str:
    """Give when each level of each stream runs."""
    rows = [
        (
            level.stream,
            str(level.level),
            format_seconds(level.start, digits=3),
            format_seconds(level.end, digits=3),
            format_bytes(level.bytes, digits=3),
            str(level.transfers),
        )
        for level in timeline.levels[:MOST_LEVELS]
    ]
    title = ("stream", "level", "start", "end", "bytes", "transfers")
    more = len(timeline.levels) - len(rows)
    words = f"The first {MOST_LEVELS} levels; {more} more follow" if more > 0 else "Levels"
    return table(title, rows, caption=words)


__all__ = [
    "TITLES", "absent", "cards", "head", "help_most", "legend", "level_table", "link_table",
    "reasons", "section", "strategy_table",
]  # fmt: skip
