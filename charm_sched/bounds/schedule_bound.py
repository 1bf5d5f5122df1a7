"""The bound of every schedule, whatever it moves and wherever it computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Bools, Floats, Ints
from charm_sched.bounds.bound import (
    COMPUTATION,
    Bound,
    Cut,
    best_rate,
    choose_devices,
    cut_of,
    delay_out,
    families,
)
from charm_sched.bounds.cuts import CutGraph, cut_graph, narrowest
from charm_sched.bounds.envelopes import Curve, Hull, Owner, Prices, Total, complete, largest
from charm_sched.errors import WorkloadError
from charm_sched.masks.mask import area
from charm_sched.partition import Partition, count_rows
from charm_sched.plans.items import KINDS
from charm_sched.plans.plan import DIRECTIONS

if TYPE_CHECKING:
    from charm_sched.bounds.demands import Saved
    from charm_sched.masks.segments import Segment
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload

_STEPS = 60  # of halving an interval of time
_MEANS = (1 / 3, 1 / 2, 2 / 3)
"""Weights of what comes in beside what goes out: both ways take no longer than the longer of them.
With a third to two thirds it is no gain to collect results of twice the bytes for others."""
_ROUNDING = 1e-9  # of what crosses a cut at most: so much may be left of a difference that is 0


def bound(
    topology: Topology,
    workload: Workload,
    *,
    direction: str = "forward",
    partition: str | Partition | None = None,
    ranks: int | None = None,
    devices: Sequence[str] | None = None,
    saved: Saved = (),
) -> Bound:
    """Bound the time of any schedule: any operands may move, anybody may compute anything.

    What is taken for granted: a token's q, k, v, output and gradients belong to one rank; ranks own
    as many tokens as the partition says, no matter which; work runs at the best rate of each
    device's profile, with the overhead of one kernel on every device that works at all.

    The longest of these:

    * All work over all rates.
    * For each set S that is a device or a domain: S does a share w of the work, at its rate, and
      the others do the rest at theirs. What S then at least has to bring in and send out crosses
      the cut around S after its least latency: foreign queries and keys (`envelopes`), and the
      results of foreign queries and keys, each row once. The best w counts. Each direction is
      bound by what the graph lets through between S and the others; on half duplex links both
      together as well.

    Of sets that look alike in the graph one is taken.

    Args:
        topology: The machine.
        workload: What is computed.
        direction: ``forward`` or ``backward``.
        partition: How many tokens each rank owns. None for any partition into shards of up to
            2 ceil(tokens / 2 ranks): all those with a name.
        ranks: That many devices, spread evenly over the top-level domains.
        devices: These devices, in this order. Not together with ``ranks``.
        saved: (rank, item, slot) of what is resident when the backward begins.

    Raises:
        WorkloadError: An unknown direction or partition, or both ``ranks`` and ``devices``.
        TopologyError: Unknown devices, or no rate for the dtype.
    """
    chosen = choose_devices(topology, ranks, devices)
    if direction not in DIRECTIONS:
        raise WorkloadError(f"direction: expected forward or backward, found {direction!r}")
    task = _task(topology, workload, direction, chosen, partition, saved)
    return _Search(topology, task).run()


@dataclass(frozen=True, eq=False, kw_only=True)
class _Task:
    """What is to be done, by whom.

    Attributes:
        devices: The device of each rank.
        flops: FLOPs in all.
        pairs: Unmasked pairs per query head.
        rate: FLOP/s of each rank.
        overhead: Seconds of one kernel on each rank.
        tokens: Tokens that each rank owns at most.
        resident: Bytes of (queries, keys) that are foreign to each rank but there from the start.
        ordered: The mask shows no key after the query.
        operand: Bytes of (a query in all query heads, a key in all KV heads) that works abroad.
        result: Bytes of (the result of such a query, of such a key) that is added to.
        final: The same of one that is not (`plans.finals`).
        reflexive: The mask shows every token itself.
    """

    devices: tuple[str, ...]
    workload: Workload
    flops: float
    pairs: int
    rate: Floats
    overhead: Floats
    tokens: Ints
    resident: Floats
    ordered: bool
    operand: tuple[float, float]
    result: tuple[float, float]
    final: tuple[float, float]
    reflexive: bool

    def done(self, inside: Bools, seconds: float) -> float:
        """Give the FLOPs that a set of ranks can do in some seconds."""
        left = np.maximum(seconds - self.overhead[inside], 0.0)
        return float((self.rate[inside] * left).sum())

    def owner(self, inside: Bools) -> Owner:
        length = self.workload.seq_len
        own = min(int(self.tokens[inside].sum()), length)
        return Owner(own=own, foreign=length - own, ordered=self.ordered)

    def prices(self, into: float, out: float) -> Prices:
        """Give the costs of what comes to a set, at so much per byte that comes in and goes out.

        A result is final where nobody outside has a part in it, or where that part came in before.
        Where a token sees itself, somebody outside has a part in the result of a query without its
        key, and of a key without its query.
        """
        final = [size * out for size in self.final]
        added = [
            min(partial * out, least + partial * into)
            for partial, least in zip(self.result, final, strict=True)
        ]
        results = added if self.reflexive else final
        query, key = (
            operand * into + result for operand, result in zip(self.operand, results, strict=True)
        )
        return Prices(query=query, key=key, both=sum(self.operand) * into + sum(final))


def _task(
    topology: Topology,
    workload: Workload,
    direction: str,
    devices: tuple[str, ...],
    partition: str | Partition | None,
    saved: Saved,
) -> _Task:
    rates: dict[int, float] = {}
    for name in devices:
        profile = topology.device(name).compute
        if id(profile) not in rates:
            rates[id(profile)] = best_rate(topology, name, workload, direction)
    profiles = [topology.device(name).compute for name in devices]
    everything = (np.zeros(1, np.int64), np.full(1, workload.seq_len))
    pairs = int(area(workload.mask_rule, workload.seq_len, everything, everything)[0])
    sizes, finals = (
        {
            kind: workload.row_bytes(kind, final=final)
            * (workload.num_kv_heads if kind in ("kv", "dkv") else workload.heads)
            for kind in KINDS
        }
        for final in (False, True)
    )
    segments = workload.mask_rule.segments(workload.seq_len)
    forward = direction == "forward"
    return _Task(
        devices=devices,
        workload=workload,
        flops=float(workload.flops_per_pair(direction) * workload.heads) * pairs,
        pairs=pairs,
        rate=np.array([rates[id(profile)] for profile in profiles]),
        overhead=np.array([profile.overhead for profile in profiles]),
        tokens=_tokens(workload, partition, len(devices)),
        resident=_resident(workload, () if forward else saved, len(devices)),
        ordered=all(segment.upper.slides and segment.upper.offset <= 1 for segment in segments),
        operand=(sizes["q"] + (0 if forward else sizes["g"]), sizes["kv"]),
        result=(sizes["o"], 0) if forward else (sizes["dq"], sizes["dkv"]),
        final=(finals["o"], 0) if forward else (finals["dq"], finals["dkv"]),
        reflexive=sum(s.last - s.first for s in segments if _sees_itself(s)) == workload.seq_len,
    )


def _sees_itself(segment: Segment) -> bool:
    """Say whether every row of a segment sees its own token."""
    last = segment.last - 1
    ends = ((segment.lower(row), row, segment.upper(row)) for row in (segment.first, last))
    return all(low <= row < high for low, row, high in ends)


def _tokens(workload: Workload, partition: str | Partition | None, ranks: int) -> Ints:
    if isinstance(partition, str):
        partition = Partition.of(partition, workload, ranks)
    if partition is None:
        return np.full(ranks, 2 * math.ceil(workload.seq_len / (2 * ranks)))
    if (partition.seq_len, partition.num_ranks) != (workload.seq_len, ranks):
        raise WorkloadError(
            f"partition: expected {workload.seq_len} tokens on {ranks} ranks, "
            f"found {partition.seq_len} on {partition.num_ranks}"
        )
    return np.array([count_rows(shard) for shard in partition.shards], np.int64)


def _resident(workload: Workload, saved: Saved, ranks: int) -> Floats:
    found = np.zeros((ranks, 2))
    for rank, item, _ in saved:
        heads = item.heads[1] - item.heads[0]
        found[rank, int(item.kind == "kv")] += (
            count_rows(item.rows) * heads * workload.row_bytes(item.kind)
        )
    return found


@dataclass(frozen=True, eq=False, kw_only=True)
class _Way:
    """A cut around a set S, one way or both, and what crosses it.

    Attributes:
        graph: What it is a cut of.
        inside: The vertices on the side that bytes leave.
        total: Seconds that crossing takes, by the share of the work that S does.
    """

    graph: CutGraph
    inside: Bools
    total: Total | Hull


@dataclass(frozen=True, eq=False, kw_only=True)
class _Side:
    """A set S, and the seconds that its cut takes as corners over the share that S does."""

    inside: Bools
    ways: tuple[_Way, ...]
    share: Floats
    seconds: Floats
    latency: float

    def least(self, low: float, high: float) -> tuple[float, float]:
        """Give the least seconds, without latency, over the shares from low to high, and where."""
        ends = np.array([low, high])
        among = (self.share > low) & (self.share < high)
        share = np.concatenate([ends, self.share[among]])
        seconds = np.concatenate([np.interp(ends, self.share, self.seconds), self.seconds[among]])
        at = int(seconds.argmin())
        return float(seconds[at]), float(share[at])


class _Search:
    """Looks for the set that takes longest."""

    def __init__(self, topology: Topology, task: _Task) -> None:
        self._topology, self._task = topology, task
        self._graph = cut_graph(topology, task.devices)
        half_duplex = any(link.shared for link in topology.links)
        self._both = cut_graph(topology, task.devices, both=True) if half_duplex else None

    def run(self) -> Bound:
        """Give the bound."""
        task, binding = self._task, None
        everyone = np.ones(len(task.devices), np.bool_)
        work = first_time(lambda seconds: task.done(everyone, seconds) >= task.flops)
        seconds = work
        sides = [self._side(inside) for inside in self._sets()]
        for side in sides:
            if self._needs(side, seconds) > seconds:
                seconds = first_time(partial(self._enough, side), seconds)
                binding = side
        needs = [self._needs(side, seconds * (1 + _ROUNDING)) for side in sides]
        alone = binding is not None and needs[sides.index(binding)] == 0
        if (binding is None or alone) and max(needs, default=0.0) > 0:
            binding = sides[int(np.argmax(needs))]
        cut = self._cut(binding, seconds) if binding and max(needs, default=0.0) > 0 else None
        reason = f"{COMPUTATION} on all devices"
        if alone:
            reason = f"{COMPUTATION} where the tokens are: it takes longer to send them"
        elif cut and seconds > work:
            reason = cut.words
        return Bound(
            seconds=seconds,
            reason=reason,
            cut=cut,
            compute=work,
            communication=max(needs, default=0.0),
        )

    def _enough(self, side: _Side, seconds: float) -> bool:
        return self._needs(side, seconds) <= seconds

    def _needs(self, side: _Side, seconds: float) -> float:
        """Give what the cut takes at least when both sides compute for so long."""
        least, _ = side.least(*self._shares(side, seconds))
        return least + side.latency if least > _ROUNDING * side.seconds.max() else 0.0

    def _shares(self, side: _Side, seconds: float) -> tuple[float, float]:
        """Give the least and the largest share that S can do in some seconds."""
        task = self._task
        high = min(task.done(side.inside, seconds) / task.flops, 1.0)
        low = max(1.0 - task.done(~side.inside, seconds) / task.flops, 0.0)
        return min(low, high), high

    def _sets(self) -> Iterator[Bools]:
        task = self._task
        index = {name: rank for rank, name in enumerate(task.devices)}
        colours = self._graph.colours()[: len(task.devices)]
        seen = set()
        for domain in families(self._topology.domains(task.devices)):
            members = np.array([index[name] for name in domain.devices])
            look = (
                np.sort(colours[members]).tobytes(),
                int(task.tokens[members].sum()),
                task.resident[members].sum(0).tobytes(),
                float(task.rate[members].sum()),
            )
            if look not in seen:
                seen.add(look)
                inside = np.zeros(len(task.devices), np.bool_)
                inside[members] = True
                yield inside

    def _side(self, inside: Bools) -> _Side:
        ranks, others = np.flatnonzero(inside), np.flatnonzero(~inside)
        out = narrowest(self._graph, ranks, others)
        into = narrowest(self._graph, others, ranks)
        pace_in, pace_out = (1 / self._graph.leaving(vertices) for vertices in (into, out))
        ways = [
            _Way(graph=self._graph, inside=into, total=self._total(inside, pace_in, 0.0)),
            _Way(graph=self._graph, inside=out, total=self._total(inside, 0.0, pace_out)),
        ]
        if self._both:
            around = narrowest(self._both, ranks, others)
            pace = 1 / self._both.leaving(around)
            total = self._total(inside, pace, pace)
            ways.append(_Way(graph=self._both, inside=around, total=total))
        means = [self._total(inside, part * pace_in, (1 - part) * pace_out) for part in _MEANS]
        share, seconds = largest([*(way.total for way in ways), *means])
        delays = [delay_out(self._topology, self._task.devices, s) for s in (inside, ~inside)]
        return _Side(
            inside=inside, ways=tuple(ways), share=share, seconds=seconds, latency=min(delays)
        )

    def _total(self, inside: Bools, into: float, out: float) -> Total | Hull:
        """Give the seconds of a cut by the share of S, at so many seconds per byte in and out."""
        task, length = self._task, self._task.workload.seq_len
        if task.pairs < length**2 or task.resident.any():
            return Total(
                one=self._curve(inside, into, out),
                other=self._curve(~inside, out, into).mirrored(),
            )
        most = task.owner(inside).own, task.owner(~inside).own
        return complete(length, most, task.prices(into, out), task.prices(out, into))

    def _curve(self, inside: Bools, into: float, out: float) -> Curve:
        """Give the seconds of what a set has to bring in and send out, by the share it does."""
        task = self._task
        owner = task.owner(inside)
        slope, offset = owner.tangents(task.prices(into, out))
        there = np.minimum(task.resident[inside].sum(0), owner.foreign * np.array(task.operand))
        offset = offset - float(there.sum()) * into
        return Curve(
            slope=np.concatenate([[0.0], slope * task.pairs]),
            offset=np.concatenate([[0.0], offset]),
        )

    def _cut(self, side: _Side, seconds: float) -> Cut:
        """Put the cut around a set into words: the way that takes longest."""
        _, share = side.least(*self._shares(side, seconds))
        times = [float(way.total(np.array([share]))[0]) for way in side.ways]
        longest = int(np.argmax(times))
        way = side.ways[longest]
        crossing = times[longest] * way.graph.leaving(way.inside)
        what = (crossing, "operands and results")
        return cut_of(self._topology, self._task.devices, way.graph, way.inside, what)


def first_time(enough: Callable[[float], bool], least: float = 0.0) -> float:
    """Give the first time at which something holds from then on, rounded down; above ``least``."""
    late = max(2 * least, 1e-9)
    while not enough(late):
        least, late = late, 2 * late
    for _ in range(_STEPS):
        middle = (least + late) / 2
        least, late = (least, middle) if enough(middle) else (middle, late)
    return least
