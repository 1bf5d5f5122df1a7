"""The drawing of a machine with the load of its links, as a figure of plotly."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from charm_sched.export.drawing import Box, Drawing, Place, draw
from charm_sched.export.machine_lines import Line, lines_of, words_of
from charm_sched.export.markup import label
from charm_sched.plans.plan import TRANSFER
from charm_sched.units import format_bytes

if TYPE_CHECKING:
    from charm_sched.timelines.link_load import LinkLoad
    from charm_sched.timelines.timeline import Timeline
    from charm_sched.topology.graph import Topology

Figure = dict[str, Any]

SCALE = ("#8fa3b8", "#9cb08f", "#c9b458", "#e8a33d", "#e8743b", "#d43d3d")
"""Colours of links by utilisation, from 0 to 1; readable on light and on dark ground."""
DEVICE, SWITCH, UNUSED = "#2a9d78", "#67748f", "#b8bec8"
MOST_LINKS = 3000
HEIGHT = 44  # pixels per distance of devices, about
ROOM = 18  # pixels that a device must have for its number
STEPS = 10
WIDTH = 1080  # pixels of a drawing on a desktop
LETTER = 6.5  # pixels of a letter in a name, about
LEAST_COLUMN = 11  # pixels that a device has at least: where there is less room, one scrolls


def machine_figure(timeline: Timeline, loads: Sequence[LinkLoad]) -> tuple[Figure, str]:
    """Draw the machine of a timeline, its links by their load.

    Returns:
        The figure, and what of the machine is not drawn, in words; empty where all is.
    """
    machine = timeline.topology
    assert machine is not None
    devices = timeline.plan.devices
    drawing = draw(machine, devices, _weights(machine, loads))
    lines = [
        line
        for line in lines_of(machine, loads, drawing.stands_for)
        if set(line.ends) <= drawing.places.keys()
    ]
    lines = sorted(lines, key=lambda line: line.utilisation)[-MOST_LINKS:]
    traces = [*_strokes(lines, drawing), _touch_points(lines, drawing)]
    traces += [*_parts(machine, timeline, drawing), _colour_bar()]
    figure = {"data": traces, "layout": _layout(drawing, machine)}
    note = ""
    if drawing.left_out:
        shown = len(machine.devices) - drawing.left_out
        note = (
            f"{shown} of {len(machine.devices)} devices are drawn: the innermost domains with the "
            "fullest links, and the switches above them."
        )
    return figure, note


def _weights(machine: Topology, loads: Sequence[LinkLoad]) -> dict[str, float]:
    """Give each device the utilisation of its fullest link."""
    found: dict[str, float] = {}
    for link, capacity in zip(machine.links, machine.link_capacity, strict=True):
        for end in (link.src, link.dst):
            found[end] = max(found.get(end, 0.0), loads[capacity].utilisation)
    return found


def _path(line: Line, drawing: Drawing) -> list[Place]:
    """Give the points of a line: straight, or an arc where several would lie on each other."""
    (x0, y0), (x1, y1) = _ends(line, drawing)
    length = math.hypot(x1 - x0, y1 - y0) or 1.0
    bulge = _between(0.02 * _columns(drawing), 0.06, 0.25) * (line.number - (line.of - 1) / 2)
    if y0 == y1 and length > 1.01:
        bulge += math.copysign(min(0.25 + 0.1 * length, 1.2), y0 or 1.0)
    if not bulge:
        return [(x0, y0), (x1, y1)]
    across = (-(y1 - y0) / length, (x1 - x0) / length) if y0 != y1 else (0.0, 1.0)
    points = []
    for step in range(STEPS + 1):
        t = step / STEPS
        out = 4 * t * (1 - t) * bulge
        points.append((x0 + (x1 - x0) * t + across[0] * out, y0 + (y1 - y0) * t + across[1] * out))
    return points


def _ends(line: Line, drawing: Drawing) -> tuple[Place, Place]:
    """Give where a line begins and ends: at a bar opposite to its other end."""
    first, last = (drawing.places[end] for end in line.ends)
    for at, end in enumerate(line.ends):
        if end in drawing.bars:
            left, right = drawing.bars[end]
            near = min(max((last if at == 0 else first)[0], left), right)
            if at == 0:
                first = (near, first[1])
            else:
                last = (near, last[1])
    return first, last


def _strokes(lines: Sequence[Line], drawing: Drawing) -> Iterator[Figure]:
    """Draw lines of about the same utilisation as one trace, the fullest on top."""
    for number, colour in enumerate(SCALE):
        same = [line for line in lines if _class_of(line.utilisation) == number]
        xs: list[float | None] = []
        ys: list[float | None] = []
        for line in same:
            path = _path(line, drawing)
            xs += [*(round(x, 3) for x, _ in path), None]
            ys += [*(round(y, 3) for _, y in path), None]
        if same:
            width = 1.2 + 1.0 * number
            yield {
                "type": "scatter", "mode": "lines", "x": xs, "y": ys, "hoverinfo": "skip",
                "line": {"color": colour, "width": width}, "showlegend": False,
            }  # fmt: skip


def _class_of(utilisation: float) -> int:
    return min(int(utilisation * len(SCALE)), len(SCALE) - 1)


def _touch_points(lines: Sequence[Line], drawing: Drawing) -> Figure:
    """Put invisible marks on the lines, which tell what crosses them."""
    xs, ys, texts, colours = [], [], [], []
    for line in lines:
        x, y = _inner_point(_path(line, drawing))
        xs.append(round(x, 3))
        ys.append(round(y, 3))
        texts.append(words_of(line))
        colours.append(SCALE[_class_of(line.utilisation)])
    return {
        "type": "scatter", "mode": "markers", "x": xs, "y": ys, "text": texts,
        "hovertemplate": "%{text}<extra></extra>", "showlegend": False, "name": "links",
        "marker": {"size": 13, "opacity": 0, "color": colours},
    }  # fmt: skip


def _inner_point(path: Sequence[Place]) -> Place:
    """Give a point of a path near its middle."""
    if len(path) > 2:
        return path[len(path) // 2]
    (x0, y0), (x1, y1) = path
    return (x0 + x1) / 2, (y0 + y1) / 2


def _parts(machine: Topology, timeline: Timeline, drawing: Drawing) -> Iterator[Figure]:
    """Draw switches and devices, with their names."""
    kinds = {switch.name: switch.kind for switch in machine.switches}
    bars = [name for name in kinds if name in drawing.bars]
    yield from _bars(bars, kinds, drawing)
    points = [name for name in kinds if name in drawing.places and name not in drawing.bars]
    small = [kinds[name] == "nic" for name in points]
    crowded, room = _crowded(points, drawing), WIDTH / _columns(drawing)
    yield {
        **_marks(points, drawing),
        "hovertext": [_told(name, kinds, drawing) for name in points],
        "text": [
            "" if nic or crowded[name] else _short(name, drawing)
            for name, nic in zip(points, small, strict=True)
        ],
        "textposition": "middle right",
        "textfont": {"size": 10},
        "marker": {
            "symbol": ["circle" if nic else "diamond" for nic in small],
            "size": [_between(0.6 * room, 5, 9) if nic else _between(room, 7, 15) for nic in small],
            "color": SWITCH,
            "opacity": 1,
        },
    }
    facts = _device_facts(timeline)
    devices = [name for name in machine.device_names if name in drawing.places]
    size = _between(600 / _columns(drawing), 8, 26)
    yield {
        **_marks(devices, drawing),
        "name": "devices",
        "hovertext": [facts.get(name, f"{label(name)}: not used") for name in devices],
        "text": [_number(name) if size >= ROOM else "" for name in devices],
        "textfont": {"size": 11, "color": "#ffffff"},
        "marker": {
            "symbol": "square",
            "size": size,
            "color": [DEVICE if name in facts else UNUSED for name in devices],
            "opacity": 1,
        },
    }


def _bars(names: Sequence[str], kinds: Mapping[str, str], drawing: Drawing) -> Iterator[Figure]:
    """Draw switches as bars over what they join."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for name in names:
        (left, right), y = drawing.bars[name], drawing.places[name][1]
        beyond = _between(0.02 * _columns(drawing), 0.05, 0.3)
        xs += [left - beyond, right + beyond, None]
        ys += [y, y, None]
    line = {"color": SWITCH, "width": 17}
    yield {
        "type": "scatter", "mode": "lines", "x": xs, "y": ys, "line": line, "hoverinfo": "skip",
        "showlegend": False,
    }  # fmt: skip
    yield {
        **_marks(names, drawing),
        "hovertext": [_told(name, kinds, drawing) for name in names],
        "text": [_short(name, drawing) for name in names],
        "textfont": {"size": 11, "color": "#ffffff"},
        "marker": {"size": 17, "opacity": 0, "color": SWITCH},
    }


