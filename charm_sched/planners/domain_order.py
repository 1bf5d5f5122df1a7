"""In which order a rank attends a tile whose queries and keys arrive one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from charm_sched.arrays import Bools, Floats, Ints


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Rows of a tile with columns, attended as one kernel.

    Attributes:
        rows: Numbers of the rows.
        columns: Numbers of the columns.
        end: Planned end, seconds.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    end: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Tile:
    """What there is to attend.

    Attributes:
        seconds: Time of each pair without the overhead of a call, ``[rows, columns]``; 0 where
            there is nothing to do.
        rows: When each row's queries arrive, seconds.
        columns: When each column's keys arrive, seconds.
        kinds: Pairs of one kernel are of one kind, ``[rows, columns]``.
        own: The rows that are attended last, since their results stay on the rank or near it.
        bundles: Backward: columns whose gradients leave together; own rows take them in turn, the
            lowest number first. Otherwise all 0.
        overhead: Seconds per kernel call.
        least: Seconds that a kernel takes at least, where there is that much to do.
    """

    seconds: Floats
    rows: Floats
    columns: Floats
    kinds: Ints
    own: Bools
    bundles: Ints
    overhead: float
    least: float


def order_kernels(tile: Tile) -> list[Kernel]:
    """Decide what a rank attends when.

    Whenever it is free it takes the first row of others' queries of which so much has arrived that
    a kernel pays, or that then is done; else the row of which most has arrived; own rows when there
    is nothing else. Rows of which the same columns are there join while kernels are short.
    """
    arrival = np.maximum(tile.rows[:, None], tile.columns)
    todo = tile.seconds > 0
    first = sorted(range(len(tile.rows)), key=lambda row: (tile.own[row], tile.rows[row], row))
    kernels: list[Kernel] = []
    clock = 0.0
    while todo.any():
        there = todo & (arrival <= clock)
        if not there.any():
            clock = float(arrival[todo].min())
            continue
        row = _row(tile, todo, there, first)
        columns = _columns(tile, row, there[row])
        rows = _company(tile, there, row, columns, first)
        taken = np.ix_(np.array(rows), columns)
        clock += tile.overhead + float(tile.seconds[taken].sum())
        todo[taken] = False
        kernels.append(Kernel(rows=tuple(rows), columns=tuple(columns.tolist()), end=clock))
    return kernels


def _row(tile: Tile, todo: Bools, there: Bools, first: list[int]) -> int:
    """Choose the row to attend."""
    seconds = (tile.seconds * there).sum(axis=1)
    pays = there.any(axis=1) & ((seconds >= tile.least) | ~(todo & ~there).any(axis=1))
    bundles = np.where(there, tile.bundles, len(tile.columns)).min(axis=1)
    own = sorted((row for row in first if tile.own[row]), key=lambda row: bundles[row])
    for rows in ([r for r in first if not tile.own[r]], own):
        found = next((row for row in rows if pays[row]), None)
        if found is None:
            found = max(rows, key=lambda row: seconds[row], default=None)
        if found is not None and seconds[found] > 0:
            return found
    raise AssertionError("nothing is there")


def _columns(tile: Tile, row: int, there: Bools) -> Ints:
    """Choose the columns of a row to attend together."""
    columns = np.flatnonzero(there)
    if not tile.own[row]:
        return columns[tile.kinds[row, columns] == tile.kinds[row, columns[0]]]
    return _of_bundle(tile, row, columns, int(tile.bundles[columns].min()))


def _of_bundle(tile: Tile, row: int, columns: Ints, bundle: int) -> Ints:
    """Give those of some columns that are of a bundle, and of one kind."""
    found = columns[tile.bundles[columns] == bundle]
    return found[tile.kinds[row, found] == tile.kinds[row, found[:1]]]


def _alike(tile: Tile, row: int, there: Ints, columns: Ints) -> Ints:
    """Give the columns of another row that would go with some of a row."""
    if not tile.own[row]:
        return there[tile.kinds[row, there] == tile.kinds[row, there[0]]]
    return _of_bundle(tile, row, there, int(tile.bundles[columns[0]]))


def _company(tile: Tile, there: Bools, row: int, columns: Ints, first: list[int]) -> list[int]:
    """Give a row with those that it can be attended with."""
    rows, length = [row], float(tile.seconds[row, columns].sum())
    for other in first:
        here = np.flatnonzero(there[other])
        same = (
            other != row
            and tile.own[other] == tile.own[row]
            and len(here) >= len(columns)
            and np.array_equal(_alike(tile, other, here, columns), columns)
            and tile.kinds[other, columns[0]] == tile.kinds[row, columns[0]]
        )
        more = float(tile.seconds[other, columns].sum())
        if same and length + more <= tile.least:
            rows.append(other)
            length += more
    return rows


__all__ = ["Kernel", "Tile", "order_kernels"]
