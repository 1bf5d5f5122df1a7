"""Strategies that move heads or queries: ulysses, usp, mesh and pass_q."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import brute, cases

from charm_sched.errors import StrategyError
from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.planners.domain_order import Tile, order_kernels
from charm_sched.planners.domain_shape import shapes
from charm_sched.planners.head_chunks import chunk_heads
from charm_sched.planners.hierarchy import Tree
from charm_sched.planners.machine import machine_of
from charm_sched.planners.strategies import build, check_params
from charm_sched.planners.tiles import choose_tile, order_tile
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import DKV, DQ, KINDS
from charm_sched.plans.ops import Attend, Transfer
from charm_sched.plans.plan import ATTEND, TRANSFER, Plan
from charm_sched.proof.verifier import verify
from charm_sched.search.planning import plan, plan_all
from charm_sched.simulator import simulate
from charm_sched.topology.graph import load_topology
from charm_sched.workload import Workload

NAMES = ("domain_mesh", "mesh", "pass_q", "ulysses", "usp")
TOPOLOGIES = Path(__file__).parent.parent / "topologies"
TWO_BY_EIGHT: Tree = [list(range(8)), list(range(8, 16))]


def shape(heads: int, kv_heads: int, ranks: int, mask: str = "full") -> Workload:
    """Give a workload of 4 rows per rank whose partial results travel like its queries."""
    return Workload(
        seq_len=4 * ranks, heads=heads, kv_heads=kv_heads, head_dim=8, mask=mask, grad_dtype="bf16"
    )


def moved(made: Plan, *, half: int = 0) -> dict[str, float]:
    """Count rows times heads that move per kind; those alone that cross ``half`` where it is given.

    KV is in shards of one rank, everything else in query shards.
    """
    work, rows = made.workload, made.workload.seq_len / made.num_ranks
    found: Counter[str] = Counter()
    for op in made.ops():
        if isinstance(op, Transfer) and (not half or (op.src < half) != (op.dst < half)):
            for item, _ in op.items:
                heads = work.num_kv_heads if item.kind in ("kv", "dkv") else work.heads
                count = sum(last - first for first, last in item.rows)
                found[item.kind] += count * (item.heads[1] - item.heads[0]) / heads / rows
    return dict(found)


@given(cases.plans(names=NAMES, most_ranks=6))
@settings(max_examples=120)
def test_they_compute_attention(made: Plan) -> None:
    verify(made, made.workload)
    brute.run(made)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("partition", ["contiguous", "zigzag"])
def test_one_to_twelve_ranks(name: str, partition: str) -> None:
    for ranks in range(1, 13):
        for seq_len, mask in ((max(1, ranks - 1), "causal"), (5 * ranks + 3, "full")):
            work = cases.small_workload(seq_len, mask, heads=12, kv_heads=3)
            for made in cases.both_ways(name, ranks, work, partition):
                verify(made, work)


# Bytes against the published counts, with V the bytes of a KV shard and G query heads per KV head;
# a shard of q, o, g or dq is G/2 V.


@pytest.mark.parametrize(("ranks", "heads", "kv_heads"), [(4, 8, 8), (8, 16, 8), (16, 128, 16)])
@pytest.mark.parametrize("grad_dtype", ["fp32", "bf16"])
def test_ulysses_sends_what_others_compute(
    ranks: int, heads: int, kv_heads: int, grad_dtype: str
) -> None:
    work = replace(shape(heads, kv_heads, ranks), grad_dtype=grad_dtype)
    forward, backward = cases.both_ways("ulysses", ranks, work)
    share = ranks - 1  # ranks times (P - 1) / P
    assert moved(forward) == {"q": share, "kv": share, "o": share}
    group = heads // kv_heads
    kv = 4 * kv_heads * work.row_bytes("kv")
    statistics = share * 4 * heads * 4  # the log-sum-exp beside o
    assert forward.op_bytes.sum() - statistics == share * (group + 1) * kv
    assert moved(backward) == dict.fromkeys(("q", "g", "kv", "dq", "dkv"), share)


@pytest.mark.parametrize("grad_dtype", ["fp32", "bf16"])
def test_ulysses_has_the_bytes_of_the_publication(grad_dtype: str) -> None:
    """DeepSpeed-Ulysses (arXiv:2309.14509): 4 N h / P elements per link and layer.

    For N tokens, hidden size h and P devices: three all-to-alls of N h for q, k and v, and one for
    the output. Of each a device keeps 1 / P. The backward sends the gradient of the output there
    and those of q, k and v back: the same again, where q, k and v are kept. In bf16; to that come
    the statistics in our messages: log-sum-exp with the output, and with delta in the backward.
    """
    ranks, heads = 8, 16
    work = replace(shape(heads, heads, ranks), grad_dtype=grad_dtype)
    forward, backward = cases.both_ways("ulysses", ranks, work, params={"save": True})
    hidden, sent = heads * work.head_dim, (ranks - 1) / ranks
    elements = 4 * work.seq_len * hidden / ranks
    statistics = work.seq_len * heads * 4 / ranks
    for made, counts in ((forward, 1), (backward, 2)):
        expected = ranks * sent * (2 * elements + counts * statistics)
        assert made.op_bytes.sum() == expected


@pytest.mark.parametrize("way", [0, 1])
def test_what_is_final_where_heads_are_exchanged(way: int) -> None:
    """All results that come home, but KV heads that several ranks share."""
    heads_alone = shape(8, 4, 4)
    for name, params in (("ulysses", {}), ("usp", {"degree": 2}), ("usp", {"degree": 4})):
        made = list(cases.both_ways(name, 4, heads_alone, params=params))[way]
        results = [
            item.kind
            for op in made.ops()
            if isinstance(op, Transfer) and op.stream == "results"
            for item, _ in op.items
        ]
        kinds = made.items.kind[made.columns.arg[made.finals]]
        assert Counter(results) == Counter(KINDS[kind] for kind in kinds)
    shared = list(cases.both_ways("ulysses", 4, shape(8, 2, 4)))[way]
    kinds = shared.items.kind[shared.columns.arg[shared.finals]]
    assert {KINDS[kind] for kind in kinds} == {("o", "dq")[way]}


def test_a_mesh_of_domains_knows_which_results_are_final() -> None:
    """For every shape on two domains of four: all results of a kind that move, or not all."""
    domains = [[0, 1, 2, 3], [4, 5, 6, 7]]
    found = set()
    for work in (shape(8, 8, 8), shape(8, 2, 8)):
        b = Builder(work, Partition.contiguous(work.seq_len, 8))
        for one in shapes(b, np.array(domains)):
            numbers = {
                name: getattr(one, name)
                for name in ("groups", "rows", "inner_groups", "inner_rows")
            }
            params = {"domains": domains, **numbers}
            _, made = cases.both_ways("domain_mesh", 8, work, params=params)
            args = np.repeat(made.columns.op == TRANSFER, np.diff(made.columns.ptr))
            kinds = made.items.kind[made.columns.arg]
            for kind, expected in zip((DQ, DKV), one.finals(work), strict=True):
                at = args & (kinds == kind)
                assert not at.any() or made.finals[at].all() == expected, (one, kind)
                found.add((kind, expected, bool(at.any())))
    assert {(kind, final, True) for kind in (DQ, DKV) for final in (False, True)} <= found


@pytest.mark.parametrize("name", ["ring", "reverse_ring", "double_ring", "all_gather", "charm"])
def test_no_gradient_of_a_key_is_final_where_its_owner_attends_to_it(name: str) -> None:
    for made in cases.both_ways(name, 6, cases.small_workload(24), "zigzag"):
        assert not made.finals.any()


@given(cases.plans(most_ranks=5))
@settings(max_examples=80)
def test_what_is_final_is_the_only_thing_that_comes_home(made: Plan) -> None:
    moves = np.repeat(made.columns.op == TRANSFER, np.diff(made.columns.ptr))
    assert made.finals[moves].tolist() == brute.finals(made)
    assert not made.finals[~moves].any()


def test_ulysses_across_two_nodes() -> None:
    """Per node 8 V for G = 1 and 36 V for G = 8."""
    for heads, expected in ((16, 8), (128, 36)):
        found = moved(cases.made("ulysses", 16, shape(heads, 16, 16)), half=8)
        group = heads // 16
        assert found["kv"] + (found["q"] + found["o"]) * group / 2 == 2 * expected


def test_ulysses_replicates_kv_heads_that_several_ranks_need() -> None:
    forward, backward = cases.both_ways("ulysses", 8, shape(8, 2, 8))
    assert moved(forward)["kv"] == 8 * 7 / 2  # every rank gets one of two heads of every shard
    assert moved(backward)["dkv"] == 8 * 7 / 2
    uneven = cases.made("ulysses", 4, shape(7, 7, 4))
    heads = {op.rank: op.queries[0][0].heads for op in uneven.ops() if isinstance(op, Attend)}
    assert heads == {0: (0, 2), 1: (2, 4), 2: (4, 6), 3: (6, 7)}


def test_usp_crosses_once_and_exchanges_heads_inside() -> None:
    """Across n - 1 = 1 hop of V per rank, 8 V per node; inside (g - 1) / g (G + 1) V."""
    forward, backward = cases.both_ways(
        "usp", 16, shape(16, 8, 16), params={"domains": TWO_BY_EIGHT}
    )
    assert moved(forward, half=8) == {"kv": 16}
    assert moved(forward) == {"q": 16 * 7 / 8, "kv": 16 + 16 * 7 / 8, "o": 16 * 7 / 8}
    busiest = Counter(
        op.src for op in forward.ops() if isinstance(op, Transfer) and (op.src < 8) != (op.dst < 8)
    )
    assert set(busiest.values()) == {1}
    assert moved(backward, half=8) == {"kv": 16, "dkv": 32}  # the gradient takes n hops


def test_usp_the_other_way_round_passes_kv_inside() -> None:
    params = {"domains": TWO_BY_EIGHT, "inside": "ring"}
    found = cases.made("usp", 16, shape(16, 8, 16), params=params)
    assert moved(found, half=8) == {"q": 8, "kv": 8, "o": 8}
    assert moved(found)["kv"] == 8 + 16 * 7


@pytest.mark.parametrize(("name", "kv_heads"), [("ulysses", 4), ("ulysses", 1), ("usp", 2)])
def test_chunks_move_no_byte_twice(name: str, kv_heads: int) -> None:
    params = {"degree": 2} if name == "usp" else {}
    work = shape(8, kv_heads, 4)
    for way in ("forward", "backward"):
        whole, *others = (
            cases.made(name, 4, work, direction=way, params={**params, "chunks": chunks})
            for chunks in (1, 2, 3, 4)
        )
        assert {made.op_bytes.sum() for made in others} == {whole.op_bytes.sum()}
        assert len(others[-1]) > len(whole)


@pytest.mark.parametrize(("name", "moving"), [("ulysses", set()), ("usp", {"kv"})])
def test_the_backward_exchanges_no_head_that_the_forward_saved(name: str, moving: set[str]) -> None:
    params = {"save": True, "chunks": 3} | ({"degree": 2} if name == "usp" else {})
    work = shape(16, 16, 4)
    forward, backward = cases.both_ways(name, 4, work, params=params)
    verify(forward, work)
    verify(backward, work)
    assert {forward.items[int(item)].kind for item in forward.saved.item} == {"q", "kv"}
    assert set(moved(backward)) == {"g", "dq", "dkv"} | moving


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
def test_mesh_gathers_a_row_and_a_column(rows: int) -> None:
    forward, backward = cases.both_ways("mesh", 16, shape(4, 4, 16), params={"tile_rows": rows})
    queries, keys = 16 * (rows - 1), 16 * (16 // rows - 1)
    expected = {"q": queries, "kv": keys, "o": queries}
    assert moved(forward) == {kind: count for kind, count in expected.items() if count}
    expected = {"q": queries, "g": queries, "kv": keys, "dq": queries, "dkv": keys}
    assert moved(backward) == {kind: count for kind, count in expected.items() if count}
    areas = Counter(op.rank for op in forward.ops() if isinstance(op, Attend))
    assert len(set(areas.values())) == 1


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (8, 1)])
@pytest.mark.parametrize("ranks", [7, 12, 16])
def test_mesh_takes_the_shape_with_the_fewest_bytes(heads: int, kv_heads: int, ranks: int) -> None:
    work = shape(heads, kv_heads, ranks)
    for way in ("forward", "backward"):
        chosen = cases.made("mesh", ranks, work, direction=way).op_bytes.sum()
        every = [
            cases.made(
                "mesh", ranks, work, direction=way, params={"tile_rows": rows}
            ).op_bytes.sum()
            for rows in range(1, ranks + 1)
            if ranks % rows == 0
        ]
        assert chosen == min(every)
    if (heads, ranks) == (4, 16):
        ring = cases.made("ring", ranks, work).op_bytes.sum()
        assert cases.made("mesh", ranks, work).op_bytes.sum() < 0.45 * ring  # 6 V of 15 V, and lse


def test_mesh_keeps_what_is_larger_inside_domains() -> None:
    topology = load_topology("dual_node_nvlink")
    for kv_heads in (2, 32):
        work = Workload(seq_len=4096, heads=32, kv_heads=kv_heads, mask="full")
        made = plan(
            topology, work, strategy="mesh", direction="forward", params={"neighbours": "queries"}
        )
        assert isinstance(made, Plan)
        assert set(moved(made, half=8)) == {"kv"}


@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6, 12])
def test_a_tile_is_attended_once_and_own_queries_last(rows: int, way: str) -> None:
    b = cases.builder(cases.small_workload(24), 12, way)
    machine, columns = machine_of(b, None), list(range(12 // rows))
    tile = choose_tile(b, machine, rows, "auto")
    order = order_tile(b, machine, tile)
    cells = [(row, column) for row, taken in order for column in taken]
    assert sorted(cells) == [(row, column) for row in range(rows) for column in columns]
    slow = order_tile(b, replace(machine, triple_seconds=np.ones(12)), tile)
    rest = [columns[1:]] if way == "forward" else [[column] for column in columns[1:]]
    assert slow == [
        (0, [0]),  # nothing else is there at the start
        *((row, columns) for row in range(1, rows)),
        *((0, taken) for taken in rest if taken),
    ]


FOUR_BY_TWO: Tree = [[0, 1], [2, 3], [4, 5], [6, 7]]


def across(made: Plan, domains: Tree) -> dict[str, float]:
    """Count shards per kind that enter a domain, summed over all ranks."""
    assert not isinstance(domains, int)
    home = {rank: n for n, ranks in enumerate(domains) for rank in cases.leaves(ranks)}
    work, rows = made.workload, made.workload.seq_len / made.num_ranks
    found: Counter[str] = Counter()
    for op in made.ops():
        if isinstance(op, Transfer) and home[op.src] != home[op.dst]:
            for item, _ in op.items:
                heads = work.num_kv_heads if item.kind in ("kv", "dkv") else work.heads
                count = sum(last - first for first, last in item.rows)
                found[item.kind] += count * (item.heads[1] - item.heads[0]) / heads / rows
    return dict(found)


@pytest.mark.parametrize("inside", [{"inner_groups": 1}, {"inner_groups": 2}, {"inner_rows": 2}])
@pytest.mark.parametrize(("groups", "rows"), [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)])
def test_a_domain_gets_a_tile_once(groups: int, rows: int, inside: dict[str, int]) -> None:
    """(H R - 1) / H of the queries and (H C - 1) / H of the keys, whatever ranks do inside."""
    params = {"domains": FOUR_BY_TWO, "groups": groups, "rows": rows, **inside}
    forward, backward = cases.both_ways("domain_mesh", 8, shape(8, 8, 8), params=params)
    columns = 4 // groups // rows
    queries, keys = (8 * (groups * count - 1) / groups for count in (rows, columns))
    for made, there, back in ((forward, ("q",), {"o": "q"}), (backward, ("q", "g"), {"dq": "q"})):
        verify(made, made.workload)
        expected = dict.fromkeys([*there, *back], queries) | {"kv": keys}
        if made is backward:
            expected["dkv"] = keys
        assert across(made, FOUR_BY_TWO) == {kind: n for kind, n in expected.items() if n}


def test_links_between_domains_carry_equal_shares() -> None:
    params = {"domains": FOUR_BY_TWO, "groups": 2, "rows": 2, "inner_groups": 1}
    for made in cases.both_ways("domain_mesh", 8, shape(8, 8, 8), params=params):
        sent: Counter[int] = Counter()
        for row, op in enumerate(made.ops()):
            if isinstance(op, Transfer) and op.src // 2 != op.dst // 2:
                sent[op.src] += int(made.op_bytes[row])
        assert len(sent) == 8
        assert len(set(sent.values())) == 1


@pytest.mark.parametrize("mask", ["causal", "window:9", "docs:20,5,7"])
@pytest.mark.parametrize("kv_heads", [4, 1])
def test_a_domain_mesh_serves_masks(mask: str, kv_heads: int) -> None:
    work = cases.small_workload(32, mask, heads=4, kv_heads=kv_heads)
    for groups, inner, pieces in ((1, 1, 2), (2, 2, 1), (4, 1, 3)):
        params = {
            "domains": FOUR_BY_TWO, "groups": groups, "inner_groups": inner, "pieces": pieces,
        }  # fmt: skip
        for partition in ("contiguous", "zigzag"):
            for made in cases.both_ways("domain_mesh", 8, work, partition, params):
                verify(made, work)
                brute.run(made)


def test_a_domain_mesh_weighs_what_moves() -> None:
    """Heads where there are many, keys in the forward of grouped heads, queries in a backward."""
    tree: Tree = [[2 * n, 2 * n + 1] for n in range(4)]

    def kinds(heads: int, kv_heads: int, way: str, **params: int) -> set[str]:
        work = Workload(seq_len=64, heads=heads, kv_heads=kv_heads, head_dim=8, mask="full")
        made = cases.made("domain_mesh", 8, work, direction=way, params={"domains": tree, **params})
        return set(across(made, tree))

    assert kinds(8, 8, "forward") == {"q", "kv", "o"}  # by heads: 1.9 V, keys alone 3 V
    assert kinds(8, 1, "forward") == {"kv"}  # queries are eight times as large
    assert kinds(8, 1, "backward") == {"kv", "dkv"}
    assert kinds(1, 1, "backward", rows=4) == {"q", "g", "dq"}


def test_one_device_attends_all_itself() -> None:
    topology = load_topology("dual_numa_pcie")
    made = plan(topology, shape(4, 2, 1), strategy="domain_mesh", ranks=1)
    assert [len(one) for one in made.plans] == [1, 1]  # type: ignore[union-attr]


def test_a_domain_that_waits_for_nothing_attends_its_own_last() -> None:
    """Results of others leave first; what is at home needs no way."""
    tile = Tile(
        seconds=np.ones((3, 2)), rows=np.array([0.0, 1.0, 2.0]), columns=np.array([0.0, 0.5]),
        kinds=np.zeros((3, 2), np.int64), own=np.array([True, False, False]),
        bundles=np.zeros(2, np.int64), overhead=0.01, least=0.1,
    )  # fmt: skip
    kernels = order_kernels(tile)
    assert [(kernel.rows, kernel.columns) for kernel in kernels] == [
        ((0,), (0,)), ((1,), (0, 1)), ((2,), (0, 1)), ((0,), (1,)),
    ]  # fmt: skip
    assert kernels[-1].end == pytest.approx(6 + 4 * 0.01)


def test_gradients_that_cross_do_not_pile_up_at_the_end(tmp_path: Path) -> None:
    """64 nodes: one row attends a column in half of the time in which its gradients cross."""
    two = (TOPOLOGIES / "dual_node_h800.yaml").read_text()
    (tmp_path / "nodes.yaml").write_text(two.replace("node0..1", "node0..63"))
    topology = load_topology(tmp_path / "nodes.yaml")
    work = Workload(seq_len=2**20, mask="full")
    made = build(
        PLANNERS["domain_mesh"], "domain_mesh", work, Partition.contiguous(work.seq_len, 512),
        direction="backward", topology=topology, devices=topology.device_names,
    )  # fmt: skip
    line = simulate(made, topology)
    assert line.exposed_comm < 0.01 * line.makespan


def test_rows_attended_in_the_end_take_columns_in_turn_together() -> None:
    """Bundle after bundle with all of them, the lowest number first."""
    tile = Tile(
        seconds=np.ones((3, 3)), rows=np.zeros(3), columns=np.array([0.0, 0.5, 0.5]),
        kinds=np.zeros((3, 3), np.int64), own=np.array([True, True, False]),
        bundles=np.array([3, 1, 2]), overhead=0.0, least=3.0,
    )  # fmt: skip
    kernels = order_kernels(tile)
    assert [(kernel.rows, kernel.columns) for kernel in kernels] == [
        ((2,), (0,)), ((2,), (1, 2)), ((0, 1), (1,)), ((0, 1), (2,)), ((0, 1), (0,)),
    ]  # fmt: skip


def test_pass_q_moves_queries_and_returns_results() -> None:
    forward, backward = cases.both_ways("pass_q", 8, shape(4, 2, 8))
    assert moved(forward) == {"q": 56, "o": 56}
    assert moved(backward) == {"q": 56, "g": 56, "dq": 56}
    forward, backward = cases.both_ways("pass_q", 8, shape(4, 2, 8), params={"direct": False})
    assert moved(forward) == {"q": 56, "o": 64}  # P hops to their home
    assert moved(backward) == {"q": 56, "g": 56, "dq": 64}


def test_pass_q_leaves_the_early_half_behind() -> None:
    """The early half of rank r is needed by the r ranks before it, the late half by all."""
    work = shape(4, 2, 8, "causal")
    halves = cases.made("pass_q", 8, work, partition="zigzag")
    assert moved(halves) == {"q": 42, "o": 42}
    whole = cases.made("pass_q", 8, work, partition="zigzag", params={"pieces": 1})
    assert moved(whole) == {"q": 56, "o": 56}
    contiguous = cases.made("pass_q", 8, work)
    assert moved(contiguous) == {"q": 28, "o": 28}


def overlaps(name: str, params: Mapping[str, Any], mask: str = "full") -> bool:
    """Say whether some rank computes while something on its way to or from it moves."""
    topology = load_topology("single_node_nvlink")
    work = Workload(seq_len=8192, heads=32, kv_heads=8, head_dim=128, mask=mask)
    made = plan(topology, work, strategy=name, direction="forward", params=params)
    assert isinstance(made, Plan)
    line, columns = simulate(made, topology), made.columns
    for rank in range(made.num_ranks):
        attends = np.flatnonzero((columns.op == ATTEND) & (columns.rank == rank))
        moves = np.flatnonzero(
            (columns.op == TRANSFER) & ((columns.rank == rank) | (columns.peer == rank))
        )
        starts = np.maximum(line.start[attends][:, None], line.start[moves])
        ends = np.minimum(line.end[attends][:, None], line.end[moves])
        if (starts < ends - 1e-9).any():
            return True
    return False


def test_chunks_overlap_the_exchange_with_attention() -> None:
    assert not overlaps("ulysses", {"chunks": 1})
    assert overlaps("ulysses", {"chunks": 2})
    assert overlaps("usp", {"degree": 4, "chunks": 2})


@given(
    st.sampled_from([(1, 1), (6, 6), (8, 2), (12, 3), (10, 2), (9, 1)]),
    st.integers(1, 8),
    st.integers(1, 5),
)
def test_heads_are_dealt_once_and_kv_heads_arrive_once(
    shape: tuple[int, int], members: int, chunks: int
) -> None:
    heads, kv_heads = shape
    members = min(members, heads)
    dealt = chunk_heads(heads, kv_heads, members, chunks)
    runs = [run for member in dealt.queries for run in member if run]
    assert [head for low, high in runs for head in range(low, high)] == list(range(heads))
    users: Counter[tuple[int, int]] = Counter()
    for queries, keys, arrivals in zip(dealt.queries, dealt.keys, dealt.arrivals, strict=True):
        there: list[tuple[int, int]] = []
        for run, needed, arrived in zip(queries, keys, arrivals, strict=True):
            there += [key.heads for key in arrived]
            held = {head for low, high in there for head in range(low, high)}
            share = heads // kv_heads
            assert {head // share for head in range(*run or (0, 0))} <= held
            assert {key.heads for key in needed} <= set(there)
        assert len(set(there)) == len(there)
        users.update(there)
        for part in dealt.runs:
            brought = {key.heads for chunk in part for key in arrivals[chunk]}
            assert {key.heads for chunk in part for key in keys[chunk]} == brought
    assert dealt.replicated == {heads for heads, count in users.items() if count > 1}
    assert [chunk for part in dealt.runs for chunk in part] == list(range(chunks))


def test_usp_takes_a_degree_that_fits_domains_and_heads() -> None:
    def streams(heads: int, tree: Tree, **params: Any) -> tuple[int, int]:
        """Give the levels of the ring per rank, and the peers with whom a rank exchanges heads."""
        ranks = len(cases.leaves(tree))
        made = cases.made("usp", ranks, shape(heads, 1, ranks), params={"domains": tree, **params})
        moves = [op for op in made.ops() if isinstance(op, Transfer)]
        hops = {op.level for op in moves if op.stream == "ring"}
        return len(hops), len({op.dst for op in moves if op.stream == "exchange" and op.src == 0})

    assert streams(8, TWO_BY_EIGHT) == (1, 7)
    assert streams(4, TWO_BY_EIGHT) == (3, 3)  # four heads on eight ranks
    assert streams(8, [[0, 1, 2], [3, 4, 5, 6, 7, 8]]) == (2, 2)
    assert streams(8, [[0, 1, 2], [3, 4]]) == (4, 0)
    assert streams(8, TWO_BY_EIGHT, inside="ring") == (7, 1)
    assert streams(8, TWO_BY_EIGHT, degree=4) == (3, 3)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("ulysses", {}, "at least as many query heads as ranks, found 4 heads on 6 ranks"),
        ("ulysses", {"chunks": 0}, "chunks: expected 1 or more, found 0"),
        ("domain_mesh", {"pieces": 0}, "domain_mesh: expected pieces of 1 or more, found 0"),
        ("domain_mesh", {"inner_rows": 4}, "the 6 ranks of one"),
        ("domain_mesh", {"domains": [[0, 1], [2, 3, 4, 5]]}, "innermost domains of equal size"),
        ("usp", {"chunks": 0}, "chunks: expected 1 or more, found 0"),
        ("usp", {"degree": 4}, "divides the 6 ranks and is at most the 4 query heads, found 4; the "
                               "nearest is 3"),
        ("usp", {"degree": 6}, "found 6; the nearest is 3"),
        ("usp", {"inside": "out"}, "usp: expected inside to be ulysses or ring, found 'out'"),
        ("usp", {"domains": [0, 2]}, "expected nested ranks that hold the ranks 0 to 5 once each"),
        ("mesh", {"tile_rows": 4}, "tile_rows that divide the 6 ranks, found 4; the nearest is 3"),
        ("mesh", {"neighbours": "out"}, "neighbours to be auto, queries or keys, found 'out'"),
        ("pass_q", {"pieces": 0}, "pass_q: expected pieces of 1 or more, found 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused(name: str, params: dict[str, Any], message: str) -> None:
    ranks, heads = (6, 4) if "chunks" not in params else (4, 4)
    with pytest.raises(StrategyError) as caught:
        cases.made(name, ranks, shape(heads, 2, ranks), params=params)
    assert message in str(caught.value)


def test_values_of_parameters_are_checked_by_kind() -> None:
    for name, wrong in (("usp", {"degree": "2"}), ("mesh", {"tile_rows": 2.0}),
                        ("pass_q", {"direct": 1}), ("ulysses", {"chunks": True})):  # fmt: skip
        with pytest.raises(StrategyError, match="parameter"):
            check_params({name: PLANNERS[name]}, wrong)


def test_a_refusal_does_not_stop_the_others() -> None:
    topology = load_topology("dual_numa_pcie")
    work = Workload(seq_len=2048, heads=4, kv_heads=2, head_dim=64)
    compared = plan_all(topology, work, strategies=NAMES)
    assert {row.strategy for row in compared.results} == set(NAMES) - {"ulysses"}
    assert {(row.strategy, row.direction) for row in compared.refused} == {
        ("ulysses", "forward"), ("ulysses", "backward"),
    }  # fmt: skip
    assert "found 4 heads on 8 ranks" in compared.refused[0].reason
    for row in compared.results:
        verify(row.plan, work)
