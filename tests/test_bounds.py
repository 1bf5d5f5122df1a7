"""The bound of every schedule: placements by brute force, closed forms, every simulation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import masks
from support.machines import machine, machines

from charm_sched.bounds.bound import Bound
from charm_sched.bounds.class_bound import class_bound
from charm_sched.bounds.envelopes import Curve, Owner, Prices, Total, complete, largest
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


def crossing(
    work: Workload, way: str, done: set[Triple], others: set[Triple], owner: Sequence[int],
    inside: set[int],
) -> tuple[int, int, list[tuple[int, int, int]]]:  # fmt: skip
    """What devices outside bring in, and what they send back, at least.

    `done` are the triples computed outside, `others` the rest; what they touch of what is owned
    inside has to move.

    Returns:
        Bytes of operands, and of results in which nobody else has a part; and, of the results of
        each kind that are computed on both sides, their number and the bytes of a partial and of a
        final one.
    """
    group = work.heads_per_kv
    rows, more_rows = ({(q, h) for q, _, h in some if owner[q] in inside}
                       for some in (done, others))  # fmt: skip
    keys, more_keys = ({(k, h // group) for _, k, h in some if owner[k] in inside}
                       for some in (done, others))  # fmt: skip
    kinds = [("o" if way == "forward" else "dq", rows, more_rows)]
    operands = len(rows) * work.row_bytes("q") + len(keys) * work.row_bytes("kv")
    if way == "backward":
        operands += len(rows) * work.row_bytes("g")
        kinds.append(("dkv", keys, more_keys))
    alone = sum(len(there - here) * work.row_bytes(kind, final=True) for kind, there, here in kinds)
    both = [
        (len(there & here), work.row_bytes(kind), work.row_bytes(kind, final=True))
        for kind, there, here in kinds
    ]
    return operands, alone, both


def collected(both: list[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Yield bytes of results on their way home, and of what is sent to where they are collected."""
    for numbers in itertools.product(*(range(count + 1) for count, _, _ in both)):
        home = away = 0
        for number, (count, partial, final) in zip(numbers, both, strict=True):
            home += (count - number) * partial + number * final
            away += number * partial
        yield home, away


def star(rates: Sequence[tuple[float, float]], rate: str) -> Topology:
    """Devices around a hub; (out, in) in GB/s each."""
    topology = machine(len(rates), [(f"d{i}", "hub", out) for i, (out, _) in enumerate(rates)],
                       switches=["hub"], rate=rate)  # fmt: skip
    document = topology.to_document()
    for link, (_, into) in zip(document["links"], rates, strict=True):
        link["reverse"] = f"{into!r} GB/s"
    return Topology.from_document(document)


