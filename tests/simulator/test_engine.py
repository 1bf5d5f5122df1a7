"""Whole plans: closed forms, the two rules, kernels that share a device, ties, failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from charm_sched.errors import PlanError, SimulationError
from charm_sched.partition import Partition
from charm_sched.planners.ring import ring
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import TRANSFER, Plan
from charm_sched.simulator import bulk, engine, maxmin, network, simulate
from charm_sched.testbed.host_cost import HostCost
from charm_sched.topology.graph import Topology
from charm_sched.workload import Workload

Machine = Callable[..., Topology]
Moves = Callable[..., Plan]


def star(machine: Machine, devices: int, *, rate: str = "100 TFLOP/s", **values: str) -> Topology:
    return machine(devices, [(f"d0..{devices - 1}", "hub", values)], switches=["hub"], rate=rate)


def ring_plan(
    topology: Topology,
    *,
    direction: str = "forward",
    partition: str = "contiguous",
    mask: str = "full",
    tokens: int = 64,
) -> Plan:
    ranks = len(topology.devices)
    work = Workload(seq_len=tokens * ranks, heads=2, head_dim=8, mask=mask)
    b = Builder(
        work, Partition.named(partition, work.seq_len, ranks), direction=direction,
        topology=topology, devices=topology.device_names,
    )  # fmt: skip
    ring(b)
    return b.build("ring")


def kernel_and_hop(plan: Plan) -> tuple[float, float]:
    """Seconds of one attend, and bytes of the smallest transfer."""
    costs = simulate(plan).costs
    assert costs is not None
    return float(costs.seconds.max()), float(plan.op_bytes[plan.columns.op == TRANSFER].min())


@pytest.mark.parametrize("rate", ["100 GFLOP/s", "1 TFLOP/s", "50 TFLOP/s"])
@pytest.mark.parametrize("ranks", range(2, 10))
def test_ring_forward_closed_form(ranks: int, rate: str, machine: Machine) -> None:
    plan = ring_plan(star(machine, ranks, rate=rate, bandwidth="2 GB/s", latency="400 ns"))
    c, size = kernel_and_hop(plan)
    hop = size / 2e9 + 8e-7
    assert simulate(plan).makespan == pytest.approx((ranks - 1) * max(hop, c) + c, rel=1e-9)


@pytest.mark.parametrize("rate", ["300 GFLOP/s", "50 TFLOP/s"])
@pytest.mark.parametrize("ranks", range(2, 9))
def test_ring_backward_closed_form(ranks: int, rate: str, machine: Machine) -> None:
    """A flow gets 1 GB/s and a link carries two flows, so that KV and gradients never meet."""
    values = {"bandwidth": "4 GB/s", "flow_cap": "1 GB/s"}
    plan = ring_plan(star(machine, ranks, rate=rate, **values), direction="backward")
    c, size = kernel_and_hop(plan)
    hop = size / 1e9
    expected = c + (ranks - 1) * max(c, 2 * hop) + 2 * hop
    assert simulate(plan).makespan == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rule", ["grouped", "free"])
def test_a_ring_with_equal_costs_hides_everything(rule: str, machine: Machine) -> None:
    """Four devices in a circle, each link used both ways: one ring per direction."""
    topology = machine(4, [(f"d{i}", f"d{(i + 1) % 4}", {}) for i in range(4)])
    work = Workload(seq_len=256, heads=2, head_dim=8, mask="full")
    b = Builder(work, Partition.contiguous(256, 4), topology=topology,
                devices=topology.device_names)  # fmt: skip
    r, q = b.ranks, b.shards("q")
    halves = b.pieces("kv", 2)
    for t in range(4):
        right, left = halves[(r - t) % 4, 0], halves[(r + t) % 4, 1]
        b.attend(rank=r, queries=q, keys=np.stack([right, left], axis=1))
        if t < 3:
            slot = 2 * ((t + 1) % 2)
            b.transfer(src=r, dst=(r + 1) % 4, items=right, level=t, stream="right", slot=slot)
            b.transfer(src=r, dst=(r - 1) % 4, items=left, level=t, stream="left", slot=slot + 1)
    plan = b.build()
    c, size = kernel_and_hop(plan)
    wanted = {"wire": size / c, "port": 2 * size / c}
    equal = tuple(replace(x, bandwidth=wanted[x.kind]) for x in topology.capacities)
    line = simulate(plan, replace(topology, capacities=equal), rule=rule)
    assert line.makespan == pytest.approx(4 * c, rel=1e-9)
    assert line.exposed_comm == pytest.approx(0, abs=1e-9 * c)


def test_kernels_of_one_stream_run_one_after_the_other(machine: Machine) -> None:
    line = simulate(two_streams(machine(1, []), ["a", "a"]))
    assert line.start[1] == line.end[0]
    assert line.end.tolist() == pytest.approx([1e-6, 4e-6])


def test_streams_of_one_device_share_its_rate(machine: Machine) -> None:
    """Work for 1 and 3 us: the first ends after 2, the second has the device alone from there."""
    line = simulate(two_streams(machine(1, []), ["a", "b"]))
    assert line.start.tolist() == [0, 0]
    assert line.end.tolist() == pytest.approx([2e-6, 4e-6])
    assert line.compute_s == pytest.approx(4e-6)


def two_streams(topology: Topology, streams: list[str]) -> Plan:
    """Two attends of 1 and 3 us on one device of 1e14 FLOP/s."""
    work = Workload(seq_len=5000, heads=1, head_dim=5, mask="full")
    b = Builder(work, Partition.contiguous(5000, 1), topology=topology,
                devices=topology.device_names)  # fmt: skip
    for number, (stream, keys) in enumerate(zip(streams, [1000, 3000], strict=True)):
        b.attend(
            rank=0, queries=b.shards("q"), keys=b.item("kv", ((1000, 1000 + keys),)),
            stream=stream, part=number, query_slot=number - 1,
        )  # fmt: skip
    return b.build()


def late_input(topology: Topology, forward_level: int) -> Plan:
    """Rank 0 sends a long piece to rank 1, which passes it on to 2 and sends 3 a short own one."""
    work = Workload(seq_len=4000, heads=1, head_dim=1, mask="full")
    b = Builder(work, Partition.contiguous(4000, 4), topology=topology,
                devices=topology.device_names)  # fmt: skip
    long, short = b.item("q", ((0, 1000),)), b.item("q", ((1000, 1500),))
    b.transfer(src=0, dst=1, items=long, level=0, stream="in", slot=0)
    b.transfer(src=1, dst=2, items=long, level=0, stream="out", slot=0)
    b.transfer(src=1, dst=3, items=short, level=0, stream="out", slot=0)
    b.transfer(src=1, dst=0, items=short, level=forward_level, stream="out", slot=0)
    return b.build()


def test_grouped_holds_the_whole_batch_and_free_the_one_transfer(machine: Machine) -> None:
    plan = late_input(star(machine, 4), 1)
    grouped, free = simulate(plan, rule="grouped"), simulate(plan, rule="free")
    assert grouped.start * 1e6 == pytest.approx([0, 2, 2, 5])
    assert grouped.end * 1e6 == pytest.approx([2, 5, 4, 6])
    # The short one leaves at once; the next batch still waits for the whole batch before.
    assert free.start * 1e6 == pytest.approx([0, 2, 0, 4])
    assert free.end * 1e6 == pytest.approx([2, 4, 1, 5])


def test_a_slot_holds_its_end_and_not_the_other(machine: Machine) -> None:
    """The slot of rank 1 is read until the kernel there ends; rank 0 sends to rank 2 meanwhile."""
    topology = star(machine, 3, rate="1 GFLOP/s")
    work = Workload(seq_len=1500, heads=1, head_dim=1, mask="full")
    b = Builder(work, Partition.contiguous(1500, 3), topology=topology,
                devices=topology.device_names)  # fmt: skip
    first, second = b.item("kv", ((0, 250),)), b.item("kv", ((250, 500),))
    b.transfer(src=0, dst=1, items=first, level=0, stream="s", slot=0)
    b.attend(rank=1, queries=b.shards("q")[1], keys=first)
    b.transfer(src=0, dst=1, items=second, level=1, stream="s", slot=0)
    b.transfer(src=0, dst=2, items=second, level=1, stream="s", slot=0)
    line = simulate(b.build())
    assert line.start.tolist() == pytest.approx([0, 1e-6, 1e-6 + 5e-4, 1e-6])


def test_ops_that_wait_for_each_other_are_named(machine: Machine) -> None:
    """One batch holds both the arrival of a piece and its way on: fine when free, stuck grouped."""
    topology = star(machine, 3)
    work = Workload(seq_len=30, heads=1, head_dim=1, mask="full")
    b = Builder(work, Partition.contiguous(30, 3), topology=topology,
                devices=topology.device_names)  # fmt: skip
    for rank in range(2):
        b.transfer(src=rank, dst=rank + 1, items=b.shards("q")[0], level=0, stream="s", slot=0)
    plan = b.build()
    assert simulate(plan, rule="free").makespan == pytest.approx(4e-8)
    with pytest.raises(SimulationError, match=r"2 of 2 ops wait.* op 0 \(transfer 0 -> 1"):
        simulate(plan)


@pytest.mark.parametrize("host", [None, HostCost(message=3e-9, kernel=1e-9)])
@pytest.mark.parametrize("few", [0, 10**9])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_small_and_large_steps_agree(
    few: int, mask: str, host: HostCost | None, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contiguous causal shards give every kernel its own duration; two rings share the ports."""
    plan = ring_plan(
        star(machine, 7, rate="1 TFLOP/s", latency="10 ns"), direction="backward", mask=mask,
        tokens=33,
    )  # fmt: skip
    expected = simulate(plan, host=host)
    for module, name in ((engine, "FEW"), (bulk, "FEW"), (maxmin, "FEW"), (network, "MANY")):
        monkeypatch.setattr(module, name, few)
    line = simulate(plan, host=host)
    assert line.start == pytest.approx(expected.start, rel=1e-12)
    assert line.end == pytest.approx(expected.end, rel=1e-12)


