"""Precisions of a run, and how partial results are combined.

A partial result is ``(out, lse)``: the attention of some query rows on a part of the keys, and the
log of the sum of its exponentials. Rows that see no key hold ``(0, -inf)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from charm_sched.workload import Workload

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The dtypes of one workload.

    Attributes:
        data: Of q, k, v, the output and its gradient.
        wire: Of partial results that travel.
        final: Of final results that travel (see `charm_sched.plans.finals`).
        accumulate: Of partial results at rest, and of log-sum-exp and delta everywhere.
    """

    data: torch.dtype
    wire: torch.dtype
    final: torch.dtype
    accumulate: torch.dtype

    @classmethod
    def of(cls, workload: Workload) -> Precision:
        """Give the precision of a workload: fp32 accumulation, fp64 for fp64."""
        accumulate = torch.float64 if workload.dtype == "fp64" else torch.float32
        return cls(
            data=DTYPES[workload.dtype],
            wire=DTYPES[workload.wire_dtype],
            final=DTYPES[workload.final_dtype],
            accumulate=accumulate,
        )


def merge_into(out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor) -> None:
    """Combine a partial result into another, in place.

    Shifted by the larger of the two log-sum-exps, so that nothing overflows and the smaller side
    fades to zero. Two empty rows stay ``(0, -inf)``.

    Args:
        out: ``[batch, heads, rows, v_head_dim]``, changed.
        lse: ``[batch, heads, rows]``, changed.
        more_out: As ``out``, any dtype.
        more_lse: As ``lse``.
    """
    top = torch.maximum(lse, more_lse)
    shift = torch.where(top == -math.inf, torch.zeros_like(top), top)
    share, more_share = torch.exp(lse - shift), torch.exp(more_lse - shift)
    total = share + more_share
    divisor = total.clamp(min=1)  # the larger share is exactly 1; both are 0 in empty rows
    out.mul_((share / divisor).unsqueeze(-1))
    out.addcmul_(more_out.to(out.dtype), (more_share / divisor).unsqueeze(-1))
    lse.copy_(shift + torch.log(total))


def normalise(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Give rows without a visible key the one form ``(0, -inf)``.

    Kernels disagree: FlashAttention-2 returns +inf for them, others -inf or a NaN output.

    Args:
        out: ``[batch, heads, rows, v_head_dim]``.
        lse: ``[batch, heads, rows]``.
    """
    empty = torch.isinf(lse)
    if empty.device.type == "cpu" and not bool(empty.any()):  # elsewhere asking would wait
        return out, lse
    return out.masked_fill(empty.unsqueeze(-1), 0), lse.masked_fill(empty, -math.inf)


def row_delta(out: Tensor, dout: Tensor, accumulate: torch.dtype) -> Tensor:
    """Give ``rowsum(out * dout)``, ``[batch, heads, rows]``: what the softmax takes off dP."""
    return (out.to(accumulate) * dout.to(accumulate)).sum(-1)
