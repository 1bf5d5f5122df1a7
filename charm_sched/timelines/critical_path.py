"""The chain of operations that decides how long a plan takes, in stretches.

Each operation on the critical path stands for the time since the one before it ended, so the
stretches cover the makespan without gaps. Consecutive operations that say the same are one stretch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.plans.items import KINDS
from charm_sched.plans.plan import TRANSFER
from charm_sched.timelines.link_usage import FULL, LinkUsage

if TYPE_CHECKING:
    from charm_sched.arrays import Ints
    from charm_sched.timelines.link_usage import Limit
    from charm_sched.timelines.timeline import Timeline
    from charm_sched.topology.graph import Domain, Topology

NOUNS = {
    "q": "queries",
    "kv": "keys and values",
    "o": "partial outputs",
    "g": "gradients of outputs",
    "dq": "gradients of queries",
    "dkv": "gradients of keys and values",
}
IDLE = 0.5
"""A device waits if it computes for less than this part of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of the critical path.

    Attributes:
        kind: ``computation`` or ``transfer``.
        start: Seconds.
        end: Seconds.
        place: The device that computes; the device or domain that receives.
        source: The device or domain that sends; empty for computation.
        what: What is sent, in words; empty for computation.
        tier: The tier that is crossed; empty for computation.
        waits: Whether what receives computes nothing most of the time.
        ops: How many operations it stands for.
        limit: What keeps the transfers from being faster; None for computation.
        links: How many links share that limit.
        fill: The part of their bandwidth that is used, 0 to 1.
        full: The period in which they are full, in seconds; if they are not, the one of `fill`.
        latency: Seconds of latency of its transfers.
    """

    kind: str
    start: float
    end: float
    place: str
    source: str = ""
    what: str = ""
    tier: str = ""
    waits: bool = False
    ops: int = 1
    limit: Limit | None = None
    links: int = 0
    fill: float = 0.0
    full: tuple[float, float] = (0.0, 0.0)
    latency: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One operation of the path, and the time that it stands for."""

    row: int
    start: float
    end: float
    key: tuple[str, ...]
    limit: Limit | None = None


def stretches(timeline: Timeline) -> tuple[Stretch, ...]:
    """Give the critical path of a timeline, in order of time.

    Raises:
        SimulationError: The timeline has no topology.
    """
    usage = LinkUsage(timeline)
    assert timeline.topology is not None
    places = _Places(timeline.topology, timeline)
    steps: list[_Step] = []
    before = 0.0
    for row in timeline.critical_path():
        end = float(timeline.end[row])
        steps.append(_step(timeline, usage, places, row, (before, max(end, before))))
        before = max(end, before)
    found = []
    for _, run in groupby(steps, key=lambda step: step.key):
        group = list(run)
        kernel = group[0].limit is None
        found.append(_computation(group) if kernel else _transfer(group, timeline, usage, places))
    return tuple(found)


def _step(
    timeline: Timeline, usage: LinkUsage, places: _Places, row: int, span: tuple[float, float]
) -> _Step:
    plan, columns = timeline.plan, timeline.plan.columns
    rank = int(columns.rank[row])
    if columns.op[row] != TRANSFER:
        key: tuple[str, ...] = ("computation", plan.devices[rank])
        return _Step(row=row, start=span[0], end=span[1], key=key)
    limit = usage.limit_of(row)
    tier, source, target = places.between(rank, int(columns.peer[row]))
    args = columns.arg[columns.ptr[row] : columns.ptr[row + 1]]
    kinds = sorted({int(kind) for kind in plan.items.kind[args]})
    what = ", ".join(NOUNS[KINDS[kind]] for kind in kinds)
    key = ("transfer", tier, source, target, what, limit.by, limit.kind)
    return _Step(row=row, start=span[0], end=span[1], key=key, limit=limit)


def _computation(group: list[_Step]) -> Stretch:
    return Stretch(
        kind="computation",
        start=group[0].start,
        end=group[-1].end,
        place=group[0].key[1],
        ops=len(group),
    )


