"""Distributed attention as one differentiable function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from charm_sched.errors import RuntimeFailure
from charm_sched.masks.mask import Mask
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.runtime.checks import (
    check_dropout,
    check_gradient,
    check_inputs,
    checked_scale,
    checked_timeout,
    dense_rows,
    forward_of,
    wants_gradient,
)
from charm_sched.runtime.execution import Observer
from charm_sched.runtime.gloo import GlooTransport
from charm_sched.runtime.groups import Group
from charm_sched.runtime.kernels import Kernel
from charm_sched.runtime.layout import Fields
from charm_sched.runtime.passes import Worker, set_up_backward, set_up_forward
from charm_sched.runtime.rebinding import Offsets, chosen_mask
from charm_sched.runtime.recording import Recorder
from charm_sched.runtime.session import Session, Settings, session_of

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
        backend: ``reference`` or ``cpu_flash``; None means ``reference`` for fp64, else
            ``cpu_flash``.
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
    timeout = checked_timeout(timeout)
    session = session_of(group, timeout)

    options = _Options(
        mask, cu_seqlens, softmax_scale, dropout_p, timeout, backend, check, recorder
    )
    set_up = partial(_set_up, session, plan, (q, k, v), options)
    call = session.agree(set_up, timeout)
    result: Tensor = _Attention.apply(q, k, v, call)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True, slots=True)
class _Options:
    """What a user may choose in a call; see `attention`."""

    mask: Mask | str | None
    cu_seqlens: Offsets | None
    softmax_scale: float | None
    dropout_p: float
    timeout: float
    backend: str | None
    check: bool
    recorder: Recorder | None


def _set_up(
    session: Session,
    plan: Schedule | Plan,
    tensors: tuple[Tensor, Tensor, Tensor],
    options: _Options,
) -> tuple[_Call, Settings]:
    """Do all that can fail on this rank alone."""
    forward = forward_of(plan)
    check_dropout(options.dropout_p)
    _check_ranks(forward, session.communicators.size)
    check_inputs(forward, session.rank, *tensors)
    gradient = wants_gradient(*tensors)
    check_gradient(plan, needed=gradient)
    scale, given = forward.workload.scale, options.softmax_scale
    call = _Call(
        session=session,
        plan=plan,
        mask=chosen_mask(options.mask, options.cu_seqlens, forward),
        kernel=session.kernel(options.backend, tensors[0].dtype),
        scale=scale if given is None else checked_scale(given),
        timeout=options.timeout,
        check=options.check,
        recorder=options.recorder,
        number=session.calls,
    )
    call.prepare(gradient=gradient)
    return call, call.settings(gradient=gradient)


def _check_ranks(plan: Plan, size: int) -> None:
    if plan.num_ranks != size:
        raise RuntimeFailure(
            f"attention: the plan has {plan.num_ranks} ranks, the group has {size}"
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """The settings of one call."""

    session: Session
    plan: Schedule | Plan
    mask: Mask | None
    kernel: Kernel
    scale: float
    timeout: float
    check: bool
    recorder: Recorder | None
    number: int

    def prepare(self, *, gradient: bool) -> None:
        """Prepare the plans that will be run."""
        plan = self.plan
        for each in plan.plans if gradient and isinstance(plan, Schedule) else (forward_of(plan),):
            self.session.prepared(each, check=self.check, mask=self.mask)

    def settings(self, *, gradient: bool) -> Settings:
        """Give what must be the same on all ranks in the forward."""
        return {
            "pass": "forward",
            "plan": self.plan.digest,
            "mask": str(self.mask),
            "softmax scale": str(self.scale),
            "backend": self.kernel.name,
            "need of a gradient": str(gradient),
            "use of a recorder": str(self.recorder is not None),
        }

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Mapping[str, Fields]]:
        plan = forward_of(self.plan)
        with self.session.passing():
            worker, transport = self._worker(plan)
            observer = self._observer(worker.program.plan)
            ready = set_up_forward(
                worker, q, k, v, kernel=self.kernel, scale=self.scale, observer=observer
            )
            self.session.run(ready.execution, transport)
            return ready.result()

    def backward(
        self,
        tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
        residents: Mapping[str, Fields],
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert isinstance(self.plan, Schedule)
        plan = self.plan.backward

        def set_up() -> tuple[None, Settings]:
            self.session.prepared(plan, check=self.check, mask=self.mask)
            return None, {"pass": "backward", "call that backward belongs to": str(self.number)}

        self.session.agree(set_up, self.timeout)
        with self.session.passing():
            worker, transport = self._worker(plan)
            observer = self._observer(worker.program.plan)
            ready = set_up_backward(
                worker, tensors, kernel=self.kernel, scale=self.scale, residents=residents,
                observer=observer,
            )  # fmt: skip
            self.session.run(ready.execution, transport)
            return ready.result()

    def _worker(self, plan: Plan) -> tuple[Worker, GlooTransport]:
        return self.session.worker(plan, self.timeout, check=self.check, mask=self.mask)

    def _observer(self, plan: Plan) -> Observer | None:
        if self.recorder is None:
            return None
        return self.recorder.begin(plan, self.session.communicators, self.timeout)


class _Context(Protocol):
    """What autograd keeps from the forward to the backward."""

    saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
    call: _Call
    residents: Mapping[str, Fields]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, q: Tensor, k: Tensor, v: Tensor, call: _Call) -> Tensor:
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