def _between(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


def _columns(drawing: Drawing) -> float:
    xs = [x for x, _ in drawing.places.values()]
    return max(xs) - min(xs) + 1 if xs else 1.0


def _marks(names: Sequence[str], drawing: Drawing) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [round(drawing.places[name][0], 3) for name in names],
        "y": [round(drawing.places[name][1], 3) for name in names],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "cliponaxis": False,
        "showlegend": False,
    }


def _short(name: str, drawing: Drawing) -> str:
    """Give the last part of a name, or how many switches it stands for."""
    short = name.rpartition("/")[2]
    if name in drawing.stands_for:
        return label(f"{len(drawing.stands_for[name])} x {short.rstrip('0123456789') or short}")
    return label(short)


def _told(name: str, kinds: Mapping[str, str], drawing: Drawing) -> str:
    own = drawing.stands_for.get(name, (name,))
    more = f" to {label(own[-1])}, {len(own)} that join the same" if len(own) > 1 else ""
    return f"{label(name)}{more} ({label(kinds[name])})"


def _crowded(names: Sequence[str], drawing: Drawing) -> dict[str, bool]:
    """Say of each name beside a point whether it would run into the next point of its row."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for name in names:
        x, y = drawing.places[name]
        rows.setdefault(y, []).append((x, name))
    found = {}
    for row in map(sorted, rows.values()):
        for (x, name), (beside, _) in zip(row, [*row[1:], (math.inf, "")], strict=True):
            room = (beside - x) * WIDTH / _columns(drawing)
            found[name] = LETTER * len(_short(name, drawing)) + ROOM > room
    return found


def _number(name: str) -> str:
    """Give the number at the end of a device's name; nothing where there is none."""
    found = re.search(r"[0-9]{1,3}$", name)
    return found.group() if found else ""


