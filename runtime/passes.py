"""One rank's forward and backward pass: inputs into memory, a run, results out of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from charm_sched.runtime.execution import Execution, Observer
from charm_sched.runtime.kernels import Kernel
from charm_sched.runtime.layout import Fields
from charm_sched.runtime.memory import Memory, Slots
from charm_sched.runtime.numerics import row_delta
from charm_sched.runtime.program import Program
from charm_sched.runtime.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What a rank needs to run one plan again and again.

    Attributes:
        program: The rank's program.
        slots: Its buffers.
        transport: Carries its messages.
        memory: Makes the buffers of a run.
    """

    program: Program
    slots: Slots
    transport: Transport
    memory: Callable[..., Memory] = Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """A forward pass that is set up; run ``execution``, then read ``result``.

    Attributes:
        execution: The run.
        memory: Its buffers.
        data: dtype of the output.
    """

    execution: Execution
    memory: Memory
    data: torch.dtype

    def result(self) -> tuple[Tensor, Tensor, dict[str, Fields]]:
        """Give the output, its log-sum-exp and what stays resident."""
        out, lse = self.memory.home["o"]
        return out.to(self.data), lse, self.memory.keep_residents()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """A backward pass that is set up; run ``execution``, then read ``result``.

    Attributes:
        execution: The run.
        memory: Its buffers.
        data: dtype of the gradients.
    """

    execution: Execution
    memory: Memory
    data: torch.dtype

    def result(self) -> tuple[Tensor, Tensor, Tensor]:
        """Give the gradients of q, k and v."""
        (dq,), (dk, dv) = self.memory.home["dq"], self.memory.home["dkv"]
        return dq.to(self.data), dk.to(self.data), dv.to(self.data)


def set_up_forward(
    worker: Worker,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: Kernel,
    scale: float,
    observer: Observer | None = None,
    pace: Sequence[float] | None = None,
) -> Forward:
    """Set a forward pass up.

    Args:
        worker: The rank's part of the forward plan.
        q: ``[batch, heads, tokens, head_dim]``, this rank's rows; so are ``k`` and ``v``.
        k: Keys.
        v: Values.
        kernel: Computes tiles.
        scale: The softmax scale.
        observer: Is told when steps start and end.
        pace: Compute nothing; each row's kernel takes that many seconds instead.
    """
    accumulate = worker.program.precision.accumulate
    out = torch.zeros((*q.shape[:3], v.shape[3]), dtype=accumulate, device=q.device)
    lse = torch.full(q.shape[:3], -torch.inf, dtype=accumulate, device=q.device)
    memory = worker.memory(
        worker.program,
        worker.slots,
        own={"q": (q,), "kv": (k, v)},
        home={"o": (out, lse)},
        idle=pace is not None,
    )
    execution = Execution(
        worker.program, memory, kernel, worker.transport, scale=scale, observer=observer, pace=pace
    )
    return Forward(execution=execution, memory=memory, data=q.dtype)


def set_up_backward(
    worker: Worker,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
    *,
    kernel: Kernel,
    scale: float,
    residents: Mapping[str, Fields],
    observer: Observer | None = None,
    pace: Sequence[float] | None = None,
) -> Backward:
    """Set a backward pass up.

    Args:
        worker: The rank's part of the backward plan.
        tensors: q, k, v, the output, its log-sum-exp and the output's gradient.
        kernel: Computes tiles.
        scale: The softmax scale.
        residents: What the forward kept, by the item's text.
        observer: Is told when steps start and end.
        pace: Compute nothing; each row's kernel takes that many seconds instead.
    """
    q, k, v, out, lse, dout = tensors
    accumulate = worker.program.precision.accumulate
    gradients = [torch.zeros(x.shape, dtype=accumulate, device=x.device) for x in (q, k, v)]
    memory = worker.memory(
        worker.program,
        worker.slots,
        own={"q": (q,), "kv": (k, v), "g": (dout, lse, row_delta(out, dout, accumulate))},
        home={"dq": (gradients[0],), "dkv": (gradients[1], gradients[2])},
        residents=residents,
        idle=pace is not None,
    )
    execution = Execution(
        worker.program, memory, kernel, worker.transport, scale=scale, observer=observer, pace=pace
    )
    return Backward(execution=execution, memory=memory, data=q.dtype)
