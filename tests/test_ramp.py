"""Bandwidth by message size: the part, the simulation, the planner's estimate, the bounds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machines import link, parse, section

from charm_sched import Workload, bound, plan_all
from charm_sched.errors import TopologyError
from charm_sched.partition import Partition
from charm_sched.planners.machine import machine_of
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.plans.symmetry import expand
from charm_sched.search.symmetric import plan_symmetric
from charm_sched.simulator import simulate
from charm_sched.timelines.link_usage import LinkUsage
from charm_sched.topology.change_apply import apply
from charm_sched.topology.changes import read_under
from charm_sched.topology.graph import Topology, load_topology
from charm_sched.topology.ramp import Ramp

HALF = Ramp(half=1e6)
TABLE = Ramp(table=((1e5, 0.1), (1e6, 0.6), (1e8, 0.9)))


def two(ramp: str, more: str = "") -> Topology:
    """Two devices on a wire of 1 GB/s with a ramp that is in force."""
    body = section(devices="d0..1", links=[link("d0", "d1", 1, "wire", f"ramp: {ramp}")])
    return parse(body + "under: [ramp]\n" + more)


def messages(machine: Topology, sizes: list[int]) -> Plan:
    """Give messages from d0 to d1, each on a stream of its own."""
    rows = max(sizes) // 2
    work = Workload(seq_len=2 * rows, heads=1, head_dim=1, mask="full")
    b = Builder(work, Partition.contiguous(2 * rows, 2), topology=machine,
                devices=machine.device_names)  # fmt: skip
    for number, size in enumerate(sizes):
        b.transfer(src=0, dst=1, items=b.item("q", ((0, size // 2),)), level=0,
                   stream=f"s{number}", slot=number)  # fmt: skip
    return b.build()


def test_parts_by_hand() -> None:
    assert HALF.part(1e6) == 0.5
    assert HALF.part(3e6) == 0.75
    assert [TABLE.part(n) for n in (5e4, 1e5, 1e6, 1e7, 1e8, 1e12)] == pytest.approx(
        [0.05, 0.1, 0.6, 0.75, 0.9, 0.9]
    )
    assert HALF.delay(1e9) == 1e-3
    assert TABLE.delay(1e9) == pytest.approx((1e6 / 0.6 - 1e6) / 1e9)


@given(size=st.floats(1, 1e12), more=st.floats(1, 1e3))
def test_larger_messages_get_no_less(size: float, more: float) -> None:
    for ramp in (HALF, TABLE):
        assert 0 < ramp.part(size) <= ramp.part(size * more) * (1 + 1e-12) <= 1 + 1e-12


@pytest.mark.parametrize("size", [2, 10**5, 10**6, 4 * 10**6])
def test_one_message_takes_as_long_as_with_so_many_bytes_more(size: int) -> None:
    machine = two("1 MB")
    found = simulate(messages(machine, [size]), machine).makespan
    assert found == pytest.approx(1e-6 + (size + 1e6) / 1e9, rel=1e-12)
    table = two("{100 kB: 0.1, 1 MB: 0.6, 100 MB: 0.9}")
    found = simulate(messages(table, [size]), table).makespan
    assert found == pytest.approx(1e-6 + size / (TABLE.part(size) * 1e9), rel=1e-12)


def test_what_a_small_message_does_not_get_is_there_for_others() -> None:
    machine = two("1 MB")
    alone, together = (simulate(messages(machine, n * [10**6]), machine).makespan for n in (1, 2))
    assert together == pytest.approx(alone, rel=1e-12)
    three = simulate(messages(machine, 3 * [10**6]), machine).makespan
    assert three == pytest.approx(1e-6 + 3e6 / 1e9, rel=1e-12)


def test_what_limits_a_small_message_is_told() -> None:
    machine = two("1 MB")
    small = LinkUsage(simulate(messages(machine, [10**6]), machine)).limit_of(0)
    assert (small.by, small.kind, small.name) == ("ramp", "wire", "d0 -> d1")
    off = replace(machine, under=())
    assert LinkUsage(simulate(messages(off, [10**6]), off)).limit_of(0).by == "link"


def test_off_unless_turned_on() -> None:
    machine = replace(two("1 MB"), under=())
    found = simulate(messages(machine, [10**6]), machine).makespan
    assert found == pytest.approx(1e-6 + 1e-3, rel=1e-12)


def test_the_planner_counts_it_as_latency() -> None:
    machine = two("1 MB")
    work = Workload(seq_len=1024, heads=1)
    for topology, expected in ((machine, 1e-6 + 1e-3), (replace(machine, under=()), 1e-6)):
        b = Builder(work, Partition.contiguous(1024, 2), topology=topology,
                    devices=topology.device_names)  # fmt: skip
        assert machine_of(b, None).paces[0].latency == pytest.approx(expected)


@pytest.mark.parametrize("name", ["dual_node_nvlink", "dual_numa_pcie_gen5"])
def test_no_plan_beats_its_bounds_and_each_is_slower(name: str) -> None:
    machine = load_topology(name)
    ramped = apply(machine, [read_under("ramp")]).topology
    assert ramped.under == ("ramp",)
    work = Workload(seq_len=4096, heads=8, kv_heads=4)
    found = plan_all(ramped, work, strategies=("ring", "charm"), ranks=4)
    for result in found.results:
        took = result.timeline.makespan
        limits = [bound(m, work, direction=result.direction, ranks=4) for m in (machine, ramped)]
        assert limits[0].seconds == limits[1].seconds <= took * (1 + 1e-9)
        assert took >= result.bound.seconds * (1 - 1e-9)
        calm = simulate(result.plan, machine).makespan
        # Across sockets a flow has a cap that is lower than what its ramp leaves.
        assert took > calm if "nvlink" in name else took >= calm
    assert any("under ramp: " in text for text in ramped.basic_assumptions)


def test_a_symmetric_plan_is_simulated_like_its_expansion() -> None:
    machine = apply(load_topology("single_node_nvlink"), [read_under("ramp")]).topology
    made = plan_symmetric(machine, Workload(seq_len=65536, mask="full"), machine.device_names,
                          strategies=("ring",), directions=("forward",))  # fmt: skip
    plan = made.results[0].plan
    assert plan.symmetry is not None
    assert simulate(plan, machine).makespan == pytest.approx(
        simulate(expand(plan), machine).makespan, rel=1e-12
    )


@pytest.mark.parametrize(
    ("ramp", "piece"),
    [
        ("1", "ramp"),
        ("0 B", "above zero"),
        ("{0 B: 0.5}", "sizes above zero"),
        ("{}", "for at least one size"),
        ("{1 MB: 0.5, 1000 kB: 0.1}", "each once"),
        ("{1 MB: 1.5}", "the part of the bandwidth: a number above 0 and at most 1"),
        ("{1 M: 0.5}", "a message size such as 64 KiB"),
    ],
)
def test_refused(ramp: str, piece: str) -> None:
    with pytest.raises(TopologyError, match=piece):
        two(ramp)


def test_written_back_and_part_of_the_digest_in_force_alone() -> None:
    for ramp in ("1 MB", "{128 KiB: 0.3, 1 MiB: 0.5, 64 KiB: 0.25}"):
        machine = two(ramp)
        again = Topology.from_document(machine.to_document())
        assert (again.digest, again.links) == (machine.digest, machine.links)
        assert again.under == ("ramp",)
        off = replace(machine, under=())
        assert off.digest != machine.digest
        text = json.dumps(machine.to_document(), sort_keys=True)
        assert Topology.from_document(json.loads(text)).links == machine.links
        assert off.digest == replace(two("3 MB"), under=()).digest
