"""The page docs/benchmarks/paper.md: what is written of what was planned and simulated."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from tests.benchmarks.paper_cases import (
    ABSTRACT,
    CHANGES,
    DUAL,
    LENGTHS,
    SLOWER,
    SOME_LENGTHS,
    Case,
    Times,
    in_order,
    slices,
)
from tests.benchmarks.paper_findings import (
    PUBLISHED,
    RINGS,
    alone,
    cap,
    communicates,
    of_bound,
    of_class_bound,
    rivals,
    speedup,
    together,
    wins,
    worst,
)
from tests.benchmarks.paper_tables import (
    FAR,
    LOW,
    STATED,
    ablations,
    against_all,
    against_rings,
    all_ablations,
    all_cases,
    averages,
    by_length,
    class_bounds,
    named,
    sensitivity,
    shares,
    slower,
    stopped,
    win_table,
)

TOLERATED = 1.005  # times a bound: where the search stops
SWITCHED_OFF = {
    "without levels": "a rank sends to all peers of a tier at once",
    "without decoupling": "the exchanges across and inside domains share a stream, and wait",
    "without re-merge": "one stream computes all in planned order of arrival, nothing is merged",
}
TEMPLATE = Path(__file__).with_name("paper_template.md")


def page(found: Sequence[Case | Times], missing: Mapping[str, str], *, code: str) -> str:
    """Write it all down.

    Args:
        found: What was computed.
        missing: Names of slices that were not, with the reason.
        code: Digest of what the results depend on.
    """
    found = in_order(found)
    cases = [one for one in found if isinstance(one, Case)]
    dual = [case for case in cases if case.machine in DUAL]
    ablated = [t for t in found if isinstance(t, Times) and t.kind == "ablation"]
    varied = [t for t in found if isinstance(t, Times) and t.kind == "change"]
    planned = [t for t in ablated if t.name == "as planned"]
    notes = dict.fromkeys(note for case in cases for note in case.assumptions)
    return TEMPLATE.read_text().format(
        date=date.today(),
        code=code,
        abstract=ABSTRACT,
        lengths=f"{len(LENGTHS)} lengths",
        few=", ".join(f"{n // 1024}K" for n in SOME_LENGTHS),
        short=short(cases),
        averages=averages(dual),
        by_length=by_length(dual),
        reasons=reasons(dual, varied),
        sensitivity=sensitivity(varied),
        ablations=ablations(ablated),
        ablated=len(planned) // max(1, len({(t.machine, t.direction) for t in planned})),
        claims=claims(ablated),
        slower=SLOWER,
        slow=slower(ablated),
        all_ablations=all_ablations(ablated),
        class_bounds=class_bounds(cases),
        low=low(cases),
        rings=against_rings(cases),
        others=against_all(cases),
        auto_worst=auto_worst(cases),
        shares=shares(cases),
        wins=all_wins(cases),
        far=far(cases),
        cases=all_cases(cases),
        refused=refused(cases),
        assumptions=bullets(notes),
        missing=not_run(missing),
    )


def short(cases: Sequence[Case]) -> str:
    """Say what came out, in numbers."""
    single = alone(cases)
    if not single:
        return "Nothing was run."
    ratios = [of_class_bound(case) for case in single]
    long = [of_class_bound(case) for case in single if case.seq_len > LENGTHS[0]]
    slowest = max((worst([case], "charm", served(case, RINGS)) for case in cases), key=_ratio)
    auto = max((worst([case], "auto", rivals(case)) for case in cases), key=_ratio)
    limited = [case for case in single if communicates(case)]
    won, strict = (len(wins(limited, others)) for others in (PUBLISHED, (*PUBLISHED, ABSTRACT)))
    reached = statistics.median(of_bound(case) for case in single)
    low_long = sum(ratio < LOW for ratio in long)
    return bullets(
        [
            f"charm reaches {statistics.median(ratios):.1%} of the bound of its class (median of "
            f"{len(single)} cases of one direction alone); from 16K on the least is "
            f"{min(long, default=1.0):.1%}, and {low_long} of {len(long)} are below {LOW:.0%}.",
            f"charm takes at most {slowest[0]:.3f} times as long as `ring`, `reverse_ring` or "
            f"`double_ring`, over {len(cases)} cases.",
            f"auto takes at most {auto[0]:.4f} times as long as any other row (`{auto[2]}`).",
            f"auto is 5 % or more faster than everything published in {won} of {len(limited)} "
            f"cases in which communication limits ({won / max(1, len(limited)):.0%}); in {strict} "
            f"({strict / max(1, len(limited)):.0%}) with `{ABSTRACT}` among the published.",
            f"auto reaches {reached:.1%} of the bound of any schedule (median).",
        ]
    )  # fmt: skip


def _ratio(found: tuple[float, Case, str]) -> float:
    return found[0]


def served(case: Case, names: Sequence[str]) -> list[str]:
    """Keep the strategies that a case has."""
    return [name for name in names if name in case.rows]


def bullets(lines: Sequence[str] | Mapping[str, None]) -> str:
    """Give a list."""
    return "\n".join(f"* {line}" for line in lines)


def reasons(dual: Sequence[Case], varied: Sequence[Times]) -> str:
    """Say at which lengths, and by which change, charm's average passes that of the abstract."""
    lines = []
    for name, machines, stated in STATED:
        for direction, said in stated.items():
            here = [c for c in dual if c.machine in machines and c.what == direction]
            means = {n: speedup(g, "charm") for n in LENGTHS if (g := _of_length(here, n))}
            if not means:
                continue
            some = [t for t in varied if t.machine in machines and t.direction == direction]
            above = [f"{n // 1024}K" for n in means if means[n] >= said]
            most, least = max(means.values()), min(means.values())
            reached = f"reached at {', '.join(above)}" if above else "reached at no length"
            lines.append(
                f"{name}, {direction}: by length {least:.2f}x to {most:.2f}x. The abstract's "
                f"{said}x is {reached}; no plan that moves KV can average more than "
                f"{cap(here):.2f}x. {_passes(some, said)}"
            )
    return bullets(lines)


