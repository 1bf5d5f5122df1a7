"""The bounds beside results: found once, checked always, told in words and JSON."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console
from support.machines import small_shipped

from charm_sched import Partition, Workload, load_topology, plan, plan_all
from charm_sched.bounds.bound import Bound
from charm_sched.bounds.limits import BoundError, Limits, check, machine_limits, moves_keys
from charm_sched.commands.assess import assess
from charm_sched.plans.plan import Plan
from charm_sched.render.comparison import show
from charm_sched.report.documents import document
from charm_sched.search.results import Comparison
from charm_sched.simulator import simulate
from charm_sched.topo import main

WORK = Workload(seq_len=2**12, heads=32, kv_heads=8, mask="causal")
MOVES_KEYS = {
    "ring": True, "reverse_ring": True, "double_ring": True, "all_gather": True, "charm": True,
    "ulysses": False, "usp": False, "mesh": False, "pass_q": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return plan_all(load_topology("dual_numa_pcie"), WORK, ranks=4)


def test_what_moves_decides_the_class_and_not_the_name(comparison: Comparison) -> None:
    found = {
        result.strategy: result.class_bound is not None
        for result in comparison.results
        if result.strategy != "domain_mesh"  # whose tile may be keys alone
    }
    assert found == {name: MOVES_KEYS[name] for name in found}
    assert len(found) > 5


@pytest.mark.parametrize("name", small_shipped())
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_every_result_is_slower_than_its_bounds(name: str, mask: str) -> None:
    work = Workload(seq_len=2**13, heads=32, kv_heads=32, mask=mask)
    compared = plan_all(load_topology(name), work, strategies=("ring", "ulysses"), ranks=8)
    assert len(compared.results) == 4
    for result in compared.results:
        makespan = result.timeline.makespan
        assert makespan >= result.bound.seconds * (1 - 1e-9)
        assert 0 < result.efficiency(result.bound) <= 1
        if result.class_bound is not None:
            assert result.class_bound.seconds >= result.bound.compute
            assert makespan >= result.class_bound.seconds * (1 - 1e-9)
    assert compared.seconds["bound"] > 0


def test_a_simulation_that_beats_its_bound_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not taken for a strategy that cannot serve."""
    high = Bound(seconds=1.0, reason="a mistake", cut=None, compute=1.0, communication=0.0)
    monkeypatch.setattr(Limits, "of", lambda self, plan: (high, None))
    message = (
        r"internal error: ring \{\} \(forward, contiguous\) is simulated to take "
        r"0\.00\d+ s, less than its bound of 1.0 s by a mistake"
    )
    with pytest.raises(BoundError, match=message):
        plan(load_topology("dual_numa_pcie"), WORK, strategy="ring", partition="contiguous")


def test_rounding_is_forgiven_and_no_more() -> None:
    made = plan(load_topology("dual_numa_pcie"), WORK, strategy="ring", direction="forward")
    assert isinstance(made, Plan)
    limit = Bound(seconds=1.0, reason="work", cut=None, compute=1.0, communication=0.0)
    check(made, {}, 1 - 1e-10, limit, None)
    with pytest.raises(BoundError):
        check(made, {}, 1 - 1e-8, None, limit)


def test_bounds_are_found_once_per_direction_and_partition() -> None:
    topology = load_topology("single_node_nvlink")
    limits = Limits(topology, WORK, topology.device_names)
    made = [plan(topology, WORK, strategy=name, direction="forward", partition="zigzag")
            for name in ("ring", "charm")]  # fmt: skip
    first, second = (limits.of(each) for each in made if isinstance(each, Plan))
    assert first[0] is second[0]
    assert first[1] is second[1]
    assert all(moves_keys(each) for each in made if isinstance(each, Plan))


def test_a_stored_plan_is_held_against_the_machine_it_is_simulated_on() -> None:
    made = plan(load_topology("dual_node_nvlink"), WORK, strategy="ring", direction="forward")
    assert isinstance(made, Plan)
    other = load_topology("dual_node_nvlink_4nic")
    (here,), (there,) = assess(made).results, assess(made, other).results
    assert here.class_bound is not None
    assert there.class_bound is not None
    assert there.class_bound.communication > here.class_bound.communication
    assert simulate(made, other).makespan == there.timeline.makespan


def test_the_report_says_what_binds(comparison: Comparison) -> None:
    text = io.StringIO()
    show(Console(file=text, width=200, no_color=True), comparison)
    row = document(comparison)["results"][0]
    flat = " ".join(text.getvalue().split())
    for result in comparison.chosen.values():
        assert f"for any schedule, by {result.bound.reason}" in flat
        assert f"({result.efficiency(result.bound):.0%} reached)" in flat
        tightest = result.class_bound or result.bound
        assert tightest.cut is not None
        assert tightest.cut.words in flat
    assert row["efficiency"] == pytest.approx(row["bound_s"] / row["makespan_s"])
    assert row["bound_by"] == comparison.results[0].bound.reason
    for result, found in zip(comparison.results, document(comparison)["results"], strict=True):
        assert (found["class_bound_s"] is None) == (result.class_bound is None)
        assert (found["class_efficiency"] is None) == (result.class_bound is None)


def test_machine_limits_take_the_best_partition() -> None:
    topology = load_topology("dual_numa_pcie")
    auto, even, uneven = (
        machine_limits(topology, WORK, directions=("forward",), partition=kind)[0]
        for kind in ("auto", "zigzag", "contiguous")
    )
    assert auto.class_bound == even.class_bound
    assert even.class_bound.compute < uneven.class_bound.compute
    assert auto.partition == "zigzag"
    assert auto.bound.seconds <= auto.class_bound.seconds


def topo(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["bound", *argv]) == 0
    return capsys.readouterr().out


def test_topo_bound_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[dict[str, Any]] = json.loads(
        topo(capsys, "dual_node_nvlink_4nic", "--seq-len", "16K", "--mask", "full", "--json")
    )
    assert [each["direction"] for each in found] == ["forward", "backward"]
    for each in found:
        assert list(each)[:3] == ["direction", "bound_s", "bound_by"]
        assert each["compute_s"] <= each["bound_s"] <= each["class_bound_s"] * (1 + 1e-9)
        assert each["cut"]["bandwidth"] == 96e9
        assert len(each["cut"]["devices"]) == 8


def test_topo_bound_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    out = topo(capsys, "dual_numa_pcie", "--seq-len", "16K", "--direction", "forward")
    assert out.startswith("Forward\n  any schedule")
    assert "of keys and values" in out
    assert "Backward" not in out


def test_topo_bound_reads_partitions(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("dual_numa_pcie", "--seq-len", "999", "--partition", "contiguous", "--ranks", "3")
    assert "moving KV, contiguous" in topo(capsys, *argv)
    shards = Partition.contiguous(999, 3)
    assert shards.num_ranks == 3
