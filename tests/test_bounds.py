"""The bound of every schedule: placements by brute force, closed forms, every simulation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import masks
from support.machines import machine, machines

from charm_sched.bounds.bound import Bound
from charm_sched.bounds.class_bound import class_bound
from charm_sched.bounds.envelopes import Curve, Owner, Total, largest
from charm_sched.bounds.limits import moves_keys
from charm_sched.bounds.schedule_bound import bound, first_time
from charm_sched.errors import StrategyError, WorkloadError
from charm_sched.partition import Partition, rows_of
from charm_sched.planners import PLANNERS
from charm_sched.planners.strategies import build, residents
from charm_sched.plans.plan import DIRECTIONS
from charm_sched.simulator import simulate
from charm_sched.topology.graph import Topology, load_topology
from charm_sched.workload import Workload

Triple = tuple[int, int, int]  # query row, key row, query head


def triples(work: Workload) -> list[Triple]:
    return [
        (query, key, head)
        for segment in work.mask_rule.segments(work.seq_len)
        for query in range(segment.first, segment.last)
        for key in range(max(segment.lower(query), 0), min(segment.upper(query), work.seq_len))
        for head in range(work.heads)
    ]


def even_partitions(tokens: int, ranks: int) -> Iterator[tuple[int, ...]]:
    """Yield the owner of each token, all shards of up to ceil(tokens / ranks)."""
    most = -(-tokens // ranks)
    for owners in itertools.product(range(ranks), repeat=tokens):
        if max(owners.count(rank) for rank in range(ranks)) <= most:
            yield owners


def crossing(work: Workload, way: str, done: set[tuple[int, int, int]], owner: Sequence[int],
             inside: set[int]) -> tuple[int, int]:  # fmt: skip
    """Bytes of operands that devices outside bring in, and of results they send back, at least.

    `done` are the triples computed outside; what they touch of what is owned inside has to move.
    """
    group = work.heads_per_kv
    rows = {(q, h) for q, _, h in done if owner[q] in inside}
    keys = {(k, h // group) for _, k, h in done if owner[k] in inside}
    if way == "forward":
        operands = len(rows) * work.row_bytes("q") + len(keys) * work.row_bytes("kv")
        return operands, len(rows) * work.row_bytes("o")
    operands = len(rows) * (work.row_bytes("q") + work.row_bytes("g"))
    operands += len(keys) * work.row_bytes("kv")
    return operands, len(rows) * work.row_bytes("dq") + len(keys) * work.row_bytes("dkv")


def star(rates: Sequence[tuple[float, float]], rate: str) -> Topology:
    """Devices around a hub; (out, in) in GB/s each."""
    topology = machine(len(rates), [(f"d{i}", "hub", out) for i, (out, _) in enumerate(rates)],
                       switches=["hub"], rate=rate)  # fmt: skip
    document = topology.to_document()
    for link, (_, into) in zip(document["links"], rates, strict=True):
        link["reverse"] = f"{into!r} GB/s"
    return Topology.from_document(document)


def fastest_placement(
    work: Workload, way: str, rates: Sequence[tuple[float, float]], speed: float
) -> float:
    """Try every partition into even shards, and everybody for every triple."""
    ranks, every = len(rates), triples(work)
    per_triple = work.flops_per_pair(way) / speed
    sets = [{r for r in range(ranks) if bits >> r & 1} for bits in range(1, 2**ranks - 1)]
    best = float("inf")
    for owner in even_partitions(work.seq_len, ranks):
        for placed in itertools.product(range(ranks), repeat=len(every)):
            seconds = per_triple * max(placed.count(rank) for rank in range(ranks))
            for inside in sets if seconds < best else ():
                others = set(range(ranks)) - inside
                here = {t for t, rank in zip(every, placed, strict=True) if rank in inside}
                there = set(every) - here
                lent, returned = crossing(work, way, there, owner, inside)
                borrowed, sent = crossing(work, way, here, owner, others)
                out = min(sum(rates[r][0] for r in inside), sum(rates[r][1] for r in others))
                into = min(sum(rates[r][1] for r in inside), sum(rates[r][0] for r in others))
                seconds = max(
                    seconds, (lent + sent) / out / 1e9, (borrowed + returned) / into / 1e9
                )
            best = min(best, seconds)
    return best


PLACED = [  # tokens, heads, KV heads, mask, (out, in) of each device
    (2, 2, 1, "full", [(1, 1), (1, 1)]),
    (2, 2, 2, "full", [(1, 2), (3, 1)]),
    (3, 1, 1, "causal", [(2, 1), (1, 1)]),
    (3, 2, 1, "causal", [(1, 1), (1, 1)]),
    (2, 2, 1, "causal", [(1, 1), (1, 1), (1, 1)]),
    (3, 1, 1, "docs:2,1", [(1, 1), (1, 3)]),
    (3, 1, 1, "window:2", [(1, 1), (2, 1), (1, 1)]),
]


@pytest.mark.parametrize("case", PLACED, ids=str)
@pytest.mark.parametrize("rate", ["1 GFLOP/s", "4 GFLOP/s", "100 TFLOP/s"])
@pytest.mark.parametrize("way", DIRECTIONS)
def test_placements_by_brute_force(case: Any, rate: str, way: str) -> None:
    tokens, heads, kv_heads, mask, rates = case
    work = Workload(seq_len=tokens, heads=heads, kv_heads=kv_heads, head_dim=4, mask=mask)
    topology = star(rates, rate)
    truth = fastest_placement(work, way, rates, topology.devices[0].compute.peak["bf16"])
    shards = Partition.contiguous(tokens, len(rates))
    assert bound(topology, work, direction=way).seconds <= truth
    assert bound(topology, work, direction=way, partition=shards).seconds <= truth


def test_two_devices_by_hand() -> None:
    """Full mask, one head of dimension 4, two tokens each, a link of 1 GB/s each way.

    A query is 8 bytes, a key with its value 16, a partial output 4 x 4 + 4 = 20. Keys both ways:
    2 x 16 = 32 bytes each way. Queries both ways: 16 + 40 = 56. Everything to one device: 48 in and
    40 out, and between two such heads 44 each way.
    """
    work = Workload(seq_len=4, heads=1, head_dim=4, mask="full")
    found = bound(machine(2, [("d0", "d1", 1)]), work)
    assert found.seconds == pytest.approx(32e-9)
    assert found.cut is not None
    assert found.cut.crossing == pytest.approx(32)
    assert found.cut.bandwidth == 1e9


def test_causal_by_hand() -> None:
    """Eight tokens, causal: 36 pairs. Who owns four sees 10 among them, and 4 more per foreign key.

    For its half, 18 pairs, it needs 2 foreign keys of 16 bytes, where queries are dear.
    """
    slope, offset = Owner(own=4, foreign=4, ordered=True).tangents(1e6, 16.0)
    assert (slope * 18 + offset).max() == pytest.approx(32)
    assert (slope * 10 + offset).max() == pytest.approx(0, abs=1e-9)
    assert (slope * 26 + offset).max() == pytest.approx(64)


def test_all_work_over_all_rates() -> None:
    topology = load_topology("single_node_nvlink")
    work = Workload(seq_len=2**20, heads=32, kv_heads=8, mask="full")
    profile = topology.devices[0].compute
    rate, _ = profile.rate(direction="forward", head_dim=128, causal=False, dtype="bf16")
    flops = work.flops_per_pair("forward") * 32 * 2**40
    found = bound(topology, work)
    assert found.seconds == pytest.approx(flops / 8 / rate + profile.overhead, rel=1e-12)
    assert found.reason == "computation on all devices"
    assert 0 < found.communication < found.seconds


def test_a_slow_link_lets_a_part_do_less() -> None:
    """Between sending all work away and doing it alone."""
    work = Workload(seq_len=2**14, heads=8, head_dim=128, mask="full")
    slow = [bound(machine(2, [("d0", "d1", rate)]), work) for rate in (0.001, 1, 1000)]
    alone = 2 * slow[2].seconds
    assert slow[2].reason == "computation on all devices"
    assert slow[2].seconds < slow[1].seconds < slow[0].seconds
    assert slow[1].reason.startswith("33.6 MB of operands and results") or slow[1].cut
    assert slow[0].seconds > alone


@settings(max_examples=60)
@given(data=st.data())
def test_no_simulation_is_faster(data: st.DataObject) -> None:
    rate = data.draw(st.sampled_from(["100 TFLOP/s", "1 GFLOP/s"]))
    topology = data.draw(machines(most_devices=6, latency="2 us", overhead="3 us", rate=rate))
    ranks = len(topology.devices)
    length = data.draw(st.integers(1, 40))
    work = Workload(
        seq_len=length, heads=data.draw(st.sampled_from([4, 8])),
        kv_heads=data.draw(st.sampled_from([1, 2, 4])), head_dim=8, mask=data.draw(masks(length)),
    )  # fmt: skip
    shards = Partition.named(data.draw(st.sampled_from(["contiguous", "zigzag"])), length, ranks)
    name = data.draw(st.sampled_from(sorted(PLANNERS)))
    saved: tuple[Any, ...] = ()
    for way in DIRECTIONS:
        try:
            plan = build(
                PLANNERS[name], name, work, shards, direction=way, topology=topology,
                devices=topology.device_names, saved=saved,
            )  # fmt: skip
        except StrategyError:
            return
        makespan = simulate(plan, topology).makespan
        for partition in (None, shards):
            limit = bound(topology, work, direction=way, partition=partition, saved=saved)
            assert makespan >= limit.seconds * (1 - 1e-9)
        if moves_keys(plan):
            limit = class_bound(topology, work, direction=way, partition=shards, saved=saved)
            assert makespan >= limit.seconds * (1 - 1e-9)
        saved = residents(plan)


@settings(max_examples=60)
@given(data=st.data())
def test_no_set_sees_more_pairs(data: st.DataObject) -> None:
    tokens = data.draw(st.integers(1, 7))
    ordered = data.draw(st.booleans())
    one = st.sets(st.integers(0, tokens - 1))
    own, queries, keys = data.draw(one), data.draw(one), data.draw(one)
    pairs = sum(not ordered or k <= q for q in own | queries for k in own | keys)
    owner = Owner(own=len(own), foreign=tokens - len(own), ordered=ordered)
    extra = [np.array([len(found - own)], float) for found in (queries, keys)]
    assert pairs <= owner.pairs(*extra)[0] + 1e-9
    slope, offset = owner.tangents(3.0, 5.0)
    cost = 3 * len(queries - own) + 5 * len(keys - own)
    assert (slope * pairs + offset).max() <= cost + 1e-9


@given(
    lines=st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.integers(-9, 0)), min_size=1, max_size=5),
        min_size=4, max_size=4,
    )
)  # fmt: skip
def test_corners_give_the_whole_function(lines: list[list[tuple[int, int]]]) -> None:
    curves = [
        Curve(
            slope=np.array([0.0, *(s for s, _ in some)]),
            offset=np.array([0.0, *(o for _, o in some)]),
        )
        for some in lines
    ]
    totals = [Total(one=curves[0], other=curves[1].mirrored()),
              Total(one=curves[2], other=curves[3].mirrored())]  # fmt: skip
    share, seconds = largest(totals)
    dense = np.linspace(0, 1, 301)
    expected = np.max([total(dense) for total in totals], axis=0)
    assert np.interp(dense, share, seconds) == pytest.approx(expected, abs=1e-9)


def test_first_time_is_rounded_down() -> None:
    found = first_time(lambda seconds: seconds >= 0.3)
    assert found < 0.3
    assert found == pytest.approx(0.3, rel=1e-12)


def test_any_partition_with_the_same_shards() -> None:
    """A device that owns all needs nothing from the others."""
    work = Workload(seq_len=64, heads=1, mask="full")
    topology = machine(2, [("d0", "d1", 1)])
    everything = Partition("custom", 64, (rows_of([(0, 64)]), ()))
    alone = bound(topology, work, ranks=1).seconds
    assert bound(topology, work, partition=everything).seconds < alone
    skewed = Partition("custom", 64, (rows_of([(0, 63)]), rows_of([(63, 64)])))
    less = bound(topology, work, partition=skewed)
    assert less.seconds < bound(topology, work).seconds
    assert bound(topology, work).communication > 0


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_what_is_resident_need_not_come(mask: str) -> None:
    """Compute both halves to make communication bind, with copies of one key and of all."""
    work = Workload(seq_len=64, heads=1, mask=mask, grad_dtype="bf16")
    topology = machine(2, [("d0", "d1", 1)])
    none, one, all_of_them = (
        bound(topology, work, direction="backward", saved=saved)
        for saved in ((), _copies(work)[:1], _copies(work))
    )
    assert all_of_them.communication < none.communication
    if mask == "causal":  # without a mask and copies a sharper formula holds
        assert all_of_them.seconds < one.seconds < none.seconds


def _copies(work: Workload) -> list[Any]:
    from charm_sched.plans.items import Item

    return [(1, Item("kv", ((0, 32),), (0, 1)), 0), (0, Item("kv", ((32, 64),), (0, 1)), 0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"direction": "both"}, "expected forward or backward, found 'both'"),
        ({"partition": "auto"}, "expected contiguous, zigzag"),
        (
            {"partition": Partition.contiguous(64, 3)},
            "expected 64 tokens on 8 ranks, found 64 on 3",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        bound(load_topology("single_node_nvlink"), Workload(seq_len=64), **arguments)


@pytest.mark.parametrize("documents", [(1, 2), (2, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("bandwidth", [1.0, 7.0, 168.0])
def test_what_need_not_cross_has_no_latency(documents: tuple[int, int], bandwidth: float) -> None:
    """A document on each device; what rounding leaves over is no byte that crosses."""
    first, length = documents[0], sum(documents)
    shards = Partition("custom", length, (((0, first),), ((first, length),)))
    mask = f"docs:{first},{documents[1]}"
    work = Workload(seq_len=length, heads=2, kv_heads=1, head_dim=4, mask=mask)
    topology = machine(
        2, [("d0", "hub", bandwidth), ("d1", "hub", bandwidth)], switches=["hub"], latency="3 ms"
    )
    made = build(
        PLANNERS["charm"], "charm", work, shards, direction="forward", topology=topology,
        devices=topology.device_names,
    )  # fmt: skip
    limit = bound(topology, work, partition=shards)
    assert limit.communication == 0
    assert limit.seconds <= simulate(made).makespan < 3e-3


def test_one_device_just_computes() -> None:
    found = bound(load_topology("single_node_nvlink"), Workload(seq_len=4096), ranks=1)
    assert isinstance(found, Bound)
    assert (found.cut, found.communication) == (None, 0.0)
