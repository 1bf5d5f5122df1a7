"""Loads of links: bytes, busy time, and how full a link is from moment to moment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charm_sched import Workload, load_topology, plan, simulate
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


def test_links_need_a_topology(line: Timeline) -> None:
    alone = Timeline(plan=line.plan, start=line.start, end=line.end, source="measured")
    with pytest.raises(SimulationError, match="found none"):
        link_loads(alone)
