"""TASP: each shard is cut in P - 1 chunks, and chunk ``i`` travels along ring ``i`` of P - 1 rings.

The rings share no link (`cycles`), so in every step each rank sends one chunk to every other: in a
switched domain all its links are busy, where one ring uses one. This is the forward of TASP for one
domain of fully connected devices (arXiv:2509.26541; infinigence/HamiltonAttention), a step of which
is one all-to-all and one kernel on the P - 1 chunks held, with two buffers. The same rings across
several domains carry each shard into a domain once for every rank there, where once would do; that
is done on demand alone.

TASP publishes no backward. Here the gradient of a chunk travels behind it, P hops to its home, as
in Ring-Attention.
"""

from __future__ import annotations

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.errors import StrategyError
from charm_sched.planners.begun import Begun
from charm_sched.planners.cycles import hamiltonian_cycles
from charm_sched.planners.machine import machine_of
from charm_sched.plans.builder import Builder

MOST_RANKS = 64


def tasp(b: Builder, *, flat: bool = False) -> None:
    """Write TASP.

    Args:
        b: The builder.
        flat: Serve several domains as if they were one.

    Raises:
        StrategyError: Several domains without ``flat``; or ranks without rings that share no link:
            4, 6, or more than `MOST_RANKS`.
    """
    _check(b, flat=flat)
    if b.num_ranks == 1:
        b.attend(rank=0, queries=b.shards("q"), keys=b.shards("kv"))
        return
    rings = _Rings(b)
    if b.direction == "forward":
        _forward(b, rings)
    else:
        _backward(b, rings)


def _check(b: Builder, *, flat: bool) -> None:
    """Refuse what the rings do not suit."""
    if b.num_ranks > MOST_RANKS:
        raise StrategyError(
            f"tasp: expected {MOST_RANKS} ranks at most, found {b.num_ranks}: a pass sends "
            "a message from every rank to every other in every step, P (P - 1)^2 in all; "
            "use all_gather or charm, which serve any number"
        )
    tree = machine_of(b, None).tree
    while not isinstance(tree, int) and len(tree) == 1:
        tree = tree[0]
    domains = () if isinstance(tree, int) else tree
    if not flat and any(not isinstance(domain, int) for domain in domains):
        raise StrategyError(
            f"tasp: expected ranks in one switched domain, found {len(domains)} domains: every "
            "shard would enter a domain once for each rank there (flat=true plans it all the same)"
        )


class _Rings:
    """Where the chunks are as they travel.

    Attributes:
        number: Number of each ring, ``[rings]``.
        after: Next rank on each ring, ``[rings, ranks]``.
    """

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.after = hamiltonian_cycles(b.num_ranks)
        self.number = np.arange(len(self.after))
        self.begun = Begun(b)
        self._held = [np.broadcast_to(b.ranks, self.after.shape)]

    def held(self, step: int) -> Ints:
        """Give the owner of the chunk that each rank holds of each ring, ``[ranks, rings]``."""
        while step >= len(self._held):
            moved = np.empty_like(self.after)
            np.put_along_axis(moved, self.after, self._held[-1], axis=1)
            self._held.append(moved)
        return self._held[step].T

    def move(self, chunks: Ints, *, level: int, stream: str, slots: Ints | int) -> None:
        """Send what each rank holds, ``[ranks, rings]``, on; one message per pair of ranks."""
        src, dst = np.repeat(self.b.ranks, len(self.number)), self.after.T.ravel()
        partial = stream == "gradients"
        self.b.transfer(
            src=src,
            dst=dst,
            items=self.begun.move(src, dst, chunks.ravel()) if partial else chunks.ravel(),
            level=level,
            stream=stream,
            slot=np.broadcast_to(slots, chunks.shape).ravel(),
        )


def _forward(b: Builder, rings: _Rings) -> None:
    n, count = b.num_ranks, len(rings.number)
    q, kv = b.shards("q"), b.pieces("kv", count)
    for t in range(n):
        chunks = kv[rings.held(t), rings.number]
        b.attend(rank=b.ranks, queries=q, keys=chunks)
        if t < n - 1:
            slots = (t + 1) % 2 * count + rings.number
            rings.move(chunks, level=t, stream="rings", slots=slots)


def _backward(b: Builder, rings: _Rings) -> None:
    # Blocks of slots: 0, 1 hold KV; 2, 3 travelling gradients; 4 what a step's kernel adds to them.
    n, count = b.num_ranks, len(rings.number)
    q, kv, dkv = b.shards("q"), b.pieces("kv", count), b.pieces("dkv", count)
    for t in range(n):
        chunks = kv[rings.held(t), rings.number]
        if t:
            slots = (2 + t % 2) * count + rings.number
            gradients = dkv[rings.held(t - 1), rings.number]
            rings.move(gradients, level=t - 1, stream="gradients", slots=slots)
        added = (4 * count + rings.number)[None] if t else -1
        b.attend(rank=b.ranks, queries=q, keys=chunks, key_slot=added)
        rings.begun.attend(q, chunks, gradients=dkv[rings.held(t), rings.number])
        if t < n - 1:
            slots = (t + 1) % 2 * count + rings.number
            rings.move(chunks, level=t, stream="rings", slots=slots)
    gradients = dkv[rings.held(n - 1), rings.number]
    rings.move(gradients, level=n - 1, stream="gradients", slots=-1)
