"""The page docs/benchmarks/validation.md: its tables, put into validation_template.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.scale_page import table
from tests.benchmarks.validation_astra import Comparison
from tests.benchmarks.validation_cases import CHART, GPUS, STRATEGIES
from tests.benchmarks.validation_flows import PATTERNS
from tests.benchmarks.validation_golden import NETWORKS, TOLERANCE, Golden
from tests.benchmarks.validation_kernels import TILE_COST, Constants
from tests.benchmarks.validation_scores import (
    ASKED_MEDIAN,
    ASKED_WORST,
    Bar,
    Flows,
    largest,
    middle,
    pairs,
)

TEMPLATE = Path(__file__).with_name("validation_template.md")
MANY = 5  # rows with one reason that are counted, not named
NAMES = {
    "compute": "is bound by computation (80 % of the time or more)",
    "network": "waits for a network between nodes",
    "shared": "waits for links inside a machine",
    "dense": "waits for PCIe while devices send three or more messages at once",
    "bounce": "waits for copies through host memory",
    "calibrated": "rests on links that were measured first ([the testbed](../testbed.md))",
}


def page(
    *,
    golden: Sequence[Golden],
    simgrid: float | None,
    flows: Sequence[Flows],
    bars: Sequence[Bar],
    constants: Constants,
    packs: int,
    astra: Sequence[Comparison],
    bands: Mapping[str, Mapping[str, Any]],
) -> str:
    """Write the page."""
    return TEMPLATE.read_text().format(
        bands=_bands(bands),
        golden=_golden(golden),
        agree=_agreement(golden),
        simgrid=_simgrid(simgrid),
        astra=_astra(astra),
        flows=_flows(flows),
        packs=packs,
        tile=TILE_COST,
        constants=_constants(constants),
        charts=_charts(bars),
        verdict=_verdict(bars),
    )


def percent(value: float) -> str:
    """Write an error."""
    return f"{100 * value:+.1f} %"


def lines(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table."""
    return "\n".join(table(columns, rows))


def band_row(name: str, band: Mapping[str, Any]) -> tuple[object, ...]:
    """Give the cells of a band."""
    return (
        name,
        band["basis"],
        band["cases"],
        f"{band['median']:.1%}",
        f"{band['worst']:.1%}",
        percent(band["bias"]),
    )


def _bands(bands: Mapping[str, Mapping[str, Any]]) -> str:
    head = ("a prediction that", "was compared with", "measurements", "median", "worst", "bias")
    return lines(head, [band_row(NAMES[regime], band) for regime, band in bands.items()])


def _golden(golden: Sequence[Golden]) -> str:
    head = ("what", "known, s", "from", "here, s", "difference")
    return lines(
        head,
        [
            (one.what, f"{one.expected:.9g}", one.origin, f"{one.ours:.9g}", f"{one.gap:.1e}")
            for one in golden
        ],
    )


def _agreement(golden: Sequence[Golden]) -> str:
    near = [one for one in golden if abs(one.gap) <= TOLERANCE]
    return f"{len(near)} of {len(golden)} agree to {TOLERANCE:g}."


def _simgrid(gap: float | None) -> str:
    if gap is None:
        return "SimGrid was not installed when this page was written."
    return (
        f"SimGrid runs the same flows on {NETWORKS} random networks (trees of switches with "
        "further links, half duplex\nones, flow caps; 5 to 60 flows; "
        "`tests/simulator/test_simgrid.py`): the largest relative difference of any end is "
        f"{gap:.0e}."
    )


def _astra(astra: Sequence[Comparison]) -> str:
    head = ("what", "ASTRA-sim, ms", "here, ms", "ratio", "why")
    found = [(one, one.ours) for one in astra]
    return lines(
        head,
        [
            (one.what, f"{1e3 * one.astra:.4f}", f"{1e3 * ours:.4f}", f"{one.astra / ours:.3f}",
             one.note)
            for one, ours in found
        ],
    )  # fmt: skip


def _flows(flows: Sequence[Flows]) -> str:
    parts = []
    for pattern, title in PATTERNS.items():
        own = [row for row in flows if row.pattern == pattern]
        errors = [row.error for row in own]
        parts += [f"### {title}\n", _flow_table(own)]
        parts.append(
            f"{sum(row.fits for row in own)} of {len(own)} fit; median error "
            f"{middle(errors):.1%}, worst {largest(errors):.1%}."
        )
        parts += [*_reasons(own), ""]
    machines = {(row.machine, row.given, row.source): None for row in flows}
    parts += ["### What was given\n", lines(("machine", "GB/s", "published in"), list(machines))]
    return "\n".join(parts)


