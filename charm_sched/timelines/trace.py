"""A timeline as a trace file for chrome://tracing and ui.perfetto.dev.

One process per rank, with one thread per stream. A transfer stands in the rank that sends it.
Where things of one stream run at the same time, the stream has several threads. Times are
microseconds. The same timeline gives the same bytes.

Source: "Trace Event Format" of the Catapult project (Google), complete and metadata events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from charm_sched.files import write_whole
from charm_sched.plans.plan import OP_NAMES, TRANSFER

if TYPE_CHECKING:
    import os

    from charm_sched.timelines.timeline import Timeline

Event: TypeAlias = "dict[str, object]"

_PICOSECONDS = 6  # decimals of a microsecond


def trace_document(timeline: Timeline) -> dict[str, object]:
    """Give the trace as JSON values."""
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "strategy": timeline.plan.strategy,
            "direction": timeline.plan.direction,
            "source": timeline.source,
        },
        "traceEvents": list(_events(timeline)),
    }


def write_trace(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Write the trace as a file, ``.json``."""
    text = json.dumps(trace_document(timeline), separators=(",", ":"), sort_keys=True)
    write_whole(Path(path), f"{text}\n".encode())


def _events(timeline: Timeline) -> Iterator[Event]:
    plan = timeline.plan
    for rank in range(plan.num_ranks):
        name = f"rank {rank}" + (f" ({plan.devices[rank]})" if plan.devices else "")
        yield _metadata("process_name", rank, {"name": name})
        yield _metadata("process_sort_index", rank, {"sort_index": rank})
    lanes, threads = _lanes(timeline)
    for rank, stream, lane, thread in threads:
        name = plan.streams[stream] + (f" ({lane + 1})" if lane else "")
        yield _metadata("thread_name", rank, {"name": name}, thread)
        yield _metadata("thread_sort_index", rank, {"sort_index": thread}, thread)
    for row in np.lexsort((lanes, plan.columns.rank, timeline.start)).tolist():
        yield _op_event(timeline, row, int(lanes[row]))


def _metadata(what: str, rank: int, args: Event, thread: int = 0) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": args}


def _op_event(timeline: Timeline, row: int, thread: int) -> Event:
    plan, columns = timeline.plan, timeline.plan.columns
    kind = OP_NAMES[columns.op[row]]
    args: Event = {"row": row, "op": str(plan.op(row))}
    name = kind
    if columns.op[row] == TRANSFER:
        peer, moved = int(columns.peer[row]), int(plan.op_bytes[row])
        seconds = float(timeline.end[row] - timeline.start[row])
        args |= {"to": peer, "level": int(columns.level[row]), "bytes": moved}
        if seconds > 0:
            args["GB/s"] = round(moved / seconds / 1e9, 3)
        name = f"level {int(columns.level[row])} to {peer}"
    start = round(float(timeline.start[row]) * 1e6, _PICOSECONDS)
    end = round(float(timeline.end[row]) * 1e6, _PICOSECONDS)
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": int(columns.rank[row]),
        "tid": thread,
        "ts": start,
        "dur": round(end - start, _PICOSECONDS),
        "args": args,
    }


def _lanes(timeline: Timeline) -> tuple[np.ndarray, list[tuple[int, int, int, int]]]:
    """Give ops of one (rank, stream) that overlap different lanes, and each lane a thread.

    Returns:
        The thread of each op, and (rank, stream, lane, thread) of every thread; threads of a rank
        count from 1, by stream, then lane.
    """
    columns, start, end = timeline.plan.columns, timeline.start, timeline.end
    order = np.lexsort((np.arange(len(start)), start, columns.stream, columns.rank))
    lane = np.zeros(len(start), np.int64)
    free: dict[tuple[int, int], list[float]] = {}
    for row in order.tolist():
        until = free.setdefault((int(columns.rank[row]), int(columns.stream[row])), [])
        at = next((i for i, time in enumerate(until) if time <= start[row]), len(until))
        until[at : at + 1] = [float(end[row])]
        lane[row] = at
    threads: dict[tuple[int, int, int], int] = {}
    count = dict.fromkeys(range(timeline.plan.num_ranks), 0)
    for (rank, stream), until in sorted(free.items()):
        for at in range(len(until)):
            count[rank] += 1
            threads[rank, stream, at] = count[rank]
    keys = zip(columns.rank.tolist(), columns.stream.tolist(), lane.tolist(), strict=True)
    numbers = np.array([threads[key] for key in keys], np.int64)
    return numbers, [(*key, thread) for key, thread in threads.items()]


__all__ = ["trace_document", "write_trace"]
