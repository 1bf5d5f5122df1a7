"""How texts come in: encodings, terminal colours, bounds, and what the messages say."""

from __future__ import annotations

from pathlib import Path

import pytest
from foreign import Box, machine, matrix

from charm_sched.errors import TopologyError
from charm_sched.importers import reading
from charm_sched.importers.naming import ranges
from charm_sched.importers.reading import decode, read_source

TEXT = matrix(Box([[1], [1]]))


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode("utf-8-sig"),
        TEXT.encode("utf-16"),  # as PowerShell redirects
        TEXT.replace("\n", "\r\n").encode(),
        b"\x1b[4m" + TEXT.encode() + b"\x1b[0m",
    ],
    ids=["bom", "utf-16", "dos", "colour"],
)
def test_encodings_make_no_difference(data: bytes) -> None:
    assert machine(data).digest == machine(TEXT).digest


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GPU0\nGP\x00U1", "x:2:3: expected text, found a NUL character"),
        (b"GPU0\n\xc3(", "x:2:1: expected UTF-8 text, found byte 0xc3"),
        (b" \n\t", "x: expected a topology, found an empty text"),
        (b"a\n" + b"b" * 20_000, "x:2: expected lines of at most 16384 characters"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(data: bytes, message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        decode(data, "x")
    assert str(caught.value).startswith(message)


def test_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_BYTES", 10)
    (tmp_path / "large").write_bytes(b"x" * 11)
    with pytest.raises(TopologyError, match="expected at most 0 MiB, found more"):
        read_source(str(tmp_path / "large"))
    monkeypatch.setattr(reading, "MAX_YAML", 10)
    with pytest.raises(TopologyError, match="MiB of YAML, found more"):
        reading.read_yaml(reading.Source("a: 12345678", "x"))


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        (["n1", "n2", "n3"], ["n1..3"]),
        (["n9", "n10"], ["n9..10"]),
        (["n09", "n10", "n100"], ["n09..10", "n100"]),
        (["n1", "n3", "m4", "x"], ["n1", "n3", "m4", "x"]),
        (["n0", "n01"], ["n0", "n01"]),
    ],
)
def test_ranges_stand_for_exactly_the_names(names: list[str], patterns: list[str]) -> None:
    assert ranges(names) == patterns