def _transfer(group: list[_Step], timeline: Timeline, usage: LinkUsage, places: _Places) -> Stretch:
    _, tier, source, target, what, *_ = group[0].key
    start, end = group[0].start, group[-1].end
    rows = [step.row for step in group]
    longest = max(group, key=lambda step: step.end - step.start)
    limit, links = longest.limit, []
    fill, full = 0.0, (start, end)
    if limit is not None and limit.by == "link":
        first, last = usage.flow_period(rows)
        links = usage.beside(
            longest.row, limit.place, places.rows_between(source, target, first, last)
        )
        fill = usage.fill(links, first, last)
        full = usage.full_period(links, first, last) if fill >= FULL else (first, last)
    latency = sum(usage.route_of(row).latency for row in rows)
    who, waits = places.who_waits(int(timeline.plan.columns.peer[longest.row]), target, start, end)
    return Stretch(
        kind="transfer", start=start, end=end, place=who, source=source, what=what, tier=tier,
        waits=waits, ops=len(group), limit=limit, links=len(links), fill=fill, full=full,
        latency=min(latency, end - start),
    )  # fmt: skip


class _Places:
    """Ranks and the domains that they are in."""

    def __init__(self, machine: Topology, timeline: Timeline) -> None:
        self._timeline, devices = timeline, timeline.plan.devices
        self._machine = machine
        self._chains: dict[str, list[Domain]] = {}
        self._note(machine.domains(devices), [])
        self._rank = {name: rank for rank, name in enumerate(devices)}
        self._inside: dict[str, set[int]] = {}
        transfers = timeline.plan.columns.op == TRANSFER
        self._sent = self._by_rank(np.flatnonzero(transfers))
        self._kernels = self._by_rank(np.flatnonzero(~transfers))

    def _note(self, domain: Domain, above: list[Domain]) -> None:
        chain = [*above, domain]
        if not domain.children:
            self._chains[domain.devices[0]] = chain
        for child in domain.children:
            self._note(child, chain)

    def between(self, source: int, target: int) -> tuple[str, str, str]:
        """Give the tier between two ranks, and the domains below it that they are in."""
        devices = self._timeline.plan.devices
        if source == target:
            return "", devices[source], devices[source]
        a, b = self._chains[devices[source]], self._chains[devices[target]]
        depth = next(at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x is not y)
        for domain in (a[depth], b[depth]):
            if domain.name not in self._inside:
                self._inside[domain.name] = {self._rank[name] for name in domain.devices}
        return a[depth - 1].tier or "", a[depth].name, b[depth].name

    def rows_between(self, source: str, target: str, first: float, last: float) -> list[int]:
        """List the transfers from one domain to another that are under way in a period."""
        timeline, columns = self._timeline, self._timeline.plan.columns
        into = np.zeros(timeline.plan.num_ranks, np.bool_)
        into[list(self._inside[target])] = True
        rows = np.concatenate([self._rows(self._sent, rank) for rank in self._inside[source]])
        rows = rows[into[columns.peer[rows]]]
        found: list[int] = rows[
            (timeline.start[rows] < last) & (timeline.end[rows] > first)
        ].tolist()
        return found

    def who_waits(self, rank: int, domain: str, first: float, last: float) -> tuple[str, bool]:
        """Name what receives in a period, a domain or one rank's device, and whether it waits."""
        limit = (1 - IDLE) * (last - first)
        ranks = self._inside.get(domain, {rank})
        if all(self._computing(other, first, last) <= limit for other in ranks):
            return domain, True
        waits = self._computing(rank, first, last) <= limit
        return self._timeline.plan.devices[rank], waits

    def _computing(self, rank: int, first: float, last: float) -> float:
        """Give the seconds of a period in which a rank computes."""
        rows = self._rows(self._kernels, rank)
        start, end = self._timeline.start[rows], self._timeline.end[rows]
        return float(np.clip(np.minimum(end, last) - np.maximum(start, first), 0.0, None).sum())

    @staticmethod
    def _rows(index: tuple[Ints, Ints], rank: int) -> Ints:
        rows, ptr = index
        return rows[ptr[rank] : ptr[rank + 1]]

    def _by_rank(self, rows: Ints) -> tuple[Ints, Ints]:
        """Sort rows by rank, and say where those of each rank begin."""
        ranks = self._timeline.plan.columns.rank[rows]
        order = np.argsort(ranks, kind="stable")
        ptr = np.searchsorted(ranks[order], np.arange(self._timeline.plan.num_ranks + 1))
        return rows[order], ptr


__all__ = ["NOUNS", "Stretch", "stretches"]
