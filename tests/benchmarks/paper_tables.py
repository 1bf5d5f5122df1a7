"""The tables of docs/benchmarks/paper.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from charm_sched.plans.plan import DIRECTIONS
from tests.benchmarks.paper_cases import (
    ABLATIONS,
    ABSTRACT,
    BOTH,
    CHANGES,
    DUAL,
    LENGTHS,
    MACHINES,
    MASKS,
    NODES,
    NUMA,
    Case,
    Row,
    Times,
)
from tests.benchmarks.paper_findings import (
    OURS,
    PUBLISHED,
    RINGS,
    Win,
    alone,
    cap,
    communicates,
    fastest,
    of_bound,
    of_class_bound,
    rivals,
    speedup,
    wins,
    worst,
)
from tests.benchmarks.paper_stops import KERNELS

STATED = (
    ("dual NUMA, PCIe", NUMA, {"forward": 1.3, "backward": 1.7}),
    ("dual node, NVLink", NODES, {"forward": 2.8, "backward": 2.9}),
)
CASE = ("machine", "tokens", "KV heads", "mask", "pass")
LOW, FAR = 0.8, 0.85  # of the class bound, of the bound of any schedule
WORDS: Mapping[str, str] = {
    "uneven": "fuller than the mean",
    "surplus": "more than counted",
    "first": "begins late",
    "unused": "idle in between",
    "slow": "below its rate",
    "last": "ends early",
}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Give a Markdown table."""
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def tokens(seq_len: int) -> str:
    """Name a length."""
    return f"{seq_len // 1024}K"


def named(case: Case) -> tuple[str, ...]:
    """Give the cells that name a case."""
    return case.machine, tokens(case.seq_len), str(case.kv_heads), case.mask, case.what


def chosen(row: Row) -> str:
    """Name a strategy with its parameters."""
    params = ", ".join(f"{k}={str(v).lower()}" for k, v in row.params.items())
    return f"{row.strategy} ({params})" if params else row.strategy


def ms(seconds: float) -> str:
    """Write a time."""
    return f"{1e3 * seconds:.2f}"


def times(value: float) -> str:
    """Write a factor."""
    return f"{value:.2f}x"


def averages(cases: Sequence[Case]) -> str:
    """Average per kind of machine and direction, beside what the abstract states."""
    rows = []
    for name, machines, stated in STATED:
        for direction, said in stated.items():
            here = [c for c in cases if c.machine in machines and c.what == direction]
            if not here:
                continue
            limited = [c for c in here if communicates(c)]
            rows.append(
                (
                    name, direction, f"{said}x", *(times(speedup(here, s)) for s in OURS),
                    times(cap(here)),
                    f"{times(speedup(limited, 'charm'))} ({len(limited)} of {len(here)})"
                    if limited else "-",
                    times(max(speedup([c], "charm") for c in here)),
                )
            )  # fmt: skip
    head = (
        "machines", "pass", "the abstract's average", *OURS, "most that KV-movers can have",
        "charm, where communication limits", "charm, largest",
    )  # fmt: skip
    return table(head, rows)


def by_length(cases: Sequence[Case]) -> str:
    """Average charm's speedup over heads and masks, per machine, direction and length."""
    rows = []
    for machine in DUAL:
        for direction in DIRECTIONS:
            here = [c for c in cases if c.machine == machine and c.what == direction]
            groups = [[c for c in here if c.seq_len == n] for n in LENGTHS]
            if here:
                cells = (times(speedup(group, "charm")) if group else "-" for group in groups)
                rows.append((machine, direction, *cells, times(speedup(here, "charm"))))
    return table(("machine", "pass", *map(tokens, LENGTHS), "all"), rows)


def sensitivity(found: Sequence[Times]) -> str:
    """Average charm's speedup over ring with one thing changed at a time."""
    groups = [(name, machines, f"{said[d]}x", d) for name, machines, said in STATED for d in said]
    groups += [(machine, (machine,), "", d) for machine in DUAL for d in DIRECTIONS]
    rows = []
    for name, machines, said, direction in groups:
        here = [t for t in found if t.machine in machines and t.direction == direction]
        if here:
            cells = (
                [t.seconds["ring"] / t.seconds["charm"] for t in here if t.name == change]
                for change in CHANGES
            )
            means = (times(statistics.geometric_mean(values)) for values in cells)
            rows.append((name, direction, said, *means))
    return table(("machine", "pass", "the abstract", *CHANGES), rows)


