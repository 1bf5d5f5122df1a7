"""Max-min fair rates: by hand, and against an exact filling that shares nothing with the solver."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charm_sched.simulator import max_min_rates, maxmin


def exact_rates(
    routes: list[list[int]], capacities: list[Fraction], caps: list[Fraction | None]
) -> list[Fraction]:
    """Raise all rates together; freeze a flow when something on its route is full or at its cap."""
    rates = [Fraction(0)] * len(routes)
    free = set(range(len(routes)))
    uses = [Counter(route) for route in routes]
    while free:
        steps = []
        for c, bandwidth in enumerate(capacities):
            load = sum(uses[f][c] * rates[f] for f in range(len(routes)))
            rising = sum(uses[f][c] for f in free)
            if rising:
                steps.append((bandwidth - load) / rising)
        steps += [cap - rates[f] for f in free if (cap := caps[f]) is not None]
        step = min(steps)
        for f in free:
            rates[f] += step
        full = {
            c
            for c, bandwidth in enumerate(capacities)
            if sum(uses[f][c] * rates[f] for f in range(len(routes))) == bandwidth
        }
        free = {f for f in free if not full & set(routes[f]) and rates[f] != caps[f]}
    return rates


@st.composite
def networks(
    draw: st.DrawFn,
) -> tuple[list[list[int]], list[Fraction], list[Fraction | None]]:
    number = draw(st.integers(1, 6))
    whole = st.integers(1, 12).map(Fraction)
    routes = draw(
        st.lists(st.lists(st.integers(0, number - 1), min_size=1, max_size=4), max_size=14)
    )
    capacities = draw(st.lists(whole, min_size=number, max_size=number))
    caps = draw(st.lists(st.none() | whole, min_size=len(routes), max_size=len(routes)))
    return routes, capacities, caps


def solve(
    routes: list[list[int]], capacities: list[Fraction], caps: list[Fraction | None]
) -> list[float]:
    limits = [float("inf") if cap is None else float(cap) for cap in caps]
    return [float(x) for x in max_min_rates(routes, [float(c) for c in capacities], limits)]


@given(networks())
@settings(deadline=None, max_examples=150)
def test_small_networks_equal_the_exact_filling(
    network: tuple[list[list[int]], list[Fraction], list[Fraction | None]],
) -> None:
    assert solve(*network) == pytest.approx([float(x) for x in exact_rates(*network)], rel=1e-12)


@pytest.mark.parametrize("few", [0, 24, 10**6])
@pytest.mark.parametrize("seed", range(6))
def test_large_networks_equal_the_exact_filling(
    seed: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maxmin, "FEW", few)
    r = np.random.default_rng(seed)
    number, flows = int(r.integers(5, 25)), int(r.integers(30, 70))
    routes = [r.integers(0, number, r.integers(1, 5)).tolist() for _ in range(flows)]
    # Small whole numbers make ties; the second half of the seeds has none.
    capacities = [
        Fraction(int(x)) if seed % 2 else Fraction(float(x))
        for x in (r.integers(1, 4, number) if seed % 2 else r.uniform(1, 9, number))
    ]
    caps = [Fraction(int(r.integers(1, 9)), 8) if r.random() < 0.3 else None for _ in range(flows)]
    expected = [float(x) for x in exact_rates(routes, capacities, caps)]
    assert solve(routes, capacities, caps) == pytest.approx(expected, rel=1e-12)


def test_equal_flows_share_a_capacity() -> None:
    assert max_min_rates([[0], [0], [0]], [6.0]).tolist() == [2.0, 2.0, 2.0]


def test_what_one_flow_cannot_use_goes_to_the_others() -> None:
    assert max_min_rates([[0], [0, 1], [1]], [10.0, 4.0]).tolist() == [8.0, 2.0, 2.0]


def test_a_cap_holds_for_one_flow_alone() -> None:
    assert max_min_rates([[0], [0]], [10.0], [3.0, float("inf")]).tolist() == [3.0, 7.0]


def test_a_capacity_crossed_twice_counts_twice() -> None:
    assert max_min_rates([[0, 0]], [10.0]).tolist() == [5.0]
    assert max_min_rates([[0, 0], [0]], [9.0]).tolist() == pytest.approx([3.0, 3.0])


def test_capacities_in_a_row_differ_by_how_often_they_are_crossed() -> None:
    assert max_min_rates([[0, 0, 1], [0, 1, 0]], [10.0, 6.0]).tolist() == [2.5, 2.5]


def test_a_flow_without_capacities_is_bound_by_its_cap_alone() -> None:
    assert max_min_rates([[], []], [], [3.0, float("inf")]).tolist() == [3.0, float("inf")]


def test_no_flows() -> None:
    assert max_min_rates([], [1.0]).tolist() == []
