"""A timeline as a trace file for chrome://tracing and ui.perfetto.dev.

One process per rank, with one thread per stream. A transfer stands in the rank that sends it.
Where things of one stream run at the same time, the stream has several threads. Behind the ranks
stands a process of links: a counter for each, the part of its bandwidth that is used, 0 to 1. Times
are microseconds. The same timeline gives the same bytes.

A plan of very many operations gets less: no text of each operation, then one slice for the
transfers of a (rank, stream, level); and of very many links the fullest ones alone get a counter.
What was left out stands under ``otherData``.

Source: "Trace Event Format" of the Catapult project (Google): complete, counter and
metadata events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from charm_sched.files import write_whole
from charm_sched.plans.plan import OP_NAMES, TRANSFER
from charm_sched.timelines.link_load import fullest, link_loads, utilisation_steps
from charm_sched.timelines.link_usage import LinkUsage

if TYPE_CHECKING:
    import os

    from charm_sched.arrays import Floats, Ints
    from charm_sched.timelines.timeline import Timeline

Event: TypeAlias = "dict[str, object]"

MOST_TOLD = 100_000
"""Operations of a plan up to which each slice has the text of its operation."""
MOST_SINGLE = 200_000
"""Operations of a plan up to which each transfer has a slice of its own."""
MOST_LINKS = 256
MOST_STEPS = 100_000  # of all counters together
_PICOSECONDS = 6  # decimals of a microsecond


@dataclass(frozen=True, eq=False, kw_only=True)
class _Slices:
    """What is drawn as one, ``[slices]`` each.

    Attributes:
        row: An operation of it.
        count: How many operations it stands for.
        start: Of the first, in seconds.
        end: Of the last, in seconds.
        bytes: That they move together.
    """

    row: Ints
    count: Ints
    start: Floats
    end: Floats
    bytes: Ints

    def __len__(self) -> int:
        return len(self.row)


def trace_document(timeline: Timeline) -> dict[str, object]:
    """Give the trace as JSON values."""
    plan = timeline.plan
    slices = _singles(timeline) if len(plan) <= MOST_SINGLE else _batches(timeline)
    used = _used_links(timeline)
    left_out = list(_left_out(timeline, used))
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "direction": plan.direction,
            **({"left_out": left_out} if left_out else {}),
            "source": timeline.source,
            "strategy": plan.strategy,
        },
        "traceEvents": [
            *_events(timeline, slices),
            *_link_events(timeline, sorted(used[:MOST_LINKS])),
        ],
    }


def write_trace(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write the trace as a file, ``.json``."""
    text = json.dumps(trace_document(timeline), separators=(",", ":"), sort_keys=True)
    write_whole(Path(path), f"{text}\n".encode())


def _singles(timeline: Timeline) -> _Slices:
    plan = timeline.plan
    return _Slices(
        row=np.arange(len(plan)),
        count=np.ones(len(plan), np.int64),
        start=timeline.start,
        end=timeline.end,
        bytes=plan.op_bytes,
    )


def _batches(timeline: Timeline) -> _Slices:
    """Put the transfers of one (rank, stream, level) together; kernels stay single."""
    plan, columns = timeline.plan, timeline.plan.columns
    level = np.where(columns.op == TRANSFER, columns.level, -1 - np.arange(len(plan)))
    keys = np.stack([columns.rank.astype(np.int64), columns.stream.astype(np.int64), level])
    _, row, which, count = np.unique(
        keys, axis=1, return_index=True, return_inverse=True, return_counts=True
    )
    which = which.reshape(-1)
    start, end = np.full(len(row), np.inf), np.zeros(len(row))
    moved = np.zeros(len(row), np.int64)
    np.minimum.at(start, which, timeline.start)
    np.maximum.at(end, which, timeline.end)
    np.add.at(moved, which, plan.op_bytes)
    return _Slices(row=row, count=count, start=start, end=end, bytes=moved)


def _left_out(timeline: Timeline, used: list[int]) -> Iterator[str]:
    """Say what is not in the trace of a large plan."""
    operations = len(timeline.plan)
    if operations > MOST_TOLD:
        yield f"the text of each operation: there are {operations}, more than {MOST_TOLD}"
    if operations > MOST_SINGLE:
        yield f"single transfers: one slice for each rank, stream and level above {MOST_SINGLE}"
    if len(used) > MOST_LINKS:
        yield f"all links but the {MOST_LINKS} fullest"
    if timeline.plan.symmetry is not None:
        yield "all ranks but the representatives of the plan's symmetry, and the links"


