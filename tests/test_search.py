from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from charm_sched.errors import StrategyError, TopologyError, WorkloadError
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.proof.verifier import verify
from charm_sched.search.planning import plan, plan_all
from charm_sched.search.results import fits
from charm_sched.topology.graph import Topology, load_topology
from charm_sched.workload import Workload


@pytest.fixture(scope="module")
def topology() -> Topology:
    return load_topology("dual_numa_pcie")


TWO = ("ring", "charm")
WORK = Workload(seq_len=4096, heads=8, kv_heads=2, head_dim=64, mask="causal")


def test_plan_gives_a_verified_schedule(topology: Topology) -> None:
    both = plan(topology, WORK)
    assert isinstance(both, Schedule)
    for made in both.plans:
        verify(made, WORK)
        assert made.devices == topology.device_names


def test_plan_gives_one_direction(topology: Topology) -> None:
    forward = plan(topology, WORK, strategy="charm", direction="forward", partition="zigzag")
    assert isinstance(forward, Plan)
    assert (forward.direction, forward.strategy, forward.partition.kind) == (
        "forward", "charm", "zigzag",
    )  # fmt: skip


def test_ranks_are_spread_over_the_domains(topology: Topology) -> None:
    four = plan(topology, WORK, direction="forward", ranks=4)
    assert isinstance(four, Plan)
    domains = topology.domains().children
    assert [len(set(domain.devices) & set(four.devices)) for domain in domains] == [2, 2]
    chosen = plan(topology, WORK, direction="forward", devices=topology.device_names[3:0:-1])
    assert isinstance(chosen, Plan)
    assert chosen.devices == topology.device_names[3:0:-1]


def test_the_fastest_variant_and_partition_are_chosen(topology: Topology) -> None:
    compared = plan_all(topology, WORK, strategies=TWO)
    assert {(r.strategy, r.direction) for r in compared.results} == {
        (s, d) for s in TWO for d in ("forward", "backward")
    }
    for direction, chosen in compared.chosen.items():
        rows = [r for r in compared.results if r.direction == direction]
        assert chosen.speedup_vs_ring is not None
        assert chosen.speedup_vs_ring >= 1
        assert chosen.timeline.makespan <= max(r.timeline.makespan for r in rows)
    assert len({chosen.partition for chosen in compared.chosen.values()}) == 1
    for row in compared.results:
        if row.strategy == "ring":
            assert row.speedup_vs_ring == 1
    assert set(compared.seconds) == {"plan", "verify", "bound", "simulate"}


def test_ring_is_the_baseline_even_where_it_is_not_asked_for(topology: Topology) -> None:
    compared = plan_all(topology, WORK, strategies=("charm",), partition="contiguous")
    ring = plan_all(topology, WORK, strategies=("ring",))
    assert {r.strategy for r in compared.results} == {"charm"}
    for row in compared.results:
        base = next(r for r in ring.results if r.direction == row.direction)
        assert row.speedup_vs_ring == pytest.approx(
            base.timeline.makespan / row.timeline.makespan, rel=1e-12
        )


def test_saved_kv_goes_from_forward_to_backward(topology: Topology) -> None:
    saved = plan(topology, WORK, strategy="charm", params={"save": True})
    assert isinstance(saved, Schedule)
    assert len(saved.forward.saved)
    assert len(saved.backward.saved) == len(saved.forward.saved)


