"""What the ops of a plan occupy: fixed delays, or flows over capacities of the topology.

Flows are numbered by row; where a host that all ranks share works on every op first, that is flow
``len(plan) + row``.

Under the condition `ramp` a transfer has a cap of its own, by its size. Under `interference`
attends and merges are flows of seconds of work that the transfers of their device slow down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.plans.plan import TRANSFER
from charm_sched.plans.symmetry_machine import crossings
from charm_sched.simulator.interference import Disturbance, find_disturbance
from charm_sched.simulator.maxmin import RouteTable, compile_routes
from charm_sched.topology.conditions import RAMP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from charm_sched.cost import Costs
    from charm_sched.plans.plan import Plan
    from charm_sched.testbed.host_cost import HostCost
    from charm_sched.topology.graph import Route, Topology

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Resources:
    """Per row: first a delay, then nothing more or, if fluid, a flow.

    A transfer is delayed by the latency of its route and flows if it has bytes. An attend or merge
    is delayed by its duration; where several compute streams share the device it is a flow of
    seconds of work over a capacity of one second of work per second.

    Attributes:
        delay: Seconds, float64.
        fluid: Whether a flow follows, bool.
        route: Route of each flow in `table`, int64, ``[ops]`` or, with a host, ``[2 ops]``.
        size: Bytes, or seconds of work, float64, like `route`.
        table: The routes.
        disturbed: What transfers do to kernels; None where they run undisturbed.
    """

    delay: Floats
    fluid: NDArray[np.bool_]
    route: Ints
    size: Floats
    table: RouteTable
    disturbed: Disturbance | None = None


def find_resources(
    plan: Plan, topology: Topology, costs: Costs, host: HostCost | None = None
) -> Resources:
    """Find what each op occupies.

    Raises:
        TopologyError: There is no route between two devices.
        PlanError: The plan has a symmetry that the machine lacks.
    """
    columns = plan.columns
    moves = np.flatnonzero(columns.op == TRANSFER)
    pairs, which, routes, caps = _routes(plan, topology, moves)
    delay, size = costs.seconds.copy(), np.zeros(len(plan))
    route = np.zeros(len(plan), np.int64)
    route[moves] = which
    delay[moves] = np.array([r.latency for r in routes])[which] if routes else 0.0
    size[moves] = plan.op_bytes[moves]
    crossed: list[tuple[int, ...]] = [r.capacities for r in routes]
    disturbed = find_disturbance(plan, topology)
    shared, number = _shared_kernels(plan)
    if disturbed is not None:
        shared, number = np.flatnonzero(columns.op != TRANSFER), np.zeros(1, np.int64)
    route[shared] = len(crossed) + number
    size[shared], delay[shared] = costs.seconds[shared], 0.0
    engines = int(number.max(initial=-1)) + 1
    if host is not None:
        # All flows of the host share one more capacity of a second of work per second.
        work = np.where(columns.op == TRANSFER, host.message, host.kernel)
        route, size = (
            np.append(route, np.full(len(plan), len(crossed) + engines)),
            np.append(size, work),
        )
        engines += 1
    crossed += [(len(topology.capacities) + i,) for i in range(engines)]
    times = None
    if plan.symmetry:
        ends = np.stack(np.divmod(pairs, plan.num_ranks))
        times = crossings(topology, plan.devices, plan.symmetry, ends)
        times = np.concatenate([times, np.ones(engines)])
    return Resources(
        delay=delay,
        fluid=size[: len(plan)] > 0,
        route=route,
        size=size,
        table=compile_routes(
            crossed,
            np.array([c.bandwidth for c in topology.capacities] + [1.0] * engines),
            caps + [np.inf] * engines,
            times,
        ),
        disturbed=disturbed,
    )


def _routes(
    plan: Plan, topology: Topology, moves: Ints
) -> tuple[Ints, Ints, list[Route], list[float]]:
    """Give what transfers cross.

    Returns:
        Per distinct route of flows the pair of ranks (source times ranks plus destination); the
        route of each transfer; and per route the way and the most that a flow gets.
    """
    columns = plan.columns
    packed = columns.rank[moves].astype(np.int64) * plan.num_ranks + columns.peer[moves]
    pairs, which = np.unique(packed, return_inverse=True)
    ways = [
        topology.route(plan.devices[pair // plan.num_ranks], plan.devices[pair % plan.num_ranks])
        for pair in pairs.tolist()
    ]
    caps = [way.flow_cap for way in ways]
    if RAMP not in topology.under:
        return pairs, which.reshape(-1), ways, caps
    # Messages of one size between two ranks are flows of one kind.
    sizes, number = np.unique(plan.op_bytes[moves], return_inverse=True)
    kinds, which = np.unique(
        which.reshape(-1) * len(sizes) + number.reshape(-1), return_inverse=True
    )
    of, size = np.divmod(kinds, max(len(sizes), 1))
    caps = [
        topology.message_cap(ways[way], float(sizes[at]))
        for way, at in zip(of.tolist(), size.tolist(), strict=True)
    ]
    return pairs[of], which.reshape(-1), [ways[way] for way in of.tolist()], caps


def _shared_kernels(plan: Plan) -> tuple[Ints, Ints]:
    """Give the attends and merges on devices with several compute streams, and a device number."""
    columns = plan.columns
    rows = np.flatnonzero(columns.op != TRANSFER)
    names: dict[str, int] = {}
    device = np.array([names.setdefault(name, len(names)) for name in plan.devices], np.int64)
    streams = len(plan.streams)
    lanes = columns.rank[rows].astype(np.int64) * streams + columns.stream[rows]
    used = np.flatnonzero(np.bincount(lanes, minlength=plan.num_ranks * streams))
    busy = np.bincount(device[used // streams], minlength=len(names)) > 1
    where = device[columns.rank[rows]]
    number = np.cumsum(busy) - 1
    return rows[busy[where]], number[where[busy[where]]]


__all__ = ["Resources", "find_resources"]
