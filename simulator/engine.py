"""Plan and topology to Timeline: SimPy is the clock, and each instant is one step over all ops.

SimPy's queue holds one event per distinct time at which a kernel ends, a path's latency has passed
or the next flow ends. All events within a relative 1e-12 of now are one step: what ended releases
what waited for it, what is ready starts, and the capacities are shared out again. A step with few
ops runs in plain Python, one with many in NumPy, on the same arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import simpy

from charm_sched.cost import op_seconds
from charm_sched.errors import SimulationError
from charm_sched.proof.waits import find_waits
from charm_sched.simulator.interference import DisturbedNetwork
from charm_sched.simulator.network import Network, Starved
from charm_sched.simulator.resources import find_resources
from charm_sched.timelines.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from charm_sched.plans.plan import Plan
    from charm_sched.proof.hazards import Edges
    from charm_sched.proof.waits import Waits
    from charm_sched.simulator.resources import Resources
    from charm_sched.testbed.host_cost import HostCost
    from charm_sched.topology.graph import Topology

    Ints = NDArray[np.int64]
    Rows = list[int] | Ints

TOLERANCE = 1e-12  # relative to now; later than that is another instant
FEW = 48  # nodes per step; below this plain Python beats NumPy


class TooLate(Exception):  # noqa: N818  (an answer, not an error)
    """A plan takes longer than it was asked about."""


def simulate(
    plan: Plan,
    topology: Topology | None = None,
    *,
    rule: str = "grouped",
    until: float = np.inf,
    host: HostCost | None = None,
    edges: Edges | None = None,
) -> Timeline:
    """Give the start and end of every op of a plan on a topology.

    Args:
        plan: What is done.
        topology: The machine; None for the one the plan was made for.
        rule: ``grouped``, where a batch of transfers starts and ends as one (NCCL), or ``free``,
            where each transfer waits for its own input and slot alone (gloo).
        until: Seconds after which nobody wants to know how long the plan takes.
        host: What a host that all ranks share works on each op before the op's own time; None: no
            work.
        edges: What follows from the plan's items and slots, where that is known already.

    Raises:
        TooLate: It takes longer than ``until``.
        SimulationError: No topology, a device that it lacks, a transfer without bandwidth, or ops
            that wait for each other.
        PlanError: The rule is unknown, or items and slots contradict themselves.
        TopologyError: There is no route between two devices, or no rate for the dtype.
    """
    machine = topology or plan.topology
    if machine is None:
        raise SimulationError("simulate: expected a topology, found none here and none in the plan")
    _check_devices(plan, machine)
    costs = op_seconds(plan, machine)
    resources = find_resources(plan, machine, costs, host)
    engine = _Engine(plan, find_waits(plan, rule, edges), resources, until)
    start, end = engine.run()
    return Timeline(
        plan=plan,
        start=start,
        end=end,
        source="simulated",
        topology=machine,
        costs=costs,
        rule=rule,
    )


def _check_devices(plan: Plan, topology: Topology) -> None:
    if len(plan.devices) != plan.num_ranks:
        raise SimulationError(
            f"simulate: expected a device for each of {plan.num_ranks} ranks, found "
            f"{len(plan.devices)} in the plan"
        )
    missing = set(plan.devices) - set(topology.device_names)
    if missing:
        names = ", ".join(sorted(missing)[:4])
        raise SimulationError(
            f"simulate: expected the plan's devices in {topology.name}, it lacks {names}"
        )


def _network_of(resources: Resources) -> Network:
    flows = resources.table, resources.route, resources.size
    if resources.disturbed is None:
        return Network(*flows)
    return DisturbedNetwork(*flows, resources.disturbed)


class _Engine:
    """The state of one simulation."""

    def __init__(self, plan: Plan, waits: Waits, resources: Resources, until: float) -> None:
        self._plan, self._until = plan, until
        self._num_ops = len(plan)
        self._ptr, self._after = waits.ptr, waits.after
        self._open = waits.count.copy()
        self._start = np.full(len(plan), np.nan)
        self._end = np.full(len(plan), np.nan)
        # A started op waits for its delay; then it is over or, if fluid, becomes a flow.
        self._delay = resources.delay
        self._fluid = resources.fluid
        self._hosted = len(resources.size) > len(plan)
        self._network = _network_of(resources)
        self._clock = simpy.Environment()
        self._ended: list[Rows] = []
        self._flows: list[Rows] = []
        self._round, self._round_due = 0, -1  # of sharing out the capacities
        # Single elements are read and written several times as fast through these.
        self._ptr_at, self._after_at, self._open_at = (
            self._ptr.data,
            self._after.data,
            self._open.data,
        )
        self._start_at = cast("memoryview[float]", self._start.data)
        self._end_at = cast("memoryview[float]", self._end.data)
        self._delay_at = cast("memoryview[float]", self._delay.data)
        self._fluid_at = cast("memoryview[bool]", self._fluid.data)

    def run(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Run to the end and give start and end of every op."""
        try:
            self._run()
        except Starved as starved:
            what = self._plan.describe(starved.row)
            raise SimulationError(f"{what}: gets no bandwidth on its route") from starved
        if np.isnan(self._end).any():
            raise SimulationError(self._stuck())
        return self._start, self._end

    def _run(self) -> None:
        clock = self._clock
        self._advance_many(np.flatnonzero(self._open == 0), released=True)
        self._share()
        while (first := clock.peek()) < np.inf:
            if first > self._until:
                raise TooLate
            horizon = first * (1 + TOLERANCE)
            while clock.peek() <= horizon:
                clock.step()
            self._step()

    def _at(self, delay: float, action: Callable[[simpy.Event], None]) -> None:
        """Set the clock: have something noted after a delay."""
        event = self._clock.timeout(delay)
        event.callbacks.append(action)

    def _step(self) -> None:
        """Do everything that is due now."""
        now = self._clock.now
        ended = self._ended.copy()
        self._ended.clear()
        if self._round_due == self._round:
            ended.append(self._end_flows(self._network.take_ended(now)))
        for rows in self._flows:
            self._network.begin(rows, now)
        self._flows.clear()
        if sum(map(len, ended)) <= FEW:
            self._advance_few([int(row) for rows in ended for row in rows])
        else:
            self._advance_many(np.concatenate(ended))
        self._share()

    def _end_flows(self, flows: Ints) -> Ints:
        """Go on with the ops that the host is done with, and give the rows that are over."""
        if not self._hosted:
            return flows
        over = flows < self._num_ops
        self._start_groups(flows[~over] - self._num_ops)
        return flows[over]

    def _share(self) -> None:
        """Share out the capacities, and set the clock for the next flow that ends."""
        now, network = self._clock.now, self._network
        if not network.update(now):
            return
        self._round = this_round = self._round + 1
        if network.finish < np.inf:
            delay = max(network.finish - now, 0.0)
            self._at(delay, lambda _: self._note_due(this_round))

    def _note_due(self, round_: int) -> None:
        """Note that a flow ends; an older round that is due in the same instant is stale."""
        self._round_due = max(self._round_due, round_)

    def _advance_few(self, nodes: list[int]) -> None:
        """End ops, open gates, and start what waited for them alone."""
        num_ops, now = self._num_ops, self._clock.now
        ptr, after, waits, end = self._ptr_at, self._after_at, self._open_at, self._end_at
        started: dict[tuple[float, bool], list[int]] = {}
        for node in nodes:  # grows by the gates that open
            if node < num_ops:
                end[node] = now
            for i in range(ptr[node], ptr[node + 1]):
                other = after[i]
                waits[other] -= 1
                if waits[other]:
                    continue
                if other >= num_ops:
                    nodes.append(other)
                    continue
                self._start_at[other] = now
                group = (self._delay_at[other], self._fluid_at[other])
                started.setdefault(group, []).append(other)
        for (delay, fluid), rows in started.items():
            if self._hosted:
                self._give_to_host(rows)
            else:
                self._start_rows(rows, delay, fluid)

    def _advance_many(self, nodes: Ints, *, released: bool = False) -> None:
        """Do the same for many; ``released`` nodes wait for nothing any more."""
        now = self._clock.now
        ready = [nodes] if released else []
        while len(nodes):
            if not released:
                self._end[nodes[nodes < self._num_ops]] = now
                ready.append(self._release(nodes))
            released = False
            nodes = ready[-1][ready[-1] >= self._num_ops]
        rows = np.concatenate(ready) if ready else nodes
        rows = rows[rows < self._num_ops]
        self._start[rows] = now
        if self._hosted:
            self._give_to_host(rows)
        else:
            self._start_groups(rows)

    def _start_groups(self, rows: Ints) -> None:
        """Start many rows, those that are alike together."""
        keys = np.stack([self._fluid[rows], self._delay[rows]])
        order = np.lexsort(keys)
        cuts = np.flatnonzero((np.diff(keys[:, order]) != 0).any(axis=0)) + 1
        for group in np.split(rows[order], cuts) if len(rows) else ():
            self._start_rows(group, float(self._delay[group[0]]), bool(self._fluid[group[0]]))

    def _release(self, nodes: Ints) -> Ints:
        """Count down what waits for nodes, and give what waits for nothing any more."""
        first = self._ptr[nodes]
        lengths = self._ptr[nodes + 1] - first
        offset = np.repeat(first - np.cumsum(lengths) + lengths, lengths)
        after = self._after[np.arange(len(offset)) + offset]
        np.subtract.at(self._open, after, 1)
        ready = np.sort(after[self._open[after] == 0])
        distinct: Ints = ready[np.concatenate([[True], ready[1:] != ready[:-1]])[: len(ready)]]
        return distinct

    def _give_to_host(self, rows: Rows) -> None:
        """Let the host work on ops that are ready."""
        if len(rows):
            self._network.begin(np.asarray(rows) + self._num_ops, self._clock.now)

    def _start_rows(self, rows: Rows, delay: float, fluid: bool) -> None:
        """Let rows that are alike wait for their delay, or flow at once."""
        if fluid and delay == 0:
            self._network.begin(rows, self._clock.now)
            return
        note = (self._flows if fluid else self._ended).append
        self._at(delay, lambda _: note(rows))

    def _stuck(self) -> str:
        rows = np.flatnonzero(np.isnan(self._end))
        named = "; ".join(self._plan.describe(int(row)) for row in rows[:3])
        return (
            f"simulate: at {self._clock.now:.6g} s nothing can go on, and {len(rows)} of "
            f"{self._num_ops} ops wait for each other, first {named}"
        )


__all__ = ["TooLate", "simulate"]
