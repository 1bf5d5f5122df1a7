"""Conditions that are turned on: short kernels, interference, those that a file names."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.commands import Call, caller

from charm_sched import Workload, plan, plan_all, save_plan
from charm_sched.cli import plan_main, sim_main
from charm_sched.cost import kernel_lengths, op_seconds
from charm_sched.errors import TopologyError
from charm_sched.masks.areas import attend_work
from charm_sched.partition import Partition
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.simulator import simulate
from charm_sched.topo import main as topo_main
from charm_sched.topology.change_apply import apply
from charm_sched.topology.changes import read_under
from charm_sched.topology.conditions import possible
from charm_sched.topology.file import SHIPPED
from charm_sched.topology.graph import Topology, load_topology, shipped_names

DOCUMENT: dict[str, Any] = {
    "schema": "charm-sched/topology",
    "version": 1,
    "name": "two",
    "profiles": {
        "card": {
            "peak": {"bf16": "4 TFLOP/s"},
            "efficiency": 0.5,
            "overhead": "0 s",
            "memory_bandwidth": "1 GB/s",
            "interference": 2,
            "source": {"interference": "a trial"},
            "rates": [
                {
                    "direction": "forward", "head_dim": 4, "causal": False, "dtypes": ["bf16"],
                    "rate": "2 TFLOP/s",
                    "by_length": {"100": "1 TFLOP/s", "400": "3 TFLOP/s"},
                }
            ],
        }
    },
    "kinds": {"wire": {"bandwidth": "1 GB/s", "latency": "0 s", "ramp": "1 kB"}},
    "devices": [{"name": "d0..1", "profile": "card"}],
    "links": [{"from": "d0", "to": "d1", "kind": "wire"}],
    "conditions": {
        "bent_cable": {"set": ["links[wire].bandwidth=x0.5", "links[wire].latency=1 us"],
                       "source": "seen once"},
    },
}  # fmt: skip


@pytest.fixture
def machine() -> Topology:
    return Topology.from_document(DOCUMENT)


def under(machine: Topology, *names: str) -> Topology:
    return apply(machine, [read_under(",".join(names))]).topology


def builder(machine: Topology, rows: int, heads: int = 2) -> Builder:
    work = Workload(seq_len=2 * rows, heads=heads, head_dim=4, mask="full")
    return Builder(work, Partition.contiguous(2 * rows, 2), topology=machine,
                   devices=machine.device_names)  # fmt: skip


def attends(machine: Topology, rows: int) -> Plan:
    """Each rank attends to its own keys."""
    b = builder(machine, rows)
    b.attend(rank=b.ranks, queries=b.shards("q"), keys=b.shards("kv"))
    return b.build()


# ---- short kernels


@pytest.mark.parametrize(("rows", "rate"), [(50, 1e12), (100, 1e12), (200, 2e12), (1000, 3e12)])
def test_a_kernel_has_the_rate_of_its_length(machine: Topology, rows: int, rate: float) -> None:
    made, short = attends(machine, rows), under(machine, "short_kernels")
    flops = rows * rows * 2 * 16
    assert op_seconds(made, machine).seconds[0] == pytest.approx(flops / 2e12)
    assert op_seconds(made, short).seconds[0] == pytest.approx(flops / rate)
    dense = attend_work(made)[1]
    assert kernel_lengths(made, dense).tolist() == pytest.approx([rows, rows])


def test_the_bound_rests_on_the_best_length(machine: Topology) -> None:
    work = Workload(seq_len=2000, heads=2, head_dim=4, mask="full")
    for topology, rate in ((machine, 2e12), (under(machine, "short_kernels"), 3e12)):
        found = plan_all(topology, work, strategies=("ring",), directions=("forward",)).results[0]
        assert found.bound.compute == pytest.approx(1000 * 2000 * 2 * 16 / rate)
        assert found.timeline.makespan >= found.bound.seconds * (1 - 1e-9)


def test_zigzag_shards_count_with_their_whole_square() -> None:
    work = Workload(seq_len=8192, heads=4, mask="causal")
    machine = load_topology("single_node_nvlink")
    made = plan(machine, work, strategy="ring", direction="forward", partition="zigzag")
    lengths = kernel_lengths(made, attend_work(made)[1])
    assert set(np.round(lengths[lengths > 0], 6).tolist()) == {1024.0}


# ---- interference


def busy(machine: Topology, *, size: int, rows: int = 1000) -> Plan:
    """Rank 1 gets a message while both ranks compute."""
    b = builder(machine, rows)
    b.transfer(src=0, dst=1, items=b.item("q", ((0, size // 16),), heads=(0, 2)), level=0,
               stream="s", slot=0)  # fmt: skip
    b.attend(rank=b.ranks, queries=b.shards("q"), keys=b.shards("kv"))
    return b.build()


def test_a_kernel_is_slower_while_bytes_cross_its_device(machine: Topology) -> None:
    """16 us of work; the message flows for 4 us, in which 2 us of the work are done."""
    made, disturbed = busy(machine, size=4000), under(machine, "interference")
    calm, found = simulate(made, machine), simulate(made, disturbed)
    kernel = float(op_seconds(made, machine).seconds[1])
    assert kernel == pytest.approx(16e-6)
    assert calm.end[1:] == pytest.approx([kernel, kernel])
    assert found.end[0] == pytest.approx(4e-6)
    assert found.end[1:] == pytest.approx([kernel + 2e-6, kernel + 2e-6])


def test_a_kernel_within_a_transfer_takes_the_whole_factor(machine: Topology) -> None:
    made, disturbed = busy(machine, size=6400, rows=400), under(machine, "interference")
    assert simulate(made, disturbed).end[1:] == pytest.approx(2 * simulate(made, machine).end[1:])


def test_kernels_of_two_streams_share_a_disturbed_device(machine: Topology) -> None:
    b = builder(machine, 1000)
    q, kv = b.shards("q")[0], b.shards("kv")[0]
    b.transfer(src=0, dst=1, items=b.item("q", ((0, 1000),), heads=(0, 2)), level=0, stream="s",
               slot=0)  # fmt: skip
    b.attend(rank=0, queries=q, keys=kv, stream="a")
    b.attend(rank=0, queries=q, keys=kv, stream="b", part=1, query_slot=0)
    b.merge(rank=0, inputs=b.shards("o", part=1)[0], output=b.shards("o")[0])
    made = b.build()
    calm, found = (simulate(made, m) for m in (machine, under(machine, "interference")))
    assert calm.end[1:3] == pytest.approx([32e-6, 32e-6])
    assert found.end[0] == pytest.approx(16e-6)
    assert found.end[1:3] == pytest.approx([40e-6, 40e-6])


def test_without_transfers_nothing_is_slower(machine: Topology) -> None:
    made, disturbed = attends(machine, 300), under(machine, "interference")
    assert simulate(made, disturbed).end.tolist() == simulate(made, machine).end.tolist()


@pytest.mark.parametrize("name", ["dual_node_nvlink", "single_node_nvlink"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_plans_take_up_to_the_factor_longer(name: str, direction: str) -> None:
    machine = load_topology(name)
    disturbed = under(machine, "interference")
    work = Workload(seq_len=16384, heads=8, kv_heads=4)
    for result in plan_all(disturbed, work, strategies=("ring", "charm", "ulysses"),
                           directions=(direction,), ranks=4).results:  # fmt: skip
        assert result.timeline.makespan >= result.bound.seconds * (1 - 1e-9)
        kernels = result.plan.columns.op != 0
        longer = (result.timeline.end - result.timeline.start)[kernels]
        alone = op_seconds(result.plan, machine).seconds[kernels]
        assert (longer >= alone * (1 - 1e-9)).all()
        assert (longer <= 1.83 * alone * (1 + 1e-9)).all()
        if result.strategy == "ring":
            assert (longer > 1.001 * alone).any()
    assert any("under interference" in text for text in disturbed.basic_assumptions)


# ---- named conditions, and turning them on


def test_a_condition_of_the_file_changes_what_it_names(machine: Topology) -> None:
    bent = under(machine, "bent_cable")
    assert [link.bandwidth for link in bent.links] == [0.5e9, 0.5e9]
    assert [link.latency for link in bent.links] == [1e-6, 1e-6]
    assert bent.conditions == ()
    (sentence,) = (text for text in bent.assumptions if "bent_cable" in text)
    assert "links[wire].bandwidth = x0.5" in sentence
    assert "(seen once)" in sentence
    again = Topology.from_document(bent.to_document())
    assert again.digest == bent.digest != machine.digest


def test_what_is_possible(machine: Topology) -> None:
    assert possible(machine) == ("ramp", "short_kernels", "interference", "bent_cable")
    everything = under(machine, "all")
    assert everything.under == ("ramp", "short_kernels", "interference")
    assert everything.links[0].bandwidth == 0.5e9
    assert possible(load_topology("dual_numa_pcie")) == ("ramp",)
    told = " ".join(everything.assumptions)
    for piece in ("half of the bandwidth at 1 kB", "rate of as many queries", "(a trial)"):
        assert piece in told


def test_off_by_default_and_without_influence_on_the_digest(machine: Topology) -> None:
    plain = copy.deepcopy(DOCUMENT)
    del plain["conditions"], plain["kinds"]["wire"]["ramp"]
    del plain["profiles"]["card"]["interference"], plain["profiles"]["card"]["source"]
    del plain["profiles"]["card"]["rates"][0]["by_length"]
    assert Topology.from_document(plain).digest == machine.digest
    assert machine.under == ()
    assert not any("under" in text for text in machine.assumptions)
    for name in shipped_names():
        assert "\nunder:" not in (SHIPPED / f"{name}.yaml").read_text()


def test_round_trip(machine: Topology) -> None:
    for topology in (machine, under(machine, "interference"), under(machine, "short_kernels")):
        document = topology.to_document()
        again = Topology.from_document(document)
        assert (again.digest, again.under) == (topology.digest, topology.under)
        assert (again.conditions, again.to_document()) == (topology.conditions, document)
    digests = {under(machine, n).digest for n in ("ramp", "short_kernels", "interference")}
    assert len(digests | {machine.digest}) == 4


@pytest.mark.parametrize(
    ("change", "piece"),
    [
        ({"under": ["rampp"]}, 'did you mean "ramp"?'),
        ({"under": "ramp"}, "a sequence of conditions"),
        ({"conditions": {"ramp": {"set": ["links[w].bandwidth=x2"]}}}, "a name of its own"),
        ({"conditions": {"x": {"set": []}}}, "at least one setting"),
        (
            {"conditions": {"a,b": {"set": ["links[w].bandwidth=x2"]}}},
            "a condition name of letters",
        ),
        ({"conditions": {"x": {"set": ["links[w].speed=x2"]}}}, "a setting such as"),
        ({"conditions": {"x": {"source": "y"}}}, 'the key "set"'),
    ],
)
def test_refused(change: dict[str, Any], piece: str) -> None:
    with pytest.raises(TopologyError) as caught:
        Topology.from_document(DOCUMENT | change)
    assert piece in str(caught.value)


def test_what_a_machine_knows_nothing_about_is_refused(machine: Topology) -> None:
    pcie = load_topology("dual_numa_pcie")
    with pytest.raises(TopologyError, match=r"condition interference: expected a profile with"):
        under(pcie, "interference")
    with pytest.raises(TopologyError, match=r'found "bent_cabel" .did you mean "bent_cable"'):
        under(machine, "bent_cabel")
    with pytest.raises(TopologyError, match="--under: expected names"):
        read_under("ramp,,interference")
    stray = replace(machine, conditions=(replace(machine.conditions[0], settings=(
        "links[rope].bandwidth=x2",)),))  # fmt: skip
    with pytest.raises(TopologyError, match="names no link"):
        under(stray, "bent_cable")


# ---- commands


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    return caller(capsys, tmp_path, monkeypatch, 100)


def test_charm_plan_under_a_condition(call: Call) -> None:
    argv = ("dual_node_nvlink", "--seq-len", "4K", "--ranks", "4", "--strategy", "ring",
            "--direction", "forward", "--json")  # fmt: skip
    plain = call(plan_main, *argv).document
    ramped = call(plan_main, *argv, "--under", "ramp").document
    assert ramped["results"][0]["makespan_s"] > plain["results"][0]["makespan_s"]
    assert ramped["what_if"]["changes"] == ["under ramp"]
    assert any(text.startswith("under ramp: network links") for text in ramped["assumptions"])
    assert not any("ramp" in text for text in plain["assumptions"])
    wrong = call(plan_main, *argv, "--under", "rampe")
    assert wrong.status == 1
    assert 'found "rampe" (did you mean "ramp"?)' in wrong.err


def test_charm_topo_names_them(call: Call) -> None:
    found = call(topo_main, "show", "dual_numa_pcie_gen5", "--json").document
    assert found["conditions"] == ["ramp", "posted_write_collapse", "uplink_at_gen2"]
    assert found["under"] == []
    shown = call(topo_main, "show", "dual_numa_pcie_gen5").flat
    assert "as --under takes them ramp, posted_write_collapse, uplink_at_gen2" in shown


def test_charm_sim_compares_with_and_without(call: Call, tmp_path: Path) -> None:
    made = plan(
        load_topology("dual_node_nvlink"), Workload(seq_len=4096), strategy="charm", ranks=4
    )
    stored = str(save_plan(made, tmp_path / "p.json"))
    found = call(sim_main, stored, "--under", "nic_on_cpu,interference", "--json").document
    before, after = found["what_if"]["cases"]
    assert after["total_s"] > before["total_s"]
    assert any("nccl#412" in text for text in found["assumptions"])


def test_a_file_may_turn_a_condition_on_and_a_plan_keeps_it(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump(DOCUMENT | {"under": ["interference"]}))
    work = ("--heads", "2", "--head-dim", "4", "--seq-len", "4K", "--strategy", "ring")
    call(plan_main, str(file), *work, "-o", "p.json")
    found = call(sim_main, "p.json", "--json").document
    assert any(text.startswith("under interference") for text in found["assumptions"])
