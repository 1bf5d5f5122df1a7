"""Transfers on small machines: closed forms, golden values of another simulator, a real machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from charm_sched.errors import SimulationError
from charm_sched.plans.plan import Plan
from charm_sched.simulator import simulate
from charm_sched.topology.graph import Topology

Machine = Callable[..., Topology]
Moves = Callable[..., Plan]

GB = 10**9


def ends(plan: Plan) -> list[float]:
    return [float(x) for x in simulate(plan).end]


def near(*values: float) -> object:
    return pytest.approx(list(values), rel=1e-12)


def star(machine: Machine, devices: int, **values: object) -> Topology:
    return machine(devices, [(f"d0..{devices - 1}", "hub", values)], switches=["hub"])


def test_each_direction_has_its_own_rate(machine: Machine, moves: Moves) -> None:
    """As where writes to a device are slower than reads from it."""
    topology = machine(2, [("d0", "d1", {"bandwidth": "4 GB/s", "reverse": "1 GB/s"})])
    assert ends(moves(topology, [(0, 1, 4_000), (1, 0, 4_000)])) == near(1e-6, 4e-6)


def test_a_path_takes_its_latency_once_and_its_slowest_link(machine: Machine, moves: Moves) -> None:
    links = [
        ("d0", "a", {"latency": "1 us", "bandwidth": "4 GB/s"}),
        ("a", "b", {"latency": "2 us", "bandwidth": "2 GB/s"}),
        ("b", "d1", {"latency": "3 us", "bandwidth": "8 GB/s"}),
    ]
    topology = machine(2, links, switches=["a", "b"])
    assert ends(moves(topology, [(0, 1, 1000)])) == near(6e-6 + 1000 / 2e9)


def test_a_transfer_of_nothing_takes_the_latency(machine: Machine, moves: Moves) -> None:
    topology = machine(2, [("d0", "d1", {"latency": "3 us"})])
    plan = moves(topology, [(0, 1, 2)])
    plan.__dict__["op_bytes"] = np.zeros(1, np.int64)
    assert ends(plan) == near(3e-6)


def test_a_queue_of_transfers_adds_up(machine: Machine, moves: Moves) -> None:
    topology = machine(2, [("d0", "d1", {"latency": "1 us"})])
    plan = moves(topology, [(0, 1, 1000), (0, 1, 3000)], stream="s")
    assert ends(plan) == near(2e-6, 6e-6)
    assert simulate(plan).start.tolist() == near(0, 2e-6)


def test_senders_to_one_share_what_it_takes_in(machine: Machine, moves: Moves) -> None:
    plan = moves(star(machine, 5), [(i, 0, 1000) for i in range(1, 5)])
    assert ends(plan) == near(*[4e-6] * 4)


def test_the_rest_speeds_up_when_one_ends(machine: Machine, moves: Moves) -> None:
    topology = machine(2, [("d0", "d1", {})])
    assert ends(moves(topology, [(0, 1, 1000), (0, 1, 3000)])) == near(2e-6, 4e-6)


def test_a_latecomer_slows_the_others_down(machine: Machine, moves: Moves) -> None:
    values = {"latency": "1 us"}
    topology = machine(3, [("d0", "hub", {}), ("d1", "hub", values), ("d2", "hub", {})],
                       switches=["hub"])  # fmt: skip
    assert ends(moves(topology, [(0, 2, 2000), (1, 2, 2000)])) == near(3e-6, 4e-6)


@pytest.mark.parametrize("late", [20, 32, 60, 88, 116, 156])
def test_an_end_is_not_lost_where_an_end_foretold_before_falls_on_it(
    late: int, machine: Machine, moves: Moves
) -> None:
    """A flow alone would end at 3 us; another joins it and ends one rounding error before that."""
    values = {"latency": f"{late} ns"}
    topology = machine(3, [("d0", "hub", {}), ("d1", "hub", values), ("d2", "hub", {})],
                       switches=["hub"])  # fmt: skip
    joining = (3000 - late) // 2
    plan = moves(topology, [(0, 2, 3000), (1, 2, joining)])
    assert ends(plan) == near((3000 + joining) * 1e-9, 3e-6)


def test_opposite_directions_do_not_meet(machine: Machine, moves: Moves) -> None:
    topology = machine(2, [("d0", "d1", {})])
    assert ends(moves(topology, [(0, 1, 1000), (1, 0, 1000)])) == near(1e-6, 1e-6)


def test_opposite_directions_of_a_shared_link_halve(machine: Machine, moves: Moves) -> None:
    topology = machine(2, [("d0", "d1", {"shared": True})])
    assert ends(moves(topology, [(0, 1, 1000), (1, 0, 1000)])) == near(2e-6, 2e-6)


def test_one_flow_gets_no_more_than_its_cap(machine: Machine, moves: Moves) -> None:
    links: list[tuple[str, str, dict[str, str]]] = [("d0..2", "a", {}), ("d3..5", "b", {})]
    links.append(("a", "b", {"bandwidth": "900 MB/s", "flow_cap": "400 MB/s"}))
    topology = machine(6, links, switches=["a", "b"])
    assert ends(moves(topology, [(0, 3, 1000)])) == near(2.5e-6)
    assert ends(moves(topology, [(0, 3, 1000), (1, 4, 1000)])) == near(*[2.5e-6] * 2)
    assert ends(moves(topology, [(i, i + 3, 1000) for i in range(3)])) == near(*[1e-5 / 3] * 3)


def test_a_port_bounds_what_its_links_could_carry(machine: Machine, moves: Moves) -> None:
    topology = machine(3, [("d0", "d1", {}), ("d0", "d2", {})])
    ports = [replace(c, bandwidth=1e9) if c.kind == "port" else c for c in topology.capacities]
    plan = moves(replace(topology, capacities=tuple(ports)), [(0, 1, 1000), (0, 2, 1000)])
    assert ends(plan) == near(2e-6, 2e-6)


def test_a_link_without_bandwidth_names_the_transfer(machine: Machine, moves: Moves) -> None:
    topology = machine(2, [("d0", "d1", {})])
    dead = tuple(replace(c, bandwidth=0.0) for c in topology.capacities)
    plan = moves(replace(topology, capacities=dead), [(0, 1, 1000)])
    with pytest.raises(SimulationError, match=r"op 0 \(transfer 0 -> 1: .*\): gets no bandwidth"):
        simulate(plan)


# Golden values: SimGrid 3.32 and an independent progressive filling, on a star of 50 GiB/s links of
# 500 ns, full duplex, every host to every other at once.


@pytest.mark.parametrize(("hosts", "microseconds"), [(16, 293.97), (64, 1231.47)])
def test_equal_all_to_all(hosts: int, microseconds: float, machine: Machine, moves: Moves) -> None:
    topology = star(machine, hosts, bandwidth="50 GiB/s", latency="500 ns")
    pairs = [(i, j, 2**20) for i in range(hosts) for j in range(hosts) if i != j]
    assert simulate(moves(topology, pairs)).makespan * 1e6 == pytest.approx(microseconds, abs=0.005)


@pytest.mark.parametrize(("hosts", "microseconds"), [(16, 328.806752), (32, 713.645501)])
def test_unequal_all_to_all(
    hosts: int, microseconds: float, machine: Machine, moves: Moves
) -> None:
    # Twice the bytes on twice the bandwidth, because the bytes of a plan here come in twos.
    topology = star(machine, hosts, bandwidth="100 GiB/s", latency="500 ns")
    sizes = golden_sizes()
    pairs = [(i, j, 2 * next(sizes)) for i in range(hosts) for j in range(hosts) if i != j]
    assert simulate(moves(topology, pairs)).makespan * 1e6 == pytest.approx(microseconds, rel=1e-6)


def golden_sizes() -> Iterator[int]:
    state = 12345
    while True:
        state = (1664525 * state + 1013904223) % 2**32
        yield int(2**20 * (0.5 + (state >> 8) / 2**24))


@pytest.mark.parametrize(
    ("shift", "measured"),
    [(1, 50.59), (2, 37.89), (3, 25.64), (4, 12.62), (5, 25.70), (6, 37.96), (7, 50.35)],
)
def test_shifts_over_two_switches_run_as_measured(
    shift: int, measured: float, machine: Machine, moves: Moves
) -> None:
    """Mean GB/s of eight GPUs on two PCIe Gen5 switches (WRX90) with 50.6 GB/s in between."""
    values = {"bandwidth": "50.6 GB/s"}
    links = [("d0..3", "a", values), ("d4..7", "b", values), ("a", "b", values)]
    topology = machine(8, links, switches=["a", "b"])
    line = simulate(moves(topology, [(i, (i + shift) % 8, 10**6) for i in range(8)]))
    mean = float((1e6 / line.end).mean())
    assert mean / GB == pytest.approx(measured, rel=0.02)


@given(data=st.data())
@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_flows_end_as_in_a_slow_simulation(
    machine: Machine, moves: Moves, data: st.DataObject
) -> None:
    """Two switches, links of different bandwidths, all flows from 0; one fair share at a time."""
    speeds = data.draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=7, max_size=7))
    pairs = st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from([2, 600, 1000, 1414]))
    flows = data.draw(st.lists(pairs.filter(lambda p: p[0] != p[1]), min_size=1, max_size=12))
    links = [(f"d{i}", "ab"[i // 3], {"bandwidth": f"{speeds[i]} GB/s"}) for i in range(6)]
    links.append(("a", "b", {"bandwidth": f"{speeds[6]} GB/s"}))
    plan = moves(machine(6, links, switches=["a", "b"]), flows)
    routes = [
        [("out", a), ("in", b), *([("cross", a // 3)] if a // 3 != b // 3 else [])]
        for a, b, _ in flows
    ]
    width = {(way, i): speeds[i] * 1e9 for way in ("out", "in") for i in range(6)}
    width |= {("cross", side): speeds[6] * 1e9 for side in range(2)}
    assert ends(plan) == near(*slow_ends(routes, width, [size for _, _, size in flows]))


def slow_ends(
    routes: list[list[tuple[str, int]]], width: dict[tuple[str, int], float], sizes: list[int]
) -> list[float]:
    """Advance from one end to the next, filling link by link."""
    left, now, found = {f: float(size) for f, size in enumerate(sizes)}, 0.0, [0.0] * len(sizes)
    while left:
        rates: dict[int, float] = {}
        while len(rates) < len(left):
            shares = {}
            for link, bandwidth in width.items():
                wants = [f for f in left if f not in rates and link in routes[f]]
                if wants:
                    spent = sum(rate for f, rate in rates.items() if link in routes[f])
                    shares[link] = (bandwidth - spent) / len(wants)
            link = min(shares, key=lambda at: shares[at])
            rates |= {f: shares[link] for f in left if f not in rates and link in routes[f]}
        step = min(left[f] / rates[f] for f in left)
        now += step
        left = {f: size - rates[f] * step for f, size in left.items()}
        for f in [f for f, size in left.items() if size <= 1e-9]:
            found[f] = now
            del left[f]
    return found
