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
    from charm_sched.topology import Domain


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

    Without a topology all tiers are taken as equally fast.

    Raises:
        StrategyError: ``domains`` are not the ranks.
    """
    flops = b.workload.flops_per_pair(b.direction)
    topology = b.topology
    if topology is None or not b.devices:
        tree = list(range(b.num_ranks)) if domains is None else domains
        _check_tree(tree, b.num_ranks)
        depth = _depth(tree)
        return Machine(
            tree=tree,
            paces=(Pace(1e9, 0.0),) * depth,
            streams=tuple(f"tier{i}" for i in range(depth)),
            triple_seconds=np.full(b.num_ranks, flops / 1e12),
            overhead=0.0,
        )
    root = topology.domains(b.devices)
    tree = tree_of(root, b.devices) if domains is None else domains
    _check_tree(tree, b.num_ranks)
    paces: list[Pace] = []
    names: list[str] = []
    nodes = [root] if domains is None else []
    while nodes := [node for node in nodes if node.children]:
        paces.append(_pace(b, nodes[0]))
        names.append(nodes[0].tier or f"tier{len(names)}")
        nodes = [child for node in nodes for child in node.children]
    if domains is not None:
        slowest = _pace(b, root) if root.children else Pace(1e9, 0.0)
        paces = [slowest] * _depth(tree)
        names = [f"tier{i}" for i in range(len(paces))]
    work = b.workload
    profiles = [topology.device(name).compute for name in b.devices]
    rates = [
        profile.rate(direction=b.direction, head_dim=work.head_dim, causal=False, dtype=work.dtype)[
            0
        ]
        for profile in profiles
    ]
    return Machine(
        tree=tree,
        paces=tuple(paces),
        streams=tuple(names),
        triple_seconds=flops / np.array(rates),
        overhead=max(profile.overhead for profile in profiles),
    )


def _pace(b: Builder, node: Domain) -> Pace:
    """Estimate one message between two children of a domain while all ranks send at once."""
    assert b.topology is not None
    one, other = node.children[0], node.children[1]
    route = b.topology.route(one.devices[0], other.devices[0])
    widest = min(b.topology.capacities[i].bandwidth for i in route.capacities)
    share = b.topology.domain_bandwidth(one) / len(one.devices)
    return Pace(min(widest, route.flow_cap, share), route.latency)


def _depth(tree: Tree) -> int:
    return 0 if isinstance(tree, int) else 1 + max(_depth(child) for child in tree)


def _check_tree(tree: Tree, num_ranks: int) -> None:
    if sorted(leaves(tree)) != list(range(num_ranks)):
        raise StrategyError(
            f"charm: expected domains that hold the ranks 0 to {num_ranks - 1} once each, "
            f"found {leaves(tree)}"
        )