def _events(timeline: Timeline, slices: _Slices) -> Iterator[Event]:
    plan, columns = timeline.plan, timeline.plan.columns
    for rank in range(plan.num_ranks):
        name = f"rank {rank}" + (f" ({plan.devices[rank]})" if plan.devices else "")
        yield _metadata("process_name", rank, {"name": name})
        yield _metadata("process_sort_index", rank, {"sort_index": rank})
    lanes, threads = _lanes(timeline, slices)
    for rank, stream, lane, thread in threads:
        name = plan.streams[stream] + (f" ({lane + 1})" if lane else "")
        yield _metadata("thread_name", rank, {"name": name}, thread)
        yield _metadata("thread_sort_index", rank, {"sort_index": thread}, thread)
    for at in np.lexsort((lanes, columns.rank[slices.row], slices.start)).tolist():
        yield _op_event(timeline, slices, at, int(lanes[at]))


def _metadata(what: str, rank: int, args: Event, thread: int = 0) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": args}


def _op_event(timeline: Timeline, slices: _Slices, at: int, thread: int) -> Event:
    plan, columns, row = timeline.plan, timeline.plan.columns, int(slices.row[at])
    kind = OP_NAMES[columns.op[row]]
    args: Event = {"row": row}
    if len(plan) <= MOST_TOLD:
        args["op"] = str(plan.op(row))
    name = kind
    start, end = float(slices.start[at]), float(slices.end[at])
    if columns.op[row] == TRANSFER:
        peer, level, moved = int(columns.peer[row]), int(columns.level[row]), int(slices.bytes[at])
        name = f"level {level} to {peer}"
        args |= {"to": peer, "level": level, "bytes": moved}
        if slices.count[at] > 1:
            name = f"level {level}, {int(slices.count[at])} transfers"
            args |= {"to": "several", "transfers": int(slices.count[at])}
        if end > start:
            args["GB/s"] = round(moved / (end - start) / 1e9, 3)
    begin = _microseconds(start)
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": int(columns.rank[row]),
        "tid": thread,
        "ts": begin,
        "dur": round(_microseconds(end) - begin, _PICOSECONDS),
        "args": args,
    }


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, _PICOSECONDS)


def _lanes(timeline: Timeline, slices: _Slices) -> tuple[Ints, list[tuple[int, int, int, int]]]:
    """Give slices of one (rank, stream) that overlap different lanes, and each lane a thread.

    Returns:
        The thread of each slice, and (rank, stream, lane, thread) of every thread; threads of a
        rank count from 1, by stream, then lane.
    """
    columns, start, end = timeline.plan.columns, slices.start, slices.end
    ranks, streams = columns.rank[slices.row], columns.stream[slices.row]
    order = np.lexsort((np.arange(len(slices)), start, streams, ranks))
    lane = np.zeros(len(slices), np.int64)
    free: dict[tuple[int, int], list[float]] = {}
    for at in order.tolist():
        until = free.setdefault((int(ranks[at]), int(streams[at])), [])
        place = next((i for i, time in enumerate(until) if time <= start[at]), len(until))
        until[place : place + 1] = [float(end[at])]
        lane[at] = place
    threads: dict[tuple[int, int, int], int] = {}
    count = dict.fromkeys(range(timeline.plan.num_ranks), 0)
    for (rank, stream), until in sorted(free.items()):
        for place in range(len(until)):
            count[rank] += 1
            threads[rank, stream, place] = count[rank]
    keys = zip(ranks.tolist(), streams.tolist(), lane.tolist(), strict=True)
    numbers = np.array([threads[key] for key in keys], np.int64)
    return numbers, [(*key, thread) for key, thread in threads.items()]


def _used_links(timeline: Timeline) -> list[int]:
    """Give the links that carry anything, the fullest first."""
    plan = timeline.plan
    if timeline.topology is None or not plan.devices or plan.symmetry is not None:
        return []
    loads = link_loads(timeline)
    return fullest(loads, len(loads))


def _link_events(timeline: Timeline, links: list[int]) -> Iterator[Event]:
    """Yield a counter for each of some links: the part of its bandwidth that is used."""
    if not links:
        return
    assert timeline.topology is not None
    process, usage = timeline.plan.num_ranks, LinkUsage(timeline)
    yield _metadata("process_name", process, {"name": "links (part of the bandwidth in use)"})
    yield _metadata("process_sort_index", process, {"sort_index": process})
    for number in links:
        capacity = timeline.topology.capacities[number]
        steps = utilisation_steps(timeline, usage, number, MOST_STEPS // len(links))
        for time, part in zip(*(column.tolist() for column in steps), strict=True):
            yield {
                "ph": "C",
                "name": f"{capacity.name} ({capacity.kind})",
                "cat": "link",
                "pid": process,
                "tid": 0,
                "ts": _microseconds(time),
                "args": {"used": round(part, 4)},
            }


__all__ = ["trace_document", "write_trace"]
