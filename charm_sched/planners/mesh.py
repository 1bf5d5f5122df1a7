"""Mesh: every rank attends a tile of queries and keys instead of a row of it.

Mesh-Attention (arXiv:2512.20968): P ranks form a grid. A rank gathers the queries of its grid row
and the keys and values of its grid column, attends that tile, and sends partial results back to
their owners. A tile of R x C shards, R C = P, costs R - 1 times q and o and C - 1 times kv, about
1 / sqrt(P) of what a ring moves; R = 1 is an all-gather of KV.

Queries and KV go round their row and their column in rings, each on a stream of its own, and a rank
attends what has arrived: other ranks' queries first, so that their results leave early, its own
last (`order_tile`; the paper searches this order greedily, too). What nobody further on needs is
not passed on. Everything gathered stays in a buffer of its own: the price is memory, as in the
paper. Results go straight to their owners, where they wait in buffers until the owner is done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from charm_sched.arrays import Bools, Ints
from charm_sched.planners.hierarchy import Tree
from charm_sched.planners.machine import machine_of
from charm_sched.planners.slots import Slots
from charm_sched.planners.tiles import Tile, choose_tile, order_tile
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import HOME


def mesh(
    b: Builder, *, tile_rows: int = 0, neighbours: str = "auto", domains: Tree | None = None
) -> None:
    """Write Mesh-Attention.

    Args:
        b: The builder.
        tile_rows: Query shards of a tile; it has ranks / tile_rows key shards. 0 means the shape
            that keeps the busiest tier busy for the shortest time.
        neighbours: What neighbouring ranks gather, ``queries`` or ``keys``; ``auto`` means
            whichever is better so.
        domains: Nested ranks, instead of the topology's domains.

    Raises:
        StrategyError: ``tile_rows`` does not divide the ranks, unknown ``neighbours``, or
            ``domains`` that are not the ranks.
    """
    machine = machine_of(b, domains)
    tile = choose_tile(b, machine, tile_rows, neighbours)
    _Mesh(b, tile).write(order_tile(b, machine, tile))


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two things that a rank gathers.

    Attributes:
        before: Rank at each distance before each rank in its ring, ``[distance, ranks]``.
        after: The same behind it.
        needs: Whether a rank's tile uses what an owner of its ring has, ``[owner, rank]``.
        kinds: Items that travel together.
        result: What comes back.
        stream: Name of the stream that brings them.
        back: Name of the stream that returns results.
    """

    before: Ints
    after: Ints
    needs: Bools
    kinds: tuple[str, ...]
    result: str
    stream: str
    back: str


class _Mesh:
    """Writes one pass."""

    def __init__(self, b: Builder, tile: Tile) -> None:
        self.b, self.slots = b, Slots(b)
        backward = b.direction == "backward"
        q, kv = b.shards("q"), b.shards("kv")
        seen = b.areas(q[:, None], kv) > 0
        rows, columns = tile.ring("queries"), tile.ring("keys")
        self.queries = _Side(
            before=rows, after=rows[-np.arange(len(rows))],
            needs=np.asarray(seen[:, columns].any(axis=1)),
            kinds=("q", "g") if backward else ("q",), result="dq" if backward else "o",
            stream="queries", back="query-results",
        )  # fmt: skip
        self.keys = _Side(
            before=columns, after=columns[-np.arange(len(columns))],
            needs=np.asarray(seen[rows].any(axis=0)).T,
            kinds=("kv",), result="dkv", stream="keys", back="key-results",
        )  # fmt: skip

    def write(self, order: list[tuple[int, list[int]]]) -> None:
        """Write the gathering, the tile's kernels in order, and the returns."""
        self._gather(self.queries)
        self._gather(self.keys)
        q, kv = self.b.shards("q"), self.b.shards("kv")
        for row, columns in order:
            self.b.attend(
                rank=self.b.ranks,
                queries=q[self.queries.before[row]],
                keys=kv[self.keys.before[columns]].T,
                query_slot=self._sum_slot("query", row),
                key_slot=np.array([[self._sum_slot("key", column) for column in columns]]),
            )
        self._give_back(self.queries)
        if self.b.direction == "backward":
            self._give_back(self.keys)

    def _sum_slot(self, what: str, distance: int) -> int:
        return self.slots(what, "sum", distance) if distance else HOME

    def _gather(self, side: _Side) -> None:
        """Pass items on in the ring as far as somebody needs them."""
        b, hops = self.b, len(side.before)
        items = np.stack([b.shards(kind) for kind in side.kinds], axis=1)  # [owner, kind]
        for hop in range(1, hops):
            owner = side.before[hop]
            further = side.after[: hops - hop]  # the receiver, and who gets it after that
            wanted = side.needs[owner, further].any(axis=0)
            b.transfer(
                src=side.before[1], dst=b.ranks,
                items=np.where(wanted[:, None], items[owner], -1), level=hop - 1,
                stream=side.stream, slot=np.array([[self.slots(kind, hop) for kind in side.kinds]]),
            )  # fmt: skip

    def _give_back(self, side: _Side) -> None:
        """Send the sums over the tile to their owners, in the order in which they are complete."""
        b, results = self.b, self.b.shards(side.result)
        for distance in range(1, len(side.before)):
            owner = side.before[distance]
            items = np.where(side.needs[owner, b.ranks], results[owner], -1)
            b.transfer(
                src=b.ranks, dst=owner, items=items, level=distance - 1, stream=side.back,
                slot=self.slots(side.result, "share", distance),
            )  # fmt: skip
