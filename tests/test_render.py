"""The pieces of the terminal report: bars, levels, tables of machines, sentences about lengths."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.machines import small_shipped

from charm_sched import load_topology
from charm_sched.commands.options import device_names
from charm_sched.render.tables import fitting, names_of
from charm_sched.render.timeline import Bar, condense, joined
from charm_sched.render.topology import LEGEND, device_lines, domain_tree, listing, ranges
from charm_sched.timelines.timeline import Level
from charm_sched.topology.listing import shipped_machines
from charm_sched.what_if.lengths import Point, verdict


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
            "At 8K to 16K communication limits Ring-Attention: charm is 1.20 to 2.00 times as "
            "fast. "
            "From 32K on computation is the limit: every good schedule is as fast there.",
        ),
        (
            [FAST],
            "At 8K communication limits Ring-Attention: charm is 2.00 times as fast.",
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
            "communication limits Ring-Attention: usp or charm is 2.00 times as fast.",
        ),
    ],
)
def test_sentences_about_lengths(points: list[Point], sentence: str) -> None:
    assert verdict(points) == sentence


def test_machine_tree_names_domains_and_bandwidths() -> None:
    topology = load_topology("dual_node_nvlink")
    lines = printed(domain_tree(topology)).splitlines()
    assert lines[0].startswith("dual_node_nvlink: 16 devices in 2 domains; ")
    assert lines[0].rstrip().endswith("; network: each can send 192 GB/s")
    assert len(lines) == 3
    assert all(": 8 devices; nvlink: each can send 184 GB/s" in line for line in lines[1:])


def test_alike_domains_are_drawn_once() -> None:
    lines = printed(domain_tree(load_topology("four_node_nvlink"))).splitlines()
    assert len(lines) == 2
    assert "(4 alike)" in lines[1]


def test_listing_fits_80_columns() -> None:
    text = "".join(printed(part) for part in listing(shipped_machines("dual_")))
    assert max(map(len, text.splitlines())) <= 80
    assert "dual_numa_pcie" in text


def test_the_unit_of_the_tree_is_explained_in_one_line() -> None:
    assert "all its links together" in LEGEND
    assert len(LEGEND) <= 80


@pytest.mark.parametrize(
    ("names", "written"),
    [
        (["gpu0", "gpu1", "gpu2"], ["gpu0..2"]),
        (["gpu0", "gpu2", "gpu3"], ["gpu0", "gpu2..3"]),
        (["gpu1", "gpu0"], ["gpu1", "gpu0"]),
        (["a0/g0", "a0/g1", "a1/g0", "a1/g1"], ["a0..1/g0..1"]),
        (["a0/g0", "a0/g1", "a1/g0", "a1/g2"], ["a0/g0..1", "a1/g0", "a1/g2"]),
        (["n00", "n01"], ["n00", "n01"]),
        (["n7x", "spare", "n8x"], ["n7x", "spare", "n8x"]),
    ],
)
def test_names_are_written_as_ranges_that_read_back(names: list[str], written: list[str]) -> None:
    assert ranges(names) == written
    assert list(device_names(",".join(written))) == names


@pytest.mark.parametrize("name", small_shipped())
def test_device_lines_name_every_device(name: str) -> None:
    topology = load_topology(name)
    lines = [line.removeprefix("devices ").replace(" ", "") for line in device_lines(topology)]
    assert device_names(",".join(lines)) == topology.device_names


HEAD = ("strategy", "time", "vs ring", "compute", "exposed", "partition", "memory", "network")
ROWS = [
    ("forward",),
    ("* charm", "2.84 ms", "1.92x", "2.84 ms", "0 s", "zigzag", "202 MB", "134 MB"),
    ("  some_file.py:a_rather_long_function", "5.46 ms", "1.00x", "4.84 ms", "622 us",
     "contiguous", "75.8 MB", "252 MB"),
]  # fmt: skip


@pytest.mark.parametrize("width", [20, 30, 40, 60, 78, 120])
def test_tables_keep_names_and_numbers(width: int) -> None:
    lines = [line.rstrip() for line in printed(fitting(HEAD, ROWS, width), width=130).splitlines()]
    assert max(map(len, lines)) <= max(width, 26)
    assert [line.split()[0] for line in lines[:3]] == ["strategy", "forward", "*"]
    shown = lines[0].split()
    assert shown == list(" ".join(HEAD).split())[: len(shown)]  # left out from the right
    assert "charm" in lines[2]
    assert lines[3].split()[0][:1] == "s"
    cells = " ".join(ROWS[1][: len(lines[2].split()) - 1])
    assert lines[2].split()[2:4] == ["2.84", "ms"]
    assert all(cell in cells or cell in " ".join(ROWS[1]) for cell in lines[2].split())
    assert "function" in lines[3] or width < 40


def test_strategies_of_two_files_are_told_apart() -> None:
    found = names_of(["ring", "x/a/mine.py:f", "x/b/mine.py:f", "x/b/mine.py:g"])
    assert list(found.values()) == ["ring", "a/mine.py:f", "b/mine.py:f", "mine.py:g"]
