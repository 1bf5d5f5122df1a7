"""One batch, cut for a rank: tokens, positions, and labels that were shifted before the cut.

A model that shifts labels itself compares a shard's last token with nothing, and loses a label at
every edge of a shard. So labels are shifted over the whole sequence first, and cut then.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from charm_sched.errors import RuntimeFailure
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.runtime.groups import Group
from charm_sched.runtime.rebinding import Offsets, packed_mask
from charm_sched.runtime.sharding import document_starts, partition_of, positions, shard

IGNORED = -100  # what torch.nn.functional.cross_entropy ignores


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBatch:
    """This rank's part of a batch.

    Attributes:
        input_ids: ``[batch, tokens]``.
        position_ids: ``[batch, tokens]``, where each token stands in its document.
        labels: ``[batch, tokens]``, what each token should predict: already shifted.
        cu_seqlens: ``[documents + 1]``, of the whole sequence; None where it is one document.
        num_items: Labels that count, over the whole batch on all ranks. The loss is the sum over
            this rank's tokens, divided by it; the sum over ranks is the mean over the batch.
    """

    input_ids: Tensor
    position_ids: Tensor
    labels: Tensor
    cu_seqlens: Tensor | None
    num_items: int


def shard_batch(
    input_ids: Tensor,
    plan: Schedule | Plan,
    *,
    labels: Tensor | None = None,
    position_ids: Tensor | None = None,
    cu_seqlens: Offsets | None = None,
    ignore_index: int = IGNORED,
    group: Group = None,
) -> LocalBatch:
    """Cut a batch for this rank.

    Args:
        input_ids: ``[batch, seq_len]``, the same on all ranks of the group.
        plan: Says who owns which tokens.
        labels: ``[batch, seq_len]``, not shifted; None means the tokens themselves, without the
            first of each document, which nothing before it predicts.
        position_ids: ``[batch, seq_len]`` or ``[seq_len]``; None means counted, from 0 in each
            document. Where they start again, a document starts.
        cu_seqlens: ``[documents + 1]``, offsets of packed documents; tokens behind are padding.
        ignore_index: Labels that do not count.
        group: The ranks of the plan; None means the default group.

    Raises:
        RuntimeFailure: A shape does not fit, or rows of the batch have different documents.
        WorkloadError: The offsets do not fit the sequence.
    """
    seq_len = partition_of(plan).seq_len
    if input_ids.dim() != 2 or input_ids.shape[1] != seq_len:
        raise RuntimeFailure(
            f"shard_batch: input_ids: expected [batch, {seq_len}], found {list(input_ids.shape)}"
        )
    if cu_seqlens is None and position_ids is not None:
        cu_seqlens = _offsets(_one_row(position_ids, seq_len))
    at = None if position_ids is None else _one_row(position_ids, seq_len)
    rule = None if cu_seqlens is None else packed_mask(cu_seqlens, seq_len)
    if labels is None:
        labels = _own_labels(input_ids, plan, cu_seqlens, ignore_index)
    if labels.shape != input_ids.shape:
        raise RuntimeFailure(
            f"shard_batch: labels: expected {list(input_ids.shape)}, found {list(labels.shape)}"
        )
    shifted = F.pad(labels[:, 1:], (0, 1), value=ignore_index)
    if at is None:
        local = positions(plan, mask=rule, group=group).to(input_ids.device)
    else:
        local = shard(at, plan, dim=0, group=group)
    return LocalBatch(
        input_ids=shard(input_ids, plan, dim=1, group=group),
        position_ids=local.expand(input_ids.shape[0], -1),
        labels=shard(shifted, plan, dim=1, group=group),
        cu_seqlens=None if cu_seqlens is None else torch.as_tensor(cu_seqlens),
        num_items=int((shifted != ignore_index).sum()),
    )


def _one_row(position_ids: Tensor, seq_len: int) -> Tensor:
    """Give the positions that all rows of a batch share, ``[seq_len]``."""
    rows = position_ids.reshape(-1, position_ids.shape[-1])
    if rows.shape[1] != seq_len:
        raise RuntimeFailure(
            f"shard_batch: position_ids: expected [batch, {seq_len}], "
            f"found {list(position_ids.shape)}"
        )
    if not torch.equal(rows, rows[:1].expand_as(rows)):
        raise RuntimeFailure(
            "shard_batch: position_ids: expected the same in all rows of the batch, as one mask "
            "serves them all; pack the documents of a batch into one row"
        )
    return rows[0]


def _offsets(positions: Tensor) -> Tensor | None:
    """Give the offsets of documents from positions that start again; None where it is one."""
    breaks = (positions[1:] - positions[:-1] != 1).nonzero()[:, 0] + 1
    if not len(breaks):
        return None
    ends = torch.tensor([len(positions)], device=breaks.device)
    return torch.cat([torch.zeros_like(ends), breaks, ends]).cpu()


def _own_labels(
    input_ids: Tensor, plan: Schedule | Plan, cu_seqlens: Offsets | None, ignored: int
) -> Tensor:
    """Give each token as its own label, without the first of each document and padding."""
    forward = plan.forward if isinstance(plan, Schedule) else plan
    labels = input_ids.clone()
    if cu_seqlens is None:
        labels[:, [0, *document_starts(forward.workload.mask_rule)]] = ignored
        return labels
    offsets = torch.as_tensor(cu_seqlens).long()
    labels[:, offsets[offsets < labels.shape[1]].to(labels.device)] = ignored
    labels[:, int(offsets[-1]) :] = ignored
    return labels
