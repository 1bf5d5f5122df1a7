"""Stand-ins for kernels that cannot run here, which are strict about what they are given.

Each takes the arguments of the real function, checks shapes, layouts, dtypes and head sizes as the
real one does, computes in fp64, and forms delta from the output that it is told, as the real
backwards do. Operators of torch are called on meta tensors as well: that is the real parsing of
arguments, and the real shapes of results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask

HALF = (torch.float16, torch.bfloat16)
UNLIMITED = -1


def seen_by(rows: int, keys: int, causal: bool, window: tuple[int, int]) -> Tensor:
    """Give what the flash kernels show: their diagonal ends in the last row and key."""
    if causal:
        assert rows == keys, "the diagonal of a causal tile would depend on the kernel"
        assert window == (UNLIMITED, UNLIMITED)
        window = (UNLIMITED, 0)
    left, right = window
    at = torch.arange(rows).unsqueeze(1) + keys - rows
    key = torch.arange(keys)
    seen = torch.ones(rows, keys, dtype=torch.bool)
    assert left >= UNLIMITED
    assert right >= UNLIMITED
    if left != UNLIMITED:
        seen &= key >= at - left
    if right != UNLIMITED:
        seen &= key <= at + right
    return seen


def scores_of(q: Tensor, k: Tensor, scale: float, seen: Tensor, bias: Tensor | None) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    scores = q.double() @ k.double().repeat_interleave(groups, 1).transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias.double()
    return scores.masked_fill(~seen, -math.inf)


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    scores = scores_of(q, k, scale, seen, bias)
    lse = torch.logsumexp(scores, -1)
    p = torch.exp(scores - lse.unsqueeze(-1))
    out = p @ v.double().repeat_interleave(q.shape[1] // v.shape[1], 1)
    return out.to(q.dtype), lse.float()


def differentiate(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float,
    seen: Tensor, bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    groups, kv_heads = q.shape[1] // k.shape[1], k.shape[1]
    wide_k, wide_v = (x.double().repeat_interleave(groups, 1) for x in (k, v))
    p = torch.exp(scores_of(q, k, scale, seen, bias) - lse.double().unsqueeze(-1))
    delta = (out.double() * dout.double()).sum(-1, keepdim=True)
    ds = p * (dout.double() @ wide_v.transpose(-1, -2) - delta) * scale
    dk, dv = ds.transpose(-1, -2) @ q.double(), p.transpose(-1, -2) @ dout.double()
    dk, dv = (x.unflatten(1, (kv_heads, groups)).sum(2) for x in (dk, dv))
    return (ds @ wide_k).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def checked(*tensors: Tensor, dtypes: tuple[torch.dtype, ...], multiple: int, largest: int) -> None:
    """Check what q, k, v and what follows them must have in common, heads in dimension 1."""
    q, k, v, *others = tensors
    for x in tensors:
        assert x.dim() == 4
        assert x.dtype == q.dtype
        assert x.dtype in dtypes
        assert x.stride(-1) == 1, "the last dimension must lie together"
        assert x.shape[-1] % multiple == 0
        assert x.shape[-1] <= largest
        assert 0 not in x.shape
    assert k.shape[:3] == v.shape[:3]
    assert q.shape[1] % k.shape[1] == 0
    assert q.shape[0] == k.shape[0]
    assert q.shape[3] == k.shape[3]
    for x in others:
        assert x.shape == (*q.shape[:3], v.shape[3])


class Aten:
    """The operators of ``torch.ops.aten``, each compared with its own meta function."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        emulated = getattr(_Operators, name)

        def call(*args: Any, **options: Any) -> Any:
            self.called.append(name)
            moved = [_on_meta(x) for x in args]
            shapes = getattr(torch.ops.aten, name)(*moved, **options)
            found = emulated(*args, **options)
            for have, want in zip(found, shapes, strict=False):
                if isinstance(have, Tensor):
                    assert have.shape == want.shape, (name, have.shape, want.shape)
                    assert have.dtype == want.dtype
            return found

        return call


def _on_meta(x: Any) -> Any:
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _turned(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.transpose(1, 2) for x in tensors)


_FLASH: dict[str, Any] = {"dtypes": HALF, "multiple": 8, "largest": 256}


