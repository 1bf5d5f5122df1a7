"""Small plans and hypothesis strategies that several tests draw from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from charm_sched.partition import PARTITIONS, Partition
from charm_sched.planners import PLANNERS
from charm_sched.planners.hierarchy import Tree, leaves
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import DIRECTIONS, Plan
from charm_sched.search.planning import build, residents
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


HEAD_STRATEGIES = ("all_gather", "domain_mesh", "mesh", "pass_q", "ulysses", "usp")
HEADS = ((2, 1), (3, 3), (4, 2), (5, 1), (6, 2))  # query heads, KV heads


def small_workload(seq_len: int, mask: str = "full", **more: Any) -> Workload:
    """Give a workload that brute force can follow."""
    shape: dict[str, Any] = {"heads": 2, "kv_heads": 1, "head_dim": 4}
    return Workload(seq_len=seq_len, mask=mask, **shape | more)


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
    shards = Partition.of(partition, workload, ranks)
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


def partitions(workload: Workload) -> list[str]:
    """Name the partitions that a workload can have."""
    documents = bool(workload.mask_rule.documents)
    return [kind for kind in PARTITIONS if documents or kind != "per-document"]


def builder(workload: Workload, ranks: int, direction: str = "forward") -> Builder:
    """Give a builder for contiguous shards, and no machine."""
    shards = Partition.contiguous(workload.seq_len, ranks)
    return Builder(workload, shards, direction=direction)


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
def trees(draw: st.DrawFn, most: int = 8, least: int = 1) -> Tree:
    """Draw a tree of ranks, up to three tiers, with uneven and reordered domains."""
    count = draw(st.integers(least, most))
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


def ranks_for(strategy: str, ranks: int) -> int:
    """Give ``ranks``, or one more where a strategy serves no such number."""
    return ranks + 1 if strategy == "tasp" and ranks in (4, 6) else ranks


@st.composite
def ring_params(draw: st.DrawFn, strategy: str, tree: Tree) -> dict[str, Any]:
    """Draw parameters that a strategy of rings can serve."""
    if strategy != "double_ring":
        return {}
    ranks = len(leaves(tree))
    divisors = [d for d in range(1, ranks + 1) if ranks % d == 0]
    window = draw(st.sampled_from(divisors))
    if draw(st.booleans()):
        return {"window": window, "domains": tree}
    order = leaves(tree)
    return {"domains": [order[first : first + window] for first in range(0, ranks, window)]}


@st.composite
def domain_params(draw: st.DrawFn, count: int, size: int, heads: int) -> dict[str, int]:
    """Draw a shape that a mesh of so many domains can have, with some numbers left open."""
    params = {"pieces": draw(st.integers(1, 3))}
    groups = draw(st.sampled_from([1, *(d for d in (heads,) if count % d == 0)]))
    rows = [d for d in range(1, count + 1) if count // groups % d == 0]
    params["groups"] = draw(st.sampled_from([0, groups])) if heads > 1 else groups
    if params["groups"]:
        params["rows"] = draw(st.sampled_from([0, *rows]))
    params["inner_rows"] = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
    params["inner_groups"] = draw(st.sampled_from([0, 1]))
    return params


@st.composite
def head_params(draw: st.DrawFn, strategy: str, tree: Tree, heads: int) -> dict[str, Any]:
    """Draw parameters that a strategy which moves heads or queries can serve."""
    divisors = [d for d in range(1, len(leaves(tree)) + 1) if len(leaves(tree)) % d == 0]
    ways: dict[str, st.SearchStrategy[Any]] = {}
    match strategy:
        case "ulysses" | "usp":
            ways = {"chunks": st.integers(1, 4), "save": st.booleans()}
        case "all_gather":
            ways = {
                "chunks": st.integers(1, 4),
                "algorithm": st.sampled_from(["ring", "direct"]),
                "save": st.booleans(),
            }
        case "mesh":
            ways = {
                "tile_rows": st.sampled_from([0, *divisors]),
                "neighbours": st.sampled_from(["auto", "queries", "keys"]),
            }
        case "domain_mesh":
            size = draw(st.sampled_from(divisors))
            order = leaves(tree)
            even = [order[first : first + size] for first in range(0, len(order), size)]
            return {"domains": even, **draw(domain_params(len(even), size, heads))}
        case "pass_q":
            ways = {"direct": st.booleans(), "pieces": st.integers(1, 3)}
    if strategy == "usp":
        ways["degree"] = st.sampled_from([0, *(d for d in divisors if d <= heads)])
        ways["inside"] = st.sampled_from(["ulysses", "ring"])
    if strategy in ("usp", "mesh"):
        ways["domains"] = st.just(tree)
    return {name: draw(way) for name, way in ways.items()}


@st.composite
def plans(
    draw: st.DrawFn, most_ranks: int = 5, most_tokens: int = 12, names: Sequence[str] = ()
) -> Plan:
    """Draw a plan of any planner, workload, partition and direction; of some planners alone."""
    strategy = draw(st.sampled_from(sorted(names or PLANNERS)))
    heads, kv_heads = draw(st.sampled_from(HEADS)) if strategy in HEAD_STRATEGIES else (2, 1)
    tree = draw(trees(min(most_ranks, heads) if strategy == "ulysses" else most_ranks))
    ranks = ranks_for(strategy, len(leaves(tree)))
    seq_len = draw(st.integers(1, most_tokens))
    workload = small_workload(seq_len, draw(masks(seq_len)), heads=heads, kv_heads=kv_heads)
    params: dict[str, Any] = {}
    if strategy == "charm":
        params = {
            "domains": tree,
            "pieces": draw(st.integers(1, 3)),
            **{name: draw(st.booleans()) for name in ("levels", "decouple", "remerge", "save")},
        }
    elif strategy in HEAD_STRATEGIES:
        params = draw(head_params(strategy, tree, heads))
    else:
        params = draw(ring_params(strategy, tree))
    return made(
        strategy,
        ranks,
        workload,
        direction=draw(st.sampled_from(DIRECTIONS)),
        partition=draw(st.sampled_from(partitions(workload))),
        params=params,
    )
