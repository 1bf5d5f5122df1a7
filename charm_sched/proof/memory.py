"""Peak memory of a plan, per rank, in bytes.

Counted: the home buffers of the pass (the rank's own shards of what the direction needs and makes;
partial results at home in the wire dtype, as they are accumulated) and every slot at the size of
the largest thing ever put into it. Not counted: the kernel's workspace and the framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.partition import count_rows
from charm_sched.plans.items import HOME, KINDS, KV_AXIS

if TYPE_CHECKING:
    from charm_sched.plans.plan import Plan
    from charm_sched.proof.accesses import Accesses
    from charm_sched.proof.hazards import Hazards

HOME_KINDS = {"forward": ("q", "kv", "o"), "backward": ("q", "kv", "g", "dq", "dkv")}


def home_bytes(plan: Plan) -> Ints:
    """Give the bytes of each rank's own buffers, ``[num_ranks]``."""
    return np.sum(list(home_bytes_by_kind(plan).values()), axis=0)


def home_bytes_by_kind(plan: Plan) -> Mapping[str, Ints]:
    """Give the bytes of each rank's own buffers of each kind of item, ``[num_ranks]`` each."""
    work = plan.workload
    rows = np.array([count_rows(shard) for shard in plan.partition.shards], np.int64)
    found = {}
    for kind in HOME_KINDS[plan.direction]:
        axis = work.num_kv_heads if KINDS.index(kind) in KV_AXIS else work.heads
        found[kind] = rows * axis * work.row_bytes(kind)
    return found


def access_bytes(plan: Plan, accesses: Accesses, at: Ints) -> Ints:
    """Give the bytes of what some accesses read or write."""
    width = np.array([plan.workload.row_bytes(name) for name in KINDS], np.int64)
    items, item = plan.items, accesses.item[at]
    heads = (items.head_hi - items.head_lo).astype(np.int64)
    return (items.row_counts[items.rows] * heads)[item] * width[accesses.kind[at]]


def slot_bytes(plan: Plan, hazards: Hazards) -> tuple[Ints, ...]:
    """Give the size of every slot in use: arrays of rank, slot number and bytes."""
    accesses = hazards.accesses
    at = np.flatnonzero(accesses.writes & (accesses.slot != HOME))
    volume = access_bytes(plan, accesses, at)
    rank, slot = accesses.rank[at], accesses.slot[at]
    if not len(at):
        return rank, slot, volume
    span = int(slot.max()) + 1
    lanes, where = np.unique(rank * span + slot, return_inverse=True)
    sizes = np.zeros(len(lanes), np.int64)
    np.maximum.at(sizes, where.reshape(-1), volume)
    return lanes // span, lanes % span, sizes


def peak_bytes(plan: Plan, hazards: Hazards) -> Ints:
    """Give the peak memory of each rank, ``[num_ranks]``."""
    rank, _, sizes = slot_bytes(plan, hazards)
    slots = np.bincount(rank, weights=sizes, minlength=plan.num_ranks).astype(np.int64)
    if plan.symmetry:
        slots = slots[plan.symmetry.representative(np.arange(plan.num_ranks))]
    return home_bytes(plan) + slots
