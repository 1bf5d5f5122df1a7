"""The bound of plans that move keys: golden values, all cuts by brute force, every simulation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import CHARM_PARAMS, masks
from support.machines import machine, machines

from charm_sched.bounds.bound import delay_between, delay_out
from charm_sched.bounds.class_bound import class_bound
from charm_sched.bounds.demands import demand_of
from charm_sched.errors import WorkloadError
from charm_sched.masks.blocks import Block
from charm_sched.masks.mask import Mask
from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.planners.strategies import build, residents
from charm_sched.plans.items import Item
from charm_sched.plans.plan import DIRECTIONS, Plan
from charm_sched.simulator import simulate
from charm_sched.topology.graph import Topology, load_topology
from charm_sched.workload import Workload

GB = 1e9


def hgx(nodes: int, *, nics: int = 8, wide: int = 1000) -> Topology:
    """Nodes of eight GPUs behind an NVSwitch, and NICs that 8 / `nics` of them share."""
    share = 8 // nics
    links: list[tuple[str, str, float]] = []
    switches = []
    for node in range(nodes):
        switches += [f"nvswitch{node}", *(f"pcie{node}x{n}" for n in range(nics))]
        for gpu in range(8):
            links.append((f"d{8 * node + gpu}", f"nvswitch{node}", 450))
            links.append((f"d{8 * node + gpu}", f"pcie{node}x{gpu // share}", wide))
        links += [(f"pcie{node}x{n}", "fabric", 50) for n in range(nics)] if nodes > 1 else []
    return machine(8 * nodes, links, switches=[*switches, "fabric"] if nodes > 1 else switches)


def single() -> Topology:
    return machine(8, [("d0..7", "nvswitch", 450)], switches=["nvswitch"])


def pcie_box() -> Topology:
    links: list[tuple[str, str, float]] = [("root0", "root1", 22)]
    for socket, switch in itertools.product(range(2), range(2)):
        links.append((f"pcie{socket}{switch}", f"root{socket}", 24))
        first = 4 * socket + 2 * switch
        links.append((f"d{first}..{first + 1}", f"pcie{socket}{switch}", 24))
    switches = ["root0", "root1", *(f"pcie{s}{p}" for s in range(2) for p in range(2))]
    return machine(8, links, switches=switches)


def mesh(side: int) -> Topology:
    links: list[tuple[str, str, float]] = []
    for row, column in itertools.product(range(side), range(side)):
        here = side * row + column
        links += [(f"d{here}", f"d{here + 1}", 50)] if column + 1 < side else []
        links += [(f"d{here}", f"d{here + side}", 50)] if row + 1 < side else []
    return machine(side * side, links)


# reference: seconds per GB of shard (ForestColl's formula; arXiv:2402.06787), no device ports.
GOLDEN = [
    (single, 7 / 450),
    (lambda: hgx(4), 31 / 500),
    (lambda: hgx(4, wide=1_000_000), 31 / 500),
    (lambda: hgx(32), 31 / 50),
    (lambda: hgx(128), 127 / 50),
    (lambda: hgx(4, nics=4), 3 / 25),
    (pcie_box, 7 / 24),
    (lambda: mesh(16), 255 / 100),
]


@pytest.mark.parametrize(("build_machine", "seconds"), GOLDEN)
def test_golden_values(build_machine: Any, seconds: float) -> None:
    topology = build_machine()
    ranks = len(topology.devices)
    # 1000 tokens of 1e6 bytes each: a shard of 1 GB.
    work = Workload(seq_len=1000 * ranks, heads=1, head_dim=250_000, mask="full")
    found = class_bound(topology, work, partition="contiguous")
    assert found.communication == pytest.approx(seconds, rel=1e-9)


def worst_by_brute_force(
    topology: Topology, partition: Partition, work: Workload, way: str
) -> tuple[float, float]:
    """Try all sets of vertices, ports included, with bytes counted token by token; and covers."""
    names = [*topology.device_names, *(switch.name for switch in topology.switches)]
    ranks, size = len(topology.devices), len(names)
    at = {name: i for i, name in enumerate(names)}
    arcs: list[tuple[int, int, float, object]] = []
    for rank, device in enumerate(topology.devices):
        arcs.append((rank, size + rank, device.port, ("out", rank)))
        arcs.append((size + ranks + rank, rank, device.port, ("in", rank)))
    for link, capacity in zip(topology.links, topology.link_capacity, strict=True):
        src, dst = at[link.src], at[link.dst]
        tail = size + src if src < ranks else src
        head = size + ranks + dst if dst < ranks else dst
        arcs.append((tail, head, link.bandwidth, capacity))
    sets = np.array(list(itertools.product([False, True], repeat=size + 2 * ranks)), np.bool_)
    out, crossing = np.zeros(len(sets)), np.zeros(len(sets))
    either: dict[object, np.ndarray[Any, Any]] = {}
    for tail, head, rate, capacity in arcs:
        out += rate * (sets[:, tail] & ~sets[:, head])
        either[capacity] = either.get(capacity, False) | (sets[:, tail] != sets[:, head])
        either[capacity, "rate"] = rate  # type: ignore[assignment]
    for capacity in [key for key in either if (key, "rate") in either]:
        crossing += either[capacity] * float(either[capacity, "rate"])  # type: ignore[arg-type]
    worst = 0.0
    bytes_of = {inside: leaving(partition, work, way, inside)
                for inside in itertools.product([False, True], repeat=ranks)}  # fmt: skip
    narrowest: dict[tuple[bool, ...], float] = {}
    for row, one_way, both_ways in zip(sets[:, :ranks].tolist(), out, crossing, strict=True):
        narrowest[tuple(row)] = min(narrowest.get(tuple(row), np.inf), one_way)
        there = bytes_of[tuple(row)]
        back = bytes_of[tuple(not inside for inside in row)]
        if there:
            worst = max(worst, there / one_way)
        if there + back:
            worst = max(worst, (there + back) / both_ways)
    return float(worst), worst_cover_of(partition, work, way, narrowest)


def worst_cover_of(
    partition: Partition, work: Workload, way: str, narrowest: dict[tuple[bool, ...], float]
) -> float:
    """Try all ways to put the devices into sets: what enters and is owed, over what leaves."""
    ranks, worst = partition.num_ranks, 0.0
    for labels in itertools.product(range(ranks), repeat=ranks):
        blocks = [tuple(label == k for label in labels) for k in sorted(set(labels))]
        moved = 0
        for block in blocks if len(blocks) > 1 else ():
            others = tuple(not inside for inside in block)
            moved += leaving(partition, work, "forward", others)  # the keys that enter
            moved += leaving(partition, work, way, block) - leaving(
                partition, work, "forward", block
            )
        width = [sum(narrowest[tuple(x ^ flip for x in block)] for block in blocks)
                 for flip in (False, True)] if moved else [1.0]  # fmt: skip
        worst = max(worst, moved / min(width))
    return worst


def leaving(partition: Partition, work: Workload, way: str, inside: Sequence[bool]) -> int:
    owner = {t: r for r, rows in enumerate(partition.shards) for a, b in rows for t in range(a, b)}
    total = 0
    for key in range(work.seq_len):
        users = {owner[query] for query in range(work.seq_len) if sees(work, query, key)}
        if inside[owner[key]] and not all(inside[user] for user in users):
            total += work.row_bytes("kv") * work.num_kv_heads
        if way == "backward" and not inside[owner[key]] and any(inside[user] for user in users):
            final = owner[key] not in users  # else the owner adds to what comes home
            total += work.row_bytes("dkv", final=final) * work.num_kv_heads
    return total


def sees(work: Workload, query: int, key: int) -> bool:
    return any(
        segment.first <= query < segment.last and segment.lower(query) <= key < segment.upper(query)
        for segment in work.mask_rule.segments(work.seq_len)
    )


@st.composite
def partitions(draw: st.DrawFn, seq_len: int, ranks: int) -> Partition:
    """Contiguous, zigzag, or every token to anybody."""
    kind = draw(st.sampled_from(["contiguous", "zigzag", "custom"]))
    if kind != "custom":
        return Partition.named(kind, seq_len, ranks)
    owners = draw(st.lists(st.integers(0, ranks - 1), min_size=seq_len, max_size=seq_len))
    shards = [[(t, t + 1) for t in range(seq_len) if owners[t] == r] for r in range(ranks)]
    from charm_sched.partition import rows_of

    return Partition("custom", seq_len, tuple(rows_of(shard) for shard in shards))


@settings(max_examples=100)
@given(data=st.data(), way=st.sampled_from(DIRECTIONS))
def test_all_cuts_by_brute_force(data: st.DataObject, way: str) -> None:
    topology = data.draw(machines(most_devices=3))
    ranks = len(topology.devices)
    length = data.draw(st.integers(1, 8))
    nested = data.draw(st.booleans())
    mask = data.draw(st.sampled_from(["full", "causal"]) if nested else masks(length))
    work = Workload(seq_len=length, heads=2, kv_heads=1, head_dim=4, mask=mask)
    partition = data.draw(partitions(length, ranks))
    found = class_bound(topology, work, direction=way, partition=partition)
    cut, cover = worst_by_brute_force(topology, partition, work, way)
    assert found.communication <= max(cut, cover) * (1 + 1e-12)
    half_duplex = any(link.shared for link in topology.links)
    narrow = any(
        device.port < sum(link.bandwidth for link in topology.links if link.src == device.name)
        for device in topology.devices
    )
    if mask in ("full", "causal") and not (half_duplex and narrow):
        assert found.communication >= cut * (1 - 1e-9)
    if found.cut and "in all" not in found.cut.words:
        assert 0 < len(found.cut.devices) < ranks


@settings(max_examples=60)
@given(data=st.data())
def test_no_simulation_is_faster(data: st.DataObject) -> None:
    topology = data.draw(machines(most_devices=5, latency="2 us", overhead="3 us"))
    ranks = len(topology.devices)
    length = data.draw(st.integers(1, 40))
    work = Workload(seq_len=length, heads=2, kv_heads=1, head_dim=64, mask=data.draw(masks(length)))
    kind = data.draw(st.sampled_from(["contiguous", "zigzag"]))
    name = data.draw(st.sampled_from(["ring", "charm"]))
    params = data.draw(st.sampled_from(CHARM_PARAMS)) if name == "charm" else {}
    saved: tuple[tuple[int, Item, int], ...] = ()
    for way in DIRECTIONS:
        plan = planned(
            topology, work, name, Partition.named(kind, length, ranks), way, params, saved
        )
        found = class_bound(topology, work, direction=way, partition=kind, saved=saved)
        assert simulate(plan, topology).makespan >= found.seconds * (1 - 1e-9)
        saved = residents(plan)


def planned(
    topology: Topology, work: Workload, name: str, partition: Partition, way: str, params: Any,
    saved: Any,
) -> Plan:  # fmt: skip
    return build(
        PLANNERS[name], name, work, partition, direction=way, topology=topology,
        devices=topology.device_names, params=params, saved=saved,
    )  # fmt: skip


def test_what_is_resident_does_not_move_again() -> None:
    topology = machine(2, [("d0", "d1", 1)])
    work = Workload(seq_len=8, heads=1, head_dim=4, mask="full")
    row = work.row_bytes("kv")
    saved = [(1, Item("kv", ((0, 4),), (0, 1)), 0)]
    demand = demand_of(work, Partition.contiguous(8, 2), direction="backward", saved=saved)
    assert demand.leaving(np.array([True, False])) == 4 * work.row_bytes("dkv")
    assert demand.leaving(np.array([False, True])) == 4 * row + 4 * work.row_bytes("dkv")
    bounds = [class_bound(topology, work, direction="backward", saved=s).communication
              for s in ((), saved)]  # fmt: skip
    assert bounds[0] == bounds[1] > 0  # the other way still carries both
    both = [*saved, (0, Item("kv", ((4, 8),), (0, 1)), 0)]
    alone = class_bound(topology, work, direction="backward", partition="contiguous", saved=both)
    assert alone.communication == pytest.approx(4 * work.row_bytes("dkv") / GB)


def test_gradients_that_the_owner_has_no_part_in_may_be_final() -> None:
    """Each of two devices attends to the other's keys alone: keys go there, gradients come back."""
    blocks = (Block(rows=(0, 4), keys=(4, 8)), Block(rows=(4, 8), keys=(0, 4)))
    work = Workload(seq_len=8, heads=1, head_dim=4, mask=Mask(kind="blocks", blocks=blocks))
    topology, shards = machine(2, [("d0", "d1", 1)]), Partition.contiguous(8, 2)
    found = class_bound(topology, work, direction="backward", partition=shards)
    sizes = work.row_bytes("kv"), work.row_bytes("dkv", final=True)
    assert found.communication == pytest.approx(4 * sum(sizes) / GB)
    plan = planned(topology, work, "ring", shards, "backward", {}, ())
    assert plan.op_bytes.sum() == 2 * 4 * sum(sizes)
    assert simulate(plan, topology).makespan >= found.seconds


