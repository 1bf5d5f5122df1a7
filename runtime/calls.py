"""One call of distributed attention: what was asked for, what all ranks agreed on, its two passes.

The eager function (`autograd`) and the operator for compiled models (`custom_op`) share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from charm_sched.errors import CharmSchedError, RuntimeFailure
from charm_sched.masks.mask import Mask
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.runtime.checks import (
    check_dropout,
    check_gradient,
    check_inputs,
    checked_scale,
    forward_of,
    wants_gradient,
)
from charm_sched.runtime.execution import Observer
from charm_sched.runtime.groups import Group
from charm_sched.runtime.kernels import Kernel, Need
from charm_sched.runtime.layout import Fields
from charm_sched.runtime.passes import Worker, set_up_backward, set_up_forward
from charm_sched.runtime.rebinding import Offsets, chosen_mask
from charm_sched.runtime.recording import Recorder
from charm_sched.runtime.session import Session, Settings, session_of
from charm_sched.runtime.transport import Carrier


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may choose in a call; see `attention`."""

    mask: Mask | str | None
    cu_seqlens: Offsets | None
    softmax_scale: float | None
    dropout_p: float
    timeout: float
    backend: str | None
    check: bool
    recorder: Recorder | None


def begin(
    plan: Schedule | Plan,
    tensors: tuple[Tensor, Tensor, Tensor],
    group: Group,
    options: Options,
    *,
    gradient: bool | None = None,
) -> Call:
    """Begin a call: all ranks of the group check it, and agree that they make the same one.

    Args:
        plan: A schedule, or a forward plan.
        tensors: This rank's q, k and v.
        group: The ranks of the plan.
        options: What else the user chose.
        gradient: Whether a backward may follow; None finds out from the tensors.

    Raises:
        RuntimeFailure: An input does not fit the plan, or the ranks do not agree.
        PlanError: The plan is not exactly attention, or not for all that the mask shows.
        WorkloadError: The mask does not fit.
    """
    session = session_of(group, options.timeout)
    set_up = partial(_set_up, session, plan, tensors, options, gradient=gradient)
    return session.agree(set_up, options.timeout)


def check_together(check: Callable[[], None], group: Group, timeout: float) -> None:
    """Check what precedes a call on this rank; where it fails, tell the ranks that go on.

    Costs no exchange where nothing fails.

    Args:
        check: Raises what is wrong.
        group: The ranks of the plan.
        timeout: Seconds that the other ranks may take to make their call.

    Raises:
        CharmSchedError: What ``check`` raised.
    """
    if torch.compiler.is_compiling():
        check()
        return
    try:
        check()
    except CharmSchedError as error:
        problem = error

        def set_up() -> tuple[None, Settings]:
            raise problem

        session_of(group, timeout).agree(set_up, timeout)


def resume(
    plan: Schedule, tensors: tuple[Tensor, Tensor], group: Group, options: Options, number: int
) -> Call:
    """Give a call again that all ranks have begun, for its backward.

    Args:
        plan: Its schedule.
        tensors: This rank's q and v.
        group: Its ranks.
        options: Its options.
        number: Its number.
    """
    session = session_of(group, options.timeout)
    return _call(session, plan, *tensors, options, number)


def _set_up(
    session: Session,
    plan: Schedule | Plan,
    tensors: tuple[Tensor, Tensor, Tensor],
    options: Options,
    *,
    gradient: bool | None,
) -> tuple[Call, Settings]:
    """Do all that can fail on this rank alone."""
    forward = forward_of(plan)
    check_dropout(options.dropout_p)
    _check_local(tensors)
    _check_ranks(forward, session.communicators.size)
    check_inputs(forward, session.rank, *tensors)
    gradient = wants_gradient(*tensors) if gradient is None else gradient
    check_gradient(plan, needed=gradient)
    call = _call(session, plan, tensors[0], tensors[2], options, session.calls)
    with _plain_tensors():
        call.prepare(gradient=gradient)
    return call, call.settings(gradient=gradient)


