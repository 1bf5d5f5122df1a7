"""Kernels: the attention of one tile.

A kernel takes tensors ``[batch, heads, rows, head_dim]``; the key/value heads divide the query
heads. It returns the output in any dtype and the log-sum-exp in the accumulation dtype. Masks
beyond full, causal squares and bands are cut away before (`tiles`), and no row of a tile is empty.

The fused kernels of torch and of other packages are in `charm_sched.runtime.backends`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from charm_sched.runtime.numerics import normalise
from charm_sched.runtime.tiles import Tile

Gradients = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a kernel is wanted for.

    Attributes:
        device: Where the tensors are.
        dtype: Of q, k and v.
        head_dim: Of q and k.
        value_dim: Of v.
        windows: Whether the mask has sliding windows, which become tiles with bands.
    """

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    value_dim: int
    windows: bool = False


class Kernel(Protocol):
    """Attention of one tile."""

    @property
    def name(self) -> str:
        """Name, as the user chooses it."""

    def refusal(self, need: Need) -> str | None:
        """Say why it cannot serve a need, as the end of "needs ..."; None where it can."""

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

    def refusal(self, need: Need) -> str | None:
        """Refuse nothing; see `Kernel.refusal`."""
        return None

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
        return _times(ds, k), sum_groups(dk, k.shape[1]), sum_groups(dv, v.shape[1])


def visible(tile: Tile, device: torch.device | None = None) -> Tensor | None:
    """Give which keys each row sees, bool ``[rows, keys]``; None where it is all."""
    if tile.full:
        return None
    row = torch.arange(tile.rows[1] - tile.rows[0], device=device).unsqueeze(1)
    key = torch.arange(tile.keys[1] - tile.keys[0], device=device)
    if tile.band is None:
        return key <= row
    lower, upper = (limit.offset + row * limit.slides for limit in tile.band)
    return (lower <= key) & (key < upper)


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
    seen = visible(tile, scores.device)
    return scores if seen is None else scores.masked_fill(~seen, -torch.inf)


def sum_groups(x: Tensor, groups: int) -> Tensor:
    """Sum what query heads give the KV head of their group: ``[batch, groups, rows, size]``."""
    return _grouped(x, groups).sum(2)
