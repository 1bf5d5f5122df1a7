"""Plans of several groups of ranks as one plan, so that all of them run on a machine together.

Each group attends to a sequence of its own. Laid end to end these are packed documents, none of
which sees another: so the plans together are again a plan for one workload, that can be verified
and simulated like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.errors import PlanError
from charm_sched.masks.mask import Mask
from charm_sched.partition import Partition
from charm_sched.plans.items import ItemTable
from charm_sched.plans.plan import Columns, Plan, Residents

if TYPE_CHECKING:
    from charm_sched.workload import Workload

DOCUMENTS = {"causal": "docs", "full": "docs-full"}


def packed(workload: Workload, groups: int) -> Workload:
    """Give the workload of several groups: their sequences as packed documents.

    Raises:
        PlanError: The mask is neither full nor causal.
    """
    kind = workload.mask_rule.kind
    if kind not in DOCUMENTS:
        raise PlanError(f"groups side by side: expected a full or causal mask, found {kind}")
    documents = (workload.seq_len,) * groups
    mask = Mask(kind=DOCUMENTS[kind], documents=documents)
    return replace(workload, seq_len=groups * workload.seq_len, mask=mask)


def side_by_side(plans: Sequence[Plan]) -> Plan:
    """Put plans of one direction and workload for different devices into one plan.

    Rank 0 of the second plan follows the last rank of the first, and so on.

    Raises:
        PlanError: Plans of different workloads or directions, a device twice, or another mask than
            full or causal.
    """
    first = plans[0]
    for plan in plans:
        if (plan.workload, plan.direction) != (first.workload, first.direction):
            raise PlanError("groups side by side: expected one workload and direction")
        if plan.symmetry is not None:
            raise PlanError("groups side by side: expected plans with all their rows")
    devices = tuple(name for plan in plans for name in plan.devices)
    if len(set(devices)) != len(devices):
        raise PlanError("groups side by side: expected different devices, found one twice")
    streams = tuple(dict.fromkeys(name for plan in plans for name in plan.streams))
    length = first.workload.seq_len
    shards = [
        tuple((low + number * length, high + number * length) for low, high in shard)
        for number, plan in enumerate(plans)
        for shard in plan.partition.shards
    ]
    return replace(
        first,
        workload=packed(first.workload, len(plans)),
        partition=Partition("custom", length * len(plans), tuple(shards)),
        devices=devices,
        streams=streams,
        items=_items(plans, length),
        columns=_columns(plans, streams),
        saved=_saved(plans),
    )


def _items(plans: Sequence[Plan], length: int) -> ItemTable:
    tables = [plan.items for plan in plans]
    sets = _offsets([len(table.row_ptr) - 1 for table in tables])
    runs = _offsets([len(table.row_lo) for table in tables])

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(table, name) for table in tables])

    return ItemTable(
        kind=joined("kind"),
        rows=_shifted([table.rows for table in tables], sets),
        head_lo=joined("head_lo"),
        head_hi=joined("head_hi"),
        part=joined("part"),
        row_ptr=_pointers([table.row_ptr for table in tables], runs),
        row_lo=_shifted(
            [table.row_lo for table in tables], [n * length for n in range(len(plans))]
        ),
        row_hi=_shifted(
            [table.row_hi for table in tables], [n * length for n in range(len(plans))]
        ),
    )


def _columns(plans: Sequence[Plan], streams: tuple[str, ...]) -> Columns:
    columns = [plan.columns for plan in plans]
    ranks = _offsets([plan.num_ranks for plan in plans])
    items = _offsets([len(plan.items) for plan in plans])
    args = _offsets([len(column.arg) for column in columns])
    number = {name: at for at, name in enumerate(streams)}
    named = [
        np.array([number[name] for name in plan.streams], np.int16)[plan.columns.stream]
        for plan in plans
    ]
    peers = [
        np.where(column.peer < 0, column.peer, column.peer + rank)
        for column, rank in zip(columns, ranks, strict=True)
    ]

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(column, name) for column in columns])

    return Columns(
        op=joined("op"),
        rank=_shifted([column.rank for column in columns], ranks),
        peer=np.concatenate(peers).astype(np.int32),
        level=joined("level"),
        stream=np.concatenate(named),
        part=joined("part"),
        lead=joined("lead"),
        ptr=_pointers([column.ptr for column in columns], args),
        arg=_shifted([column.arg for column in columns], items),
        slot=joined("slot"),
    )


def _saved(plans: Sequence[Plan]) -> Residents:
    ranks = _offsets([plan.num_ranks for plan in plans])
    items = _offsets([len(plan.items) for plan in plans])
    return Residents(
        rank=_shifted([plan.saved.rank for plan in plans], ranks),
        item=_shifted([plan.saved.item for plan in plans], items),
        slot=np.concatenate([plan.saved.slot for plan in plans]),
    )


def _offsets(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:number]) for number in range(len(counts))]


def _shifted(arrays: Sequence[np.ndarray], offsets: Sequence[int]) -> np.ndarray:
    parts = [array + offset for array, offset in zip(arrays, offsets, strict=True)]
    return np.concatenate(parts).astype(arrays[0].dtype)


def _pointers(arrays: Sequence[np.ndarray], offsets: Sequence[int]) -> np.ndarray:
    parts = [array[:-1] + offset for array, offset in zip(arrays, offsets, strict=True)]
    last = arrays[-1][-1:] + offsets[-1]
    return np.concatenate([*parts, last]).astype(np.int64)


__all__ = ["packed", "side_by_side"]
