"""The fused kernels of torch: for processors, and the three behind SDPA on CUDA.

Operators, argument order and the shapes of log-sum-exps are those of torch 2.13
(``aten/src/ATen/native/native_functions.yaml`` and ``torch/_meta_registrations.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from charm_sched.runtime.backends.fused import HALF, Fused, Given, band_bias, on_cuda, window_of
from charm_sched.runtime.kernels import Gradients, Need
from charm_sched.runtime.tiles import Tile

_BIAS_MULTIPLE = 16  # the rows of a bias must start at aligned addresses
_LSE_MULTIPLE = 32  # the efficient kernel pads its log-sum-exp to whole blocks of rows


def _aten() -> Any:  # noqa: ANN401
    return torch.ops.aten


@dataclass(frozen=True, slots=True)
class CpuFlash(Fused):
    """The kernel for processors. A row that a mask leaves empty would come back as 0."""

    name: ClassVar[str] = "cpu_flash"
    ops: Any = field(default_factory=_aten)

    def refusal(self, need: Need) -> str | None:
        """See `Kernel.refusal`."""
        return None if need.device.type == "cpu" else "CPU tensors"

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `Fused.attend`."""
        out, lse = self.ops._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, tile.causal, attn_mask=band_bias(tile, q.dtype), scale=scale
        )
        return out, lse

    def differentiate(self, given: Given, *, tile: Tile, scale: float) -> Gradients:
        """See `Fused.differentiate`."""
        q, k, v, dout, out, lse = given
        dq, dk, dv = self.ops._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, lse, 0.0, tile.causal,
            attn_mask=band_bias(tile, q.dtype), scale=scale,
        )  # fmt: skip
        return dq, dk, dv


@dataclass(frozen=True, slots=True)
class SdpaFlash(Fused):
    """FlashAttention-2 as torch builds it; bands are its windows."""

    name: ClassVar[str] = "sdpa_flash"
    multiple: ClassVar[int] = 8
    ops: Any = field(default_factory=_aten)

    def refusal(self, need: Need) -> str | None:
        """See `Kernel.refusal`."""
        return on_cuda(need, dtypes=HALF, largest=256, capability=(8, 0))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `Fused.attend`."""
        if tile.band is None:
            found = self.ops._scaled_dot_product_flash_attention(
                q, k, v, 0.0, tile.causal, False, scale=scale
            )
            return found[0], found[1]
        left, right = window_of(tile)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out, lse, *_ = self.ops._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, False, False,
            scale=scale, window_size_left=left, window_size_right=right,
        )  # fmt: skip
        return out.transpose(1, 2), lse

    def differentiate(self, given: Given, *, tile: Tile, scale: float) -> Gradients:
        """See `Fused.differentiate`; the offsets of packed sequences stay undefined."""
        q, k, v, dout, out, lse = given
        random = torch.empty(2, dtype=torch.uint64, device=q.device)
        unused = torch.empty((), dtype=torch.uint64, device=q.device)
        tail = (lse, None, None, q.shape[2], k.shape[2], 0.0, tile.causal, random, unused)
        if tile.band is None:
            dq, dk, dv = self.ops._scaled_dot_product_flash_attention_backward(
                dout, q, k, v, out, *tail, scale=scale
            )
            return dq, dk, dv
        left, right = window_of(tile)
        turned = (x.transpose(1, 2) for x in (dout, q, k, v, out))
        found = self.ops._flash_attention_backward(
            *turned, *tail, scale=scale, window_size_left=left, window_size_right=right
        )
        dq, dk, dv = (x.transpose(1, 2) for x in found)
        return dq, dk, dv


@dataclass(frozen=True, slots=True)
class SdpaEfficient(Fused):
    """The memory-efficient kernel: also fp32, and older GPUs; bands are a bias."""

    name: ClassVar[str] = "sdpa_efficient"
    multiple: ClassVar[int] = 8
    grouped: ClassVar[bool] = False
    ops: Any = field(default_factory=_aten)

    def refusal(self, need: Need) -> str | None:
        """See `Kernel.refusal`."""
        dtypes = (*HALF, torch.float32)
        return on_cuda(need, dtypes=dtypes, largest=512, capability=(7, 0))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `Fused.attend`."""
        found = self.ops._scaled_dot_product_efficient_attention(
            q, k, v, _aligned_bias(tile, q), True, 0.0, tile.causal, scale=scale
        )
        return found[0], found[1][:, :, : q.shape[2]]

    def differentiate(self, given: Given, *, tile: Tile, scale: float) -> Gradients:
        """See `Fused.differentiate`; rows that only fill a block up have the log-sum-exp +inf."""
        q, k, v, dout, out, lse = given
        lse = F.pad(lse, (0, -lse.shape[2] % _LSE_MULTIPLE), value=torch.inf)
        random = torch.empty((), dtype=torch.int64, device=q.device)
        dq, dk, dv, _ = self.ops._scaled_dot_product_efficient_attention_backward(
            dout, q, k, v, _aligned_bias(tile, q), out, lse, random, random, 0.0,
            [True, True, True, False], tile.causal, scale=scale,
        )  # fmt: skip
        return dq, dk, dv


@dataclass(frozen=True, slots=True)
class SdpaCudnn(Fused):
    """cuDNN's kernel, for masks without windows."""

    name: ClassVar[str] = "sdpa_cudnn"
    multiple: ClassVar[int] = 8
    grouped: ClassVar[bool] = False
    ops: Any = field(default_factory=_aten)

    def refusal(self, need: Need) -> str | None:
        """See `Kernel.refusal`."""
        if need.windows:
            return "a mask without sliding windows"
        return on_cuda(need, dtypes=HALF, largest=128, capability=(8, 0))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `Fused.attend`; the log-sum-exp has a last dimension of 1."""
        found = self.ops._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, tile.causal, False, scale=scale
        )
        return found[0], found[1].reshape(q.shape[:3])

    def differentiate(self, given: Given, *, tile: Tile, scale: float) -> Gradients:
        """See `Fused.differentiate`."""
        q, k, v, dout, out, lse = given
        random = torch.empty((), dtype=torch.int64, device=q.device)
        dq, dk, dv = self.ops._scaled_dot_product_cudnn_attention_backward(
            dout, q, k, v, out, lse.unsqueeze(-1), random, random, None, None, None,
            q.shape[2], k.shape[2], 0.0, tile.causal, scale=scale,
        )  # fmt: skip
        return dq, dk, dv


def _aligned_bias(tile: Tile, q: Tensor) -> Tensor | None:
    """Give a band as a bias for all heads, ``[batch, heads, rows, keys]``, its rows aligned."""
    bias = band_bias(tile, q.dtype, q.device)
    if bias is None:
        return None
    keys = bias.shape[1]
    wide = F.pad(bias, (0, -keys % _BIAS_MULTIPLE))
    return wide[:, :keys].expand(*q.shape[:2], -1, -1)
