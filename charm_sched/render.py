"""The report of charm-plan and charm-sim on a terminal: 80 columns are enough, wider is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from charm_sched.render_timeline import lanes, meter
from charm_sched.render_topology import domain_tree
from charm_sched.sweep import verdict
from charm_sched.units import format_bytes, format_seconds, format_tokens

if TYPE_CHECKING:
    from rich.console import Console

    from charm_sched.results import Comparison, Result
    from charm_sched.sweep import Point
    from charm_sched.workload import Workload

TITLES = {"forward": "Forward", "backward": "Backward"}


def show(
    console: Console,
    comparison: Comparison,
    *,
    points: Sequence[Point] = (),
    footer: Sequence[str] = (),
) -> None:
    """Print everything about one machine and workload.

    Args:
        console: Where.
        comparison: What was found.
        points: A sweep of lengths, printed as a table.
        footer: Lines at the end: what was saved, and how to run it.
    """
    console.print(domain_tree(comparison.topology))
    console.print(Text(f"\n{describe(comparison.workload)}\n{_ranks(comparison)}"))
    for direction, result in comparison.chosen.items():
        _direction(console, direction, result)
    if len(comparison.results) > len(comparison.chosen):
        _heading(console, "Every strategy with its best partition")
        console.print(Padding(_strategies(comparison), (0, 0, 0, 2)))
    if comparison.refused:
        _heading(console, "Cannot serve this")
        refused = [f"{short(r.strategy)}, {r.direction}: {r.reason}" for r in comparison.refused]
        console.print(_listing(refused))
    if points:
        _sweep(console, points)
    assumptions(console, comparison.assumptions)
    for number, line in enumerate(footer):
        console.print(Text(f"\n{line}" if not number else line), soft_wrap=True)


def assumptions(console: Console, sentences: Sequence[str]) -> None:
    """Print the list of what the numbers rest on and nobody has measured."""
    if sentences:
        _heading(console, "Assumed, not measured")
        console.print(_listing(sentences), style="dim")


def _listing(sentences: Sequence[str]) -> Padding:
    listing = Table.grid(padding=(0, 1))
    for sentence in sentences:
        listing.add_row("-", Text(sentence))
    return Padding(listing, (0, 0, 0, 2))


def machines(console: Console, comparisons: Sequence[Comparison]) -> None:
    """Print one row per machine: what changing the machine would change."""
    _heading(console, "The machines side by side")
    table = _table("machine", "devices", *(TITLES[d] for d in comparisons[0].chosen), "vs first")
    totals = [sum(r.timeline.makespan for r in c.chosen.values()) for c in comparisons]
    for comparison, total in zip(comparisons, totals, strict=True):
        times = [format_seconds(r.timeline.makespan, digits=3) for r in comparison.chosen.values()]
        ranks = {result.plan.num_ranks for result in comparison.chosen.values()}
        table.add_row(
            comparison.topology.name, str(max(ranks)), *times, f"{totals[0] / total:.2f}x"
        )
    console.print(Padding(table, (0, 0, 0, 2)))


def describe(workload: Workload) -> str:
    """Put a workload into words."""
    heads = f"{workload.heads} heads"
    if workload.num_kv_heads != workload.heads:
        heads = f"{workload.heads} query and {workload.num_kv_heads} key/value heads"
    size = f"{workload.head_dim}"
    if workload.value_dim != workload.head_dim:
        size = f"{workload.head_dim} (values {workload.value_dim})"
    mask = workload.mask_rule
    documents = f"{len(mask.documents)} packed documents ({mask.kind})"
    return (
        f"{format_tokens(workload.seq_len)} tokens, batch {workload.batch}, {heads} of {size}, "
        f"{workload.dtype}, {documents if mask.documents else mask}"
    )


def _ranks(comparison: Comparison) -> str:
    ranks = next(iter(comparison.chosen.values())).plan.num_ranks
    return f"{ranks} rank" if ranks == 1 else f"{ranks} ranks"


def _heading(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", style="bold"))


def _direction(console: Console, direction: str, result: Result) -> None:
    took = format_seconds(result.timeline.makespan, digits=3)
    _heading(
        console, f"{TITLES[direction]}: {short(result.strategy)} takes {took}{against_ring(result)}"
    )
    ring = None
    if result.speedup_vs_ring is not None and result.strategy != "ring":
        ring = result.speedup_vs_ring * result.timeline.makespan
    width = console.width - 2
    for part in (
        meter(result.timeline, ring=ring, width=width),
        Text(),
        lanes(result.timeline, width=width),
        Text(),
        _facts(result),
    ):
        console.print(Padding(part, (0, 0, 0, 2)))


def short(strategy: str) -> str:
    """Leave the folders out of ``path/to/file.py:function``.

    >>> short("path/to/file.py:function"), short("ring")
    ('file.py:function', 'ring')
    """
    return strategy.rpartition("/")[2]


def against_ring(result: Result) -> str:
    """Compare a result with Ring-Attention in words."""
    speedup = result.speedup_vs_ring
    if speedup is None or result.strategy == "ring":
        return ""
    if abs(speedup - 1) < 0.005:
        return ", as long as Ring-Attention"
    return f", {speedup:.2f} times as fast as Ring-Attention"


def _facts(result: Result) -> Table:
    timeline = result.timeline
    name, busy = timeline.busiest_link if timeline.total_bytes else ("none", 0.0)
    moved = [f"{format_bytes(n, digits=3)} over {t}" for t, n in timeline.tier_bytes.items()]
    memory = f"{format_bytes(result.peak_bytes, digits=3)} on the fullest device"
    if result.fits is not None:
        memory += ", which fits" if result.fits else ": MORE THAN IT HAS"
    facts = Table.grid(padding=(0, 2))
    params = [f"{key}={value}" for key, value in result.params.items()]
    if params:
        facts.add_row("parameters", Text(", ".join(params)))
    facts.add_row("partition", result.partition)
    facts.add_row("moved", Text(", ".join(moved) or "nothing"))
    facts.add_row("busiest link", Text(f"{name}, {busy:.0%} of its bandwidth used"))
    facts.add_row("memory", Text(memory))
    return facts


def _strategies(comparison: Comparison) -> Table:
    tiers = comparison.topology.tiers
    outer = tiers[0] if tiers else "moved"
    table = _table("", "strategy", "partition", "time", "exposed", outer, "memory", "vs ring")
    for column in table.columns[:3]:
        column.justify = "left"
    last = None
    for result in sorted(comparison.results, key=_forward_first):
        timeline = result.timeline
        chosen = any(result.plan is best.plan for best in comparison.chosen.values())
        table.add_row(
            result.direction if result.direction != last else "",
            Text(short(result.strategy)),
            result.partition,
            format_seconds(timeline.makespan, digits=3),
            format_seconds(timeline.exposed_comm, digits=3),
            format_bytes(timeline.tier_bytes.get(outer, 0), digits=3),
            format_bytes(result.peak_bytes, digits=3),
            "" if result.speedup_vs_ring is None else f"{result.speedup_vs_ring:.2f}x",
            style="bold" if chosen else "",
        )
        last = result.direction
    return table


def _forward_first(result: Result) -> tuple[bool, float]:
    return result.direction == "backward", result.timeline.makespan


def _sweep(console: Console, points: Sequence[Point]) -> None:
    directions = tuple(dict.fromkeys(point.direction for point in points))
    for direction in directions:
        rows = [point for point in points if point.direction == direction]
        _heading(console, f"{TITLES[direction]} by length")
        table = _table("length", "computation", "ring", "best", "", "vs ring", "limit")
        table.columns[4].justify = "left"
        for row in rows:
            times = (format_seconds(s, digits=3) for s in (row.compute_s, row.ring_s, row.best_s))
            limit = "computation" if row.limit == "computation" else "communication"
            speedup = f"{row.speedup:.2f}x"
            table.add_row(format_tokens(row.seq_len), *times, short(row.strategy), speedup, limit)
        console.print(Padding(table, (0, 0, 0, 2)))
        console.print(Padding(Text(verdict(rows)), (0, 0, 0, 2)))


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=number != 1)
    return table
