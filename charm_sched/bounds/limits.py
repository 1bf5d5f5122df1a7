"""The bounds of plans, and the check that no simulation beats them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from charm_sched.bounds.bound import choose_devices
from charm_sched.bounds.class_bound import class_bound, own_work
from charm_sched.bounds.schedule_bound import bound
from charm_sched.partition import Partition, partitions_for
from charm_sched.planners.strategies import residents
from charm_sched.plans.items import KINDS
from charm_sched.plans.plan import TRANSFER, Plan

if TYPE_CHECKING:
    from charm_sched.bounds.bound import Bound
    from charm_sched.bounds.demands import Saved
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload

TOLERANCE = 1e-9  # relative; what rounding in the simulator may take off
KEY_KINDS = ("kv", "dkv")


class BoundError(AssertionError):
    """A simulation was faster than a bound: one of the two is wrong. A mistake of this program."""


class Limits:
    """The bounds of the plans for one machine, workload and choice of devices, each found once."""

    def __init__(self, topology: Topology, workload: Workload, devices: Sequence[str]) -> None:
        self._topology, self._workload, self._devices = topology, workload, tuple(devices)
        self._known: dict[tuple[object, ...], Bound] = {}
        self._work: dict[tuple[str, Partition], float] = {}

    def of(self, plan: Plan) -> tuple[Bound, Bound | None]:
        """Give the bound of any schedule with a plan's partition, and that of its class.

        The second is None for plans that move anything but keys, values and their gradients.
        """
        saved = residents(plan) if plan.direction == "backward" else ()
        facts = (plan.direction, plan.partition, saved)
        return self._get(bound, *facts), self._get(class_bound, *facts) if moves_keys(
            plan
        ) else None

    def any_schedule(self, direction: str, partition: Partition) -> Bound:
        """Give the bound of any schedule that starts without residents."""
        return self._get(bound, direction, partition)

    def floors(self, direction: str, partition: Partition, *, keys: bool) -> Iterator[float]:
        """Yield seconds that no plan without residents can beat, the cheapest to find first.

        Args:
            direction: ``forward`` or ``backward``.
            partition: Who owns which rows.
            keys: The plan moves just keys, values and their gradients.
        """
        if keys:
            yield self.work(direction, partition, keys=True)
        yield self.any_schedule(direction, partition).seconds
        if keys:
            yield self._get(class_bound, direction, partition).seconds

    def work(self, direction: str, partition: Partition, *, keys: bool) -> float:
        """Give the seconds that computation alone takes at least, whatever is resident."""
        if not keys:
            return self.any_schedule(direction, partition).compute
        key = (direction, partition)
        if key not in self._work:
            self._work[key] = own_work(
                self._topology, self._devices, self._workload, partition, direction
            )[0]
        return self._work[key]

    def _get(
        self, kind: Callable[..., Bound], direction: str, partition: Partition, saved: Saved = ()
    ) -> Bound:
        key = (kind, direction, partition, saved)
        if key not in self._known:
            self._known[key] = kind(
                self._topology,
                self._workload,
                direction=direction,
                partition=partition,
                devices=self._devices,
                saved=saved,
            )
        return self._known[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimit:
    """What a machine allows in one direction, before there is any plan.

    Attributes:
        direction: ``forward`` or ``backward``.
        bound: Of any schedule.
        partition: The partition with the least `class_bound`.
        class_bound: Of plans that move just keys, values and their gradients.
    """

    direction: str
    bound: Bound
    partition: str
    class_bound: Bound


def machine_limits(
    topology: Topology,
    workload: Workload,
    *,
    directions: Sequence[str],
    partition: str = "auto",
    ranks: int | None = None,
    devices: Sequence[str] | None = None,
) -> list[MachineLimit]:
    """Give the bounds of a machine; with partition ``auto`` those of the best partition.

    Raises:
        WorkloadError: An unknown partition, or both ``ranks`` and ``devices``.
        TopologyError: Unknown devices, or no rate for the dtype.
    """
    chosen = choose_devices(topology, ranks, devices)
    found = []
    for direction in directions:
        limits = {
            kind: class_bound(
                topology, workload, direction=direction, partition=kind, devices=chosen
            )
            for kind in (partitions_for(workload) if partition == "auto" else (partition,))
        }
        best = min(limits, key=lambda kind: (limits[kind].seconds, limits[kind].compute))
        shards = None if partition == "auto" else partition
        found.append(
            MachineLimit(
                direction=direction,
                bound=bound(
                    topology, workload, direction=direction, partition=shards, devices=chosen
                ),
                partition=best,
                class_bound=limits[best],
            )
        )
    return found


def moves_keys(plan: Plan) -> bool:
    """Say whether a plan moves keys, values and their gradients, and nothing else."""
    columns = plan.columns
    args = np.repeat(columns.op == TRANSFER, np.diff(columns.ptr))
    kinds = np.unique(plan.items.kind[columns.arg[args]])
    return {KINDS[kind] for kind in kinds.tolist()} <= set(KEY_KINDS)


def check(plan: Plan, params: Mapping[str, Any], makespan: float, *limits: Bound | None) -> None:
    """Check that a simulation is not faster than the bounds.

    Raises:
        BoundError: It is.
    """
    for limit in limits:
        if limit is not None and makespan < limit.seconds * (1 - TOLERANCE):
            raise BoundError(
                f"internal error: {plan.strategy} {dict(params)} ({plan.direction}, "
                f"{plan.partition.kind}) is simulated to take {makespan!r} s, less than its bound "
                f"of {limit.seconds!r} s by {limit.reason}; please report it with the topology"
            )
