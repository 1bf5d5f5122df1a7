"""Distributed attention as one differentiable function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from charm_sched.masks.mask import Mask
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.runtime.calls import Call, Options, begin
from charm_sched.runtime.checks import checked_timeout, dense_rows
from charm_sched.runtime.groups import Group, process_group
from charm_sched.runtime.layout import Fields
from charm_sched.runtime.rebinding import Offsets
from charm_sched.runtime.recording import Recorder

TIMEOUT = 300.0


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    plan: Schedule | Plan,
    group: Group = None,
    mask: Mask | str | None = None,
    cu_seqlens: Offsets | None = None,
    softmax_scale: float | None = None,
    dropout_p: float = 0.0,
    timeout: float = TIMEOUT,
    backend: str | None = None,
    check: bool = True,
    recorder: Recorder | None = None,
) -> Tensor:
    """Attend over the whole sequence, of which each rank holds a shard.

    All ranks of the group call it with their own tokens and the same plan. The result does not
    depend on arrival order: it is bitwise repeatable.

    Args:
        q: ``[batch, heads, tokens, head_dim]``, this rank's tokens in ascending order (maybe none).
        k: ``[batch, kv_heads, tokens, head_dim]``.
        v: ``[batch, kv_heads, tokens, v_head_dim]``.
        plan: A schedule; a forward plan is enough where no gradient is needed.
        group: The ranks, in the plan's order: a process group, one dimension of a mesh, or None
            for the default group.
        mask: Another mask than the plan's; it may show no more than what the plan computes.
        cu_seqlens: Offsets of packed documents instead; see `packed_mask`.
        softmax_scale: Overrides the workload's; positive.
        dropout_p: Must be 0.
        timeout: Seconds that a transfer may take once this rank is ready for it, and that the other
            ranks may take to make the same call; whole milliseconds.
        backend: Name of a backend (docs/backends.md); None means that of the environment variable
            ``CHARM_SCHED_BACKEND``, else the fastest that serves device, dtype, sizes and mask.
        check: Whether to prove the plan before it is first run.
        recorder: Records when each op starts and ends.

    Returns:
        ``[batch, heads, tokens, v_head_dim]``, this rank's rows.

    Raises:
        RuntimeFailure: An input does not fit the plan, the ranks do not agree, or the run failed;
            rank, op and peer are named.
        PlanError: The plan is not exactly attention, or not for all that the mask shows.
        WorkloadError: The mask does not fit.
    """
    options = Options(mask, cu_seqlens, softmax_scale, dropout_p, timeout, backend, check, recorder)
    if torch.compiler.is_compiling():
        from charm_sched.runtime.custom_op import traced_attention

        return traced_attention(q, k, v, plan, process_group(group), options)
    options = replace(options, timeout=checked_timeout(timeout))
    call = begin(plan, (q, k, v), group, options)
    result: Tensor = _Attention.apply(q, k, v, call)  # type: ignore[no-untyped-call]
    return result


class _Context(Protocol):
    """What autograd keeps from the forward to the backward."""

    saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    call: Call
    residents: Mapping[str, Fields]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
        out, lse, residents = call.forward(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.call, ctx.residents = call, residents
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, dout: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        tensors = (*ctx.saved_tensors, dense_rows(dout))
        return (*ctx.call.backward(tensors, ctx.residents), None)
