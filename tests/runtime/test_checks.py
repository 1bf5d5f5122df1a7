"""What a rank refuses before it talks to anybody."""

from __future__ import annotations

from typing import Any

import attention_cases as cases
import pytest
import torch

from charm_sched.errors import RuntimeFailure
from charm_sched.plans.plan import Schedule
from charm_sched.runtime import attention
from charm_sched.runtime.checks import (
    check_gradient,
    check_inputs,
    checked_scale,
    checked_timeout,
    dense_rows,
    forward_of,
)
from charm_sched.runtime.gloo import reason
from charm_sched.workload import Workload


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    work = Workload(seq_len=5, batch=2, heads=4, kv_heads=2, head_dim=8, v_head_dim=6, dtype="fp32")
    return cases.make_schedule("ring", work, "contiguous", 2)


def inputs(tokens: int = 3) -> dict[str, torch.Tensor]:
    sizes = {"q": (4, 8), "k": (2, 8), "v": (2, 6)}
    return {name: torch.zeros(2, heads, tokens, size) for name, (heads, size) in sizes.items()}


def test_fitting_inputs_pass(schedule: Schedule) -> None:
    check_inputs(schedule.forward, 0, **inputs(3))
    check_inputs(schedule.forward, 1, **inputs(2))


@pytest.mark.parametrize(
    ("name", "wrong", "expected"),
    [
        ("q", torch.zeros(2, 4, 2, 8), r"rank 0: q: expected .* = \[2, 4, 3, 8\], found"),
        ("k", torch.zeros(2, 4, 3, 8), r"k: expected .* = \[2, 2, 3, 8\], found \[2, 4, 3, 8\]"),
        ("v", torch.zeros(2, 2, 3, 8), r"v: expected .* = \[2, 2, 3, 6\]"),
        ("q", torch.zeros(4, 3, 8), r"q: expected \[batch, heads, tokens, size\]"),
        ("k", torch.zeros(2, 2, 3, 8).half(), r"k: expected torch.float32, .* found torch.float16"),
        ("v", torch.zeros(2, 2, 3, 6, device="meta"), "v is on meta; expected q, k and v on"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_are_named(
    schedule: Schedule, name: str, wrong: torch.Tensor, expected: str
) -> None:
    with pytest.raises(RuntimeFailure, match=expected):
        check_inputs(schedule.forward, 0, **inputs() | {name: wrong})


def test_a_forward_plan_is_needed(schedule: Schedule) -> None:
    assert forward_of(schedule) is forward_of(schedule.forward)
    with pytest.raises(RuntimeFailure, match="expected a Schedule or a forward plan"):
        forward_of(schedule.backward)
    check_gradient(schedule, needed=True)
    check_gradient(schedule.forward, needed=False)
    with pytest.raises(RuntimeFailure, match="give a Schedule"):
        check_gradient(schedule.forward, needed=True)


def test_torch_distributed_must_be_initialised(schedule: Schedule) -> None:
    with pytest.raises(RuntimeFailure, match="call init_process_group first"):
        attention(**inputs(), plan=schedule)


def test_kernels_get_rows_that_lie_together() -> None:
    x = torch.zeros(2, 3, 4)
    assert dense_rows(x) is x
    assert dense_rows(x.mT).stride(-1) == 1
    assert dense_rows(torch.ones(1).expand(2, 3, 4)).stride(-1) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Timed out waiting 1000ms for recv operation to complete", "no answer within 7 s"),
        ("Operation timed out!", "no answer within 7 s"),
        ("Wait timeout", "no answer within 7 s"),
        ("x.cc:5] Connection closed by peer [127.0.0.1]:5", "closed from the other side"),
        ("Application timeout caused pair closure", "given up after another failure"),
        ("something else\nwith details", "something else"),
        ("", "RuntimeError"),
    ],
)
def test_messages_of_gloo_are_put_in_words(text: str, expected: str) -> None:
    assert expected in reason(RuntimeError(text), 7.0)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), None, "1", True])
def test_a_timeout_is_a_positive_number(schedule: Schedule, timeout: Any) -> None:
    with pytest.raises(RuntimeFailure, match="timeout: expected a positive, finite number"):
        attention(**inputs(), plan=schedule, timeout=timeout)


def test_timeouts_are_whole_milliseconds() -> None:
    assert [checked_timeout(x) for x in (1e-9, 0.0014, 2, 1e300)] == [0.001, 0.001, 2.0, 1e8]


@pytest.mark.parametrize("scale", [0, -0.5, float("nan"), float("inf"), "1", True, 1j])
def test_a_softmax_scale_is_a_positive_number(scale: Any) -> None:
    for wrong in (scale, torch.ones(1), torch.tensor(-1.0), torch.ones((), device="meta")):
        with pytest.raises(RuntimeFailure, match="softmax_scale: expected a positive, finite"):
            checked_scale(wrong)


def test_a_softmax_scale_may_be_a_tensor_without_dimensions() -> None:
    assert [checked_scale(x) for x in (2, 0.5, torch.tensor(0.25))] == [2.0, 0.5, 0.25]