def test_peak_memory_is_compared_with_the_device(topology: Topology) -> None:
    for row in plan_all(topology, WORK).results:
        assert row.fits is True
    huge = Workload(seq_len=2**22, heads=128, kv_heads=128, mask="full")
    refused = plan_all(topology, huge, strategies=("ring",), directions=("forward",))
    assert refused.results[0].fits is False


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"strategy": "rings"}, StrategyError, "charm or path/to/file.py:function, found 'rings'"),
        ({"direction": "sideways"}, WorkloadError, "expected forward, backward or both"),
        ({"partition": "stripes"}, WorkloadError, "expected contiguous, zigzag"),
        ({"ranks": 4, "devices": ("a",)}, WorkloadError, "expected one of the two, found both"),
        ({"ranks": 9}, TopologyError, "9"),
        ({"ranks": 0}, TopologyError, "0"),
        ({"devices": ()}, WorkloadError, "expected different names"),
        ({"devices": ("gpu99",)}, TopologyError, "gpu99"),
        (
            {"strategy": "charm", "params": {"slots": 3}},
            StrategyError,
            "parameter slots: expected one that a strategy takes",
        ),
    ],
)
def test_wrong_options_are_named(
    topology: Topology, options: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        plan(topology, WORK, **options)
    assert message in str(caught.value)


OWN = '''
def gather(b):
    """Everybody sends everything to everybody at once."""
    r, n, q, kv = b.ranks, b.num_ranks, b.shards("q"), b.shards("kv")
    for t in range(1, n):
        b.transfer(src=r, dst=(r + t) % n, items=kv, level=t, stream="all", slot=t)
    b.attend(rank=r, queries=q, keys=kv[(r[:, None] - r) % n])

def wrong(b):
    b.attend(rank=b.ranks, queries=b.shards("q"), keys=b.shards("kv"))

def broken(b):
    return b.nothing
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_a_strategy_from_outside_gets_everything(topology: Topology, own: Path) -> None:
    name = f"{own}:gather"
    compared = plan_all(topology, WORK, strategies=(name,), directions=("forward",))
    assert compared.results[0].strategy == name
    assert compared.results[0].speedup_vs_ring is not None


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("wrong", "never attended"),
        ("broken", "line 13: AttributeError: 'Builder' object has no attribute 'nothing'"),
        ("missing", "expected a function 'missing'"),
    ],
)
def test_faults_of_a_strategy_from_outside_are_named(
    topology: Topology, own: Path, function: str, message: str
) -> None:
    with pytest.raises(StrategyError) as caught:
        plan(topology, WORK, strategy=f"{own}:{function}", direction="forward")
    assert message in str(caught.value)


def test_files_that_are_no_strategy(topology: Topology, tmp_path: Path) -> None:
    with pytest.raises(StrategyError, match="expected a Python file, found none"):
        plan(topology, WORK, strategy=f"{tmp_path}/none.py:f")
    (tmp_path / "bad.py").write_text("x = 1\ny = = 2\n")
    with pytest.raises(StrategyError, match="line 2: invalid syntax"):
        plan(topology, WORK, strategy=f"{tmp_path}/bad.py:f")


def test_fixed_parameters_hold_and_the_rest_is_tried(topology: Topology) -> None:
    fixed = {"remerge": False, "levels": False}
    compared = plan_all(topology, WORK, strategies=TWO, params=fixed)
    for row in compared.results:
        if row.strategy == "charm":
            assert (row.params["remerge"], row.params["levels"]) == (False, False)
            assert row.params["pieces"] in (0, 3, 5)
        else:
            assert row.params == {}
    free = plan_all(topology, WORK, strategies=TWO)
    speeds = {
        (r.direction, c is free): r.speedup_vs_ring
        for c in (free, compared)
        for r in c.results
        if r.strategy == "ring"
    }
    assert set(speeds.values()) == {1.0}


@pytest.mark.parametrize("seq_len", [2**12, 2**16, 2**19])
def test_the_chosen_plans_are_the_fastest_rows(topology: Topology, seq_len: int) -> None:
    work = Workload(seq_len=seq_len, heads=32, kv_heads=8, mask="full")
    compared = plan_all(topology, work, strategies=TWO)
    for direction, chosen in compared.chosen.items():
        rows = [r for r in compared.results if r.direction == direction]
        assert chosen.timeline.makespan == min(r.timeline.makespan for r in rows)


def test_a_plan_that_fits_is_preferred_to_a_faster_one_that_does_not() -> None:
    # 16M tokens on 80 GB devices: gathering all KV does not fit, a ring's two slots do.
    work = Workload(seq_len=2**24, heads=32, kv_heads=8, mask="causal")
    topology = load_topology("dual_node_nvlink")
    compared = plan_all(topology, work, strategies=TWO, directions=("forward",))
    assert {r.strategy: r.fits for r in compared.results} == {"ring": True, "charm": False}
    assert compared.chosen["forward"].strategy == "ring"


def test_each_rank_is_held_against_its_own_device(topology: Topology) -> None:
    made = plan(topology, WORK, strategy="ring", direction="forward")
    assert isinstance(made, Plan)
    memories = [device.memory for device in topology.devices]
    assert fits([int(m or 0) for m in memories], made, topology) is True
    first = dataclasses.replace(topology.devices[0], memory=5e9)
    uneven = dataclasses.replace(topology, devices=(first, *topology.devices[1:]))
    assert fits([5 * 10**9, *[8 * 10**10] * 7], made, uneven) is True
    assert fits([6 * 10**9, *[10**9] * 7], made, uneven) is False


@pytest.mark.parametrize("name", ["single_node_nvlink", "dual_numa_pcie"])
@pytest.mark.parametrize("partition", ["auto", "zigzag"])
def test_auto_pairs_a_backward_with_the_forward_it_starts_from(name: str, partition: str) -> None:
    work = Workload(seq_len=65536, heads=32, kv_heads=8, mask="causal")
    both = plan(load_topology(name), work, params={"save": True}, partition=partition)
    assert isinstance(both, Schedule)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"pieces": "x"}, "parameter pieces: expected a whole number, found 'x'"),
        ({"pieces": True}, "parameter pieces: expected a whole number, found True"),
        ({"pieces": 1.5}, "parameter pieces: expected a whole number, found 1.5"),
        ({"levels": "no"}, "parameter levels: expected true or false, found 'no'"),
        ({"remerge": 1}, "parameter remerge: expected true or false, found 1"),
        ({"pieces": 0}, "expected pieces of 1 or more, found 0"),
    ],
)
def test_parameters_of_another_kind_are_refused(
    topology: Topology, params: dict[str, object], message: str
) -> None:
    for call in (plan, plan_all):
        with pytest.raises(StrategyError) as caught:
            call(topology, WORK, params=params)  # type: ignore[operator]
        assert message in str(caught.value)
