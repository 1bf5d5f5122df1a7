"""Bars and curves of a report, as figures of plotly: strategies, lengths, sweeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from charm_sched.export.markup import label
from charm_sched.units import format_seconds, format_tokens

if TYPE_CHECKING:
    from charm_sched.search.results import Result
    from charm_sched.what_if.lengths import Point
    from charm_sched.what_if.sweep_values import Sweep

Figure = dict[str, Any]
_Look: TypeAlias = "tuple[str, str, str, float, Callable[[Point], float], Callable[[Point], str]]"

COMPUTE, EXPOSED, RING, BEST = "#2a9d78", "#e8743b", "#8f98a8", "#4f7df0"
OTHERS = ("#9b6bdf", "#1aa5b8", "#d1589a", "#b58b1b", "#5f9e3f", "#a0705a")
NEUTRAL = "#80899c"
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a sweep: what it is, and its points."""

    name: str
    values: tuple[float, ...]
    seconds: tuple[float, ...]
    words: tuple[str, ...]
    colour: str
    dash: str = "solid"
    width: float = 2.0


def scale_of(most: float) -> tuple[float, str]:
    """Choose a unit in which a time is at least 1.

    >>> scale_of(0.0025)
    (0.001, 'ms')
    """
    return next((unit for unit in _UNITS if most >= unit[0]), _UNITS[-1])


def strategy_figure(
    results: Sequence[Result], names: Mapping[str, str], chosen: Result | None
) -> Figure:
    """Draw computation and exposed communication of each strategy of one direction, and its bound.

    Args:
        results: Of one direction.
        names: How strategies are called.
        chosen: What was chosen of them; it is bold.
    """
    rows = sorted(results, key=lambda result: -result.timeline.makespan)
    unit, word = scale_of(max((r.timeline.makespan for r in rows), default=1.0))
    labels = [_bold(label(names[r.strategy]), r, chosen) for r in rows]
    texts = [_strategy_words(result, names) for result in rows]
    parts: tuple[tuple[str, str, Callable[[Result], float]], ...] = (
        ("computation", COMPUTE, lambda r: r.timeline.compute_s),
        ("exposed communication", EXPOSED, lambda r: r.timeline.exposed_comm),
    )
    bars = [
        {
            "type": "bar", "orientation": "h", "name": name, "y": labels,
            "x": [seconds(r) / unit for r in rows],
            "marker": {"color": colour, "line": {"width": 0}},
            "hovertext": texts, "hovertemplate": "%{hovertext}<extra></extra>",
        }
        for name, colour, seconds in parts
    ]  # fmt: skip
    mark = {
        "type": "scatter", "mode": "markers", "name": "bound: no schedule is faster", "y": labels,
        "x": [r.bound.seconds / unit for r in rows], "hoverinfo": "skip",
        "marker": {"symbol": "line-ns", "size": 16, "color": NEUTRAL,
                   "line": {"width": 3, "color": NEUTRAL}},
    }  # fmt: skip
    layout = {
        "barmode": "stack", "bargap": 0.32, "height": 60 + 28 * len(rows),
        "margin": {"l": 8, "r": 12, "t": 4, "b": 44}, "showlegend": False,
        "xaxis": {"title": {"text": word}, "rangemode": "tozero", "fixedrange": True},
        "yaxis": {"automargin": True, "type": "category", "fixedrange": True},
    }  # fmt: skip
    return {"data": [*bars, mark], "layout": layout}


def _bold(text: str, result: Result, chosen: Result | None) -> str:
    return f"<b>{text}</b>" if chosen is not None and result.plan is chosen.plan else text


def _strategy_words(result: Result, names: Mapping[str, str]) -> str:
    timeline = result.timeline
    took, compute, exposed = (
        format_seconds(s, digits=3)
        for s in (timeline.makespan, timeline.compute_s, timeline.exposed_comm)
    )
    lines = [
        f"<b>{label(names[result.strategy])}</b> takes {took}",
        f"computation {compute}, exposed communication {exposed}",
        f"bound {format_seconds(result.bound.seconds, digits=3)} "
        f"({result.efficiency(result.bound):.0%} reached)",
    ]
    if result.speedup_vs_ring is not None:
        lines.append(f"{result.speedup_vs_ring:.2f} times as fast as Ring-Attention")
    lines.append(f"{label(result.partition)} shards")
    if result.params:
        lines.append(label(", ".join(f"{k}={v}" for k, v in result.params.items())))
    return "<br>".join(lines)


def lengths_figure(points: Sequence[Point], names: Mapping[str, str]) -> Figure:
    """Draw the times of one direction over the length of the sequence."""
    values = tuple(float(point.seq_len) for point in points)
    looks: tuple[_Look, ...] = (
        ("Ring-Attention", RING, "solid", 2.0, lambda p: p.ring_s, lambda p: ""),
        (
            "best plan", BEST, "solid", 3.0, lambda p: p.best_s,
            lambda p: f"{names[p.strategy]}, {p.speedup:.2f} times as fast as Ring-Attention",
        ),
        ("its computation", COMPUTE, "dot", 2.0, lambda p: p.compute_s, lambda p: ""),
    )  # fmt: skip
    curves = [
        Curve(
            name=name,
            values=values,
            seconds=tuple(seconds(p) for p in points),
            words=tuple(words(p) for p in points),
            colour=colour,
            dash=dash,
            width=width,
        )
        for name, colour, dash, width, seconds, words in looks
    ]
    return curves_figure(curves, lambda value: format_tokens(round(value)), "tokens", wide=True)


