"""What an exchange loads on every link, and which pieces had better take another way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from charm_sched.arrays import Bools, Floats, Ints
from charm_sched.planners.cells import Cells
from charm_sched.planners.exchange import wanted_cells
from charm_sched.planners.hierarchy import Line
from charm_sched.plans.builder import Builder


class Flows:
    """Seconds that transfers keep each capacity of a machine busy.

    Attributes:
        load: Seconds of each capacity; the last one never fills.
    """

    def __init__(self, b: Builder) -> None:
        ranks = b.num_ranks
        if b.topology is None or not b.devices:  # one port of each rank, as `machine` takes it
            out, into = np.divmod(np.arange(ranks * ranks), ranks)
            crossed, widths = np.stack([out, ranks + into], axis=1), [1e9] * (2 * ranks)
        else:
            widths = [capacity.bandwidth for capacity in b.topology.capacities]
            routes = [
                b.topology.route(src, dst).capacities for src in b.devices for dst in b.devices
            ]
            crossed = np.full((ranks * ranks, max(map(len, routes))), len(widths))
            for place, route in enumerate(routes):
                crossed[place, : len(route)] = route
        self._crossed = crossed.reshape(ranks, ranks, -1)
        self._pace = np.array([*(1 / width for width in widths), 0.0])
        self.load = np.zeros(len(self._pace))

    def add(self, src: Ints, dst: Ints, size: Floats) -> None:
        """Let bytes flow from each of some ranks to another, ``[n]`` each."""
        self.load += self._busy(self._crossed[src, dst], size)

    def turn(self, old: tuple[Ints, Ints], new: tuple[Ints, Ints], size: Floats) -> Bools:
        """Let flows take another way where its busiest link is then less busy than the old one's.

        Args:
            old: Source and destination of each flow, ``[n]``.
            new: The same, of the other way.
            size: Bytes, ``[n]``; flows of none stay.

        Returns:
            Which flows turned, ``[n]``: all at once, or one after the other.
        """
        leave, enter = self._crossed[old], self._crossed[new]
        common, never = leave[:, :, None] == enter[:, None, :], len(self.load) - 1
        leave = np.where(common.any(axis=2), never, leave)
        enter = np.where(common.any(axis=1), never, enter)
        some = size > 0
        if self._pays(leave[some], enter[some], size[some]):
            self._move(leave[some], enter[some], size[some])
            return some
        turned = np.zeros(len(size), bool)
        for one in np.flatnonzero(some).tolist():
            at = slice(one, one + 1)
            turned[one] = self._pays(leave[at], enter[at], size[at])
            if turned[one]:
                self._move(leave[at], enter[at], size[at])
        return turned

    def _pays(self, leave: Ints, enter: Ints, size: Floats) -> bool:
        """Say whether each of some flows would gain if all of them turned."""
        after = self.load + self._busy(enter, size)
        before = self.load[leave].max(axis=1, initial=0.0)
        return bool((after[enter].max(axis=1, initial=0.0) < before * (1 - 1e-9)).all())

    def _move(self, leave: Ints, enter: Ints, size: Floats) -> None:
        self.load += self._busy(enter, size) - self._busy(leave, size)

    def _busy(self, crossed: Ints, size: Floats) -> Floats:
        sums = np.bincount(crossed.ravel(), np.repeat(size, crossed.shape[1]), len(self._pace))
        return np.asarray(sums * self._pace)


def balance(
    b: Builder, cells: Cells, lines: Sequence[Line], direct: Sequence[Line], growth: float
) -> tuple[list[Line], list[Line]]:
    """Choose the direct lines that KV takes, and those that gradients take the other way.

    A piece goes directly where the busiest link of that way is less busy than the busiest one of
    the way over the counterpart. KV and gradients are weighed apart and in turn: KV from the last
    sub-piece on, as the first ones have to be there soon, and gradients from the first one on,
    which a rank can then send as soon as it has attended.

    Args:
        b: The builder.
        cells: The cells of all shards.
        lines: The lines that bring every piece to every rank.
        direct: Direct lines, of one sub-piece each, the last sub-pieces first.
        growth: Bytes of a gradient per byte of KV; 0 where none moves.

    Returns:
        Direct lines, with just those ranks that take part.
    """
    flows, resident = Flows(b), cells.resident()
    kv = cells.sizes * ((cells.kinds > 0) & (cells.kv >= 0))  # [rank, owner, cell]
    ways = [(0, kv if resident is None else kv * ~resident)]
    ways += [(1, kv * growth)] if growth else []
    for line, takes in zip(lines, wanted_cells(lines, cells), strict=True):
        r = np.flatnonzero(takes.any(axis=1))
        for back, _ in ways:
            moves = takes[r] * cells.sizes[line.piece[r]] * (growth if back else 1.0)
            if resident is not None and not back:
                moves = moves * ~resident[r, line.piece[r]]
            flows.add(*_ends(line.src[r], r, back), moves.sum(axis=1))
    relay = _relays(lines, len(cells.kv))
    chosen: tuple[list[Line], list[Line]] = ([], [])
    for back, sizes, line in _in_turn(direct, ways):
        r = np.flatnonzero(line.src >= 0)
        owner = line.piece[r]
        size = sizes[r, owner, cells.of_subs(line.subs)].sum(axis=1)
        old, new = _ends(relay[r, owner], r, back), _ends(line.src[r], r, back)
        turned = flows.turn(old, new, size)
        if turned.any():
            chosen[back].append(_only(line, r[turned]))
    return chosen


def _in_turn(
    direct: Sequence[Line], ways: Sequence[tuple[int, Floats]]
) -> Iterator[tuple[int, Floats, Line]]:
    orders = direct, sorted(direct, key=lambda line: line.subs.start)
    for place in range(len(direct)):
        for back, sizes in ways:
            yield back, sizes, orders[back][place]


def _relays(lines: Sequence[Line], ranks: int) -> Ints:
    """Give who passes each owner's piece on to each rank inside its domain, ``[rank, owner]``."""
    relay = np.full((ranks, ranks), -1)
    inner = max(line.depth for line in lines)
    for line in lines:
        if line.depth == inner and line.held:
            there = np.flatnonzero(line.src >= 0)
            relay[there, line.piece[there]] = line.src[there]
    return relay


def _ends(src: Ints, dst: Ints, back: int) -> tuple[Ints, Ints]:
    """Give source and destination on a line, or on the way back."""
    return (dst, src) if back else (src, dst)


def _only(line: Line, ranks: Ints) -> Line:
    """Give a line that just some ranks take."""
    src, piece = np.full((2, len(line.src)), -1)
    src[ranks], piece[ranks] = line.src[ranks], line.piece[ranks]
    return replace(line, src=src, piece=piece)


__all__ = ["Flows", "balance"]
