"""Small machines, and plans that only move bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest

from charm_sched.partition import Partition
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.topology.graph import Topology
from charm_sched.workload import Workload

Machine: TypeAlias = Callable[..., Topology]
Moves: TypeAlias = Callable[..., Plan]


def make_machine(
    devices: int,
    links: Sequence[tuple[str, str, dict[str, Any]]],
    *,
    switches: Sequence[str] = (),
    rate: str = "100 TFLOP/s",
    overhead: str = "0 s",
    memory_bandwidth: str = "1 TB/s",
) -> Topology:
    """Devices d0, d1, ... and links of (from, to, values); 1 GB/s and no latency by default."""
    profile = {
        "peak": {"bf16": rate, "fp32": rate},
        "efficiency": 1.0,
        "overhead": overhead,
        "memory_bandwidth": memory_bandwidth,
    }
    return Topology.from_document(
        {
            "schema": "charm-sched/topology",
            "version": 1,
            "name": "machine",
            "profiles": {"gpu": profile},
            "devices": [{"name": f"d0..{devices - 1}", "profile": "gpu"}],
            "switches": [{"name": name, "kind": "switch"} for name in switches],
            "links": [
                {"kind": "wire", "bandwidth": "1 GB/s", "latency": "0 s", "from": a, "to": b}
                | values
                for a, b, values in links
            ],
        }
    )


def make_moves(
    topology: Topology, transfers: Sequence[tuple[int, int, int]], *, stream: str | None = None
) -> Plan:
    """Transfers of (source, destination, bytes), all independent or in the queue of one stream.

    An item of one token row of one head is two bytes here, so bytes come in twos.
    """
    ranks = len(topology.devices)
    rows = max([size // 2 for _, _, size in transfers] + [1])
    work = Workload(seq_len=ranks * rows, heads=1, head_dim=1, mask="full")
    b = Builder(
        work, Partition.contiguous(work.seq_len, ranks), topology=topology,
        devices=topology.device_names,
    )  # fmt: skip
    for number, (src, dst, size) in enumerate(transfers):
        first = src * rows
        b.transfer(
            src=src,
            dst=dst,
            items=b.item("q", ((first, first + size // 2),)),
            level=number,
            stream=stream or f"s{number}",
            slot=number,
        )
    return b.build()


@pytest.fixture
def machine() -> Machine:
    return make_machine


@pytest.fixture
def moves() -> Moves:
    return make_moves
