"""Plans by symmetry against the explicit ones: the same operations, verdicts, times and bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import machines

from charm_sched.errors import PlanError, StrategyError
from charm_sched.partition import Partition
from charm_sched.planners.charm import charm
from charm_sched.planners.charm_folded import charm_folded
from charm_sched.planners.ring import ring
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan, program
from charm_sched.plans.storage import load_plan, save_plan
from charm_sched.plans.symmetry import Symmetry, expand
from charm_sched.plans.symmetry_machine import SymmetryError, crossings, is_invariant
from charm_sched.proof.verifier import verify
from charm_sched.search import symmetric as search_symmetric
from charm_sched.search.planning import plan_all
from charm_sched.simulator import simulate
from charm_sched.topology.graph import Topology
from charm_sched.workload import Workload

Planner = Callable[..., None]
FLAT = (8, 8)  # nodes, devices
PODS = (2, 3, 8)  # pods, nodes, devices


def flat(nodes: int = 8) -> Topology:
    """Nodes of eight on one switch."""
    return machines.parse(
        "templates:\n"
        + machines.nvlink_node("node", 8)
        + machines.section(
            parts=[f"node0..{nodes - 1} node"],
            switches=["fabric fabric"],
            links=[machines.link(f"node0..{nodes - 1}/nic0..7", "fabric", 24, "network")],
        )
    )


def pods() -> Topology:
    """Two pods of three nodes; rails, with a spine for each port of a leaf."""
    return machines.parse(machines.cluster(2, 3, trunk=24, spines=3))


@pytest.fixture(autouse=True)
def _no_top_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let CHARM+ do with few ranks what it does with more than 128."""
    for module in ("messages", "charm_folded"):
        monkeypatch.setattr(f"charm_sched.planners.{module}.MOST_RANKS_TOPPED_UP", 16)


def made(
    planner: Planner, topology: Topology, symmetry: Symmetry | None, direction: str = "forward",
    tokens: int = 64,
) -> Plan:  # fmt: skip
    ranks = len(topology.devices)
    work = Workload(seq_len=tokens * ranks, heads=4, kv_heads=2, head_dim=64, mask="full")
    b = Builder(
        work, Partition.contiguous(work.seq_len, ranks), direction=direction, topology=topology,
        devices=topology.device_names, symmetry=symmetry,
    )  # fmt: skip
    planner(b)
    return b.build("test")


def one_part(b: Builder) -> None:
    charm(b, remerge=False)


def two_parts(b: Builder) -> None:
    charm(b, remerge=True)


def two_parts_folded(b: Builder) -> None:
    charm_folded(b, remerge=True)


CASES = {
    "ring, flat": (flat, ring, ring, Symmetry(shape=FLAT, axes=(0,)), "forward"),
    "ring, flat, backward": (flat, ring, ring, Symmetry(shape=FLAT, axes=(0,)), "backward"),
    "ring, pods": (pods, ring, ring, Symmetry(shape=(2, 24), axes=(0,)), "forward"),
    "charm, pods": (pods, charm_folded, one_part, Symmetry(shape=PODS, axes=(0, 2)), "forward"),
    "charm, two parts": (
        pods, two_parts_folded, two_parts, Symmetry(shape=PODS, axes=(0,)), "forward",
    ),
}  # fmt: skip


def contents(plan: Plan) -> list[tuple[object, ...]]:
    """List the operations, in an order of their own; operands by number, which both plans share."""
    columns, streams = plan.columns, plan.streams
    names = [plan.items[number] for number in range(len(plan.items))]
    heads = zip(
        *(getattr(columns, name).tolist() for name in ("op", "rank", "peer", "level", "part")),
        columns.stream.tolist(), columns.ptr[:-1].tolist(), columns.ptr[1:].tolist(), strict=True,
    )  # fmt: skip
    slots, args = columns.slot.tolist(), columns.arg.tolist()
    order = {str(item): number for number, item in enumerate(sorted(names, key=str))}
    number = [order[str(item)] for item in names]
    return sorted(
        (*head, streams[stream], [number[i] for i in args[low:high]], slots[low:high])
        for *head, stream, low, high in heads
    )


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_explicit_plan(case: str) -> None:
    build, few, all_of, symmetry, direction = CASES[case]
    topology = build()
    plan = made(few, topology, symmetry, direction)
    explicit = made(all_of, topology, None, direction)
    assert len(plan) * symmetry.order == len(explicit)
    assert contents(expand(plan)) == contents(explicit)
    assert plan.num_levels == explicit.num_levels
    proof, proof_of_all = verify(plan), verify(explicit)
    assert proof.peak_bytes.tolist() == proof_of_all.peak_bytes.tolist()
    line, line_of_all = simulate(plan), simulate(explicit)
    assert line.makespan == pytest.approx(line_of_all.makespan, rel=1e-12)
    assert line.total_bytes == line_of_all.total_bytes
    assert line.tier_bytes == line_of_all.tier_bytes
    assert line.link_bytes == line_of_all.link_bytes
    assert line.link_busy == pytest.approx(line_of_all.link_busy, rel=1e-9)
    assert line.compute_seconds == pytest.approx(line_of_all.compute_seconds)
    assert line.utilisation == pytest.approx(line_of_all.utilisation)


