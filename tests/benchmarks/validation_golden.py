"""Flows whose times are known: closed forms, SimGrid's numbers, and SimGrid itself beside ours."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from charm_sched.partition import Partition
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.simulator import simulate
from charm_sched.topology.graph import Topology
from charm_sched.workload import Workload
from tests.benchmarks.scale import star
from tests.simulator.conftest import make_machine, make_moves
from tests.simulator.test_simgrid import ends_in_simgrid, random_machine, simgrid

TOLERANCE = 1e-6
WIRE = 50 * 2**30  # bytes per second of each host's link
NETWORKS = 24


@dataclass(frozen=True, kw_only=True)
class Golden:
    """One known time.

    Attributes:
        what: In words.
        expected: Seconds.
        origin: Where these come from.
        ours: Seconds simulated here.
    """

    what: str
    expected: float
    origin: str
    ours: float

    @property
    def gap(self) -> float:
        """The relative difference."""
        return self.ours / self.expected - 1


def golden(most: int = 128) -> Iterator[Golden]:
    """Simulate everything whose time is known, of so many hosts at most."""
    machine = make_machine(
        3, [("d0", "s", {}), ("d1", "s", {}), ("s", "d2", {"latency": "1 us"})], switches=["s"]
    )
    two = simulate(make_moves(machine, [(0, 2, 10**9), (1, 2, 5 * 10**8)]))
    for row, seconds in enumerate((1.500001, 1.000001)):
        yield Golden(
            what=f"{('1', '0.5')[row]} GB of two flows into one link of 1 GB/s",
            expected=seconds, origin="by hand, and SimGrid 3.32 (CM02)", ours=float(two.end[row]),
        )  # fmt: skip
    for hosts in [n for n in (16, 64, 128) if n <= most]:
        topology, plan = star(hosts)
        yield Golden(
            what=f"all-to-all of 1 MiB, {hosts} hosts on a switch",
            expected=(hosts - 1) * 2**20 / WIRE + 1e-6,
            origin="closed form, and SimGrid 3.32", ours=simulate(plan, topology).makespan,
        )  # fmt: skip
    for hosts, seconds in ((16, 328.806752e-6), (32, 713.645501e-6)):
        if hosts > most:
            break
        yield Golden(
            what=f"all-to-all of random sizes, {hosts} hosts on a switch", expected=seconds,
            origin="SimGrid 3.32", ours=simulate(random_sizes(hosts)).makespan,
        )  # fmt: skip


def random_sizes(hosts: int) -> Plan:
    """Give an all-to-all with sizes of 0.5 to 1.5 MiB, from a linear congruential generator."""
    topology, _ = star(hosts)
    state, sizes = 12345, []
    for _ in range(hosts * (hosts - 1)):
        state = (1664525 * state + 1013904223) % 2**32
        sizes.append(int(2**20 * (0.5 + (state >> 8) / 2**24)))
    work = Workload(seq_len=hosts * 2**21, heads=1, head_dim=1, mask="full")
    b = Builder(
        work, Partition.contiguous(work.seq_len, hosts), topology=topology,
        devices=topology.device_names,
    )  # fmt: skip
    pairs = [(i, j) for i in range(hosts) for j in range(hosts) if i != j]
    for number, ((src, dst), size) in enumerate(zip(pairs, sizes, strict=True)):
        start = src * 2**21
        item = b.item("q", ((start, start + size // 2),))
        b.transfer(src=src, dst=dst, items=item, level=0, stream=f"s{number}", slot=number)
    return b.build()


def beside_simgrid() -> float | None:
    """Give the largest relative difference over all flows of the random networks of the tests.

    None where SimGrid is not installed.
    """
    if simgrid() is None:
        return None
    return max(_largest_gap(seed) for seed in range(NETWORKS))


def _largest_gap(seed: int) -> float:
    draw = random.Random(seed)
    machine: Callable[..., Topology] = make_machine
    topology = random_machine(draw, machine)
    count = len(topology.devices)
    pairs = [draw.sample(range(count), 2) for _ in range(draw.randint(5, 60))]
    moves = [(src, dst, 2 * draw.randint(10**5, 10**7)) for src, dst in pairs]
    plan = make_moves(topology, moves)
    ends = zip(simulate(plan).end.tolist(), ends_in_simgrid(plan), strict=True)
    return max(abs(ours / theirs - 1) for ours, theirs in ends)