def ablations(found: Sequence[Times]) -> str:
    """Show what each idea is worth: times without it over times with all three."""
    names = [name for name in ABLATIONS if name.startswith("without")]
    rows = []
    for machine in DUAL:
        for direction in DIRECTIONS:
            here = [
                t for t in found
                if (t.machine, t.direction, t.name) == (machine, direction, "as planned")
            ]  # fmt: skip
            ratios = [[t.seconds[n] / t.seconds["all three"] for t in here] for n in names]
            if here:
                cells = (
                    f"{times(statistics.geometric_mean(r))} ({min(r):.2f} to {max(r):.2f})"
                    for r in ratios
                )
                rows.append((machine, direction, *cells))
    return table(("machine", "pass", *names), rows)


def all_ablations(found: Sequence[Times]) -> str:
    """Show every case of the ablations."""
    rows = [
        (t.machine, tokens(t.seq_len), t.mask, t.direction, *map(ms, t.seconds.values()))
        for t in found if t.name == "as planned"
    ]  # fmt: skip
    return table(("machine", "tokens", "mask", "pass", *ABLATIONS, "ring"), rows)


def slower(found: Sequence[Times]) -> str:
    """Compare re-merging with a single stream where a tier is slower than planned."""
    rows = []
    for machine in dict.fromkeys(t.machine for t in found):
        here = [t for t in found if t.machine == machine]
        for name in dict.fromkeys(t.name for t in here):
            ratios = [
                t.seconds["without re-merge"] / t.seconds["all three"]
                for t in here if t.name == name
            ]  # fmt: skip
            better = sum(ratio > 1 for ratio in ratios)
            rows.append(
                (
                    machine, name, f"{better} of {len(ratios)}",
                    *map(times, (statistics.geometric_mean(ratios), min(ratios), max(ratios))),
                )
            )  # fmt: skip
    head = ("machine", "links", "re-merging faster in", "mean", "least", "most")
    return table(head, rows)


def class_bounds(cases: Sequence[Case]) -> str:
    """Show how near charm comes to the bound of its class, by direction and mask."""
    groups = [((what,), (mask,)) for what in (*DIRECTIONS, BOTH) for mask in MASKS]
    rows = []
    for whats, masks in [*groups, (DIRECTIONS, MASKS)]:
        here = [c for c in cases if c.what in whats and c.mask in masks]
        if not here:
            continue
        ratios = [of_class_bound(c) for c in here]
        long = [of_class_bound(c) for c in here if c.seq_len > LENGTHS[0]]
        rows.append(
            (
                ", ".join(whats), ", ".join(masks), str(len(here)),
                f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f}",
                f"{min(long):.3f}" if long else "-", str(sum(r < LOW for r in long)),
            )
        )  # fmt: skip
    head = ("pass", "mask", "cases", "median", "least", "least from 16K", "below 0.8 from 16K")
    return table(head, rows)


def stopped(cases: Sequence[Case], strategy: str, *, by_class: bool) -> str:
    """List cases with what they hang on, those furthest from the bound (of their class) first."""
    share = of_class_bound if by_class else of_bound
    rows = []
    for case in sorted(cases, key=share):
        row = max(case.rows[strategy], key=lambda row: row.seconds)
        limit = row.class_bound if by_class and row.class_bound else row.bound
        class_limit = case.class_bound(strategy)
        rows.append(
            (
                *named(case), chosen(row), f"{case.bound(strategy) / case.seconds(strategy):.2f}",
                f"{class_limit / case.seconds(strategy):.2f}" if class_limit else "-",
                f"{plural(row.stop.kind)} {row.stop.busy / row.seconds:.0%}", lost(row, limit),
            )
        )  # fmt: skip
    return table((*CASE, "plan", "bound", "class bound", "fullest", "above the bound"), rows)


def plural(kind: str) -> str:
    """Name all resources of a kind."""
    return kind if kind == KERNELS else f"{kind} links"


def lost(row: Row, bound: float) -> str:
    """Say where the time above a bound goes, as parts of the makespan."""
    losses = row.stop.losses(bound)
    large = [name for name in losses if losses[name] >= 0.015 * row.seconds]
    large.sort(key=lambda name: -losses[name])
    return ", ".join(f"{WORDS[name]} {losses[name] / row.seconds:.0%}" for name in large)


def against_rings(cases: Sequence[Case]) -> str:
    """Give charm's worst time over that of each plan with one ring or two."""
    rows = []
    for base in RINGS:
        if not any(base in case.rows for case in cases):
            continue
        ratio, case, _ = worst(cases, "charm", [base])
        slower = sum(c.seconds("charm") > 1.001 * c.seconds(base) for c in cases if base in c.rows)
        served = sum(base in c.rows for c in cases)
        rows.append((base, f"{ratio:.3f}", ", ".join(named(case)), f"{slower} of {served}"))
    return table(("against", "worst charm / it", "where", "slower by over 0.1 %"), rows)


