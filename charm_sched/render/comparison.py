"""The report of charm-plan and charm-sim on a terminal: 80 columns are enough, wider is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from charm_sched.commands.extras import Extras
from charm_sched.render.bounds import bound_facts
from charm_sched.render.explain import details, path_facts
from charm_sched.render.layout import show_layout
from charm_sched.render.machines import cost_facts, cost_notes, machine_rows
from charm_sched.render.step import show_step
from charm_sched.render.sweep import show_sweep
from charm_sched.render.tables import CHOSEN, fitting, names_of
from charm_sched.render.timeline import lanes, meter
from charm_sched.render.timeline import legend as explain_bars
from charm_sched.render.topology import LEGEND, domain_tree
from charm_sched.render.what_if import show_what_if
from charm_sched.report.documents import assumptions as assumptions_of
from charm_sched.report.memory import memory_words
from charm_sched.units import format_bytes, format_seconds, format_tokens
from charm_sched.what_if.error_band import band_of
from charm_sched.what_if.lengths import verdict

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from charm_sched.search.results import Comparison, Result
    from charm_sched.what_if.explain import Explanation
    from charm_sched.what_if.lengths import Point
    from charm_sched.workload import Workload

COMPUTING = ("computation", "kernels")
TITLES = {"forward": "Forward", "backward": "Backward"}


def show(
    console: Console,
    comparison: Comparison,
    *,
    points: Sequence[Point] = (),
    footer: Sequence[str] = (),
    extras: Extras | None = None,
) -> None:
    """Print everything about one machine and workload.

    Args:
        console: Where.
        comparison: What was found.
        points: Several lengths, printed as a table.
        footer: Lines at the end: what was saved, and how to run it.
        extras: What else was asked for.
    """
    extras = extras or Extras()
    console.print(domain_tree(comparison.topology))
    console.print(Text(LEGEND, style="dim"))
    console.print(Text(f"\n{describe(comparison.workload)}\n{_ranks(comparison)}"))
    served = [result.strategy for result in comparison.results]
    absent = [refusal.strategy for refusal in comparison.refused]
    names = names_of([*served, *absent, *(one.strategy for one in comparison.not_tried)])
    for number, (direction, result) in enumerate(comparison.chosen.items()):
        told = extras.explanations.get(direction)
        _direction(console, direction, result, names[result.strategy], told, legend=not number)
    if len(comparison.results) > len(comparison.chosen):
        _heading(console, "Every strategy with its best partition")
        _strategies(console, comparison, names)
    if comparison.why:
        _heading(console, "Why this one")
        console.print(Padding(Text(comparison.why), (0, 0, 0, 2)))
    for sentence in cost_facts(comparison):
        _heading(console, "What it costs")
        console.print(Padding(Text(sentence), (0, 0, 0, 2)))
    _absent(console, comparison, names)
    if points:
        _sweep(console, points)
    if extras.layout:
        show_layout(console, extras.layout)
    if extras.step:
        show_step(console, extras.step)
    if extras.sweep:
        show_sweep(console, extras.sweep)
    if extras.what_if:
        show_what_if(console, extras.what_if)
    assumptions(console, assumptions_of(comparison))
    for number, line in enumerate(footer):
        console.print(Text(f"\n{line}" if not number else line), soft_wrap=True)


def _absent(console: Console, comparison: Comparison, names: Mapping[str, str]) -> None:
    """Print which strategies have no row, and why."""
    if comparison.not_tried:
        _heading(console, "Not tried, or not to the end: it could not have been chosen")
        found: dict[str, list[str]] = {}
        for one in comparison.not_tried:
            found.setdefault(names[one.strategy], []).append(f"{one.direction} {one.reason}")
        console.print(_listing([f"{name}: {'; '.join(told)}" for name, told in found.items()]))
    if comparison.refused:
        _heading(console, "Cannot serve this")
        refused = [f"{names[r.strategy]}, {r.direction}: {r.reason}" for r in comparison.refused]
        console.print(_listing(refused))


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
    head, rows = machine_rows(comparisons)
    console.print(Padding(fitting(head, rows, console.width - 2), (0, 0, 0, 2)))
    for note in cost_notes(comparisons):
        console.print(Padding(Text(note, style="dim"), (0, 0, 0, 2)))


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


def _direction(
    console: Console,
    direction: str,
    result: Result,
    name: str,
    told: Explanation | None,
    *,
    legend: bool,
) -> None:
    took = format_seconds(result.timeline.makespan, digits=3)
    _heading(console, f"{TITLES[direction]}: {name} takes {took}{against_ring(result)}")
    ring = None
    if result.speedup_vs_ring is not None and result.strategy != "ring":
        ring = result.speedup_vs_ring * result.timeline.makespan
    width = console.width - 2
    parts: list[RenderableType] = [
        meter(result.timeline, ring=ring, width=width),
        Text(),
        lanes(result.timeline, width=width),
        *([explain_bars(console)] if legend else []),
        Text(),
        _facts(result, told),
        *([Text(), *details(told, width)] if told and told.levers is not None else []),
    ]
    for part in parts:
        console.print(Padding(part, (0, 0, 0, 2)))


def against_ring(result: Result) -> str:
    """Compare a result with Ring-Attention in words."""
    speedup = result.speedup_vs_ring
    if speedup is None or result.strategy == "ring":
        return ""
    if abs(speedup - 1) < 0.005:
        return ", as long as Ring-Attention"
    return f", {speedup:.2f} times as fast as Ring-Attention"


def _facts(result: Result, told: Explanation | None) -> Table:
    timeline = result.timeline
    name, busy = timeline.busiest_link if timeline.total_bytes else ("none", 0.0)
    moved = [f"{format_bytes(n, digits=3)} over {t}" for t, n in timeline.tier_bytes.items()]
    memory = f"{format_bytes(result.peak_bytes, digits=3)} on the fullest device"
    if result.fits is not None:
        memory += ", which fits" if result.fits else ": MORE THAN IT HAS"
    facts = Table.grid(padding=(0, 2))
    if result.params:
        facts.add_row("parameters", Text(_params(result)))
    facts.add_row("partition", result.partition)
    facts.add_row("moved", Text(", ".join(moved) or "nothing"))
    facts.add_row("busiest link", Text(f"{name}, {busy:.0%} of its bandwidth used"))
    facts.add_row("memory", Text(memory))
    facts.add_row("validated", Text(str(band_of(timeline))))
    if in_use := memory_words(result):
        facts.add_row("in use", Text(in_use))
    for title, text in [*bound_facts(result), *(path_facts(told) if told else ())]:
        facts.add_row(title, Text(text))
    return facts


def _strategies(console: Console, comparison: Comparison, names: Mapping[str, str]) -> None:
    tiers = comparison.topology.tiers
    outer = tiers[0] if tiers else "moved"
    head = (
        "strategy", "time", "vs ring", "bound", "compute", "exposed", "partition", "memory", outer,
        "parameters",
    )  # fmt: skip
    best = list(comparison.chosen.values())
    listed = [result.plan for result in comparison.results]
    extra = [result for result in best if not any(result.plan is plan for plan in listed)]
    rows: list[tuple[str, ...]] = []
    last = None
    for result in sorted([*comparison.results, *extra], key=_forward_first):
        if result.direction != last:
            rows.append((result.direction,))
        last = result.direction
        chosen = any(result.plan is other.plan for other in best)
        name = f"{CHOSEN if chosen else ' '} {names[result.strategy]}"
        rows.append((name, *_strategy_cells(result, outer)))
    table = fitting(head, rows, console.width - 2, left=(0, 6, 9))
    console.print(Padding(table, (0, 0, 0, 2)))
    note = (
        f"{CHOSEN} is what was chosen; time is computation and exposed communication together; "
        "bound is the time that no schedule can beat, as a part of this time."
    )
    console.print(Padding(Text(note, style="dim"), (0, 0, 0, 2)))


def _strategy_cells(result: Result, outer: str) -> tuple[str, ...]:
    timeline = result.timeline
    return (
        format_seconds(timeline.makespan, digits=3),
        "" if result.speedup_vs_ring is None else f"{result.speedup_vs_ring:.2f}x",
        f"{result.efficiency(result.bound):.0%}",
        format_seconds(timeline.compute_s, digits=3),
        format_seconds(timeline.exposed_comm, digits=3),
        result.partition,
        format_bytes(result.peak_bytes, digits=3),
        format_bytes(timeline.tier_bytes.get(outer, 0), digits=3),
        _params(result),
    )


def _params(result: Result) -> str:
    return ", ".join(f"{key}={value}" for key, value in result.params.items())


def _forward_first(result: Result) -> tuple[bool, float]:
    return result.direction == "backward", result.timeline.makespan


def _sweep(console: Console, points: Sequence[Point]) -> None:
    head = ("length", "computation", "ring", "best", "", "vs ring", "ring limited by")
    names = names_of(point.strategy for point in points)
    for direction in dict.fromkeys(point.direction for point in points):
        found = [point for point in points if point.direction == direction]
        _heading(console, f"{TITLES[direction]} by length")
        rows = []
        for point in found:
            seconds = (point.compute_s, point.ring_s, point.best_s)
            rows.append(
                (
                    format_tokens(point.seq_len),
                    *(format_seconds(s, digits=3) for s in seconds),
                    names[point.strategy],
                    f"{point.speedup:.2f}x",
                    "computation" if point.limit in COMPUTING else "communication",
                )
            )
        table = fitting(head, rows, console.width - 2, left=(0, 4), name=4, least=16)
        console.print(Padding(table, (0, 0, 0, 2)))
        console.print(Padding(Text(verdict(found)), (0, 0, 0, 2)))
    note = (
        "But for the length above, each strategy was tried with its first parameters alone; "
        "--seq-len searches the others."
    )
    console.print(Padding(Text(note, style="dim"), (0, 0, 0, 2)))
