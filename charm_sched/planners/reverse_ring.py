"""Reverse-start ring: the backward starts from the KV that the forward ended with.

As NVIDIA TransformerEngine does it (context parallelism by ``p2p``, context_parallel.py). The
forward is a ring whose rank ``r`` ends with the KV of rank ``r + 1`` and keeps it. The backward
rotates the other way. KV and the gradient of the step before travel as one message, and the
diagonal comes last, so the gradient is home after ``P - 1`` hops where the ring needs ``P``. KV
takes ``P - 2`` hops. (TransformerEngine keeps no other KV, and so sends each rank its own back over
one hop more. Owners have theirs in every plan here.) Where a mask leaves a gradient without a
contribution yet, no zeros are sent.

Seconds, with ``c`` per kernel, ``V`` and ``G`` per hop of KV and gradient: forward
``(P - 1) max(c, V) + c``; backward, from three ranks on,
``max(c, V) + (P - 3) max(c, V + G) + 2 max(c, G)``.

In the forward two streams compute in turn there, which lets a transfer start when the kernel before
the last one has ended; three KV slots say the same. (It holds every KV of the forward until the
end, which is not modelled.)
"""

from __future__ import annotations

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.planners.ring import write_forward
from charm_sched.plans.builder import Builder

FORWARD_SLOTS = 3


def reverse_ring(b: Builder) -> None:
    """Write the reverse-start ring. A backward without residents fetches its first KV itself."""
    if b.direction == "forward":
        _forward(b)
    else:
        _backward(b)


def _forward(b: Builder) -> None:
    write_forward(b, FORWARD_SLOTS)
    n, r = b.num_ranks, b.ranks
    if n > 1:
        b.keep(rank=r, items=b.shards("kv")[(r + 1) % n], slot=(n - 1) % FORWARD_SLOTS)


def _backward(b: Builder) -> None:
    # KV of even steps is where the first one is. From `free` on: 0 holds KV of odd steps; 1, 2 the
    # travelling gradient; 3 what a kernel adds to it.
    n, r = b.num_ranks, b.ranks
    q, kv, dkv = b.shards("q"), b.shards("kv"), b.shards("dkv")
    first, free = _first_kv(b, kv)
    begun = np.zeros(n, bool)  # whether a shard has a gradient yet: none has where all is masked
    left = (r - 1) % n
    for t in range(n - 1):
        held = (r + 1 + t) % n
        gradients = np.where(begun[held], dkv[held], -1)  # that arrive beside KV of the same owner
        keys = kv[held] if t < n - 2 else np.full(n, -1)
        key_slots = first[left] if t % 2 else np.full(n, free)
        b.transfer(
            src=r,
            dst=left,
            items=np.stack([keys, gradients[left]], axis=1),
            level=t + 1,
            stream="ring",
            slot=np.stack([key_slots, np.full(n, free + 1 + t % 2)], axis=1),
        )
        here = np.where(begun[held], free + 3, free + 1 + t % 2)
        b.attend(rank=r, queries=q, keys=kv[held], key_slot=here)
        begun[held] |= b.areas(q, kv[held]) > 0
    b.attend(rank=r, queries=q, keys=kv)
    if n > 1:
        gradients = np.where(begun[r], dkv[r], -1)
        b.transfer(
            src=r, dst=left, items=gradients[left], level=n, stream="ring",
            slot=free + 1 + (n - 1) % 2,
        )  # fmt: skip


def _first_kv(b: Builder, kv: Ints) -> tuple[Ints, int]:
    """Give the slot where each rank has the KV of the next rank, and the first free slot.

    What is not resident is fetched.
    """
    n, r = b.num_ranks, b.ranks
    resident = {
        (rank, b.item(item.kind, item.rows, item.heads)): slot for rank, item, slot in b.saved
    }
    free = 1 + max(resident.values(), default=-1)
    wanted = kv[(r + 1) % n]
    slots = np.array([resident.get((rank, int(wanted[rank])), -1) for rank in r.tolist()])
    missing = np.flatnonzero(slots < 0)
    if len(missing) and n > 1:
        b.transfer(
            src=(missing + 1) % n, dst=missing, items=wanted[missing], level=0, stream="ring",
            slot=free,
        )  # fmt: skip
    return np.where(slots < 0, free, slots), free + 1
