from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import cases

from charm_sched.errors import WorkloadError
from charm_sched.masks.mask import Mask, area, parse_mask

SEQ_LEN = 23


def dense(mask: Mask, seq_len: int) -> np.ndarray:
    i, k = np.indices((seq_len, seq_len))
    match mask.kind:
        case "full":
            return np.ones((seq_len, seq_len), bool)
        case "causal":
            return k <= i
        case "window":
            return (k <= i) & (k > i - (mask.window or 0))
        case _:
            number = np.repeat(np.arange(len(mask.documents)), mask.documents)
            same = number[i] == number[k]
            return same & (k <= i) if mask.kind == "docs" else same


@given(cases.masks(SEQ_LEN), st.data())
def test_area_counts_what_a_dense_mask_shows(text: str, data: st.DataObject) -> None:
    mask = parse_mask(text)
    bounds = [sorted(data.draw(st.tuples(*[st.integers(0, SEQ_LEN)] * 2))) for _ in range(2)]
    (a, b), (c, d) = bounds
    counted = area(mask, SEQ_LEN, (np.array(a), np.array(b)), (np.array(c), np.array(d)))
    assert counted == dense(mask, SEQ_LEN)[a:b, c:d].sum()


def test_area_is_exact_beyond_float_precision() -> None:
    size = 2**27
    whole = (np.array(0), np.array(size))
    assert area(Mask(kind="causal"), size, whole, whole) == size * (size + 1) // 2


@given(cases.masks(SEQ_LEN))
def test_text_form_parses_back(text: str) -> None:
    assert str(parse_mask(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("diagonal", "expected full, causal, window:N"),
        ("causal:3", "found 'causal:3'"),
        ("window:", "found 'window:'"),
        ("window:x", "found 'window:x'"),
        ("window:0", "lengths of 1 or more, found 0"),
        ("docs:3,0", "lengths of 1 or more, found 0"),
        ("docs:3,,4", "found 'docs:3,,4'"),
    ],
)
def test_bad_masks_are_refused_with_the_right_spelling(text: str, message: str) -> None:
    with pytest.raises(WorkloadError, match="mask") as caught:
        parse_mask(text)
    assert message in str(caught.value)


def test_documents_must_fill_the_sequence() -> None:
    with pytest.raises(WorkloadError, match=r"hold 7 tokens in all, but the sequence length is 8"):
        parse_mask("docs:3,4").check_length(8)
