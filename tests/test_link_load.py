"""Loads of links: bytes, busy time, and how full a link is from moment to moment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machines import link as link_line
from support.machines import parse, section

from charm_sched import Builder, Partition, Workload, load_topology, plan, simulate
from charm_sched.errors import SimulationError
from charm_sched.timelines.link_load import fullest, link_loads, utilisation_steps
from charm_sched.timelines.link_usage import LinkUsage
from charm_sched.timelines.timeline import Timeline

MACHINE = load_topology("dual_numa_pcie")
WORK = Workload(seq_len=4096, heads=8, kv_heads=2, head_dim=64, dtype="bf16", mask="causal")


@pytest.fixture(scope="module")
def line() -> Timeline:
    return simulate(plan(MACHINE, WORK, strategy="ring", direction="backward"), MACHINE)


def test_loads_are_those_of_the_timeline(line: Timeline) -> None:
    loads = link_loads(line)
    assert [load.name for load in loads] == [c.name for c in MACHINE.capacities]
    assert np.allclose([load.utilisation for load in loads], line.link_busy)
    kinds = dict.fromkeys(line.link_bytes, 0.0)
    for link, capacity in zip(MACHINE.links, MACHINE.link_capacity, strict=True):
        kinds[link.kind] = kinds.get(link.kind, 0.0) + loads[capacity].bytes
    assert kinds == pytest.approx(line.link_bytes)


def test_busy_time_lies_between_the_bytes_at_full_rate_and_the_makespan(line: Timeline) -> None:
    loads = link_loads(line)
    assert any(load.busy for load in loads)
    for load in loads:
        assert load.busy is not None
        assert load.bytes / load.bandwidth <= load.busy * (1 + 1e-9)
        assert load.busy <= line.makespan * (1 + 1e-9)
        assert (load.rate is None) == (load.busy == 0)
        assert load.rate is None or load.rate == pytest.approx(load.bytes / load.busy)


def test_the_fullest_come_first_and_idle_links_not_at_all(line: Timeline) -> None:
    loads = link_loads(line)
    order = fullest(loads, 1000)
    parts = [loads[number].utilisation for number in order]
    assert parts == sorted(parts, reverse=True)
    assert len(order) == sum(load.bytes > 0 for load in loads)
    assert fullest(loads, 2) == order[:2]


def test_steps_hold_the_bytes_and_never_more_than_the_link_can(line: Timeline) -> None:
    loads, usage = link_loads(line), LinkUsage(line)
    for number in fullest(loads, 1000):
        times, parts = utilisation_steps(line, usage, number, 10_000)
        assert (np.diff(times) > 0).all()
        assert parts[-1] == 0
        assert ((parts >= 0) & (parts <= 1)).all()
        moved = (parts[:-1] * np.diff(times)).sum() * loads[number].bandwidth
        assert moved <= loads[number].bytes * (1 + 1e-9)
        if parts.max() < 1:  # nothing was cut off
            assert moved == pytest.approx(loads[number].bytes)


@given(most=st.integers(1, 40), at=st.integers(0, 7))
def test_few_steps_hold_the_same_bytes(line: Timeline, most: int, at: int) -> None:
    usage, number = LinkUsage(line), fullest(link_loads(line), 8)[at]
    times, parts = utilisation_steps(line, usage, number, 10_000)
    coarse, means = utilisation_steps(line, usage, number, most)
    assert len(coarse) <= max(most, 1) + 1
    assert (coarse[0], coarse[-1]) == pytest.approx((times[0], times[-1]))
    area = (parts[:-1] * np.diff(times)).sum()
    assert (means[:-1] * np.diff(coarse)).sum() == pytest.approx(area)


def test_bytes_start_after_the_latency_of_the_route() -> None:
    """Two messages one after the other, over a wide link (2 ms of latency in all) and a narrow."""
    slow = "latency: 1 ms"
    machine = parse(
        section(
            devices="g0..1",
            switches=["hub hub"],
            links=[
                link_line("g0", "hub", 0.02, "wide").replace("latency: 1 us", slow),
                link_line("g1", "hub", 0.01, "narrow").replace("latency: 1 us", slow),
            ],
        )
    )
    work = Workload(seq_len=200, heads=1, head_dim=64, dtype="bf16", mask="full")
    b = Builder(work, Partition.contiguous(200, 2), topology=machine, devices=machine.device_names)
    for level, rows in enumerate([(0, 100), (0, 50)]):
        b.transfer(
            src=[0], dst=[1], items=[b.item("kv", (rows,))], level=level, stream="x", slot=[level]
        )
    found = simulate(b.build("two"), machine)
    long, short = 100 * 256 / 0.01e9, 50 * 256 / 0.01e9
    usage = LinkUsage(found)
    loads = {load.name: (number, load) for number, load in enumerate(link_loads(found))}
    for name, part in (("g0 -> hub", 0.5), ("hub -> g1", 1.0)):
        number, load = loads[name]
        times, parts = utilisation_steps(found, usage, number, 100)
        starts = [0.002, 0.002 + long, 0.004 + long, 0.004 + long + short]
        assert times == pytest.approx(starts)
        assert parts == pytest.approx([part, 0, part, 0])
        assert load.bytes == pytest.approx(150 * 256)
        assert load.busy == pytest.approx(0.004 + long + short)
        assert load.utilisation == pytest.approx(part * (long + short) / (0.004 + long + short))
    number, load = loads["g1 -> hub"]
    assert (load.bytes, load.busy, load.rate) == (0, 0, None)


def test_links_need_a_topology(line: Timeline) -> None:
    alone = Timeline(plan=line.plan, start=line.start, end=line.end, source="measured")
    with pytest.raises(SimulationError, match="found none"):
        link_loads(alone)
