"""Sweeps: what they go over, and that crossovers are where they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charm_sched import load_topology
from charm_sched.bounds.bound import Bound
from charm_sched.commands.what_if import machine_at
from charm_sched.errors import CharmSchedError
from charm_sched.what_if.sweep_axis import Axis, read_axis
from charm_sched.what_if.sweep_values import Sample, run_sweep, samples_of, words


def test_lengths_are_doubled() -> None:
    assert [int(v) for v in read_axis("seq-len=8K..64K").values()] == [8192, 16384, 32768, 65536]
    assert [int(v) for v in read_axis("seq-len=3000..10000").values()] == [3000, 6000, 10000]
    assert read_axis("seq-len=8K..1M").show(131072.0) == "128K"


def test_numbers_are_evenly_spaced_or_grow() -> None:
    axis = read_axis("links[upi].bandwidth=10..60 GB/s")
    assert axis.values() == [1e10, 2e10, 3e10, 4e10, 5e10, 6e10]
    assert axis.show(2e10) == "20 GB/s"
    assert axis.unit == "B/s"
    wide = read_axis("links[*].latency=100 ns..10 us")
    assert wide.values(3) == pytest.approx([1e-7, 1e-6, 1e-5])
    assert wide.unit == "s"


def test_factors() -> None:
    axis = read_axis("links[upi].bandwidth=x0.5..x4")
    assert (axis.first, axis.last, axis.unit) == (0.5, 4.0, "times")
    machine = load_topology("dual_numa_pcie")
    made = machine_at(machine, axis, 2.0)
    pairs = zip(machine.links, made.links, strict=True)
    assert {b.bandwidth / a.bandwidth for a, b in pairs if a.kind == "upi"} == {2.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seq-len=8K..1K", "expected a smaller and a larger value, found 8K and 1K"),
        ("seq-len=8K..8K", "expected a smaller and a larger value"),
        ("seq-len=0..8K", "expected a token count"),
        ("seq-len=8K", "expected NAME=FIRST..LAST"),
        ("seq-len", "expected NAME=FIRST..LAST"),
        ("batch=1..4", "expected seq-len or a path"),
        ("links[upi].width=1..4 GB/s", "one of bandwidth, latency, flow_cap of links"),
        ("links[upi].bandwidth=10..60", "a number needs its unit"),
        ("links[upi].bandwidth=10..60 GBps", 'is written "GB/s"'),
        ("links[upi].bandwidth=0..60 GB/s", "above 0"),
        ("links[upi].bandwidth=60..10 GB/s", "a smaller and a larger value"),
        ("links[upi].bandwidth=x1..3 GB/s", "two factors"),
        ("links[upi].bandwidth=1 GB/s..x3", "two factors"),
        ("links[upi].flow_cap=1 GB/s..none", "expected two numbers"),
    ],
)
def test_impossible_sweeps_are_one_message(text: str, said: str) -> None:
    with pytest.raises(CharmSchedError) as error:
        read_axis(text)
    assert said in str(error.value)


def test_a_first_value_may_have_a_unit_of_its_own() -> None:
    axis = read_axis("links[upi].bandwidth=500 MB/s..2 GB/s")
    assert (axis.first, axis.last) == (5e8, 2e9)


def fake(strategy: str, makespan: float, limit: str) -> Any:
    """A comparison of one direction with what a sweep reads of it."""
    compute = 2.0 if limit == "computation" else 0.0
    cut = SimpleNamespace(kinds=(limit,))
    bound = Bound(seconds=0.5, reason="", cut=cut, compute=compute, communication=1.0)  # type: ignore[arg-type]
    line = SimpleNamespace(makespan=makespan, compute_s=0.1)
    row = SimpleNamespace(
        strategy=strategy, direction="forward", timeline=line, bound=bound, class_bound=None,
        speedup_vs_ring=2.0,
    )  # fmt: skip
    old = SimpleNamespace(strategy="old", direction="forward",
                          timeline=SimpleNamespace(makespan=1.25 * makespan))  # fmt: skip
    return SimpleNamespace(chosen={"forward": row}, results=(row, old))


@given(edge=st.floats(10.5e9, 59e9), limit=st.floats(10.5e9, 59e9))
def test_crossovers_are_found_to_two_per_cent(edge: float, limit: float) -> None:
    axis = read_axis("links[upi].bandwidth=10..60 GB/s")

    def evaluate(value: float) -> Any:
        what = "upi" if value < limit else "computation"
        return fake("old" if value < edge else "new", 1.0, what)

    found = run_sweep(axis, evaluate)
    assert {c.what for c in found.crossovers} == {"strategy", "limit"}
    for crossover in found.crossovers:
        at = edge if crossover.what == "strategy" else limit
        assert crossover.below < at <= crossover.above
        assert crossover.above - crossover.below <= 0.021 * crossover.above
    (strategy,) = (c for c in found.crossovers if c.what == "strategy")
    assert (strategy.before, strategy.after) == ("old", "new")
    assert strategy.margin == pytest.approx(0.25)
    assert "new is best, below old (25.0% slower at " in words(strategy, axis)
    assert found.evaluated <= 6 + 2 * 8


def test_a_third_winner_in_between_is_found() -> None:
    axis = read_axis("links[upi].bandwidth=10..60 GB/s")

    def evaluate(value: float) -> Any:
        return fake("old" if value < 33e9 else "mid" if value < 36e9 else "new", 1.0, "upi")

    found = run_sweep(axis, evaluate).crossovers
    assert [(c.before, c.after) for c in found] == [("old", "mid"), ("mid", "new")]


def test_no_change_no_crossover() -> None:
    found = run_sweep(read_axis("seq-len=1K..8K"), lambda value: fake("old", 1.0, "upi"))
    assert found.crossovers == ()
    assert found.evaluated == 4


def test_samples_say_what_a_comparison_holds() -> None:
    (sample,) = samples_of(3.0, fake("new", 2.0, "upi"))
    assert sample == Sample(
        value=3.0, direction="forward", strategy="new", makespan=2.0, compute=0.1, bound=0.5,
        ring=4.0, limit="upi", others=(("new", 2.0), ("old", 2.5)),
    )  # fmt: skip


@given(low=st.integers(1, 10**6), more=st.integers(1, 10**6))
def test_bisection_of_lengths_ends(low: int, more: int) -> None:
    axis = Axis(path="seq-len", setting=None, first=float(low), last=float(low + more))
    a, b = axis.first, axis.last
    for _ in range(64):
        middle = axis.between(a, b, 0.02)
        if middle is None:
            return
        assert a < middle < b
        a = middle
    raise AssertionError("no end")
