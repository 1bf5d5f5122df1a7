"""Two timelines of one plan side by side: levels and links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import made

from charm_sched.errors import SimulationError
from charm_sched.plans.plan import Plan
from charm_sched.search.planning import plan
from charm_sched.simulator import simulate
from charm_sched.timelines.deviation import busy_seconds, by_level, by_link
from charm_sched.timelines.timeline import Timeline
from charm_sched.topology.graph import load_topology
from charm_sched.workload import Workload


def two_ways() -> tuple[Timeline, Timeline]:
    """A ring of four ranks, predicted, and measured with every op twice as late."""
    topology = load_topology("dual_node_nvlink")
    work = Workload(seq_len=4096, heads=8, kv_heads=8, head_dim=128, mask="full")
    ring = plan(topology, work, strategy="ring", direction="forward", ranks=4)
    assert isinstance(ring, Plan)
    line = simulate(ring, topology)
    slow = replace(line, start=2 * line.start, end=2 * line.end, source="measured", costs=None)
    return line, slow


def test_levels() -> None:
    line, slow = two_ways()
    found = by_level(line, slow)
    assert [(each.stream, each.level) for each in found] == [("ring", t) for t in range(3)]
    for each, level in zip(found, line.levels, strict=True):
        assert each.predicted == level.end
        assert each.measured == pytest.approx(2 * level.end)
        assert each.error == pytest.approx(-level.end / slow.makespan)


def test_links() -> None:
    line, slow = two_ways()
    found = {each.kind: each for each in by_link(line, slow)}
    # Ranks 1 -> 2 and 3 -> 0 cross the network, once per level, one after another.
    crossing = [level.end - level.start for level in line.levels]
    assert found["network"].predicted == pytest.approx(sum(crossing))
    for each in found.values():
        assert each.measured == pytest.approx(2 * each.predicted)
        assert each.error == pytest.approx(-each.predicted / slow.makespan)
    assert found["nvlink"].predicted < found["network"].predicted


def test_two_plans_are_refused() -> None:
    line, slow = two_ways()
    other = made("ring", 4, Workload(seq_len=64, heads=2, head_dim=4, mask="full"))
    strange = Timeline(plan=other, start=np.zeros(len(other)), end=np.ones(len(other)),
                       source="measured")  # fmt: skip
    with pytest.raises(SimulationError, match="two timelines of one plan"):
        by_level(line, strange)
    with pytest.raises(SimulationError, match="prediction with a topology"):
        by_link(replace(line, topology=None), slow)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=8))
def test_busy_seconds_is_the_union(spans: list[tuple[int, int]]) -> None:
    line, _ = two_ways()
    start, end = np.zeros(len(line.plan)), np.zeros(len(line.plan))
    for row, (begin, length) in enumerate(spans):
        start[row], end[row] = begin, begin + length
    covered = {at for begin, length in spans for at in range(begin, begin + length)}
    drawn = replace(line, start=start, end=end)
    assert busy_seconds(drawn, list(range(len(spans)))) == pytest.approx(len(covered))
