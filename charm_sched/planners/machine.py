"""The machine as a hierarchical strategy sees it: a tree of ranks with a pace per tier."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Floats
from charm_sched.errors import StrategyError
from charm_sched.planners.hierarchy import Tree, leaves, tree_of
from charm_sched.planners.timetable import Pace
from charm_sched.plans.builder import Builder

if TYPE_CHECKING:
    from charm_sched.topology.graph import Domain, Topology


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a hierarchical strategy needs to know of the machine.

    Attributes:
        tree: The ranks, nested by domain.
        paces: Planned speed of each depth of the tree, outermost first.
        streams: Name of each depth's tier.
        triple_seconds: Seconds of each rank per unmasked (query, key, head) triple.
        masked_seconds: The same in kernels of which the mask hides a part.
        overhead: Seconds per kernel call.
    """

    tree: Tree
    paces: tuple[Pace, ...]
    streams: tuple[str, ...]
    triple_seconds: Floats
    masked_seconds: Floats
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
    (rates, masked_rates), overhead = _speeds(b, topology)
    flops = b.workload.flops_per_pair(b.direction)
    return Machine(
        tree=tree,
        paces=_paces(b, topology, tree, root) if topology else _equal_paces(depth),
        streams=_names(root) if root else tuple(f"tier{i}" for i in range(depth)),
        triple_seconds=flops / rates,
        masked_seconds=flops / masked_rates,
        overhead=overhead,
    )


def _speeds(b: Builder, topology: Topology | None) -> tuple[Floats, float]:
    """Give each rank's sustained FLOP/s, without and with a mask, and the overhead of a kernel."""
    if topology is None:
        return np.full((2, b.num_ranks), 1e12), 0.0
    work = b.workload
    profiles = [topology.device(name).compute for name in b.devices]
    masks = (False, work.mask_rule.kind != "full")
    rates = [
        [
            profile.rate(
                direction=b.direction, head_dim=work.head_dim, causal=causal, dtype=work.dtype
            )[0]
            for profile in profiles
        ]
        for causal in masks
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


def _equal_paces(depth: int) -> tuple[Pace, ...]:
    """Take all tiers as equally fast, over one port of each rank."""
    return tuple(Pace(1e9, 0.0, 1e9, (1e9,) * outer) for outer in range(depth))


def _paces(b: Builder, topology: Topology, tree: Tree, root: Domain | None) -> tuple[Pace, ...]:
    """Estimate the messages of each depth while all ranks send at once.

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
            share = np.inf
            if domain:
                first = domain.children[0]
                share = topology.domain_bandwidth(first) / len(first.devices)
            common = tuple(
                float(min((widths[i] for i in taken & set(widths)), default=np.inf))
                for taken in crossed
            )
            alone = float(min(*widths.values(), route.flow_cap))
            latency = topology.planned_latency(route)
            paces.append(Pace(min(alone, float(share)), latency, alone, common))
            crossed.append(set(widths))
        else:
            paces.append(Pace(np.inf, 0.0, np.inf, (np.inf,) * len(paces)))
            crossed.append(set())
        node = node[0]
        domain = domain.children[0] if domain else None
    while len(paces) < _depth(tree):  # what the first branch of the tree does not reach
        last = paces[-1] if paces else Pace(1e9, 0.0, 1e9)
        paces.append(replace(last, common=(last.bandwidth,) * len(paces)))
    return tuple(paces)


def _depth(tree: Tree) -> int:
    return 0 if isinstance(tree, int) else 1 + max(_depth(child) for child in tree)


def _check_tree(tree: Tree, num_ranks: int) -> None:
    if sorted(leaves(tree)) != list(range(num_ranks)):
        raise StrategyError(
            f"domains: expected nested ranks that hold the ranks 0 to {num_ranks - 1} once each, "
            f"found {leaves(tree)}"
        )
