"""What must hold before a rank may join a run; each message says where, expected and found."""

from __future__ import annotations

import torch
from torch import Tensor

from charm_sched.errors import RuntimeFailure
from charm_sched.partition import count_rows
from charm_sched.plans import Plan, Schedule
from charm_sched.runtime.numerics import DTYPES


def forward_of(plan: Schedule | Plan) -> Plan:
    """Give the forward plan.

    Raises:
        RuntimeFailure: A backward plan alone was given.
    """
    if isinstance(plan, Schedule):
        return plan.forward
    if plan.direction != "forward":
        raise RuntimeFailure(
            "attention: expected a Schedule or a forward plan, found a backward plan"
        )
    return plan


def check_inputs(plan: Plan, rank: int, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Check this rank's tensors against the plan.

    Raises:
        RuntimeFailure: A shape, dtype or device does not fit.
    """
    work = plan.workload
    tokens = count_rows(plan.partition.shards[rank])
    expected = {
        "q": (q, work.heads, work.head_dim),
        "k": (k, work.num_kv_heads, work.head_dim),
        "v": (v, work.num_kv_heads, work.value_dim),
    }
    for name, (x, heads, size) in expected.items():
        if x.device.type != "cpu":
            raise RuntimeFailure(
                f"attention: {name} is on {x.device}; tensors on {x.device.type} are not "
                f"supported yet, expected cpu"
            )
        shape = (work.batch, heads, tokens, size)
        if tuple(x.shape) != shape:
            raise RuntimeFailure(
                f"attention: rank {rank}: {name}: expected [batch, heads, tokens, size] = "
                f"{list(shape)}, found {list(x.shape)}"
            )
        if x.dtype != DTYPES[work.dtype]:
            raise RuntimeFailure(
                f"attention: rank {rank}: {name}: expected {DTYPES[work.dtype]}, as the plan is "
                f"for {work.dtype}, found {x.dtype}"
            )


def check_gradient(plan: Schedule | Plan, *, needed: bool) -> None:
    """Check that there is a backward plan where a gradient is asked for.

    Raises:
        RuntimeFailure: There is none.
    """
    if needed and not isinstance(plan, Schedule):
        raise RuntimeFailure(
            "attention: a gradient is needed, but the plan is a forward plan alone; give a "
            "Schedule, or call under torch.no_grad()"
        )


def dense_rows(x: Tensor) -> Tensor:
    """Give a tensor whose last dimension lies together, as kernels need it."""
    return x if x.stride(-1) == 1 else x.contiguous()


def wants_gradient(*tensors: Tensor) -> bool:
    """Say whether autograd will ask for a gradient."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