class _Operators:
    @staticmethod
    def _scaled_dot_product_flash_attention(
        query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
        return_debug_mask: bool = False, *, scale: float | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        checked(query, key, value, **_FLASH)
        assert query.shape[3] == value.shape[3]
        assert (dropout_p, return_debug_mask) == (0.0, False)
        assert scale is not None
        seen = seen_by(query.shape[2], key.shape[2], is_causal, (UNLIMITED, UNLIMITED))
        return attend(query, key, value, scale, seen)

    @staticmethod
    def _scaled_dot_product_flash_attention_backward(
        grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
        logsumexp: Tensor, cum_seq_q: Tensor | None, cum_seq_k: Tensor | None, max_q: int,
        max_k: int, dropout_p: float, is_causal: bool, philox_seed: Tensor, philox_offset: Tensor,
        *, scale: float | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        checked(query, key, value, grad_out, out, **_FLASH)
        assert (max_q, max_k) == (query.shape[2], key.shape[2])
        return _flash_backward(
            grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, dropout_p,
            is_causal, scale, (UNLIMITED, UNLIMITED),
        )  # fmt: skip

    @staticmethod
    def _flash_attention_forward(
        query: Tensor, key: Tensor, value: Tensor, cum_seq_q: Tensor | None,
        cum_seq_k: Tensor | None, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
        return_debug_mask: bool, *, scale: float | None = None,
        window_size_left: int | None = None, window_size_right: int | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        q, k, v = _turned(query, key, value)
        checked(q, k, v, **_FLASH)
        assert (cum_seq_q, cum_seq_k, dropout_p, return_debug_mask) == (None, None, 0.0, False)
        assert (max_q, max_k) == (query.shape[1], key.shape[1])
        assert scale is not None
        assert window_size_left is not None
        assert window_size_right is not None
        window = (window_size_left, window_size_right)
        out, lse = attend(q, k, v, scale, seen_by(max_q, max_k, is_causal, window))
        return out.transpose(1, 2), lse

    @staticmethod
    def _flash_attention_backward(
        grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
        logsumexp: Tensor, cum_seq_q: Tensor | None, cum_seq_k: Tensor | None, max_q: int,
        max_k: int, dropout_p: float, is_causal: bool, rng_state: Tensor, unused: Tensor, *,
        scale: float | None = None, window_size_left: int | None = None,
        window_size_right: int | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        dout, q, k, v, o = _turned(grad_out, query, key, value, out)
        checked(q, k, v, dout, o, **_FLASH)
        assert (max_q, max_k) == (query.shape[1], key.shape[1])
        assert window_size_left is not None
        assert window_size_right is not None
        window = (window_size_left, window_size_right)
        return _turned(
            *_flash_backward(
                dout, q, k, v, o, logsumexp, cum_seq_q, cum_seq_k, dropout_p, is_causal, scale,
                window,
            )
        )  # fmt: skip

    @staticmethod
    def _scaled_dot_product_efficient_attention(
        query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None,
        compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False, *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        _check_efficient(query, key, value, bias=attn_bias)
        assert (compute_log_sumexp, dropout_p) == (True, 0.0)
        assert scale is not None
        rows = query.shape[2]
        seen = seen_by(rows, key.shape[2], is_causal, (UNLIMITED, UNLIMITED))
        out, lse = attend(query, key, value, scale, seen, attn_bias)
        lse = torch.nn.functional.pad(lse, (0, -rows % 32), value=math.inf)
        return out, lse

    @staticmethod
    def _scaled_dot_product_efficient_attention_backward(
        grad_out_: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None,
        out: Tensor, logsumexp: Tensor, philox_seed: Tensor, philox_offset: Tensor,
        dropout_p: float, grad_input_mask: list[bool], is_causal: bool = False, *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        _check_efficient(query, key, value, grad_out_, out, bias=attn_bias)
        rows = query.shape[2]
        assert logsumexp.dtype == torch.float32
        assert logsumexp.shape == (*query.shape[:2], rows + -rows % 32)
        assert torch.isposinf(logsumexp[..., rows:]).all()
        assert (grad_input_mask, dropout_p) == ([True, True, True, False], 0.0)
        assert scale is not None
        seen = seen_by(rows, key.shape[2], is_causal, (UNLIMITED, UNLIMITED))
        found = differentiate(
            grad_out_, query, key, value, out, logsumexp[..., :rows], scale, seen, attn_bias
        )
        return (*found, None)

    @staticmethod
    def _scaled_dot_product_cudnn_attention(
        query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None,
        compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False,
        return_debug_mask: bool = False, *, scale: float | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        checked(query, key, value, dtypes=HALF, multiple=8, largest=128)
        assert (attn_bias, compute_log_sumexp, dropout_p) == (None, True, 0.0)
        assert not return_debug_mask
        assert scale is not None
        seen = seen_by(query.shape[2], key.shape[2], is_causal, (UNLIMITED, UNLIMITED))
        out, lse = attend(query, key, value, scale, seen)
        return out, lse.unsqueeze(-1)

    @staticmethod
    def _scaled_dot_product_cudnn_attention_backward(
        grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
        logsumexp: Tensor, philox_seed: Tensor, philox_offset: Tensor, attn_bias: Tensor | None,
        cum_seq_q: Tensor | None, cum_seq_k: Tensor | None, max_q: int, max_k: int,
        dropout_p: float, is_causal: bool, *, scale: float | None = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        checked(query, key, value, grad_out, out, dtypes=HALF, multiple=8, largest=128)
        assert (attn_bias, cum_seq_q, cum_seq_k, dropout_p) == (None, None, None, 0.0)
        assert (max_q, max_k) == (query.shape[2], key.shape[2])
        assert logsumexp.shape == (*query.shape[:3], 1)
        assert scale is not None
        seen = seen_by(max_q, max_k, is_causal, (UNLIMITED, UNLIMITED))
        return differentiate(grad_out, query, key, value, out, logsumexp[..., 0], scale, seen)


def _flash_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    cum_seq_q: Tensor | None, cum_seq_k: Tensor | None, dropout_p: float, is_causal: bool,
    scale: float | None, window: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    assert (cum_seq_q, cum_seq_k, dropout_p) == (None, None, 0.0)
    assert lse.shape == q.shape[:3]
    assert lse.dtype == torch.float32
    assert lse.is_contiguous()
    assert scale is not None
    seen = seen_by(q.shape[2], k.shape[2], is_causal, window)
    return differentiate(dout, q, k, v, out, lse, scale, seen)


def _check_efficient(*tensors: Tensor, bias: Tensor | None) -> None:
    checked(*tensors, dtypes=(*HALF, torch.float32), multiple=8, largest=10**6)
    q, k = tensors[:2]
    assert q.shape[1] == k.shape[1], "this kernel has no head groups"
    if bias is not None:
        assert bias.shape == (*q.shape[:3], k.shape[2])
        assert bias.dtype == q.dtype
        assert bias.stride(-2) % 8 == 0, "rows of the bias must be aligned"


def flash_attention_2() -> SimpleNamespace:
    """Stand in for ``flash_attn.flash_attn_interface``, 2.7 or later."""

    def _flash_attn_forward(
        q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool,
        window_size_left: int, window_size_right: int, softcap: float,
        alibi_slopes: Tensor | None, return_softmax: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        assert (dropout_p, softcap, alibi_slopes, return_softmax) == (0.0, 0.0, None, False)
        window = (window_size_left, window_size_right)
        out, lse = _rows_first_forward(q, k, v, softmax_scale, causal, window)
        return out, lse, torch.empty(0), torch.empty(2, dtype=torch.int64)

    def _flash_attn_backward(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
        dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, dropout_p: float,
        softmax_scale: float, causal: bool, window_size_left: int, window_size_right: int,
        softcap: float, alibi_slopes: Tensor | None, deterministic: bool,
        rng_state: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        assert (dropout_p, softcap, alibi_slopes) == (0.0, 0.0, None)
        assert deterministic is torch.are_deterministic_algorithms_enabled()
        window = (window_size_left, window_size_right)
        found = _rows_first_backward(dout, q, k, v, out, softmax_lse, softmax_scale, causal, window)
        _fill((dq, dk, dv), found)
        return torch.empty(0)

    return SimpleNamespace(
        _flash_attn_forward=_flash_attn_forward, _flash_attn_backward=_flash_attn_backward
    )


def flash_attention_3() -> SimpleNamespace:
    """Stand in for the ``flash_attn_interface`` of FlashAttention-3."""

    def _flash_attn_forward(
        q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float | None = None,
        causal: bool = False, window_size_left: int = -1, window_size_right: int = -1,
    ) -> tuple[Any, ...]:  # fmt: skip
        assert softmax_scale is not None
        window = (window_size_left, window_size_right)
        out, lse = _rows_first_forward(q, k, v, softmax_scale, causal, window)
        return out, lse, torch.empty(0), torch.empty(0)

    def _flash_attn_backward(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, *,
        dq: Tensor | None = None, dk: Tensor | None = None, dv: Tensor | None = None,
        softmax_scale: float | None = None, is_causal: bool = False, window_size_left: int = -1,
        window_size_right: int = -1, softcap: float = 0.0, deterministic: bool = False,
    ) -> Tensor:  # fmt: skip
        assert softmax_scale is not None
        assert deterministic is torch.are_deterministic_algorithms_enabled()
        window = (window_size_left, window_size_right)
        found = _rows_first_backward(
            dout, q, k, v, out, softmax_lse, softmax_scale, is_causal, window
        )
        _fill((dq, dk, dv), found)
        return torch.empty(0)

    return SimpleNamespace(
        _flash_attn_forward=_flash_attn_forward, _flash_attn_backward=_flash_attn_backward
    )


def flash_attention_4() -> SimpleNamespace:
    """Stand in for ``flash_attn.cute.interface``."""

    def _flash_attn_fwd(
        q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float | None = None,
        causal: bool = False, window_size_left: int | None = None,
        window_size_right: int | None = None, return_lse: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        assert softmax_scale is not None
        assert return_lse
        window = _limits(window_size_left, window_size_right)
        out, lse = _rows_first_forward(q, k, v, softmax_scale, causal, window)
        return out, lse, None, None

    def _flash_attn_bwd(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, dout: Tensor, lse: Tensor,
        softmax_scale: float | None = None, causal: bool = False, softcap: float = 0.0,
        window_size_left: int | None = None, window_size_right: int | None = None, *,
        deterministic: bool = False,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        assert softmax_scale is not None
        assert deterministic is torch.are_deterministic_algorithms_enabled()
        window = _limits(window_size_left, window_size_right)
        return _rows_first_backward(dout, q, k, v, out, lse, softmax_scale, causal, window)

    return SimpleNamespace(_flash_attn_fwd=_flash_attn_fwd, _flash_attn_bwd=_flash_attn_bwd)


def _limits(left: int | None, right: int | None) -> tuple[int, int]:
    assert UNLIMITED not in (left, right), "no limit is None here"
    return (UNLIMITED if left is None else left), (UNLIMITED if right is None else right)


def _rows_first_forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    q, k, v = _turned(q, k, v)
    checked(q, k, v, **_FLASH)
    out, lse = attend(q, k, v, scale, seen_by(q.shape[2], k.shape[2], causal, window))
    return out.transpose(1, 2), lse


def _rows_first_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float,
    causal: bool, window: tuple[int, int],
) -> tuple[Tensor, ...]:  # fmt: skip
    dout, q, k, v, out = _turned(dout, q, k, v, out)
    checked(q, k, v, dout, out, **_FLASH)
    found = _flash_backward(dout, q, k, v, out, lse, None, None, 0.0, causal, scale, window)
    return _turned(*found)


def _fill(rooms: tuple[Tensor | None, ...], found: tuple[Tensor, ...]) -> None:
    for room, gradient in zip(rooms, found, strict=True):
        assert room is not None
        assert room.is_contiguous()
        assert room.shape == gradient.shape
        room.copy_(gradient)


def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, *, block_mask: BlockMask | None,
    scale: float | None, enable_gqa: bool, return_aux: AuxRequest,
) -> tuple[Tensor, AuxOutput]:  # fmt: skip
    """Stand in for FlexAttention where it has a backward: differentiable in both results."""
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert return_aux.lse
    assert scale is not None
    rows, keys = query.shape[2], key.shape[2]
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if block_mask is not None:
        assert block_mask.seq_lengths == (rows, keys)
        nothing = torch.tensor(0)
        row, column = torch.arange(rows).unsqueeze(1), torch.arange(keys)
        seen = block_mask.mask_mod(nothing, nothing, row, column)
    out, lse = attend(query, key, value, scale, seen)
    return out, AuxOutput(lse=lse)
