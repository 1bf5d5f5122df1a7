"""Compare the simulator with closed forms, other simulators and published measurements.

Writes docs/benchmarks/validation.md and the error bands that stand beside each prediction. Run from
a checkout, for about ten minutes:

    python -m tests.benchmarks.validation

What was measured stands in validation_flows.py and validation_attention.py, with its sources. The
constants of the attention charts are fitted on eight GPUs and used as they are on sixteen and more.
SimGrid runs beside it where ``python3-simgrid`` is installed. The predicted charts, which take
nearly all of the time, are kept in build/validation.json; ``--charts`` takes them from there, where
something else on the page has changed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from charm_sched.what_if.error_band import DATA
from tests.benchmarks import validation_attention as attention
from tests.benchmarks import validation_flows as flows
from tests.benchmarks.validation_astra import COMPARISONS
from tests.benchmarks.validation_cases import CHART, GPUS, PACKS, ROOT
from tests.benchmarks.validation_golden import beside_simgrid, golden
from tests.benchmarks.validation_kernels import Constants
from tests.benchmarks.validation_page import page
from tests.benchmarks.validation_scores import Bar, Flows, band_data

KEPT = ROOT / "build" / "validation.json"
PAGE = ROOT / "docs" / "benchmarks" / "validation.md"


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE")
    parser.add_argument("--bands", type=Path, default=DATA, metavar="FILE")
    parser.add_argument("--packs", type=int, default=PACKS, help="packs of documents per bar")
    parser.add_argument("--charts", action="store_true", help="take the charts of the last run")
    return parser.parse_args(argv)


def flow_rows() -> list[Flows]:
    """Predict all measured flows."""
    return [
        Flows(
            machine=row.machine.name, what=row.what, pattern=row.pattern, measured=row.measured,
            predicted=flows.predict(row), spread=row.spread, given=row.machine.given,
            source=row.machine.source, reason=row.reason,
        )
        for row in flows.ROWS
    ]  # fmt: skip


def bars(constants: Constants, packs: int) -> Iterator[Bar]:
    """Predict all bars of the charts."""
    for case, strategies in CHART.items():
        for strategy, measured in strategies.items():
            for ranks, rate in zip(GPUS, measured, strict=True):
                sys.stderr.write(f"{case}, {strategy}, {ranks} GPUs\n")
                found = attention.predict(case, strategy, ranks, constants, packs)
                yield Bar(case=case, strategy=strategy, ranks=ranks, measured=rate, predicted=found)


def write(args: argparse.Namespace, constants: Constants, found: Sequence[Bar]) -> None:
    """Compute the rest, and write the page and the bands."""
    measured = flow_rows()
    bands = band_data(found, measured)
    text = page(
        golden=list(golden()),
        simgrid=beside_simgrid(),
        flows=measured,
        bars=found,
        constants=constants,
        packs=args.packs,
        astra=COMPARISONS,
        bands=bands,
    )
    args.output.write_text(text)
    args.bands.write_text(json.dumps(bands, indent=2) + "\n")


def charts(args: argparse.Namespace) -> tuple[Constants, list[Bar]]:
    """Give the constants and all bars, predicted anew or those of the last run."""
    if args.charts:
        kept = json.loads(KEPT.read_text())
        args.packs = kept["packs"]
        return Constants(**kept["constants"]), [Bar(**bar) for bar in kept["bars"]]
    constants = attention.fit(args.packs)
    found = list(bars(constants, args.packs))
    KEPT.parent.mkdir(exist_ok=True)
    keep = {
        "packs": args.packs,
        "constants": asdict(constants),
        "bars": [asdict(bar) for bar in found],
    }
    KEPT.write_text(json.dumps(keep))
    return constants, found


def main(argv: Sequence[str] | None = None) -> None:
    """Compute everything and write it."""
    args = options(argv)
    write(args, *charts(args))


if __name__ == "__main__":
    main()
