"""Kernels: the attention of one tile.

A kernel takes tensors ``[batch, heads, rows, head_dim]``; the key/value heads divide the query
heads. It returns the output in any dtype and the log-sum-exp in the accumulation dtype. Masks
beyond full, causal squares and bands are cut away before (`tiles`), and no row of a tile is empty.

Adding a backend: satisfy `Kernel` and list it in `KERNELS`.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from charm_sched.errors import RuntimeFailure
from charm_sched.runtime.numerics import normalise
from charm_sched.runtime.tiles import Tile

Gradients = tuple[Tensor, Tensor, Tensor]


class Kernel(Protocol):
    """Attention of one tile."""

    @property
    def name(self) -> str:
        """Name, as the user chooses it."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Attend.

        Args:
            q: ``[batch, heads, rows, head_dim]``, the tile's rows.
            k: ``[batch, kv_heads, keys, head_dim]``, the tile's keys.
            v: ``[batch, kv_heads, keys, v_head_dim]``.
            tile: Which pairs are visible.
            scale: The softmax scale.

        Returns:
            Output ``[batch, heads, rows, v_head_dim]`` and log-sum-exp ``[batch, heads, rows]``.
        """

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
        """Give the tile's share of the gradients of q, k and v.

        Args:
            q: As in `forward`; so are ``k``, ``v``, ``tile`` and ``scale``.
            k: Keys.
            v: Values.
            dout: Gradient of the output, ``[batch, heads, rows, v_head_dim]``.
            lse: Log-sum-exp over ALL keys of each row, ``[batch, heads, rows]``.
            delta: ``rowsum(out * dout)`` of the final output, ``[batch, heads, rows]``.
            tile: Which pairs are visible.
            scale: The softmax scale.
        """


class Reference:
    """Plain matrix products: exact in fp64, for checks and for dtypes without a fused kernel."""

    name = "reference"

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Attend; see `Kernel.forward`."""
        q, k, v = _wide(q), _wide(k), _wide(v)
        scores = _scores(q, k, tile, scale)
        lse = torch.logsumexp(scores, dim=-1)
        return normalise(_times(torch.exp(scores - lse.unsqueeze(-1)), v), lse)

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
        q, k, v, dout = _wide(q), _wide(k), _wide(v), _wide(dout)
        p = torch.exp(_scores(q, k, tile, scale) - lse.unsqueeze(-1))
        dp = _times(dout, v.transpose(-1, -2))
        ds = p * (dp - delta.unsqueeze(-1)) * scale
        dk, dv = ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ dout
        return _times(ds, k), _sum_groups(dk, k.shape[1]), _sum_groups(dv, v.shape[1])


class CpuFlash:
    """PyTorch's fused CPU kernel, which gives the log-sum-exp and has a backward.

    It needs equal head sizes for q, k and v (the shorter ones are padded with zeros, which changes
    no product) and at least one row and one key; a row that a mask leaves empty would come back
    with log-sum-exp 0, which is why tiles never hold one.
    """

    name = "cpu_flash"

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, tile: Tile, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Attend; see `Kernel.forward`."""
        width, mask = v.shape[-1], band_bias(tile, q.dtype)
        q, k, v = _padded(q, k, v)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, tile.causal, attn_mask=mask, scale=scale
        )
        return normalise(out[..., :width], lse)

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
        """Give the gradients; see `Kernel.backward`.

        The operator takes the output only to form delta from it. Query rows that came from another
        rank travel without their output, so it gets a stand-in that forms the same delta.
        """
        width, key_width = v.shape[-1], k.shape[-1]
        mask = band_bias(tile, q.dtype)
        out = _stand_in(dout, delta)
        q, k, v, dout, out = _padded(q, k, v, dout, out)
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, lse, 0.0, tile.causal, attn_mask=mask, scale=scale
        )
        return dq[..., :key_width], dk[..., :key_width], dv[..., :width]


KERNELS: dict[str, type[Kernel]] = {"reference": Reference, "cpu_flash": CpuFlash}


def choose_kernel(name: str | None, dtype: torch.dtype) -> Kernel:
    """Give a kernel by name; None chooses ``reference`` for fp64, ``cpu_flash`` otherwise.

    Raises:
        RuntimeFailure: The name is not known.
    """
    if name is None:
        name = "reference" if dtype == torch.float64 else "cpu_flash"
    if not isinstance(name, str) or name not in KERNELS:
        raise RuntimeFailure(f"backend: expected {', '.join(KERNELS)}, found {name!r}")
    return KERNELS[name]()


def visible(tile: Tile) -> Tensor | None:
    """Give which keys each row sees, bool ``[rows, keys]``; None where it is all."""
    if tile.full:
        return None
    row = torch.arange(tile.rows[1] - tile.rows[0]).unsqueeze(1)
    key = torch.arange(tile.keys[1] - tile.keys[0])
    if tile.band is None:
        return key <= row
    lower, upper = (limit.offset + row * limit.slides for limit in tile.band)
    return (lower <= key) & (key < upper)


def band_bias(tile: Tile, dtype: torch.dtype) -> Tensor | None:
    """Give a band as a term to add to the scores, ``[rows, keys]``; None for other tiles."""
    if tile.band is None:
        return None
    seen = visible(tile)
    assert seen is not None
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _times(x: Tensor, shared: Tensor) -> Tensor:
    """Multiply each query head of ``x`` by the KV head of ``shared`` that serves it."""
    return (_grouped(x, shared.shape[1]) @ shared.unsqueeze(2)).flatten(1, 2)


def _grouped(x: Tensor, groups: int) -> Tensor:
    batch, heads, rows, size = x.shape
    return x.reshape(batch, groups, heads // groups, rows, size)


def _scores(q: Tensor, k: Tensor, tile: Tile, scale: float) -> Tensor:
    scores = _times(q, k.transpose(-1, -2)) * scale
    seen = visible(tile)
    return scores if seen is None else scores.masked_fill(~seen, -torch.inf)


def _sum_groups(x: Tensor, groups: int) -> Tensor:
    return _grouped(x, groups).sum(2)


def _padded(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Pad the last dimension with zeros to the largest."""
    width = max(x.shape[-1] for x in tensors)
    return tuple(x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1])) for x in tensors)


def _stand_in(dout: Tensor, delta: Tensor) -> Tensor:
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
