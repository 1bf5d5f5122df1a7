"""Who needs which keys: what has to move when every owner computes its own queries.

Rows of keys are cut into *atoms* that no shard, no need and no resident copy tells apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Bools, Floats, Ints
from charm_sched.bounds.cuts import Gain
from charm_sched.partition import Partition
from charm_sched.plans.items import Item
from charm_sched.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_RANKS: Ints = np.zeros(0, np.int64)
Saved = Sequence[tuple[int, Item, int]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Demand:
    """Keys that others need, and gradients that are owed for them.

    Attributes:
        rows: Token rows of each atom, ``[atoms]``.
        owner: Rank that owns it.
        needed: Whether a rank's queries see it; never the owner's own, ``[atoms, ranks]``.
        held: Whether a rank has it from the beginning, the owner or a resident copy, likewise.
        key_bytes: Bytes of one row of keys and values, all heads.
        gradient_bytes: Bytes of one row of the gradients of each atom, all heads, ``[atoms]``; 0 in
            the forward. Where the owner attends to the row itself it adds to what comes home, which
            then travels as a partial result; where it does not, it may be final.
    """

    rows: Ints
    owner: Ints
    needed: Bools
    held: Bools
    key_bytes: int
    gradient_bytes: Ints

    def leaving(self, inside: Bools) -> float:
        """Give the bytes that have to leave a set of ranks.

        A row of keys, once, where somebody outside needs it and nobody outside has it. A row of
        gradients, once, where somebody inside attends to keys that are owned outside: sums inside
        may be taken before.
        """
        return float(self._keys_into(~inside) + self._owed_by(inside))

    def crossing(self, inside: Bools) -> float:
        """Give the bytes of keys that have to enter a set of ranks and of gradients that leave it.

        A row of keys, once, where somebody inside needs it and nobody inside has it. A row of
        gradients, once, where somebody inside attends to keys that are owned outside.
        """
        return float(self._keys_into(inside) + self._owed_by(inside))

    def _keys_into(self, inside: Bools) -> int:
        keys = self._wanted(inside) & ~self._there(inside)
        return self.key_bytes * int(self.rows[keys].sum())

    def _owed_by(self, inside: Bools) -> int:
        if not self.two_sided:
            return 0
        owed = ~inside[self.owner] & self._wanted(inside)
        return int(self.rows[owed] @ self.gradient_bytes[owed])

    @cached_property
    def two_sided(self) -> bool:
        """Whether gradients move as well."""
        return bool(self.gradient_bytes.any())

    @cached_property
    def between_devices(self) -> float:
        """What `crossing` gives for each single rank, summed over the ranks."""
        keys = int(self.rows @ (self.needed & ~self.held).sum(1))
        owed = int((self.rows * self.gradient_bytes) @ self.needed.sum(1))
        return float(self.key_bytes * keys + owed)

    def gain(self, inside: Ints, outside: Ints) -> Gain:
        """Give the part of the demand that needs by ``outside`` and attends by ``inside`` cause.

        For every set that holds ``inside`` and not ``outside`` it is at most what `leaving` gives,
        less the gradients of all that ``inside`` attends to, which is the same for all those sets.
        """
        ranks = self.needed.shape[1]
        within, without = np.zeros((2, ranks), np.bool_)
        within[inside] = without[outside] = True
        wanted = self._wanted(without) & ~self._there(without)
        copied = self._holders > 1
        key_bytes = np.full(len(self.rows), self.key_bytes)
        each = self._by_owner(wanted & ~copied, key_bytes, ranks)
        if self.two_sided:
            each -= self._by_owner(self._wanted(within), self.gradient_bytes, ranks)
        together = [
            (float(self.key_bytes * self.rows[atom]), np.flatnonzero(self.held[atom]))
            for atom in np.flatnonzero(wanted & copied)
        ]
        return Gain(each=each, inside=inside, outside=outside, together=together)

    def _wanted(self, ranks: Bools) -> Bools:
        """Say for each atom whether one of some ranks needs it."""
        return _any_of(self._needed_bits, ranks)

    def _there(self, ranks: Bools) -> Bools:
        """Say for each atom whether one of some ranks has it from the beginning."""
        return _any_of(self._held_bits, ranks)

    @cached_property
    def _needed_bits(self) -> NDArray[np.uint8]:
        return np.packbits(self.needed, axis=1)

    @cached_property
    def _held_bits(self) -> NDArray[np.uint8]:
        return np.packbits(self.held, axis=1)

    @cached_property
    def _holders(self) -> Ints:
        """How many ranks have each atom from the beginning."""
        holders: Ints = self.held.sum(1)
        return holders

    def _by_owner(self, atoms: Bools, row_bytes: Ints, ranks: int) -> Floats:
        sums = np.zeros(ranks, np.int64)
        np.add.at(sums, self.owner[atoms], row_bytes[atoms] * self.rows[atoms])
        return sums.astype(np.float64)


def _any_of(bits: NDArray[np.uint8], ranks: Bools) -> Bools:
    """Say for each row of bits, one per rank, whether one of some ranks is set."""
    return np.asarray((bits & np.packbits(ranks)).any(1))


def demand_of(
    workload: Workload, partition: Partition, *, direction: str, saved: Saved = ()
) -> Demand:
    """Find the demand of plans in which the owner of a query computes it.

    Args:
        workload: What is computed.
        partition: Who owns which rows.
        direction: ``forward`` or ``backward``.
        saved: (rank, item, slot) of keys that are resident when the backward begins. A copy of some
            heads is taken as one of all.
    """
    backward = direction == "backward"
    shards = [
        (first, last, rank) for rank, shard in enumerate(partition.shards) for first, last in shard
    ]
    needs = _needs(workload, np.array(shards, np.int64).reshape(-1, 3))
    copies = [
        (first, last, rank)
        for rank, item, _ in (saved if backward else ())
        if item.kind == "kv"
        for first, last in item.rows
    ]
    runs = np.array([*shards, *needs, *copies], np.int64)
    cuts = np.unique(runs[:, :2])
    owned, needed, held = (
        _marked(cuts, intervals, partition.num_ranks) for intervals in (shards, needs, copies)
    )
    heads = workload.num_kv_heads
    gradient, final = (workload.row_bytes("dkv", final=way) * heads for way in (False, True))
    attended_at_home = (needed & owned).any(1)
    return Demand(
        rows=np.diff(cuts),
        owner=owned.argmax(1),
        needed=needed & ~owned,
        held=held | owned,
        key_bytes=workload.row_bytes("kv") * heads,
        gradient_bytes=np.where(attended_at_home, gradient, final) * int(backward),
    )


def _needs(workload: Workload, shards: Ints) -> list[tuple[int, int, int]]:
    """List the runs of keys that each run (first, last, rank) of queries sees, as such runs."""
    length, found = workload.seq_len, []
    for segment in workload.mask_rule.segments(length):
        first = np.maximum(shards[:, 0], segment.first)
        last = np.minimum(shards[:, 1], segment.last)
        met = first < last
        for begin, end, rank in zip(
            first[met].tolist(), last[met].tolist(), shards[met, 2].tolist(), strict=True
        ):
            low = max(segment.lower(begin), 0)
            high = min(segment.upper(end - 1), length)
            if low < high:
                found.append((low, high, rank))
    return found


def _marked(cuts: Ints, intervals: Sequence[tuple[int, int, int]], ranks: int) -> Bools:
    marks = np.zeros((len(cuts) - 1, ranks), np.bool_)
    if intervals:
        columns = np.array(intervals, np.int64)
        at = np.searchsorted(cuts, columns[:, :2])
        for (first, last), rank in zip(at.tolist(), columns[:, 2].tolist(), strict=True):
            marks[first:last, rank] = True
    return marks
