"""Seconds of attends and merges, by hand."""

from __future__ import annotations

import pytest

from charm_sched.cost import op_seconds
from charm_sched.errors import TopologyError
from charm_sched.partition import Partition
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.topology.graph import Topology
from charm_sched.workload import Workload


@pytest.fixture
def machine() -> Topology:
    """Two devices: d0 does 1 TFLOP/s, half of that on causal kernels, d1 half its peak."""
    rates = [
        {"direction": way, "head_dim": 4, "causal": causal, "dtypes": ["bf16"], "rate": rate}
        for way, causal, rate in (
            ("forward", False, "1 TFLOP/s"),
            ("forward", True, "500 GFLOP/s"),
            ("backward", False, "250 GFLOP/s"),
        )
    ]
    common = {"efficiency": 0.5, "memory_bandwidth": "1 GB/s"}
    return Topology.from_document(
        {
            "schema": "charm-sched/topology",
            "version": 1,
            "name": "two",
            "profiles": {
                "table": {"peak": {"bf16": "2 TFLOP/s"}, "rates": rates, "overhead": "3 us"}
                | common,
                "roof": {"peak": {"bf16": "4 TFLOP/s"}, "overhead": "0 s"} | common,
            },
            "devices": [{"name": "d0", "profile": "table"}, {"name": "d1", "profile": "roof"}],
            "links": [
                {"from": "d0", "to": "d1", "kind": "wire", "bandwidth": "1 GB/s", "latency": "0 s"}
            ],
        }
    )


def builder(mask: str = "full", direction: str = "forward", **more: object) -> Builder:
    work = Workload(seq_len=200, batch=3, heads=2, head_dim=4, v_head_dim=6, mask=mask, **more)  # type: ignore[arg-type]
    return Builder(work, Partition.contiguous(200, 2), direction=direction, devices=("d0", "d1"))


def attends(b: Builder) -> Plan:
    """Each rank attends to its own keys; rank 1 to those of rank 0 too."""
    q, kv = b.shards("q"), b.shards("kv")
    b.transfer(src=0, dst=1, items=kv[0], level=0, stream="s", slot=0)
    b.attend(rank=b.ranks, queries=q, keys=kv)
    b.attend(rank=1, queries=q[1], keys=kv[0], key_slot=1 if b.direction == "backward" else -1)
    return b.build()


def test_a_full_kernel_takes_the_full_rate(machine: Topology) -> None:
    pairs, flops = 100 * 100 * 2, 2 * 3 * (4 + 6)
    found = op_seconds(attends(builder()), machine).seconds
    roof = pairs * flops / 2e12
    assert found == pytest.approx([0, pairs * flops / 1e12 + 3e-6, roof, roof])


def test_a_masked_kernel_takes_the_causal_rate_and_half_the_work(machine: Topology) -> None:
    pairs, flops = 100 * 101, 2 * 3 * (4 + 6)
    found = op_seconds(attends(builder("causal")), machine).seconds
    assert found[1] == pytest.approx(pairs * flops / 0.5e12 + 3e-6)


def test_a_causal_plan_runs_kernels_below_the_diagonal_at_the_full_rate(machine: Topology) -> None:
    b = builder("causal")
    b.devices = ("d1", "d0")
    plan = attends(b)
    pairs, flops = 100 * 100 * 2, 2 * 3 * (4 + 6)
    assert op_seconds(plan, machine).seconds[3] == pytest.approx(pairs * flops / 1e12 + 3e-6)


def test_the_backward_does_five_products(machine: Topology) -> None:
    pairs, flops = 100 * 100 * 2, 2 * 3 * (3 * 4 + 2 * 6)
    found = op_seconds(attends(builder(direction="backward")), machine).seconds
    assert found[1] == pytest.approx(pairs * flops / 0.25e12 + 3e-6)


def test_notes_name_what_is_assumed_once(machine: Topology) -> None:
    notes = op_seconds(attends(builder()), machine).notes
    assert len(notes) == 1
    assert notes[0].startswith("roof: no forward bf16 rate (full)")


def test_a_merge_reads_both_and_writes_one(machine: Topology) -> None:
    b = builder()
    q, kv = b.shards("q")[0], b.shards("kv")[0]
    b.attend(rank=0, queries=q, keys=kv)
    b.attend(rank=0, queries=q, keys=kv, part=1, query_slot=0)
    b.merge(rank=0, inputs=b.shards("o", part=1)[0], output=b.shards("o")[0])
    partial = 100 * 2 * 3 * (6 * 4 + 4)
    assert op_seconds(b.build(), machine).seconds[2] == pytest.approx(3 * partial / 1e9 + 3e-6)


def test_an_unknown_dtype_is_refused(machine: Topology) -> None:
    with pytest.raises(TopologyError, match="fp64"):
        op_seconds(attends(builder(dtype="fp64")), machine)
