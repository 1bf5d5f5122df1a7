"""The flash-attn packages, where they are installed: versions 2, 3 and 4.

They take ``[batch, rows, heads, size]`` and give the log-sum-exp as ``[batch, heads, rows]``, fp32.
Written against Dao-AILab/flash-attention at commit 0251105: ``flash_attn/flash_attn_interface.py``
(2.7 or later), ``hopper/flash_attn_interface.py`` and ``flash_attn/cute/interface.py``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor

from charm_sched.runtime.backends.fused import (
    HALF,
    NO_WINDOW,
    Fused,
    Given,
    on_cuda,
    repeatable,
    window_of,
)
from charm_sched.runtime.kernels import Gradients, Need
from charm_sched.runtime.tiles import Tile


@dataclass(frozen=True, slots=True)
class _FlashAttention(Fused):
    """What the versions share.

    Attributes:
        module: The package's module; None imports the installed one.
    """

    rows_first: ClassVar[bool] = True
    multiple: ClassVar[int] = 8
    path: ClassVar[str]
    package: ClassVar[str]
    module: Any = None

    def _functions(self) -> Any:  # noqa: ANN401
        return self.module if self.module is not None else importlib.import_module(self.path)

    def _missing(self) -> str | None:
        try:
            self._functions()
        except (ImportError, OSError) as problem:
            return f"the package {self.package} ({problem})"
        return None


@dataclass(frozen=True, slots=True)
class FlashAttention2(_FlashAttention):
    """FlashAttention-2: Ampere and later."""

    name: ClassVar[str] = "flash_attn_2"
    path: ClassVar[str] = "flash_attn.flash_attn_interface"
    package: ClassVar[str] = "flash-attn, 2.7 or later"

    def refusal(self, need: Need) -> str | None:
        """See `Kernel.refusal`."""
        lacks = on_cuda(need, dtypes=HALF, largest=256, capability=(8, 0))
        return lacks or self._missing() or _too_old()

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `Fused.attend`; an empty row would come back with the log-sum-exp +inf."""
        left, right = window_of(tile)
        out, lse, *_ = self._functions()._flash_attn_forward(
            q, k, v, 0.0, scale, causal=tile.causal, window_size_left=left,
            window_size_right=right, softcap=0.0, alibi_slopes=None, return_softmax=False,
        )  # fmt: skip
        return out, lse

    def differentiate(self, given: Given, *, tile: Tile, scale: float) -> Gradients:
        """See `Fused.differentiate`."""
        q, k, v, dout, out, lse = given
        left, right = window_of(tile)
        dq, dk, dv = _rooms(q, k, v)
        self._functions()._flash_attn_backward(
            dout, q, k, v, out, lse, dq, dk, dv, 0.0, scale, causal=tile.causal,
            window_size_left=left, window_size_right=right, softcap=0.0, alibi_slopes=None,
            deterministic=repeatable(),
        )  # fmt: skip
        return dq, dk, dv


@dataclass(frozen=True, slots=True)
class FlashAttention3(_FlashAttention):
    """FlashAttention-3: Hopper."""

    name: ClassVar[str] = "flash_attn_3"
    path: ClassVar[str] = "flash_attn_interface"
    package: ClassVar[str] = "flash_attn_3"

    def refusal(self, need: Need) -> str | None:
        """See `Kernel.refusal`."""
        lacks = on_cuda(need, dtypes=HALF, largest=256, capability=(9, 0), below=(10, 0))
        return lacks or self._missing()

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `Fused.attend`."""
        left, right = window_of(tile)
        out, lse, *_ = self._functions()._flash_attn_forward(
            q, k, v, softmax_scale=scale, causal=tile.causal,
            window_size_left=left, window_size_right=right,
        )  # fmt: skip
        return out, lse

    def differentiate(self, given: Given, *, tile: Tile, scale: float) -> Gradients:
        """See `Fused.differentiate`."""
        q, k, v, dout, out, lse = given
        left, right = window_of(tile)
        dq, dk, dv = _rooms(q, k, v)
        self._functions()._flash_attn_backward(
            dout, q, k, v, out, lse, dq=dq, dk=dk, dv=dv, softmax_scale=scale,
            is_causal=tile.causal, window_size_left=left, window_size_right=right,
            deterministic=repeatable(),
        )  # fmt: skip
        return dq, dk, dv


@dataclass(frozen=True, slots=True)
class FlashAttention4(_FlashAttention):
    """FlashAttention-4 (CuTe DSL): Hopper and Blackwell."""

    name: ClassVar[str] = "flash_attn_4"
    path: ClassVar[str] = "flash_attn.cute.interface"
    package: ClassVar[str] = "flash-attn-4"
    equal_sizes: ClassVar[bool] = False

    def refusal(self, need: Need) -> str | None:
        """See `Kernel.refusal`; Blackwell serves sizes up to 128, and a few pairs above."""
        lacks = on_cuda(need, dtypes=HALF, largest=256, capability=(9, 0), below=(13, 0))
        if lacks:
            return lacks
        sizes = (need.head_dim, need.value_dim)
        blackwell = torch.cuda.get_device_capability(need.device) >= (10, 0)
        if blackwell and max(sizes) > 128 and sizes not in ((192, 128), (256, 256)):
            return "head sizes up to 128, (192, 128) or (256, 256) on this GPU"
        return self._missing()

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See `Fused.attend`."""
        left, right = _optional_window(tile)
        out, lse, *_ = self._functions()._flash_attn_fwd(
            q, k, v, softmax_scale=scale, causal=tile.causal,
            window_size_left=left, window_size_right=right, return_lse=True,
        )  # fmt: skip
        return out, lse

    def differentiate(self, given: Given, *, tile: Tile, scale: float) -> Gradients:
        """See `Fused.differentiate`."""
        q, k, v, dout, out, lse = given
        left, right = _optional_window(tile)
        dq, dk, dv = self._functions()._flash_attn_bwd(
            q, k, v, out, dout, lse, softmax_scale=scale, causal=tile.causal,
            window_size_left=left, window_size_right=right, deterministic=repeatable(),
        )  # fmt: skip
        return dq, dk, dv


def _rooms(*tensors: Tensor) -> Gradients:
    """Give room for gradients, contiguous in the kernel's layout."""
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors)
    return dq, dk, dv


def _optional_window(tile: Tile) -> tuple[int | None, int | None]:
    left, right = (None if side == NO_WINDOW else side for side in window_of(tile))
    return left, right


def _too_old() -> str | None:
    """Say so where the installed version takes windows in another form."""
    package: ModuleType = importlib.import_module("flash_attn")
    found = str(getattr(package, "__version__", "0"))
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    return None if numbers >= (2, 7) else f"flash-attn 2.7 or later, found {found}"
