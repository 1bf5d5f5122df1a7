"""From whole tensors to this rank's tokens and back."""

from __future__ import annotations

from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from charm_sched.errors import RuntimeFailure
from charm_sched.masks.mask import Mask
from charm_sched.partition import Partition, count_rows
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.runtime.groups import Group, process_group

TOKENS = 2


def partition_of(plan: Schedule | Plan) -> Partition:
    """Give the partition of a plan or schedule."""
    return plan.forward.partition if isinstance(plan, Schedule) else plan.partition


def shard(
    x: Tensor,
    plan: Schedule | Plan,
    *,
    dim: int = TOKENS,
    rank: int | None = None,
    group: Group = None,
) -> Tensor:
    """Give a rank's tokens of a whole tensor; gradients flow back to its own tokens.

    Args:
        x: ``[batch, heads, seq_len, size]``, the same on all ranks; any shape with ``dim``.
        plan: Says who owns which tokens.
        dim: The dimension of the tokens, where it is not that of attention: 1 of
            ``[batch, seq_len]``.
        rank: Whose tokens; None means this rank in ``group``.
        group: The ranks of the plan; None means the default group.

    Returns:
        ``[batch, heads, tokens, size]``, rows in ascending order; so other shapes.

    Raises:
        RuntimeFailure: ``x`` has another length than the plan.
    """
    partition = partition_of(plan)
    dim = _tokens_of("shard", x, dim, partition.seq_len)
    if rank is None:
        rank = dist.get_rank(process_group(group))
    if not 0 <= rank < partition.num_ranks:
        raise RuntimeFailure(
            f"shard: expected a rank below {partition.num_ranks}, the ranks of the plan, "
            f"found {rank}"
        )
    rows = partition.shards[rank]
    pieces = [x.narrow(dim, first, last - first) for first, last in rows]
    return torch.cat(pieces, dim=dim) if pieces else x.narrow(dim, 0, 0)


def _tokens_of(where: str, x: Tensor, dim: int, length: int) -> int:
    """Give the dimension of the tokens, counted from the front, once it has been checked.

    Raises:
        RuntimeFailure: There is no such dimension, or it has another length.
    """
    at = dim + x.dim() if dim < 0 else dim
    if not (0 <= at < x.dim() and x.shape[at] == length):
        shape = f"[batch, heads, {length}, size]" if dim == TOKENS else f"{length} in dim {dim}"
        raise RuntimeFailure(f"{where}: expected {shape}, found {list(x.shape)}")
    return at


def positions(
    plan: Schedule | Plan,
    *,
    mask: Mask | None = None,
    rank: int | None = None,
    group: Group = None,
) -> Tensor:
    """Give the positions of a rank's tokens, for rotary or other position embeddings.

    Shards need not lie together, so counting from 0 on each rank would be wrong.

    Args:
        plan: Says who owns which tokens.
        mask: The mask of the batch; None means the plan's. Under packed documents positions start
            again at 0 in each, also behind padding; under other masks they count the sequence.
        rank: Whose tokens; None means this rank in ``group``.
        group: The ranks of the plan; None means the default group.

    Returns:
        ``[tokens]``, int64, in the order of `shard`.
    """
    partition = partition_of(plan)
    rank = dist.get_rank(process_group(group)) if rank is None else rank
    pieces = [torch.arange(first, last) for first, last in partition.shards[rank]]
    rows = torch.cat(pieces) if pieces else torch.arange(0)
    if mask is None:
        mask = (plan.forward if isinstance(plan, Schedule) else plan).workload.mask_rule
    starts = torch.tensor([0, *document_starts(mask)])
    return rows - starts[torch.searchsorted(starts, rows, right=True) - 1]


def document_starts(mask: Mask) -> list[int]:
    """List where packed documents start; blocks are documents where each sees itself alone."""
    if mask.documents:
        return [*accumulate(mask.documents)][:-1]
    if all(block.rows == block.keys for block in mask.blocks):
        return [block.rows[0] for block in mask.blocks]
    return []


def unshard(x: Tensor, plan: Schedule | Plan, *, dim: int = TOKENS, group: Group = None) -> Tensor:
    """Gather the tokens of all ranks into the whole tensor, on every rank.

    No gradient flows through it: it is for looking at results, not for training. All ranks of the
    group must call it alike: nothing is compared before, and a rank waits for the others as long as
    the group's own timeout says.

    Args:
        x: ``[batch, heads, tokens, size]``, this rank's tokens; any shape with ``dim``.
        plan: Says who owns which tokens.
        dim: The dimension of the tokens; see `shard`.
        group: The ranks of the plan; None means the default group.

    Returns:
        ``[batch, heads, seq_len, size]``; so other shapes.

    Raises:
        RuntimeFailure: ``x`` or the group does not fit the plan.
    """
    group = process_group(group)
    shards, rank, size = partition_of(plan).shards, dist.get_rank(group), dist.get_world_size(group)
    if size != len(shards):
        raise RuntimeFailure(
            f"unshard: expected a group of {len(shards)} ranks, as the plan has, found {size}"
        )
    counts = [count_rows(rows) for rows in shards]
    dim = _tokens_of(f"unshard: rank {rank}", x, dim, counts[rank])
    return join([*_gather(x.detach(), dim, max(counts), group)], plan, dim)


def join(parts: list[Tensor], plan: Schedule | Plan, dim: int = TOKENS) -> Tensor:
    """Put the tokens of all ranks, in rank order, into one tensor; longer parts are cut."""
    partition = partition_of(plan)
    shape = list(parts[0].shape)
    shape[dim] = partition.seq_len
    whole = parts[0].new_empty(shape)
    for part, rows in zip(parts, partition.shards, strict=True):
        start = 0
        for first, last in rows:
            length = last - first
            whole.narrow(dim, first, length).copy_(part.narrow(dim, start, length))
            start += length
    return whole


def _gather(x: Tensor, dim: int, most: int, group: dist.ProcessGroup | None) -> list[Tensor]:
    """Gather tensors of different lengths, padded to the longest, as raw bytes."""
    shape = list(x.shape)
    shape[dim] = most
    padded = x.new_zeros(shape)
    padded.narrow(dim, 0, x.shape[dim]).copy_(x)
    mine = padded.reshape(-1).view(torch.uint8)
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, mine, group=group)
    return [data.view(x.dtype).view(padded.shape) for data in gathered]
