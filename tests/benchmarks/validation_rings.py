"""The all-gather of NCCL as a strategy: a ring for each network card of a node, at the same time.

NCCL runs a collective over several rings, its channels, each of which enters and leaves a node by
another network card. Here each KV head has a ring of its own: it begins in every node at another
device. Everything is gathered before one kernel runs, as the benchmark's baseline does, and the
gradients are reduced and scattered over the same rings after it.
"""

from __future__ import annotations

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import HOME


def many_rings(b: Builder, *, node: int = 8) -> None:
    """Write it for nodes of so many devices, whose ranks are next to each other."""
    rings = [_ring(b.num_ranks, node, begin) for begin in range(b.workload.num_kv_heads)]
    kv, dkv = _by_head(b, "kv"), _by_head(b, "dkv")
    _gather(b, rings, kv)
    _attend(b, rings, kv)
    if b.direction == "backward":
        _scatter(b, rings, dkv)


def _ring(ranks: int, node: int, begin: int) -> Ints:
    """Order the ranks of one ring, ``[ranks]``."""
    inside = (np.arange(node) + begin) % node
    return (np.arange(0, ranks, node)[:, None] + inside).ravel()


def _by_head(b: Builder, kind: str) -> Ints:
    """Number each rank's shard of each KV head, ``[ranks, heads]``."""
    heads = range(b.workload.num_kv_heads)
    return np.array(
        [[b.item(kind, rows, (h, h + 1)) for h in heads] for rows in b.partition.shards]
    )


def _owners(order: Ints, distance: int) -> Ints:
    """Give the rank at a distance before each rank, in the order of the ring."""
    return np.roll(order, distance)


def _gather(b: Builder, rings: list[Ints], kv: Ints) -> None:
    for step in range(1, b.num_ranks):
        for head, order in enumerate(rings):
            b.transfer(
                src=_owners(order, 1), dst=order, items=kv[_owners(order, step), head],
                level=step - 1, stream=f"gather{head}", slot=_slot(b, 0, head, step),
            )  # fmt: skip


def _slot(b: Builder, use: int, head: int, step: int) -> int:
    """Number the slot of what comes from a distance: use 0 holds KV, 1 gradients."""
    return (use * b.workload.num_kv_heads + head) * b.num_ranks + step


def _attend(b: Builder, rings: list[Ints], kv: Ints) -> None:
    """Attend everything as one kernel."""
    keys, slots = [], []
    for head, order in enumerate(rings):
        place = np.argsort(order)
        for step in range(b.num_ranks):
            keys.append(kv[_owners(order, step)[place], head])
            slots.append(_slot(b, 1, head, step) if step else HOME)
    b.attend(
        rank=b.ranks, queries=b.shards("q"), keys=np.stack(keys, axis=1),
        key_slot=np.array([slots]) if b.direction == "backward" else HOME,
    )  # fmt: skip


def _scatter(b: Builder, rings: list[Ints], dkv: Ints) -> None:
    """Pass the gradient of each shard around its ring, home; zeros are not sent."""
    needs = b.areas(b.shards("q")[:, None], b.shards("kv")) > 0
    there = [np.zeros(b.num_ranks, bool) for _ in rings]
    for step in range(1, b.num_ranks):
        for head, order in enumerate(rings):
            # The gradient that is at `order` now is home after the ranks - step hops to come.
            owner = _owners(order, step)
            there[head] = needs[order, owner] | np.roll(there[head], 1)
            home = step == b.num_ranks - 1
            b.transfer(
                src=order, dst=np.roll(order, -1),
                items=np.where(there[head], dkv[owner, head], -1), level=step - 1,
                stream=f"scatter{head}", slot=HOME if home else _slot(b, 1, head, step + 1),
            )  # fmt: skip
