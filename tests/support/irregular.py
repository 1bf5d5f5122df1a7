"""Machines that nobody would build, and workloads on them, drawn at random.

One to four tiers with uneven domains, links that are missing, slow one way, half duplex or capped,
cards of different speed, devices with a second way out or a wire of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.planners.hierarchy import Tree
from charm_sched.plans.plan import DIRECTIONS, Plan
from charm_sched.search.planning import build, residents
from charm_sched.topology.graph import Topology
from charm_sched.workload import Workload
from support.cases import HEADS, masks, partitions, trees

TIERS = ("wire", "bus", "fabric", "trunk")
LATENCIES = ("0 s", "1 us", "1 us", "20 us", "3 ms")
PEAKS = ("1 GFLOP/s", "50 GFLOP/s", "7 TFLOP/s", "900 TFLOP/s")
WORDS: Mapping[str, Sequence[str]] = {
    "algorithm": ("ring", "direct"),
    "inside": ("ulysses", "ring"),
    "neighbours": ("auto", "queries", "keys"),
}
"""What parameters that take a word may be."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A machine, a workload on some of its devices, and who owns what."""

    topology: Topology
    workload: Workload
    devices: tuple[str, ...]
    partition: str


@dataclass
class _Parts:
    """The lists of a topology document, while it grows."""

    devices: list[dict[str, Any]]
    switches: list[dict[str, Any]]
    links: list[dict[str, Any]]


@st.composite
def documents(draw: st.DrawFn, most_devices: int = 8) -> dict[str, Any]:
    """Draw a topology document of one to ``most_devices`` devices."""
    parts = _Parts([], [], [])
    if draw(st.integers(0, 9)):
        _grow(draw, parts, draw(st.integers(1, 4)), "", most_devices)
        _add_wires(draw, parts)
    else:
        _wire(draw, parts, draw(st.integers(2, max(2, most_devices))))
    cards = sorted({device["profile"] for device in parts.devices})
    given: dict[str, Any] = {}
    if len(parts.devices) > 1 and draw(st.sampled_from([False, False, False, True])):
        tree = draw(trees(len(parts.devices), len(parts.devices)))
        given["domains"] = [_domain(child, parts.devices, str(i)) for i, child in enumerate(tree)]
    return given | {
        "schema": "charm-sched/topology", "version": 1, "name": "irregular",
        "profiles": {card: draw(_profiles()) for card in cards},
        "devices": parts.devices, "switches": parts.switches, "links": parts.links,
    }  # fmt: skip


