"""The commands from end to end: what they print, save and refuse, and how they exit."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commands import Call, caller

from charm_sched import (
    Builder,
    Partition,
    Workload,
    load_plan,
    load_topology,
    plan,
    save_plan,
    simulate,
)
from charm_sched.cli import plan_main, sim_main
from charm_sched.planners.ring import ring
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.topo import main as topo_main

ROOT = Path(__file__).parent.parent
SMALL = ("--seq-len", "4K", "--ranks", "4")
YAML = f"{ROOT}/topologies/dual_numa_pcie.yaml"
DIRECT = f"{ROOT}/docs/examples/direct.py:direct"


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    """Run a command in an empty folder, as if piped."""
    return caller(capsys, tmp_path, monkeypatch, 80)


def test_plan_alone_plans_compares_sweeps_and_saves(call: Call, tmp_path: Path) -> None:
    done = call(plan_main, "dual_node_nvlink")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("dual_node_nvlink: 16 devices in 2 domains")
    assert re.search(r"^Forward: \w+ takes \d", done.out, re.M)
    assert re.search(r"^Backward: \w+ takes \d", done.out, re.M)
    assert re.search(
        r"^Why this one\n  \w+: .* of the bound of any schedule", done.out, re.M | re.S
    )
    flat = " ".join(done.out.split())
    for length in ("8K", "16K", "32K", "64K", "128K", "256K"):
        assert (
            len(re.findall(rf"^  {length} +.+x +comm|^  {length} +.+x +comp", done.out, re.M)) == 2
        )
    assert re.search(r"communication limits Ring-Attention: .*charm.* is \d", flat)
    assert re.search(r"From \w+ on computation is the limit", flat)
    assert "each strategy was tried with its first parameters alone" in flat
    assert "Assumed, not measured" in done.out
    assert "Saved dual_node_nvlink.plan.json\n" in done.out
    assert [path.name for path in tmp_path.iterdir()] == ["dual_node_nvlink.plan.json"]
    assert isinstance(load_plan(tmp_path / "dual_node_nvlink.plan.json"), Schedule)


def test_piped_output_is_plain_and_80_columns(call: Call) -> None:
    done = call(plan_main, "dual_node_nvlink", *SMALL)
    assert "\x1b" not in done.out
    lines = [line for line in done.out.splitlines() if not line.startswith(("Simulate", "Run"))]
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_workload_flag_leaves_the_sweep_out(call: Call) -> None:
    assert "by length" not in call(plan_main, "dual_node_nvlink", *SMALL).out


def test_report_shows_what_the_plan_does(call: Call) -> None:
    done = call(
        plan_main, "dual_node_nvlink", *SMALL, "--direction", "forward", "--strategy", "ring"
    )
    made = plan(
        load_topology("dual_node_nvlink"), Workload(seq_len=4096, heads=32, kv_heads=8),
        strategy="ring", direction="forward", ranks=4,
    )  # fmt: skip
    assert isinstance(made, Plan)
    makespan = simulate(made, load_topology("dual_node_nvlink")).makespan
    assert f"Forward: ring takes {makespan * 1e6:.3g} us\n" in done.out
    assert "Backward" not in done.out
    assert "Ring-Attention  " not in done.out  # nothing to compare ring with


def test_json_is_one_document_and_nothing_else(call: Call, tmp_path: Path) -> None:
    done = call(plan_main, "dual_node_nvlink", *SMALL, "--json")
    assert (done.status, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["plan_file"] is None
    assert list(tmp_path.iterdir()) == []


def test_json_saves_where_told(call: Call, tmp_path: Path) -> None:
    done = call(plan_main, "dual_node_nvlink", *SMALL, "--json", "-o", "here.npz")
    assert json.loads(done.out)["plan_file"] == "here.npz"
    assert isinstance(load_plan(tmp_path / "here.npz"), Schedule)


def test_memory_is_a_limit_and_what_exceeds_it_is_told(call: Call) -> None:
    argv = ("dual_node_nvlink", *SMALL, "--direction", "forward")
    flat = " ".join(call(plan_main, *argv, "--memory", "1 MB").out.split())
    assert "NOTHING THAT WAS FOUND FITS: this needs " in flat
    assert "more than the 1 MB allowed" in flat
    document = json.loads(call(plan_main, *argv, "--memory", "1 GB", "--json").out)
    assert document["memory_limit"] == 1e9
    assert {row["fits"] for row in document["results"]} == {True}
    wrong = call(plan_main, *argv, "--memory", "40")
    assert wrong.status == 2
    assert "a number needs its unit" in wrong.err


def test_all_shows_what_auto_leaves_out(call: Call) -> None:
    argv = ("dual_node_nvlink", *SMALL, "--json", "--strategy")
    every, auto = (json.loads(call(plan_main, *argv, which).out) for which in ("all", "auto"))
    shown = {(row["strategy"], row["direction"]): row for row in every["results"]}
    assert every["not_tried"] == []
    assert auto["not_tried"]
    for one in auto["not_tried"]:
        assert one["reason"]
        assert (one["strategy"], one["direction"]) in shown
    assert auto["chosen"] == every["chosen"]


def test_several_machines(call: Call, tmp_path: Path) -> None:
    names = ("dual_node_nvlink", "dual_node_nvlink_4nic")
    done = call(plan_main, *names, *SMALL)
    table = done.out[done.out.index("The machines side by side") :]
    assert all(name in table for name in names)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.plan.json" for name in names}
    document = json.loads(call(plan_main, *names, *SMALL, "--json").out)
    assert [report["topology"]["name"] for report in document["reports"]] == list(names)


@pytest.mark.parametrize("flag", [("-o", "x.json"), ("--trace", "x.json")])
def test_several_machines_take_no_single_file(call: Call, flag: tuple[str, str]) -> None:
    done = call(plan_main, "dual_node_nvlink", "dual_numa_pcie", *flag)
    assert done.status == 2
    assert "take one topology" in done.err


def test_strategies_by_name_and_from_a_file(call: Call) -> None:
    done = call(plan_main, "dual_node_nvlink", *SMALL, "--json", "--strategy", f"ring,{DIRECT}")
    rows = json.loads(done.out)["results"]
    assert {row["strategy"] for row in rows} == {"ring", DIRECT}
    assert all(row["speedup_vs_ring"] == 1 for row in rows if row["strategy"] == "ring")


def test_strategies_that_cannot_serve_are_listed_with_their_reason(
    call: Call, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from charm_sched.errors import StrategyError\n"
        "def picky(b):\n    raise StrategyError('picky: expected 4 heads, found 32')\n"
    )
    argv = ("dual_node_nvlink", *SMALL, "--strategy", "ring,mine.py:picky")
    refused = json.loads(call(plan_main, *argv, "--json").out)["refused"]
    assert [(r["strategy"], r["direction"]) for r in refused] == [
        ("mine.py:picky", "forward"), ("mine.py:picky", "backward"),
    ]  # fmt: skip
    assert refused[0]["reason"].endswith("expected 4 heads, found 32")
    text = call(plan_main, *argv).out
    assert "  - mine.py:picky, forward: picky: expected 4 heads, found 32\n" in text
    alone = call(plan_main, *argv[:-1], "mine.py:picky")
    assert alone.status == 1
    assert "expected 4 heads, found 32" in alone.err


@pytest.mark.parametrize("kind", ["contiguous", "zigzag"])
def test_partition_is_obeyed(call: Call, kind: str) -> None:
    done = call(plan_main, "dual_node_nvlink", *SMALL, "--json", "--partition", kind)
    assert {row["partition"] for row in json.loads(done.out)["results"]} == {kind}


def test_devices_are_obeyed_in_order(call: Call, tmp_path: Path) -> None:
    devices = "node1/gpu0,node0/gpu3,node0/gpu2"
    argv = ("--seq-len", "4K", "--devices", devices, "-o", "p.json", "--direction", "forward")
    assert call(plan_main, "dual_node_nvlink", *argv, "--json").status == 0
    made = load_plan(tmp_path / "p.json")
    assert isinstance(made, Plan)
    assert ",".join(made.devices) == devices


def test_interrupting_is_no_traceback(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(source: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("charm_sched.topology.graph.load_topology", interrupt)
    assert call(plan_main, "dual_node_nvlink") == (130, "", "error: interrupted\n")


def test_ring_is_the_baseline_even_unasked(call: Call) -> None:
    alone = json.loads(
        call(plan_main, "dual_node_nvlink", *SMALL, "--json", "--strategy", "charm").out
    )
    both = json.loads(call(plan_main, "dual_node_nvlink", *SMALL, "--json").out)
    assert {row["strategy"] for row in alone["results"]} == {"charm"}
    speedups = [row["speedup_vs_ring"] for row in both["results"] if row["strategy"] == "charm"]
    assert [row["speedup_vs_ring"] for row in alone["results"]] == speedups


def test_saving_replaces_a_plan_and_says_so(call: Call, tmp_path: Path) -> None:
    target = tmp_path / "dual_node_nvlink.plan.json"
    assert "Saved dual_node_nvlink.plan.json\n" in call(plan_main, "dual_node_nvlink", *SMALL).out
    before = target.read_bytes()
    done = call(plan_main, "dual_node_nvlink", "--seq-len", "8K", "--ranks", "4")
    told = "Saved dual_node_nvlink.plan.json (replaced a plan for 4K tokens on 4 ranks).\n"
    assert told in done.out
    assert target.read_bytes() != before
    again = call(plan_main, "dual_node_nvlink", "--seq-len", "8K", "--ranks", "4")
    assert "Saved dual_node_nvlink.plan.json (replaced the plan that was there)." in again.out


@pytest.mark.parametrize("flags", [(), ("-o", "dual_node_nvlink.plan.json")])
@pytest.mark.parametrize("content", ["my notes\n", '{"schema": "mine"}\n', ""])
def test_saving_leaves_other_files_alone(
    call: Call, tmp_path: Path, flags: tuple[str, ...], content: str
) -> None:
    target = tmp_path / "dual_node_nvlink.plan.json"
    target.write_text(content)
    done = call(plan_main, "dual_node_nvlink", *SMALL, *flags)
    assert (done.status, done.out) == (1, "")
    assert "is no plan of charm-sched, so it is left alone" in done.err
    assert target.read_text() == content


@pytest.mark.parametrize(
    ("name", "message"),
    [("plan.txt", "ends in .json or .npz"), ("nowhere/plan.json", "there is no folder nowhere")],
)
def test_bad_names_are_refused_before_planning(call: Call, name: str, message: str) -> None:
    done = call(plan_main, "dual_node_nvlink", "-o", name)
    assert (done.status, done.out) == (1, "")
    assert message in done.err


def test_traces(call: Call, tmp_path: Path) -> None:
    assert call(plan_main, "dual_node_nvlink", *SMALL, "--json", "--trace", "t.json").status == 0
    assert {path.name for path in tmp_path.iterdir()} == {"t.forward.json", "t.backward.json"}
    one = ("--direction", "backward")
    assert (
        call(plan_main, "dual_node_nvlink", *SMALL, "--json", *one, "--trace", "u.json").status == 0
    )
    assert json.loads((tmp_path / "u.json").read_text())["traceEvents"]


def test_written_traces_are_named(call: Call) -> None:
    done = call(plan_main, "dual_node_nvlink", *SMALL, "--trace", "t.json")
    for direction in ("forward", "backward"):
        assert f"Timeline: t.{direction}.json (" in done.out
    again = call(plan_main, "dual_node_nvlink", *SMALL, "--trace", "t.json", "--json")
    names = ["t.forward.json", "t.backward.json"]  # a trace of ours may be replaced
    assert (again.status, json.loads(again.out)["trace_files"]) == (0, names)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("-o", "p.json", "--trace", "p.json"), "the plan has this name"),
        (("-o", "p.forward.json", "--trace", "p.json"), "the plan has this name"),
        (("--trace", "dual_node_nvlink.plan.json"), "the plan has this name"),
        (("--trace", "notes.json", "--direction", "forward"), "is no trace of charm-sched"),
        (("--trace", "nowhere/t.json"), "there is no folder nowhere"),
    ],
)
def test_traces_destroy_nothing_and_are_checked_before_planning(
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    message: str,
) -> None:
    (tmp_path / "notes.json").write_text('{"mine": 1}\n')
    monkeypatch.setattr("charm_sched.search.planning.plan_all", None)  # not reached
    done = call(plan_main, "dual_node_nvlink", *SMALL, *flags)
    assert (done.status, done.out) == (1, "")
    assert message in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.json"]
    assert (tmp_path / "notes.json").read_text() == '{"mine": 1}\n'


def test_a_trace_never_replaces_the_simulated_plan(call: Call, tmp_path: Path) -> None:
    one = ("--direction", "forward", "--json", "-o", "p.json")
    assert call(plan_main, "dual_node_nvlink", *SMALL, *one).status == 0
    before = (tmp_path / "p.json").read_bytes()
    done = call(sim_main, "p.json", "--trace", "p.json")
    assert (done.status, done.out) == (1, "")
    assert (tmp_path / "p.json").read_bytes() == before


def test_a_foreign_default_name_is_refused_before_planning(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dual_node_nvlink.plan.json").write_text("mine")
    monkeypatch.setattr("charm_sched.search.planning.plan_all", None)  # not reached
    assert "is left alone" in call(plan_main, "dual_node_nvlink", *SMALL).err


def test_a_plan_is_no_topology(call: Call) -> None:
    call(plan_main, "dual_node_nvlink", *SMALL, "--json", "-o", "p.json")
    done = call(plan_main, "p.json")
    assert done.status == 1
    assert done.err == "error: p.json: expected a topology, found a plan; charm-sim p.json " + (
        "simulates it\n"
    )


def test_messages_keep_the_folder(call: Call, tmp_path: Path) -> None:
    (tmp_path / "racks").mkdir()
    (tmp_path / "racks" / "a.yaml").write_text("schema: charm-sched/topology\nversion: 3\n")
    assert call(plan_main, "racks/a.yaml").err.startswith("error: racks/a.yaml:2: version: ")


@pytest.mark.parametrize("error", [MemoryError(), MemoryError("Unable to allocate 3 TiB")])
def test_too_little_memory_is_one_message(
    call: Call, monkeypatch: pytest.MonkeyPatch, error: MemoryError
) -> None:
    def fail(*args: object, **more: object) -> None:
        raise error

    call(plan_main, "dual_node_nvlink", *SMALL, "--json", "-o", "p.json")
    for module, main, argv in (
        ("search.planning.plan_all", plan_main, ("dual_node_nvlink", *SMALL)),
        ("commands.assess.assess", sim_main, ("p.json",)),
        ("topology.graph.load_topology", topo_main, ("show", "dual_node_nvlink")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"charm_sched.{module}", fail)
            done = call(main, *argv)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith("error: this needs more memory than this machine has")
        assert done.err.count("\n") == 1
        assert ("4 ranks" in done.err and "operations" in done.err) == (main is not topo_main)
        assert str(error) in done.err


def test_numbers_that_overflow_are_one_message(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: str) -> None:
        raise OverflowError("Python int too large to convert to C long")

    monkeypatch.setattr("charm_sched.topology.graph.load_topology", fail)
    done = call(plan_main, "dual_node_nvlink")
    assert (done.status, done.err.count("\n")) == (1, 1)
    assert done.err.startswith("error: a number is too large")


BAD = """
def raises(b):
    x = 1
    raise ValueError("not like this")
