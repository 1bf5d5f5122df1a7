"""ASTRA-sim's analytical network beside the simulator, on the same transfers.

Its numbers are kept here: they were measured once with the network layer of its analytical backend
(astra-sim/astra-network-analytical, 599a047), driven chunk by chunk as its example does. A chunk of
a ring is sent on when it has arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from charm_sched.partition import Partition
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.simulator import simulate
from charm_sched.topology.graph import Topology
from charm_sched.workload import Workload
from tests.simulator.conftest import make_machine

MIB = 2**20
FAST: dict[str, Any] = {"bandwidth": "50 GiB/s", "latency": "500 ns"}
SLOW: dict[str, Any] = {"bandwidth": "6.25 GiB/s", "latency": "2 us"}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One case.

    Attributes:
        what: In words.
        astra: Seconds there.
        plan: Writes the plan of it here.
        note: Where a difference comes from.
    """

    what: str
    astra: float
    plan: Callable[[], Plan]
    note: str

    @property
    def ours(self) -> float:
        """Seconds here."""
        return simulate(self.plan()).makespan


def _star(devices: int) -> Topology:
    return make_machine(devices, [(f"d0..{devices - 1}", "hub", FAST)], switches=["hub"])


def _circle(devices: int) -> Topology:
    """A switch beside each device: devices themselves never forward here."""
    own = {"bandwidth": "1000 GiB/s"}
    links: list[tuple[str, str, dict[str, Any]]] = [(f"d{i}", f"s{i}", own) for i in range(devices)]
    links += [(f"s{i}", f"s{(i + 1) % devices}", FAST) for i in range(devices)]
    return make_machine(devices, links, switches=[f"s{i}" for i in range(devices)])


def _two_levels() -> Topology:
    """Two switches of eight, and a slower one that all sixteen are on as well."""
    links = [("d0..7", "s0", FAST), ("d8..15", "s1", FAST), ("d0..15", "fabric", SLOW)]
    return make_machine(16, links, switches=["s0", "s1", "fabric"])


def _builder(topology: Topology, size: int) -> Builder:
    """Begin a plan whose ranks own keys and values of so many bytes each."""
    ranks = len(topology.devices)
    work = Workload(seq_len=ranks, heads=1, head_dim=size // 4, mask="full")
    return Builder(
        work, Partition.contiguous(ranks, ranks), topology=topology, devices=topology.device_names
    )


def ring_all_gather(topology: Topology, size: int) -> Plan:
    """Pass each rank's bytes around one ring, one way."""
    b = _builder(topology, size)
    r, kv, n = b.ranks, b.shards("kv"), b.num_ranks
    for t in range(n - 1):
        b.transfer(src=r, dst=(r + 1) % n, items=kv[(r - t) % n], level=t, stream="ring", slot=t)
    return b.build()


def all_to_all(topology: Topology, size: int) -> Plan:
    """Send the same bytes from each rank to each other one, all at once."""
    b = _builder(topology, size)
    r, kv, n = b.ranks, b.shards("kv"), b.num_ranks
    for k in range(1, n):
        b.transfer(src=r, dst=(r + k) % n, items=kv, level=0, stream="all", slot=k)
    return b.build()


def two_level_all_gather() -> Plan:
    """Swap between the nodes, then pass both around a ring inside each."""
    b = _builder(_two_levels(), 16 * MIB)
    r, kv = b.ranks, b.shards("kv")
    other = (r + 8) % 16
    b.transfer(src=r, dst=other, items=kv, level=0, stream="all", slot=0)
    node, inside = r // 8 * 8, r % 8
    for t in range(7):
        held = node + (inside - t) % 8
        pair = np.stack([kv[held], kv[other[held]]], axis=1)
        b.transfer(
            src=r, dst=node + (inside + 1) % 8, items=pair, level=t + 1, stream="all",
            slot=np.array([[2 * t + 1, 2 * t + 2]]),
        )  # fmt: skip
    return b.build()


COMPARISONS = (
    Comparison(
        what="ring all-gather of 64 MiB, 8 on a ring", astra=8753500e-9,
        plan=lambda: ring_all_gather(_circle(8), 64 * MIB), note="",
    ),
    Comparison(
        what="ring all-gather of 64 MiB, 8 on a switch", astra=17507000e-9,
        plan=lambda: ring_all_gather(_star(8), 64 * MIB),
        note="a chunk is stored whole at the switch before it goes on",
    ),
    Comparison(
        what="all-to-all of 1 MiB, 16 on a switch", astra=586930e-9,
        plan=lambda: all_to_all(_star(16), MIB),
        note="the same, and chunks queue in the order in which they were sent",
    ),
    Comparison(
        what="all-to-all of 1 MiB, 16 on a ring", astra=704116e-9,
        plan=lambda: all_to_all(_circle(16), MIB),
        note="its chunks are stored at each hop, which other chunks hide here",
    ),
    Comparison(
        what="all-gather of 16 MiB, 2 x 8, across and then inside", astra=6886000e-9,
        plan=two_level_all_gather, note="sum of its times per step, which know no other traffic",
    ),
    Comparison(
        what="all-to-all of 1 MiB, 2 x 8", astra=160250e-9,
        plan=lambda: all_to_all(_two_levels(), MIB),
        note="several levels are served without congestion alone: the slowest message by itself",
    ),
)  # fmt: skip
