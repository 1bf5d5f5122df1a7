"""The page docs/benchmarks/scale.md: what is measured, and its tables."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "scale.md"
Document = dict[str, Any]
Run = Callable[..., Document]

GROWING = ("rails:1:2", "rails:1:8", "rails:2:16", "cluster_1024_rails")
STRATEGIES = ("ring", "charm")
STARS = (16, 64, 128, 256)
STEPS = ("load", "plan", "verify", "simulate")

HEAD = """# Scale

Written by `PYTHONPATH=.:tests python tests/benchmarks/scale.py`, on {cores} cores with Python
{python} and NumPy {numpy}. Forward passes of `ring` and `charm`, llama3-8b under a full mask, 2,048
tokens per device. Seconds of processor time, each case in a fresh process; memory is the peak of
that process. `load` reads the topology and finds its domains.
"""


def write_page(run: Run) -> None:
    """Measure everything and write the page."""
    head = HEAD.format(
        cores=os.cpu_count(), python=platform.python_version(), numpy=numpy.__version__
    )
    explicit = [run("plan", name, s, "explicit") for name in GROWING for s in STRATEGIES]
    explicit += [run("plan", "cluster_1024_leaf_spine", s, "explicit") for s in STRATEGIES]
    uneven = [
        run("plan", name, s, "irregular")
        for name in ("rails:2:16", "cluster_1024_rails")
        for s in STRATEGIES
    ]
    small = [run("plan", "rails:2:16", s, "folded") for s in STRATEGIES]
    large = [
        run("plan", f"cluster_8192_{shape}", s, "folded")
        for shape in ("leaf_spine", "rails")
        for s in STRATEGIES
    ]
    stars = [run("star", hosts) for hosts in STARS]
    parts = [
        head,
        "## Every operation on its own\n",
        *_plan_table(explicit),
        _growth(explicit),
        "## Every link up to 10 % faster or slower\n",
        "No two operations end together, so each is an event of its own, and rates are shared\n"
        "anew at each. A change spreads as far as it has to (`simulator/ripple.py`).\n",
        *_plan_table(uneven),
        _growth(uneven),
        "## By symmetry\n",
        "Operations of representatives alone, each for all its translates\n"
        "(`charm_sched/plans/symmetry.py`). `rows` are what is planned, proved and simulated;\n"
        "`operations` what they stand for.\n",
        *_plan_table([*small, *large]),
        *_agreement(explicit, small),
        "## Many flows at once\n",
        "An equal all-to-all of 1 MiB on a star, 50 GiB/s and 500 ns per link. The first run also\n"
        "finds the routes. SimGrid: CM02 without factors, all flows with one latency of 1 us.\n",
        *_star_table(stars),
    ]
    PAGE.write_text("\n".join(parts))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Give the lines of a table, and an empty one."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return [*lines, ""]


def _plan_table(cases: Sequence[Document]) -> list[str]:
    columns = ("machine", "devices", "strategy", "rows", "operations", *STEPS, "all", "memory",
               "predicted")  # fmt: skip
    return table(
        columns,
        (
            (
                case["machine"],
                f"{case['devices']:,}",
                case["strategy"],
                f"{case['rows']:,}",
                f"{case['ops']:,}",
                *(f"{case['seconds'][step]:.2f} s" for step in STEPS),
                f"**{total(case):.1f} s**",
                f"{case['memory'] / 1e9:.2f} GB",
                f"{1e3 * case['makespan']:.2f} ms",
            )
            for case in cases
        ),
    )


def total(case: Document) -> float:
    """Give all seconds of a case."""
    return float(sum(case["seconds"].values()))


def _growth(cases: Sequence[Document]) -> str:
    """Say how time grows with operations, from the two largest sizes of each strategy."""
    words = []
    for strategy in STRATEGIES:
        own = [c for c in cases if c["strategy"] == strategy and "leaf" not in c["machine"]]
        few, many = own[-2:]
        work = [sum(c["seconds"][step] for step in STEPS[1:]) for c in (few, many)]
        times = many["ops"] / few["ops"]
        bound = times * math.log(many["ops"]) / math.log(few["ops"])
        words.append(
            f"`{strategy}` from {few['devices']:,} to {many['devices']:,} devices: {times:.1f} "
            f"times the operations, {work[1] / work[0]:.1f} times the time (n log n: {bound:.1f})"
        )
    return "Growth, without loading: " + "; ".join(words) + ".\n"


def _agreement(explicit: Sequence[Document], folded: Sequence[Document]) -> list[str]:
    rows = []
    for case in folded:
        (other,) = [
            c for c in explicit
            if (c["machine"], c["strategy"]) == (case["machine"], case["strategy"])
        ]  # fmt: skip
        gap = case["makespan"] / other["makespan"] - 1
        rows.append(
            (case["strategy"], repr(other["makespan"]), repr(case["makespan"]), f"{gap:.1e}")
        )
    return [
        "Beside the explicit plan on 256 devices:\n",
        *table(("strategy", "explicit, s", "by symmetry, s", "difference"), rows),
    ]


def _star_table(cases: Sequence[Document]) -> list[str]:
    def other(case: Document, key: str, form: str) -> str:
        return format(case["simgrid"][key], form) if case["simgrid"] else "not installed"

    columns = (
        "hosts",
        "flows",
        "first run",
        "again",
        "SimGrid",
        "makespan",
        "in SimGrid",
        "memory",
    )
    return table(
        columns,
        (
            (
                case["hosts"],
                f"{case['flows']:,}",
                f"{case['seconds']['first']:.2f} s",
                f"{case['seconds']['again']:.2f} s",
                other(case, "seconds", ".2f"),
                f"{case['makespan']:.9f} s",
                other(case, "makespan", ".9f"),
                f"{case['memory'] / 1e9:.2f} GB",
            )
            for case in cases
        ),
    )
