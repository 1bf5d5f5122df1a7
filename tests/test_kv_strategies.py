"""Strategies that move keys and values: exact, as many bytes and as long as their sources say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import brute, cases

from charm_sched.errors import StrategyError
from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.planners.cycles import are_disjoint_cycles, hamiltonian_cycles
from charm_sched.planners.double_ring import _kv_slots
from charm_sched.planners.strategies import build, residents
from charm_sched.plans.ops import Transfer
from charm_sched.plans.plan import ATTEND, Plan
from charm_sched.proof.verifier import verify
from charm_sched.search.planning import plan, plan_all
from charm_sched.simulator import simulate
from charm_sched.topology.graph import Topology, load_topology
from charm_sched.workload import Workload

NAMES = ("all_gather", "double_ring", "reverse_ring", "tasp")


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_every_plan_is_exactly_attention(name: str, data: st.DataObject) -> None:
    made = data.draw(cases.plans(most_ranks=7, most_tokens=14, names=(name,)))
    verify(made)
    brute.run(made)


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("name", NAMES)
def test_one_to_nine_ranks(name: str, ranks: int) -> None:
    ranks = cases.ranks_for(name, ranks)
    work = cases.small_workload(2 * ranks + 1, "causal")
    for partition in ("contiguous", "zigzag"):
        for made in cases.both_ways(name, ranks, work, partition):
            verify(made)
            brute.run(made)


def test_windows_of_one_and_one_window_are_the_ring() -> None:
    for rate in ("20 GFLOP/s", "200 GFLOP/s", "5 TFLOP/s"):
        for direction in ("forward", "backward"):
            expected = timed("ring", star(6, rate), direction)
            for window in (1, 6):
                assert timed("double_ring", star(6, rate), direction, window=window) == expected


def domains_of(nodes: int, size: int) -> list[list[int]]:
    return [list(range(first, first + size)) for first in range(0, nodes * size, size)]


def egress(made: Plan, size: int) -> tuple[float, float, float]:
    """Give what one rank sends, and what the busiest rank and node send out of their node.

    In bytes of one rank's KV.
    """
    out: Counter[int] = Counter()
    total = 0.0
    for row, op in enumerate(made.ops()):
        if isinstance(op, Transfer):
            total += made.op_bytes[row]
            if op.src // size != op.dst // size:
                out[op.src] += int(made.op_bytes[row])
    work = made.workload
    shard = work.seq_len // made.num_ranks * work.num_kv_heads * work.row_bytes("kv")
    nodes = Counter({rank // size: 0 for rank in out})
    for rank, count in out.items():
        nodes[rank // size] += count
    busiest = max(out.values(), default=0), max(nodes.values(), default=0)
    return total / made.num_ranks / shard, busiest[0] / shard, busiest[1] / shard


def sent(
    name: str, nodes: int, size: int, direction: str = "forward", **params: Any
) -> tuple[float, float, float]:
    """Give the egress of a plan whose gradients travel in the dtype of KV."""
    ranks = nodes * size
    work = cases.small_workload(ranks * (ranks - 1), grad_dtype="bf16", heads=4, kv_heads=2)
    if name == "double_ring":
        params |= {"domains": domains_of(nodes, size)}
    return egress(cases.made(name, ranks, work, direction=direction, params=params), size)


@pytest.mark.parametrize(
    ("name", "nodes", "size", "rank_out", "node_out"),
    [
        ("ring", 2, 8, 15, 15), ("ring", 2, 4, 7, 7), ("ring", 4, 8, 31, 31),
        ("reverse_ring", 2, 8, 15, 15), ("all_gather", 2, 8, 15, 15),
        ("double_ring", 2, 8, 1, 8), ("double_ring", 2, 4, 1, 4), ("double_ring", 4, 8, 3, 24),
        ("tasp", 2, 8, 8, 64), ("tasp", 2, 4, 4, 16), ("tasp", 4, 8, 24, 192),
    ],
)  # fmt: skip
def test_forward_bytes(name: str, nodes: int, size: int, rank_out: int, node_out: int) -> None:
    """In shards of KV, as counted for the published schedules."""
    found = sent(name, nodes, size)
    assert found == pytest.approx((nodes * size - 1, rank_out, node_out))


def test_a_direct_gather_crosses_for_every_receiver() -> None:
    assert sent("all_gather", 2, 8, algorithm="direct") == pytest.approx((15, 8, 64))


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("ring", {}, lambda p: 2 * p - 1),
        ("reverse_ring", {}, lambda p: 2 * p - 3),  # one hop of KV less than TransformerEngine
        ("all_gather", {"chunks": 2}, lambda p: 2 * p - 2),
        ("all_gather", {"chunks": 2, "algorithm": "direct"}, lambda p: 2 * p - 2),
        ("all_gather", {"save": True}, lambda p: p - 1),
        ("tasp", {}, lambda p: 2 * p - 1),
    ],
)
def test_backward_bytes(
    name: str, params: dict[str, Any], expected: Callable[[int], int], ranks: int
) -> None:
    total = sent(name, 1, ranks, "backward", **params)[0]
    assert total == pytest.approx(expected(ranks))


def test_the_backward_of_a_double_ring() -> None:
    """Inside 2 (8 - 1) hops of KV and 2 * 8 of gradients; across 1 and 2."""
    assert sent("double_ring", 2, 8, "backward") == pytest.approx((14 + 16 + 3, 3, 24))


def test_the_reverse_ring_starts_from_what_the_forward_kept() -> None:
    work = cases.small_workload(10)
    forward, backward = cases.both_ways("reverse_ring", 5, work)
    kept = {(rank, item.rows[0][0] // 2) for rank, item, _ in residents(forward)}
    assert kept == {(rank, (rank + 1) % 5) for rank in range(5)}
    shards = Partition.contiguous(10, 5)
    alone = build(PLANNERS["reverse_ring"], "alone", work, shards, direction="backward")
    verify(alone)
    brute.run(alone)
    moves = [[op for op in p.ops() if isinstance(op, Transfer)] for p in (backward, alone)]
    assert len(moves[1]) == len(moves[0]) + 5
    assert all(op.dst == (op.src - 1) % 5 for op in moves[0])
    assert {len(op.items) for op in moves[0] if op.level in (2, 3)} == {2}  # KV and gradient


def test_kv_saved_in_other_chunks_is_gathered_again() -> None:
    work = cases.small_workload(9, "causal", heads=4, kv_heads=4)
    shards = Partition.zigzag(9, 3)
    write = PLANNERS["all_gather"]
    forward = build(
        write, "all_gather", work, shards, direction="forward", params={"chunks": 2, "save": True}
    )
    for chunks, moved in ((4, 0), (2, 0), (1, 6)):
        backward = build(
            write, "all_gather", work, shards, direction="backward", params={"chunks": chunks},
            saved=residents(forward),
        )  # fmt: skip
        verify(backward)
        brute.run(backward)
        kinds = [op.items[0][0].kind for op in backward.ops() if isinstance(op, Transfer)]
        assert kinds.count("kv") == moved


def test_no_more_chunks_than_heads_and_uneven_ones() -> None:
    work = cases.small_workload(8, heads=6, kv_heads=3)
    for chunks, expected in ((1, {3}), (2, {1, 2}), (3, {1}), (9, {1})):
        made = cases.made("all_gather", 4, work, params={"chunks": chunks})
        heads = [op.items[0][0].heads for op in made.ops() if isinstance(op, Transfer)]
        assert {high - low for low, high in heads} == expected
        assert len(set(heads)) == min(chunks, 3)


@pytest.mark.parametrize("count", [*range(1, 4), 5, *range(7, 27), 31, 32, 48, 62, 64])
def test_rings_share_no_link(count: int) -> None:
    cycles = hamiltonian_cycles(count)
    assert cycles.shape == (count - 1, count)
    edges = set()
    for successors in cycles.tolist():
        rank, visited = 0, []
        for _ in range(count):
            visited.append(rank)
            edges.add((rank, successors[rank]))
            rank = successors[rank]
        assert sorted(visited) == list(range(count))
    assert len(edges) == count * (count - 1)


def test_wrong_rings_are_seen() -> None:
    right = hamiltonian_cycles(5)
    assert are_disjoint_cycles(right)
    assert not are_disjoint_cycles(right[[0, 1, 2, 2]])  # twice the same
    two_cycles = right.copy()
    two_cycles[0] = [1, 0, 3, 4, 2]
    assert not are_disjoint_cycles(two_cycles)


@pytest.mark.parametrize(
    ("name", "ranks", "params", "reason"),
    [
        ("tasp", 4, {}, "4 ranks have no 3 rings that share no link"),
        ("tasp", 6, {}, "6 ranks have no 5 rings that share no link"),
        ("tasp", 65, {}, "expected 64 ranks at most, found 65"),
        ("double_ring", 5, {"domains": [[0, 1], [2, 3, 4]]}, "found domains of 2, 3 ranks"),
        ("double_ring", 6, {"window": 4}, "expected windows of 1, 2, 3, 6 ranks, .* found 4"),
        ("double_ring", 6, {"window": -2}, "found -2"),
        ("all_gather", 2, {"chunks": 0}, "expected chunks of 1 or more, found 0"),
        ("all_gather", 2, {"algorithm": "tree"}, "expected algorithm ring or direct, found 'tree'"),
    ],
)
def test_what_cannot_be_served_is_refused(
    name: str, ranks: int, params: dict[str, Any], reason: str
) -> None:
    with pytest.raises(StrategyError, match=reason):
        cases.made(name, ranks, cases.small_workload(70), params=params)


def test_tasp_across_domains_needs_to_be_asked_for() -> None:
    topology = load_topology("dual_numa_pcie")
    work = Workload(seq_len=1024, heads=4, kv_heads=2, head_dim=16)
    compared = plan_all(topology, work, strategies=("ring", *NAMES), directions=("forward",))
    assert {r.strategy for r in compared.results} == {"ring", *NAMES} - {"tasp"}
    assert [r.strategy for r in compared.refused] == ["tasp"]
    assert "found 2 domains" in compared.refused[0].reason
    one = plan(
        topology, work, strategy="tasp", direction="forward", devices=topology.device_names[:3]
    )
    other = plan(topology, work, strategy="tasp", direction="forward", params={"flat": True})
    assert isinstance(one, Plan)
    assert isinstance(other, Plan)
    assert (one.num_ranks, other.num_ranks) == (3, 8)


def test_windows_are_the_outermost_domains() -> None:
    topology = load_topology("dual_node_nvlink")
    work = Workload(seq_len=1600, heads=4, kv_heads=2, head_dim=16)
    made = plan(topology, work, strategy="double_ring", direction="forward", partition="contiguous")
    assert isinstance(made, Plan)
    across = {
        (op.src // 8, op.dst // 8) for op in made.ops()
        if isinstance(op, Transfer) and op.stream == "across"
    }  # fmt: skip
    assert across == {(0, 1), (1, 0)}
    assert all(
        op.src // 8 == op.dst // 8
        for op in made.ops()
        if isinstance(op, Transfer) and op.stream == "inside"
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_what_crosses_waits_for_the_window_of_steps_before(size: int) -> None:
    slots = _kv_slots(5, size)
    for j in range(2, 5):
        assert slots[j][0] == slots[j - 2][-1]
        assert len({slots[j - 1][0], *slots[j - 1][1:], slots[j][0]}) == min(size, 3) + 1
    for used in slots:
        assert all(used[i] == used[i - 2] for i in range(3, size))


# Times in closed form, on machines where transfers do not disturb each other.


def machine(devices: int, links: list[tuple[str, str, str]], rate: str) -> Topology:
    """Devices d0, d1, ... of a computing rate, and links of (from, to, bandwidth)."""
    return Topology.from_document(
        {
            "schema": "charm-sched/topology", "version": 1, "name": "machine",
            "profiles": {
                "gpu": {
                    "peak": {"bf16": rate}, "efficiency": 1.0, "overhead": "0 s",
                    "memory_bandwidth": "1 TB/s",
                }
            },
            "devices": [{"name": f"d0..{devices - 1}", "profile": "gpu"}],
            "switches": [
                {"name": name, "kind": "switch"} for name in ("hub", "side")
                if any(name in ends for *ends, _ in links)
            ],
            "links": [
                {"kind": "wire", "latency": "0 s", "from": one, "to": other, "bandwidth": bandwidth}
                for one, other, bandwidth in links
            ],
        }
    )  # fmt: skip


def timed(
    name: str, topology: Topology, direction: str = "forward", **params: Any
) -> tuple[float, float, float, float]:
    """Give the makespan, the seconds of one attend, and the bytes of a shard's KV and gradient."""
    ranks = len(topology.devices)
    work = Workload(seq_len=64 * ranks, heads=4, kv_heads=4, head_dim=8, mask="full")
    shards = Partition.contiguous(work.seq_len, ranks)
    saved: Any = ()
    for way in ("forward", "backward"):
        made = build(
            PLANNERS[name], name, work, shards, direction=way, topology=topology,
            devices=topology.device_names, params=params, saved=saved,
        )  # fmt: skip
        verify(made)
        if way == direction:
            break
        saved = residents(made)
    line = simulate(made)
    assert line.costs is not None
    attends = line.costs.seconds[made.columns.op == ATTEND]
    assert np.allclose(attends, attends[0])
    sizes = [64 * 4 * work.row_bytes(kind) for kind in ("kv", "dkv")]
    return line.makespan, float(attends[0]), float(sizes[0]), float(sizes[1])


