"""Every shipped machine loads, is planned for, and is simulated no faster than its bounds."""

from __future__ import annotations

import pytest

from charm_sched import Workload, bound, class_bound, plan, simulate, verify
from charm_sched.topology.graph import Topology, load_topology, shipped_names

RANKS = 8  # of larger machines, so many devices, spread evenly
WORK = Workload(seq_len=2048, heads=8, kv_heads=2, head_dim=64, dtype="fp16", mask="causal")
TESTED_ELSEWHERE = ("cluster_8192_leaf_spine", "cluster_8192_rails")
EACH = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if "8192" in name else [])
        for name in shipped_names()
        if name not in TESTED_ELSEWHERE
    ],
)


@EACH
def test_plans_take_at_least_as_long_as_their_bounds(name: str) -> None:
    topology = load_topology(name)
    devices = topology.select(min(RANKS, len(topology.devices)))
    limits = (
        bound(topology, WORK, direction="forward", devices=devices),
        class_bound(topology, WORK, direction="forward", partition="zigzag", devices=devices),
    )
    for strategy in ("ring", "charm"):
        made = plan(
            topology, WORK, strategy=strategy, direction="forward", devices=devices,
            partition="zigzag",
        )  # fmt: skip
        verify(made, WORK)
        makespan = simulate(made, topology).makespan
        assert all(0 < limit.seconds <= makespan * (1 + 1e-9) for limit in limits)
        assert makespan < 1.0
    assert depth(topology) == len(topology.tiers)


def depth(topology: Topology) -> int:
    """Count the tiers from the whole machine down to single devices, and check their names."""
    domain, found = topology.domains(), 0
    while domain.children:
        assert domain.tier == topology.tiers[found]
        domain, found = max(domain.children, key=lambda d: len(d.devices)), found + 1
    return found
