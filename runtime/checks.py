"""What must hold before a rank may join a run; each message says where, expected and found."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from charm_sched.errors import RuntimeFailure
from charm_sched.partition import count_rows
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.runtime.numerics import DTYPES

DEVICES = ("cpu", "cuda")
_LONGEST = 1e8  # seconds: more than anybody waits, and less than a clock in nanoseconds can hold


def checked_timeout(timeout: object) -> float:
    """Give the seconds that waits are given: whole milliseconds, at least one.

    Raises:
        RuntimeFailure: It is not a positive, finite number.
    """
    if not (_is_number(timeout) and 0 < timeout < math.inf):  # type: ignore[operator]
        raise RuntimeFailure(
            f"attention: timeout: expected a positive, finite number of seconds, found {timeout!r}"
        )
    seconds = min(float(timeout), _LONGEST)  # type: ignore[arg-type]
    return max(1, round(seconds * 1000)) / 1000


def checked_scale(scale: object) -> float:
    """Give a softmax scale as a number; a tensor without dimensions is one, too.

    Raises:
        RuntimeFailure: It is not a positive, finite number.
    """
    value = scale
    if isinstance(scale, Tensor) and scale.dim() == 0 and scale.device.type != "meta":
        value = scale.item()
    if not (_is_number(value) and 0 < value < math.inf):  # type: ignore[operator]
        raise RuntimeFailure(
            f"attention: softmax_scale: expected a positive, finite number, found {scale!r}"
        )
    return float(value)  # type: ignore[arg-type]


def check_dropout(probability: object) -> None:
    """Check that no dropout is asked for.

    Raises:
        RuntimeFailure: It is.
    """
    if not (_is_number(probability) and probability == 0):
        raise RuntimeFailure(
            f"attention: dropout_p: expected 0, found {probability!r}: dropout inside distributed "
            f"attention is supported by no strategy and no backend; drop the output instead "
            f"(torch.nn.functional.dropout on what attention returns)"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def forward_of(plan: Schedule | Plan) -> Plan:
    """Give the forward plan.

    Raises:
        RuntimeFailure: A backward plan alone was given, or something else.
    """
    if isinstance(plan, Schedule):
        return plan.forward
    found: object = plan
    if not isinstance(found, Plan):
        raise RuntimeFailure(
            f"attention: expected a Schedule or a forward plan, found {type(found).__name__}"
        )
    if plan.direction != "forward":
        raise RuntimeFailure(
            "attention: expected a Schedule or a forward plan, found a backward plan"
        )
    return plan


def check_inputs(plan: Plan, rank: int, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Check this rank's tensors against the plan.

    Raises:
        RuntimeFailure: One is no tensor, or a shape, dtype or device does not fit.
    """
    work = plan.workload
    tokens = count_rows(plan.partition.shards[rank])
    expected = {
        "q": (q, work.heads, work.head_dim),
        "k": (k, work.num_kv_heads, work.head_dim),
        "v": (v, work.num_kv_heads, work.value_dim),
    }
    for name, (x, heads, size) in expected.items():
        found: object = x
        if not isinstance(found, Tensor):
            raise RuntimeFailure(
                f"attention: rank {rank}: {name}: expected a tensor [batch, heads, tokens, size], "
                f"found {type(found).__name__}"
            )
        if x.device.type not in DEVICES or x.device != q.device:
            raise RuntimeFailure(
                f"attention: rank {rank}: {name} is on {x.device}; expected q, k and v on one "
                f"device, which is a processor or a CUDA device"
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
