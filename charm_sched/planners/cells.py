"""Shards cut into cells: what moves, what is computed together, and how fast.

A shard is cut into sub-pieces, which move one behind the other. Of three and more, the first and
the last are half as large: two lanes that carry them in turn are then never in their latency at
once, and the end is short. Each sub-piece consists of its part of each run of the shard. A zigzag
shard has an early and a late run; under a causal mask many ranks need just the early one, and those
that need it whole see it without any mask. So a *cell* (sub-piece, run) is the unit of what is
needed, and of which kernel computes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Bools, Floats, Ints
from charm_sched.partition import Rows, count_rows, rows_of, split_rows

if TYPE_CHECKING:
    from charm_sched.plans.builder import Builder

MOST_RUNS = 4
"""Shards of more runs than this are not told apart by run: kernels would become too small."""


class Cells:
    """The shards of all ranks in cells, and the work of each rank with each cell.

    Cells are numbered by sub-piece, then run.

    Attributes:
        subs: Sub-pieces per shard.
        runs: Runs per shard.
        q: Query items, ``[ranks, runs]``; -1 where a shard has fewer runs.
        kv: KV items, ``[ranks, cells]``; -1 where a cell is empty.
        sizes: Bytes of each KV item, ``[ranks, cells]``.
        kinds: Kind of kernel for a rank's work with an owner's cell, ``[rank, owner, cell]``: bit
            ``i`` says that run ``i`` of the rank's queries sees some of it, the bit above them that
            the mask hides some of it. 0 where there is nothing to do.
        areas: Unmasked (query, key) pairs, ``[rank, owner, cell]``.
    """

    def __init__(self, b: Builder, pieces: int) -> None:
        self._b, self.subs = b, pieces
        shards = b.partition.shards
        self.runs = max(1, *map(len, shards)) if b.workload.mask_rule.kind != "full" else 1
        if self.runs > MOST_RUNS:
            self.runs = 1
        cut = [self._runs_of(shard) for shard in shards]
        self._rows = [
            [piece for pieces in zip(*(_split(run, pieces) for run in of), strict=True)
             for piece in pieces]
            for of in cut
        ]  # fmt: skip
        self._query_rows = cut
        self.q = self.query_items("q")
        self.kv = self.items("kv")
        rows = np.array([[count_rows(piece) for piece in of] for of in self._rows], np.int64)
        self.sizes = rows * b.workload.num_kv_heads * b.workload.row_bytes("kv")
        self._measure(rows, np.array([[count_rows(run) for run in of] for of in cut], np.int64))

    def _runs_of(self, shard: Rows) -> list[Rows]:
        if self.runs == 1:
            return [shard]
        return [(run,) for run in shard] + [()] * (self.runs - len(shard))

    def _measure(self, key_rows: Ints, query_rows: Ints) -> None:
        ranks, cells = self.kv.shape
        areas = self._b.areas(self.q[:, :, None], self.kv.reshape(1, 1, -1))
        areas = areas.reshape(ranks, self.runs, ranks, cells)
        seen = areas > 0
        hidden = seen & (areas < query_rows[:, :, None, None] * key_rows[None, None])
        kinds = (seen << np.arange(self.runs)[None, :, None, None]).sum(axis=1)
        kinds += hidden.any(axis=1) << self.runs
        at = np.arange(ranks)
        seen, hidden = (np.asarray(part[at, :, at].any(axis=2)) for part in (seen, hidden))
        own = (seen << np.arange(self.runs)).sum(axis=1)
        own += np.asarray(hidden.any(axis=1)) << self.runs
        # The own shard is one kernel: it is there from the start, and small.
        kinds[at, at] = np.where(kinds[at, at] > 0, own[:, None], 0)
        self.kinds, self.areas = kinds, areas.sum(axis=1).astype(np.float64)

    @property
    def count(self) -> int:
        """Cells per shard."""
        return self.subs * self.runs

    def resident(self) -> Bools | None:
        """Say which cells are saved on which rank, ``[rank, owner, cell]``; None: nothing is."""
        if not self._b.saved:
            return None
        found = np.zeros((len(self.kv), *self.kv.shape), bool)
        at = {int(item): place for place, item in np.ndenumerate(self.kv) if item >= 0}
        for rank, item, _ in self._b.saved:
            place = at.get(self._b.item(item.kind, item.rows, item.heads))
            if place:
                found[rank][place] = True
        return found

    def of_subs(self, subs: range) -> slice:
        """Give the cells of adjoining sub-pieces."""
        return slice(subs.start * self.runs, subs.stop * self.runs)

    def items(self, kind: str, part: int = 0) -> Ints:
        """Number all cells as items of a kind: ``[ranks, cells]``."""
        return np.array(
            [[self._b.item(kind, piece, part=part) for piece in of] for of in self._rows], np.int64
        )

    def query_items(self, kind: str, part: int = 0) -> Ints:
        """Number all runs as items of a kind: ``[ranks, runs]``."""
        return np.array(
            [[self._b.item(kind, run, part=part) for run in of] for of in self._query_rows],
            np.int64,
        )

    def queries(self, kind: int) -> Ints:
        """List the runs of queries in a kind of kernel."""
        return np.flatnonzero(kind >> np.arange(self.runs) & 1)


def _split(rows: Rows, pieces: int) -> tuple[Rows, ...]:
    """Split rows into pieces, of which the first and the last are half as large."""
    if pieces < 3:
        return split_rows(rows, pieces)
    halves = split_rows(rows, 2 * pieces - 2)
    pairs = (rows_of(halves[i] + halves[i + 1]) for i in range(1, 2 * pieces - 3, 2))
    return halves[0], *pairs, halves[-1]


def seconds_of(cells: Cells, plain: Floats, masked: Floats, heads: int) -> Floats:
    """Give each rank's time with each cell, without the overhead of a call.

    Args:
        cells: The cells.
        plain: Seconds of each rank per (query, key, head) triple in kernels without a mask.
        masked: The same in kernels of which the mask hides a part.
        heads: Query heads.

    Returns:
        Seconds, ``[rank, owner, cell]``.
    """
    rates = np.where(cells.kinds >> cells.runs & 1, masked[:, None, None], plain[:, None, None])
    seconds: Floats = cells.areas * heads * rates
    return seconds


__all__ = ["MOST_RUNS", "Cells", "seconds_of"]