def _of_length(cases: Sequence[Case], seq_len: int) -> list[Case]:
    return [case for case in cases if case.seq_len == seq_len]


def _passes(varied: Sequence[Times], said: float) -> str:
    """Name the changes with which the average lies on the other side of what is stated."""
    means = {
        name: statistics.geometric_mean(group)
        for name in CHANGES
        if (group := [t.seconds["ring"] / t.seconds["charm"] for t in varied if t.name == name])
    }
    if not means:
        return ""
    shipped = means.pop(next(iter(CHANGES)))
    passing = [
        f"{name} ({mean:.2f}x)" for name, mean in means.items() if (mean < said) != (shipped < said)
    ]
    return (
        f"In the table below the average is {shipped:.2f}x as shipped, and on the other side of "
        f"{said}x with {', '.join(passing)}."
        if passing
        else f"In the table below the average is {shipped:.2f}x as shipped, and no change there "
        f"brings it to the other side of {said}x."
    )


def claims(ablated: Sequence[Times]) -> str:
    """Say in how many cases each idea pays, and how much."""
    planned = [t.seconds for t in ablated if t.name == "as planned"]
    lines = []
    for name, what in SWITCHED_OFF.items():
        ratios = [seconds[name] / seconds["all three"] for seconds in planned]
        if ratios:
            slow, fast = sum(r > 1.01 for r in ratios), sum(r < 0.99 for r in ratios)
            lines.append(
                f"*{name.capitalize()}* ({what}): slower by more than 1 % in {slow} of "
                f"{len(ratios)} cases, faster by more than 1 % in {fast}; mean "
                f"{statistics.geometric_mean(ratios):.3f}x."
            )
    return bullets(lines)


def low(cases: Sequence[Case]) -> str:
    """List where charm is far from the bound of its class."""
    here = [case for case in cases if of_class_bound(case) < LOW]
    return (
        f"Below {LOW} are {len(here)} of {len(cases)} cases, those with 8K included:\n\n"
        f"{stopped(here, 'charm', by_class=True)}"
    )


def auto_worst(cases: Sequence[Case]) -> str:
    """Say where auto is slower than another strategy, and by how much."""
    ratio, case, other = max(
        (worst([case], "auto", rivals(case)) for case in cases), key=lambda found: found[0]
    )
    over = [c for c in cases if worst([c], "auto", rivals(c))[0] > TOLERATED]
    here = [worst([c], "auto", rivals(c)) for c in over]
    lines = [f"{', '.join(named(c))}: {ratio:.4f} times `{other}`" for ratio, c, other in here]
    return (
        f"Worst of all: {ratio:.4f} times the time of `{other}` ({', '.join(named(case))}). Slower "
        f"than another by more than 0.5 %: {len(over)} of {len(cases)} cases. (`{ABSTRACT}` is "
        "`charm` with parameters that auto does not try.)\n\n" + bullets(lines)
    )


def all_wins(cases: Sequence[Case]) -> str:
    """List what auto wins against everything published, where communication limits."""
    parts = []
    for title, group in (("One direction alone", alone(cases)), ("Both together", together(cases))):
        some = [case for case in group if communicates(case)]
        found = wins(some, PUBLISHED)
        parts.append(f"{title}, {len(found)} of {len(some)}:\n\n{win_table(found)}")
    return "\n\n".join(parts)


def far(cases: Sequence[Case]) -> str:
    """List where auto is far from the bound of any schedule."""
    parts = []
    for title, group in (("One direction alone", alone(cases)), ("Both together", together(cases))):
        here = [case for case in group if of_bound(case) < FAR]
        ratios = [of_bound(case) for case in group]
        if ratios:
            parts.append(
                f"{title}: {len(here)} of {len(group)} cases; bound over makespan has the median "
                f"{statistics.median(ratios):.3f} and the least {min(ratios):.3f}.\n\n"
                f"{stopped(here, 'auto', by_class=False)}"
            )
    return "\n\n".join(parts)


def refused(cases: Sequence[Case]) -> str:
    """List what strategies refused, each reason once, with its machines."""
    machines: dict[tuple[str, str], dict[str, None]] = {}
    for case in cases:
        for name, reason in case.refused.items():
            machines.setdefault((name, reason), {})[case.machine] = None
    lines = [f"{reason} (`{name}`: {', '.join(m)})" for (name, reason), m in machines.items()]
    return bullets(lines) or "Nothing."


def not_run(missing: Mapping[str, str]) -> str:
    """List what is missing on the page."""
    if not missing:
        return f"All {len(slices())} slices of the computation were run; nothing is left out."
    return bullets([f"`{name}`: {reason}" for name, reason in missing.items()])
