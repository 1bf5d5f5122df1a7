"""What follows from start and end of every op."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from charm_sched.errors import SimulationError
from charm_sched.partition import Partition
from charm_sched.planners.ring import ring
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.simulator import simulate
from charm_sched.timelines.timeline import Level, Timeline
from charm_sched.topology.graph import Topology
from charm_sched.workload import Workload


@pytest.fixture
def machine() -> Topology:
    """Two nodes of two devices, 2 GB/s inside and 1 GB/s between; 1 TFLOP/s each."""
    return Topology.from_document(
        {
            "schema": "charm-sched/topology",
            "version": 1,
            "name": "nodes",
            "tiers": ["network", "inside"],
            "profiles": {
                "gpu": {
                    "peak": {"bf16": "1 TFLOP/s"}, "efficiency": 1.0, "overhead": "0 s",
                    "memory_bandwidth": "1 TB/s",
                }
            },
            "devices": [{"name": "d0..3", "profile": "gpu"}],
            "switches": [{"name": "a", "kind": "switch"}, {"name": "b", "kind": "switch"}],
            "links": [
                {"from": "d0..1", "to": "a", "kind": "local"},
                {"from": "d2..3", "to": "b", "kind": "local"},
                {"from": "a", "to": "b", "kind": "net"},
            ],
            "kinds": {
                "local": {"bandwidth": "2 GB/s", "latency": "0 s"},
                "net": {"bandwidth": "1 GB/s", "latency": "0 s"},
            },
        }
    )  # fmt: skip


def relay(topology: Topology) -> Plan:
    """2 kB go 0 -> 1 -> 2, where they are attended to; 1 kB goes 3 -> 2 meanwhile."""
    work = Workload(seq_len=2000, heads=1, head_dim=1, mask="full")
    b = Builder(work, Partition.contiguous(2000, 4), topology=topology,
                devices=topology.device_names)  # fmt: skip
    q, kv = b.shards("q"), b.shards("kv")
    half = b.pieces("kv", 2)
    b.transfer(src=0, dst=1, items=kv[0], level=0, stream="ring", slot=0)
    b.transfer(src=1, dst=2, items=kv[0], level=1, stream="ring", slot=0)
    b.transfer(src=3, dst=2, items=half[3, 0], level=0, stream="side", slot=1)
    b.attend(rank=2, queries=q[2], keys=kv[2])
    b.attend(rank=2, queries=q[2], keys=kv[0])
    return b.build()


KERNEL = 500 * 500 * 4 / 1e12


def test_seconds(machine: Topology) -> None:
    line = simulate(relay(machine))
    assert line.source == "simulated"
    assert line.makespan == pytest.approx(1e-6 + 2e-6 + KERNEL)
    assert line.compute_seconds == pytest.approx([0, 0, 2 * KERNEL, 0])
    assert line.compute_s == pytest.approx(2 * KERNEL)
    assert line.exposed_comm == pytest.approx(3e-6 - KERNEL)
    assert line.utilisation == pytest.approx(2 * KERNEL / 4 / line.makespan)


def test_bytes(machine: Topology) -> None:
    line = simulate(relay(machine))
    assert line.total_bytes == 5000
    assert line.tier_bytes == {"network": 2000, "inside": 3000}
    assert line.link_bytes == {"local": 2 * 5000, "net": 2000}


def test_the_busiest_link_is_named(machine: Topology) -> None:
    line = simulate(relay(machine))
    name, busy = line.busiest_link
    assert "a" in name
    assert busy == pytest.approx(2e-6 / line.makespan)
    assert line.link_busy.shape == (len(machine.capacities),)
    assert (line.link_busy > 0).sum() == 6 + 5  # directed links, ports


def test_levels(machine: Topology) -> None:
    found = simulate(relay(machine)).levels
    assert [(level.stream, level.level, level.bytes, level.transfers) for level in found] == [
        ("ring", 0, 2000, 1), ("ring", 1, 2000, 1), ("side", 0, 1000, 1),
    ]  # fmt: skip
    assert isinstance(found[1], Level)
    assert (found[1].start, found[1].end) == pytest.approx((1e-6, 3e-6))


def test_the_critical_path_goes_back_from_the_last_end(machine: Topology) -> None:
    assert simulate(relay(machine)).critical_path() == [0, 1, 4]


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_critical_path_has_no_gaps(direction: str, mask: str, machine: Topology) -> None:
    work = Workload(seq_len=400, heads=2, head_dim=8, mask=mask)
    b = Builder(work, Partition.contiguous(400, 4), direction=direction, topology=machine,
                devices=machine.device_names)  # fmt: skip
    ring(b)
    line = simulate(b.build())
    path = line.critical_path()
    assert line.start[path[0]] == 0
    assert line.start[path[1:]] == pytest.approx(line.end[path[:-1]], rel=1e-9)
    assert line.end[path[-1]] == line.makespan


def test_a_path_through_a_queue_of_kernels(machine: Topology) -> None:
    plan = relay(machine)
    start = np.array([0, 1, 0, 0, 9.0])
    end = np.array([1, 2, 1, 8, 10.0])
    line = Timeline(plan=plan, start=start, end=end, source="measured")
    assert line.critical_path() == [3, 4]


def test_of_equal_causes_a_kernel_comes_first(machine: Topology) -> None:
    start = np.array([0, 1, 0, 0, 3.0])
    end = np.array([1, 3, 1, 3, 4.0])
    line = Timeline(plan=relay(machine), start=start, end=end, source="measured")
    assert line.critical_path() == [3, 4]


def test_a_measured_timeline_counts_what_was_measured(machine: Topology) -> None:
    plan = relay(machine)
    line = Timeline(plan=plan, start=np.arange(5.0), end=np.arange(5.0) + 0.5, source="measured")
    assert line.makespan == 4.5
    assert line.compute_seconds.tolist() == [0, 0, 1, 0]
    with pytest.raises(SimulationError, match="expected a topology"):
        assert line.tier_bytes


def test_an_empty_timeline(machine: Topology) -> None:
    plan = Builder(
        Workload(seq_len=4, heads=1, head_dim=1), Partition.contiguous(4, 4), topology=machine,
        devices=machine.device_names,
    ).build()  # fmt: skip
    line = simulate(plan)
    assert (line.makespan, line.utilisation, line.levels) == (0, 0, ())
    assert line.critical_path() == []
    assert line.tier_bytes == {"network": 0, "inside": 0}


def test_refusals(machine: Topology) -> None:
    line = simulate(relay(machine))
    with pytest.raises(SimulationError, match="one end for each of 5 ops, found the shape"):
        replace(line, end=np.zeros(4))
    with pytest.raises(SimulationError, match="simulated or measured, found 'guessed'"):
        replace(line, source="guessed")


def test_notes_hold_what_is_assumed(machine: Topology) -> None:
    notes = simulate(relay(machine)).notes
    assert any("no forward bf16 rate" in note for note in notes)
    assert set(machine.basic_assumptions) <= set(notes)
