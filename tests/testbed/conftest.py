"""Small machines whose rates a testbed can carry as they are (scale 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pytest

from charm_sched.topology.graph import Topology

Machine: TypeAlias = Callable[..., Topology]


def make_machine(
    devices: int,
    links: Sequence[tuple[str, str, dict[str, Any]]],
    *,
    switches: Sequence[str] = (),
    ports: Mapping[int, str] | None = None,
) -> Topology:
    """Devices d0, d1, ... and links of (from, to, values); 10 MB/s by default."""
    profile = {
        "peak": {"bf16": "1 TFLOP/s"},
        "efficiency": 1.0,
        "overhead": "0 s",
        "memory_bandwidth": "1 TB/s",
    }
    narrow = ports or {}
    return Topology.from_document(
        {
            "schema": "charm-sched/topology",
            "version": 1,
            "name": "machine",
            "profiles": {"gpu": profile},
            "devices": [
                {"name": f"d{i}", "profile": "gpu"} | ({"port": narrow[i]} if i in narrow else {})
                for i in range(devices)
            ],
            "switches": [{"name": name, "kind": "switch"} for name in switches],
            "links": [
                {"kind": "wire", "bandwidth": "10 MB/s", "latency": "0 s", "from": a, "to": b}
                | values
                for a, b, values in links
            ],
        }
    )


def make_pcie_tree() -> Topology:
    """Two sockets of two switches of two devices; the link between the sockets is half duplex."""
    wide, slow = {"bandwidth": "8 MB/s"}, {"bandwidth": "6 MB/s", "shared": True}
    return make_machine(
        8,
        [
            *((f"d{i}", f"pcie{i // 2}", wide) for i in range(8)),
            *((f"pcie{i}", f"root{i // 2}", wide) for i in range(4)),
            ("root0", "root1", slow),
        ],
        switches=[*(f"pcie{i}" for i in range(4)), "root0", "root1"],
    )


@pytest.fixture
def machine() -> Machine:
    return make_machine


@pytest.fixture
def pcie_tree() -> Topology:
    return make_pcie_tree()