@pytest.mark.parametrize("rule", ["grouped", "free"])
def test_every_operation_has_the_times_of_all_its_translates(rule: str) -> None:
    symmetry = Symmetry(shape=FLAT, axes=(0,))
    plan = made(ring, flat(), symmetry)
    line, explicit = simulate(plan, rule=rule), simulate(expand(plan), rule=rule)
    for few, everyone in ((line.start, explicit.start), (line.end, explicit.end)):
        assert np.repeat(few, symmetry.order) == pytest.approx(everyone, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_translations(shape: list[int], data: st.DataObject) -> None:
    axes = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(shape)))))))
    symmetry = Symmetry(shape=tuple(shape), axes=axes)
    ranks = np.arange(symmetry.num_ranks)
    elements, first = symmetry.elements(), symmetry.representatives()
    assert len(elements) == symmetry.order
    assert len(elements) * len(first) == len(ranks)
    images = {tuple(symmetry.moved(ranks, np.full(len(ranks), by)).tolist()) for by in elements}
    assert len(images) == symmetry.order
    assert all(sorted(image) == ranks.tolist() for image in images)
    assert (symmetry.moved_back(ranks, ranks) == symmetry.representative(ranks)).all()
    assert (symmetry.moved(symmetry.representative(ranks), ranks) == ranks).all()


def changed(plan: Plan, column: str, row: int, value: int) -> Plan:
    values = getattr(plan.columns, column).copy()
    values[row] = value
    return replace(plan, columns=replace(plan.columns, **{column: values}))


def verdict(plan: Plan) -> bool:
    try:
        verify(plan)
    except PlanError:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_verdicts_agree_with_those_on_the_explicit_plan(data: st.DataObject) -> None:
    """Mutants of a ring of six: another peer, level, item or slot."""
    symmetry = Symmetry(shape=(3, 2), axes=(0,))
    work = Workload(seq_len=12, heads=2, head_dim=4, mask="full")
    b = Builder(work, Partition.contiguous(12, 6), symmetry=symmetry)
    ring(b)
    plan = b.build()
    column = data.draw(st.sampled_from(["peer", "level", "arg", "slot"]))
    length = len(getattr(plan.columns, column))
    row = data.draw(st.integers(0, length - 1))
    most = {"peer": 5, "level": 6, "arg": len(plan.items) - 1, "slot": 2}[column]
    mutant = changed(plan, column, row, data.draw(st.integers(0, most)))
    folded = verdict(mutant)
    try:
        explicit = verdict(expand(mutant))
    except PlanError:
        explicit = False
    assert folded == explicit


def test_translates_of_final_results_are_final() -> None:
    """Of each shard's queries a third is attended at home, one abroad, and one at both."""
    n, work = 4, Workload(seq_len=12, heads=2, head_dim=4, mask="full")

    def plan(symmetry: Symmetry | None) -> Plan:
        b = Builder(work, Partition.contiguous(12, n), symmetry=symmetry)
        r, before, kv = b.ranks, (b.ranks - 1) % n, b.shards("kv")
        q, o = b.pieces("q", 3), b.pieces("o", 3)
        b.transfer(src=before, dst=r, items=q[before, 1:], level=0, stream="there", slot=[[8, 9]])
        for t in range(1, n):
            keys = kv[(r - t) % n]
            b.transfer(src=(r - t) % n, dst=r, items=keys, level=t - 1, stream="keys", slot=t)
        every = kv[(r[:, None] - np.arange(n)) % n]
        b.attend(rank=r, queries=q[r, 0], keys=every)
        b.attend(rank=r, queries=q[r, 2], keys=kv[r])
        b.attend(rank=r, queries=q[before, 1], keys=every, query_slot=10)
        b.attend(rank=r, queries=q[before, 2], keys=np.delete(every, 1, axis=1), query_slot=11)
        b.transfer(src=r, dst=before, items=o[before, 1:], level=0, stream="back")
        return b.build()

    every, few = plan(None), plan(Symmetry(shape=(n,), axes=(0,)))
    for found in (every, few):
        verify(found)
    assert few.op_bytes.sum() * n == every.op_bytes.sum()
    assert few.finals.sum() * n == every.finals.sum() == n
    assert expand(few).finals.sum() == n


