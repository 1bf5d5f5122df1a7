"""Errors and what they add up to: medians, worst ones, the order of strategies, error bands.

An error is the predicted time over the measured one, minus one: below zero the prediction was too
short.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

from tests.benchmarks.validation_cases import GPUS, ROOT

TESTBED = ROOT / "docs" / "benchmarks" / "testbed.md"
APART = 0.05  # bars that differ by less are not put in order
ASKED_MEDIAN, ASKED_WORST = 0.05, 0.10


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar of a chart, in TFLOP/s per GPU.

    Attributes:
        case: As in the chart.
        strategy: Theirs.
        ranks: GPUs.
        measured: Read off the chart.
        predicted: Simulated.
    """

    case: str
    strategy: str
    ranks: int
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Of the time."""
        return self.measured / self.predicted - 1

    @property
    def fitted(self) -> bool:
        """Whether the constants were fitted to it."""
        return self.ranks == GPUS[0]


@dataclass(frozen=True, kw_only=True)
class Flows:
    """A row of measured flows, in GB/s.

    Attributes:
        machine: Its name.
        what: The flows, in words.
        pattern: As in `validation_flows.PATTERNS`.
        measured: Published.
        predicted: Simulated.
        spread: How far published numbers are apart, either side.
        given: What the prediction starts from.
        source: Where all this is published.
        reason: Why it does not fit, where it does not.
    """

    machine: str
    what: str
    pattern: str
    measured: float
    predicted: float
    spread: float
    given: str
    source: str
    reason: str

    @property
    def error(self) -> float:
        """Of the time."""
        return self.measured / self.predicted - 1

    @property
    def fits(self) -> bool:
        """Whether it is within the published spread, or 5 % where none is published."""
        return abs(self.error) <= (self.spread or APART) + 1e-9


def middle(errors: Iterable[float]) -> float:
    """Give the median of the absolute errors."""
    return median(map(abs, errors))


def largest(errors: Iterable[float]) -> float:
    """Give the largest absolute error."""
    return max(map(abs, errors))


def pairs(bars: Sequence[Bar]) -> tuple[list[tuple[Bar, Bar]], list[tuple[Bar, Bar]]]:
    """Give all pairs whose order the measurement tells, and those that are predicted otherwise.

    A pair are two strategies in one case on one number of GPUs, of which one is measured more than
    5 % above the other. Equal predictions are no order.
    """
    told, wrong = [], []
    for one, other in combinations(bars, 2):
        if (one.case, one.ranks) != (other.case, other.ranks):
            continue
        fast, slow = sorted((one, other), key=lambda bar: bar.measured, reverse=True)
        if fast.measured > (1 + APART) * slow.measured:
            told.append((fast, slow))
            if fast.predicted <= slow.predicted:
                wrong.append((fast, slow))
    return told, wrong


def errors_of_testbed() -> list[float]:
    """Read the errors of all predictions on the page of the testbed."""
    found = []
    for line in TESTBED.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if {"forward", "backward"} & set(cells):
            errors = [cell for cell in cells if re.fullmatch(r"[+-]\d+\.\d%", cell)]
            found += [float(cell[:-1]) / 100 for cell in errors[:1]]
    return found


def regimes(bars: Sequence[Bar], flows: Sequence[Flows]) -> Iterator[tuple[str, str, list[float]]]:
    """Give the errors of each kind of prediction, and what they are errors of."""
    far = [bar for bar in bars if not bar.fitted]
    dense = [bar.error for bar in far if not bar.case.startswith("documents")]
    packed = [bar.error for bar in far if bar.case.startswith("documents")]
    rates = "rates of kernels fitted on 8"
    yield "compute", f"dense attention on 16 to 64 H100 ({rates})", dense
    yield "network", f"attention over documents on 16 to 64 H100 ({rates})", packed
    names = {
        "shared": "flows that share links, or run both ways",
        "dense": "several flows per device at once over PCIe",
        "bounce": "copies through host memory, both ways",
    }
    for regime, basis in names.items():
        kinds = {regime, "both ways"} if regime == "shared" else {regime}
        yield regime, basis, [row.error for row in flows if row.pattern in kinds]
    yield (
        "calibrated", "plans on a shaped network whose links were measured first",
        errors_of_testbed(),
    )  # fmt: skip


def band_data(bars: Sequence[Bar], flows: Sequence[Flows]) -> dict[str, dict[str, Any]]:
    """Give the error bands as the package keeps them."""
    return {
        regime: {
            "median": round(middle(errors), 4), "worst": round(largest(errors), 4),
            "bias": round(median(errors), 4), "cases": len(errors), "basis": basis,
        }
        for regime, basis, errors in regimes(bars, flows)
    }  # fmt: skip