def test_messages_that_begin_together_share_the_host(machine: Machine, moves: Moves) -> None:
    """Four of 1 ms of work each are all ready after 4 ms, and then take the time of their bytes."""
    plan = moves(star(machine, 5, bandwidth="1 MB/s"), [(i, 4 - i, 2000) for i in (0, 1, 3, 4)])
    line = simulate(plan, host=HostCost(message=1e-3, kernel=0.0))
    assert line.start.tolist() == [0.0] * 4
    assert line.end.tolist() == pytest.approx([6e-3] * 4, rel=1e-12)


def test_the_host_works_on_each_message_of_a_queue(machine: Machine, moves: Moves) -> None:
    plan = moves(star(machine, 2, bandwidth="1 MB/s"), [(0, 1, 4000)] * 6, stream="x")
    line = simulate(plan, host=HostCost(message=1e-3, kernel=0.0))
    assert line.makespan == pytest.approx(6 * (1e-3 + 4e-3), rel=1e-12)


def test_the_host_starts_kernels_too(machine: Machine) -> None:
    plan = ring_plan(star(machine, 2, rate="1 GFLOP/s"))
    (kernel, _), host = kernel_and_hop(plan), HostCost(message=0.0, kernel=1e-3)
    line = simulate(plan, host=host)
    assert line.makespan == pytest.approx(2 * (kernel + 2e-3), rel=1e-12)  # two ranks at once


