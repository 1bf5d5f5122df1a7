"""Explanations: the critical path without gaps, what limits a transfer, what would help."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.console import Console

from charm_sched import Builder, Partition, Workload, load_topology
from charm_sched.plans.plan import Plan
from charm_sched.render.explain import details, path_facts, verdict
from charm_sched.search.planning import plan_all
from charm_sched.search.results import Comparison
from charm_sched.simulator import simulate
from charm_sched.timelines.critical_path import stretches
from charm_sched.timelines.link_usage import LinkUsage
from charm_sched.topology.change_apply import apply
from charm_sched.topology.changes import read_setting
from charm_sched.topology.graph import Topology
from charm_sched.what_if.explain import explain
from charm_sched.what_if.levers import better_machines, find_levers

GB = 1e9


def nodes(inside: str = "20 GB/s", net: str = "1 GB/s", latency: str = "0 s") -> Topology:
    """Two nodes of two devices; a link between the nodes; 1 TFLOP/s each."""
    profile = {
        "peak": {"bf16": "1 TFLOP/s"}, "efficiency": 1.0, "overhead": "0 s",
        "memory_bandwidth": "1 TB/s",
    }  # fmt: skip
    return Topology.from_document(
        {
            "schema": "charm-sched/topology",
            "version": 1,
            "name": "nodes",
            "tiers": ["network", "inside"],
            "domains": [
                {"name": "a", "devices": ["a/d0..1"]},
                {"name": "b", "devices": ["b/d0..1"]},
            ],
            "profiles": {"gpu": profile},
            "devices": [
                {"name": "a/d0..1", "profile": "gpu"},
                {"name": "b/d0..1", "profile": "gpu"},
            ],
            "switches": [{"name": "a/s", "kind": "switch"}, {"name": "b/s", "kind": "switch"}],
            "links": [
                {"from": "a/d0..1", "to": "a/s", "kind": "local"},
                {"from": "b/d0..1", "to": "b/s", "kind": "local"},
                {"from": "a/s", "to": "b/s", "kind": "net"},
            ],
            "kinds": {
                "local": {"bandwidth": inside, "latency": "0 s"},
                "net": {"bandwidth": net, "latency": latency},
            },
        }
    )


def across(machine: Topology) -> Plan:
    """Both ranks of node a send their 2 kB to their partner in b, which attends to them."""
    work = Workload(seq_len=2000, heads=1, head_dim=1, mask="full")
    b = Builder(work, Partition.contiguous(2000, 4), topology=machine,
                devices=machine.device_names)  # fmt: skip
    q, kv = b.shards("q"), b.shards("kv")
    for rank in (0, 1):
        b.transfer(src=rank, dst=rank + 2, items=kv[rank], level=0, stream="net", slot=0)
        b.attend(rank=rank + 2, queries=q[rank + 2], keys=kv[rank])
    return b.build()


KERNEL = 500 * 500 * 4 / 1e12


def test_a_wait_is_told_with_who_for_what_and_why() -> None:
    line = simulate(across(nodes()))
    wait, compute = stretches(line)
    assert (wait.place, wait.source, wait.what) == ("b", "a", "keys and values")
    assert (wait.tier, wait.waits, wait.links) == ("network", True, 1)
    assert (wait.start, wait.end) == pytest.approx((0, 4e-6))
    assert wait.fill == pytest.approx(1)
    assert wait.full == pytest.approx((0, 4e-6))
    assert wait.limit is not None
    assert (wait.limit.by, wait.limit.kind, wait.limit.name) == ("link", "net", "a/s -> b/s")
    assert (compute.kind, compute.place) == ("computation", "b/d0")
    assert compute.seconds == pytest.approx(KERNEL)


def test_latency_is_told() -> None:
    line = simulate(across(nodes(latency="100 us")))
    wait = stretches(line)[0]
    assert wait.limit is not None
    assert wait.limit.by == "latency"
    assert wait.latency == pytest.approx(100e-6)


def test_a_flow_cap_is_told() -> None:
    document = nodes().to_document()
    document["kinds"]["net"]["flow_cap"] = "0.25 GB/s"
    line = simulate(across(Topology.from_document(document)))
    wait = stretches(line)[0]
    assert wait.limit is not None
    assert (wait.limit.by, wait.limit.kind) == ("flow_cap", "net")
    assert wait.end == pytest.approx(8e-6)


def test_the_narrower_link_is_named() -> None:
    line = simulate(across(nodes(inside="1 GB/s", net="8 GB/s")))
    wait = stretches(line)[0]
    assert wait.limit is not None
    assert wait.limit.kind == "local"
    assert wait.links == 2  # both devices send over a link of their own
    assert wait.fill == pytest.approx(1)


def test_what_links_carry_is_exact_over_whole_transfers() -> None:
    machine = nodes()
    line = simulate(across(machine))
    usage = LinkUsage(line)
    (net,) = (i for i, c in enumerate(machine.capacities) if c.name == "a/s -> b/s")
    assert usage.fill([net], 0, 4e-6) == pytest.approx(1)
    assert usage.fill([net], 0, 8e-6) == pytest.approx(0.5)
    assert usage.full_period([net], 1e-6, 3e-6) == pytest.approx((0, 4e-6))
    local = [i for i, c in enumerate(machine.capacities) if c.name.startswith("a/d")]
    assert 0 < usage.fill(local, 0, 4e-6) < 0.1


@pytest.fixture(scope="module", params=["dual_node_nvlink", "dual_numa_pcie"])
def compared(request: pytest.FixtureRequest) -> Comparison:
    machine = load_topology(request.param)
    work = Workload(seq_len=4096, heads=8, kv_heads=4)
    return plan_all(
        machine, work, strategies=("ring", "charm", "ulysses", "pass_q"), ranks=8, thorough=False
    )


def test_a_critical_path_covers_the_makespan_without_gaps(compared: Comparison) -> None:
    for result in compared.results:
        found = stretches(result.timeline)
        assert found[0].start == 0
        assert found[-1].end == result.timeline.makespan
        assert all(a.end == b.start for a, b in pairwise(found))
        told = explain(result)
        total = pytest.approx(result.timeline.makespan)
        assert sum(cause.seconds for cause in told.causes) == total
        assert sum(told.shares.values()) == total
        for one in found:
            assert one.limit is None or 0 <= one.fill <= 1
            assert one.full[0] <= one.full[1] <= result.timeline.makespan * (1 + 1e-9)
            if one.limit is not None and one.limit.by == "link":
                assert one.limit.kind in {"port", *(k.kind for k in compared.topology.links)}


def test_computation_on_the_path_is_at_most_what_the_kernels_take(compared: Comparison) -> None:
    for result in compared.results:
        own = sum(s.seconds for s in stretches(result.timeline) if s.kind == "computation")
        assert own <= result.timeline.makespan
        if own == pytest.approx(result.timeline.makespan):
            assert result.timeline.exposed_comm == pytest.approx(0, abs=1e-3 * own)


def test_the_cut_in_words_is_that_of_the_bound(compared: Comparison) -> None:
    for result in compared.results:
        limit = result.class_bound or result.bound
        assert explain(result).cut == (limit.cut.words if limit.cut else "")


def test_the_report_names_the_longest_wait(compared: Comparison) -> None:
    result = next(r for r in compared.results if r.strategy == "ring")
    told = explain(result)
    facts = dict(path_facts(told))
    assert facts["critical path"].split("% ")[1]
    waits = [c for c in told.causes if c.stretches[0].kind == "transfer"]
    assert facts[""] == max(waits, key=lambda c: c.seconds).words


def test_levers_are_simulations_of_the_same_plan(compared: Comparison) -> None:
    results = [r for r in compared.results if r.strategy in ("ring", "ulysses")]
    for result, levers in zip(results, find_levers(results, compared.topology), strict=True):
        by_name = {lever.name: lever for lever in levers}
        assert list(levers) == sorted(levers, key=lambda v: (-v.gain, -v.at_most))
        kind = compared.topology.links[0].kind
        changed = apply(
            compared.topology,
            [
                read_setting(f"links[{kind}].bandwidth=x2"),
                read_setting(f"links[{kind}].flow_cap=x2"),
            ],
        )
        lever = by_name[f"{kind} bandwidth x2"]
        assert lever.makespan == pytest.approx(simulate(result.plan, changed.topology).makespan)
        assert lever.gain == pytest.approx(result.timeline.makespan / lever.makespan)
        for each in levers:
            assert each.makespan >= each.bound * (1 - 1e-9)
            assert each.makespan >= (each.class_bound or 0) * (1 - 1e-9)
            assert each.at_most >= each.gain * (1 - 1e-9)
        assert "kernel rates x2" in by_name
        assert (result.class_bound is None) == (lever.class_bound is None)


def test_faster_links_on_the_way_together_help_where_each_alone_does_not() -> None:
    """A card and the bus behind it have the same rate: the faster of the two changes nothing."""
    machine = load_topology("dual_node_nvlink")
    work = Workload(seq_len=8192, heads=8, kv_heads=8, mask="full")
    found = plan_all(
        machine, work, strategies=("ring",), directions=("forward",), devices=[
            "node0/gpu0", "node1/gpu0"], thorough=False,
    )  # fmt: skip
    (levers,) = find_levers(list(found.chosen.values()), machine)
    gains = {lever.name: lever.gain for lever in levers}
    assert gains["network bandwidth x2"] == pytest.approx(1)
    assert gains["pcie bandwidth x2"] == pytest.approx(1)
    assert gains["network and pcie bandwidth x2"] > 1.3
    text = verdict(levers)
    assert text.startswith("network and pcie bandwidth x2 would help this plan most: 1.")


def test_kernels_twice_as_fast_take_half_as_long_but_for_their_overhead() -> None:
    machine = load_topology("dual_node_nvlink")
    better = dict(better_machines(machine, machine.device_names))["kernel rates x2"]
    before, after = machine.devices[0].compute, better.devices[0].compute
    assert after.overhead == before.overhead
    assert after.peak["bf16"] == 2 * before.peak["bf16"]
    rates = [
        (a.flops_per_second, b.flops_per_second)
        for a, b in zip(after.rates, before.rates, strict=True)
    ]
    assert all(a == 2 * b for a, b in rates)


def test_long_explanations_are_shortened(compared: Comparison) -> None:
    result = next(r for r in compared.results if r.strategy == "charm")
    told = explain(result, ())
    different = [replace(c, seconds=told.makespan / 20, words=f"{n}") for n in range(20)
                 for c in told.causes[:1]]  # fmt: skip
    many = replace(told, makespan=told.makespan, causes=tuple(different), levers=None)
    file = io.StringIO()
    for part in details(many, 80):
        Console(file=file, width=80).print(part)
    assert "12 shorter ones, " in file.getvalue()
    assert file.getvalue().count("5%") == 8


def test_many_causes_are_put_together() -> None:
    """A plan with waits of everybody for everybody is told in a few sentences."""
    machine = load_topology("dual_numa_pcie")
    work = Workload(seq_len=8192, heads=32, kv_heads=8)
    found = plan_all(machine, work, strategies=("charm",), directions=("forward",), thorough=False)
    told = explain(found.chosen["forward"])
    assert sum(cause.seconds for cause in told.causes) == pytest.approx(told.makespan)
    assert len({(c.stretches[0].kind, c.stretches[0].waits) for c in told.causes}) <= len(
        told.causes
    )
    assert len(told.causes) <= 8
