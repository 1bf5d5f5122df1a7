"""How long each attend and merge takes on its device when nothing else runs there.

An attend takes its unmasked work over the device's sustained rate, plus the overhead of one kernel.
The causal rate holds where the mask leaves out part of the kernel's rectangle, the full rate where
it leaves out nothing. A merge is bound by memory: it reads its inputs and its output, and writes
its output.

Under the condition `short_kernels` a kernel has the rate of its *length*: of as many queries as
keys that would be as much work per head without a mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.masks.areas import attend_pairs, attend_work, shared_heads
from charm_sched.plans.plan import ATTEND, MERGE
from charm_sched.topology.conditions import SHORT_KERNELS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from charm_sched.arrays import Ints
    from charm_sched.plans.plan import Plan
    from charm_sched.topology.graph import Topology
    from charm_sched.topology.profiles import ComputeProfile


@dataclass(frozen=True, eq=False, kw_only=True)
class Costs:
    """Undisturbed times of a plan's computation.

    Attributes:
        seconds: Per row, float64; 0 for transfers.
        notes: What had to be assumed, one sentence each.
    """

    seconds: NDArray[np.float64]
    notes: tuple[str, ...]


def op_seconds(plan: Plan, topology: Topology) -> Costs:
    """Give the undisturbed time of every attend and merge on the device of its rank.

    Raises:
        TopologyError: A device is not there, or its profile knows nothing about the dtype.
    """
    profiles, which = _profiles(plan, topology)
    columns = plan.columns
    kernels = np.flatnonzero(columns.op != 0)
    which = which[columns.rank[kernels]]
    work, dense = attend_work(plan)
    masked = (work < dense)[kernels]
    attends = columns.op[kernels] == ATTEND
    rates, notes = _rates(plan, profiles, which, attends, masked)
    sustained = rates[which, masked.astype(np.int64)]
    if SHORT_KERNELS in topology.under:
        lengths = kernel_lengths(plan, dense)[kernels]
        sustained = _at_lengths(plan, profiles, sustained, lengths, (which, attends, masked))
    flops = work[kernels] * float(plan.workload.flops_per_pair(plan.direction))
    overhead = np.array([profile.overhead for profile in profiles])
    memory = np.array([profile.memory_bandwidth for profile in profiles])
    moved = _merge_bytes(plan)[kernels]
    seconds = np.zeros(len(plan))
    seconds[kernels] = overhead[which] + np.where(attends, flops / sustained, moved / memory[which])
    return Costs(seconds=seconds, notes=notes)


def _profiles(plan: Plan, topology: Topology) -> tuple[list[ComputeProfile], Ints]:
    """Give the distinct profiles, and the number of each rank's one."""
    found: dict[int, int] = {}
    profiles: list[ComputeProfile] = []
    ranks = []
    for name in plan.devices:
        profile = topology.device(name).compute
        if id(profile) not in found:
            found[id(profile)] = len(profiles)
            profiles.append(profile)
        ranks.append(found[id(profile)])
    return profiles, np.array(ranks, np.int64)


def _rates(
    plan: Plan,
    profiles: list[ComputeProfile],
    which: Ints,
    attends: NDArray[np.bool_],
    masked: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Look up FLOP/s as ``[profile, full or masked]``, just the ones that are used, with notes."""
    rates, notes = np.ones((len(profiles), 2)), []
    used = np.unique(2 * which[attends] + masked[attends])
    for number, causal in (divmod(code, 2) for code in used.tolist()):
        rate, note = profiles[number].rate(
            direction=plan.direction,
            head_dim=plan.workload.head_dim,
            causal=bool(causal),
            dtype=plan.workload.dtype,
        )
        rates[number, causal] = rate
        notes += [note] if note else []
    return rates, tuple(dict.fromkeys(notes))


def kernel_lengths(plan: Plan, dense: Ints) -> NDArray[np.float64]:
    """Give the length of each attend: the side of a square of its (query, key) pairs per head.

    Args:
        plan: Whose rows.
        dense: The (query, key, head) triples of each row without a mask.
    """
    rows, query, key = attend_pairs(plan)
    first, last = shared_heads(plan, plan.columns.arg[query], plan.columns.arg[key])
    heads = np.ones(len(plan), np.int64)
    np.maximum.at(heads, rows, last - first)
    return np.sqrt(dense / heads)


def _at_lengths(
    plan: Plan,
    profiles: list[ComputeProfile],
    rates: NDArray[np.float64],
    lengths: NDArray[np.float64],
    kernels: tuple[Ints, NDArray[np.bool_], NDArray[np.bool_]],
) -> NDArray[np.float64]:
    """Put the rate of its length in place of each attend's, where its profile has such a table.

    Args:
        plan: Whose kernels.
        profiles: The different profiles.
        rates: FLOP/s of long sequences, per kernel.
        lengths: Of the kernels.
        kernels: Number of the profile, whether it is an attend, whether it is masked.
    """
    found = rates.copy()
    which, attends, masked = kernels
    used = np.unique(2 * which[attends] + masked[attends])
    for number, causal in (divmod(code, 2) for code in used.tolist()):
        entry = profiles[number].entry(
            direction=plan.direction,
            head_dim=plan.workload.head_dim,
            causal=bool(causal),
            dtype=plan.workload.dtype,
        )
        if entry is None:
            continue
        chosen = np.flatnonzero(attends & (which == number) & (masked == bool(causal)))
        distinct, place = np.unique(lengths[chosen], return_inverse=True)
        found[chosen] = np.array([entry.at(n) for n in distinct.tolist()])[place.reshape(-1)]
    return found


def _merge_bytes(plan: Plan) -> Ints:
    """Bytes that each merge reads and writes; 0 for other rows."""
    columns = plan.columns
    if not (columns.op == MERGE).any():
        return np.zeros(len(plan), np.int64)
    sizes = plan.item_bytes[columns.arg]
    totals = np.concatenate([[0], np.cumsum(sizes)])
    output = sizes[columns.ptr[1:] - 1]
    moved = totals[columns.ptr[1:]] - totals[columns.ptr[:-1]] + output
    return np.where(columns.op == MERGE, moved, 0).astype(np.int64)


__all__ = ["Costs", "kernel_lengths", "op_seconds"]