def test_what_is_attended_nowhere_is_found() -> None:
    symmetry = Symmetry(shape=FLAT, axes=(0,))

    def careless(b: Builder) -> None:
        r, q, kv = b.ranks, b.shards("q"), b.shards("kv")
        for rank in r.tolist():
            b.attend(rank=rank, queries=q[rank], keys=kv[rank])

    with pytest.raises(PlanError, match="are never attended"):
        verify(made(careless, flat(), symmetry))


def test_a_machine_without_the_symmetry_is_refused() -> None:
    topology = flat()
    slow = [
        replace(link, bandwidth=link.bandwidth / 2) if link.index == 3 else link
        for link in topology.links
    ]
    plan = made(ring, topology, Symmetry(shape=FLAT, axes=(0,)))
    with pytest.raises(SymmetryError, match="has no like at the translated place"):
        simulate(plan, replace(topology, links=tuple(slow)))
    assert not is_invariant(topology, topology.device_names, Symmetry(shape=(16, 4), axes=(0,)))
    with pytest.raises(SymmetryError, match="symmetry:"):
        simulate(replace(plan, symmetry=Symmetry(shape=(16, 4), axes=(0,))))


def test_devices_that_differ_are_refused() -> None:
    topology = flat()
    first, *others = topology.devices
    odd = replace(topology, devices=(replace(first, memory=1e9), *others))
    with pytest.raises(SymmetryError, match="are not alike"):
        simulate(made(ring, topology, Symmetry(shape=FLAT, axes=(0,))), odd)


def test_a_crossing_counts_for_all_that_cross_the_same_capacity() -> None:
    """Shifts of whole pods leave leaves and spines apart; what nodes of a pod share counts once."""
    topology = pods()
    symmetry = Symmetry(shape=PODS, axes=(0, 2))
    pairs = np.array([[0, 0], [8, 1]])
    times = crossings(topology, topology.device_names, symmetry, pairs)
    kinds = {kind: set() for kind in ("nvlink", "rail", "trunk", "port")}  # type: ignore[var-annotated]
    for capacity, count in zip(topology.capacities, times.tolist(), strict=True):
        kinds.setdefault(capacity.kind, set()).add(count)
    assert kinds["nvlink"] == kinds["rail"] == kinds["trunk"] == kinds["port"] == {1.0}


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_it_is_stored(suffix: str, tmp_path: Path) -> None:
    plan = made(ring, flat(), Symmetry(shape=FLAT, axes=(0,)))
    again = load_plan(save_plan(plan, tmp_path / f"plan{suffix}"))
    assert isinstance(again, Plan)
    assert again.symmetry == plan.symmetry
    assert again.digest == plan.digest != replace(plan, symmetry=None).digest
    assert simulate(again).makespan == simulate(plan).makespan


def test_a_program_needs_the_explicit_plan() -> None:
    plan = made(ring, flat(), Symmetry(shape=FLAT, axes=(0,)))
    with pytest.raises(PlanError, match="expand it"):
        program(plan, 0)
    assert len(program(expand(plan), 9)) == 64 + 2 * 63


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": "causal"}, "a causal mask looks different from each rank"),
        ({"seq_len": 64 * 48 + 1}, "shards differ in length"),
    ],
)
def test_charm_says_what_stands_against_it(change: dict[str, object], message: str) -> None:
    topology = pods()
    work = replace(Workload(seq_len=64 * 48, heads=2, head_dim=8, mask="full"), **change)  # type: ignore[arg-type]
    b = Builder(
        work, Partition.contiguous(work.seq_len, 48), topology=topology,
        devices=topology.device_names, symmetry=Symmetry(shape=PODS, axes=(0,)),
    )  # fmt: skip
    with pytest.raises(StrategyError, match=message):
        charm_folded(b)