def against_all(cases: Sequence[Case]) -> str:
    """Give auto's worst time over that of each other strategy."""
    rows = []
    for name in dict.fromkeys(name for case in cases for name in rivals(case)):
        ratio, case, _ = worst(cases, "auto", [name])
        served = [c for c in cases if name in c.rows]
        least = min(served, key=lambda c: c.seconds("auto") / c.seconds(name))
        rows.append(
            (
                name, str(len(served)), f"{ratio:.4f}", ", ".join(named(case)),
                times(speedup(served, "auto", name)),
                times(least.seconds(name) / least.seconds("auto")),
            )
        )  # fmt: skip
    head = ("strategy", "cases", "worst auto / it", "where", "auto faster, mean", "most")
    return table(head, rows)


def shares(cases: Sequence[Case]) -> str:
    """Count the cases in which auto is clearly faster than everything published."""
    rows = []
    for name, group in (("one direction alone", alone(cases)), ("both together", _both(cases))):
        for limit, some in (
            ("all", group),
            ("communication takes KV-movers longer than computation", _communicating(group)),
            ("best published is 5 % or more above computation", _waiting(group)),
        ):
            counts = [
                f"{len(wins(some, others))} ({len(wins(some, others)) / max(1, len(some)):.0%})"
                for others in (PUBLISHED, (*PUBLISHED, ABSTRACT))
            ]
            rows.append((name, limit, str(len(some)), *counts))
    head = ("planned", "cases in which", "cases", "without CHARM+", f"with {ABSTRACT}")
    return table(head, rows)


def _both(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if case.what == BOTH]


def _communicating(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if communicates(case)]


def _waiting(cases: Sequence[Case]) -> list[Case]:
    return [
        case
        for case in cases
        if case.seconds(fastest(case, PUBLISHED))
        >= 1.05 * sum(row.bound_compute for row in case.rows["auto"])
    ]


def win_table(found: Sequence[Win]) -> str:
    """List wins with how they come about."""
    rows = [
        (
            *named(win.case), chosen(win.chosen), win.best, times(win.factor), mechanism(win),
        )
        for win in found
    ]  # fmt: skip
    return table((*CASE, "auto", "best published", "faster by", "what it does better"), rows)


def mechanism(win: Win) -> str:
    """Say in words how a win comes about."""
    what = "computation of the busiest rank" if win.kind == KERNELS else f"fullest {win.kind} link"
    if win.relieved:
        return f"{what}: {ms(win.before)} to {ms(win.after)} ms"
    return f"waiting: {ms(win.before)} to {ms(win.after)} ms ({what} {WORDS[win.cause]})"


def all_cases(cases: Sequence[Case]) -> str:
    """Show everything, a table per machine and direction."""
    parts = []
    names = (*PUBLISHED[1:], *_new(cases), *OURS[:-1])
    for machine in MACHINES:
        for what in (*DIRECTIONS, BOTH):
            here = [c for c in cases if (c.machine, c.what) == (machine, what)]
            shown = [n for n in names if any(n in case.rows for case in here)]
            if here:
                head = ("tokens", "KV heads", "mask", "ring, ms", *shown, "auto", "bound", "class")
                rows = [_line(case, shown) for case in here]
                parts.append(f"### {machine}, {what}\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def _new(cases: Sequence[Case]) -> list[str]:
    """List strategies that are neither published nor ours by these names."""
    known = (*PUBLISHED, *OURS)
    return [n for n in dict.fromkeys(n for c in cases for n in c.rows) if n not in known]


def _line(case: Case, names: Sequence[str]) -> tuple[str, ...]:
    ring = case.seconds("ring")
    who = "/".join(dict.fromkeys(row.strategy for row in case.rows["auto"]))
    return (
        tokens(case.seq_len), str(case.kv_heads), case.mask, ms(ring),
        *(f"{ring / case.seconds(n):.2f}" if n in case.rows else "-" for n in names),
        f"{ring / case.seconds('auto'):.2f} {who}",
        f"{of_bound(case):.2f}", f"{of_class_bound(case):.2f}",
    )  # fmt: skip


__all__ = [
    "FAR", "LOW", "STATED", "ablations", "against_all", "against_rings", "all_ablations",
    "all_cases", "averages", "by_length", "class_bounds", "sensitivity", "shares", "slower",
    "stopped", "table", "win_table",
]  # fmt: skip
