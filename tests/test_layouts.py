"""Parallel layouts: who forms a group, and that groups together are what they are apart."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from charm_sched import Workload, load_topology, plan, simulate, verify
from charm_sched.cli import plan_main
from charm_sched.errors import PlanError, WorkloadError
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.plans.side_by_side import packed, side_by_side
from charm_sched.what_if.layouts import Layout, group_workload, plan_layout

WORK = Workload(seq_len=1024, heads=8, kv_heads=4, head_dim=16)
CHOICES = {"strategies": ("ring", "charm"), "directions": ("forward", "backward")}


def forward(devices: tuple[str, ...], strategy: str = "ring", direction: str = "forward") -> Plan:
    machine = load_topology("dual_node_nvlink")
    made = plan(machine, WORK, strategy=strategy, direction=direction, devices=devices)
    assert isinstance(made, Plan)
    return made


def test_groups_differ_in_context_alone() -> None:
    groups = Layout(tp=2, cp=3, dp=2).groups()
    assert groups == [(0, 2, 4), (1, 3, 5), (6, 8, 10), (7, 9, 11)]
    assert sorted(rank for group in groups for rank in group) == list(range(12))


def test_heads_are_shared_out() -> None:
    assert group_workload(WORK, Layout(tp=4, cp=2, dp=1)).heads == 2
    assert group_workload(WORK, Layout(tp=4, cp=2, dp=1)).kv_heads == 1
    assert group_workload(WORK, Layout(tp=8, cp=2, dp=1)).kv_heads == 1  # copies of KV heads
    with pytest.raises(WorkloadError, match="expected a divisor of the 8 heads"):
        group_workload(WORK, Layout(tp=3, cp=2, dp=1))


@pytest.mark.parametrize("strategy", ["ring", "charm", "ulysses"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_plans_side_by_side_are_attention_again(strategy: str, direction: str) -> None:
    """The verifier proves the groups' plans together to be attention of packed documents."""
    a = forward(("node0/gpu0", "node1/gpu0"), strategy, direction)
    b = forward(("node0/gpu1", "node0/gpu2"), strategy, direction)
    both = side_by_side([a, b])
    verify(both, packed(WORK, 2))
    assert both.num_ranks == 4
    assert int(both.op_bytes.sum()) == int(a.op_bytes.sum() + b.op_bytes.sum())
    assert len(both) == len(a) + len(b)


def test_groups_that_share_no_link_do_not_disturb_each_other() -> None:
    machine = load_topology("dual_node_nvlink")
    a = forward(("node0/gpu0", "node1/gpu0"))
    b = forward(("node0/gpu1", "node1/gpu1"))
    alone = simulate(a, machine).makespan
    assert simulate(side_by_side([a, b]), machine).makespan == pytest.approx(alone, rel=1e-9)


def test_groups_that_share_a_card_do() -> None:
    """Two devices share a card: two groups that both send over it get half each."""
    machine = load_topology("dual_node_nvlink_4nic")
    work = Workload(seq_len=8192, heads=8, kv_heads=8, mask="full")
    plans = []
    for number in (0, 1):
        made = plan(machine, work, strategy="ring", direction="forward",
                    devices=[f"node0/gpu{number}", f"node1/gpu{number}"])  # fmt: skip
        assert isinstance(made, Plan)
        plans.append(made)
    alone = simulate(plans[0], machine)
    together = simulate(side_by_side(plans), machine)
    first = int((plans[0].columns.peer >= 0).argmax())
    assert together.end[first] - 14e-6 == pytest.approx(2 * (alone.end[first] - 14e-6), rel=1e-6)
    assert together.makespan > alone.makespan


def test_what_cannot_stand_side_by_side() -> None:
    a = forward(("node0/gpu0", "node1/gpu0"))
    with pytest.raises(PlanError, match="found one twice"):
        side_by_side([a, a])
    with pytest.raises(PlanError, match="full or causal mask, found window"):
        packed(Workload(seq_len=64, heads=1, mask="window:8"), 2)


def test_a_layout_is_planned_and_simulated_together() -> None:
    machine = load_topology("dual_node_nvlink_4nic")
    comparison, found = plan_layout(machine, WORK, Layout(tp=2, cp=4, dp=2), CHOICES)
    assert found.groups[0] == ("node0/gpu0", "node0/gpu2", "node0/gpu4", "node0/gpu6")
    assert comparison.workload.heads == 4
    assert {case.strategy for case in found.cases} == {"ring", "charm"}
    totals: dict[str, float] = {}
    for case in found.cases:
        assert case.together >= case.alone * (1 - 1e-9)
        totals[case.strategy] = totals.get(case.strategy, 0.0) + case.together
    assert min(totals, key=lambda name: totals[name]) == found.cases[0].strategy
    assert [case.strategy for case in found.chosen] == [
        result.strategy for result in comparison.chosen.values()
    ]
    assert isinstance(comparison.schedule(), Schedule)


def test_how_many_groups_share_each_card() -> None:
    """Four groups over two nodes with four cards each: two devices, so two groups, on a card."""
    machine = load_topology("dual_node_nvlink_4nic")
    _, found = plan_layout(machine, WORK, Layout(tp=8, cp=2, dp=1), CHOICES)
    shared = {one.kind: (one.links, one.least, one.most) for one in found.sharing}
    assert shared["network"] == (16, 2, 2)
    assert "nvlink" not in shared


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["dual_node_nvlink_4nic", "--seq-len", "2K", "--heads", "8", "--strategy", "ring",
            "--direction", "forward", "--tp", "2", "--cp", "4", "--dp", "2"]  # fmt: skip
    assert plan_main(argv) == 0
    text = capsys.readouterr().out
    assert "Layout tp 2, cp 4, dp 2: 4 attention groups of 4" in text
    assert "group 0: node0/gpu0, node0/gpu2, node0/gpu4, node0/gpu6" in text
    assert re.search(r"\* ring +forward ", text)
    assert plan_main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["layout"]
    assert [group["ranks"] for group in found["groups"]] == [
        [0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15],
    ]  # fmt: skip
    for more, status, said in (
        (["--tp", "3"], 1, "expected a divisor of the 8 heads"),
        (["--dp", "4"], 1, "expected 1 to 16 ranks, found 32"),
        (["--mask", "window:64"], 1, "full or causal mask"),
    ):
        assert plan_main([*argv, *more]) == status
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        plan_main([*argv, "--ranks", "4"])
    assert stop.value.code == 2
