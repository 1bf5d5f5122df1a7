"""Real processes over gloo: results, repeatability, timelines, and failures that end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attention_cases import heads_for
from support.cases import ranks_for

from charm_sched.planners import PLANNERS

pytestmark = pytest.mark.distributed
SCRIPT = Path(__file__).parent / "ranks.py"
Reports = list[dict[str, Any] | None]


def spawn(task: str, ranks: int, folder: Path, **options: str) -> Reports:
    """Run a task of ``ranks.py``; give each rank's report, None where it left none."""
    extra = [f"{name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), task, str(ranks), str(folder), *extra],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    reports: Reports = []
    for rank in range(ranks):
        path = folder / f"{rank}.json"
        reports.append(json.loads(path.read_text()) if path.exists() else None)
    assert any(reports), done.stderr
    return reports


def results(reports: Reports) -> list[Any]:
    for rank, report in enumerate(reports):
        assert report is not None, f"rank {rank} left no report"
        assert "error" not in report, report["error"]
    return [report["result"] for report in reports if report]


def case(
    planner: str, partition: str, params: dict[str, Any] | None = None, **work: Any
) -> dict[str, Any]:
    shape = {"seq_len": 64, "heads": 4, "kv_heads": 2, "head_dim": 8, "dtype": "fp64"}
    return {
        "planner": planner, "partition": partition, "params": params, "workload": shape | work,
    }  # fmt: skip


def cases_for(ranks: int) -> list[dict[str, Any]]:
    """List what is run on a number of ranks; every planner that serves it takes part."""
    listed = []
    for planner in (name for name in PLANNERS if ranks_for(name, ranks) == ranks):
        heads = heads_for(planner, ranks, 4)
        listed += [
            case(planner, "zigzag", mask="causal", heads=heads),
            case(planner, "contiguous", mask="full", batch=2, kv_heads=4, heads=heads),
        ]
    for planner in ("ring", "charm"):  # the others take these in one process, in test_in_process
        listed += [
            case(planner, "zigzag", seq_len=7, v_head_dim=3),
            case(planner, "contiguous", seq_len=ranks - 1 or 1, mask="full"),
            case(planner, "zigzag", mask="docs:40,3,21"),
            case(planner, "zigzag", seq_len=256, dtype="fp32"),
            case(planner, "zigzag", seq_len=256, dtype="bf16"),
        ]
    if "charm" in PLANNERS:
        listed += [
            case("charm", "zigzag", {"save": True}),
            case("charm", "zigzag", {"pieces": 2, "remerge": False}),
        ]
    listed += [
        case(
            "ulysses", "zigzag", {"chunks": 2, "save": True}, heads=heads_for("ulysses", ranks, 4)
        ),
        case("usp", "zigzag", {"chunks": 2, "inside": "ring"}, heads=8),
        case("ulysses", "zigzag", heads=heads_for("ulysses", ranks, 4), dtype="bf16"),
        case("usp", "zigzag", heads=8, kv_heads=4, dtype="bf16"),
        case("mesh", "zigzag", {"tile_rows": ranks}),
        case("double_ring", "zigzag", {"window": 2 - ranks % 2}),
        case("all_gather", "zigzag", {"chunks": 2, "save": True, "algorithm": "direct"}),
        case("pass_q", "zigzag", {"direct": False}),
    ]
    if ranks % 2 == 0:
        halves = [list(range(ranks // 2)), list(range(ranks // 2, ranks))]
        by_heads = {"domains": halves, "groups": 2, "inner_groups": 2 - ranks // 2 % 2}
        tile = {"domains": halves, "groups": 1, "rows": 2, "pieces": 2}
        listed += [case("domain_mesh", "zigzag", params) for params in (by_heads, tile)]
        together = {"domains": [list(range(ranks))], "inner_groups": 2}
        listed.append(case("domain_mesh", "zigzag", together, dtype="bf16"))
    listed += [
        case("charm", "striped", mask="window:9"),
        case("ring", "per-document", mask="docs:40,3,1,20"),
    ]
    listed += [case("scattered", "zigzag", {"seed": ranks}), case("query_moving", "contiguous")]
    if ranks == 4:
        listed.append(case("ring", "zigzag", seq_len=2999, heads=2, kv_heads=1))
    return listed


TOLERANCE = {"fp64": 1e-10, "fp32": 2e-5, "bf16": 6e-2}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8])
def test_equals_dense_attention(ranks: int, tmp_path: Path) -> None:
    listed = cases_for(ranks)
    (tmp_path / "cases").write_text(json.dumps(listed))
    found = results(spawn("exactness", ranks, tmp_path, listed=str(tmp_path / "cases")))[0]
    for what, wrong in zip(listed, found, strict=True):
        assert max(wrong.values()) <= TOLERANCE[what["workload"]["dtype"]], (what, wrong)


def test_results_are_repeatable_to_the_bit(tmp_path: Path) -> None:
    digests = results(spawn("repeatability", 4, tmp_path))
    for found in digests:
        assert found == digests[0]
        for planner in {digest.split()[0] for digest in found}:
            assert len({d for d in found if d.startswith(planner)}) == 1


def test_a_group_may_be_part_of_the_world(tmp_path: Path) -> None:
    _, _, *found = results(spawn("groups", 4, tmp_path))
    assert all(max(wrong.values()) < 1e-10 for wrong in found)


@pytest.mark.skipif("charm" not in PLANNERS, reason="no planner keeps residents")
def test_residents_of_two_layers_are_kept_apart(tmp_path: Path) -> None:
    for found in results(spawn("two_layers", 3, tmp_path)):
        assert all(max(wrong.values()) < 1e-10 for wrong in found)


def test_the_softmax_scale_may_be_given(tmp_path: Path) -> None:
    found = results(spawn("own_scale", 2, tmp_path))
    assert all(max(wrong.values()) < 1e-10 for wrong in found)


def test_timelines_are_measured(tmp_path: Path) -> None:
    first, *others = results(spawn("timeline", 3, tmp_path))
    assert first["passes"] == ["forward", "backward"]
    assert first["sources"] == ["measured"] * 2
    for starts, ends, expected in zip(
        first["starts"], first["ends"], first["expected"], strict=True
    ):
        assert len(starts) == len(ends) == expected
        assert all(0 <= start <= end < 10 for start, end in zip(starts, ends, strict=True))
    assert all(other["passes"] == [] for other in others)


@pytest.mark.parametrize(
    ("task", "ranks", "expected"),
    [
        ("mismatch", 3, "the plan of rank 1 differs from the others'"),
        ("odd_scale", 3, "the softmax scale of rank 0 differs"),
        ("needs_backward", 2, "a gradient is needed, but the plan is a forward plan alone"),
        ("wrong_size", 2, "the plan has 3 ranks, the group has 2"),
        (
            "wrong_dtype",
            2,
            "q: expected torch.float64, as the plan is for fp64, found torch.float32",
        ),
        ("bad_plan", 2, "never attended"),
    ],
)
def test_every_rank_refuses(task: str, ranks: int, expected: str, tmp_path: Path) -> None:
    for report in spawn(task, ranks, tmp_path):
        assert report is not None
        assert expected in report["error"]
        assert report["seconds"] < 10


def test_a_rank_with_a_wrong_shape_is_named_by_all(tmp_path: Path) -> None:
    reports = spawn("bad_shape", 3, tmp_path)
    expected = "q: expected [batch, heads, tokens, size] = [1, 2, 4, 4], found [1, 2, 3, 4]"
    for rank, report in enumerate(reports):
        assert report is not None
        assert expected in report["error"]
        assert ("rank 2 cannot take part" in report["error"]) == (rank != 2)


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("killed", "the connection was closed from the other side"),
        ("silent", "no answer within 2 s"),
        ("broken", "the connection was closed from the other side"),
    ],
)
def test_survivors_of_a_failure_end_and_name_it(task: str, why: str, tmp_path: Path) -> None:
    reports = spawn(task, 4, tmp_path)
    for rank in (0, 2, 3):
        report = reports[rank]
        assert report is not None, f"rank {rank} hung or crashed"
        message = report["error"]
        assert report["kind"] == "RuntimeFailure"
        assert message.startswith(f"rank {rank}: op "), message
        assert "transfer" in message
        assert report["seconds"] < 6.5, message
        assert message.count("op ") == 1, message
        assert task == "silent" or "no answer" not in message, "the failure was not passed on"
    neighbours = [report["error"] for rank in (0, 2) if (report := reports[rank])]
    assert all(
        "to rank 1 failed: " + why in m or "from rank 1 failed: " + why in m for m in neighbours
    )
    if task == "killed":
        assert reports[1] is None
    if task == "broken":
        assert reports[1] is not None
        assert reports[1]["error"].startswith("rank 1: op 1 (attend 1: q[")
        assert reports[1]["error"].endswith("ValueError: the kernel broke")


def test_a_group_that_failed_says_so(tmp_path: Path) -> None:
    for rank, report in enumerate(spawn("again", 2, tmp_path)):
        assert report is not None
        known = "failed before and cannot be used again: rank" in report["error"]
        told = "agreeing with rank 1 failed: the connection was closed" in report["error"]
        assert known or (told and rank == 0)
        assert report["seconds"] < 8


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("plan", "the plan of rank 0"),
        ("scale", "the softmax scale of rank 0"),
        ("backend", "the backend of rank 0"),
        ("recorder", "the use of a recorder of rank 0"),
        ("gradient", "the need of a gradient of rank 0"),
        ("backward", "the call that backward belongs to of rank 0"),
    ],
)
def test_what_was_agreed_on_before_is_compared_again(what: str, named: str, tmp_path: Path) -> None:
    for report in spawn("agreed_before", 3, tmp_path, what=what):
        assert report is not None
        assert named in report.get("error", "nothing was refused")
        assert report["seconds"] < 10


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("shape", "rank 1: q: expected [batch, heads, tokens, size] = [1, 2, 4, 4], found"),
        ("dtype", "rank 1: q: expected torch.float64, as the plan is for fp64, found torch.float"),
        ("no q", "rank 1: q: expected a tensor [batch, heads, tokens, size], found NoneType"),
        ("backend", "found 'none'"),
        ("backend type", "backend: expected reference, cpu_flash, "),
        ("backward plan", "expected a Schedule or a forward plan, found a backward plan"),
        ("no plan", "expected a Schedule or a forward plan, found NoneType"),
        ("scale type", "softmax_scale: expected a positive, finite number, found 'half'"),
        ("scale nan", "softmax_scale: expected a positive, finite number, found nan"),
        ("scale 0", "softmax_scale: expected a positive, finite number, found 0.0"),
        ("scale negative", "softmax_scale: expected a positive, finite number, found tensor(-1.)"),
        ("bug", "KeyError: 'unforeseen'"),
    ],
)
def test_a_rank_that_cannot_take_part_tells_the_others(what: str, why: str, tmp_path: Path) -> None:
    """At once, on any call, and the group can be used afterwards."""
    for rank, (said,) in enumerate(results(spawn("cannot", 3, tmp_path, what=what))):
        assert why in said
        told = f"RuntimeFailure: rank {rank}: rank 1 cannot take part: "
        assert said.startswith(told) == (rank != 1)


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("killed_between", "the connection was closed from the other side"),
        ("silent_between", "no answer within 2 s"),
    ],
)
def test_a_rank_that_does_not_come_is_named(task: str, why: str, tmp_path: Path) -> None:
    reports = spawn(task, 4, tmp_path)
    for rank in (0, 2, 3):
        report = reports[rank]
        assert report is not None, f"rank {rank} hung or crashed"
        assert report["error"].startswith(f"rank {rank}: agreeing with rank 1 failed: {why}")
        assert report["seconds"] < 5


@pytest.mark.parametrize(
    ("task", "ranks", "limit", "why"),
    [
        ("later_timeout", 2, 2.0, "no answer within 0.3 s"),
        ("tiny_timeout", 2, 2.0, "agreeing with rank 1 failed: no answer within 0.001 s"),
        ("barrier", 2, 4.5, "agreeing with rank 1 failed: no answer within 2 s"),
    ],
)
def test_every_wait_obeys_the_timeout_of_its_call(
    task: str, ranks: int, limit: float, why: str, tmp_path: Path
) -> None:
    report = spawn(task, ranks, tmp_path)[0]
    assert report is not None
    assert why in report["error"]
    assert report["seconds"] < limit