def sweep_figure(sweep: Sweep, direction: str, names: Mapping[str, str]) -> Figure:
    """Draw the times of one direction over a sweep, and where what is best changes."""
    samples = [sample for sample in sweep.samples if sample.direction == direction]
    values = tuple(sample.value for sample in samples)
    best = Curve(
        name="best plan",
        values=values,
        seconds=tuple(sample.makespan for sample in samples),
        words=tuple(f"{names[s.strategy]}, limited by {s.limit}" for s in samples),
        colour=BEST,
        width=3.0,
    )
    lines = [
        *_others(samples, names),
        best,
        _plain("its computation", values, [s.compute for s in samples], COMPUTE, "dot"),
        _plain("bound", values, [s.bound for s in samples], NEUTRAL, "dash"),
    ]
    axis = sweep.axis
    wide = axis.first > 0 and axis.last >= 4 * axis.first
    figure = curves_figure(lines, axis.show, axis.path, wide=wide)
    figure["layout"]["shapes"] = [
        {
            "type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1,
            "x0": crossover.above, "x1": crossover.above,
            "line": {"width": 1, "dash": "dot", "color": NEUTRAL},
        }
        for crossover in sweep.crossovers
        if crossover.direction == direction and crossover.what == "strategy"
    ]  # fmt: skip
    return figure


def _others(samples: Sequence[Any], names: Mapping[str, str]) -> Iterable[Curve]:
    """Give a thin line for each strategy that was simulated at two values or more."""
    found: dict[str, dict[float, float]] = {}
    for sample in samples:
        for strategy, seconds in sample.others:
            found.setdefault(strategy, {})[sample.value] = seconds
        if sample.ring is not None:
            found.setdefault("ring", {})[sample.value] = sample.ring
    number = 0
    for strategy, line in found.items():
        if len(line) < 2:
            continue
        ring = strategy == "ring"
        colour = RING if ring else OTHERS[number % len(OTHERS)]
        number += not ring
        name = "Ring-Attention" if ring else names.get(strategy, strategy)
        yield _plain(name, tuple(line), list(line.values()), colour, "solid", 2.0 if ring else 1.0)


def _plain(
    name: str,
    values: tuple[float, ...],
    seconds: Sequence[float],
    colour: str,
    dash: str,
    width: float = 2.0,
) -> Curve:
    return Curve(
        name=name, values=values, seconds=tuple(seconds), words=("",) * len(values), colour=colour,
        dash=dash, width=width,
    )  # fmt: skip


def curves_figure(
    curves: Sequence[Curve], show: Callable[[float], str], title: str, *, wide: bool
) -> Figure:
    """Draw curves of seconds over some value; ``wide`` for a logarithmic axis of values."""
    ticks = sorted({value for curve in curves for value in curve.values})
    every = [s for curve in curves for s in curve.seconds if s > 0]
    traces = [
        {
            "type": "scatter", "mode": "lines+markers", "name": label(curve.name),
            "x": list(curve.values), "y": list(curve.seconds),
            "hovertext": [
                _curve_words(curve, at, show) for at in range(len(curve.values))
            ],
            "hovertemplate": "%{hovertext}<extra></extra>",
            "line": {"color": curve.colour, "dash": curve.dash, "width": curve.width},
            "marker": {"size": 5 if curve.width < 3 else 8, "color": curve.colour},
        }
        for curve in curves
    ]  # fmt: skip
    marks = _time_ticks(min(every, default=1e-6), max(every, default=1.0))
    layout = {
        "height": 320,
        "margin": {"l": 8, "r": 12, "t": 44, "b": 52},
        "xaxis": {
            "type": "log" if wide else "linear", "title": {"text": label(title)},
            "tickvals": ticks, "ticktext": [label(show(tick)) for tick in ticks],
            "fixedrange": True,
        },
        "yaxis": {
            "type": "log", "tickvals": marks, "automargin": True, "fixedrange": True,
            "ticktext": [format_seconds(mark, digits=3) for mark in marks],
        },
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _curve_words(curve: Curve, at: int, show: Callable[[float], str]) -> str:
    head = f"{label(curve.name)} at {label(show(curve.values[at]))}"
    took = f"<b>{format_seconds(curve.seconds[at], digits=3)}</b>"
    return "<br>".join([head, took, *([label(curve.words[at])] if curve.words[at] else [])])


def _time_ticks(least: float, most: float) -> list[float]:
    """Give round times on a logarithmic axis, 3 to 8 of them.

    >>> _time_ticks(2e-4, 2e-2)
    [0.0003, 0.001, 0.003, 0.01]
    """
    decades = [10.0**exponent for exponent in range(-9, 5)]
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        every = (float(f"{decade * step:.3g}") for decade in decades for step in steps)
        found = [tick for tick in every if least * 0.98 <= tick <= most * 1.02]
        if len(found) >= 4:
            break
    return found


__all__ = [
    "BEST",
    "COMPUTE",
    "EXPOSED",
    "NEUTRAL",
    "lengths_figure",
    "scale_of",
    "strategy_figure",
    "sweep_figure",
]
