"""Tiles of a grid of ranks: their shape, and the order in which a rank attends one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.errors import StrategyError
from charm_sched.partition import count_rows
from charm_sched.planners.hierarchy import Tree, leaves

if TYPE_CHECKING:
    from charm_sched.planners.machine import Machine
    from charm_sched.planners.timetable import Pace
    from charm_sched.plans.builder import Builder

SIDES = ("queries", "keys")


@dataclass(frozen=True, eq=False, slots=True)
class Tile:
    """A grid of ranks; a rank attends the queries of its row and the keys of its column.

    Attributes:
        grid: Ranks, ``[key shards of a tile, query shards of a tile]``.
    """

    grid: Ints

    def ring(self, what: str) -> Ints:
        """Give the rank at each distance before each rank, ``[distance, ranks]``.

        Args:
            what: ``queries``: in its row; ``keys``: in its column.
        """
        grid = self.grid if what == "queries" else self.grid.T
        size = grid.shape[1]
        before = np.zeros((size, grid.size), np.int64)
        for distance in range(size):
            before[distance, grid] = np.roll(grid, distance, axis=1)
        return before


def choose_tile(b: Builder, machine: Machine, tile_rows: int, neighbours: str) -> Tile:
    """Give the grid for a tile shape, or the one with the least traffic.

    Args:
        b: The builder.
        machine: Tree of ranks and paces.
        tile_rows: Query shards of a tile; 0 means any.
        neighbours: What neighbours exchange, ``queries`` or ``keys``; ``auto`` means either.

    Raises:
        StrategyError: ``tile_rows`` does not divide the ranks, or unknown ``neighbours``.
    """
    if neighbours not in ("auto", *SIDES):
        raise StrategyError(
            f"mesh: expected neighbours to be auto, queries or keys, found {neighbours!r}"
        )
    order = np.array(leaves(machine.tree))
    divisors = [d for d in range(1, len(order) + 1) if len(order) % d == 0]
    if tile_rows and tile_rows not in divisors:
        nearest = min(divisors, key=lambda d: (abs(d - tile_rows), d))
        raise StrategyError(
            f"mesh: expected tile_rows that divide the {len(order)} ranks, found {tile_rows}; "
            f"the nearest is {nearest}"
        )
    tiles = [
        Tile(order.reshape(-1, rows) if kind == "queries" else order.reshape(rows, -1).T)
        for rows in ([tile_rows] if tile_rows else divisors)
        for kind in (SIDES if neighbours == "auto" else [neighbours])
    ]
    return min(tiles, key=lambda tile: _seconds(b, machine, tile))


def _seconds(b: Builder, machine: Machine, tile: Tile) -> float:
    """Estimate the time on the wire: of the busiest tier, as tiers work side by side."""
    busy: dict[Pace, float] = {}
    paths = _paths(machine.tree)
    for what, (there, back) in zip(SIDES, shard_bytes(b), strict=True):
        ring = tile.ring(what)
        for before in ring[1:]:
            for peers, size in ((ring[1], there), (before, back)):
                pace = _pace(machine, paths, peers)
                seconds = pace.end(0.0, size) if size else 0.0
                busy[pace] = busy.get(pace, 0.0) + seconds
    return max(busy.values(), default=0.0)


def shard_bytes(
    b: Builder, finals: tuple[bool, bool] = (False, False)
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Give the bytes of the largest shard: queries there and back, keys there and back.

    Args:
        b: The builder.
        finals: Whether what comes back for queries and for keys is final (`plans.finals`).
    """
    work = b.workload
    rows = max(count_rows(shard) for shard in b.partition.shards)
    query, key = rows * work.heads, rows * work.num_kv_heads
    there = work.row_bytes("q")
    if b.direction == "forward":
        back, added = work.row_bytes("o", final=finals[0]), 0
    else:
        there += work.row_bytes("g")
        back, added = (
            work.row_bytes(kind, final=final)
            for kind, final in zip(("dq", "dkv"), finals, strict=True)
        )
    return (query * there, query * back), (key * work.row_bytes("kv"), key * added)


def _pace(machine: Machine, paths: Ints, peers: Ints) -> Pace:
    """Give the pace of the slowest tier between a rank and its peer, over all ranks."""
    depths = np.unique((paths != paths[peers]).argmax(axis=1)).tolist()
    return min((machine.paces[depth] for depth in depths), key=lambda pace: pace.bandwidth)


def _paths(tree: Tree) -> Ints:
    """Give the child numbers that lead to each rank, ``[ranks, depth]``; -1 below a rank."""
    found: dict[int, tuple[int, ...]] = {}
    todo: list[tuple[Tree, tuple[int, ...]]] = [(tree, ())]
    while todo:
        node, path = todo.pop()
        if isinstance(node, int):
            found[node] = path
        else:
            todo += [(child, (*path, number)) for number, child in enumerate(node)]
    depth = max(map(len, found.values()))
    return np.array([(*path, *[-1] * (depth - len(path))) for _, path in sorted(found.items())])


def order_tile(b: Builder, machine: Machine, tile: Tile) -> list[tuple[int, list[int]]]:
    """Decide in which order a rank attends its tile.

    Whenever the rank is free, it takes what has arrived of the first row of other ranks' queries
    that is not done, as one kernel; its own queries when there is nothing else. In the backward
    the rest of its own row is attended key by key, so that the gradients of keys leave early.

    Returns:
        Rows (distance to the owner of the queries) with their columns (distances to the owners of
        the keys), in order.
    """
    columns, rows = tile.grid.shape
    paths = _paths(machine.tree)
    hops = [
        _pace(machine, paths, tile.ring(what)[1]).end(0.0, moved[0]) if size > 1 else 0.0
        for what, moved, size in zip(SIDES, shard_bytes(b), (rows, columns), strict=True)
    ]
    work = b.workload
    shard = max(count_rows(shard) for shard in b.partition.shards)
    cell = shard * shard * work.heads * float(machine.triple_seconds.max())
    order: list[tuple[int, list[int]]] = []
    left = {row: list(range(columns)) for row in [*range(1, rows), 0]}
    clock = 0.0
    while left:
        ready = {
            row: [c for c in todo if max(row * hops[0], c * hops[1]) <= clock]
            for row, todo in left.items()
        }
        row = next((row for row, there in ready.items() if there), None)
        if row is None:
            clock = min(max(r * hops[0], c * hops[1]) for r, todo in left.items() for c in todo)
            continue
        taken = ready[row][:1] if row == 0 and b.direction == "backward" else ready[row]
        order.append((row, taken))
        left[row] = [column for column in left[row] if column not in taken]
        if not left[row]:
            del left[row]
        clock += cell * len(taken) + machine.overhead
    return order
