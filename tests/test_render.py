"""The pieces of the terminal report: bars, levels, tables of machines, sentences about lengths."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from charm_sched import load_topology
from charm_sched.render_timeline import Bar, condense, joined
from charm_sched.render_topology import domain_tree, listing
from charm_sched.sweep import Point, verdict
from charm_sched.timeline import Level


def printed(renderable: object, *, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=file, width=width, highlight=False, no_color=True).print(renderable)
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("spans", "drawn"),
    [
        ([(0.0, 10.0)], "██████████"),
        ([(0.0, 5.0)], "█████"),
        ([(5.0, 10.0)], "     █████"),
        ([(2.0, 3.0), (8.0, 9.0)], "  █     █"),
        ([(0.0, 0.5)], "▒"),
        ([(4.0, 4.001)], "    ▒"),
        ([], ""),
        ([(10.0, 10.0)], ""),
    ],
)
def test_bars(spans: list[tuple[float, float]], drawn: str) -> None:
    assert printed(Bar(spans, 10.0, "green"), width=10).rstrip("\n").rstrip() == drawn


def test_bars_without_unicode() -> None:
    bar = Bar([(0.0, 5.0), (9.0, 9.5)], 10.0, "green")
    assert printed(bar, width=10, encoding="ascii").rstrip() == "#####    -"


def test_spans_that_touch_are_joined() -> None:
    assert joined([(5.0, 6.0), (0.0, 2.0), (1.0, 3.0), (3.0, 4.0)]) == [(0.0, 4.0), (5.0, 6.0)]
    assert joined([]) == []
    assert joined([(0.0, 9.0), (1.0, 2.0)]) == [(0.0, 9.0)]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 15, 101])
def test_levels_are_put_together_without_loss(count: int) -> None:
    levels = [
        Level(stream="s", level=n, start=n, end=n + 1, bytes=1, transfers=1) for n in range(count)
    ]
    runs = condense(levels, most=4)
    assert [level for run in runs for level in run] == levels
    assert len(runs) == min(count, 4)
    assert all(runs)


def point(length: int, compute: float, ring: float, best: float, strategy: str = "charm") -> Point:
    return Point(
        seq_len=1024 * length, direction="forward", strategy=strategy, compute_s=compute,
        ring_s=ring, best_s=best,
    )  # fmt: skip


FAST, HIDDEN = point(8, 1.0, 3.0, 1.5), point(16, 1.0, 1.2, 1.0)
EVEN, STUCK = point(32, 1.0, 1.04, 1.0), point(64, 1.0, 3.0, 3.0)


@pytest.mark.parametrize(
    ("what", "limit"),
    [
        (FAST, "strategy"), (HIDDEN, "strategy"), (EVEN, "computation"), (STUCK, "communication"),
        (point(8, 1.0, 1.05, 1.0), "strategy"),
        (point(8, 1.0, 1.09, 1.09), "computation"),
        (point(8, 1.0, 1.1, 1.1), "communication"),
    ],
)  # fmt: skip
def test_what_limits_a_point(what: Point, limit: str) -> None:
    assert what.limit == limit


@pytest.mark.parametrize(
    ("points", "sentence"),
    [
        (
            [FAST, HIDDEN, EVEN],
            "At 8K to 16K communication limits Ring-Attention: charm is 1.2 to 2.0 times as fast. "
            "From 32K on computation is the limit: every good schedule is as fast there.",
        ),
        (
            [FAST],
            "At 8K communication limits Ring-Attention: charm is 2.0 times as fast.",
        ),
        (
            [EVEN, EVEN],
            "At 32K computation is the limit: every good schedule is as fast there.",
        ),
        (
            [STUCK],
            "At 64K communication limits every plan found, and Ring-Attention no more.",
        ),
        (
            [EVEN, point(64, 1.0, 3.0, 1.5, "usp"), FAST],
            "At 32K computation is the limit: every good schedule is as fast there. At 64K to 8K "
            "communication limits Ring-Attention: usp or charm is 2.0 times as fast.",
        ),
    ],
)
def test_sentences_about_lengths(points: list[Point], sentence: str) -> None:
    assert verdict(points) == sentence


def test_machine_tree_names_domains_and_bandwidths() -> None:
    topology = load_topology("dual_node_nvlink")
    lines = printed(domain_tree(topology)).splitlines()
    assert lines[0].startswith("dual_node_nvlink: 16 devices in 2 domains; ")
    assert lines[0].rstrip().endswith(" out of each")
    assert len(lines) == 3
    assert all(": 8 devices; " in line and "GB/s out of each" in line for line in lines[1:])


def test_alike_domains_are_drawn_once() -> None:
    lines = printed(domain_tree(load_topology("four_node_nvlink"))).splitlines()
    assert len(lines) == 2
    assert "(4 alike)" in lines[1]


def test_listing_fits_80_columns() -> None:
    text = printed(listing([load_topology("dual_node_nvlink"), load_topology("dual_numa_pcie")]))
    assert max(map(len, text.splitlines())) <= 80
    assert "dual_numa_pcie" in text
