"""A topology being laid out: entries of a topology file, each with its comment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from charm_sched import units
from charm_sched.importers.choices import Figure
from charm_sched.topology.profiles import ComputeProfile


@dataclass(frozen=True, slots=True)
class Entry:
    """One item of a list in the file."""

    fields: Mapping[str, Any]
    comment: str = ""


@dataclass(slots=True)
class Section:
    """What the top level and a template hold."""

    parts: list[Entry] = field(default_factory=list)
    devices: list[Entry] = field(default_factory=list)
    switches: list[Entry] = field(default_factory=list)
    links: list[Entry] = field(default_factory=list)


@dataclass(slots=True)
class Sheet:
    """A whole file.

    Attributes:
        mark: the first line, which says what wrote the file.
        heading: comment lines at the top.
        kinds: values of links per kind; the first values of a kind become its default.
    """

    name: str
    mark: str = "written by charm-topo import"
    description: str = ""
    heading: list[str] = field(default_factory=list)
    profiles: dict[str, ComputeProfile] = field(default_factory=dict)
    kinds: dict[str, dict[str, Any]] = field(default_factory=dict)
    templates: dict[str, Section] = field(default_factory=dict)
    body: Section = field(default_factory=Section)
    assumptions: tuple[str, ...] = ()

    def link(
        self,
        section: Section,
        a: str,
        b: str,
        kind: str,
        figure: Figure,
        latency: Figure,
        *,
        cap: float | None = None,
        count: int = 1,
        comment: str = "",
    ) -> None:
        """Add a link; what differs from its kind's default is written at the link."""
        values = _values(figure, latency, cap)
        default = self.kinds.setdefault(kind, values)
        own = {} if values == default else values
        more: dict[str, Any] = {"count": count} if count > 1 else {}
        section.links.append(Entry({"from": a, "to": b, "kind": kind, **more, **own}, comment))


def _values(figure: Figure, latency: Figure, cap: float | None) -> dict[str, Any]:
    values: dict[str, Any] = {"bandwidth": units.format_bandwidth(figure.value, digits=None)}
    source = {"bandwidth": figure.source}
    assumed = ["bandwidth"] if figure.assumed else []
    if cap is not None and cap < figure.value:
        values["flow_cap"] = units.format_bandwidth(cap, digits=None)
        source["flow_cap"] = figure.source
        assumed += ["flow_cap"] if figure.assumed else []
    values["latency"] = units.format_seconds(latency.value, digits=None)
    source["latency"] = latency.source
    assumed += ["latency"] if latency.assumed else []
    if assumed:
        values["assumed"] = assumed
    values["source"] = source
    return values
