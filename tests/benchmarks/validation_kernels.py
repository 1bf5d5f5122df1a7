"""What a rank of MagiAttention's baselines does beside its plan: kernels by length, tiles, copies.

Around each kernel tokens are gathered into a buffer without padding and scattered back, heads are
put in front of tokens and back, partial outputs are rescaled. Bytes are counted from the published
code (SandAI-org/MagiAttention, exps/dist_attn/baselines, 2c64135), read and written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.validation_cases import DIM, HEADS, KV_HEADS, NODE, TOKENS, Case

Q = TOKENS * HEADS * DIM * 2.0  # bytes of a rank's queries, outputs or their gradients
K = TOKENS * KV_HEADS * DIM * 2.0  # bytes of its keys, or of its values
HBM = 3.35e12  # bytes per second of an H100's memory (datasheet), for copies in order
# TFLOP/s of FlashAttention-3 without mask by length, 64:8 heads: "Kernel Level" of the same page.
KERNELS = {
    "forward": ((1024, 558), (2048, 672), (4096, 677), (8192, 673), (16384, 686), (32768, 702)),
    "backward": ((1024, 334), (2048, 453), (4096, 517), (8192, 556), (16384, 587), (32768, 601)),
}
# What each tile of rows costs besides, in blocks of 128 keys: its queries are read, its results are
# divided and written. Fitted to FlashAttention-3 under documents (484, 544 and 584 TFLOP/s at 8K,
# 16K and 32K, "Kernel Level" of the same page), together with a rate of 690 TFLOP/s.
TILE_COST = 2.15


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What is fitted on 8 GPUs.

    Attributes:
        full: FLOP/s of a forward kernel without mask.
        causal: Of a causal one.
        backward: Of a causal backward kernel.
        scatter: Bytes per second, read and written, at which a kernel's results are put into their
            places by an index. All else that a kernel call costs per row is in it, too.
    """

    full: float
    causal: float
    backward: float
    scatter: float


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Bytes read and written beside the kernels of one rank.

    Attributes:
        scattered: By an index on the writing side.
        plain: All else, in order or by an index on the reading side.
    """

    scattered: float = 0.0
    plain: float = 0.0

    def seconds(self, constants: Constants) -> float:
        """Give the time of all."""
        return self.plain / HBM + self.scattered / constants.scatter


def copies(case: Case) -> tuple[Copies, Copies]:
    """Count what is copied per kernel, and what is copied once, on the rank that copies most.

    ``Q`` are the bytes of a rank's queries. Reading and writing count once each.
    """
    if case.strategy == "ulysses":
        return Copies(), _head_copies(case)
    if case.strategy == "all_gather":
        return Copies(), _gathered_copies(case)
    step, once = _ring_copies(case), Copies(plain=Q + 4 * K)
    if case.strategy != "ring":  # heads are exchanged around it
        once = Copies(plain=once.plain + 6 * Q + 8 * K)
    return step, once


def _head_copies(case: Case) -> Copies:
    """Ulysses: heads to the front and back, padding out and in."""
    keys = max(1, case.ranks // KV_HEADS) * K  # KV heads are repeated to one per rank
    if case.direction == "forward":
        return Copies(scattered=2 * Q, plain=9 * Q + 12 * keys)
    return Copies(scattered=2 * Q + 4 * keys, plain=13 * Q + 14 * keys)


def _gathered_copies(case: Case) -> Copies:
    """All-gather: keys of all ranks into order; a kernel each for heads and tails."""
    keys = case.ranks * K
    if case.direction == "forward":
        again = 8 if case.name.startswith("full") else 4  # a causal kernel sees half of them
        return Copies(scattered=2 * Q, plain=7 * Q + 4 * K + (4 + again) * keys)
    return Copies(scattered=2 * Q + 4 * keys, plain=13 * Q + 30 * keys)


def _ring_copies(case: Case) -> Copies:
    """One step of a ring: under a causal mask all queries meet half of the keys."""
    if case.direction == "backward":
        return Copies(scattered=2 * Q + 2 * K, plain=10 * Q + 14 * K)
    return Copies(scattered=2 * Q, plain=6 * Q + 4 * K)


def length_factor(case: Case) -> float:
    """Give the rate of a kernel of the case over that of a long one.

    Its length is the geometric mean of its rows and keys.
    """
    if case.strategy == "ulysses" or case.documents:
        return 1.0
    rows = TOKENS * (1 if case.strategy in ("ring", "all_gather") else NODE)
    keys = rows
    if case.strategy == "all_gather":  # heads and tails apart
        rows, keys = rows // 2, TOKENS * case.ranks
    if not case.name.startswith("full") and (case.rings > 1 or case.strategy == "all_gather"):
        keys //= 2
    lengths, rates = zip(*KERNELS[case.direction], strict=True)
    at = np.interp(math.log(rows * keys) / 2, np.log(lengths), rates)
    return float(at / rates[-1])


def tile_excess(case: Case) -> float:
    """Count the FLOPs per kernel of a rank that tiles add to what the mask leaves.

    FlashAttention-3 works in tiles of 128 rows by 128 keys under a causal mask and by 176 without
    one (hopper/tile_size.h, head dimension 128). The query heads that share a KV head of the rank
    are packed into the rows. Counted for documents alone: it is nothing for one long sequence.
    """
    if not case.documents:
        return 0.0
    heads = HEADS
    if case.strategy == "ulysses":
        heads = HEADS // case.ranks
    elif case.strategy in ("usp", "loongtrain"):
        heads = HEADS // NODE
    kv_heads = max(1, KV_HEADS * heads // HEADS)
    rows = 128 * kv_heads // heads
    pairs = {
        "ulysses": _excess_alone, "all_gather": _excess_gathered,
    }.get(case.strategy, _excess_in_ring)(case, rows)  # fmt: skip
    return 4.0 * DIM * heads * pairs


def _causal_tiles(length: int, rows: int, before: int = 0) -> float:
    """Count the pairs in the tiles of a causal kernel whose queries end where its keys end."""
    tops = np.arange(0, length, rows)
    ends = np.minimum(tops + rows, length) + before
    return float((rows * 128 * (-(-ends // 128) + TILE_COST)).sum())


def _tiles(length: int, keys: int, rows: int) -> float:
    """Count the pairs in the tiles of a kernel without mask."""
    return -(-length // rows) * rows * (-(-keys // 176) * 176 + 128 * TILE_COST)


def _excess_alone(case: Case, rows: int) -> float:
    return sum(_causal_tiles(n, rows) - n * (n + 1) / 2 for n in case.documents)


def _excess_gathered(case: Case, rows: int) -> float:
    """Two kernels per rank, for heads and tails of the documents; the mean of the ranks."""
    found = 0.0
    for length in case.documents:
        chunk = -(-length // (2 * case.ranks))
        starts = np.arange(0, length, chunk).tolist()
        found += sum(_causal_tiles(min(chunk, length - s), rows, s) for s in starts)
        found -= length * (length + 1) / 2
    return found / case.ranks


def _excess_in_ring(case: Case, rows: int) -> float:
    """The mean of a ring's steps: all queries and half of the keys, or on the diagonal causal."""
    found, steps = 0.0, case.rings
    for length in case.documents:
        chunk = -(-length // (2 * steps))
        own = _causal_tiles(2 * chunk, rows)
        other = _tiles(2 * chunk, chunk, rows)
        found += (own + (steps - 1) * other) / steps - length * (length + 1) / 2 / steps**2
    return found
