"""What every backend must hold to, checked when it is first used.

Attention over several ranks is put together from the log-sum-exp that kernels return beside their
output, and its gradients from kernels that are told the log-sum-exp over all keys. A backend whose
output is right may still break both: by a log-sum-exp to another base, of smoothed or unscaled
scores, filled with zeros, or by a backward that computes its own. Such a backend is refused here,
in a millisecond, instead of training a wrong model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from charm_sched.errors import RuntimeFailure
from charm_sched.masks.segments import Limit
from charm_sched.runtime.kernels import Kernel, Need, Reference
from charm_sched.runtime.tiles import Tile

_ROWS = 6
_WHOLE = (0, _ROWS)
_TILES = (
    Tile(_WHOLE, _WHOLE),
    Tile(_WHOLE, _WHOLE, causal=True),
)
# The second band tells apart diagonals that start in the first key and that end in the last one.
_BANDS = (
    Tile(_WHOLE, _WHOLE, band=(Limit(-2, slides=True), Limit(1, slides=True))),
    Tile((0, 4), _WHOLE, band=(Limit(0, slides=True), Limit(3, slides=True))),
    Tile((0, 4), _WHOLE, band=(Limit(1, slides=True), Limit(_ROWS))),
)
# Errors that rounding explains: of values, of the log-sum-exp of fp32 sums, in each dtype. Breaches
# of the contract are larger than 0.1 on these tensors.
_TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 6e-2,
}


def check_contract(kernel: Kernel, need: Need) -> None:
    """Compare a kernel with matrix products in fp64: full, causal and bands, grouped heads.

    Args:
        kernel: The kernel.
        need: The device, dtype and head sizes to check it for; bands only where it has windows.

    Raises:
        RuntimeFailure: A result has another shape, dtype or value than it must have.
    """
    tensors = _tensors(need)
    for tile in (*_TILES, *(_BANDS if need.windows else ())):
        _check_tile(kernel, tile, *tensors)


def _check_tile(kernel: Kernel, tile: Tile, q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> None:
    exact, scale = Reference(), 0.85 / math.sqrt(q.shape[-1])
    rows, keys = slice(*tile.rows), slice(*tile.keys)
    q, k, v, dout = q[:, :, rows], k[:, :, keys], v[:, :, keys], dout[:, :, rows]
    wide = (q.double(), k.double(), v.double(), dout.double())
    out, lse = kernel.forward(q, k, v, tile=tile, scale=scale)
    want_out, want_lse = exact.forward(wide[0], wide[1], wide[2], tile=tile, scale=scale)
    if lse.dtype != (torch.float64 if q.dtype == torch.float64 else torch.float32):
        raise _breach(kernel, tile, "log-sum-exp", f"fp32 (fp64 for fp64), found {lse.dtype}")
    _compare(kernel, tile, "output", out, want_out, q.dtype)
    _compare(kernel, tile, "log-sum-exp", lse, want_lse, q.dtype)
    # As if other ranks held as much again: what a row gets here is half of all.
    total = (want_lse + math.log(2)).to(lse.dtype)
    delta = (want_out * wide[3]).sum(-1) * 0.5
    found = kernel.backward(q, k, v, dout, total, delta.to(lse.dtype), tile=tile, scale=scale)
    wanted = exact.backward(*wide, total.double(), delta, tile=tile, scale=scale)
    for name, have, want in zip(("dq", "dk", "dv"), found, wanted, strict=True):
        _compare(kernel, tile, name, have, want, q.dtype)


def _compare(
    kernel: Kernel, tile: Tile, name: str, found: Tensor, expected: Tensor, dtype: torch.dtype
) -> None:
    if found.shape != expected.shape:
        raise _breach(kernel, tile, name, f"{list(expected.shape)}, found {list(found.shape)}")
    wrong = float((found.double() - expected).abs().max())
    if not wrong <= _TOLERANCE[dtype] * max(1.0, float(expected.abs().max())):
        raise _breach(
            kernel, tile, name, f"that of exact attention, but it is off by {wrong:.2g} in {dtype}"
        )


def _breach(kernel: Kernel, tile: Tile, name: str, what: str) -> RuntimeFailure:
    shape = "full" if tile.full else "causal" if tile.causal else "band"
    return RuntimeFailure(
        f"backend {kernel.name}: {name} of a {shape} tile: expected {what}; parts of attention "
        f"cannot be merged from it; choose another with backend="
    )


def _tensors(need: Need) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give q, k, v and the output's gradient; keys have a mean, which smoothing would take away."""
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int, size: int, mean: float) -> Tensor:
        shape = (2, heads, _ROWS, size)
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (numbers + mean).to(device=need.device, dtype=need.dtype)

    key, value = need.head_dim, need.value_dim
    return draw(4, key, 0.5), draw(2, key, 1.0), draw(2, value, 0.0), draw(4, value, 0.0)
