"""Memory in use over time, as a figure of plotly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from charm_sched.export.figures import BEST, EXPOSED, NEUTRAL, scale_of
from charm_sched.export.markup import label
from charm_sched.timelines.memory_use import MOST_OPERATIONS, memory_over_time, memory_use
from charm_sched.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from charm_sched.arrays import Floats, Ints
    from charm_sched.search.results import Result

Figure = dict[str, Any]
MOST_STEPS = 2000
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def memory_figure(result: Result) -> Figure | None:
    """Draw the memory of the device with the most in use, and what its buffers take.

    Returns:
        The figure; None where the plan is too long to look at.
    """
    timeline = result.timeline
    if len(result.plan) > MOST_OPERATIONS:
        return None
    most = max(memory_use(timeline), key=lambda rank: rank.in_use)
    times, used = (x.tolist() for x in _fewer(*memory_over_time(timeline, most.rank)))
    unit, word = scale_of(timeline.makespan)
    size, noun = next(s for s in _SIZES if max(most.reserved, 1) >= s[0])
    name = label(most.device or f"rank {most.rank}")
    shown: list[tuple[str, Iterable[float], Iterable[float], str, str]] = [
        (f"in use on {name}", times, used, BEST, "solid"),
        (
            "reserved for its buffers",
            [0.0, timeline.makespan],
            [most.reserved] * 2,
            NEUTRAL,
            "dash",
        ),
    ]
    if most.capacity is not None and most.capacity < 1.5 * most.reserved:
        whole = [most.capacity] * 2
        shown.append(("memory of the device", [0.0, timeline.makespan], whole, EXPOSED, "dot"))
    traces: list[Figure] = [
        {
            "type": "scatter", "mode": "lines", "name": title,
            "x": [float(t) / unit for t in at], "y": [float(n) / size for n in bytes_of],
            "line": {"color": colour, "dash": dash, "shape": "hv", "width": 2},
            "hovertext": [
                f"{title}<br><b>{format_bytes(float(n), digits=3)}</b> "
                f"from {format_seconds(float(t), digits=3)} on"
                for t, n in zip(at, bytes_of, strict=True)
            ],
            "hovertemplate": "%{hovertext}<extra></extra>",
        }
        for title, at, bytes_of, colour, dash in shown
    ]  # fmt: skip
    traces[0] |= {"fill": "tozeroy", "fillcolor": "rgba(79,125,240,.14)"}
    layout = {
        "height": 250,
        "margin": {"l": 8, "r": 12, "t": 44, "b": 44},
        "xaxis": {"title": {"text": word}, "range": [0, timeline.makespan / unit]},
        "yaxis": {
            "title": {"text": noun}, "rangemode": "tozero", "automargin": True, "fixedrange": True,
        },
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _fewer(times: Floats, used: Ints) -> tuple[Floats, Ints]:
    """Leave out steps between equal parts of the time where there are very many; peaks stay."""
    if len(times) <= MOST_STEPS:
        return times, used
    part = np.searchsorted(np.linspace(times[0], times[-1], MOST_STEPS // 2), times, side="right")
    first = np.flatnonzero(np.diff(part, prepend=-1))
    highest = [
        at + int(used[at:end].argmax())
        for at, end in zip(first, [*first[1:], len(used)], strict=True)
    ]
    keep = np.unique([*first.tolist(), *highest, len(times) - 1])
    return times[keep], used[keep]


__all__ = ["memory_figure"]
