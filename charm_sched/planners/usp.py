"""USP: Ulysses in groups of ranks, Ring-Attention between the groups.

Unified sequence parallelism (arXiv:2405.07719; feifeibear/long-context-attention) and the 2D
attention of LoongTrain (arXiv:2406.18485). With n domains of g ranks, n - 1 hops of V per rank
cross domains (V: bytes of a shard's KV), and (g - 1)/g (G + 1) V stays inside. The ring has two KV
buffers and its gradient returns in n hops, as in `ring`. ``chunks`` lets the exchange of heads
overlap with the attention of other heads, as in `ulysses` (arXiv:2607.01817). What is exchanged
back is final (`plans.finals`) and travels in the workload's ``dtype``, in the ring the gradient is
a partial result.

What differs from the published codes: heads need not divide, and chunks of query heads that share
a KV head go round the ring together.
"""

from __future__ import annotations

from math import gcd

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.errors import StrategyError
from charm_sched.planners.head_exchange import write_head_exchange
from charm_sched.planners.hierarchy import Tree, leaves
from charm_sched.planners.machine import machine_of
from charm_sched.plans.builder import Builder

INSIDE = ("ulysses", "ring")


def usp(
    b: Builder,
    *,
    degree: int = 0,
    inside: str = "ulysses",
    chunks: int = 1,
    save: bool = False,
    domains: Tree | None = None,
) -> None:
    """Write USP.

    Args:
        b: The builder.
        degree: Ranks that share heads. 0 means what fits the innermost domains and the heads: with
            Ulysses inside the largest divisor of their size, with the ring inside of their number.
        inside: ``ulysses`` exchanges heads inside domains and passes KV across; ``ring`` passes
            KV inside and exchanges heads across.
        chunks: Chunks of each rank's heads; a rank with fewer heads has fewer.
        save: Forward: keep what is exchanged resident for the backward.
        domains: Nested ranks, instead of the topology's domains.

    Raises:
        StrategyError: ``degree`` does not divide the ranks or exceeds the heads, an unknown
            ``inside``, ``chunks`` below 1, or ``domains`` that are not the ranks.
    """
    if inside not in INSIDE:
        raise StrategyError(f"usp: expected inside to be {' or '.join(INSIDE)}, found {inside!r}")
    tree = machine_of(b, domains).tree
    order = np.array(leaves(tree))
    ranks, heads = len(order), b.workload.heads
    if degree:
        _check_degree(degree, ranks, heads)
    else:
        size = gcd(*_innermost(tree))
        degree = _largest_divisor(size if inside == "ulysses" else ranks // size, heads)
    write_head_exchange(b, _grid(order, degree, inside), chunks=chunks, save=save)


def _grid(order: Ints, degree: int, inside: str) -> Ints:
    """Put ranks into ``[steps of the ring, ranks that share heads]``."""
    if inside == "ulysses":
        return order.reshape(-1, degree)
    return order.reshape(degree, -1).T


def _check_degree(degree: int, ranks: int, heads: int) -> None:
    serves = degree > 0 and ranks % degree == 0 and degree <= heads
    if not serves:
        nearest = min(
            (d for d in range(1, ranks + 1) if ranks % d == 0 and d <= heads),
            key=lambda d: (abs(d - degree), d),
        )
        raise StrategyError(
            f"usp: expected a degree that divides the {ranks} ranks and is at most the {heads} "
            f"query heads, found {degree}; the nearest is {nearest}"
        )


def _innermost(tree: Tree) -> list[int]:
    """List the sizes of the innermost domains; a rank beside domains counts as one of its own."""
    if isinstance(tree, int):
        return [1]
    if all(isinstance(child, int) for child in tree):
        return [len(tree)]
    return [size for child in tree for size in _innermost(child)]


def _largest_divisor(size: int, most: int) -> int:
    return max(d for d in range(1, min(size, most) + 1) if size % d == 0)
