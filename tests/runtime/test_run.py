"""charm-run under torchrun, on few processes and little work."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import charm_sched
from charm_sched.commands.running import Row
from charm_sched.planners import PLANNERS
from charm_sched.render.run import show
from charm_sched.run import _choose, _parser, long_work
from charm_sched.runtime.trial import Yardstick, dense_attention, draw_tensors, one_device
from charm_sched.search.explore import SAME
from charm_sched.workload import Workload

pytestmark = pytest.mark.distributed
SMALL = (
    "--seq-len", "64", "--heads", "4", "--kv-heads", "2", "--head-dim", "8", "--dtype", "fp64",
    "--repeat", "2",
)  # fmt: skip


def charm_run(
    folder: Path, *arguments: str, processes: int = 2, patience: float = 120
) -> subprocess.CompletedProcess[str]:
    root = Path(charm_sched.__file__).parents[1]
    return subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes),
            "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
            "-m", "charm_sched.run", *arguments,
        ],
        cwd=folder, capture_output=True, text=True, timeout=patience, check=False,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_topology_is_planned_run_and_checked(tmp_path: Path) -> None:
    done = charm_run(tmp_path, "dual_numa_pcie", *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "charm-sched/report"
    assert [row["direction"] for row in document["results"]] == ["forward", "backward"]
    for row in document["results"]:
        assert row["ranks"] == 2
        assert row["max_error"] < 1e-10
        assert 0 <= row["measured_spread_s"] < 5
        assert 0 < row["measured_s"] < 5
        assert row["prediction_error"] == pytest.approx(row["makespan_s"] / row["measured_s"] - 1)


def test_a_stored_plan_is_run(tmp_path: Path) -> None:
    topology = charm_sched.load_topology("dual_numa_pcie")
    work = Workload(seq_len=64, heads=2, head_dim=8, dtype="fp32")
    stored = charm_sched.plan(topology, work, strategy="ring", ranks=2, direction="forward")
    charm_sched.save_plan(stored, tmp_path / "stored.plan.json")
    done = charm_run(tmp_path, "stored.plan.json", "--repeat", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "dual_numa_pcie, 2 ranks: 64 tokens, batch 1, 2 heads of 8, fp32, causal"
    context = " ".join(lines[1:3])
    assert context.startswith("1 run each with cpu_flash kernels; predicted for a100_pcie_80gb, ")
    assert context.endswith("measured on this machine's processors")
    assert lines[-2].split()[5:7] == ["error", "spread"]
    row = lines[-1].split()
    assert row[:3] == ["forward", "ring", "exact"]
    assert row[-2] == "-"  # one run has no spread
    assert float(row[-1]) < 1e-5


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("no_such_machine", *SMALL), "no_such_machine"),
        (("dual_numa_pcie", *SMALL, "--ranks", "3"), "torchrun started 2 processes"),
        (("x.json", "--seq-len", "9", "--strategy", "ring"), "--strategy, --seq-len: x.json is a"),
        (("x.npz", "--devices", "a,b"), "--devices: x.npz is a plan"),
    ],
)
def test_problems_are_one_message(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    done = charm_run(tmp_path, *arguments)
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(told) == 1
    assert expected in told[0]
    assert not done.stdout


def test_it_says_how_it_is_started() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "charm_sched.run", "dual_numa_pcie"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "torchrun --nproc-per-node N" in done.stderr
    assert "Traceback" not in done.stderr


def test_strategies_are_given_as_to_charm_plan() -> None:
    parser = _parser()
    for given, named in (
        ("all", set(PLANNERS)),
        ("ring", {"ring"}),
        ("ring,charm", {"ring", "charm"}),
    ):
        args = parser.parse_args(["dual_numa_pcie", *SMALL, "--strategy", given])
        found = _choose(args, 2)
        served = {r.strategy for r in found.results}
        assert served | {r.strategy for r in found.refused} == named
        assert {"ring", "charm"} & named <= served
        assert set(found.chosen) == {"forward", "backward"}
    with pytest.raises(SystemExit):
        parser.parse_args(["dual_numa_pcie", "--strategy", "auto,ring"])


def test_auto_is_the_default_and_leaves_out_what_cannot_win() -> None:
    parse, machine = _parser().parse_args, ["dual_numa_pcie", *SMALL]
    default, auto, everything = (
        _choose(parse([*machine, *more]), 2)
        for more in ((), ("--strategy", "auto"), ("--strategy", "all"))
    )
    assert default.simulated == auto.simulated < everything.simulated
    assert not everything.not_tried
    names = [[(r.strategy, r.params) for r in c.chosen.values()] for c in (default, auto)]
    assert names[0] == names[1]
    total = [sum(r.timeline.makespan for r in c.chosen.values()) for c in (default, everything)]
    assert total[0] <= total[1] * SAME


def test_long_work_is_announced() -> None:
    parse = _parser().parse_args
    small = _choose(parse(["dual_numa_pcie", *SMALL]), 2)
    assert long_work(small, 5) is None
    large = _choose(parse(["dual_numa_pcie", "--seq-len", "64K"]), 2)
    told = long_work(large, 5)
    assert told is not None
    assert "6 runs: this takes long on processors" in told


def test_the_table_fits_80_columns_with_a_long_strategy() -> None:
    args = _parser().parse_args(["dual_numa_pcie", *SMALL])
    found = _choose(args, 2)
    name = "some/where/a_long_file_name.py:a_long_function_name"
    result = replace(found.chosen["forward"], strategy=name)
    row = Row(name=name, result=result, lines=[result.timeline], max_error=1.2e-7, exact=False)
    file = io.StringIO()
    show(Console(file=file, width=80), found, [row], kernel="cpu_flash", repeat=5)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    shown = lines[-1].split()
    assert shown[0] == "forward"
    assert shown[1].endswith("function_name")
    assert shown[2] == "WRONG"
    assert shown[7:] == ["+0.0", "%", "-"]  # the last column has no room


ACCEPTED = ("ring", "double_ring", "all_gather", "mesh", "charm", "auto")


@pytest.mark.slow
def test_every_strategy_is_run_and_compared(tmp_path: Path) -> None:
    done = charm_run(
        tmp_path, "dual_numa_pcie", "--ranks", "6", "--strategy", "all", "--mask",
        "docs:1000,24,3,973", "--heads", "6", "--kv-heads", "2", "--repeat", "1", processes=6,
        patience=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    said = {
        (row[0], row[1].rstrip(":")): row for row in rows if row[:1] in (["forward"], ["backward"])
    }
    refused = {row[0].rstrip(":") for row in rows if row[1:2] == ["refused:"]}
    for name in (*PLANNERS, "auto"):
        if name in refused:
            assert name not in ACCEPTED
            continue
        for way in ("forward", "backward"):
            assert "exact" in said[way, name][:4], said[way, name]


def test_several_strategies_are_each_run_and_profiled(tmp_path: Path) -> None:
    done = charm_run(
        tmp_path, "dual_numa_pcie", *SMALL, "--strategy", "ring,charm", "--profile", "seen.json"
    )
    assert done.returncode == 0, done.stderr
    shown = [line.split() for line in done.stdout.splitlines()]
    assert [row[1:3] for row in shown if row[:1] == ["forward"]][:2] == [
        ["ring", "exact"], ["charm", "exact"],
    ]  # fmt: skip
    heading = next(at for at, row in enumerate(shown) if row[:3] == ["End", "of", "each"])
    assert shown[heading + 1] == [
        "pass", "strategy", "stream", "level", "predicted", "measured", "error",
    ]  # fmt: skip
    assert shown[heading + 2][:4] == ["forward", "ring", "ring", "0"]
    for name in ("ring", "charm"):
        for way in ("forward", "backward"):
            trace = json.loads((tmp_path / f"seen.{name}.{way}.json").read_text())
            assert trace["otherData"]["source"] == "measured"
            ops = [event["args"]["op"] for event in trace["traceEvents"] if event["ph"] == "X"]
            assert any(op.startswith("transfer 0 -> 1: ") for op in ops)
            assert any(op.startswith("attend 1: q[") for op in ops)


def test_a_profile_never_replaces_what_is_none(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    done = charm_run(
        tmp_path, "dual_numa_pcie", *SMALL, "--direction", "forward", "--profile", "mine.json"
    )
    assert done.returncode == 1
    assert "mine.json: stands there already and is no trace" in done.stderr


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
def test_what_lacks_a_few_keys_is_not_exact(dtype: str) -> None:
    work = Workload(seq_len=600, heads=2, kv_heads=1, head_dim=16, mask="docs:560,40", dtype=dtype)
    tensors, yardstick = draw_tensors(work, 1), Yardstick(work)
    right = one_device(work, *tensors)
    assert yardstick.compare(tensors, right)[1] == {"forward": True, "backward": True}
    k, v = (x.clone() for x in tensors[1:3])
    k[:, :, 100:110] = 0  # their weight becomes that of any key, their value nothing
    v[:, :, 100:110] = 0
    lacking = one_device(work, tensors[0], k, v, tensors[3])
    assert yardstick.compare(tensors, lacking)[1] == {"forward": False, "backward": False}
    swapped = [right[0], right[1], right[3], right[2]]
    assert yardstick.compare(tensors, swapped)[1] == {"forward": True, "backward": False}


@pytest.mark.parametrize("mask", ["full", "causal", "window:9", "docs:300,1,19"])
def test_the_comparison_is_right(mask: str) -> None:
    """charm-run's own dense attention against autograd."""
    import attention_cases as cases

    work = Workload(
        seq_len=320, heads=4, kv_heads=2, head_dim=3, v_head_dim=2, mask=mask, dtype="fp64"
    )
    tensors = draw_tensors(work, 1)
    found, expected = dense_attention(work, *tensors), cases.dense_attention(work, *tensors)
    for have, want in zip(found, expected, strict=True):
        torch.testing.assert_close(have, want)
