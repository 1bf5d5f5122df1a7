"""The documents of MagiAttention's benchmark, sampled as it samples them.

Its repository (SandAI-org/MagiAttention, exps/dist_attn, 2c64135) publishes a histogram of lengths
and how packs are drawn from it: each document has the middle of its bin as its length, one longer
than a quarter of the pack is cut into quarters and a rest, all are shuffled, laid end to end and
cut into packs, and the packs are shuffled. With the same generator and seed the packs are the same.
"""

from __future__ import annotations

import functools

import numpy as np

SEED, LARGEST_SHARE = 42, 0.25
# Middle of each bin, tokens, and how many documents are in it (datasets/default).
HISTOGRAM = (
    (5, 30254), (30, 391188), (75, 699596), (150, 1377757), (350, 3794735), (762, 3316785),
    (1536, 2106566), (3072, 988525), (6144, 410002), (12288, 173574), (24576, 115007),
    (49152, 18428), (98304, 22513), (163840, 18284),
)  # fmt: skip


@functools.cache
def document_packs(tokens: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Give the lengths in each of the first packs of so many tokens."""
    generator = np.random.default_rng(SEED)
    samples = _cut(tokens * LARGEST_SHARE)
    generator.shuffle(samples)
    ends = np.cumsum(samples.astype(np.int64))
    order = list(range(int(ends[-1]) // tokens))
    generator.shuffle(order)
    return tuple(_pack(ends, number * tokens, tokens) for number in order[:count])


def _cut(longest: float) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Give all documents, the whole parts of long ones first, then what is left of each."""
    lengths, counts = np.array(HISTOGRAM, np.int32).T
    whole = np.repeat(longest, int((lengths // longest * counts).sum())).astype(np.int32)
    rest = (lengths % longest).astype(np.int32)
    return np.concatenate([whole, np.repeat(rest[rest > 0], counts[rest > 0])])


def _pack(
    ends: np.ndarray[tuple[int], np.dtype[np.int64]], start: int, tokens: int
) -> tuple[int, ...]:
    first, last = np.searchsorted(ends, [start, start + tokens], side="right")
    cuts = np.unique([start, *ends[first:last].tolist(), start + tokens])
    return tuple(np.diff(cuts).tolist())
