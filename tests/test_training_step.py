"""Whole training steps: weights of published models, and the gain end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from charm_sched import Workload, load_topology
from charm_sched.cli import plan_main
from charm_sched.errors import WorkloadError
from charm_sched.models import model_layers
from charm_sched.render.step import verdict
from charm_sched.search.planning import plan_all
from charm_sched.search.results import Comparison
from charm_sched.what_if.training_step import StepCase, TrainingStep, training_step
from charm_sched.workload import MODELS


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama3-8b", 8.0), ("llama3-70b", 70.6), ("llama3-405b", 405.9), ("qwen3-32b", 32.8),
        ("deepseek-v3-mha", 37.6),
    ],
)  # fmt: skip
def test_weights_are_those_that_the_models_are_named_after(name: str, billions: float) -> None:
    """With the embedding table (as large as the head) it is the published number of parameters.

    Of DeepSeek-V3 the 37 billion that a token meets, one table included.
    """
    found = model_layers()[name]
    total = found.layers * found.weights + 2 * found.head
    assert total / 1e9 == pytest.approx(billions, rel=0.01)


def test_every_model_has_layers() -> None:
    assert set(model_layers()) == set(MODELS)


@pytest.fixture(scope="module")
def found() -> Comparison:
    work = Workload(seq_len=2048, heads=32, kv_heads=8)
    machine = load_topology("dual_numa_pcie")
    return plan_all(machine, work, strategies=("ring", "charm"), ranks=4, thorough=False)


def test_a_step_adds_up(found: Comparison) -> None:
    step = training_step(found, "llama3-8b")
    attention = sum(r.timeline.makespan for r in found.chosen.values())
    assert step.chosen.attention == pytest.approx(32 * attention)
    profile = found.topology.devices[0].compute
    weights = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 4096 * 128256
    flops = 3 * 2 * weights * 512  # forward once, backward twice; 512 tokens on each rank
    assert step.chosen.rest == pytest.approx(flops / (profile.peak["bf16"] * profile.efficiency))
    assert step.ring.rest == step.chosen.rest == step.limit.rest
    assert step.limit.seconds <= step.chosen.seconds <= step.ring.seconds
    gains = [step.ring.attention / step.chosen.attention, step.ring.seconds / step.chosen.seconds]
    assert gains[0] >= gains[1] >= 1  # the rest dilutes what attention gains
    assert "run at 0.5 of the peak 312 TFLOP/s" in step.assumptions[0]


def test_the_gain_in_words() -> None:
    def case(attention: float) -> StepCase:
        return StepCase(label="x", attention=attention, rest=6.0)

    step = TrainingStep(
        model="m", layers=1, tokens=1, chosen=case(2.0), ring=case(4.0), limit=case(1.0),
        assumptions=(),
    )  # fmt: skip
    assert verdict(step) == (
        "Attention is 25% of the step: 2.00 times as fast as Ring-Attention, it makes the whole "
        "step 1.25 times as fast."
    )


def test_unknown_models_are_refused(found: Comparison) -> None:
    with pytest.raises(WorkloadError, match="expected one of llama3-8b"):
        training_step(found, "gpt")


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["dual_numa_pcie", "--seq-len", "1K", "--strategy", "ring", "--ranks", "2", "--step"]
    assert plan_main(argv) == 0
    text = capsys.readouterr().out
    assert "Training step of llama3-8b: 32 layers, 1K tokens" in text
    assert "Attention is " in text
    assert plan_main([*argv, "--json"]) == 0
    step = json.loads(capsys.readouterr().out)["step"]
    for case in step["cases"].values():
        assert case["step_s"] == pytest.approx(case["attention_s"] + case["rest_s"])
        assert case["tokens_per_s"] == pytest.approx(1024 / case["step_s"])
    for more, said in ((["--heads", "8"], "needs a --model"),
                       (["--direction", "forward"], "needs both directions")):  # fmt: skip
        with pytest.raises(SystemExit) as stop:
            plan_main([*argv, *more])
        assert stop.value.code == 2
        assert said in capsys.readouterr().err
