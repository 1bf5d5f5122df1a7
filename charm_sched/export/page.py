"""A comparison as one HTML file: all in it, nothing fetched, readable without scripts too."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charm_sched import __version__
from charm_sched.commands.extras import Extras
from charm_sched.errors import CharmSchedError
from charm_sched.export import sections
from charm_sched.export.beside import beside
from charm_sched.export.figures import (
    COMPUTE,
    EXPOSED,
    NEUTRAL,
    lengths_figure,
    strategy_figure,
    sweep_figure,
)
from charm_sched.export.machine_figure import machine_figure
from charm_sched.export.markup import escape, listing, script_safe, tag
from charm_sched.export.memory_figure import memory_figure
from charm_sched.export.sections import TITLES, section
from charm_sched.export.sources import rests_on
from charm_sched.export.timeline_data import timeline_data
from charm_sched.files import write_whole
from charm_sched.render.tables import names_of
from charm_sched.report.memory import memory_words
from charm_sched.timelines.link_load import fullest, link_loads
from charm_sched.what_if.lengths import verdict
from charm_sched.what_if.sweep_values import words

if TYPE_CHECKING:
    from charm_sched.search.results import Comparison, Result
    from charm_sched.what_if.explain import Explanation
    from charm_sched.what_if.lengths import Point
    from charm_sched.what_if.sweep_values import Sweep

START = b"<!doctype html>\n<!-- charm-sched report -->"
"""How every report begins."""
MOST_LINKS = 20
INSTALL = "pip install 'charm-sched[report]'"


@dataclass(eq=False)
class _Figures:
    """The figures of a page by the id of their place."""

    figures: dict[str, Any] = field(default_factory=dict)
    timelines: dict[str, Any] = field(default_factory=dict)

    def place(self, name: str, figure: Mapping[str, Any], fallback: str = "") -> str:
        """Keep a figure, and give its place with what stands there without scripts."""
        self.figures[name] = figure
        return tag("div", id=name, class_="plot") + (tag("noscript", fallback) if fallback else "")


def check_plotly() -> None:
    """Refuse a report, before long work, where plotly is not installed.

    Raises:
        CharmSchedError: It is not.
    """
    if find_spec("plotly") is None:
        raise CharmSchedError(f"--report needs plotly, which is not installed: {INSTALL}")


def write_report(
    comparison: Comparison,
    path: Path,
    *,
    extras: Extras | None = None,
    points: Sequence[Point] = (),
) -> None:
    """Write a report.

    Args:
        comparison: What was found.
        path: Where.
        extras: What stands beside it; explanations with levers say what would help.
        points: The same at several lengths.

    Raises:
        CharmSchedError: plotly is not installed.
        OSError: The file cannot be written.
    """
    write_whole(path, report_page(comparison, extras=extras, points=points).encode())


def report_page(
    comparison: Comparison, *, extras: Extras | None = None, points: Sequence[Point] = ()
) -> str:
    """Give a report as a page of HTML.

    Raises:
        CharmSchedError: plotly is not installed.
    """
    check_plotly()
    extras = extras or Extras()
    figures = _Figures()
    names = _names(comparison, points, extras.sweep)
    body = [
        sections.head(comparison),
        sections.cards(comparison, names),
        _strategies(comparison, names, figures),
        _lengths(points, names, figures),
        _sweep(extras.sweep, names, figures),
        beside(extras),
        _tabs(comparison),
    ]
    for direction, result in comparison.chosen.items():
        body.append(_direction(direction, result, extras.explanations.get(direction), figures))
    body.append(section("What the numbers rest on", rests_on(comparison), class_="long"))
    return _assembled(comparison, "\n".join(body), figures)


def _names(
    comparison: Comparison, points: Sequence[Point], sweep: Sweep | None
) -> Mapping[str, str]:
    """Name every strategy that the page mentions."""
    every = [result.strategy for result in comparison.results]
    every += [result.strategy for result in comparison.chosen.values()]
    every += [one.strategy for one in comparison.not_tried]
    every += [refusal.strategy for refusal in comparison.refused]
    every += [point.strategy for point in points]
    for sample in sweep.samples if sweep else ():
        every += [sample.strategy, *(name for name, _ in sample.others)]
    return names_of(every)


def _strategies(comparison: Comparison, names: Mapping[str, str], figures: _Figures) -> str:
    listed = [*comparison.results]
    plans = {id(result.plan) for result in listed}
    listed += [r for r in comparison.chosen.values() if id(r.plan) not in plans]
    parts = []
    for direction, chosen in comparison.chosen.items():
        found = [result for result in listed if result.direction == direction]
        place = figures.place(f"strategies-{direction}", strategy_figure(found, names, chosen))
        parts.append(tag("div", tag("h3", TITLES[direction]), place))
    rows = sections.strategy_table(comparison, names)
    as_table = tag("details", tag("summary", "As a table"), rows)
    colours = sections.legend(
        ("computation", COMPUTE),
        ("exposed communication", EXPOSED),
        ("bound: no schedule is faster", NEUTRAL),
    )
    return section(
        "Every strategy with its best partition",
        colours,
        tag("div", *parts, class_="pair"),
        tag("noscript", rows),
        as_table,
        sections.absent(comparison, names),
        anchor="strategies",
    )


def _lengths(points: Sequence[Point], names: Mapping[str, str], figures: _Figures) -> str:
    parts = []
    for direction in dict.fromkeys(point.direction for point in points):
        found = [point for point in points if point.direction == direction]
        place = figures.place(f"lengths-{direction}", lengths_figure(found, names))
        told = tag("p", escape(verdict(found)))
        parts.append(tag("div", tag("h3", TITLES[direction]), place, told))
    return section(
        "Over the length of the sequence",
        tag("div", *parts, class_="pair") if parts else "",
        anchor="lengths",
    )


def _sweep(sweep: Sweep | None, names: Mapping[str, str], figures: _Figures) -> str:
    if sweep is None:
        return ""
    parts = []
    for direction in dict.fromkeys(sample.direction for sample in sweep.samples):
        place = figures.place(f"sweep-{direction}", sweep_figure(sweep, direction, names))
        parts.append(tag("div", tag("h3", TITLES[direction]), place))
    told = [words(crossover, sweep.axis) for crossover in sweep.crossovers]
    nothing = "The same strategy is best, and the same is the limit, at all of them."
    return section(
        f"Over {sweep.axis.path}",
        tag("div", *parts, class_="pair"),
        listing(told or [nothing]),
        anchor="sweep",
    )


def _tabs(comparison: Comparison) -> str:
    """Give the buttons that choose a direction, where there are two."""
    if len(comparison.chosen) < 2:
        return ""
    buttons = [tag("button", TITLES[d], type="button", data_direction=d) for d in comparison.chosen]
    return tag("nav", *buttons, class_="tabs", aria_label="direction")


def _direction(direction: str, result: Result, told: Explanation | None, figures: _Figures) -> str:
    """Give the sections of one direction: links, reasons, timeline."""
    title = TITLES[direction]
    loads = link_loads(result.timeline)
    drawn, note = machine_figure(result.timeline, loads)
    links = sections.link_table(loads, fullest(loads, MOST_LINKS))
    hint = "Hover or tap a link or a device for its numbers."
    parts = [
        section(
            f"{title}: the machine and the load of its links",
            figures.place(f"machine-{direction}", drawn, links),
            tag("p", escape(f"{hint} {note}".strip()), class_="note"),
            class_=direction,
        )
    ]
    if told is not None:
        parts.append(
            section(f"{title}: why it takes that long", sections.reasons(told), class_=direction)
        )
        if told.levers:
            helped = sections.help_most(told.levers)
            parts.append(section(f"{title}: what would help most", helped, class_=direction))
    parts.append(_timeline(direction, result, figures))
    parts.append(_memory(direction, result, figures))
    return "\n".join(parts)


def _memory(direction: str, result: Result, figures: _Figures) -> str:
    figure = memory_figure(result)
    if figure is None:
        return ""
    return section(
        f"{TITLES[direction]}: memory over time",
        tag("p", escape(f"In use {memory_words(result)}.")),
        figures.place(f"memory-{direction}", figure),
        class_=direction,
    )


def _timeline(direction: str, result: Result, figures: _Figures) -> str:
    name = f"timeline-{direction}"
    data = timeline_data(result.timeline)
    figures.timelines[name] = data
    return section(
        f"{TITLES[direction]}: who does what when",
        tag("div", id=f"{name}-controls", class_="controls"),
        tag("div", id=name, class_="plot tall"),
        tag("noscript", sections.level_table(result.timeline)),
        tag("p", escape(data["note"]), class_="note") if data["note"] else "",
        class_=f"{direction} long",
    )


def _assembled(comparison: Comparison, body: str, figures: _Figures) -> str:
    """Put a page together; its policy lets nothing run but the two scripts in it."""
    from plotly.offline import get_plotlyjs

    scripts = {"PLOTLY": get_plotlyjs(), "SCRIPT": _asset("page.js")}
    data = {"figures": _checked(figures.figures), "timelines": figures.timelines}
    text = script_safe(json.dumps(data, separators=(",", ":"), allow_nan=False))
    digest = comparison.topology.digest[:12]
    footer = f"Made by charm-sched {__version__} for the machine with the digest {digest}."
    parts = {
        "POLICY": _policy(scripts.values()),
        "TITLE": escape(f"{comparison.topology.name}: charm-sched"),
        "STYLE": _asset("page.css"),
        "BODY": body,
        "FOOTER": escape(footer),
        "FIGURES": text,
        **scripts,
    }
    return re.sub(r"@([A-Z]+)@", lambda found: parts[found.group(1)], _asset("page.html"))


def _policy(scripts: Iterable[str]) -> str:
    """Give a content security policy: no address at all, and just scripts with these digests."""
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _checked(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Let plotly check every figure: an unknown or misspelt property is an error."""
    from plotly.graph_objects import Figure

    found = {}
    for name, figure in figures.items():
        made = Figure(data=figure["data"], layout={"template": "none", **figure["layout"]})
        found[name] = json.loads(made.to_json())
        del found[name]["layout"]["template"]
    return found


def _asset(name: str) -> str:
    return (resources.files("charm_sched.export") / name).read_text(encoding="utf-8")


__all__ = ["INSTALL", "START", "check_plotly", "report_page", "write_report"]
