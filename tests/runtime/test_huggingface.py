"""Models of Transformers on four processes train as on one; needs Transformers, else skips."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="needs Transformers"
    ),
]
SCRIPT = Path(__file__).parent / "huggingface_ranks.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Give what each rank found."""
    folder = tmp_path_factory.mktemp("huggingface")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    reports = []
    for rank in range(4):
        path = folder / f"{rank}.json"
        assert path.exists(), done.stderr
        reports.append(json.loads(path.read_text()))
        assert "error" not in reports[-1], reports[-1]["error"]
    return reports


def furthest(losses: dict[str, list[float]]) -> float:
    return max(abs(one - many) for one, many in zip(losses["one"], losses["all"], strict=True))


def test_losses_are_those_of_one_process(found: list[dict[str, Any]]) -> None:
    trained = found[0]["trained"]
    assert len(trained) == 7
    for name, losses in trained.items():
        assert furthest(losses) < 1e-5, (name, losses)
        assert losses["all"][-1] < losses["all"][0], "it learns"
    assert len(trained["dense fp64"]["all"]) == 20
    assert len(trained["packed by positions fp32"]["all"]) == 20
    dense, packed = (trained[name]["all"][0] for name in ("dense fp64", "packed fp64"))
    assert abs(dense - packed) > 1e-4, "documents must matter"
    window, both = (trained[name]["all"][0] for name in ("window fp64", "packed window fp64"))
    assert abs(window - both) > 1e-4


def test_every_rank_hears_the_same_loss(found: list[dict[str, Any]]) -> None:
    for rank in found[1:]:
        for name, losses in rank["trained"].items():
            assert losses["all"] == found[0]["trained"][name]["all"]


def test_the_program_of_the_readme_runs(found: list[dict[str, Any]]) -> None:
    losses = found[0]["readme"]
    assert len(losses["all"]) == 20
    assert furthest(losses) < 1e-5, losses
    assert losses["all"][-1] < losses["all"][0] - 0.5


def test_what_no_plan_does_is_refused(found: list[dict[str, Any]]) -> None:
    expected = {
        "padding": "attention_mask: expected None or all ones, found padding",
        "4d": "attention_mask: expected None, found a tensor",
        "weights": "asks for output_attentions",
        "softcap": "asks for softcap",
        "bias": "asks for rel_bias",
        "two-way": "the model's attention is two-way, the plan's mask is causal",
        "chunks": "attends in chunks",
        "module": "Linear does not take attention functions",
        "unbound": "attention of LlamaAttention: no plan is attached",
        "dropout": "dropout_p: expected 0, found 0.1",
    }
    for number, rank in enumerate(found):
        said = rank["refused"]
        for name, part in expected.items():
            assert part in said[name], name
        for name in ("positions", "default positions"):
            assert "position_ids: expected those of this rank's 1" in said[name], (number, said)