@contextmanager
def _plain_tensors() -> Iterator[None]:
    """Let buffers that are kept for later calls be written in them, also those of an evaluation."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


def _call(
    session: Session, plan: Schedule | Plan, q: Tensor, v: Tensor, options: Options, number: int
) -> Call:
    forward, given = forward_of(plan), options.softmax_scale
    mask = chosen_mask(options.mask, options.cu_seqlens, forward)
    need = _need(q, v, mask or forward.workload.mask_rule)
    return Call(
        session=session,
        plan=plan,
        mask=mask,
        kernel=session.kernels.get(options.backend, need),
        device=q.device,
        scale=forward.workload.scale if given is None else checked_scale(given),
        timeout=options.timeout,
        check=options.check,
        recorder=options.recorder,
        number=number,
    )


def _need(q: Tensor, v: Tensor, mask: Mask) -> Need:
    windows = mask.window is not None or any(block.window for block in mask.blocks)
    return Need(
        device=q.device,
        dtype=q.dtype,
        head_dim=q.shape[-1],
        value_dim=v.shape[-1],
        windows=windows,
    )


def _check_local(tensors: tuple[Tensor, ...]) -> None:
    if any(isinstance(x, DTensor) for x in tensors):
        raise RuntimeFailure(
            "attention: expected this rank's own tensors, found a DTensor; give x.to_local() and "
            "a plan for the heads of one tensor-parallel rank"
        )


def _check_ranks(plan: Plan, size: int) -> None:
    if plan.num_ranks != size:
        raise RuntimeFailure(
            f"attention: the plan has {plan.num_ranks} ranks, the group has {size}"
        )


@dataclass(frozen=True, slots=True)
class Call:
    """The settings of one call."""

    session: Session
    plan: Schedule | Plan
    mask: Mask | None
    kernel: Kernel
    device: torch.device
    scale: float
    timeout: float
    check: bool
    recorder: Recorder | None
    number: int

    def prepare(self, *, gradient: bool) -> None:
        """Prepare the plans that will be run."""
        plan = self.plan
        chosen = plan.plans if gradient and isinstance(plan, Schedule) else (forward_of(plan),)
        for each in chosen:
            self.session.prepared(each, check=self.check, mask=self.mask, device=self.device)

    def settings(self, *, gradient: bool) -> Settings:
        """Give what must be the same on all ranks in the forward."""
        return {
            "pass": "forward",
            "plan": self.plan.digest,
            "mask": str(self.mask),
            "softmax scale": str(self.scale),
            "backend": self.kernel.name,
            "kind of device": self.device.type,
            "need of a gradient": str(gradient),
            "use of a recorder": str(self.recorder is not None),
        }

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Mapping[str, Fields]]:
        """Give the output, its log-sum-exp, and what stays resident for the backward."""
        plan = forward_of(self.plan)
        with _plain_tensors(), self.session.passing():
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
        """Give the gradients of q, k and v from q, k, v, out, lse, dout and the residents."""
        assert isinstance(self.plan, Schedule)
        plan = self.plan.backward

        def set_up() -> tuple[None, Settings]:
            with _plain_tensors():
                self.session.prepared(plan, check=self.check, mask=self.mask, device=self.device)
            return None, {"pass": "backward", "call that backward belongs to": str(self.number)}

        self.session.agree(set_up, self.timeout)
        with _plain_tensors(), self.session.passing():
            worker, transport = self._worker(plan)
            observer = self._observer(worker.program.plan)
            ready = set_up_backward(
                worker, tensors, kernel=self.kernel, scale=self.scale, residents=residents,
                observer=observer,
            )  # fmt: skip
            self.session.run(ready.execution, transport)
            return ready.result()

    def _worker(self, plan: Plan) -> tuple[Worker, Carrier]:
        return self.session.worker(
            plan, self.timeout, check=self.check, mask=self.mask, device=self.device
        )

    def _observer(self, plan: Plan) -> Observer | None:
        if self.recorder is None:
            return None
        return self.recorder.begin(plan, self.session.communicators, self.timeout)
