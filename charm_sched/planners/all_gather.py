"""All-gather: every rank gathers all KV, chunk by chunk of heads, and attends a chunk at once.

As Llama 3 trains (arXiv:2407.21783, section 3.3.2) and zhuzilin/ring-flash-attention
(llama3_flash_attn_varlen.py) implements it: while the attention of one chunk of KV heads runs, the
next chunk is gathered into the other of two buffers. The gather is a ring of all ranks, as NCCL's,
or direct sends to all. Either way ``P - 1`` shards leave each rank, and the forward takes
``(A + B) / chunks + (1 - 1 / chunks) max(A, B)``, with ``A`` to gather all and ``B`` to attend all.

Backward: KV is gathered again, unless it stayed resident, and the gradients are reduced and
scattered per chunk, around the same ring or directly, while the next chunk is attended. (In
ring-flash-attention that is not overlapped.) Under a mask some ranks have no gradient of a shard;
no zeros are sent for it.
"""

from __future__ import annotations

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.errors import StrategyError
from charm_sched.partition import split_rows
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import HOME

ALGORITHMS = ("ring", "direct")


def all_gather(b: Builder, *, chunks: int = 1, algorithm: str = "ring", save: bool = False) -> None:
    """Write the all-gather of KV.

    Args:
        b: The builder.
        chunks: Chunks of KV heads, as even as possible; at most one per head.
        algorithm: ``ring``: each rank passes on to the next what it got; ``direct``: each rank
            sends its own to all others at once.
        save: Forward: keep all KV resident for the backward, which then gathers none.

    Raises:
        StrategyError: ``chunks`` below 1, or an unknown ``algorithm``.
    """
    if chunks < 1:
        raise StrategyError(f"all_gather: expected chunks of 1 or more, found {chunks}")
    if algorithm not in ALGORITHMS:
        raise StrategyError(
            f"all_gather: expected algorithm {' or '.join(ALGORITHMS)}, found {algorithm!r}"
        )
    chunks = min(chunks, b.workload.num_kv_heads)
    gather = _Gather(b, chunks, ring=algorithm == "ring", save=save and b.direction == "forward")
    for chunk in range(chunks):
        if not gather.resident(chunk):
            gather.fetch(chunk)
        gather.attend(chunk)
        if b.direction == "backward":
            gather.reduce(chunk)


class _Gather:
    """Writes the steps of one chunk of heads.

    Attributes:
        heads: KV heads of each chunk.
        distances: How far away the owners are whose KV is gathered, ``[ranks - 1]``.
        needs: Whether a rank attends a shard, ``[ranks, owner]``.
    """

    def __init__(self, b: Builder, chunks: int, *, ring: bool, save: bool) -> None:
        self.b, self.ring, self.save = b, ring, save
        self.heads = [run for (run,) in split_rows(((0, b.workload.num_kv_heads),), chunks)]
        self.distances = range(1, b.num_ranks)
        self.needs = b.areas(b.shards("q")[:, None], b.shards("kv")) > 0
        self._first = 1 + max((slot for _, _, slot in b.saved), default=HOME)

    def _items(self, kind: str, chunk: int) -> Ints:
        """Number each rank's shard of one chunk, ``[ranks]``."""
        low, high = self.heads[chunk]
        share = self.b.workload.heads_per_kv if kind == "q" else 1
        heads = (low * share, high * share)
        return np.array([self.b.item(kind, rows, heads) for rows in self.b.partition.shards])

    def _slot(self, use: int, chunk: int, distance: int) -> int:
        """Number a slot: use 0 holds KV, 1 gradients, 2 gradients that came directly."""
        buffer = 2 * use + (chunk if self.save else chunk % 2)
        return self._first + buffer * len(self.distances) + distance - 1

    def _owner(self, distance: int) -> Ints:
        return (self.b.ranks - distance) % self.b.num_ranks

    def resident(self, chunk: int) -> bool:
        """Say whether every rank has all KV of a chunk from the forward."""
        low, high = self.heads[chunk]
        saved = {
            (rank, item.rows)
            for rank, item, _ in self.b.saved
            if item.kind == "kv" and item.heads[0] <= low and high <= item.heads[1]
        }
        return bool(saved) and all(
            rank == owner or not rows or (rank, rows) in saved
            for rank in range(self.b.num_ranks)
            for owner, rows in enumerate(self.b.partition.shards)
        )

    def fetch(self, chunk: int) -> None:
        """Gather the KV of a chunk."""
        kv = self._items("kv", chunk)
        for distance in self.distances:
            got, slot = kv[self._owner(distance)], self._slot(0, chunk, distance)
            self.b.transfer(
                src=self._owner(1 if self.ring else distance),
                dst=self.b.ranks,
                items=got,
                level=chunk * len(self.distances) + distance - 1 if self.ring else chunk,
                stream="gather",
                slot=slot,
            )
            if self.save:
                self.b.keep(rank=self.b.ranks, items=got, slot=slot)

    def attend(self, chunk: int) -> None:
        """Attend a chunk as one kernel."""
        reach = [0, *self.distances]
        owners = np.stack([self._owner(distance) for distance in reach], axis=1)
        slots = [HOME, *(self._slot(1, chunk, distance) for distance in self.distances)]
        self.b.attend(
            rank=self.b.ranks,
            queries=self._items("q", chunk),
            keys=self._items("kv", chunk)[owners],
            key_slot=np.array([slots]) if self.b.direction == "backward" else HOME,
        )

    def reduce(self, chunk: int) -> None:
        """Sum the gradients of a chunk's KV at their owners."""
        r, dkv = self.b.ranks, self._items("dkv", chunk)
        there = np.zeros(len(r), bool)
        for distance in self.distances:
            owner = self._owner(distance)
            there = self.needs[r, owner] | (there[self._owner(1)] & self.ring)
            if self.ring:
                dst, level = (r + 1) % len(r), chunk * len(self.distances) + distance - 1
                home = distance == len(r) - 1
                slot = HOME if home else self._slot(1, chunk, distance + 1)
            else:
                dst, level, slot = owner, chunk, self._slot(2, chunk, distance)
            gradients = np.where(there, dkv[owner], -1)
            self.b.transfer(
                src=r, dst=dst, items=gradients, level=level, stream="scatter", slot=slot
            )
