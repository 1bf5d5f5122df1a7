"""Small plans and hypothesis strategies that several tests draw from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.planners.hierarchy import Tree, leaves
from charm_sched.plans import DIRECTIONS, Plan
from charm_sched.search import build, residents
from charm_sched.workload import Workload

TREES: tuple[Tree, ...] = (
    [0],
    [0, 1],
    [0, 1, 2],
    [[0, 1], [2, 3]],
    [[0, 1], [2, 3, 4]],
    [[3, 1], [0, 2]],
    [[0], [1, 2, 3]],
    [[[0, 1], [2]], [[3, 4]]],
    [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
)
CHARM_PARAMS: tuple[Mapping[str, Any], ...] = (
    {},
    {"pieces": 2},
    {"pieces": 3, "remerge": False},
    {"levels": False},
    {"decouple": False, "pieces": 2},
    {"levels": False, "decouple": False, "remerge": False},
    {"save": True},
)


def small_workload(seq_len: int, mask: str = "full", **more: Any) -> Workload:
    """Give a workload that brute force can follow."""
    return Workload(seq_len=seq_len, heads=2, kv_heads=1, head_dim=4, mask=mask, **more)


def made(
    strategy: str,
    ranks: int,
    workload: Workload,
    *,
    direction: str = "forward",
    partition: str = "contiguous",
    params: Mapping[str, Any] | None = None,
) -> Plan:
    """Let a planner write one plan; the backward starts from what its forward keeps."""
    shards = Partition.named(partition, workload.seq_len, ranks)
    plans: list[Plan] = []
    for way in DIRECTIONS:
        saved = residents(plans[-1]) if plans else ()
        plan = build(
            PLANNERS[strategy], strategy, workload, shards, direction=way, params=params,
            saved=saved,
        )  # fmt: skip
        plans.append(plan)
        if way == direction:
            return plan
    raise AssertionError(direction)


def both_ways(
    strategy: str,
    ranks: int,
    workload: Workload,
    partition: str = "contiguous",
    params: Mapping[str, Any] | None = None,
) -> Iterator[Plan]:
    """Yield the forward and the backward plan."""
    for direction in DIRECTIONS:
        yield made(
            strategy, ranks, workload, direction=direction, partition=partition, params=params
        )


@st.composite
def trees(draw: st.DrawFn, most: int = 8) -> Tree:
    """Draw a tree of ranks, up to three tiers, with uneven and reordered domains."""
    count = draw(st.integers(1, most))
    ranks: list[Tree] = list(draw(st.permutations(range(count))))
    for _ in range(draw(st.integers(0, 2))):
        grouped: list[Tree] = []
        while ranks:
            size = draw(st.integers(1, len(ranks)))
            grouped.append(list(ranks[:size]))
            ranks = ranks[size:]
        ranks = grouped
    return ranks


@st.composite
def masks(draw: st.DrawFn, seq_len: int) -> str:
    """Draw a mask's text form."""
    kind = draw(st.sampled_from(["full", "causal", "window", "docs", "docs-full"]))
    if kind == "window":
        return f"window:{draw(st.integers(1, seq_len))}"
    if kind.startswith("docs"):
        cuts = draw(st.sets(st.integers(1, seq_len - 1), max_size=3)) if seq_len > 1 else set()
        bounds = [0, *sorted(cuts), seq_len]
        lengths = [b - a for a, b in pairwise(bounds)]
        return f"{kind}:{','.join(map(str, lengths))}"
    return kind


@st.composite
def plans(draw: st.DrawFn, most_ranks: int = 5, most_tokens: int = 12) -> Plan:
    """Draw a plan of any planner, workload, partition and direction."""
    tree = draw(trees(most_ranks))
    ranks = len(leaves(tree))
    seq_len = draw(st.integers(1, most_tokens))
    workload = small_workload(seq_len, draw(masks(seq_len)))
    strategy = draw(st.sampled_from(sorted(PLANNERS)))
    params: dict[str, Any] = {}
    if strategy == "charm":
        params = {
            "domains": tree,
            "pieces": draw(st.integers(1, 3)),
            **{name: draw(st.booleans()) for name in ("levels", "decouple", "remerge", "save")},
        }
    return made(
        strategy,
        ranks,
        workload,
        direction=draw(st.sampled_from(DIRECTIONS)),
        partition=draw(st.sampled_from(["contiguous", "zigzag"])),
        params=params,
    )
