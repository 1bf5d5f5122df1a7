"""The stream path on real processes, under NCCL's rules: what would hang there hangs here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_distributed import case, heads_for, ranks_for, results, spawn

from charm_sched.planners import PLANNERS

pytestmark = pytest.mark.distributed


SLOW = [pytest.param(ranks, marks=pytest.mark.slow) for ranks in (5, 6, 7, 8)]


@pytest.mark.parametrize("ranks", [2, 3, 4, *SLOW])
def test_every_strategy_runs_and_is_exact(ranks: int, tmp_path: Path) -> None:
    listed = [
        case(name, "zigzag", seq_len=32, mask="causal", heads=heads_for(name, ranks, 4))
        for name in PLANNERS
        if ranks_for(name, ranks) == ranks
    ]
    listed += [
        case("charm", "zigzag", {"save": True, "pieces": 2}, seq_len=32),
        case("scattered", "zigzag", {"seed": ranks}, seq_len=32),
        case("query_moving", "contiguous", seq_len=32),
    ]
    (tmp_path / "cases").write_text(json.dumps(listed))
    found = results(spawn("queued", ranks, tmp_path, listed=str(tmp_path / "cases")))[0]
    for what, wrong in zip(listed, found, strict=True):
        assert max(wrong.values()) <= 1e-10, (what, wrong)


@pytest.mark.parametrize(("how", "first"), [("apart", False), ("crossed", True)])
def test_orders_that_hang_are_named(how: str, first: bool, tmp_path: Path) -> None:
    for rank, report in enumerate(spawn("hangs", 2, tmp_path, how=how)):
        assert report is not None
        assert report["error"].startswith(f"rank {rank}: communicator "), report
        other = 1 - rank
        waits = f"row {rank} to" if first else f"row {other} from"
        assert f"hangs: {waits} rank {other}: not within 1.5 s" in report["error"]
        assert report["seconds"] < 8


def test_the_same_transfers_as_one_group_do_not_hang(tmp_path: Path) -> None:
    results(spawn("hangs", 3, tmp_path, how="together"))
