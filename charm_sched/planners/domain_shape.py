"""Which part of the attention each domain and each of its ranks computes, and what that moves.

The n domains form a box: H head groups x R rows x C columns. A domain attends, for the heads of its
group, the queries of the domains of its group and row (H R of them) with the keys of those of its
group and column (H C). R alone moves queries, C alone keys and values, H alone re-shards heads; all
are mixtures of these. The ranks of a domain form a box of h x r x c in the same way: they share the
heads of their domain's group, and take turns in what the domain attends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.errors import StrategyError
from charm_sched.planners.hierarchy import Tree, leaves
from charm_sched.planners.tiles import shard_bytes
from charm_sched.planners.timetable import Pace

if TYPE_CHECKING:
    from charm_sched.planners.machine import Machine
    from charm_sched.plans.builder import Builder
    from charm_sched.workload import Workload

MOST_PAIRS = 2**17
"""Pairs of operands in all kernels: with more, a plan takes long to simulate and to prove."""
SIDES = ("queries", "keys")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How work is dealt to domains, and inside a domain to ranks.

    Attributes:
        groups: Head groups of domains, H.
        rows: Domains of a group whose queries a domain attends beside each other, R.
        columns: The same for keys, C.
        inner_groups: Head groups of the ranks of a domain, h.
        inner_rows: Ranks of a group whose queries a rank attends beside each other, r.
        inner_columns: The same for keys, c.
    """

    groups: int
    rows: int
    columns: int
    inner_groups: int
    inner_rows: int
    inner_columns: int

    def across(self, side: str) -> int:
        """Give from how many domains a domain gets queries or keys, its own included."""
        return self.groups * (self.rows if side == "queries" else self.columns)

    def inside(self, side: str) -> int:
        """Give from how many ranks of its domain a rank gets queries or keys, itself included."""
        return self.inner_groups * (self.inner_rows if side == "queries" else self.inner_columns)

    def finals(self, workload: Workload) -> tuple[bool, bool]:
        """Say whether one rank computes each result of queries, and of keys, all by itself.

        It gathers all there is of the other side, and no other rank has the same heads. (Groups of
        domains leave the pairs of a domain's own queries and keys in the domain.)
        """
        sides = (
            (self.rows * self.inner_rows, workload.heads),
            (self.columns * self.inner_columns, workload.num_kv_heads),
        )
        queries, keys = (
            self.groups * beside == 1 and heads >= self.inner_groups for beside, heads in sides
        )
        return queries, keys

    @property
    def pairs(self) -> int:
        """Pairs of (queries, keys) operands on each rank."""
        rows, columns = (self.across(side) * self.inside(side) for side in SIDES)
        return rows * columns


def domains_of(tree: Tree) -> Ints:
    """Give the ranks of the innermost domains, ``[domains, ranks of one]``.

    Raises:
        StrategyError: They are not of equal size.
    """
    found = list(_innermost(tree))
    sizes = {len(ranks) for ranks in found}
    if len(sizes) > 1:
        raise StrategyError(
            "domain_mesh: expected innermost domains of equal size, whose ranks are counterparts "
            f"of each other, found sizes {sorted(len(ranks) for ranks in found)}; use charm, which "
            "serves uneven domains"
        )
    return np.array(found, np.int64)


def _innermost(tree: Tree) -> Iterator[list[int]]:
    if isinstance(tree, int):
        yield [tree]
    elif all(isinstance(child, int) for child in tree):
        yield leaves(tree)
    else:
        for child in tree:
            yield from _innermost(child)


def two_tiers(machine: Machine) -> tuple[tuple[str, str], tuple[Pace, Pace]]:
    """Give names and paces across domains (of the slowest tier there is) and inside them."""
    if not machine.paces:  # one rank, from which nothing moves
        nothing = Pace(1e9, 0.0, 1e9, (1e9,))
        return ("across", "inside"), (nothing, nothing)
    *outer, inside = machine.paces
    if not outer:
        return ("across", machine.streams[-1]), (
            inside,
            replace(inside, common=(inside.bandwidth,)),
        )
    slowest = min(range(len(outer)), key=lambda depth: outer[depth].bandwidth)
    common = (inside.common[slowest],)
    return (
        (machine.streams[slowest], machine.streams[-1]),
        (outer[slowest], replace(inside, common=common)),
    )


