"""Attention by heads: ranks of a group exchange rows for heads, and groups pass KV on in rings.

Ranks stand in a grid. The ranks of one grid row are a *group*: each member gets the queries, keys
and values of the group's rows for its own heads (`head_chunks`), and sends outputs or gradients
back to the rows' owners. The ranks of one grid column have the same heads and pass keys and values
on in a ring. One grid row is Ulysses, one grid column is Ring-Attention.

Chunks that share KV heads go round together, so that no KV travels twice. Streams: ``exchange``
(to who computes), ``ring`` and ``gradients`` (KV and dKV around the ring) and ``results`` (home).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.errors import StrategyError
from charm_sched.partition import Rows
from charm_sched.planners.begun import Begun
from charm_sched.planners.head_chunks import Heads, KeyHeads, chunk_heads
from charm_sched.planners.slots import Slots, padded
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import HOME

Operands = list[tuple[int, int]]


def write_head_exchange(b: Builder, grid: Ints, *, chunks: int, save: bool) -> None:
    """Write attention by heads.

    Args:
        b: The builder.
        grid: Ranks, ``[steps of the ring, members of a group]``.
        chunks: Chunks of each member's heads, exchanged one while another is attended.
        save: Forward: keep what is exchanged resident for the backward, which then moves no
            queries, and KV in the ring alone.

    Raises:
        StrategyError: ``chunks`` below 1.
    """
    if chunks < 1:
        raise StrategyError(f"chunks: expected 1 or more, found {chunks}")
    _HeadExchange(b, grid, chunks, save=save).write()


class _HeadExchange:
    """Writes one pass.

    Slots: what is exchanged has buffers for the chunks of one run, and a second set for the next
    run; the ring has two sets, as in `ring`.
    """

    def __init__(self, b: Builder, grid: Ints, chunks: int, *, save: bool) -> None:
        self.b, self.grid = b, grid
        self.steps, self.members = grid.shape
        self.backward = b.direction == "backward"
        self.save = save and not self.backward
        work = b.workload
        self.heads = chunk_heads(work.heads, work.num_kv_heads, self.members, chunks)
        # Of each chunk: the number of its run, and its place there.
        self.run = [run for run, members in enumerate(self.heads.runs) for _ in members]
        self.place = [place for members in self.heads.runs for place, _ in enumerate(members)]
        self.row, self.member = np.zeros((2, b.num_ranks), np.int64)
        for row, ranks in enumerate(grid):
            self.row[ranks], self.member[ranks] = row, np.arange(self.members)
        self.before = grid[(self.row - 1) % self.steps, self.member]  # in its ring
        self.items: dict[tuple[str, int, Heads], int] = {}
        self.slots = Slots(b)
        self.begun = Begun(b)
        self.levels: Counter[str] = Counter()
        self.resident: dict[tuple[int, str, Rows], list[Heads]] = {}
        for rank, item, _ in b.saved:
            self.resident.setdefault((rank, item.kind, item.rows), []).append(item.heads)

    def write(self) -> None:
        """Write all operations."""
        for run in self.heads.runs:
            for chunk in run:
                self._exchange(chunk)
            for step in range(self.steps):
                if self.backward and step:
                    self._pass_gradients(run, step)
                for chunk in run:
                    self._attend(chunk, step)
                    if step == self.steps - 1:
                        self._return_queries(chunk)
                if step < self.steps - 1:
                    self._pass_keys(run, step)
            if self.backward:
                if self.steps > 1:
                    self._pass_gradients(run, self.steps)
                self._return_keys(run)

    def _next_level(self, stream: str) -> int:
        self.levels[stream] += 1
        return self.levels[stream] - 1

    def _item(self, kind: str, owner: int, heads: Heads) -> int:
        key = (kind, owner, heads)
        if key not in self.items:
            self.items[key] = self.b.item(kind, self.b.partition.shards[owner], heads)
        return self.items[key]

    def _owner(self, rank: int, distance: int, step: int = 0) -> int:
        """Give the member at a distance before a rank, of the group ``step`` rows before it."""
        row = (self.row[rank] - step) % self.steps
        return int(self.grid[row, (self.member[rank] - distance) % self.members])

    def _queries(self, rank: int, chunk: int) -> Heads | None:
        return self.heads.queries[self.member[rank]][chunk]

    def _arrivals(self, rank: int, chunk: int) -> tuple[KeyHeads, ...]:
        return self.heads.arrivals[self.member[rank]][chunk]

    def _is_resident(self, rank: int, kind: str, owner: int, heads: Heads) -> bool:
        runs = self.resident.get((rank, kind, self.b.partition.shards[owner]), ())
        return any(low <= heads[0] and heads[1] <= high for low, high in runs)

    def _exchange(self, chunk: int) -> None:
        """Bring the group's rows for a chunk of heads to the rank that computes them."""
        b = self.b
        for distance in range(1, self.members):
            src = [self._owner(rank, distance) for rank in range(b.num_ranks)]
            wanted = [self._wanted(rank, src[rank], chunk, distance) for rank in range(b.num_ranks)]
            items, slots = padded(wanted)
            b.transfer(
                src=src, dst=b.ranks, items=items, level=chunk, stream="exchange", slot=slots
            )
            if self.save:
                ranks = np.broadcast_to(b.ranks[:, None], items.shape)
                b.keep(rank=ranks.ravel(), items=items.ravel(), slot=slots.ravel())

    def _wanted(self, rank: int, owner: int, chunk: int, distance: int) -> Operands:
        """List what a rank gets from an owner for a chunk."""
        bank = self.run[chunk] if self.save else self.run[chunk] % 2
        name = (bank, self.place[chunk], distance)
        wanted: list[tuple[str, Heads, int]] = []
        queries = self._queries(rank, chunk)
        if queries:
            kinds = ("q", "g") if self.backward else ("q",)
            wanted += [(kind, queries, self.slots(kind, *name)) for kind in kinds]
        for key in self._arrivals(rank, chunk):
            wanted.append(("kv", key.heads, self.slots("kv", *name, key.place)))
        return [
            (self._item(kind, owner, heads), slot)
            for kind, heads, slot in wanted
            if not self._is_resident(rank, kind, owner, heads)
        ]

    def _attend(self, chunk: int, step: int) -> None:
        """Attend a chunk's queries to the keys that the ring brought at a step."""
        ranks = range(self.b.num_ranks)
        queries, query_slots = padded([self._attend_queries(rank, chunk) for rank in ranks])
        keys, key_slots = padded([self._attend_keys(rank, chunk, step) for rank in ranks])
        self.b.attend(
            rank=self.b.ranks, queries=queries, keys=keys, query_slot=query_slots,
            key_slot=key_slots,
        )  # fmt: skip
        if self.begun.needed:
            kind = "dq" if self.backward else "o"
            results, _ = padded([self._attend_queries(rank, chunk, kind) for rank in ranks])
            added, _ = padded([self._attend_keys(rank, chunk, step, "dkv") for rank in ranks])
            self.begun.attend(
                queries, keys, results=results, gradients=added if self.backward else None
            )

    def _attend_queries(self, rank: int, chunk: int, kind: str = "q") -> Operands:
        heads = self._queries(rank, chunk)
        name = (self.run[chunk] % 2, self.place[chunk])
        return [
            (
                self._item(kind, self._owner(rank, distance), heads),
                self.slots("sum", *name, distance) if distance else HOME,
            )
            for distance in range(self.members if heads else 0)
            if heads
        ]

    def _attend_keys(self, rank: int, chunk: int, step: int, kind: str = "kv") -> Operands:
        return [
            (
                self._item(kind, self._owner(rank, distance, step), key.heads),
                self._gradient_slot(chunk, step, distance, key),
            )
            for distance in range(self.members)
            for key in self.heads.keys[self.member[rank]][chunk]
        ]

    def _gradient_slot(self, chunk: int, step: int, distance: int, key: KeyHeads) -> int:
        """Say where a kernel adds its dKV: to what is here, or beside what the ring brings."""
        if not self.backward or (step == 0 and distance == 0):
            return HOME
        name = (self.place[key.chunk], distance, key.place)
        if step == 0:
            return self.slots("dkv", self.run[chunk] * self.steps % 2, *name)
        return self.slots("kernel", self.place[chunk], *name)

    def _pass_keys(self, run: Sequence[int], step: int) -> None:
        """Pass on in the ring what was attended at a step."""
        for chunk in run:
            bank = (self.run[chunk] * (self.steps - 1) + step + 1) % 2
            self._pass_on("kv", "ring", chunk, step + 1, ("ring", bank))

    def _pass_gradients(self, run: Sequence[int], step: int) -> None:
        """Pass on the dKV of what is attended at a step; behind the last step it is at home."""
        for chunk in run:
            bank = (self.run[chunk] * self.steps + step) % 2
            home = step == self.steps
            name = ("returned", self.run[chunk] % 2) if home else ("dkv", bank)
            self._pass_on("dkv", "gradients", chunk, step, name, home=home)

    def _pass_on(
        self, kind: str, stream: str, chunk: int, step: int, name: tuple[str, int], *,
        home: bool = False,
    ) -> None:  # fmt: skip
        """Receive from the rank before in the ring what is attended at a step."""
        rows = [
            [
                (
                    self._item(kind, self._owner(rank, distance, step), key.heads),
                    HOME
                    if home and not distance
                    else self.slots(*name, self.place[chunk], distance, key.place),
                )
                for distance in range(self.members)
                for key in self._arrivals(rank, chunk)
            ]
            for rank in range(self.b.num_ranks)
        ]
        items, slots = padded(rows)
        if kind == "dkv":
            items = self.begun.move(self.before, self.b.ranks, items)
        self.b.transfer(
            src=self.before, dst=self.b.ranks, items=items, level=self._next_level(stream),
            stream=stream, slot=slots,
        )  # fmt: skip

    def _return_queries(self, chunk: int) -> None:
        """Send what the queries of a chunk became back to their owners."""
        kind = "dq" if self.backward else "o"
        level = self._next_level("results")
        for distance in range(1, self.members):
            owners = [self._owner(rank, distance) for rank in range(self.b.num_ranks)]
            heads = [self._queries(rank, chunk) for rank in range(self.b.num_ranks)]
            items = [
                self._item(kind, owner, run) if run else HOME
                for owner, run in zip(owners, heads, strict=True)
            ]
            sent = self.begun.move(self.b.ranks, np.array(owners), np.array(items))
            self.b.transfer(src=self.b.ranks, dst=owners, items=sent, level=level, stream="results")

    def _return_keys(self, run: Sequence[int]) -> None:
        """Send the dKV of a run's chunks back to the owners."""
        for chunk in run:
            level = self._next_level("results")
            for distance in range(1, self.members):
                owners = [self._owner(rank, distance) for rank in range(self.b.num_ranks)]
                items, slots = padded(
                    [
                        [
                            (self._item("dkv", owner, key.heads), self._home_slot(key, distance))
                            for key in self._arrivals(rank, chunk)
                        ]
                        for rank, owner in enumerate(owners)
                    ]
                )
                items = self.begun.move(self.b.ranks, np.array(owners), items)
                self.b.transfer(
                    src=self.b.ranks, dst=owners, items=items, level=level, stream="results",
                    slot=slots,
                )  # fmt: skip

    def _home_slot(self, key: KeyHeads, distance: int) -> int:
        """Say where an owner puts dKV: several members' shares of one head do not wait in line."""
        if key.heads not in self.heads.replicated:
            return HOME
        return self.slots("share", self.run[key.chunk] % 2, distance, key.place)