def leaves(b):
    raise SystemExit(3)
def yields(b):
    yield 1
def misuses(b):
    b.attend(rank=0, queries=[10**6], keys=[0])
def sends(b):
    helper(b)
def helper(b):
    return {}["key"]
"""


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", "mine.py, line 4: ValueError: not like this"),
        ("leaves", "mine.py, line 6: SystemExit: 3"),
        ("yields", "yields is a generator"),
        ("misuses", "mine.py, line 10: "),
        ("sends", "mine.py, line 14: KeyError: 'key'"),
    ],
)
def test_mistakes_in_a_file_are_named_by_line(
    call: Call, tmp_path: Path, absolute: bool, function: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text(BAD)
    name = f"{tmp_path}/mine.py:{function}" if absolute else f"mine.py:{function}"
    done = call(plan_main, "dual_node_nvlink", *SMALL, "--strategy", name)
    assert (done.status, done.out) == (1, "")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_table_marks_the_chosen_and_adds_up(call: Call) -> None:
    out = call(plan_main, "dual_node_nvlink", *SMALL).out
    table = out[out.index("Every strategy") : out.index("Assumed,")].splitlines()
    assert table[1].split()[:8] == [
        "strategy", "time", "vs", "ring", "bound", "compute", "exposed", "partition",
    ]  # fmt: skip
    assert sum(line.startswith("  * ") for line in table) == 3  # one a direction, and the note
    assert "time is computation and exposed" in out
    assert "bound is the time that no schedule can beat" in " ".join(out.split())
    assert out.count("all of the time, ") == 1


@pytest.mark.parametrize("width", ["40", "60"])
def test_narrow_reports_keep_strategies_and_numbers(
    call: Call, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    call(plan_main, "dual_node_nvlink", *SMALL, "--json")
    monkeypatch.setenv("COLUMNS", width)
    out = call(plan_main, "dual_node_nvlink", *SMALL, "--strategy", f"ring,charm,{DIRECT}").out
    table = out[out.index("Every strategy") : out.index("Assumed,")]
    assert "\u2026" not in table
    assert max(map(len, table.splitlines()[1:-2])) <= int(width)
    for name in ("charm", "ring", "direct.py:direct"):
        assert len(re.findall(rf"^ +(?:\* )?{name} ", table, re.M)) == 2


def test_topo_show_names_the_devices(call: Call) -> None:
    text = call(topo_main, "show", "dual_node_nvlink").out
    assert "  devices node0/gpu0..7\n  devices node1/gpu0..7\n" in text
    assert "all its links together" in " ".join(text.split())
    names = json.loads(call(topo_main, "show", "dual_node_nvlink", "--json").out)["device_names"]
    assert names == list(load_topology("dual_node_nvlink").device_names)
    argv = ("--devices", "node0/gpu0..3", "--seq-len", "4K", "--json")
    rows = json.loads(call(plan_main, "dual_node_nvlink", *argv).out)["results"]
    assert {row["ranks"] for row in rows} == {4}


def test_sweep_says_what_limits_ring(call: Call) -> None:
    assert "ring limited by" in call(plan_main, "dual_numa_pcie", "--direction", "forward").out


def test_simulating_a_saved_plan_gives_the_planned_numbers(call: Call) -> None:
    planned = call(plan_main, "dual_node_nvlink", *SMALL, "--json", "-o", "p.json")
    simulated = call(sim_main, "p.json", "--json")
    assert (simulated.status, simulated.err) == (0, "")
    first, second = json.loads(planned.out), json.loads(simulated.out)
    chosen = {(d, detail["planner"]) for d, detail in first["chosen"].items()}
    rows = [row for row in first["results"] if (row["direction"], row["strategy"]) in chosen]
    assert sorted(second["results"], key=str) == sorted(rows, key=str)
    for key in ("schema", "version", "topology", "workload", "chosen", "plan_file"):
        assert second[key] == first[key]


def test_simulating_on_another_machine(call: Call) -> None:
    call(plan_main, "dual_node_nvlink", "--seq-len", "16K", "--json", "-o", "p.json")
    here = json.loads(call(sim_main, "p.json", "--json").out)
    there = json.loads(
        call(sim_main, "p.json", "--topology", "dual_node_nvlink_4nic", "--json").out
    )
    assert there["topology"]["name"] == "dual_node_nvlink_4nic"
    assert [r["makespan_s"] for r in there["results"]] > [r["makespan_s"] for r in here["results"]]
    assert [r["ops"] for r in there["results"]] == [r["ops"] for r in here["results"]]


def test_simulating_prints_a_report(call: Call) -> None:
    call(plan_main, "dual_node_nvlink", *SMALL, "--json", "-o", "p.json")
    done = call(sim_main, "p.json", "--trace", "t.json")
    assert done.status == 0
    assert "Forward: " in done.out
    assert "Saved" not in done.out
    assert Path("t.forward.json").is_file()


def test_a_plan_without_a_machine_needs_one(call: Call, tmp_path: Path) -> None:
    builder = Builder(Workload(seq_len=64, heads=2), Partition.contiguous(64, 2))
    ring(builder)
    save_plan(builder.build("ring"), tmp_path / "bare.json")
    done = call(sim_main, "bare.json")
    assert done.status == 1
    assert done.err.startswith("error: bare.json: expected a machine")


def test_a_plan_that_is_not_attention_is_refused(call: Call, tmp_path: Path) -> None:
    builder = Builder(
        Workload(seq_len=64, heads=2), Partition.contiguous(64, 2),
        topology=load_topology("dual_numa_pcie"), devices=("socket0/gpu0", "socket0/gpu1"),
    )  # fmt: skip
    builder.attend(rank=builder.ranks, queries=builder.shards("q"), keys=builder.shards("kv"))
    save_plan(builder.build("lazy"), tmp_path / "lazy.json")
    done = call(sim_main, "lazy.json")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("error: ")


@pytest.mark.parametrize(
    ("main", "argv", "message"),
    [
        (plan_main, ["no_such_machine"], "error: no_such_machine: expected a topology file or"),
        (plan_main, ["dual_node_nvlnk"], 'did you mean "dual_node_nvlink"?'),
        (plan_main, ["dual_node_nvlink", "--ranks", "17"], "error: "),
        (plan_main, ["dual_node_nvlink", "--devices", "node0/gpu0,nix"], 'found "nix"'),
        (plan_main, ["dual_node_nvlink", "--strategy", "rong"], "charm or path/to/"),
        (plan_main, ["dual_node_nvlink", "--strategy", "nix.py:f"], "error: "),
        (plan_main, ["dual_node_nvlink", *SMALL, "--trace", "no/a.json"], "there is no folder no"),
        (sim_main, ["nix.json"], "error: nix.json: cannot be read"),
        (sim_main, ["dual_numa_pcie"], "charm-plan dual_numa_pcie makes a plan for it"),
        (sim_main, [YAML], f"charm-plan {YAML} makes a plan for it"),
        (plan_main, ["dual_node_nvlink", "--devices", "nix"], "(node0/gpu0, node0/gpu1, ..., nod"),
        (topo_main, ["show", "nix"], "error: nix: expected a topology file or a shipped name"),
    ],
)  # fmt: skip
def test_problems_are_one_message(
    call: Call, main: Callable[[Sequence[str]], int], argv: list[str], message: str
) -> None:
    done = call(main, *argv)
    assert done.status == 1
    assert message in done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("main", "argv", "message"),
    [
        (plan_main, [], "the following arguments are required: TOPOLOGY"),
        (plan_main, ["dual_node_nvlink", "--mask", "docs:4,4", "--seq-len", "9"], "hold 8 tokens"),
        (
            plan_main,
            ["dual_node_nvlink", "--heads", "6", "--kv-heads", "4"],
            "--kv-heads: expected",
        ),
        (plan_main, ["dual_node_nvlink", "--seq-len", "9" * 20], "99999: too long to count"),
        (plan_main, ["dual_node_nvlink", "--direction", "up"], "invalid choice: 'up'"),
        (plan_main, ["dual_node_nvlink", "--strategy", "auto,ring"], "expected auto or all alone"),
        (plan_main, ["dual_node_nvlink", "--strategy", "ring,"], "expected strategies such as"),
        (plan_main, ["dual_node_nvlink", "--mask", "blocks:@f"], "f: cannot be read"),
        (plan_main, ["dual_node_nvlink", "--picture", "x.html"], "unrecognized arguments"),
        (sim_main, [], "the following arguments are required: PLAN"),
        (topo_main, [], "the following arguments are required: COMMAND"),
        (topo_main, ["shw"], "invalid choice: 'shw'"),
    ],
)
def test_usage_errors_exit_2(
    call: Call, main: Callable[[Sequence[str]], int], argv: list[str], message: str
) -> None:
    done = call(main, *argv)
    assert (done.status, done.out) == (2, "")
    assert message in done.err


def test_topo_list(call: Call) -> None:
    text = call(topo_main, "list").out
    listed = json.loads(call(topo_main, "list", "--json").out)
    assert {"dual_numa_pcie", "dual_node_nvlink", "single_node_nvlink"} <= {
        m["name"] for m in listed
    }
    assert all(machine["name"] in text for machine in listed)


def test_topo_show(call: Call) -> None:
    shown: dict[str, Any] = json.loads(call(topo_main, "show", "dual_node_nvlink", "--json").out)
    assert shown["name"] == "dual_node_nvlink"
    assert shown["devices"] == 16
    assert [tier["domains"] for tier in shown["tiers"]] == [2, 16]
    assert sum(kind["count"] for kind in shown["links"]) == len(
        load_topology("dual_node_nvlink").links
    )
    text = call(topo_main, "show", "dual_node_nvlink").out
    assert all(kind["kind"] in text for kind in shown["links"])
    assert text.count("\n  - ") == len(shown["assumptions"])


def test_topo_validate(call: Call, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("schema: charm-sched/topology\nversion: 1\nname: x\n")
    good = str(ROOT / "topologies" / "dual_numa_pcie.yaml")
    done = call(topo_main, "validate", good)
    assert (done.status, done.out) == (0, f"{good}: valid, 8 devices, tiers: upi, pcie\n")
    done = call(topo_main, "validate", "bad.yaml", good, "missing.yaml")
    assert done.status == 1
    assert [line.partition(":")[0] for line in done.err.splitlines()] == ["error", "error"]
    assert "bad.yaml" in done.err
    assert good in done.out


def test_topo_schema_accepts_the_shipped_files(call: Call) -> None:
    schema = json.loads(call(topo_main, "schema").out)
    assert "$schema" in schema


def command(*argv: str) -> list[str]:
    name, *rest = argv
    module, main = name.split(".")
    code = f"import sys; from charm_sched.{module} import {main}; sys.exit({main}({rest!r}))"
    return [sys.executable, "-c", code]


def environment(**changes: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "TERM": "xterm-256color", **changes}


def on_a_terminal(argv: list[str], cwd: Path, **changes: str) -> str:
    """Run a command whose stdout and stderr are a terminal."""
    main, side = pty.openpty()
    process = subprocess.Popen(
        argv, cwd=cwd, stdin=side, stdout=side, stderr=side, env=environment(**changes)
    )
    os.close(side)
    output = b""
    while True:
        try:
            block = os.read(main, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not block:
            break
        output += block
    os.close(main)
    assert process.wait(timeout=60) == 0
    return output.decode()


def test_terminal_gets_colour_and_progress_unless_no_color(tmp_path: Path) -> None:
    argv = command("cli.plan_main", "dual_node_nvlink", *SMALL)
    coloured = on_a_terminal(argv, tmp_path)
    assert "\x1b[32m" in coloured
    assert "planning" in coloured
    plain = on_a_terminal(argv, tmp_path, NO_COLOR="1")
    assert not re.search(r"\x1b\[(?:\d+;)*3\d", plain)


def test_json_on_a_terminal_is_json(tmp_path: Path) -> None:
    output = on_a_terminal(command("cli.plan_main", "dual_node_nvlink", *SMALL, "--json"), tmp_path)
    assert json.loads(output)["version"] == 1


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("topo.main", "schema"),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert err == b""
    assert process.returncode == 1


def test_output_without_unicode(tmp_path: Path) -> None:
    done = subprocess.run(
        command("cli.plan_main", "dual_node_nvlink", *SMALL),
        cwd=tmp_path, capture_output=True, timeout=60, env=environment(PYTHONIOENCODING="ascii"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert b"####" in done.stdout
