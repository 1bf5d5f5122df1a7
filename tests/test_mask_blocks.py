"""Masks of ranges and of packed documents with padding: what they show, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charm_sched.errors import WorkloadError
from charm_sched.masks.areas import row_set_areas
from charm_sched.masks.blocks import Block
from charm_sched.masks.mask import Mask, area, parse_mask
from charm_sched.partition import rows_of
from charm_sched.plans.items import Item, ItemInterner
from charm_sched.workload import Workload

SEQ_LEN = 19


def dense(mask: Mask) -> np.ndarray:
    """Count how often blocks show each pair, from their definition."""
    i, k = np.indices((SEQ_LEN, SEQ_LEN))
    times = np.zeros((SEQ_LEN, SEQ_LEN), int)
    for block in mask.blocks:
        here = (i >= block.rows[0]) & (i < block.rows[1])
        here &= (k >= block.keys[0]) & (k < block.keys[1])
        if block.causal:
            from_end = (block.rows[1] - i) - (block.keys[1] - k)  # keys past the diagonal
            here &= from_end <= 0
            if block.window is not None:
                here &= from_end > -block.window
        times += here
    return times


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int]:
    first = draw(st.integers(0, SEQ_LEN - 1))
    return first, draw(st.integers(first + 1, SEQ_LEN))


@st.composite
def block_masks(draw: st.DrawFn) -> Mask:
    """Draw blocks; those that would show a pair twice are left out."""
    kept: list[Block] = []
    for _ in range(draw(st.integers(1, 5))):
        causal = draw(st.booleans())
        window = draw(st.none() | st.integers(1, SEQ_LEN)) if causal else None
        block = Block(draw(ranges()), draw(ranges()), causal, window)
        try:
            Mask(kind="blocks", blocks=(*kept, block))
        except WorkloadError:
            continue
        kept.append(block)
    return Mask(kind="blocks", blocks=tuple(kept))


@given(block_masks(), ranges(), ranges())
def test_areas_count_what_blocks_show(
    mask: Mask, queries: tuple[int, int], keys: tuple[int, int]
) -> None:
    shown = dense(mask)
    assert shown.max() <= 1
    found = area(mask, SEQ_LEN, *((np.array(a), np.array(b)) for a, b in (queries, keys)))
    assert found == shown[slice(*queries), slice(*keys)].sum()


@given(block_masks(), st.lists(st.booleans(), min_size=SEQ_LEN, max_size=SEQ_LEN))
def test_areas_of_row_sets_count_it_too(mask: Mask, chosen: list[bool]) -> None:
    """Sets of many intervals are counted by prefix sums, few by pairs of intervals."""
    tokens = [t for t in range(SEQ_LEN) if chosen[t]] or [0]
    rows = rows_of((t, t + 1) for t in tokens)
    interner = ItemInterner()
    interner(Item("q", rows, (0, 1)))
    work, one = Workload(seq_len=SEQ_LEN, mask=mask), np.zeros(1, np.int64)
    assert (
        row_set_areas(work, interner.table(), one, one) == dense(mask)[np.ix_(tokens, tokens)].sum()
    )


@given(block_masks())
def test_text_form_parses_back(mask: Mask) -> None:
    assert parse_mask(str(mask)) == mask


@given(block_masks(), ranges())
def test_rules_of_some_rows_are_those_of_all(mask: Mask, rows: tuple[int, int]) -> None:
    met = [s for s in mask.segments(SEQ_LEN) if s.first < rows[1] and rows[0] < s.last]
    assert list(mask.segments_of(SEQ_LEN, (rows,))) == met
    halves = [(t, t + 1) for t in range(*rows)]
    assert list(mask.segments_of(SEQ_LEN, halves)) == met


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"offsets": [0, 9, 9, 17], "seq_len": 17}, "docs:9,8"),
        ({"offsets": [0, 9, 17], "seq_len": 17, "causal": False}, "docs-full:9,8"),
        ({"offsets": [0, 9, 17], "seq_len": 20}, "blocks:0:9x0:9c,9:17x9:17c"),
        (
            {"offsets": [0, 9, 17], "padded": [0, 12, 20], "seq_len": 24, "causal": False},
            "blocks:0:9x0:9,12:20x12:20",
        ),
        ({"offsets": [0, 9, 17], "seq_len": 17, "window": 4}, "blocks:0:9x0:9c4,9:17x9:17c4"),
    ],
)
def test_packed_documents(given_: dict[str, Any], expected: str) -> None:
    assert str(Mask.packed(**given_)) == expected


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"offsets": [0]}, r"cu_seqlens: expected offsets that start at 0 .* found \[0\]"),
        ({"offsets": [1, 4]}, r"expected offsets that start at 0"),
        ({"offsets": [0, 9, 4]}, r"never decrease, found \[0, 9, 4\]"),
        ({"offsets": [0, 40]}, r"end at token 40, but the sequence length is 20; a batch is not"),
        ({"offsets": [0, 0]}, r"expected a document with tokens"),
        ({"offsets": [0, 4, 8], "padded": [0, 12]}, r"as many padded offsets"),
        ({"offsets": [0, 4, 12], "padded": [0, 3, 12]}, r"of 4 tokens at padded offset 0 has room"),
        ({"offsets": [0, 4], "causal": False, "window": 2}, r"a window is for causal documents"),
    ],
)
def test_wrong_offsets_are_refused(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Mask.packed(**{"seq_len": 20} | given_)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blocks:0:4", "expected Q:Q'xK:K' with c behind it"),
        ("blocks:0:4x4:4", "block 0:4x4:4: expected ranges of 1 token or more"),
        ("blocks:0:4x0:4c0", "expected a window of 1 or more"),
        ("blocks:0:4x0:4,2:6x3:8", "found query 2 with key 3 in two; cut one of them"),
        ("blocks:0:6x0:6c,5:6x5:6", "found query 5 with key 5 in two"),
        ("blocks:", "found 'blocks:'"),
    ],
)
def test_wrong_blocks_are_refused(text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match="block") as caught:
        parse_mask(text)
    assert message in str(caught.value)


def test_blocks_must_lie_in_the_sequence() -> None:
    with pytest.raises(WorkloadError, match=r"end at token 9, but the sequence length is 8"):
        Workload(seq_len=8, mask="blocks:0:4x0:9")
    with pytest.raises(WorkloadError, match="expected blocks exactly for blocks"):
        Mask(kind="causal", blocks=(Block((0, 1), (0, 1)),))


def test_a_causal_block_ends_its_diagonal_in_its_last_row_and_key() -> None:
    mask = parse_mask("blocks:0:3x4:9c,3:8x0:3c")
    shown = dense(mask)
    assert shown[:3, 4:9].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert shown[3:8, :3].tolist() == [[0] * 3, [0] * 3, [1, 0, 0], [1, 1, 0], [1, 1, 1]]
    whole = (np.array(0), np.array(SEQ_LEN))
    assert area(mask, SEQ_LEN, whole, whole) == shown.sum()
