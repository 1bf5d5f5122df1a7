"""What fused kernels share: layout, padding, head groups, windows, and the output in the backward.

Backwards of fused kernels are told the output, to form ``delta = rowsum(out * dout)`` from it.
Query rows that came from another rank travel with their delta and without their output, so the
kernel gets a stand-in that forms the same delta.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from charm_sched.runtime.kernels import Gradients, Need, sum_groups, visible
from charm_sched.runtime.numerics import normalise
from charm_sched.runtime.tiles import Tile

HALF = (torch.float16, torch.bfloat16)
NO_WINDOW = -1  # how the flash kernels write a side without a limit


class Given(NamedTuple):
    """What the backward of a fused kernel is told, in the kernel's own layout.

    Attributes:
        q: Queries.
        k: Keys.
        v: Values.
        dout: Gradient of the output.
        out: The output, or a stand-in that forms the same delta.
        lse: Log-sum-exp over all keys of each row, ``[batch, heads, rows]``.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    out: Tensor
    lse: Tensor


class Fused(ABC):
    """A fused kernel, brought into the form of `Kernel`.

    Attributes:
        name: As the user chooses it.
        rows_first: Whether it takes ``[batch, rows, heads, size]``.
        multiple: Head sizes are padded with zeros to a multiple of it, which changes no product.
        equal_sizes: Whether q, k and v must have one head size.
        grouped: Whether it serves fewer KV heads than query heads.
    """

    name: ClassVar[str]
    rows_first: ClassVar[bool] = False
    multiple: ClassVar[int] = 1
    equal_sizes: ClassVar[bool] = True
    grouped: ClassVar[bool] = True

    @abstractmethod
    def refusal(self, need: Need) -> str | None:
        """Say why it cannot serve a need; see `Kernel.refusal`."""

    @abstractmethod
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Attend, in the kernel's own layout; the log-sum-exp is ``[batch, heads, rows]``."""

    @abstractmethod
    def differentiate(self, given: Given, *, tile: Tile, scale: float) -> Gradients:
        """Give the gradients of q, k and v, in the kernel's own layout."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Attend; see `Kernel.forward`."""
        width = v.shape[-1]
        out, lse = self.attend(*self._arranged(q, k, v), tile=tile, scale=scale)
        return normalise(self._turned(out)[..., :width], lse)

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
        own_q, own_k, own_v, own_dout, out = self._arranged(q, k, v, dout, stand_in(dout, delta))
        given = Given(own_q, own_k, own_v, own_dout, out, lse.contiguous())
        found = self.differentiate(given, tile=tile, scale=scale)
        dq, dk, dv = (self._turned(x) for x in found)
        if dk.shape[1] != k.shape[1]:
            dk, dv = sum_groups(dk, k.shape[1]), sum_groups(dv, k.shape[1])
        return dq[..., : q.shape[-1]], dk[..., : k.shape[-1]], dv[..., : v.shape[-1]]

    def _arranged(self, q: Tensor, k: Tensor, v: Tensor, *outputs: Tensor) -> tuple[Tensor, ...]:
        """Bring tensors into the kernel's layout; ``outputs`` have the head size of v."""
        key_width, width = (-(-x.shape[-1] // self.multiple) * self.multiple for x in (q, v))
        if self.equal_sizes:
            key_width = width = max(key_width, width)
        repeats = 1 if self.grouped else q.shape[1] // k.shape[1]
        if repeats > 1:
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        padded = [_padded(q, key_width), _padded(k, key_width), _padded(v, width)]
        padded += [_padded(x, width) for x in outputs]
        return tuple(self._turned(x) for x in padded)

    def _turned(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2) if self.rows_first else x


def on_cuda(
    need: Need,
    *,
    dtypes: tuple[torch.dtype, ...],
    largest: int,
    capability: tuple[int, int],
    below: tuple[int, int] = (1000, 0),
) -> str | None:
    """Say what a CUDA kernel lacks for a need; None where nothing.

    Args:
        need: What it is wanted for.
        dtypes: What it takes.
        largest: Its largest head size.
        capability: The first compute capability it runs on.
        below: The first one after those it runs on.
    """
    if need.device.type != "cuda":
        return "CUDA tensors"
    if need.dtype not in dtypes:
        return " or ".join(map(str, dtypes))
    if max(need.head_dim, need.value_dim) > largest:
        return f"head sizes up to {largest}"
    if not capability <= torch.cuda.get_device_capability(need.device) < below:
        return f"a GPU of compute capability {capability[0]}.{capability[1]} or later" + (
            "" if below > (999, 0) else f", before {below[0]}.{below[1]}"
        )
    return None


def window_of(tile: Tile) -> tuple[int, int]:
    """Give the keys that a row sees before and after its diagonal; -1 where there is no limit.

    The diagonal of the flash kernels ends in the last row and the last key. No row of a tile is
    empty and no key unseen, so a limit that slides always lies on the right side of it.
    """
    if tile.band is None:
        return NO_WINDOW, NO_WINDOW
    lower, upper = tile.band
    ahead = (tile.keys[1] - tile.keys[0]) - (tile.rows[1] - tile.rows[0])
    left = ahead - lower.offset if lower.slides else NO_WINDOW
    right = upper.offset - 1 - ahead if upper.slides else NO_WINDOW
    return left, right


def band_bias(tile: Tile, dtype: torch.dtype, device: torch.device | None = None) -> Tensor | None:
    """Give a band as a term to add to the scores, ``[rows, keys]``; None for other tiles."""
    if tile.band is None:
        return None
    seen = visible(tile, device)
    assert seen is not None
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -torch.inf)


def repeatable() -> bool:
    """Say whether the user asked torch for results that are the same to the bit in every run."""
    return torch.are_deterministic_algorithms_enabled()


def stand_in(dout: Tensor, delta: Tensor) -> Tensor:
    """Give the shortest output whose ``rowsum(out * dout)`` is ``delta``.

    It is parallel to ``dout``, so all terms of the sum have one sign and rounding it to bf16 costs
    less than rounding the true output does; its length is at most the true output's.
    """
    wide = dout.to(delta.dtype)
    top = wide.abs().amax(-1, keepdim=True)
    unit = wide / top.masked_fill(top == 0, 1)
    square = unit.square().sum(-1, keepdim=True)
    factor = delta.unsqueeze(-1) / (top * square).masked_fill(top == 0, 1)
    return (unit * factor).to(dout.dtype)


def _padded(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))
