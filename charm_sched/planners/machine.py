"""The machine as a hierarchical strategy sees it: a tree of ranks with a pace per tier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Floats
from charm_sched.builder import Builder
from charm_sched.errors import StrategyError
from charm_sched.planners.hierarchy import Tree, leaves, tree_of
from charm_sched.planners.timetable import Pace

if TYPE_CHECKING:
    from charm_sched.topology import Domain, Topology


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a hierarchical strategy needs to know of the machine.

    Attributes:
        tree: The ranks, nested by domain.
        paces: Planned speed of each depth of the tree, outermost first.
        streams: Name of each depth's tier.
        triple_seconds: Seconds of each rank per unmasked (query, key, head) triple.
        overhead: Seconds per kernel call.
    """

    tree: Tree
    paces: tuple[Pace, ...]
    streams: tuple[str, ...]
    triple_seconds: Floats
    overhead: float


def machine_of(b: Builder, domains: Tree | None) -> Machine:
    """Read the machine that a plan is made for.

    Without a topology all tiers are taken as equally fast, and devices as 1 TFLOP/s.

    Raises:
        StrategyError: ``domains`` are not the ranks.
    """
    topology = b.topology if b.devices else None
    root = topology.domains(b.devices) if topology and domains is None else None
    if domains is not None:
        tree = domains
    else:
        tree = tree_of(root, b.devices) if root else list(range(b.num_ranks))
    _check_tree(tree, b.num_ranks)
    depth = _depth(tree)
    rates, overhead = _speeds(b, topology)
    return Machine(
        tree=tree,
        paces=_paces(b, topology, tree, root) if topology else (Pace(1e9, 0.0),) * depth,
        streams=_names(root) if root else tuple(f"tier{i}" for i in range(depth)),
        triple_seconds=b.workload.flops_per_pair(b.direction) / rates,
        overhead=overhead,
    )


def _speeds(b: Builder, topology: Topology | None) -> tuple[Floats, float]:
    """Give each rank's sustained FLOP/s, and the largest overhead of a kernel call in seconds."""
    if topology is None:
        return np.full(b.num_ranks, 1e12), 0.0
    work = b.workload
    profiles = [topology.device(name).compute for name in b.devices]
    rates = [
        profile.rate(direction=b.direction, head_dim=work.head_dim, causal=False, dtype=work.dtype)[
            0
        ]
        for profile in profiles
    ]
    return np.array(rates), max(profile.overhead for profile in profiles)


def _names(root: Domain) -> tuple[str, ...]:
    """Name the tier of each depth."""
    names: list[str] = []
    nodes = [root]
    while nodes := [node for node in nodes if node.children]:
        names.append(nodes[0].tier or f"tier{len(names)}")
        nodes = [child for node in nodes for child in node.children]
    return tuple(names)


def _paces(b: Builder, topology: Topology, tree: Tree, root: Domain | None) -> tuple[Pace, ...]:
    """Estimate one message of each depth while all ranks send at once.

    Read off one pair of counterparts per depth: the narrowest part of their route, its cap per
    flow, and the cut around the first domain over its devices.
    """
    paces: list[Pace] = []
    crossed: list[set[int]] = []
    node, domain = tree, root
    while not isinstance(node, int):
        if len(node) > 1:
            one, other = (b.devices[leaves(child)[0]] for child in node[:2])
            route = topology.route(one, other)
            widths = {i: topology.capacities[i].bandwidth for i in route.capacities}
            share = float("inf")
            if domain:
                first = domain.children[0]
                share = topology.domain_bandwidth(first) / len(first.devices)
            beside = tuple(
                min((widths[i] - outer.bandwidth for i in taken & set(widths)), default=np.inf)
                for outer, taken in zip(paces, crossed, strict=True)
            )
            bandwidth = min(*widths.values(), route.flow_cap, share)
            floor = bandwidth / 100  # what is left beside another tier is never taken as nothing
            paces.append(Pace(bandwidth, route.latency, tuple(max(left, floor) for left in beside)))
            crossed.append(set(widths))
        else:
            paces.append(Pace(np.inf, 0.0, (np.inf,) * len(paces)))
            crossed.append(set())
        node = node[0]
        domain = domain.children[0] if domain else None
    deeper = _depth(tree) - len(paces)
    return (*paces, *(paces[-1:] or [Pace(1e9, 0.0)]) * deeper)


def _depth(tree: Tree) -> int:
    return 0 if isinstance(tree, int) else 1 + max(_depth(child) for child in tree)


def _check_tree(tree: Tree, num_ranks: int) -> None:
    if sorted(leaves(tree)) != list(range(num_ranks)):
        raise StrategyError(
            f"domains: expected nested ranks that hold the ranks 0 to {num_ranks - 1} once each, "
            f"found {leaves(tree)}"
        )