def test_a_copy_counts_for_all_who_can_reach_it() -> None:
    """Keys of d0 that d2 holds need not cross the slow link to d3."""
    links = [("d0", "d1", 9), ("d2", "d3", 9), ("d1", "d2", 1)]
    topology = machine(4, links)
    work = Workload(seq_len=4, heads=1, head_dim=4, grad_dtype="bf16", mask="full")
    saved = [(3, Item("kv", ((t, t + 1),), (0, 1)), t) for t in (0, 1)]
    saved += [(0, Item("kv", ((t, t + 1),), (0, 1)), t) for t in (2, 3)]
    found = class_bound(topology, work, direction="backward", partition="contiguous", saved=saved)
    assert found.communication == pytest.approx(2 * work.row_bytes("dkv") / GB)


def test_three_alike_devices_are_bound_together() -> None:
    """A shard of V bytes of keys, gradients of 2 V; each device takes in 2 V and sends home 4 V.

    What one takes in the others give out: 18 V over three links of 1 GB/s. Alone, a device gives
    out just V and 4 V.
    """
    topology = machine(3, [("d0..2", "hub", 1)], switches=["hub"])
    work = Workload(seq_len=30, heads=1, head_dim=4, mask="full")
    shard = 10 * work.row_bytes("kv")
    assert work.row_bytes("dkv") == 2 * work.row_bytes("kv")
    found = class_bound(topology, work, direction="backward")
    assert found.communication == pytest.approx(6 * shard / GB)
    assert found.cut is not None
    assert found.cut.words.startswith(f"{18 * shard / 1000:.3g}".rstrip("0"))


