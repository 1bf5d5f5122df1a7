"""What a report rests on: each number of the machine with its source, and what is assumed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from charm_sched.export.markup import escape, listing, table, tag
from charm_sched.report.documents import assumptions
from charm_sched.topology.profiles import source_of
from charm_sched.units import format_bandwidth, format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from charm_sched.search.results import Comparison
    from charm_sched.topology.graph import Topology

Row = tuple[str, str, str, str]
NO_SOURCE = "the topology file names none"


def rests_on(comparison: Comparison) -> str:
    """Give the assumptions of a comparison, and the numbers of its machine with their sources."""
    sentences = assumptions(comparison)
    rows = [*_links(comparison.topology), *_devices(comparison)]
    title = ("what", "number", "known", "source")
    note = (
        "Every time here is a prediction. Work and bytes are counted exactly; bandwidths, "
        "latencies and rates come from the topology file. Trust comparisons more than absolute "
        "times, and differences of a few per cent not at all."
    )
    parts = [tag("p", escape(note))]
    if sentences:
        parts += [tag("h3", "Assumed, not measured"), listing(sentences)]
    parts += [tag("h3", "Numbers and their sources"), table(title, rows, left=4)]
    return "".join(parts)


def _links(machine: Topology) -> Iterable[Row]:
    """Give one row per kind of link and number, alike ones once."""
    rows: dict[Row, None] = {}
    for link in machine.links:
        facts = {
            "bandwidth": format_bandwidth(link.bandwidth),
            "latency": format_seconds(link.latency),
            **({} if link.flow_cap is None else {"flow_cap": format_bandwidth(link.flow_cap)}),
        }
        for key, shown in facts.items():
            known = "assumed" if key in link.assumed_keys else "sourced"
            source = source_of(link.source, key) or NO_SOURCE
            rows[f"{link.kind} links, {key.replace('_', ' ')}", shown, known, source] = None
    return rows


def _devices(comparison: Comparison) -> Iterable[Row]:
    """Give the rows of each profile: the kernel rates that are used, overhead, memory."""
    rows: dict[Row, None] = {}
    work = comparison.workload
    for device in comparison.topology.devices:
        profile = device.compute
        for key, shown in (
            ("overhead", format_seconds(profile.overhead)),
            ("memory_bandwidth", format_bandwidth(profile.memory_bandwidth)),
        ):
            known = "assumed" if key in profile.assumed else "sourced"
            source = source_of(profile.source, key) or NO_SOURCE
            rows[f"{profile.name}, {key.replace('_', ' ')}", shown, known, source] = None
        for rate in profile.rates:
            if rate.head_dim != work.head_dim or work.dtype not in rate.dtypes:
                continue
            mask = "masked" if rate.causal else "full"
            rows[
                f"{profile.name}, {rate.direction} kernel rate, {mask}",
                format_rate(rate.flops_per_second),
                "assumed" if rate.assumed else "sourced",
                rate.source or NO_SOURCE,
            ] = None
        if device.memory is not None:
            known = "assumed" if "memory" in device.assumed else "sourced"
            source = source_of(device.source, "memory") or NO_SOURCE
            rows[f"{profile.name}, memory", format_bytes(device.memory), known, source] = None
    return rows


__all__ = ["rests_on"]
