"""The benchmark of the paper: what is read off timelines and cases, kept, and written."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charm_sched import Workload, load_topology, plan, plan_all, simulate
from charm_sched.plans.plan import DIRECTIONS, Plan
from charm_sched.topology.graph import Topology
from tests.benchmarks import paper, paper_store
from tests.benchmarks.paper_cases import (
    ABSTRACT,
    BOTH,
    CHANGES,
    Case,
    Change,
    Row,
    Slice,
    Times,
    changed,
    from_json,
    slices,
    to_json,
)
from tests.benchmarks.paper_findings import PUBLISHED, communicates, speedup, wins, worst
from tests.benchmarks.paper_page import page
from tests.benchmarks.paper_reuse import shared
from tests.benchmarks.paper_stops import CAUSES, KERNELS, WAITS, Stop, _span, stop_of
from tests.benchmarks.paper_tables import lost, mechanism, table

WORK = Workload(seq_len=8192, heads=32, kv_heads=8, head_dim=128, mask="causal")


def forward(topology: Topology, strategy: str, direction: str = "forward") -> Plan:
    made = plan(topology, WORK, strategy=strategy, direction=direction)
    assert isinstance(made, Plan)
    return made


@pytest.mark.parametrize("machine", ["dual_numa_pcie", "dual_node_nvlink"])
@pytest.mark.parametrize("strategy", ["ring", "ulysses", "double_ring"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_losses_and_the_bound_add_up_to_the_makespan(
    machine: str, strategy: str, direction: str
) -> None:
    topology = load_topology(machine)
    line = simulate(forward(topology, strategy, direction), topology)
    stop = stop_of(line)
    for bound in (0.0, line.makespan / 3):
        losses = stop.losses(bound)
        assert tuple(losses) == CAUSES
        assert bound + sum(losses.values()) == pytest.approx(line.makespan, rel=1e-9)
    assert stop.busy >= stop.mean > 0
    for name in WAITS:
        assert getattr(stop, name) >= -1e-9 * line.makespan
    assert stop.busy >= 0.999 * max(line.compute_s, line.link_busy.max() * line.makespan)


def test_ring_on_two_nodes_hangs_on_what_crosses_them() -> None:
    topology = load_topology("dual_node_nvlink")
    line = simulate(forward(topology, "ring"), topology)
    stop = stop_of(line)
    piece = 8192 // 16 * WORK.num_kv_heads * WORK.row_bytes("kv")
    assert stop.kind in ("pcie", "network")
    assert stop.busy == pytest.approx(15 * piece / 24e9)  # one card, fifteen hops
    assert stop.slow == pytest.approx(15 * 14e-6, rel=0.01)  # each with its latency


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=12),
)
def test_a_span_counts_each_moment_once(intervals: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in intervals], float)
    end = np.array([a + length for a, length in intervals], float)
    covered = {t for a, length in intervals for t in range(a, a + length)}
    assert _span(start, end) == (start.min(), end.max(), len(covered))


STOP = Stop(name="a -> b", kind="wire", busy=3.0, mean=2.0, first=0.5, unused=0.0, slow=0.5, last=0)


def row(strategy: str, seconds: float, *, direction: str = "forward", wire: float = 3.0) -> Row:
    return Row(
        strategy=strategy, params={}, direction=direction, partition="zigzag", seconds=seconds,
        compute=1.0, bound=1.0, bound_compute=1.0, class_bound=2.0, class_compute=1.0,
        class_communication=2.0, full={"wire": wire, KERNELS: 1.0},
        stop=dataclasses.replace(STOP, busy=wire, last=seconds - wire - 1),
    )  # fmt: skip


def case(times: dict[str, float], *, what: str = "forward", **more: Any) -> Case:
    rows = {name: (row(name, t),) for name, t in times.items()}
    facts = {
        "machine": "dual_numa_pcie", "seq_len": 8192, "kv_heads": 8, "mask": "full", "what": what,
        "rows": rows, "refused": {"tasp": "two domains"}, "assumptions": ("a guess",),
    }  # fmt: skip
    return Case(**(facts | more))


NORMAL = {"ring": 8.0, "mesh": 6.0, "charm": 5.0, ABSTRACT: 5.5, "auto": 4.0}


def test_wins_are_against_the_best_that_is_published() -> None:
    near = case(NORMAL | {"mesh": 4.19})
    won = case(NORMAL | {"mesh": 4.21})
    assert wins([near], PUBLISHED) == []
    assert [win.best for win in wins([won], PUBLISHED)] == ["mesh"]
    assert wins([won], PUBLISHED)[0].factor == pytest.approx(4.21 / 4)
    assert [win.best for win in wins([case(NORMAL)], (*PUBLISHED, ABSTRACT))] == [ABSTRACT]


def test_a_win_is_by_less_load_or_by_less_waiting() -> None:
    rows = {"ring": (row("ring", 8.0),), "charm": (row("charm", 5.0),)}
    light = case({}, rows={**rows, "auto": (row("auto", 5.0, wire=1.0),)})
    (win,) = wins([light], ["ring"])
    assert win.relieved
    assert mechanism(win) == "fullest wire link: 3000.00 to 1000.00 ms"
    quick = case({}, rows={**rows, "auto": (row("auto", 5.0, wire=3.0),)})
    (win,) = wins([quick], ["ring"])
    assert not win.relieved
    assert mechanism(win) == "waiting: 5000.00 to 2000.00 ms (fullest wire link ends early)"


def test_the_direction_with_the_largest_gain_explains_a_win_of_both() -> None:
    slow = (row("ring", 4.0), row("ring", 9.0, direction="backward"))
    fast = (row("mesh", 3.9), row("charm", 5.0, direction="backward"))
    both = case({}, what=BOTH, rows={"ring": slow, "auto": fast, "charm": fast})
    (win,) = wins([both], ["ring"])
    assert win.factor == pytest.approx(13 / 8.9)
    assert win.chosen.strategy == "charm"


def test_a_plan_that_moves_queries_is_held_against_the_class_bound_of_charm() -> None:
    queries = dataclasses.replace(row("mesh", 4.0), class_bound=None)
    rows = {"charm": (row("charm", 5.0),), "auto": (queries,)}
    assert case({}, rows=rows).class_bound("auto") == 2.0
    assert case({}, rows=rows, what=BOTH).class_bound("auto") is None
    assert case({}, rows=rows, what=BOTH).class_bound("charm") == 2.0


def test_ratios_and_averages() -> None:
    one, other = case(NORMAL), case(NORMAL | {"ring": 10.0, "charm": 10.1})
    assert speedup([one, other], "charm") == pytest.approx((8 / 5 * 10 / 10.1) ** 0.5)
    ratio, where, base = worst([one, other], "charm", ["ring", "double_ring"])
    assert (ratio, where, base) == (pytest.approx(1.01), other, "ring")


def test_communication_limits_by_the_bound_and_not_by_the_plans() -> None:
    fast = dataclasses.replace(row("charm", 5.0), class_communication=0.9)
    assert communicates(case(NORMAL))
    assert not communicates(case({}, rows={"charm": (fast,)}))


def test_losses_are_told_largest_first_and_small_ones_not() -> None:
    told = lost(row("ring", 8.0), bound=1.0)
    assert told == "ends early 50%, fuller than the mean 12%, more than counted 12%, " + (
        "begins late 6%, below its rate 6%"
    )


def test_what_is_kept_reads_back() -> None:
    times = Times(
        kind="change", machine="m", seq_len=1, kv_heads=2, mask="full", direction="forward",
        name="as shipped", seconds={"ring": 1.0},
    )  # fmt: skip
    found = [case(NORMAL), times]
    assert from_json(json.loads(json.dumps(to_json(found)))) == found


@pytest.mark.parametrize("machine", ["dual_numa_pcie", "dual_node_nvlink_4nic"])
def test_changes_touch_what_they_name(machine: str) -> None:
    topology = load_topology(machine)
    assert changed(topology, Change()).digest == topology.digest
    first, last = topology.device_names[0], topology.device_names[-1]
    cross = changed(topology, CHANGES["cross links x 2"])
    inside = changed(topology, CHANGES["inside links / 2"])
    near, far = ((first, topology.device_names[1]), (first, last))
    assert widths(cross, *near) == widths(topology, *near)
    assert ratios(widths(cross, *far), widths(topology, *far)) in ({2.0}, {1.0, 2.0})
    assert ratios(widths(inside, *near), widths(topology, *near)) == {0.5}
    fast = changed(topology, CHANGES["kernel rate x 2"])
    rates = [
        t.device(first).compute.rate(
            direction="backward", head_dim=128, causal=True, dtype="bf16"
        )[0]
        for t in (topology, fast)
    ]  # fmt: skip
    assert rates[1] == pytest.approx(2 * rates[0])


def widths(topology: Topology, src: str, dst: str) -> list[float]:
    return [topology.links[i].bandwidth for i in topology.route(src, dst).links]


def ratios(some: list[float], others: list[float]) -> set[float]:
    return {a / b for a, b in zip(some, others, strict=True)}


def test_searches_that_share_plans_find_the_same() -> None:
    """Digests, times, and what was not tried: all as without sharing, in fewer plans."""
    topology = load_topology("dual_numa_pcie")
    kinds = (("forward",), DIRECTIONS)
    names = ("usp", "all_gather")
    apart = [plan_all(topology, WORK, directions=kind, strategies=names) for kind in kinds]
    with shared() as known:
        joint = [plan_all(topology, WORK, directions=kind, strategies=names) for kind in kinds]
    assert known.made < 0.8 * known.given
    for one, other in zip(apart, joint, strict=True):
        assert [(r.plan.digest, r.timeline.makespan, r.peak_bytes) for r in one.results] == [
            (r.plan.digest, r.timeline.makespan, r.peak_bytes) for r in other.results
        ]
        assert one.not_tried == other.not_tried
        assert one.chosen.keys() == other.chosen.keys()
        for direction, chosen in one.chosen.items():
            assert chosen.plan.digest == other.chosen[direction].plan.digest


def test_slices_have_names_of_their_own() -> None:
    names = [one.name for one in slices()]
    assert len(set(names)) == len(names)
    assert sum(name.startswith("compare") for name in names) == 7 * 6 * 2 * 2


def test_results_depend_on_what_is_imported_anywhere() -> None:
    files = {
        path.relative_to(paper_store.ROOT).as_posix() for path in paper_store.sources(paper.CASES)
    }
    assert {
        "charm_sched/planners/charm.py", "charm_sched/simulator/engine.py",
        "charm_sched/bounds/covers.py", "tests/benchmarks/paper_stops.py",
    } <= files  # fmt: skip
    assert not [name for name in files if "runtime/" in name or "paper_page" in name]


def test_a_store_gives_what_was_kept_for_its_code_alone(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("one")
    first = paper_store.Store(tmp_path, [code])
    first.write("a", [{"x": 1}])
    assert first.read("a") == [{"x": 1}]
    assert first.read("b") is None
    code.write_text("two")
    assert not first.current
    second = paper_store.Store(tmp_path, [code])
    assert second.read("a") is None
    code.write_text("one")
    assert first.current
    assert paper_store.Store(tmp_path, [code]).read("a") == [{"x": 1}]


def test_computing_tells_errors_and_changed_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(fail: bool) -> list[Case]:
        if fail:
            raise ValueError("no such link")
        return [case(NORMAL)]

    monkeypatch.setattr(paper, "COMPUTED", {"work": work})
    good, bad = (Slice(kind="work", args=(fail,)) for fail in (False, True))
    code = tmp_path / "code.py"
    code.write_text("one")
    store = paper_store.Store(tmp_path, [code])
    assert paper.compute(good, store) == ""
    assert store.read(good.name)
    assert paper.compute(bad, store) == "ValueError: no such link"
    other = Slice(kind="work", args=(0,))
    code.write_text("two")
    assert "the code has changed" in paper.compute(other, store)
    assert store.read(other.name) is None


def test_out_of_time_nothing_begins(tmp_path: Path) -> None:
    store = paper_store.Store(tmp_path, [])
    assert paper.run(slices(), store, processes=1, minutes=-1) == {}
    assert not list(tmp_path.glob("*/*"))


def test_the_page_has_every_case_and_names_what_is_missing() -> None:
    cases = [
        case(NORMAL, what=what, machine=machine, seq_len=n)
        for what in DIRECTIONS
        for machine in ("dual_numa_pcie", "dual_node_nvlink", "four_node_nvlink")
        for n in (8192, 16384)
    ]
    written = page(cases, {"compare-x": "not run"}, code="abc")
    everything = written[written.index("## All cases") : written.index("## Refused")]
    assert everything.count("| 8K |") == everything.count("| 16K |") == 6
    assert everything.count("\n### ") == 6
    assert "### four_node_nvlink, backward\n" in everything
    assert "`compare-x`: not run" in written
    assert "a guess" in written
    assert "two domains" in written
    assert "{" not in written


def test_tables_of_the_page_are_whole() -> None:
    cases = [case(NORMAL, what=what) for what in (*DIRECTIONS, BOTH)]
    lines = page(cases, {}, code="abc").split("\n")
    for before, line in itertools.pairwise(lines):
        if before.startswith("|") and line.startswith("|"):
            assert cells(before) == cells(line)
    assert cells(table("ab", ["cd"]).split("\n")[-1]) == 2


def cells(line: str) -> int:
    return len(re.split(r"(?<!\\)\|", line)) - 2
