"""Attention as a custom operator, so that a compiled model has no graph break at the call.

Compiled graphs hold tensors and plain values only. So a call's plan, group and options are kept
here under a number, which is a constant of the graph. The graph is compiled again where one of them
is another object; what changes with every batch goes in as a tensor (``cu_seqlens``).

Importing this module imports the compiler, which takes seconds; so a compilation imports it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group

from charm_sched.errors import RuntimeFailure
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.runtime.calls import Call, Options, begin, resume
from charm_sched.runtime.checks import (
    check_gradient,
    check_inputs,
    checked_timeout,
    dense_rows,
    forward_of,
    wants_gradient,
)
from charm_sched.runtime.layout import Fields, Layout, layout_of
from charm_sched.runtime.numerics import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a call in a compiled graph is bound to.

    Attributes:
        plan: The schedule, or a forward plan.
        group_name: Name of the process group; None for the default group.
        options: The user's choices; offsets come as a tensor.
    """

    plan: Schedule | Plan
    group_name: Any
    options: Options

    def group(self) -> dist.ProcessGroup | None:
        """Give the process group."""
        return None if self.group_name is None else _resolve_process_group(self.group_name)

    def rank(self) -> int:
        """Give this rank in the group."""
        return dist.get_rank(self.group())

    def kept(self) -> dict[str, Layout]:
        """Give how what stays resident on this rank after a forward lies in its buffers."""
        plan = forward_of(self.plan)
        work, saved = plan.workload, plan.saved
        items = [plan.items[int(n)] for n in saved.item[saved.rank == self.rank()]]
        precision = Precision.of(work)
        return {str(item): layout_of([item], work, precision) for item in items}

    def with_offsets(self, cu_seqlens: Tensor | None) -> Options:
        """Give the options of one call."""
        if cu_seqlens is None:
            return self.options
        return replace(self.options, cu_seqlens=cu_seqlens)


# The one state of a module here. An operator of torch takes tensors and plain values alone (what
# `torch.library.infer_schema` knows), and a graph calls it with constants: so the objects of a call
# must lie where a number finds them. Graphs live as long as the process, and so do their numbers.
_BOUND: list[Bound] = []


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _number_of(plan: Schedule | Plan, group_name: str | None, options: tuple[object, ...]) -> int:
    """Give the number under which a binding is kept; equal bindings share it.

    Raises:
        RuntimeFailure: The timeout is not positive.
    """
    chosen = Options(*options)  # type: ignore[arg-type]
    chosen = replace(chosen, timeout=checked_timeout(chosen.timeout))
    bound = Bound(plan=plan, group_name=group_name, options=chosen)
    for number, known in enumerate(_BOUND):
        if known.plan is plan and known == bound:
            return number
    _BOUND.append(bound)
    return len(_BOUND) - 1


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _sizes_of(number: int) -> str:
    """Give the bytes of each buffer that stays resident on this rank, as text.

    They are written into the graph: compiled code is kept on disk under what the graph says, and
    another rank's, with buffers of other sizes, must not be taken for it.
    """
    return " ".join(str(layout.nbytes) for layout in _BOUND[number].kept().values())


def traced_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: Schedule | Plan,
    group: dist.ProcessGroup | None,
    options: Options,
) -> Tensor:
    """Attend inside a graph that is being compiled; see `charm_sched.runtime.attention`."""
    name = None if group is None else group.group_name
    offsets = options.cu_seqlens
    if offsets is not None and not isinstance(offsets, Tensor):
        offsets = torch.tensor(offsets)
    constants = (
        options.mask, None, options.softmax_scale, options.dropout_p, options.timeout,
        options.backend, options.check, options.recorder,
    )  # fmt: skip
    number = _number_of(plan, name, constants)
    gradient = wants_gradient(q, k, v)
    sizes = _sizes_of(number) if gradient else ""
    out: Tensor = _forward(q, k, v, offsets, number, gradient, sizes)[0]
    return out


@torch.library.custom_op("charm_sched::attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None,
    bound: int,
    gradient: bool,
    sizes: str,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Give the output, its log-sum-exp, the number of the call, and what stays resident."""
    what = _BOUND[bound]
    options = what.with_offsets(cu_seqlens)
    call = begin(what.plan, (q, k, v), what.group(), options, gradient=gradient)
    out, lse, residents = call.forward(dense_rows(q), dense_rows(k), dense_rows(v))
    kept = what.kept() if gradient else {}
    buffers = [_raw(residents[text], layout) for text, layout in kept.items()]
    return out, lse, torch.tensor([call.number]), buffers


@_forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor | None,
    bound: int,
    gradient: bool,
    sizes: str,
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    what = _BOUND[bound]
    plan = forward_of(what.plan)
    check_inputs(plan, what.rank(), q, k, v)
    check_gradient(what.plan, needed=gradient)
    precision = Precision.of(plan.workload)
    shape = (*q.shape[:3], v.shape[3])
    return (
        q.new_empty(shape),
        q.new_empty(shape[:3], dtype=precision.accumulate),
        torch.empty(1, dtype=torch.int64),
        [q.new_empty(int(size), dtype=torch.uint8) for size in sizes.split()],
    )


@torch.library.custom_op("charm_sched::attention_backward", mutates_args=())
def _backward(
    tensors: list[Tensor],
    residents: list[Tensor],
    cu_seqlens: Tensor | None,
    call_number: Tensor,
    bound: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients from q, k, v, out, lse and dout."""
    what = _BOUND[bound]
    plan = what.plan
    if not isinstance(plan, Schedule):
        raise RuntimeFailure("attention: a backward of a forward plan")
    q, k, v, out, lse, dout = (dense_rows(x) for x in tensors)
    options = what.with_offsets(cu_seqlens)
    call: Call = resume(plan, (q, v), what.group(), options, int(call_number))
    views: dict[str, Fields] = {
        text: layout.views(buffer)[0]
        for (text, layout), buffer in zip(what.kept().items(), residents, strict=True)
    }
    return call.backward((q, k, v, out, lse, dout), views)


@_backward.register_fake
def _(
    tensors: list[Tensor],
    residents: list[Tensor],
    cu_seqlens: Tensor | None,
    call_number: Tensor,
    bound: int,
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (x.new_empty(x.shape) for x in tensors[:3])
    return q, k, v


class _Context(Protocol):
    """What autograd keeps from the forward to the backward."""

    saved_tensors: tuple[Tensor, ...]
    cu_seqlens: Tensor | None
    bound: int

    def save_for_backward(self, *tensors: Tensor) -> None: ...


def _keep(
    ctx: _Context,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, int, bool, str],
    output: tuple[Tensor, Tensor, Tensor, list[Tensor]],
) -> None:
    q, k, v, ctx.cu_seqlens, ctx.bound, _, _ = inputs
    out, lse, call_number, residents = output
    ctx.save_for_backward(q, k, v, out, lse, call_number, *residents)


def _differentiate(
    ctx: _Context, dout: Tensor, *unused: object
) -> tuple[Tensor, Tensor, Tensor, None, None, None, None]:
    q, k, v, out, lse, call_number, *residents = ctx.saved_tensors
    tensors = [q, k, v, out, lse, dout]
    dq, dk, dv = _backward(tensors, residents, ctx.cu_seqlens, call_number, ctx.bound)
    return dq, dk, dv, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_keep)


def _raw(fields: Fields, layout: Layout) -> Tensor:
    """Give the bytes that fields are views of."""
    whole = torch.empty(0, dtype=torch.uint8, device=fields[0].device)
    return whole.set_(fields[0].untyped_storage())[: layout.nbytes]
