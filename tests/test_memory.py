"""Memory over time: by hand, against what is reserved, and as the commands tell it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.commands import Call, caller

from charm_sched import Workload, load_topology, plan, plan_all, save_plan, simulate
from charm_sched.cli import plan_main, sim_main
from charm_sched.partition import Partition
from charm_sched.planners.ring import ring
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.proof.hazards import find_hazards
from charm_sched.proof.memory import home_bytes, home_bytes_by_kind, peak_bytes
from charm_sched.timelines.memory_use import fullest, memory_over_time, memory_use

WORK = Workload(seq_len=4096, heads=8, kv_heads=4)


def ring_of(ranks: int) -> Plan:
    machine = load_topology("single_node_nvlink")
    work = Workload(seq_len=1024 * ranks, heads=2, kv_heads=1, head_dim=64, mask="full")
    b = Builder(work, Partition.contiguous(work.seq_len, ranks), topology=machine,
                devices=machine.device_names[:ranks])  # fmt: skip
    ring(b)
    return b.build("ring")


def test_a_ring_by_hand() -> None:
    """Each rank holds its own shards, and one or two pieces of others."""
    made = ring_of(4)
    line = simulate(made)
    first = memory_use(line)[0]
    shard = 1024 * 64 * 2
    assert first.own == {"q": 2 * shard, "kv": 2 * shard, "o": home_bytes_by_kind(made)["o"][0]}
    assert first.slots == {"kv": 2 * 2 * shard}
    assert first.in_use == sum(first.own.values()) + 2 * 2 * shard == first.reserved
    moves = np.flatnonzero(line.plan.columns.op == 0)
    arrivals = moves[line.plan.columns.peer[moves] == 0]
    assert first.at == line.start[arrivals[1]]
    assert (first.device, first.capacity) == ("gpu0", 80e9)

    times, used = memory_over_time(line, 0)
    assert (times[0], used[0]) == (0.0, sum(first.own.values()) + 2 * shard)
    assert used[-1] == sum(first.own.values())
    assert used.max() == first.in_use
    assert (np.diff(times) > 0).all()


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_what_is_in_use_is_no_more_than_what_is_reserved(direction: str) -> None:
    machine = load_topology("dual_node_nvlink")
    found = plan_all(machine, WORK, strategies=("ring", "charm", "ulysses", "mesh"),
                     directions=(direction,), ranks=8)  # fmt: skip
    for result in found.results:
        ranks = memory_use(result.timeline)
        made = result.plan
        reserved = peak_bytes(made, find_hazards(made))
        assert [rank.reserved for rank in ranks] == reserved.tolist()
        assert max(rank.reserved for rank in ranks) == result.peak_bytes
        for rank in ranks:
            assert sum(rank.own.values()) == home_bytes(made)[rank.rank]
            assert sum(rank.own.values()) + sum(rank.slots.values()) == rank.in_use
            assert rank.in_use <= rank.reserved
            assert 0 <= rank.at <= result.timeline.makespan
        assert any(rank.in_use > sum(rank.own.values()) for rank in ranks)


def test_residents_are_there_from_start_to_end() -> None:
    machine = load_topology("dual_node_nvlink")
    both = plan(machine, WORK, strategy="charm", ranks=4, params={"save": True})
    assert len(both.forward.saved)
    kept = memory_over_time(simulate(both.forward, machine), 0)[1]
    begun = memory_over_time(simulate(both.backward, machine), 0)[1]
    assert kept[-2] > home_bytes(both.forward)[0]
    assert begun[0] > home_bytes(both.backward)[0]


def test_the_fullest_has_the_least_room() -> None:
    small, large = memory_use(simulate(ring_of(2)))
    assert fullest((small, replace(large, capacity=1e6))).rank == 1
    unknown = tuple(replace(rank, capacity=None) for rank in (small, large))
    assert fullest((replace(unknown[0], reserved=1), unknown[1])).rank == 1


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    return caller(capsys, tmp_path, monkeypatch, 200)


SMALL = ("dual_node_nvlink", "--seq-len", "4K", "--ranks", "4", "--strategy", "ring")


def test_the_commands_tell_it(call: Call, tmp_path: Path) -> None:
    found = call(plan_main, *SMALL, "--json")
    assert found.err == ""
    for way in ("forward", "backward"):
        told = found.document["memory"][way]
        assert len(told["ranks"]) == 4
        assert told["fullest"] in told["ranks"]
        row = next(r for r in found.document["results"]
                   if (r["direction"], r["strategy"]) == (way, "ring"))  # fmt: skip
        assert told["fullest"]["reserved"] == row["peak_bytes"]
        assert told["fullest"]["capacity"] == 80e9
    text = call(plan_main, *SMALL).flat
    assert "in use at most " in text
    assert "keys and values of others" in text


def test_what_does_not_fit_is_warned_of(call: Call, tmp_path: Path) -> None:
    shrunk = ("--set", "devices[*].memory=10 MB")
    found = call(plan_main, *SMALL, *shrunk, "--json")
    assert found.status == 0
    assert found.err.count("warning: ") == 2
    assert "the forward plan needs" in found.err
    assert "10 MB are there" in found.err
    made = plan(load_topology("dual_node_nvlink"), WORK, strategy="ring", ranks=4)
    stored = str(save_plan(made, tmp_path / "p.json"))
    assert "the backward plan needs" in call(sim_main, stored, *shrunk).err
    assert "warning" not in call(sim_main, stored).err
