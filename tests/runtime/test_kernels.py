"""Tiles cover exactly what a mask shows, and kernels compute them, gradients included."""

from __future__ import annotations

import math
import random

import attention_cases as cases
import pytest
import torch

from charm_sched.partition import Rows, rows_of
from charm_sched.runtime.kernels import Kernel, visible
from charm_sched.runtime.numerics import merge_into, normalise, row_delta
from charm_sched.runtime.tiles import BAND_ROWS, cut
from charm_sched.workload import Workload

MASKS = ("full", "causal", "window:1", "window:7", "window:60", "docs:13,1,17,9", "docs-full:20,20")
LENGTH = 40


def some_rows(draw: random.Random, length: int = LENGTH) -> Rows:
    marks = sorted(draw.sample(range(length + 1), 2 * draw.randint(1, 3)))
    return rows_of(zip(marks[::2], marks[1::2], strict=True))


def positions(rows: Rows) -> torch.Tensor:
    return torch.cat([torch.arange(first, last) for first, last in rows])


def painted(mask: str, length: int, queries: Rows, keys: Rows) -> torch.Tensor:
    """Count how often the tiles of two row sets cover each pair."""
    work = Workload(seq_len=length, mask=mask)
    times = torch.zeros(len(positions(queries)), len(positions(keys)), dtype=torch.int64)
    for tile in cut(work.mask_rule, length, queries, keys):
        area = times[slice(*tile.rows), slice(*tile.keys)]
        seen = visible(tile)
        seen = torch.ones_like(area, dtype=torch.bool) if seen is None else seen
        assert seen.any(dim=1).all(), f"{tile} has an empty row"
        assert not tile.causal or area.shape[0] == area.shape[1]
        area += seen
    return times


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("seed", range(20))
def test_tiles_cover_exactly_what_is_visible(mask: str, seed: int) -> None:
    draw = random.Random(seed)
    queries, keys = some_rows(draw), some_rows(draw)
    expected = cases.dense_mask(Workload(seq_len=LENGTH, mask=mask))
    expected = expected[positions(queries)][:, positions(keys)]
    assert torch.equal(painted(mask, LENGTH, queries, keys), expected.long())


def test_long_windows_are_cut_into_bands() -> None:
    length = 3 * BAND_ROWS
    rows = ((0, length),)
    expected = cases.dense_mask(Workload(seq_len=length, mask="window:300"))
    assert torch.equal(painted("window:300", length, rows, rows), expected.long())


def test_full_blocks_side_by_side_are_one_tile() -> None:
    late, early = ((20, 30),), ((0, 5), (7, 9))
    mask = Workload(seq_len=LENGTH).mask_rule
    assert len(cut(mask, LENGTH, late, early)) == 1
    assert len(cut(mask, LENGTH, early, early)) <= 5
    assert not cut(mask, LENGTH, early, late)