class TestSearch:
    """From some number of ranks on, the search plans by symmetry by itself."""

    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("charm_sched.search.planning.MOST_EXPLICIT", 40)

    def test_it_finds_what_the_explicit_search_finds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        work = Workload(seq_len=64 * 48, heads=4, kv_heads=2, head_dim=64, mask="full")
        few = plan_all(pods(), work, directions=("forward",))
        assert {(row.strategy, row.plan.copies) for row in few.results} == {
            ("ring", 2), ("charm", 16),
        }  # fmt: skip
        assert "by symmetry" in few.why
        monkeypatch.setattr("charm_sched.search.planning.MOST_EXPLICIT", 10**6)
        params = {"remerge": False}
        everyone = plan_all(
            pods(), work, strategies=("ring", "charm"), directions=("forward",), params=params,
            thorough=False,
        )  # fmt: skip
        times = {row.strategy: row.timeline.makespan for row in everyone.results}
        for row in few.results:
            assert row.timeline.makespan == pytest.approx(times[row.strategy], rel=1e-3)

    def test_what_it_cannot_plan_is_refused(self) -> None:
        work = Workload(seq_len=8 * 48, heads=2, head_dim=8, mask="full")
        found = plan_all(pods(), work, strategies=("ring", "mesh"), directions=("forward",))
        assert [refusal.strategy for refusal in found.refused] == ["mesh"]
        with pytest.raises(StrategyError, match=r"the mask is causal.*--mask full"):
            plan_all(pods(), replace(work, mask="causal"))
        with pytest.raises(StrategyError, match="no multiple of the ranks"):
            plan_all(pods(), replace(work, seq_len=385))

    def test_a_machine_that_is_nowhere_alike_is_refused(self) -> None:
        topology = pods()
        odd = [
            replace(link, bandwidth=link.bandwidth * (1 + link.index / 1e4))
            for link in topology.links
        ]
        work = Workload(seq_len=8 * 48, heads=2, head_dim=8, mask="full")
        with pytest.raises(StrategyError, match="no shift of the ranks"):
            plan_all(replace(topology, links=tuple(odd)), work)

    def test_the_period_is_the_least(self) -> None:
        assert search_symmetric.find_period(flat(), flat().device_names) == 8
        assert search_symmetric.find_period(pods(), pods().device_names) == 24


def shared_nics() -> Topology:
    """Three nodes of four devices; two devices share a NIC, all NICs of a node one uplink."""
    node = machines.section(
        devices="gpu0..3",
        switches=["nvswitch nvswitch", "nic0..1 nic", "leaf leaf"],
        links=[
            machines.link("gpu0..3", "nvswitch", 160, "nvlink"),
            machines.link("gpu0..3", "nic0..1", 24, "pcie"),
            machines.link("nic0..1", "leaf", 30, "rail"),
        ],
    )
    return machines.parse(
        "templates:\n"
        + machines.template("node", node)
        + machines.section(
            parts=["node0..2 node"],
            switches=["fabric fabric"],
            links=[machines.link("node0..2/leaf", "fabric", 36, "trunk")],
        )
    )


def to_all(b: Builder) -> None:
    """Send every shard to all others at once: whoever is moved by the same gets from the same."""
    everyone = Symmetry(shape=(3, 2, 2), axes=(0, 1, 2))
    r, q, kv = b.ranks, b.shards("q"), b.shards("kv")
    b.attend(rank=r, queries=q[r], keys=kv[r])
    for slot, by in enumerate(everyone.elements()[1:].tolist()):
        dst = everyone.moved(r, np.full(len(r), by))
        b.transfer(src=r, dst=dst, items=kv[r], level=0, stream="all", slot=slot)
        near = everyone.moved_back(r, np.full(len(r), by))
        b.attend(rank=r, queries=q[r], keys=kv[near])


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_translates_that_share_a_link_share_its_bandwidth(axes: tuple[int, ...]) -> None:
    topology, symmetry = shared_nics(), Symmetry(shape=(3, 2, 2), axes=axes)
    times = crossings(topology, topology.device_names, symmetry, np.zeros((2, 0), np.int64))
    by_kind = {
        capacity.kind: count
        for capacity, count in zip(topology.capacities, times.tolist(), strict=True)
    }
    assert by_kind["rail"] == (2 if 2 in axes else 1)
    assert by_kind["trunk"] == (2 if 1 in axes else 1) * (2 if 2 in axes else 1)
    plan = made(to_all, topology, symmetry, tokens=4096)
    line, explicit = simulate(plan), simulate(made(to_all, topology, None, tokens=4096))
    verify(plan)
    assert line.makespan == pytest.approx(explicit.makespan, rel=1e-12)
    assert line.link_busy == pytest.approx(explicit.link_busy, rel=1e-9)
