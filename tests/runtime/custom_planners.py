"""Strategies written to use features of plans that the shipped ones leave out; none is fast."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import count

import numpy as np

from charm_sched.partition import Rows, split_rows
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import HOME


def query_moving(b: Builder) -> None:
    """Send queries to the keys, and the partial results back."""
    n, r = b.num_ranks, b.ranks
    q, kv, g = b.shards("q"), b.shards("kv"), b.shards("g")
    back = b.shards("o" if b.direction == "forward" else "dq")
    b.attend(rank=r, queries=q, keys=kv)
    for t in range(1, n):
        src = (r - t) % n
        moved = [q[src]] if b.direction == "forward" else [q[src], g[src]]
        slots = [[10 * t + i for i in range(len(moved))]]
        b.transfer(
            src=src, dst=r, items=list(zip(*moved, strict=True)), level=t, stream="out", slot=slots
        )
        b.attend(rank=r, queries=q[src], keys=kv, query_slot=10 * t + 5)
        seen = b.areas(q[src], kv) > 0
        b.transfer(
            src=r, dst=src, items=np.where(seen, back[src], -1), level=t, stream="back",
            slot=10 * t + 6 if t % 2 else HOME,
        )  # fmt: skip


def scattered(b: Builder, *, seed: int) -> None:
    """Let any rank compute anything: all features of plans at random."""
    _Scattered(b, random.Random(seed)).write()


class _Scattered:
    """Draws pieces, head ranges, who computes what, routes, slots, staging, parts and messages."""

    def __init__(self, b: Builder, draw: random.Random) -> None:
        self.b, self.draw = b, draw
        self.slot, self.level = count(), count()
        self.queries = self._cut(b.workload.heads)
        self.keys = self._cut(b.workload.num_kv_heads)
        self.holders: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.partials: dict[tuple[int, str, int], set[int]] = defaultdict(set)

    def _cut(self, heads: int) -> list[tuple[int, Rows, tuple[int, int]]]:
        """Cut every shard into pieces of rows and heads: (owner, rows, heads)."""
        pieces = []
        for owner, shard in enumerate(self.b.partition.shards):
            for rows in split_rows(shard, self.draw.randint(1, 2)):
                middle = self.draw.randint(0, heads - 1)
                runs = [run for run in ((0, middle), (middle, heads)) if run[0] < run[1]]
                pieces += [(owner, rows, run) for run in runs if rows]
        return pieces

    def write(self) -> None:
        jobs = [(query, keys) for query in range(len(self.queries)) for keys in self._groups(query)]
        self.draw.shuffle(jobs)
        for query, keys in jobs:
            self._attend(self.draw.randrange(self.b.num_ranks), query, keys)
        self._bring_home()

    def _groups(self, query: int) -> list[list[int]]:
        """Deal the keys that a query sees into sets."""
        seen = [key for key in range(len(self.keys)) if self._meet(query, key)]
        self.draw.shuffle(seen)
        groups = []
        while seen:
            size = self.draw.randint(1, 3)
            groups.append(seen[:size])
            seen = seen[size:]
        return groups

    def _meet(self, query: int, key: int) -> bool:
        (_, rows, heads), (_, others, kv_heads) = self.queries[query], self.keys[key]
        share = self.b.workload.heads_per_kv
        if max(heads[0], kv_heads[0] * share) >= min(heads[1], kv_heads[1] * share):
            return False
        one, other = self.b.item("q", rows, heads), self.b.item("kv", others, kv_heads)
        return bool(self.b.areas([one], [other])[0])  # type: ignore[arg-type]

    def _attend(self, rank: int, query: int, keys: list[int]) -> None:
        b, backward = self.b, self.b.direction == "backward"
        kinds = ("q", "g") if backward else ("q",)
        self._bring(rank, kinds, query, self.queries[query])
        for key in keys:
            self._bring(rank, ("kv",), key, self.keys[key])
        part = self.draw.choice((0, 0, 1, 2))
        query_slot = self._contribution(rank, "dq" if backward else "o", query, part)
        key_slots = [
            self._contribution(rank, "dkv", key, part) if backward else HOME for key in keys
        ]
        b.attend(
            rank=rank,
            queries=b.item("q", *self.queries[query][1:]),
            keys=[[b.item("kv", *self.keys[key][1:]) for key in keys]],
            part=part, stream=self.draw.choice(("one", "two")),
            query_slot=query_slot, key_slot=[key_slots],
        )  # fmt: skip

    def _bring(
        self,
        rank: int,
        kinds: tuple[str, ...],
        number: int,
        piece: tuple[int, Rows, tuple[int, int]],
    ) -> None:
        """Copy a piece to a rank from any rank that has it, alone or as its whole shard."""
        owner, rows, heads = piece
        have = self.holders[kinds[0], number]
        if rank == owner or rank in have:
            return
        source = self.draw.choice([owner, *have])
        items = [self.b.item(kind, rows, heads) for kind in kinds]
        alike = [i for i, other in enumerate(self._pieces(kinds[0])) if other[0] == owner]
        fresh = all(rank not in self.holders[kinds[0], i] for i in alike)
        if source == owner and fresh and self.draw.random() < 0.4:
            items = [self.b.item(kind, self.b.partition.shards[owner]) for kind in kinds]
            for i in alike:
                self.holders[kinds[0], i].append(rank)
        else:
            have.append(rank)
        self.b.transfer(
            src=source, dst=rank, items=[items], level=next(self.level),
            stream=self.draw.choice(("north", "south")), slot=[[next(self.slot) for _ in items]],
        )  # fmt: skip

    def _pieces(self, kind: str) -> list[tuple[int, Rows, tuple[int, int]]]:
        return self.keys if kind == "kv" else self.queries

    def _contribution(self, rank: int, kind: str, number: int, part: int) -> int:
        """Give the slot of one more contribution to a partial result."""
        parts = self.partials[rank, kind, number]
        owner = self._result_pieces(kind)[number][0]
        first = part not in parts and (part or rank != owner)
        parts.add(part)
        return next(self.slot) if first or self.draw.random() < 0.5 else HOME

    def _result_pieces(self, kind: str) -> list[tuple[int, Rows, tuple[int, int]]]:
        return self.keys if kind == "dkv" else self.queries

    def _bring_home(self) -> None:
        todo = list(self.partials)
        self.draw.shuffle(todo)
        for rank, kind, number in todo:
            owner, rows, heads = self._result_pieces(kind)[number]
            extra = sorted(self.partials[rank, kind, number] - {0})
            if extra:
                slot = self._contribution(rank, kind, number, 0)
                self.b.merge(
                    rank=rank, inputs=[[self.b.item(kind, rows, heads, part) for part in extra]],
                    output=self.b.item(kind, rows, heads), slot=slot,
                    stream=self.draw.choice(("one", "two")),
                )  # fmt: skip
            if rank != owner:
                self.b.transfer(
                    src=rank, dst=owner, items=self.b.item(kind, rows, heads),
                    level=next(self.level), stream=self.draw.choice(("north", "south")),
                    slot=next(self.slot) if self.draw.random() < 0.5 else HOME,
                )  # fmt: skip
