"""Ring-Attention: every shard travels once around one ring of all ranks.

As public implementations do it (Liu et al. 2023, arXiv:2310.01889; zhuzilin/ring-flash-attention):
two KV buffers per rank keep the ring in lock-step, so a forward step takes
``max(transfer, attend)`` and the whole pass ``(P - 1) max(transfer, attend) + attend``. In the
backward KV takes ``P - 1`` hops and the gradient of KV travels behind it, ``P`` hops to its home.
"""

from __future__ import annotations

from charm_sched.planners.begun import Begun
from charm_sched.plans.builder import Builder


def ring(b: Builder) -> None:
    """Write Ring-Attention."""
    if b.direction == "forward":
        write_forward(b)
    else:
        _backward(b)


def write_forward(b: Builder, slots: int = 2) -> None:
    """Write the forward, with so many KV buffers per rank."""
    n, r = b.num_ranks, b.ranks
    q, kv = b.shards("q")[r], b.shards("kv")
    for t in range(n):
        held = kv[(r - t) % n]
        b.attend(rank=r, queries=q, keys=held)
        if t < n - 1:
            b.transfer(
                src=r, dst=(r + 1) % n, items=held, level=t, stream="ring", slot=(t + 1) % slots
            )


def _backward(b: Builder) -> None:
    # Slots: 0, 1 hold KV; 2, 3 the travelling gradient; 4 what the kernel of this step adds to it.
    n, r = b.num_ranks, b.ranks
    q, kv, dkv = b.shards("q")[r], b.shards("kv"), b.shards("dkv")
    begun = Begun(b)
    for t in range(n):
        held = (r - t) % n
        if t:
            before = (r - 1) % n
            b.transfer(
                src=before, dst=r, items=begun.move(before, r, dkv[held]), level=t - 1,
                stream="gradients", slot=2 + t % 2,
            )  # fmt: skip
        b.attend(rank=r, queries=q, keys=kv[held], key_slot=4 if t else -1)
        begun.attend(q, kv[held], gradients=dkv[held])
        if t < n - 1:
            b.transfer(
                src=r, dst=(r + 1) % n, items=kv[held], level=t, stream="ring", slot=(t + 1) % 2
            )
    if n > 1:
        after = (r + 1) % n
        home = begun.move(r, after, dkv[after])
        b.transfer(src=r, dst=after, items=home, level=n - 1, stream="gradients")