def test_every_op_starts_when_the_last_it_waited_for_has_ended(machine: Machine) -> None:
    plan = ring_plan(star(machine, 5, rate="1 TFLOP/s"), direction="backward", mask="causal")
    line = simulate(plan)
    instants = np.append(line.end, 0.0)
    assert np.isin(line.start, instants).all()
    assert (line.end >= line.start).all()


def test_two_runs_are_equal_to_the_last_bit(machine: Machine) -> None:
    plan = ring_plan(star(machine, 6, rate="1 TFLOP/s"), direction="backward", mask="causal")
    one, two = simulate(plan), simulate(plan)
    assert one.start.tobytes() == two.start.tobytes()
    assert one.end.tobytes() == two.end.tobytes()


def test_an_empty_plan_takes_no_time(machine: Machine, moves: Moves) -> None:
    assert simulate(moves(star(machine, 2), [])).makespan == 0


def test_another_topology_with_the_same_devices(machine: Machine, moves: Moves) -> None:
    plan = moves(star(machine, 2), [(0, 1, 1000)])
    fast = star(machine, 2, bandwidth="2 GB/s")
    assert simulate(plan).makespan == pytest.approx(1e-6)
    assert simulate(plan, fast).makespan == pytest.approx(5e-7)
    assert simulate(plan, fast).topology is fast


def test_refusals_say_what_is_missing(machine: Machine, moves: Moves) -> None:
    plan = moves(star(machine, 3), [(0, 1, 1000)])
    with pytest.raises(SimulationError, match="expected a topology"):
        simulate(replace(plan, topology=None))
    with pytest.raises(SimulationError, match="it lacks d2"):
        simulate(plan, star(machine, 2))
    with pytest.raises(SimulationError, match="a device for each of 3 ranks, found 0"):
        simulate(replace(plan, devices=()))
    with pytest.raises(PlanError, match="expected grouped or free, found 'greedy'"):
        simulate(plan, rule="greedy")