def _device_facts(timeline: Timeline) -> Mapping[str, str]:
    """Say what each device computes, sends and receives."""
    plan, columns = timeline.plan, timeline.plan.columns
    moves = columns.op == TRANSFER
    sent, received = (
        np.bincount(ends[moves], plan.op_bytes[moves], minlength=plan.num_ranks)
        for ends in (columns.rank, columns.peer)
    )
    found = {}
    for rank, name in enumerate(plan.devices):
        busy = float(timeline.compute_seconds[rank])
        part = busy / timeline.makespan if timeline.makespan else 0.0
        text = f"<b>{label(name)}</b>, rank {rank}<br>computes {part:.0%} of the time"
        if plan.symmetry is None:
            out, into = (format_bytes(float(x[rank]), digits=3) for x in (sent, received))
            text += f"<br>sends {out}, receives {into}"
        found[name] = text
    return found


def _colour_bar() -> Figure:
    """Give the scale of the colours as a trace without points."""
    steps = [
        [edge / len(SCALE), colour]
        for number, colour in enumerate(SCALE)
        for edge in (number, number + 1)
    ]
    return {
        "type": "scatter", "mode": "markers", "x": [None], "y": [None], "hoverinfo": "skip",
        "showlegend": False, "cliponaxis": False,
        "marker": {
            "colorscale": steps, "cmin": 0, "cmax": 1, "color": [0], "showscale": True,
            "colorbar": {
                "orientation": "h", "thickness": 8, "len": 0.6, "y": -0.02, "yanchor": "top",
                "tickformat": ".0%", "outlinewidth": 0, "nticks": 4,
                "title": {"text": "bandwidth of a link in use, mean over the whole pass",
                          "side": "top", "font": {"size": 11}},
            },
        },
    }  # fmt: skip


def _layout(drawing: Drawing, machine: Topology) -> Figure:
    ys = [y for _, y in drawing.places.values()]
    tall = max(ys) - min(ys) if ys else 1.0
    whole = len(drawing.boxes) == 1
    boxes = [box for box in drawing.boxes if not whole]
    below = {box.name: drawing.mirrored and box.top < 0 for box in boxes}
    names = {box.name: _fitting(box, drawing) for box in boxes}
    return {
        "height": int(110 + HEIGHT * (tall + 2)),
        "meta": {"least": int(LEAST_COLUMN * _columns(drawing))},
        "margin": {"l": 4, "r": 4, "t": 10, "b": 60},
        "xaxis": {"visible": False, "fixedrange": False},
        "yaxis": {"visible": False, "fixedrange": False},
        "hovermode": "closest",
        "dragmode": "pan",
        "shapes": [
            {
                "type": "rect", "layer": "below", "x0": box.left, "x1": box.right,
                "y0": box.bottom - (0.35 if below[box.name] else 0),
                "y1": box.top + (0 if below[box.name] else 0.35),
                "line": {"width": 1, "color": "rgba(128,140,160,.45)"},
                "fillcolor": "rgba(128,140,160,.08)",
            }
            for box in boxes
        ],
        "annotations": [
            {
                "x": box.left, "y": box.bottom - 0.35 if below[box.name] else box.top + 0.35,
                "xanchor": "left", "yanchor": "bottom" if below[box.name] else "top",
                "text": f" <b>{label(names[box.name])}</b>", "showarrow": False,
                "font": {"size": 11},
            }
            for box in boxes
            if names[box.name]
        ],
    }  # fmt: skip


def _fitting(box: Box, drawing: Drawing) -> str:
    """Give as much of a box's name, from its end, as fits over it: nothing where none does."""
    room = (box.right - box.left) * WIDTH / _columns(drawing)
    parts = box.name.split("/")
    names = ["/".join(parts[at:]) for at in range(len(parts))]
    number = re.search(r"[0-9]+$", box.name)
    names += [number.group()] if number else []
    return next((name for name in names if LETTER * len(name) <= room), "")


__all__ = ["DEVICE", "SCALE", "machine_figure"]
