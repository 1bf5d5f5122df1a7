"""FlexAttention: torch's kernel generator, through its public function alone.

It gives the log-sum-exp, but its backward takes no log-sum-exp over all keys. The same gradients
follow from its own backward: of a row whose part here has the share ``w = exp(lse - LSE)`` of all
keys, the output's gradient is ``w * dout``, and that of the log-sum-exp is
``w * (rowsum(out * dout) - delta)``. That costs the forward once more.

On processors torch 2.13 gives the log-sum-exp only where the function is not compiled, and has no
backward at all ("FlexAttention does not support backward on CPU"): matrix products stand in for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from charm_sched.runtime.kernels import Gradients, Need, Reference
from charm_sched.runtime.numerics import normalise
from charm_sched.runtime.tiles import Tile

_KEPT_MASKS = 256


class Flex:
    """FlexAttention; chosen by name only, because a kernel is generated for each kind of shape."""

    name: ClassVar[str] = "flex"

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._given = function
        self._compiled: Callable[..., Any] | None = None
        self._masks: dict[tuple[Any, ...], flex.BlockMask] = {}

    def refusal(self, need: Need) -> str | None:
        """See `Kernel.refusal`."""
        if not hasattr(flex, "AuxRequest"):
            return "torch 2.9 or later"
        if need.device.type not in ("cpu", "cuda"):
            return "CPU or CUDA tensors"
        if need.device.type == "cuda" and need.dtype == torch.float64:
            return "fp16, bf16 or fp32 on CUDA"
        return None

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Attend; see `Kernel.forward`."""
        return normalise(*self._attend(q.detach(), k.detach(), v.detach(), tile, scale))

    def backward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dout: Tensor,
        lse: Tensor,
        delta: Tensor,
        *,
        tile: Tile,
        scale: float,
    ) -> Gradients:
        """Give the gradients; see `Kernel.backward`."""
        if q.device.type == "cpu" and self._given is None:
            return Reference().backward(q, k, v, dout, lse, delta, tile=tile, scale=scale)
        inputs = q, k, v = tuple(x.detach().requires_grad_() for x in (q, k, v))
        with torch.enable_grad():
            out, own = self._attend(q, k, v, tile, scale)
        share = torch.exp(own.detach() - lse)
        dlse = share * ((out.detach().to(delta.dtype) * dout.to(delta.dtype)).sum(-1) - delta)
        weighed = (share.unsqueeze(-1) * dout).to(out.dtype)
        dq, dk, dv = torch.autograd.grad((out, own), inputs, (weighed, dlse.to(own.dtype)))
        return dq, dk, dv

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without")
            out, found = self._function(q.device)(
                q, k, v, block_mask=self._mask(tile, q.device), scale=scale,
                enable_gqa=q.shape[1] != k.shape[1], return_aux=flex.AuxRequest(lse=True),
            )  # fmt: skip
        return out, found.lse

    def _function(self, device: torch.device) -> Callable[..., Any]:
        if self._given is not None:
            return self._given
        if device.type == "cpu":
            return flex.flex_attention
        if self._compiled is None:
            self._compiled = torch.compile(flex.flex_attention)
        return self._compiled

    def _mask(self, tile: Tile, device: torch.device) -> flex.BlockMask | None:
        if tile.full:
            return None
        rows, keys = tile.rows[1] - tile.rows[0], tile.keys[1] - tile.keys[0]
        key = (rows, keys, tile.causal, tile.band, device)
        if key not in self._masks:
            if len(self._masks) >= _KEPT_MASKS:
                self._masks.clear()
            self._masks[key] = flex.create_block_mask(
                _sees(tile), None, None, rows, keys, device=device
            )
        return self._masks[key]


def _sees(tile: Tile) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Give a tile's mask as a function of batch, head, row and key."""
    if tile.band is None:
        return lambda _batch, _head, row, key: key <= row
    lower, upper = tile.band

    def sees(_batch: Tensor, _head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        first = row + lower.offset if lower.slides else lower.offset
        last = row + upper.offset if upper.slides else upper.offset
        return (first <= key) & (key < last)

    return sees
