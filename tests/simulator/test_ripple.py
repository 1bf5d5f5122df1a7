"""Flows kept one by one against all of them solved anew, while they begin and end in any order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charm_sched.simulator.maxmin import compile_routes, max_min_rates
from charm_sched.simulator.network import Network
from charm_sched.simulator.ripple import BOUND, Ripple

WIDTHS = st.sampled_from([1.0, 2.0, 3.0, 7.0, 7.0, 10.0, 1e6])


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[float], list[list[int]], list[float]]:
    """Draw widths, routes and caps; a route may cross a capacity twice."""
    widths = draw(st.lists(WIDTHS, min_size=1, max_size=7))
    capacity = st.integers(0, len(widths) - 1)
    routes = draw(st.lists(st.lists(capacity, min_size=1, max_size=4), min_size=1, max_size=9))
    caps = [draw(st.sampled_from([0.5, 2.0, float("inf")])) for _ in routes]
    return widths, routes, caps


@settings(max_examples=150, deadline=None)
@given(networks(), st.data())
def test_rates_are_those_of_the_whole(
    network: tuple[list[float], list[list[int]], list[float]], data: st.DataObject
) -> None:
    widths, routes, caps = network
    ripple = Ripple(compile_routes(routes, widths, caps))
    alive: dict[int, int] = {}
    now = 0.0
    for row in range(14):
        kind = data.draw(st.integers(0, len(routes) - 1))
        ripple.begin(row, kind, data.draw(st.floats(0.5, 20)))
        alive[row] = kind
        if data.draw(st.booleans()):
            continue
        ripple.settle(now)
        expected = max_min_rates(
            [routes[k] for k in alive.values()], widths, [caps[k] for k in alive.values()]
        )
        found = [ripple.flows[row].rate for row in alive]
        assert found == pytest.approx(expected.tolist(), rel=1e-11)
        if data.draw(st.booleans()):
            now = ripple.finish()
            for ended in ripple.take_ended(now):
                del alive[ended]


def test_a_change_stays_where_it_is() -> None:
    """Eight pairs of flows on links of their own: one that ends concerns just its neighbour."""
    ripple = Ripple(
        compile_routes([[i] for i in range(8)], [float(i + 1) for i in range(8)], [9] * 8)
    )
    for row in range(16):
        ripple.begin(row, row % 8, 1.0 + row / 16)
    assert ripple.settle(0.0) == 16
    (ended,) = ripple.take_ended(ripple.finish())
    assert ended == 7
    assert ripple.settle(2.0) == 1
    assert ripple.flows[15].rate == 8.0
    assert ripple.flows[15].neck == BOUND


@settings(max_examples=60, deadline=None)
@given(
    networks(), st.lists(st.tuples(st.integers(0, 8), st.floats(0.5, 9)), min_size=20, max_size=70)
)
def test_both_ways_of_keeping_flows_agree(
    network: tuple[list[float], list[list[int]], list[float]], flows: list[tuple[int, float]]
) -> None:
    """One network changes its way all the time, the other never does."""
    widths, routes, caps = network
    route = np.array([kind % len(routes) for kind, _ in flows])
    size = np.array([left for _, left in flows])
    ends = []
    for patience in (1, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("charm_sched.simulator.network.PATIENCE", patience)
            patch.setattr("charm_sched.simulator.network.MANY", 3)
            ends.append(all_ends(Network(compile_routes(routes, widths, caps), route, size)))
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)


def all_ends(network: Network) -> list[float]:
    """Let a third of the flows begin at once, and another for each that ends."""
    count = len(network._size)
    end = np.zeros(count)
    begun = count // 3
    network.begin(list(range(begun)), 0.0)
    network.update(0.0)
    while network.finish < np.inf:
        now = network.finish
        ended = network.take_ended(now)
        end[ended] = now
        upcoming = list(range(begun, min(begun + len(ended), count)))
        begun += len(upcoming)
        network.begin(upcoming, now)
        network.update(now)
    return [float(x) for x in end]