def _flow_table(rows: Sequence[Flows]) -> str:
    head = ("machine", "flows", "predicted", "measured", "error")
    return lines(
        head,
        [
            (row.machine, row.what, f"{row.predicted:.1f}", f"{row.measured:.1f}",
             percent(row.error) + ("" if row.fits else " (!)"))
            for row in rows
        ],
    )  # fmt: skip


def _reasons(rows: Sequence[Flows]) -> list[str]:
    told: dict[str, list[str]] = {}
    for row in rows:
        if not row.fits:
            told.setdefault(row.reason, []).append(f"{row.machine}: {row.what}")
    listed = []
    for reason, where in told.items():
        named = "; ".join(where) if len(where) < MANY else f"{len(where)} rows"
        listed.append(f"* {reason[0].upper()}{reason[1:]} ({named}).")
    return ["Likely reasons of the others:\n", *listed] if listed else []


def _constants(constants: Constants) -> str:
    return lines(
        ("constant", "value"),
        [
            ("forward kernel without mask", f"{constants.full / 1e12:.0f} TFLOP/s"),
            ("forward kernel, causal", f"{constants.causal / 1e12:.0f} TFLOP/s"),
            ("backward kernel", f"{constants.backward / 1e12:.0f} TFLOP/s"),
            ("scattered copies, bytes read and written", f"{constants.scatter / 1e12:.2f} TB/s"),
        ],
    )


def _charts(bars: Sequence[Bar]) -> str:
    parts = []
    for case in CHART:
        rows = []
        for strategy in STRATEGIES:
            own = [bar for bar in bars if (bar.case, bar.strategy) == (case, strategy)]
            cells = [
                f"{bar.measured:.0f} / {bar.predicted:.0f}, {percent(bar.error)}" for bar in own
            ]
            rows.append((strategy, *cells))
        head = (case, f"{GPUS[0]} GPUs (fitted)", *(f"{n} GPUs" for n in GPUS[1:]))
        parts.append(lines(head, rows))
    return "\n".join(parts)


def _verdict(bars: Sequence[Bar]) -> str:
    kinds: dict[str, Callable[[Bar], bool]] = {
        "8 GPUs, fitted": lambda bar: bar.fitted,
        "16 to 64 GPUs": lambda bar: not bar.fitted,
        "of these dense": lambda bar: not bar.fitted and not bar.case.startswith("documents"),
        "of these documents": lambda bar: not bar.fitted and bar.case.startswith("documents"),
    }
    rows = []
    for name, chosen in kinds.items():
        errors = [bar.error for bar in bars if chosen(bar)]
        over = sum(abs(error) > ASKED_WORST for error in errors)
        rows.append((name, len(errors), f"{middle(errors):.1%}", f"{largest(errors):.1%}", over))
    head = ("bars", "number", "median error", "worst error", "above 10 %")
    return lines(head, rows) + "\n" + _aims(bars)


def _aims(bars: Sequence[Bar]) -> str:
    """Say which aims were reached, and list the pairs in the wrong order."""
    errors = [bar.error for bar in bars if not bar.fitted]
    told, wrong = pairs(bars)
    median, worst, order = (
        "reached" if good else "missed"
        for good in (middle(errors) <= ASKED_MEDIAN, largest(errors) <= ASKED_WORST, not wrong)
    )
    text = (
        f"The aims were a median of at most 5 % ({median}) and none above 10 % ({worst}) on 16 to "
        "64 GPUs, and the right order\nof all pairs of strategies that differ by more than 5 % "
        f"({order}: {len(told) - len(wrong)} of {len(told)})."
    )
    listed = [
        f"* {fast.case}, {fast.ranks} GPUs: {fast.strategy} ({fast.measured:.0f} / "
        f"{fast.predicted:.0f}) over {slow.strategy} ({slow.measured:.0f} / {slow.predicted:.0f})"
        for fast, slow in wrong
    ]
    return "\n".join(
        [text, *(["In the wrong order, measured / predicted:\n", *listed] if wrong else []), ""]
    )
