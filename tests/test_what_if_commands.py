"""charm-plan and charm-sim with a changed machine, explanations and sweeps: as a user sees them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.commands import Call, caller

from charm_sched import Workload, load_topology, plan, save_plan
from charm_sched.cli import plan_main, sim_main

WORK = Workload(seq_len=4096, heads=8, kv_heads=4)


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    return caller(capsys, tmp_path, monkeypatch, 100)


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = plan(load_topology("dual_node_nvlink"), WORK, strategy="charm", ranks=4)
    return str(save_plan(made, tmp_path_factory.mktemp("plans") / "p.json"))


PLAN = ("dual_node_nvlink", "--seq-len", "4K", "--heads", "8", "--kv-heads", "4", "--ranks", "4",
        "--strategy", "charm")  # fmt: skip


def test_a_slower_network_costs_what_it_costs(call: Call, plan_file: str) -> None:
    argv = (plan_file, "--set", "links[network].bandwidth=x0.25", "--json")
    found = call(sim_main, *argv).document
    before, after = found["what_if"]["cases"]
    assert before["speed"] == 1
    assert after["total_s"] > before["total_s"]
    assert after["speed"] == pytest.approx(before["total_s"] / after["total_s"])
    plain = call(sim_main, plan_file, "--json").document
    assert plain["what_if"] is None
    rows = {row["direction"]: row["makespan_s"] for row in plain["results"]}
    assert before["makespan_s"] == rows
    assert found["what_if"]["changes"] == ["links[network].bandwidth = x0.25 (16 links)"]
    assert any(text.startswith("what if: links[network]") for text in found["assumptions"])
    text = call(sim_main, *argv[:-1])
    assert re.search(r"changed, this plan: \d+\.\d% more time, .* lost", text.flat)


def test_simulated_times_are_not_below_the_bound_of_the_changed_machine(
    call: Call, plan_file: str
) -> None:
    for change in ("links[*].bandwidth=x4", "profiles[*].rate=x3", "links[*].latency=0 s"):
        for row in call(sim_main, plan_file, "--set", change, "--json").document["results"]:
            assert row["makespan_s"] >= row["bound_s"] * (1 - 1e-9)
            assert row["makespan_s"] >= row["class_bound_s"] * (1 - 1e-9)


def test_a_failed_device_needs_a_new_plan(call: Call, plan_file: str) -> None:
    refused = call(sim_main, plan_file, "--fail", "node0/gpu1")
    assert (refused.status, refused.out) == (1, "")
    assert "the plan needs node0/gpu1, which failed; --replan" in refused.err
    found = call(sim_main, plan_file, "--fail", "node0/gpu1", "--replan", "--json").document
    assert [case["ranks"] for case in found["what_if"]["cases"]] == [4, 3]
    assert found["what_if"]["failed"] == ["node0/gpu1"]
    assert {row["ranks"] for row in found["results"]} == {3}


def test_a_failed_card_leaves_its_device_out(call: Call, plan_file: str) -> None:
    refused = call(sim_main, plan_file, "--fail", "node0/nic1")
    assert refused.status == 1
    assert "expected a route from" in refused.err
    assert "--replan makes a new plan without node0/gpu1" in refused.err
    found = call(sim_main, plan_file, "--fail", "node0/nic1", "--replan", "--json").document
    assert found["what_if"]["left_out"] == ["node0/gpu1"]
    assert {row["ranks"] for row in found["results"]} == {3}


def test_what_does_not_matter_to_the_plan_costs_nothing(call: Call, plan_file: str) -> None:
    text = call(sim_main, plan_file, "--fail", "node1/gpu7 <-> node1/nic7").flat
    assert "changed, this plan: no difference." in text


def test_plan_works_around_and_states_the_loss(call: Call, tmp_path: Path) -> None:
    argv = ("dual_numa_pcie", "--seq-len", "4K", "--strategy", "charm", "--direction", "forward")
    done = call(plan_main, *argv, "--fail", "socket0/gpu3")
    assert done.status == 0
    assert "What if: socket0/gpu3 failed" in done.out
    assert re.search(r"changed, a plan for it +7 ", done.out)
    assert re.search(r"changed, a plan for it: \d+\.\d% (more|less) time", done.flat)
    assert [path.name for path in tmp_path.iterdir()] == ["dual_numa_pcie_what-if.plan.json"]
    gone = call(plan_main, *argv, "--fail", "socket0/gpu3", "--devices", "socket0/gpu2..3")
    assert gone.status == 1
    assert "--devices: socket0/gpu3 failed" in gone.err


def test_explanations_are_always_there_and_longer_when_asked_for(call: Call) -> None:
    argv = (*PLAN, "--direction", "forward")
    short = call(plan_main, *argv)
    assert re.search(r"critical path +\d+% ", short.out)
    assert "what would help" not in short.out
    long = call(plan_main, *argv, "--explain")
    assert long.out.count("why it takes that long") == 1
    assert "would help this plan most" in long.flat or "None of these" in long.flat
    found = call(plan_main, *argv, "--explain", "--json").document["explanations"]
    for direction, told in found.items():
        assert direction in ("forward", "backward")
        total = sum(cause["seconds"] for cause in told["causes"])
        assert told["critical_path"][-1]["end_s"] == pytest.approx(total)
        assert {lever["name"] for lever in told["levers"]} >= {"kernel rates x2"}
    plain = call(plan_main, *argv, "--json").document["explanations"]
    assert plain["forward"]["levers"] is None
    assert plain["forward"]["causes"] == found["forward"]["causes"]


def test_jitter_shows_how_the_time_scatters(call: Call, plan_file: str) -> None:
    argv = (plan_file, "--jitter", "7", "--repetitions", "5")
    (forward, _) = call(sim_main, *argv, "--json").document["jitter"]
    assert len(forward["makespans_s"]) == 5
    assert forward["least_s"] >= forward["undisturbed_s"]
    assert forward["mean"] == 0.05
    text = call(sim_main, *argv, "--jitter-mean", "10%")
    assert "each device and link 10% slower on average, 5 repetitions, seed 7" in text.flat
    wrong = call(sim_main, plan_file, "--repetitions", "5")
    assert (wrong.status, "need --jitter" in wrong.err) == (2, True)
    assert call(sim_main, plan_file, "--jitter", "-1").status == 2
    assert call(sim_main, plan_file, "--jitter", "1", "--jitter-mean", "5").status == 2


def test_sweeps(call: Call, plan_file: str) -> None:
    argv = (*PLAN, "--direction", "forward", "--sweep", "seq-len=1K..4K", "--strategy", "ring")
    text = call(plan_main, *argv)
    assert re.findall(r"^  (\dK) +\d", text.out, re.M) == ["1K", "2K", "4K"]
    found = call(sim_main, plan_file, "--sweep", "links[network].bandwidth=x0.25..x1",
                 "--steps", "3", "--json").document["sweep"]  # fmt: skip
    assert found["unit"] == "times"
    assert [p["value"] for p in found["points"]] == [0.25, 0.25, 0.625, 0.625, 1, 1]
    assert all(p["makespan_s"] >= p["bound_s"] for p in found["points"])
    times = [p["makespan_s"] for p in found["points"] if p["direction"] == "forward"]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--set", "links[network].bandwidth=50"), "a number needs its unit"),
        (("--set", "links[nick].bandwidth=50 GB/s"), "names no link of dual_node_nvlink"),
        (("--slow", "gpu0=2%"), "expected DEVICE=FACTOR"),
        (("--fail", "gpu99"), "names no part of dual_node_nvlink"),
        (("--sweep", "links[network].bandwidth=9..3 GB/s"), "a smaller and a larger value"),
        (("--sweep", "links[nick].bandwidth=3..9 GB/s"), "names no link of"),
    ],
)
def test_what_is_wrong_is_one_message_and_exit_1(
    call: Call, plan_file: str, argv: tuple[str, str], said: str
) -> None:
    for main, first in ((sim_main, (plan_file,)), (plan_main, PLAN)):
        done = call(main, *first, *argv)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
        assert said in done.err


def test_what_cannot_be_is_refused(call: Call, plan_file: str) -> None:
    lacks = call(sim_main, plan_file, "--topology", "dual_numa_pcie")
    assert lacks.status == 1
    assert "dual_numa_pcie lacks node0/gpu0, node0/gpu1" in lacks.err
    assert "expected a change" in call(sim_main, plan_file, "--replan").err
    assert "one length" in call(sim_main, plan_file, "--sweep", "seq-len=1K..2K").err
    docs = call(plan_main, "dual_numa_pcie", "--mask", "docs:1K,1K", "--sweep", "seq-len=1K..2K")
    assert (docs.status, "the lengths of the documents" in docs.err) == (1, True)
    assert call(sim_main, plan_file, "--steps", "3").status == 2
    assert call(plan_main, "a", "b", "--sweep", "seq-len=1K..2K").status == 2
