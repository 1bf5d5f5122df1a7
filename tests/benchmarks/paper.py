"""The comparison of arXiv:2611.05906 on the shipped machines; writes docs/benchmarks/paper.md.

The abstract states averages of CHARM+ over Ring-Attention: 1.3x forward and 1.7x backward on a
dual-NUMA PCIe machine, 2.8x and 2.9x on two NVLink nodes. It states no lengths, heads or rates, so
all cases were fixed beforehand (`paper_cases`), and all are reported. Run from a checkout (half an
hour of two cores):

    python -m tests.benchmarks.paper

Every case is kept in a folder as soon as it is there, so a run that was ended goes on where it was,
unless the code has changed meanwhile. The page says which cases are missing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.benchmarks.paper_cases import COMPUTED, MACHINES, Slice, from_json, slices, to_json
from tests.benchmarks.paper_page import page
from tests.benchmarks.paper_store import ROOT, Store, sources

CASES = "tests.benchmarks.paper_cases"


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "paper", metavar="FOLDER")
    parser.add_argument("--processes", type=int, default=2, choices=(1, 2))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no more then")
    parser.add_argument("--only", default="", metavar="TEXT", help="compute slices of that name")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs" / "benchmarks" / "paper.md", metavar="FILE"
    )
    return parser.parse_args(argv)


def files() -> list[Path]:
    """List what results depend on."""
    return [*sources(CASES), *(ROOT / "topologies" / f"{name}.yaml" for name in MACHINES)]


def compute(one: Slice, store: Store) -> str:
    """Compute a slice and keep it; give what went wrong, or nothing."""
    try:
        found = to_json(COMPUTED[one.kind](*one.args))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if not store.current:
        return "the code has changed since this run began; start again"
    store.write(one.name, found)
    return ""


def run(todo: Sequence[Slice], store: Store, *, processes: int, minutes: float) -> dict[str, str]:
    """Compute slices, most at once; give what went wrong, by name."""
    began, failed, waiting = time.monotonic(), {}, list(todo)
    with ProcessPoolExecutor(processes) as pool:
        running = {}
        while waiting or running:
            late = time.monotonic() - began > 60 * minutes
            while waiting and not late and len(running) < processes:
                one = waiting.pop(0)
                running[pool.submit(compute, one, store)] = one
            if not running:
                break
            done = next(as_completed(running))
            one, problem = running.pop(done), done.result()
            if problem:
                failed[one.name] = problem
            spent = time.monotonic() - began
            sys.stderr.write(f"{spent:.0f} s, {len(waiting)} left: {one.name} {problem}\n")
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """Compute what is not there yet, and write the page."""
    chosen = options(argv)
    store = Store(chosen.cache, files())
    everything = slices()
    todo = [s for s in everything if chosen.only in s.name and store.read(s.name) is None]
    sys.stderr.write(f"{len(todo)} of {len(everything)} slices to compute, code {store.digest}\n")
    failed = run(todo, store, processes=chosen.processes, minutes=chosen.minutes)
    kept = {one.name: store.read(one.name) for one in everything}
    found = [value for entries in kept.values() if entries for value in from_json(entries)]
    missing = {name: failed.get(name, "not run") for name, entries in kept.items() if not entries}
    chosen.output.write_text(page(found, missing, code=store.digest))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
