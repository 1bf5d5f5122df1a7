"""A backend that breaks its contract is refused, whatever way it breaks it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import attention_cases as cases
import pytest
import torch

from charm_sched.errors import RuntimeFailure
from charm_sched.runtime.backends.contract import check_contract
from charm_sched.runtime.backends.sdpa import CpuFlash
from charm_sched.runtime.kernels import Reference

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["reference", "cpu_flash", "flex"])
@pytest.mark.parametrize("sizes", [(8, 8), (128, 128), (64, 24)], ids=str)
def test_our_kernels_keep_it(name: str, dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    with torch.random.fork_rng():
        before = torch.random.get_rng_state()
        check_contract(cases.kernel_for(name, dtype), cases.need_for(dtype, *sizes))
        assert torch.equal(before, torch.random.get_rng_state()), "the user's draws would change"


def broken(
    forward: Callable[..., Any] | None = None, backward: Callable[..., Any] | None = None
) -> Any:
    """Give the CPU kernel with another result."""

    class Broken(CpuFlash):
        name = "broken"

        def forward(self, *args: Any, **options: Any) -> Any:
            found = super().forward(*args, **options)
            return forward(*found, *args) if forward else found

        def backward(self, *args: Any, **options: Any) -> Any:
            found = super().backward(*args, **options)
            return backward(found, args, options) if backward else found

    return Broken()


def own_statistics(found: Any, args: Any, options: Any) -> Any:
    """Compute a backward as if there were no other ranks."""
    q, k, v, dout = args[:4]
    out, lse = Reference().forward(q, k, v, **options)
    return Reference().backward(q, k, v, dout, lse, (out * dout.float()).sum(-1), **options)


def smoothed(out: Any, lse: Any, q: Any, k: Any, v: Any) -> Any:
    """Give the log-sum-exp of scores from which the keys' mean was taken."""
    mean = k.float().mean(2, keepdim=True).repeat_interleave(q.shape[1] // k.shape[1], 1)
    return out, lse - 0.3 * (q.float() * mean).sum(-1)


@pytest.mark.parametrize(
    ("kernel", "what"),
    [
        (broken(lambda out, lse, *_: (out, lse / math.log(2))), "log-sum-exp of a full tile"),
        (broken(lambda out, lse, *_: (out, torch.zeros_like(lse))), "log-sum-exp of a full tile"),
        (broken(smoothed), "log-sum-exp of a full tile"),
        (broken(lambda out, lse, *_: (out, lse.bfloat16())), "found torch.bfloat16"),
        (broken(lambda out, lse, *_: (out, lse.unsqueeze(-1))), r"found \[2, 4, 6, 1\]"),
        (broken(lambda out, lse, *_: (out.flip(0), lse)), "output of a full tile"),
        (broken(lambda out, lse, *_: (out * math.nan, lse)), "output of a full tile"),
        (broken(None, own_statistics), "dq of a full tile"),
        (broken(None, lambda found, *_: (found[0], found[1] * 2, found[2])), "dk of a full tile"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_breaches_are_named(kernel: Any, what: str, dtype: torch.dtype) -> None:
    with pytest.raises(RuntimeFailure, match=what) as caught:
        check_contract(kernel, cases.need_for(dtype))
    assert str(caught.value).startswith("backend broken: ")
    assert "choose another with backend=" in str(caught.value)


def test_a_band_that_is_ignored_is_found() -> None:
    class Careless(CpuFlash):
        name = "careless"

        def forward(self, q: Any, k: Any, v: Any, *, tile: Any, scale: float) -> Any:
            return super().forward(q, k, v, tile=replace(tile, band=None), scale=scale)

    with pytest.raises(RuntimeFailure, match="output of a band tile"):
        check_contract(Careless(), cases.need_for(torch.float32))
