"""Known times, measured flows, ASTRA-sim's transfers: what the page of validation rests on."""

from __future__ import annotations

import pytest

from tests.benchmarks.validation_astra import COMPARISONS, Comparison
from tests.benchmarks.validation_flows import ROWS, Row, predict
from tests.benchmarks.validation_golden import TOLERANCE, golden

RING = [row for row in ROWS if row.what.startswith("ring shift")]
ON_ONE_LEVEL = {  # where a chunk has one hop, or hops one after the other alone
    "ring all-gather of 64 MiB, 8 on a ring",
    "all-gather of 16 MiB, 2 x 8, across and then inside",
}


@pytest.mark.parametrize(("most", "count"), [(16, 4), pytest.param(128, 7, marks=pytest.mark.slow)])
def test_known_times(most: int, count: int) -> None:
    found = list(golden(most))
    assert len(found) == count
    for one in found:
        assert one.ours == pytest.approx(one.expected, rel=TOLERANCE), one.what


@pytest.mark.parametrize("row", RING, ids=lambda row: row.what)
def test_ring_shift_on_two_switches(row: Row) -> None:
    assert predict(row) == pytest.approx(row.measured, rel=0.02)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.machine.name}: {row.what}")
def test_measured_flows_fit_or_say_why_not(row: Row) -> None:
    fits = abs(row.measured / predict(row) - 1) <= (row.spread or 0.05) + 1e-9
    assert fits == (not row.reason)


def test_several_flows_over_pcie_are_all_predicted_too_fast() -> None:
    assert all(predict(row) > row.measured for row in ROWS if row.pattern in ("dense", "bounce"))


@pytest.mark.parametrize(
    "one", [c for c in COMPARISONS if c.what in ON_ONE_LEVEL], ids=lambda c: c.what
)
def test_same_as_astra_where_nothing_is_stored_or_shared(one: Comparison) -> None:
    assert one.ours == pytest.approx(one.astra, rel=1e-6)


def test_a_switch_of_astra_stores_whole_chunks() -> None:
    (one,) = [c for c in COMPARISONS if c.what == "ring all-gather of 64 MiB, 8 on a switch"]
    assert one.astra == pytest.approx(2 * one.ours, rel=1e-3)
