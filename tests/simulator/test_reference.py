"""Whole plans against a slow simulation that asks, at each instant, what the rules say."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest

from charm_sched.partition import Partition
from charm_sched.planners.ring import ring
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import TRANSFER, Plan
from charm_sched.proof.hazards import find_hazards
from charm_sched.simulator import simulate
from charm_sched.testbed.host_cost import HostCost
from charm_sched.topology.graph import Topology
from charm_sched.workload import Workload

Machine = Callable[..., Topology]


class Slow:
    """Every question is answered by looking through everything."""

    def __init__(
        self, plan: Plan, rule: str, kernels: np.ndarray, host: HostCost | None = None
    ) -> None:
        assert plan.topology is not None
        self.plan, self.rule, self.kernels, self.host = plan, rule, kernels.tolist(), host
        self.routes = {}
        columns = plan.columns
        self.op = columns.op.tolist()
        self.rank, self.peer = columns.rank.tolist(), columns.peer.tolist()
        self.stream, self.level = columns.stream.tolist(), columns.level.tolist()
        self.rows = range(len(plan))
        for row in self.rows:
            if self.op[row] == TRANSFER:
                ends = (plan.devices[self.rank[row]], plan.devices[self.peer[row]])
                self.routes[row] = plan.topology.route(*ends)
        edges = find_hazards(plan).edges
        triples = (edges.before.tolist(), edges.after.tolist(), edges.at_source.tolist())
        self.edges = list(zip(*triples, strict=True))
        self.end: dict[int, float] = {}
        self.start: dict[int, float] = {}

    def causes(self, row: int) -> set[int]:
        """All ops that must have ended before a row starts."""
        if self.op[row] != TRANSFER:
            lane = (self.rank[row], self.stream[row])
            queue = {
                r for r in range(row)
                if self.op[r] != TRANSFER and (self.rank[r], self.stream[r]) == lane
            }  # fmt: skip
            return queue | {before for before, after, _ in self.edges if after == row}
        return self.end_causes(row, True) | self.end_causes(row, False)

    def end_causes(self, row: int, at_source: bool) -> set[int]:
        where = self.rank[row] if at_source else self.peer[row]
        same = [
            r for r in self.rows
            if self.op[r] == TRANSFER and self.stream[r] == self.stream[row]
            and where in (self.rank[r], self.peer[r])
        ]  # fmt: skip
        found = {r for r in same if self.level[r] < self.level[row]}
        batch = [r for r in same if self.level[r] == self.level[row]]
        members = batch if self.rule == "grouped" else [row]
        for before, after, side in self.edges:
            here = after in members and (self.rank if side else self.peer)[after] == where
            if here and (self.rule == "grouped" or side == at_source):
                found.add(before)
        return found

    def run(self) -> tuple[list[float], list[float]]:
        causes = {row: self.causes(row) for row in self.rows}
        work: dict[int, float] = {}  # of the host
        delay: dict[int, float] = {}
        left: dict[int, float] = {}
        now = 0.0
        while len(self.end) < len(self.rows):
            for row in self.rows:
                if row not in self.start and causes[row] <= self.end.keys():
                    self.start[row] = now
                    work[row] = self.host_work(row)
            for row in [
                row for row, seconds in work.items() if seconds <= 1e-9 * self.host_work(row)
            ]:
                del work[row]
                if self.op[row] == TRANSFER:
                    delay[row] = now + self.routes[row].latency
                else:
                    left[row] = self.kernels[row]
            rates = self.rates(left)
            step = min(
                [seconds * len(work) for seconds in work.values()]
                + [time - now for time in delay.values()]
                + [left[r] / rates[r] for r in left]
            )
            assert step < float("inf")
            now += step
            work = {row: seconds - step / len(work) for row, seconds in work.items()}
            left = {r: size - rates[r] * step for r, size in left.items()}
            for row in [r for r, time in delay.items() if time <= now * (1 + 1e-12)]:
                del delay[row]
                left[row] = float(self.plan.op_bytes[row])
            for row in [r for r in left if left[r] <= 1e-9 * self.size(r)]:
                del left[row]
                self.end[row] = now
        return [self.start[r] for r in self.rows], [self.end[r] for r in self.rows]

    def host_work(self, row: int) -> float:
        if self.host is None:
            return 0.0
        return self.host.message if self.op[row] == TRANSFER else self.host.kernel

    def size(self, row: int) -> float:
        return float(self.plan.op_bytes[row] or self.kernels[row])

    def rates(self, flows: dict[int, float]) -> dict[int, float]:
        assert self.plan.topology is not None
        width = {c: x.bandwidth for c, x in enumerate(self.plan.topology.capacities)}
        crossed = {}
        for row in flows:
            if self.op[row] == TRANSFER:
                crossed[row] = list(self.routes[row].capacities)
            else:
                crossed[row] = [-1 - self.rank[row]]
                width[-1 - self.rank[row]] = 1.0
        found: dict[int, float] = {}
        while len(found) < len(flows):
            shares = {}
            for c, bandwidth in width.items():
                wants = [r for r in flows if r not in found and c in crossed[r]]
                spent = sum(rate for r, rate in found.items() if c in crossed[r])
                if wants:
                    shares[c] = (bandwidth - spent) / len(wants)
            least = min(shares, key=lambda c: shares[c])
            found |= {r: shares[least] for r in flows if r not in found and least in crossed[r]}
        return found


def two_nodes(machine: Machine) -> Topology:
    links = [
        ("d0..1", "a", {"bandwidth": "3 GB/s", "latency": "30 ns"}),
        ("d2..3", "b", {"bandwidth": "2 GB/s", "latency": "50 ns"}),
        ("a", "b", {"latency": "100 ns"}),
    ]
    return machine(4, links, switches=["a", "b"], rate="700 GFLOP/s", overhead="20 ns")


def random_plan(topology: Topology, seed: int) -> Plan:
    """Rounds of random sends of what is there, kernels on two streams in between."""
    r = np.random.default_rng(seed)
    work = Workload(seq_len=150, heads=1, head_dim=4, mask="full")
    b = Builder(work, Partition.contiguous(150, 4), topology=topology,
                devices=topology.device_names)  # fmt: skip
    kv, q = b.shards("kv"), b.shards("q")
    there = {(rank, rank) for rank in range(4)}
    slots = count(10)
    for level in range(4):
        arrived: set[tuple[int, int]] = set()
        for _ in range(int(r.integers(1, 6))):
            held = sorted(there)
            src, piece = held[int(r.integers(len(held)))]
            dst = int(r.integers(4))
            if (dst, piece) not in there | arrived:
                b.transfer(src=src, dst=dst, items=kv[piece], level=level,
                           stream=("x", "y")[int(r.integers(2))], slot=next(slots))  # fmt: skip
                arrived.add((dst, piece))
        for rank, piece in sorted(arrived):
            stream = int(r.integers(2))
            b.attend(rank=rank, queries=q[rank], keys=kv[piece], stream=("c", "d")[stream],
                     part=stream, query_slot=stream - 1)  # fmt: skip
        there |= arrived
    return b.build()


def check(plan: Plan, rule: str, host: HostCost | None = None) -> None:
    line = simulate(plan, rule=rule, host=host)
    assert line.costs is not None
    start, end = Slow(plan, rule, line.costs.seconds, host).run()
    assert line.start.tolist() == pytest.approx(start, rel=1e-9, abs=1e-15)
    assert line.end.tolist() == pytest.approx(end, rel=1e-9)


@pytest.mark.parametrize("rule", ["grouped", "free"])
@pytest.mark.parametrize("seed", range(12))
def test_random_plans(seed: int, rule: str, machine: Machine) -> None:
    check(random_plan(two_nodes(machine), seed), rule)


@pytest.mark.parametrize("rule", ["grouped", "free"])
@pytest.mark.parametrize("seed", range(8))
def test_random_plans_on_a_busy_host(seed: int, rule: str, machine: Machine) -> None:
    host = HostCost(message=70e-9, kernel=20e-9)
    check(random_plan(two_nodes(machine), seed), rule, host)


@pytest.mark.parametrize("rule", ["grouped", "free"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_rings(mask: str, direction: str, rule: str, machine: Machine) -> None:
    topology = two_nodes(machine)
    work = Workload(seq_len=150, heads=2, head_dim=4, mask=mask)
    b = Builder(work, Partition.contiguous(150, 4), direction=direction, topology=topology,
                devices=topology.device_names)  # fmt: skip
    ring(b)
    check(b.build(), rule)