def _domain(tree: Tree, devices: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Write a tree of device numbers as the hierarchy that a file gives."""
    if isinstance(tree, int):
        return {"name": name, "devices": [devices[tree]["name"]]}
    inner = [_domain(child, devices, f"{name}.{i}") for i, child in enumerate(tree)]
    return {"name": name, "domains": inner}


def _grow(draw: st.DrawFn, parts: _Parts, tier: int, prefix: str, room: int) -> list[str]:
    """Add a domain with a device or more below it; give the names it can be reached by."""
    if tier == 0:
        return [_device(draw, parts, prefix)]
    hubs = [f"{prefix}hub{i}" for i in range(draw(st.sampled_from([1, 1, 1, 2])))]
    parts.switches += [{"name": hub, "kind": f"switch{tier}"} for hub in hubs]
    if len(hubs) == 2:
        parts.links.append(draw(_links(*hubs, tier)))
    first = len(parts.devices)
    for child in range(draw(st.integers(1, 5))):
        left = room - (len(parts.devices) - first)
        if left < 1:
            break
        ports = _grow(draw, parts, tier - 1, f"{prefix}{'abcd'[tier - 1]}{child}/", left)
        for number, port in enumerate(ports):
            if number and draw(st.booleans()):
                continue  # the second way out is missing
            for hub in hubs[: 1 + draw(st.integers(0, len(hubs) - 1))]:
                parts.links.append(draw(_links(port, hub, tier)))
    return hubs


def _wire(draw: st.DrawFn, parts: _Parts, devices: int) -> None:
    """Add devices with wires between them and no switch: some pairs may have no route."""
    names = [_device(draw, parts, f"{i}/") for i in range(devices)]
    whole = draw(st.booleans())
    for number, name in enumerate(names[1:], 1):
        for other in names[:number] if whole else [names[draw(st.integers(0, number - 1))]]:
            parts.links.append(draw(_links(other, name, draw(st.integers(1, 4)))))


def _device(draw: st.DrawFn, parts: _Parts, prefix: str) -> str:
    name = f"{prefix}gpu"
    device = {"name": name, "profile": draw(st.sampled_from(["fast", "fast", "slow", "odd"]))}
    if draw(st.booleans()):
        device["memory"] = draw(st.sampled_from(["4 KB", "2 MB", "80 GB"])).replace("KB", "kB")
    if draw(st.sampled_from([False, False, True])):
        device["port"] = f"{draw(st.integers(1, 20))} GB/s"
    parts.devices.append(device)
    return name


def _add_wires(draw: st.DrawFn, parts: _Parts) -> None:
    """Add links between any two parts, as shortcuts and second ways."""
    names = [part["name"] for part in (*parts.devices, *parts.switches)]
    if len(names) < 2:
        return
    for _ in range(draw(st.integers(0, 3))):
        ends = draw(st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True))
        parts.links.append(draw(_links(*ends, draw(st.integers(1, 4)))))


@st.composite
def _links(draw: st.DrawFn, src: str, dst: str, tier: int) -> dict[str, Any]:
    scale = draw(st.sampled_from([1.0, 1.0, 1.0, 0.1, 1e-6, 1e6])) * 100 / 5**tier
    rates = st.integers(1, 9).map(lambda n: f"{n * scale:.6g} GB/s")
    link: dict[str, Any] = {
        "from": src, "to": dst, "kind": TIERS[tier - 1],
        "bandwidth": draw(rates), "latency": draw(st.sampled_from(LATENCIES)),
    }  # fmt: skip
    match draw(st.integers(0, 5)):
        case 0:
            link["reverse"] = draw(rates)
        case 1:
            link["shared"] = True
        case 2:
            link["flow_cap"] = draw(rates)
        case 3:
            link["count"] = 2
    return link


@st.composite
def _profiles(draw: st.DrawFn) -> dict[str, Any]:
    profile: dict[str, Any] = {
        "peak": {"bf16": draw(st.sampled_from(PEAKS)), "fp64": draw(st.sampled_from(PEAKS))},
        "efficiency": draw(st.sampled_from([1.0, 0.5, 0.01])),
        "overhead": draw(st.sampled_from(["0 s", "5 us", "2 ms"])),
        "memory_bandwidth": "1 TB/s",
    }
    if draw(st.booleans()):
        profile["rates"] = [
            {
                "direction": draw(st.sampled_from(DIRECTIONS)), "head_dim": 4,
                "causal": draw(st.booleans()), "dtypes": ["fp64"], "rate": "3 GFLOP/s",
            }
        ]  # fmt: skip
    return profile


@st.composite
def cases(
    draw: st.DrawFn, most_devices: int = 8, most_tokens: int = 14, *, long: bool = False
) -> Case:
    """Draw a machine with a workload on some of its devices, in any order."""
    topology = Topology.from_document(draw(documents(most_devices)))
    devices = list(topology.device_names)
    if draw(st.booleans()):
        devices = draw(st.permutations(devices))[: draw(st.integers(1, len(devices)))]
    workload = draw(long_workloads() if long else workloads(most_tokens))
    return Case(
        topology=topology,
        workload=workload,
        devices=tuple(devices),
        partition=draw(st.sampled_from(partitions(workload))),
    )


@st.composite
def workloads(draw: st.DrawFn, most_tokens: int) -> Workload:
    """Draw heads, length and mask."""
    heads, kv_heads = draw(st.sampled_from(HEADS))
    seq_len = draw(st.integers(1, most_tokens))
    return Workload(
        seq_len=seq_len, heads=heads, kv_heads=kv_heads, head_dim=4,
        v_head_dim=draw(st.sampled_from([4, 4, 3])), dtype="fp64", mask=draw(masks(seq_len)),
    )  # fmt: skip


@st.composite
def long_workloads(draw: st.DrawFn) -> Workload:
    """Draw a workload as models have them."""
    heads, kv_heads = draw(st.sampled_from([(8, 1), (8, 8), (12, 4), (32, 8)]))
    seq_len = draw(st.sampled_from([1000, 4096, 30_001, 131_072]))
    return Workload(
        seq_len=seq_len, heads=heads, kv_heads=kv_heads, batch=draw(st.integers(1, 2)),
        head_dim=draw(st.sampled_from([64, 128])), mask=draw(masks(seq_len)),
    )  # fmt: skip


@st.composite
def params(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """Draw some of a strategy's parameters, after the kinds of their defaults."""
    found: dict[str, Any] = {}
    for parameter in list(inspect.signature(PLANNERS[name]).parameters.values())[1:]:
        match parameter.default:
            case bool():
                value: st.SearchStrategy[Any] = st.booleans()
            case int():
                value = st.integers(0, 4)
            case str():
                value = st.sampled_from(WORDS[parameter.name])
            case _:
                continue
        if draw(st.booleans()):
            found[parameter.name] = draw(value)
    return found


def passes(case: Case, name: str, fixed: Mapping[str, Any]) -> Iterator[Plan]:
    """Let a planner write the forward, and the backward that starts from what it keeps."""
    shards = Partition.of(case.partition, case.workload, len(case.devices))
    saved: Sequence[Any] = ()
    for direction in DIRECTIONS:
        plan = build(
            PLANNERS[name], name, case.workload, shards, direction=direction,
            topology=case.topology, devices=case.devices, params=fixed, saved=saved,
        )  # fmt: skip
        saved = residents(plan)
        yield plan


def lone() -> Case:
    """One device of a machine of three."""
    return _small([("a", "hub"), ("b", "hub"), ("c", "hub")], ("b",))


def chain() -> Case:
    """Three devices in a row: the outer two have no route, as devices never forward."""
    return _small([("a", "b"), ("b", "c")], ("a", "b", "c"))


def _small(ends: Sequence[tuple[str, str]], devices: tuple[str, ...]) -> Case:
    names = sorted({name for pair in ends for name in pair} - {"hub"})
    hubs = [{"name": "hub", "kind": "switch"}] if any("hub" in pair for pair in ends) else []
    document = {
        "schema": "charm-sched/topology", "version": 1, "name": "small",
        "profiles": {
            "card": {
                "peak": {"fp64": "1 TFLOP/s"}, "efficiency": 0.5, "overhead": "1 us",
                "memory_bandwidth": "1 TB/s",
            }
        },
        "devices": [{"name": name, "profile": "card"} for name in names], "switches": hubs,
        "links": [
            {"from": src, "to": dst, "kind": "wire", "bandwidth": "1 GB/s", "latency": "1 us"}
            for src, dst in ends
        ],
    }  # fmt: skip
    return Case(
        topology=Topology.from_document(document),
        workload=Workload(seq_len=9, heads=4, kv_heads=2, head_dim=4, dtype="fp64"),
        devices=devices,
        partition="zigzag",
    )