def test_least_delay_is_between_groups() -> None:
    links = [("d0", "a", 1), ("d1", "a", 1), ("a", "b", 1), ("b", "d2", 1), ("b", "d3", 1)]
    topology = machine(4, links, switches=["a", "b"], latency="1 us")
    names = topology.device_names
    assert delay_between(topology, names, [0, 1, 2, 3]) == pytest.approx(2e-6)
    assert delay_between(topology, names, [0, 0, 1, 1]) == pytest.approx(3e-6)
    assert delay_out(topology, names, np.array([True, True, False, False])) == pytest.approx(3e-6)
    assert delay_out(topology, names, np.array([True, False, True, False])) == pytest.approx(2e-6)
    assert delay_between(topology, names[:1] + names[2:3], [0, 1]) == pytest.approx(3e-6)


def test_computation_of_the_busiest_device_counts() -> None:
    topology = load_topology("single_node_nvlink")
    work = Workload(seq_len=2**20, heads=32, kv_heads=8, mask="causal")
    even = class_bound(topology, work, partition="zigzag")
    uneven = class_bound(topology, work, partition="contiguous")
    assert even.reason.startswith("computation on ")
    assert uneven.reason == "computation on gpu7"
    assert uneven.seconds == pytest.approx(even.seconds * (2 - 1 / 8), rel=1e-3)


def test_one_device_has_nothing_to_move() -> None:
    found = class_bound(load_topology("single_node_nvlink"), Workload(seq_len=64), ranks=1)
    assert found.cut is None
    assert found.communication == 0


def test_the_cut_is_named() -> None:
    topology = load_topology("dual_node_nvlink_4nic")
    work = Workload(seq_len=2**13, heads=32, kv_heads=32, mask="full")
    found = class_bound(topology, work)
    assert found.cut is not None
    assert set(found.cut.devices) == {name for name in topology.device_names if name[4] == "1"}
    assert found.reason.startswith("67.1 MB of keys and values out of node1 over ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"direction": "both"}, "expected forward or backward, found 'both'"),
        ({"partition": "auto"}, "expected contiguous, zigzag"),
        (
            {"partition": Partition.contiguous(64, 3)},
            "expected 64 tokens on 8 ranks, found 64 on 3",
        ),
        ({"ranks": 2, "devices": ["gpu0"]}, "expected one of the two"),
        ({"devices": ["gpu0", "gpu0"]}, "expected different names"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        class_bound(load_topology("single_node_nvlink"), Workload(seq_len=64), **arguments)
