"""Jitter: what is drawn, that it repeats, and that it never makes anything faster."""

from __future__ import annotations

import numpy as np
import pytest

from charm_sched import Workload, load_topology
from charm_sched.search.planning import plan_all
from charm_sched.search.results import Comparison
from charm_sched.what_if.jitter import jitter, jittered


@pytest.fixture(scope="module")
def found() -> Comparison:
    work = Workload(seq_len=4096, heads=8, kv_heads=4)
    machine = load_topology("dual_numa_pcie")
    return plan_all(machine, work, strategies=("charm",), ranks=4, thorough=False)


def test_parts_get_slower_by_factors_of_their_own() -> None:
    machine = load_topology("dual_numa_pcie")
    slower = jittered(machine, np.random.default_rng(3), 0.1)
    links = [a.bandwidth / b.bandwidth for a, b in zip(machine.links, slower.links, strict=True)]
    kernels = [
        a.compute.rates[0].flops_per_second / b.compute.rates[0].flops_per_second
        for a, b in zip(machine.devices, slower.devices, strict=True)
    ]
    for factors in (links, kernels):
        assert min(factors) >= 1
        assert len(set(factors)) == len(factors)
    caps = [(a, b) for a, b in zip(machine.links, slower.links, strict=True) if a.flow_cap]
    assert all(a.flow_cap / b.flow_cap == pytest.approx(a.bandwidth / b.bandwidth)
               for a, b in caps if a.flow_cap and b.flow_cap)  # fmt: skip


def test_the_mean_is_the_one_asked_for() -> None:
    machine = load_topology("dual_numa_pcie")
    draw = np.random.default_rng(1)
    factors = [
        a.bandwidth / b.bandwidth
        for _ in range(60)
        for a, b in zip(machine.links, jittered(machine, draw, 0.2).links, strict=True)
    ]
    assert np.mean(factors) == pytest.approx(1.2, abs=0.02)
    assert np.std(factors) == pytest.approx(0.2, abs=0.03)  # exponential: as its mean


def test_both_ways_of_a_half_duplex_link_have_one_factor() -> None:
    document = load_topology("dual_numa_pcie").to_document()
    document["kinds"]["upi"]["shared"] = True
    machine = type(load_topology("dual_numa_pcie")).from_document(document)
    slower = jittered(machine, np.random.default_rng(3), 0.1)
    shared = [k.bandwidth for k in slower.links if k.shared]
    assert len(shared) == 2
    assert len(set(shared)) == 1


def test_the_same_seed_gives_the_same_times(found: Comparison) -> None:
    results, machine = list(found.chosen.values()), found.topology
    one, two, other = (jitter(results, machine, seed=s, repetitions=4) for s in (5, 5, 6))
    assert one == two
    assert one[0].makespans != other[0].makespans
    for each in one:
        assert all(t >= each.undisturbed * 0.999 for t in each.makespans)
        assert each.quantile(0) <= each.quantile(0.5) <= each.quantile(1)
        assert each.quantile(1) == max(each.makespans)