def crossed(
    work: Workload, way: str, done: tuple[set[Triple], set[Triple]], owner: Sequence[int],
    sides: tuple[set[int], set[int]], rates: tuple[float, float],
) -> float:  # fmt: skip
    """Seconds that a cut takes, wherever results of both sides are collected."""
    (here, there), (inside, others), (into, out) = done, sides, rates
    lent, returned, shared = crossing(work, way, there, here, owner, inside)
    borrowed, sent, also_shared = crossing(work, way, here, there, owner, others)
    return min(
        max(
            (lent + sent + away + also_home) / out / 1e9,
            (borrowed + returned + home + also_away) / into / 1e9,
        )
        for home, away in collected(shared)
        for also_home, also_away in collected(also_shared)
    )


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
                out = min(sum(rates[r][0] for r in inside), sum(rates[r][1] for r in others))
                into = min(sum(rates[r][1] for r in inside), sum(rates[r][0] for r in others))
                seconds = max(
                    seconds, crossed(work, way, (here, there), owner, (inside, others), (into, out))
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
    (2, 1, 1, "full", [(1, 10), (10, 1)]),
    (2, 2, 1, "causal", [(1, 10), (10, 1)]),
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
    for partition in (None, shards):
        limit = bound(topology, work, direction=way, partition=partition)
        assert limit.seconds <= truth * (1 + 1e-12)


def test_two_devices_by_hand() -> None:
    """Full mask, one head of dimension 4, two tokens each, a link of 1 GB/s each way.

    A query is 8 bytes, a key with its value 16, a partial output 4 x 4 + 4 = 20, a final one 12.
    Keys both ways: 2 x 16 = 32 bytes each way. Queries both ways: 16 + 40 = 56. Everything to one
    device: 48 in and 24 out, and between two such heads 36 each way.
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
    slope, offset = Owner(own=4, foreign=4, ordered=True).tangents(
        Prices(query=1e6, key=16.0, both=1e6 + 16)
    )
    assert (slope * 18 + offset).max() == pytest.approx(32)
    assert (slope * 10 + offset).max() == pytest.approx(0, abs=1e-9)
    assert (slope * 26 + offset).max() == pytest.approx(64)


def test_results_are_collected_where_they_leave_at_the_slow_end() -> None:
    """Out of one device is slow and into it fast: results of both are added up there, to be final.

    Where both ways are alike that is no gain, and partial results count with all their bytes.
    """
    work = Workload(seq_len=1024, heads=1, head_dim=64, mask="causal")
    uneven, even = (
        [
            bound(
                star(rates, "10 TFLOP/s"), replace(work, grad_dtype=dtype), direction="backward"
            ).seconds
            for dtype in ("fp32", "bf16")
        ]
        for rates in ([(1, 1000), (1000, 1)], [(1, 1), (1, 1)])
    )
    assert uneven[0] == pytest.approx(uneven[1])
    assert even[0] > 1.2 * even[1]


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
    extra = alone_and_both(queries - own, keys - own)
    assert pairs <= owner.pairs(*(np.array([count], float) for count in extra))[0] + 1e-9
    prices = data.draw(st.sampled_from(PRICES))
    slope, offset = owner.tangents(prices)
    assert (slope * pairs + offset).max() <= prices.of(*extra) + 1e-9


PRICES = [
    Prices(query=query, key=8 - query, both=both)
    for query in (0.5, 3.0)
    for both in (0.5, 6.5, 8.0)
]


def alone_and_both(queries: set[int], keys: set[int]) -> tuple[int, int, int]:
    return len(queries - keys), len(keys - queries), len(queries & keys)


@pytest.mark.parametrize("tokens", [2, 3, 5])
def test_nothing_is_cheaper_where_all_pairs_count(tokens: int) -> None:
    """Any tokens of two sets go to the other; a pair that two places can do is done at either."""
    for own in range(1, tokens):
        moves = everything_that_may_move(tokens, own)
        for first, other in itertools.product(PRICES, repeat=2):
            cost = first.of(*moves[2:5]) + other.of(*moves[5:])
            for more in (0, 1):
                most = min(own + more, tokens), min(tokens - own + more, tokens)
                least = complete(tokens, most, first, other)
                for share in moves[:2]:
                    assert (least(share / tokens**2) <= cost + 1e-9).all()


def everything_that_may_move(tokens: int, own: int) -> Any:
    """List all movements between the first tokens and the others that let all pairs be computed.

    Returns:
        Least and most pairs of the first set, and queries alone, keys alone and both that come to
        it and to the other: ``[8, movements]``.
    """
    found = []
    sides = [set(range(own)), set(range(own, tokens))]
    subsets = [
        [set(some) for size in range(len(side) + 1) for some in itertools.combinations(side, size)]
        for side in sides
    ]
    for q, k, far_q, far_k in itertools.product(*[subsets[1]] * 2, *[subsets[0]] * 2):
        here, there = sides[0] | q, sides[1] | far_q
        keys, far_keys = sides[0] | k, sides[1] | far_k
        common = len(here & there) * len(keys & far_keys)
        if len(here) * len(keys) + len(there) * len(far_keys) - common == tokens**2:
            most, least = len(here) * len(keys), tokens**2 - len(there) * len(far_keys)
            found.append([least, most, *alone_and_both(q, k), *alone_and_both(far_q, far_k)])
    return np.array(found, float).T


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
