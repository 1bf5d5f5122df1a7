"""The error band beside each prediction: page, data and printed line say the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.commands import caller

from charm_sched import cli
from charm_sched.what_if.error_band import COMPUTE_BOUND, DATA, Band, bands
from tests.benchmarks.validation import PAGE, flow_rows
from tests.benchmarks.validation_page import NAMES, band_row
from tests.benchmarks.validation_scores import (
    Bar,
    Flows,
    band_data,
    errors_of_testbed,
    largest,
    middle,
    pairs,
)


@pytest.mark.parametrize("regime", NAMES)
def test_page_and_data_agree(regime: str) -> None:
    stored = json.loads(DATA.read_text())
    cells = map(str, band_row(NAMES[regime], stored[regime]))
    assert "| " + " | ".join(cells) + " |" in PAGE.read_text().splitlines()
    assert bands()[regime].document() == {
        "regime": regime, "page": "docs/benchmarks/validation.md", **stored[regime],
    }  # fmt: skip
    assert list(stored) == list(NAMES)


def test_data_are_the_errors_of_the_rows() -> None:
    """The bars take minutes, so their bands are read off the page in the next test."""
    bar = Bar(case="full forward", strategy="ring", ranks=16, measured=1, predicted=1)
    made = band_data([bar, replace(bar, case="documents forward")], flow_rows())
    stored = json.loads(DATA.read_text())
    again = "run python -m tests.benchmarks.validation"
    for regime in ("shared", "dense", "bounce", "calibrated"):
        assert made[regime] == stored[regime], again


def test_bands_of_attention_are_those_of_the_charts() -> None:
    errors: dict[str, list[float]] = {"compute": [], "network": []}
    case = ""
    for line in PAGE.read_text().splitlines():
        cells = line.strip("|").split(" | ")
        if "GPUs (fitted)" in line:
            case = cells[0].strip()
        elif case and " / " in line and len(cells) == 5:
            regime = "network" if case.startswith("documents") else "compute"
            errors[regime] += [float(cell.split(",")[1].strip(" %|")) / 100 for cell in cells[2:]]
    for regime, found in errors.items():
        band = bands()[regime]
        assert band.cases == len(found)
        assert band.median == pytest.approx(middle(found), abs=6e-4)
        assert band.worst == pytest.approx(largest(found), abs=6e-4)


def test_errors_of_the_testbed_are_all_read() -> None:
    found = errors_of_testbed()
    assert len(found) >= 32 + 44
    assert all(abs(error) < 1 for error in found)


def test_the_sentence_says_whether_it_is_validated() -> None:
    band = Band(
        regime="compute", median=0.0312, worst=0.11, bias=0.01, cases=45, basis="this and that"
    )
    assert str(band) == (
        "within 3.1% (median) and 11% (worst) on 45 measurements of this and that; "
        "see docs/benchmarks/validation.md"
    )
    far = replace(band, median=0.57, worst=0.93, bias=-0.57)
    assert str(far).startswith("not for this: on 45 measurements of this and that times were")
    assert "too short by 57.0% (median) and 93% (worst)" in str(far)


def test_pairs_that_are_told_apart() -> None:
    def bar(strategy: str, measured: float, predicted: float) -> Bar:
        return Bar(
            case="full forward", strategy=strategy, ranks=16, measured=measured, predicted=predicted
        )

    bars = [bar("a", 100, 100), bar("b", 104, 90), bar("c", 110, 100)]
    told, wrong = pairs(bars)
    assert [(fast.strategy, slow.strategy) for fast, slow in told] == [("c", "a"), ("c", "b")]
    assert [(fast.strategy, slow.strategy) for fast, slow in wrong] == [("c", "a")]


def test_a_row_fits_within_its_spread_or_five_per_cent() -> None:
    row = flow_rows()[0]
    exact: Flows = replace(row, measured=100.0, predicted=100.0, spread=0.02)
    assert exact.fits
    assert not replace(exact, measured=102.1).fits
    assert replace(exact, measured=104.9, spread=0.0).fits
    assert not replace(exact, measured=94.9, spread=0.0).fits


@pytest.mark.parametrize(
    ("machine", "arguments", "regime"),
    [
        ("dual_node_nvlink", ["--strategy", "ring", "--seq-len", "8K"], "network"),
        ("dual_numa_pcie", ["--strategy", "ring", "--seq-len", "8K"], "shared"),
        ("dual_numa_pcie", ["--strategy", "ulysses", "--seq-len", "8K"], "dense"),
        ("single_node_nvlink", ["--strategy", "ring", "--seq-len", "128K"], "compute"),
        ("rtx_4090_8gpu", ["--strategy", "ring", "--seq-len", "8K"], "bounce"),
    ],
)
def test_charm_plan_prints_the_line_and_has_it_in_json(
    machine: str, arguments: list[str], regime: str, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run = caller(capsys, tmp_path, monkeypatch, 200)
    asked = [machine, "--direction", "forward", *arguments]
    printed = run(cli.plan_main, *asked, "-o", "x.plan.json")
    assert printed.status == 0
    assert f"validated {bands()[regime]}" in printed.flat
    (result,) = (
        found
        for found in run(cli.plan_main, *asked, "--json").document["results"]
        if found["strategy"] == arguments[1]
    )
    assert result["validated"] == bands()[regime].document()
    bound = result["compute_s"] >= COMPUTE_BOUND * result["makespan_s"]
    assert bound == (regime == "compute")


def test_charm_sim_prints_the_line_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = caller(capsys, tmp_path, monkeypatch, 200)
    asked = ["single_node_nvlink", "--direction", "forward", "--strategy", "ring"]
    run(cli.plan_main, *asked, "--seq-len", "128K", "-o", "x.plan.json")
    assert f"validated {bands()['compute']}" in run(cli.sim_main, "x.plan.json").flat
