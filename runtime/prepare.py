"""Resolves one rank's part of a plan into a `Program`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from charm_sched.errors import PlanError
from charm_sched.plans.items import COPIED, DKV, DQ, KINDS, KV, KV_AXIS, G, Item, O, Q
from charm_sched.plans.plan import TRANSFER, Plan, program
from charm_sched.proof.hazards import Hazards, find_hazards
from charm_sched.runtime.layout import Layout, Window, layout_of, window_in
from charm_sched.runtime.numerics import Precision
from charm_sched.runtime.program import (
    Combine,
    Compute,
    Meeting,
    Program,
    Receive,
    Send,
    Sink,
    Source,
    Step,
    Version,
    visible_pairs,
)
from charm_sched.runtime.tiles import Cutter


def prepare(plan: Plan, rank: int, hazards: Hazards | None = None) -> Program:
    """Resolve one rank's part of a plan.

    Args:
        plan: A verified plan.
        rank: The rank.
        hazards: The plan's hazards, where known already.

    Raises:
        PlanError: The plan reads what is not there, or overwrites what is needed.
    """
    return _Preparation(plan, rank, hazards or find_hazards(plan)).program()


class _Preparation:
    def __init__(self, plan: Plan, rank: int, hazards: Hazards) -> None:
        self.plan, self.rank, self.hazards = plan, rank, hazards
        self.workload = plan.workload
        self.precision = Precision.of(plan.workload)
        self.cut = Cutter(plan.workload.mask_rule, plan.workload.seq_len)
        self.rows = program(plan, rank).tolist()
        self.number = {row: i for i, row in enumerate(self.rows)}
        self.slots: dict[int, int] = defaultdict(int)
        self.versions: list[Version] = []
        self.accesses: dict[tuple[int, int, int, bool], int] = {}
        self.local: dict[int, int] = {}
        self.order: dict[int, int] = {}
        self._find_accesses()

    def program(self) -> Program:
        steps = tuple(self._step(row) for row in self.rows)
        gates = self._gates()
        waits, releases = self._waits(gates)
        return Program(
            plan=self.plan,
            rank=self.rank,
            precision=self.precision,
            steps=steps,
            waits=waits,
            releases=releases,
            gates=gates,
            versions=tuple(self.versions),
            slots=dict(self.slots),
            residents=self._kept() if self.plan.direction == "forward" else {},
            started={str(v.item): i for i, v in enumerate(self.versions) if v.resident},
        )

    def _find_accesses(self) -> None:
        found, hazards = self.hazards.accesses, self.hazards
        for at in np.flatnonzero(found.rank == self.rank).tolist():
            version, writes = int(hazards.version[at]), bool(found.writes[at])
            key = (int(found.row[at]), int(found.kind[at]), int(found.item[at]), writes)
            self.accesses[key] = at
            if version not in self.local:
                self.local[version] = len(self.versions)
                self.versions.append(self._version(at))
                count = 0
            if writes:
                self.order[at] = count
                count += 1

    def _version(self, at: int) -> Version:
        found = self.hazards.accesses
        kind, part, slot = int(found.kind[at]), int(found.part[at]), int(found.slot[at])
        item = self._as_kind(int(found.item[at]), kind, part)
        copied = kind in COPIED
        owned = int(self.plan.item_owner[found.item[at]]) == self.rank
        home = not copied and owned and part == 0
        layout = self._layout([item])
        if not home:
            self._reserve(slot, layout)
        return Version(
            item=item,
            slot=None if home else slot,
            window=self._own_window(item) if home else _whole(item),
            layout=layout,
            copied=copied,
            resident=int(found.row[at]) < 0,
        )

    def _as_kind(self, number: int, kind: int, part: int = 0) -> Item:
        item = self.plan.items[number]
        return Item(KINDS[kind], item.rows, item.heads, part)

    def _layout(self, items: Sequence[Item], finals: Sequence[bool] | None = None) -> Layout:
        return layout_of(items, self.workload, self.precision, finals=finals)

    def _reserve(self, slot: int, layout: Layout) -> None:
        self.slots[slot] = max(self.slots[slot], layout.nbytes)

    def _own_window(self, item: Item) -> Window:
        on_kv = KINDS.index(item.kind) in KV_AXIS
        heads = self.workload.num_kv_heads if on_kv else self.workload.heads
        shard = self.plan.partition.shards[self.rank]
        return window_in(shard, item.rows, (0, heads), item.heads)

    def _step(self, row: int) -> Step:
        columns = self.plan.columns
        start, end = int(columns.ptr[row]), int(columns.ptr[row + 1])
        args = columns.arg[start:end].tolist()
        lead = int(columns.lead[row])
        match int(columns.op[row]):
            case 0:
                return self._transfer(row, args)
            case 1:
                return self._attend(row, args[:lead], args[lead:])
            case _:
                return self._merge(row, args[:lead], args[lead])

    def _transfer(self, row: int, args: list[int]) -> Send | Receive:
        columns = self.plan.columns
        lane = int(columns.stream[row])
        items = [self.plan.items[arg] for arg in args]
        kinds = [int(self.plan.items.kind[arg]) for arg in args]
        start = int(columns.ptr[row])
        finals: list[bool] = self.plan.finals[start : start + len(args)].tolist()
        layout = self._layout(items, finals)
        if columns.rank[row] == self.rank:
            sources = tuple(map(self._source, [row] * len(args), kinds, args))
            return Send(
                row=row, peer=int(columns.peer[row]), lane=lane, sources=sources, layout=layout,
                whole=self._sendable(sources, items, layout),
            )  # fmt: skip
        sinks = tuple(map(self._sink, [row] * len(args), kinds, args))
        return Receive(
            row=row, peer=int(columns.rank[row]), lane=lane, sinks=sinks, layout=layout,
            direct=self._receivable(sinks, layout),
        )  # fmt: skip

    def _sendable(
        self, sources: tuple[Source, ...], items: list[Item], layout: Layout
    ) -> int | None:
        number = sources[0].version
        if len(sources) != 1 or number is None:
            return None
        version = self.versions[number]
        as_it_lies = version.slot is not None and version.item == items[0]
        return number if as_it_lies and version.layout == layout else None

    def _receivable(self, sinks: tuple[Sink, ...], layout: Layout) -> int | None:
        version = self.versions[sinks[0].version]
        if version.layout != layout:
            return None
        if sinks[0].slot is not None:
            return sinks[0].slot
        return version.slot if sinks[0].order == 0 else None

    def _attend(self, row: int, queries: list[int], keys: list[int]) -> Compute:
        backward = self.plan.direction == "backward"
        grads = queries if backward else []
        meetings = tuple(self._meetings(queries, keys))
        return Compute(
            row=row,
            queries=tuple(self._source(row, Q, arg) for arg in queries),
            grads=tuple(self._source(row, G, arg) for arg in grads),
            keys=tuple(self._source(row, KV, arg) for arg in keys),
            meetings=meetings,
            pairs=visible_pairs(meetings, self.cut),
            query_sinks=tuple(self._sink(row, DQ if backward else O, arg) for arg in queries),
            key_sinks=tuple(self._sink(row, DKV, arg) for arg in keys) if backward else (),
        )

    def _meetings(self, queries: list[int], keys: list[int]) -> Iterator[Meeting]:
        items, share = self.plan.items, self.workload.heads_per_kv
        for i, query in enumerate(queries):
            for j, key in enumerate(keys):
                one, other = items[query], items[key]
                if heads := head_runs(one.heads, other.heads, share):
                    yield Meeting(
                        query=i, key=j, heads=heads, query_rows=one.rows, key_rows=other.rows
                    )

    def _merge(self, row: int, args: list[int], output: int) -> Combine:
        items = self.plan.items
        out, kind = items[output], int(items.kind[output])
        return Combine(
            row=row,
            inputs=tuple(self._source(row, int(items.kind[arg]), arg) for arg in args),
            windows=tuple(
                window_in(out.rows, items[arg].rows, out.heads, items[arg].heads) for arg in args
            ),
            sink=self._sink(row, kind, output),
        )

    def _source(self, row: int, kind: int, arg: int) -> Source:
        item = self._as_kind(arg, kind)
        at = self.accesses.get((row, kind, arg, False))
        if at is None:
            return Source(kind=item.kind, version=None, window=self._own_window(item))
        number = self.local[int(self.hazards.version[at])]
        version = self.versions[number]
        window = version.window
        if version.copied:
            holder = version.item
            window = window_in(holder.rows, item.rows, holder.heads, item.heads)
        return Source(kind=item.kind, version=number, window=window)

    def _sink(self, row: int, kind: int, arg: int) -> Sink:
        at = self.accesses[row, kind, arg, True]
        number = self.local[int(self.hazards.version[at])]
        version = self.versions[number]
        slot = None
        if self.hazards.staged[at]:
            slot = int(self.hazards.accesses.slot[at])
            self._reserve(slot, version.layout)
        return Sink(version=number, order=self.order[at], slot=slot, layout=version.layout)

    def _gates(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        columns = self.plan.columns
        batches: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for number, row in enumerate(self.rows):
            if columns.op[row] == TRANSFER:
                batches[int(columns.stream[row])][int(columns.level[row])].append(number)
        gates: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for levels in batches.values():
            order = [tuple(levels[level]) for level in sorted(levels)]
            gates += pairwise(order)
        return tuple(gates)

    def _waits(
        self, gates: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    ) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        waits = [0] * len(self.rows)
        releases: list[list[int]] = [[] for _ in self.rows]
        for before, after in sorted(self._edges()):
            waits[after] += 1
            releases[before].append(after)
        for _, after_gate in gates:
            for number in after_gate:
                waits[number] += 1
        return tuple(waits), tuple(tuple(after) for after in releases)

    def _edges(self) -> set[tuple[int, int]]:
        """Find this rank's waits: the plan's hazards, and the order of each compute stream."""
        columns, edges = self.plan.columns, self.hazards.edges
        arrives = (columns.op[edges.after] == TRANSFER) & ~edges.at_source
        where = np.where(arrives, columns.peer[edges.after], columns.rank[edges.after])
        mine = np.flatnonzero((where == self.rank) & (edges.before != edges.after))
        found = {
            (self.number[before], self.number[after])
            for before, after in zip(
                edges.before[mine].tolist(), edges.after[mine].tolist(), strict=True
            )
        }
        last: dict[int, int] = {}
        for number, row in enumerate(self.rows):
            if columns.op[row] != TRANSFER:
                stream = int(columns.stream[row])
                if stream in last:
                    found.add((last[stream], number))
                last[stream] = number
        return found

    def _kept(self) -> dict[str, int]:
        saved, kept = self.plan.saved, {}
        for at in np.flatnonzero(saved.rank == self.rank).tolist():
            item, slot = self.plan.items[int(saved.item[at])], int(saved.slot[at])
            holders = [i for i, v in enumerate(self.versions) if (v.item, v.slot) == (item, slot)]
            if not holders:
                raise PlanError(
                    f"saved: expected {item} in slot {slot} of rank {self.rank}, "
                    f"but no op puts it there"
                )
            if not self._alive(holders[-1], slot):
                raise PlanError(
                    f"saved: expected {item} in slot {slot} of rank {self.rank} at the end, "
                    f"but it is moved away or overwritten before"
                )
            kept[str(item)] = holders[-1]
        return kept

    def _alive(self, holder: int, slot: int) -> bool:
        """Say whether a version is still in its slot when all ops have ended."""
        hazards, sits = self.hazards, self.hazards.occupancies
        number = next(version for version, local in self.local.items() if local == holder)
        end = int(hazards.end[number])
        moved = bool(hazards.accesses.partial[end] and not hazards.accesses.writes[end])
        here = np.flatnonzero((sits.rank == self.rank) & (sits.slot == slot))
        last = here[np.argmax(sits.first[here])]
        return not moved and int(hazards.version[sits.access[last]]) == number


def head_runs(
    queries: tuple[int, int], keys: tuple[int, int], share: int
) -> tuple[tuple[slice, slice], ...]:
    """Cut the heads that a query and a key item share into runs of equal groups.

    Args:
        queries: Range of query heads.
        keys: Range of KV heads.
        share: Query heads per KV head.

    Returns:
        Runs of query heads and of KV heads, by position in each item. In each run every KV head
        serves equally many of the query heads.

    >>> head_runs((2, 8), (0, 2), 4)
    ((slice(0, 2, None), slice(0, 1, None)), (slice(2, 6, None), slice(1, 2, None)))
    """
    first, last = max(queries[0], keys[0] * share), min(queries[1], keys[1] * share)
    runs: list[tuple[slice, slice]] = []
    while first < last:
        group = first // share
        whole = first % share == 0 and last - first >= share
        groups = (last - first) // share if whole else 1
        end = min((group + groups) * share, last)
        query = slice(first - queries[0], end - queries[0])
        runs.append((query, slice(group - keys[0], group + groups - keys[0])))
        first = end
    return tuple(runs)


def _whole(item: Item) -> Window:
    heads = item.heads[1] - item.heads[0]
    return window_in(item.rows, item.rows, (0, heads), (0, heads))