def shapes(b: Builder, domains: Ints) -> Iterator[Shape]:
    """List the shapes that serve a workload on some domains."""
    count, size = domains.shape
    for groups, rows, columns in _boxes(count):
        for inner_groups, inner_rows, inner_columns in _boxes(size):
            if _deals(b, groups) and _deals(b, groups * inner_groups):
                yield Shape(
                    groups=groups, rows=rows, columns=columns, inner_groups=inner_groups,
                    inner_rows=inner_rows, inner_columns=inner_columns,
                )  # fmt: skip


def _boxes(count: int) -> Iterator[tuple[int, int, int]]:
    """List all ways to write a number as a product of three."""
    for one in _divisors(count):
        for two in _divisors(count // one):
            yield one, two, count // one // two


def _deals(b: Builder, groups: int) -> bool:
    """Say whether heads can be dealt to so many groups evenly, KV heads or copies of them too."""
    heads, keys = b.workload.heads, b.workload.num_kv_heads
    return heads % groups == 0 and max(keys, groups) % min(keys, groups) == 0


def choose_shape(b: Builder, machine: Machine, domains: Ints, fixed: Mapping[str, int]) -> Shape:
    """Give the shape that is the fastest by an estimate: then fewest bytes across, then inside.

    Args:
        b: The builder.
        machine: Paces and speeds.
        domains: Ranks of each domain.
        fixed: Attributes of a `Shape`; 0 means any number.

    Raises:
        StrategyError: No shape has these numbers.
    """
    fits = [
        shape
        for shape in shapes(b, domains)
        if all(getattr(shape, name) == count for name, count in fixed.items() if count)
    ]
    if not fits:
        count, size = domains.shape
        found = ", ".join(f"{name} {count}" for name, count in fixed.items() if count)
        raise StrategyError(
            f"domain_mesh: expected groups times rows to divide the {count} domains, inner_groups "
            f"times inner_rows the {size} ranks of one, and groups (times inner_groups) to divide "
            f"the {b.workload.heads} query heads and to divide or be a multiple of the "
            f"{b.workload.num_kv_heads} KV heads; found {found}"
        )
    small = [shape for shape in fits if shape.pairs * b.num_ranks <= MOST_PAIRS]
    work = float(b.areas(b.shards("q")[:, None], b.shards("kv")).sum()) * b.workload.heads
    compute = work / float((1 / machine.triple_seconds).sum())
    if not small:
        return min(fits, key=lambda shape: (shape.pairs, _estimate(b, machine, shape, compute)))
    return min(small, key=lambda shape: _estimate(b, machine, shape, compute))


def _estimate(
    b: Builder, machine: Machine, shape: Shape, compute: float
) -> tuple[float, float, float]:
    """Give seconds of the busiest of computation and tiers, seconds across and seconds inside."""
    _, (across, inside) = two_tiers(machine)
    seconds_across = seconds_inside = 0.0
    sizes = shard_bytes(b, shape.finals(b.workload))
    for side, moved, heads in zip(
        SIDES, sizes, (b.workload.heads, b.workload.num_kv_heads), strict=True
    ):
        size, outer = sum(moved), min(shape.groups, heads)
        inner = min(shape.groups * shape.inner_groups, heads)
        entering = (shape.across(side) - 1) / outer
        passed = (1 / inner * outer + (shape.across(side) - 1) / inner) * (shape.inside(side) - 1)
        seconds_across += entering * size / across.bandwidth
        seconds_inside += passed * size / inside.bandwidth
    common = seconds_across * across.bandwidth + seconds_inside * inside.bandwidth
    busiest = max(compute, seconds_across, seconds_inside, common / inside.common[0])
    return round(busiest, 9), seconds_across, seconds_inside


def _divisors(count: int) -> list[int]:
    return [d for d in range(1, count + 1) if count % d == 0]
