"""Measuring a compute profile: by a clock of known speed, and for real on a processor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.commands import Call, caller

from charm_sched.commands import profiling as command
from charm_sched.errors import RuntimeFailure
from charm_sched.runtime import profiling
from charm_sched.runtime.profiling import KernelCase, Question, measure
from charm_sched.topo import main
from charm_sched.topology.graph import load_topology
from charm_sched.topology.library import load_profile, parse_profile

OVERHEAD = 1e-7


def question(**changes: Any) -> Question:
    values: dict[str, Any] = {
        "device": torch.device("cpu"), "dtypes": ("fp32",), "head_dims": (16,),
        "lengths": (32, 64, 128), "heads": 2, "seconds": 60.0,
    }  # fmt: skip
    return Question(**(values | changes))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Let every kernel take its overhead and its FLOPs at a rate that depends on its length."""
    now = [0.0]

    def rate_of(case: KernelCase, length: int) -> float:
        return 1e9 * length / (2 if case.causal else 1)

    def call(asked: Question, case: KernelCase, kernel: object, length: int) -> object:
        if length == profiling.TINY:
            return OVERHEAD
        return OVERHEAD + profiling._flops(asked, case, length) / rate_of(case, length)

    def seconds(took: object, device: torch.device) -> float:
        if not isinstance(took, float):  # a matrix product or a copy
            return 1.0
        now[0] += took
        return took

    monkeypatch.setattr(profiling, "_call", call)
    monkeypatch.setattr(profiling, "_seconds", seconds)
    monkeypatch.setattr(profiling, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(profiling.time, "monotonic", lambda: now[0])
    return lambda: now[0]


def test_rates_are_those_of_the_clock(clock: Callable[[], float]) -> None:
    found = measure(question())
    assert found.overhead == OVERHEAD
    assert len(found.rates) == 4
    for case, table in found.rates.items():
        for length, rate in table.items():
            assert rate == pytest.approx(1e9 * length / (2 if case.causal else 1), rel=1e-9)
    assert found.left_out == {}


def test_work_counts_what_the_mask_leaves() -> None:
    asked = question()
    full, causal = (
        KernelCase(dtype="fp32", direction=way, head_dim=16, causal=causal)
        for way, causal in (("forward", False), ("backward", True))
    )
    assert profiling._flops(asked, full, 100) == 2 * 2 * 100 * 100 * 16 * 2
    assert profiling._flops(asked, causal, 100) == 5 * 2 * (100 * 101 / 2) * 16 * 2


def test_long_lengths_are_left_out_where_time_is_short(clock: Callable[[], float]) -> None:
    whole = measure(question(lengths=(32, 64, 1 << 20), seconds=1e9))
    enough = clock()
    assert whole.left_out == {}
    found = measure(question(lengths=(32, 64, 1 << 20), seconds=enough / 100))
    assert {n for lengths in found.left_out.values() for n in lengths} == {1 << 20}
    assert all(set(table) == {32, 64} for table in found.rates.values())
    assert clock() <= 1.01 * enough + enough / 100
    text = command.profile_file(question(), found, "card")
    assert "no time was left for 1M" in text


def test_no_time_at_all_is_an_error(clock: Callable[[], float]) -> None:
    with pytest.raises(RuntimeFailure, match="give more --seconds"):
        measure(question(seconds=-1.0))


def test_a_processor_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.yaml"
    argv = ["profile", "--device", "cpu", "--dtype", "fp32", "--head-dim", "16", "--lengths",
            "32,64", "--heads", "1", "-o", str(file)]  # fmt: skip
    assert main(argv) == 0
    assert f"Saved {file}" in capsys.readouterr().err
    profile = load_profile(file)
    assert {(r.direction, r.causal, r.head_dim) for r in profile.rates} == {
        (way, causal, 16) for way in ("forward", "backward") for causal in (False, True)
    }
    for rate in profile.rates:
        assert rate.dtypes == ("fp32",)
        assert [length for length, _ in rate.by_length] == [32, 64]
        assert not rate.assumed
        assert f"torch {torch.__version__}" in rate.source
        assert "measured by charm-topo profile on 20" in rate.source
    assert profile.assumed == ("efficiency",)
    assert profile.memory is not None
    assert 0 < profile.overhead < 1
    assert main(argv) == 0  # an earlier measurement is replaced
    profile = load_profile(file)

    topology = {
        "schema": "charm-sched/topology", "version": 1, "name": "box",
        "profiles": {"mine": "mine.yaml"}, "devices": [{"name": "d0..1", "profile": "mine"}],
        "links": [
            {"from": "d0", "to": "d1", "kind": "w", "bandwidth": "1 GB/s", "latency": "1 us"}
        ],
    }  # fmt: skip
    (tmp_path / "box.yaml").write_text(yaml.safe_dump(topology))
    assert load_topology(tmp_path / "box.yaml").devices[0].compute.rates == profile.rates


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    return caller(capsys, tmp_path, monkeypatch, 100)


def test_printed_without_a_name(call: Call, clock: Callable[[], float]) -> None:
    out = call(main, "profile", "--device", "cpu", "--name", "card").out
    assert parse_profile(out, where="out").name == "card"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device(call: Call) -> None:
    found = call(main, "profile", "--device", "cuda")
    assert found.status == 1
    assert "expected a CUDA device" in found.err


def test_without_torch(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    found = call(main, "profile")
    assert (found.status, found.out) == (1, "")
    assert "needs PyTorch: pip install 'charm-sched[runtime]'" in found.err


def test_another_file_is_left_alone(call: Call, tmp_path: Path) -> None:
    (tmp_path / "notes.yaml").write_text("mine\n")
    found = call(main, "profile", "-o", "notes.yaml")
    assert found.status == 1
    assert "left alone" in found.err
    assert (tmp_path / "notes.yaml").read_text() == "mine\n"
    assert "there is no folder" in call(main, "profile", "-o", "nowhere/p.yaml").err


@pytest.mark.parametrize(
    "argv",
    [
        ("--device", "gpu"), ("--dtype", "int8"), ("--lengths", "4"), ("--lengths", "x"),
        ("--seconds", "0"), ("--head-dim", "0"), ("--name", "a b"),
    ],
)  # fmt: skip
def test_wrong_arguments(call: Call, argv: tuple[str, str]) -> None:
    assert call(main, "profile", *argv).status == 2


def test_an_unknown_backend(call: Call) -> None:
    found = call(main, "profile", "--device", "cpu", "--backend", "fast")
    assert found.status == 1
    assert "backend: expected " in found.err
