"""Ulysses: every rank attends all rows of its own heads.

DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv:2309.14509): an all-to-all brings queries, keys and
values of all rows to the rank that computes their heads, another one brings the output home. KV
heads that are fewer than ranks, or do not divide, are sent to every rank that needs them, as ALST
does (arXiv:2506.13996). Query heads that do not divide are dealt unevenly. Egress per rank and
forward, with V the bytes of a shard's KV and G query heads per KV head: (P - 1)/P (G + 1) V.

``chunks`` overlaps the exchange of one chunk of heads with the attention of another on two streams
(HCMS, arXiv:2607.01817), with two sets of buffers in turn.

Results are final (`plans.finals`): they travel in the workload's ``dtype``, as in the published
codes. Just the dkv of a KV head that several ranks share is added up by its owner.

What differs from the published codes: q, k and v of a pair of ranks are one message; results have a
stream of their own, and outputs take their log-sum-exp along, which the backward needs at home.
"""

from __future__ import annotations

from charm_sched.errors import StrategyError
from charm_sched.planners.head_exchange import write_head_exchange
from charm_sched.plans.builder import Builder


def ulysses(b: Builder, *, chunks: int = 1, save: bool = False) -> None:
    """Write Ulysses.

    Args:
        b: The builder.
        chunks: Chunks of each rank's heads; a rank with fewer heads has fewer.
        save: Forward: keep what arrives resident for the backward, which then moves gradients
            alone, as autograd does without recomputation.

    Raises:
        StrategyError: Fewer query heads than ranks, or ``chunks`` below 1.
    """
    if b.workload.heads < b.num_ranks:
        raise StrategyError(
            f"ulysses: expected at least as many query heads as ranks, found "
            f"{b.workload.heads} heads on {b.num_ranks} ranks; use at most {b.workload.heads} "
            "ranks, or usp, which needs fewer heads"
        )
    write_head_exchange(b, b.ranks[None, :], chunks=chunks, save=save)
