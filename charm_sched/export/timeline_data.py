"""A timeline as columns of numbers, from which the page draws the ranks that are looked at.

Every operation of the ranks that are kept has a row. Where that would be too many, fewer ranks are
kept; where one rank alone has too many, the operations of a level, and kernels that follow each
other, are put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from charm_sched.plans.plan import OP_NAMES, TRANSFER

if TYPE_CHECKING:
    from charm_sched.arrays import Ints
    from charm_sched.plans.plan import Plan
    from charm_sched.timelines.timeline import Timeline
    from charm_sched.topology.graph import Domain

MOST_OPS = 24_000
"""Operations of one direction that a page holds one by one."""
MOST_RUNS = 4_000
"""The same of what is put together."""
MOST_SHOWN = 6_000
"""Operations that are drawn at once."""
MOST_PATH = 6
"""Ranks of the critical path that are shown first."""
COMPANY = 4
"""With fewer ranks on the critical path others are shown beside them."""
MOST_PATH_OPS = 300_000
"""A longer plan's critical path is not looked for."""
MOST_ITEMS = 3
_GRAIN = 1e-9  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Operations of one rank and stream that are drawn as one."""

    kind: int
    rank: int
    peer: int
    stream: int
    level: int
    start: float
    end: float
    bytes: int
    what: str
    critical: bool
    ops: int = 1


def timeline_data(timeline: Timeline) -> dict[str, Any]:
    """Give the columns, the names, and which ranks to show together.

    Times are nanoseconds. A plan that is stored by its symmetry has operations of its
    representatives alone.
    """
    plan = timeline.plan
    critical = _critical(timeline)
    ranks, joined = _kept(plan, critical)
    rows = np.flatnonzero(np.isin(plan.columns.rank, ranks))
    on_path = set(critical)
    if joined:
        runs = list(_joined(timeline, rows, on_path))
    else:
        runs = [_single(timeline, row, on_path) for row in rows.tolist()]
    whats = {what: number for number, what in enumerate(dict.fromkeys(run.what for run in runs))}
    return {
        "total": timeline.makespan,
        "ranks": {rank: plan.devices[rank] if plan.devices else "" for rank in ranks},
        "streams": list(plan.streams),
        "kinds": list(OP_NAMES),
        "views": _views(timeline, ranks, critical),
        "note": _note(plan, ranks, joined=joined),
        "columns": {
            "kind": [run.kind for run in runs],
            "rank": [run.rank for run in runs],
            "peer": [run.peer for run in runs],
            "stream": [run.stream for run in runs],
            "level": [run.level for run in runs],
            "start": [round(run.start / _GRAIN) for run in runs],
            "end": [round(run.end / _GRAIN) for run in runs],
            "bytes": [run.bytes for run in runs],
            "ops": [run.ops for run in runs],
            "critical": [int(run.critical) for run in runs],
            "what": [whats[run.what] for run in runs],
        },
        "what": list(whats),
    }


def _critical(timeline: Timeline) -> list[int]:
    plan = timeline.plan
    if plan.symmetry is not None or len(plan) > MOST_PATH_OPS:
        return []
    return timeline.critical_path()


def _kept(plan: Plan, critical: Sequence[int]) -> tuple[list[int], bool]:
    """Choose the ranks that are kept, and say whether operations are put together."""
    counts = np.bincount(plan.columns.rank, minlength=plan.num_ranks)
    order = _order(plan, critical, counts)
    kept, total = [], 0
    for rank in order:
        total += int(counts[rank])
        if total > MOST_OPS:
            break
        kept.append(rank)
    if kept:
        return sorted(kept), False
    return sorted(order[:MOST_PATH]), True


def _order(plan: Plan, critical: Sequence[int], counts: Ints) -> list[int]:
    """Order ranks: those with the most of the critical path, then all others evenly spread."""
    on_path = np.bincount(plan.columns.rank[list(critical)], minlength=plan.num_ranks)
    first = [rank for rank in np.argsort(-on_path, kind="stable").tolist() if on_path[rank]]
    busy = [rank for rank in range(plan.num_ranks) if counts[rank]]
    spread = [busy[at] for at in _evenly(len(busy))]
    return list(dict.fromkeys([*first, *spread]))


def _evenly(count: int) -> Iterable[int]:
    """Number things so that each beginning is spread over all of them.

    >>> list(_evenly(5))
    [0, 4, 2, 1, 3]
    """
    step = 1 << max(count - 1, 0).bit_length()
    seen: dict[int, None] = {}
    while step and len(seen) < count:
        for at in range(0, count, step):
            seen.setdefault(at)
        step //= 2
    yield from seen


def _single(timeline: Timeline, row: int, critical: set[int]) -> _Run:
    plan, columns = timeline.plan, timeline.plan.columns
    return _Run(
        kind=int(columns.op[row]),
        rank=int(columns.rank[row]),
        peer=int(columns.peer[row]),
        stream=int(columns.stream[row]),
        level=int(columns.level[row]),
        start=float(timeline.start[row]),
        end=float(timeline.end[row]),
        bytes=int(plan.op_bytes[row]),
        what=_what(plan, row),
        critical=row in critical,
    )


def _what(plan: Plan, row: int) -> str:
    """Name the operands of a row: ``q[0:4]h0:1 x kv[4:8]h0:1``."""
    columns = plan.columns
    first, last = int(columns.ptr[row]), int(columns.ptr[row + 1])
    middle = first + int(columns.lead[row])
    lead, rest = _names(plan, first, middle), _names(plan, middle, last)
    match int(columns.op[row]):
        case 1:
            return f"{lead} x {rest}"
        case 2:
            return f"{lead} into {rest}"
        case _:
            return lead


def _names(plan: Plan, first: int, last: int) -> str:
    shown = [
        str(plan.items[plan.columns.arg[at]]) for at in range(first, min(last, first + MOST_ITEMS))
    ]
    more = last - first - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _joined(timeline: Timeline, rows: Ints, critical: set[int]) -> Iterable[_Run]:
    """Put together what one rank does on one stream: a level, or kernels in equal parts of time."""
    plan, columns = timeline.plan, timeline.plan.columns
    kernels = columns.op[rows] != TRANSFER
    ranks = len(np.unique(columns.rank[rows]))
    grain = timeline.makespan * ranks * len(plan.streams) / MOST_RUNS or 1.0
    part = np.where(kernels, (timeline.start[rows] / grain).astype(np.int64), columns.level[rows])
    order = np.lexsort((part, columns.op[rows], columns.stream[rows], columns.rank[rows]))

    def key(at: int) -> tuple[int, ...]:
        row = int(rows[at])
        found = (columns.rank[row], columns.stream[row], columns.op[row], part[at])
        return tuple(int(x) for x in found)

    for (rank, stream, kind, number), group in groupby(order.tolist(), key):
        chosen = rows[list(group)]
        yield _Run(
            kind=kind,
            rank=rank,
            peer=-1,
            stream=stream,
            level=number if kind == TRANSFER else -1,
            start=float(timeline.start[chosen].min()),
            end=float(timeline.end[chosen].max()),
            bytes=int(plan.op_bytes[chosen].sum()),
            what="",
            critical=bool(critical.intersection(chosen.tolist())),
            ops=len(chosen),
        )


def _views(
    timeline: Timeline, kept: Sequence[int], critical: Sequence[int]
) -> list[dict[str, Any]]:
    """Give sets of ranks to be looked at together: the critical path, each domain, all.

    A browser gets slow with very many bars: of a larger set the first ranks are shown.
    """
    plan, known = timeline.plan, set(kept)
    counts = np.bincount(plan.columns.rank, minlength=plan.num_ranks).tolist()
    sets: list[tuple[str, Sequence[int]]] = []
    path = _path_ranks(plan, kept, critical)
    if path and len(kept) > len(path):
        sets.append(("critical path", path))
    if timeline.topology is not None and plan.devices:
        number = {device: rank for rank, device in enumerate(plan.devices)}
        for domain in _domains(timeline.topology.domains(plan.devices)):
            ranks = [number[device] for device in domain.devices if number[device] in known]
            if ranks and len(ranks) < len(kept):
                sets.append((domain.name, ranks))
    sets.append(("all" if len(kept) == plan.num_ranks else "all that are kept", kept))
    views: list[dict[str, object]] = []
    for name, members in sets:
        total = 0
        shown: list[int] = []
        for rank in members:
            total += min(counts[rank], MOST_RUNS)
            if not shown or total <= MOST_SHOWN:
                shown.append(rank)
        title = name if len(shown) == len(members) else f"{name}, the first ranks"
        views.append({"name": title, "ranks": shown})
    return views


def _path_ranks(plan: Plan, kept: Sequence[int], critical: Sequence[int]) -> list[int]:
    """Give the ranks with the most of the critical path, and company for few of them."""
    on_path = [int(plan.columns.rank[row]) for row in critical]
    longest = sorted(set(on_path), key=lambda rank: (-on_path.count(rank), rank))
    path = [rank for rank in longest if rank in set(kept)][:MOST_PATH]
    if path:  # a wait is easier to read with others beside it
        others = [rank for rank in kept if rank not in path]
        path += others[: max(COMPANY - len(path), 0)]
    return sorted(path)


def _domains(domain: Domain) -> Iterable[Domain]:
    """Yield the domains below one that hold several devices."""
    for child in domain.children:
        if child.children:
            yield child
            yield from _domains(child)


def _note(plan: Plan, kept: Sequence[int], *, joined: bool) -> str:
    """Say what is not in the page, and by which rule."""
    texts = []
    if len(kept) < plan.num_ranks:
        most = f"{MOST_OPS:,} operations"
        why = "its representatives" if plan.symmetry is not None else f"at most {most}"
        texts.append(
            f"{len(kept)} of {plan.num_ranks:,} ranks are in this page ({why}): those on the "
            "critical path first, then others evenly spread."
        )
    if joined:
        texts.append(
            "Transfers of one level are drawn as one bar, and so are kernels that start in the "
            "same short period."
        )
    return " ".join(texts)


__all__ = ["MOST_OPS", "timeline_data"]
