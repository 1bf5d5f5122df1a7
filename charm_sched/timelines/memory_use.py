"""Memory over time: what of a rank's buffers is in use when, by kind of item.

Home buffers hold the rank's own shards all along. A slot is in use from the start of the op that
fills it to the end of the last op that uses its content. What a rank reserves is more: every slot
at the size of the largest thing ever put into it (`charm_sched.proof.memory`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.plans.items import KINDS
from charm_sched.proof.hazards import find_hazards
from charm_sched.proof.memory import access_bytes, home_bytes, home_bytes_by_kind, peak_bytes

if TYPE_CHECKING:
    from charm_sched.arrays import Floats, Ints
    from charm_sched.proof.hazards import Hazards
    from charm_sched.timelines.timeline import Timeline

MOST_OPERATIONS = 300_000
"""Operations up to which the commands look at memory over time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What one rank needs.

    Attributes:
        rank: Which.
        device: Its device; empty where the plan names none.
        reserved: Bytes of its buffers, which are there from start to end.
        in_use: Bytes that are in use at the most.
        at: When that is for the first time, in seconds.
        own: Bytes of its own shards, by kind of item.
        slots: Bytes in slots at that time, by kind of item; what is not there is left out.
        capacity: Bytes that its device has; None where unknown.
    """

    rank: int
    device: str
    reserved: int
    in_use: int
    at: float
    own: Mapping[str, int]
    slots: Mapping[str, int]
    capacity: float | None


@dataclass(frozen=True, eq=False, kw_only=True)
class _Stays:
    """Contents of slots: where, what, how many bytes, from when to when."""

    rank: Ints
    kind: Ints
    size: Ints
    start: Floats
    end: Floats


def memory_use(timeline: Timeline) -> tuple[RankMemory, ...]:
    """Give the memory of every rank; of a plan by symmetry, of its representatives.

    Raises:
        PlanError: Items and slots contradict themselves.
    """
    plan, machine = timeline.plan, timeline.topology
    hazards = find_hazards(plan)
    stays, own = _stays(timeline, hazards), home_bytes_by_kind(plan)
    reserved, home = peak_bytes(plan, hazards), home_bytes(plan)
    ranks = range(plan.num_ranks)
    if plan.symmetry:
        ranks = plan.symmetry.representatives().tolist()
    found = []
    for rank in ranks:
        mine = np.flatnonzero(stays.rank == rank)
        at, most = _peak(stays.start[mine], stays.end[mine], stays.size[mine])
        there = mine[(stays.start[mine] <= at) & (stays.end[mine] > at)]
        kinds = np.bincount(stays.kind[there], stays.size[there], minlength=len(KINDS))
        device = plan.devices[rank] if plan.devices else ""
        found.append(
            RankMemory(
                rank=rank,
                device=device,
                reserved=int(reserved[rank]),
                in_use=int(home[rank]) + most,
                at=at,
                own={kind: int(bytes_of[rank]) for kind, bytes_of in own.items()},
                slots={KINDS[k]: int(n) for k, n in enumerate(kinds.tolist()) if n},
                capacity=machine.device(device).memory if machine and device else None,
            )
        )
    return tuple(found)


def memory_over_time(timeline: Timeline, rank: int) -> tuple[Floats, Ints]:
    """Give when a rank's bytes in use change, in seconds ascending, and how many there are then.

    Raises:
        PlanError: Items and slots contradict themselves.
    """
    hazards = find_hazards(timeline.plan)
    stays = _stays(timeline, hazards)
    mine = np.flatnonzero(stays.rank == rank)
    times, used = _steps(stays.start[mine], stays.end[mine], stays.size[mine])
    return times, used + int(home_bytes(timeline.plan)[rank])


def _stays(timeline: Timeline, hazards: Hazards) -> _Stays:
    plan, taken = timeline.plan, hazards.occupancies
    # Residents are there before the first row (-1), or stay after the last (the number of rows).
    starts = np.concatenate([timeline.start, [0.0]])
    ends = np.concatenate([timeline.end, [timeline.makespan]])
    return _Stays(
        rank=taken.rank,
        kind=hazards.accesses.kind[taken.access],
        size=access_bytes(plan, hazards.accesses, taken.access),
        start=starts[taken.first],
        end=ends[taken.last],
    )


def _steps(start: Floats, end: Floats, size: Ints) -> tuple[Floats, Ints]:
    """Add up: at each time at which something begins or ends, what is there from then on."""
    times = np.concatenate([[0.0], start, end])
    change = np.concatenate([[0], size, -size])
    distinct, where = np.unique(times, return_inverse=True)
    sums = np.zeros(len(distinct), np.int64)
    np.add.at(sums, where.reshape(-1), change)
    return distinct, np.cumsum(sums)


def _peak(start: Floats, end: Floats, size: Ints) -> tuple[float, int]:
    times, used = _steps(start, end, size)
    top = int(used.argmax())
    return float(times[top]), int(used[top])


def fullest(ranks: tuple[RankMemory, ...]) -> RankMemory:
    """Give the rank with the least room, or the largest need where memories are unknown."""
    return max(
        ranks,
        key=lambda r: (r.reserved - r.capacity if r.capacity is not None else 0.0, r.reserved),
    )


__all__ = ["MOST_OPERATIONS", "RankMemory", "fullest", "memory_over_time", "memory_use"]
