"""Masks listed in files: what they say, and where they are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charm_sched.commands.options import read_mask
from charm_sched.errors import WorkloadError
from charm_sched.masks.mask import Mask


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("docs", "1000\n24\n\n3  # short\n973\n", "docs:1000,24,3,973"),
        ("docs-full", "1K\n# nothing\n7", "docs-full:1024,7"),
        ("docs", ' [1000, "4K",\n 3]', "docs:1000,4096,3"),
        ("blocks", "0:128x0:256\n128:256x64:128c", "blocks:0:128x0:256,128:256x64:128c"),
        ("blocks", '["0:8x0:8c3"]', "blocks:0:8x0:8c3"),
        (
            "blocks",
            '[{"rows": [0, 4], "keys": [0, 9]}, '
            '{"rows": [4, 8], "keys": [4, 8], "causal": true, "window": 2}]',
            "blocks:0:4x0:9,4:8x4:8c2",
        ),
    ],
)
def test_what_a_file_says(kind: str, text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "mask"
    file.write_text(text)
    assert str(read_mask(f"{kind}:@{file}")) == expected


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("docs", "10\nten\n", ":2: expected a document length of 1 token or more, .* found 'ten'"),
        ("docs", "10\n\n0\n", ":3: expected a document length .* found '0'"),
        ("docs", "10,20\n", ":1: expected a document length .* found '10,20'"),
        ("docs", "# nothing\n", "expected document lengths, one per line .* found none"),
        ("docs", "[]", "expected document lengths.* found none"),
        ("docs", "[3, true]", "entry 2: expected a document length .* found 'true'"),
        ("docs", "[3, -1]", "entry 2: expected a document length .* found '-1'"),
        ("docs", "[3, 2.5]", "entry 2: expected a document length .* found '2.5'"),
        ("docs", "[3,\n 4", ":2:3: expected JSON: Expecting ',' delimiter"),
        ("docs", '{"a": 1}', "expected a JSON list, found dict"),
        ("blocks", "0:4x0:4\n4:8\n", ":2: mask blocks: expected Q:Q'xK:K'.* found '4:8'"),
        ("blocks", "0:4x0:4,4:8x0:4", ":1: expected a block Q:Q'xK:K'.* found '0:4x0:4,4:8x0:4'"),
        ("blocks", "4:4x0:4", ":1: block 4:4x0:4: expected ranges of 1 token or more"),
        ("blocks", "0:4x0:4\n2:8x3:5", "expected blocks that share no .query, key. pair"),
        ("blocks", '[{"rows": [0, 4]}]', "entry 1: expected a block"),
        ("blocks", '[{"rows": [0, 4], "keys": [0, 4], "colour": 1}]', "entry 1: expected a block"),
        ("blocks", '[{"rows": [0, "4"], "keys": [0, 4]}]', "entry 1: expected a block"),
        ("blocks", '[{"rows": [0, 4], "keys": [0, 4], "window": 2}]', "on a causal block"),
    ],
)
def test_where_a_file_is_wrong(kind: str, text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "mask.txt"
    file.write_text(text)
    with pytest.raises(WorkloadError, match=expected) as caught:
        read_mask(f"{kind}:@{file}")
    assert str(caught.value).startswith(str(file))


def test_what_is_no_text_is_said_to_be_none(tmp_path: Path) -> None:
    file = tmp_path / "mask.npy"
    file.write_bytes(b"\x93NUMPY\xff")
    with pytest.raises(WorkloadError, match="expected text, found bytes"):
        read_mask(f"docs:@{file}")
    with pytest.raises(WorkloadError, match="cannot be read: Is a directory"):
        read_mask(f"docs:@{tmp_path}")


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=30))
def test_both_forms_say_the_same(lengths: list[int]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        plain, listed = Path(folder) / "plain", Path(folder) / "listed"
        plain.write_text("\n".join(map(str, lengths)))
        listed.write_text(json.dumps(lengths))
        expected = Mask(kind="docs", documents=tuple(lengths))
        assert read_mask(f"docs:@{plain}") == read_mask(f"docs:@{listed}") == expected