@pytest.mark.parametrize("name", ["reference", "cpu_flash", "flex"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("heads", [(4, 4, 8, 8), (4, 2, 8, 8), (6, 2, 5, 8), (4, 1, 8, 3)], ids=str)
def test_kernels_agree_with_dense_attention(
    name: str, mask: str, heads: tuple[int, int, int, int]
) -> None:
    dtype = torch.float64 if name == "reference" else torch.float32
    work = Workload(
        seq_len=LENGTH, batch=2, heads=heads[0], kv_heads=heads[1], head_dim=heads[2],
        v_head_dim=heads[3], mask=mask, dtype="fp64",
    )  # fmt: skip
    q, k, v, dout = (x.to(dtype) for x in cases.make_tensors(work))
    exact = cases.dense_attention(work, q, k, v, dout)
    found = assemble(cases.kernel_for(name, dtype), work, q, k, v, dout)
    tolerance = 1e-12 if name == "reference" else 2e-5
    assert max(cases.errors(found, exact).values()) < tolerance


def assemble(
    kernel: Kernel, work: Workload, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    dout: torch.Tensor,
) -> cases.Results:  # fmt: skip
    """Put a whole attention together from tiles."""
    rows = ((0, work.seq_len),)
    tiles = cut(work.mask_rule, work.seq_len, rows, rows)
    wide = torch.promote_types(q.dtype, torch.float32)
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=wide)
    lse = torch.full(q.shape[:3], -math.inf, dtype=wide)
    for tile in tiles:
        row, key = slice(*tile.rows), slice(*tile.keys)
        part = kernel.forward(q[:, :, row], k[:, :, key], v[:, :, key], tile=tile, scale=work.scale)
        merge_into(out[:, :, row], lse[:, :, row], *part)
    delta = row_delta(out, dout, wide)
    dq, dk, dv = (torch.zeros_like(x, dtype=wide) for x in (q, k, v))
    for tile in tiles:
        row, key = slice(*tile.rows), slice(*tile.keys)
        parts = kernel.backward(
            q[:, :, row], k[:, :, key], v[:, :, key], dout[:, :, row], lse[:, :, row],
            delta[:, :, row], tile=tile, scale=work.scale,
        )  # fmt: skip
        for total, at, part in zip((dq, dk, dv), (row, key, key), parts, strict=True):
            total[:, :, at] += part
    return out, dq, dk, dv


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_zero_output_gradient_gives_zero_gradients(dtype: torch.dtype) -> None:
    """The stand-in for the output divides by the length of dout."""
    work = Workload(seq_len=8, heads=2, head_dim=4)
    q, k, v, dout = (x.to(dtype) for x in cases.make_tensors(work))
    dout[:, :, :4] = 0
    tile = cut(work.mask_rule, 8, ((0, 8),), ((0, 8),))[0]
    out, lse = cases.kernel_for(None, dtype).forward(q, k, v, tile=tile, scale=0.5)
    delta = row_delta(out, dout, torch.float32)
    found = cases.kernel_for(None, dtype).backward(q, k, v, dout, lse, delta, tile=tile, scale=0.5)
    assert all(torch.isfinite(x).all() for x in found)
    assert not found[0][:, :, :4].any()


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12, 1e30])
def test_gradients_of_any_size_survive(size: float) -> None:
    work = Workload(seq_len=8, heads=2, head_dim=4)
    q, k, v, dout = (x.float() for x in cases.make_tensors(work))
    exact = cases.dense_attention(work, q, k, v, dout)
    found = assemble(cases.kernel_for(None, torch.float32), work, q, k, v, dout * size)
    for have, want in zip(found[1:], exact[1:], strict=True):
        torch.testing.assert_close(have.double() / size, want, rtol=1e-4, atol=1e-5)


class TestMerge:
    """Combination of partial results at its edges."""

    @staticmethod
    def partial(out: float, lse: float) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((1, 1, 1, 2), out), torch.full((1, 1, 1), lse)

    @pytest.mark.parametrize(
        ("first", "second", "expected"),
        [
            ((1.0, 0.0), (3.0, 0.0), (2.0, math.log(2))),
            ((1.0, 0.0), (3.0, 200.0), (3.0, 200.0)),  # 89 and more overflow a naive exp in fp32
            ((1.0, 200.0), (3.0, 0.0), (1.0, 200.0)),
            ((1.0, -300.0), (3.0, -300.0), (2.0, -300.0 + math.log(2))),
            ((0.0, -math.inf), (3.0, 1.0), (3.0, 1.0)),
            ((3.0, 1.0), (0.0, -math.inf), (3.0, 1.0)),
            ((0.0, -math.inf), (0.0, -math.inf), (0.0, -math.inf)),
        ],
    )
    def test_edges(
        self,
        first: tuple[float, float],
        second: tuple[float, float],
        expected: tuple[float, float],
    ) -> None:
        out, lse = self.partial(*first)
        merge_into(out, lse, *self.partial(*second))
        want_out, want_lse = self.partial(*expected)
        torch.testing.assert_close(out, want_out)
        torch.testing.assert_close(lse, want_lse)

    @pytest.mark.parametrize(
        ("out", "lse"), [(math.nan, math.inf), (math.nan, -math.inf), (7.0, math.inf)]
    )
    def test_every_form_of_an_empty_row_becomes_one(self, out: float, lse: float) -> None:
        outs, lses = self.partial(out, lse)
        outs, lses = torch.cat([outs, outs + 1], 2), torch.cat([lses, torch.ones(1, 1, 1)], 2)
        outs[0, 0, 1] = 5.0
        found, sums = normalise(outs, lses)
        assert found[0, 0].tolist() == [[0.0, 0.0], [5.0, 5.0]]
        assert sums[0, 0].tolist() == [-math.inf, 1.0]