def star(ranks: int, rate: str) -> Topology:
    return machine(ranks, [(f"d0..{ranks - 1}", "hub", "1 GB/s")], rate)


RATES = ["20 GFLOP/s", "100 GFLOP/s", "200 GFLOP/s", "5 TFLOP/s"]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_time_of_the_reverse_ring(ranks: int, rate: str) -> None:
    forward, c, kv, _ = timed("reverse_ring", star(ranks, rate))
    assert forward == pytest.approx((ranks - 1) * max(c, kv / 1e9) + c, rel=1e-9)
    backward, c, kv, gradient = timed("reverse_ring", star(ranks, rate), "backward")
    hop, back = kv / 1e9, gradient / 1e9
    expected = c + max(c, back)
    if ranks > 2:
        expected = max(c, hop) + (ranks - 3) * max(c, hop + back) + 2 * max(c, back)
    assert backward == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_time_of_the_all_gather(algorithm: str, chunks: int, rate: str) -> None:
    found, c, kv, _ = timed("all_gather", star(5, rate), chunks=chunks, algorithm=algorithm)
    gather = 4 * kv / chunks / 1e9
    expected = gather + (chunks - 1) * max(gather, c) + c
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_time_of_tasp_on_a_full_mesh(ranks: int, rate: str) -> None:
    """Every link carries a chunk per step: ``P - 1`` times as fast as the ring on one of them."""
    mesh = machine(
        ranks, [(f"d{i}", f"d{j}", "1 GB/s") for i in range(ranks) for j in range(i)], rate
    )
    found, c, kv, _ = timed("tasp", mesh)
    chunk = -(-64 // (ranks - 1)) / 64 * kv / 1e9
    assert found == pytest.approx((ranks - 1) * max(chunk, c) + c, rel=1e-9)
    ring, *_ = timed("ring", mesh)
    assert ring == pytest.approx((ranks - 1) * max(kv / 1e9, c) + c, rel=1e-9)


@pytest.mark.parametrize(
    ("rate", "across"),
    [("20 GFLOP/s", "1 GB/s"), ("5 TFLOP/s", "0.1 GB/s"), ("5 TFLOP/s", "20 GB/s"),
     ("200 GFLOP/s", "0.1 GB/s")],
)  # fmt: skip
@pytest.mark.parametrize("windows", [1, 2, 3])
def test_time_of_the_double_ring(windows: int, rate: str, across: str) -> None:
    """Three ranks per window on a hub; counterparts of neighbouring windows have a link each."""
    size, ranks = 3, 3 * windows
    links = [(f"d{rank}", "hub", "1 GB/s") for rank in range(ranks)]
    links += [
        (f"d{rank}", f"d{(rank + size) % ranks}", across)
        for rank in range(ranks if windows > 2 else size)
        if windows > 1
    ]
    found, c, kv, _ = timed(
        "double_ring", machine(ranks, links, rate), domains=domains_of(windows, size)
    )
    inside, outside = kv / 1e9, kv / (float(across.split()[0]) * 1e9)
    if outside > size * max(inside, c):  # each crossing takes longer than a window of steps
        expected = (windows - 1) * outside + (size - 1) * max(inside, c) + c
    elif c > inside:
        expected = ranks * c
    else:
        expected = windows * (size - 1) * inside + c
    assert found == pytest.approx(expected, rel=1e-9)
