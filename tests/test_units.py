from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charm_sched import units

BANDWIDTHS = {
    "24 GB/s": 24e9,
    "24GB/s": 24e9,
    "400 Gb/s": 50e9,
    "100 Mb/s": 12.5e6,
    "8 b/s": 1.0,
    "1 GiB/s": 2.0**30,
    "2 TB/s": 2e12,
    "500 MB/s": 5e8,
    "1.5e3 kB/s": 1.5e6,
    "+.5 B/s": 0.5,
}


@pytest.mark.parametrize(("text", "value"), BANDWIDTHS.items())
def test_bandwidths(text: str, value: float) -> None:
    assert units.parse_bandwidth(text) == value


@pytest.mark.parametrize(
    ("text", "value"), {"2 us": 2e-6, "700 ns": 7e-7, "1.5 ms": 1.5e-3, "0 s": 0.0}.items()
)
def test_times(text: str, value: float) -> None:
    assert units.parse_seconds(text) == value


def test_rates_and_sizes() -> None:
    assert units.parse_rate("312 TFLOP/s") == 312e12
    assert units.parse_rate("1.979 PFLOP/s") == 1979e12
    assert units.parse_bytes("80 GB") == 80e9
    assert units.parse_bytes("80 GiB") == 80 * 2**30


@pytest.mark.parametrize(
    ("text", "piece"),
    {
        "450": 'such as "450 GB/s", found "450": a number needs its unit (write "450 GB/s")',
        "": 'expected a bandwidth such as "450 GB/s", found ""',
        "fast": 'found "fast"',
        "GB/s": 'found "GB/s"',
        "1e99999 GB/s": 'found "1e99999 GB/s"',
        "1e9999 GB/s": "the number is too large",
        "nan GB/s": 'found "nan GB/s"',
        "inf GB/s": 'found "inf GB/s"',
        "1_000 GB/s": 'found "1_000 GB/s"',
        "24 gb/s": '"gb/s" is ambiguous; write "GB/s" (bytes) or "Gb/s" (bits)',
        "400 Gbps": 'the unit "Gbps" is written "Gb/s"',
        "50 GBps": 'the unit "GBps" is written "GB/s"',
        "24 GiB": 'did you mean "GiB/s"?',
        "24 furlongs": 'unknown unit "furlongs"; known units: TB/s, GB/s, MB/s, kB/s, B/s',
    }.items(),
)
def test_refused_bandwidths(text: str, piece: str) -> None:
    with pytest.raises(ValueError, match="expected a bandwidth") as caught:
        units.parse_bandwidth(text)
    assert piece in str(caught.value)


def test_tokens() -> None:
    assert units.parse_tokens("2999") == 2999
    assert units.parse_tokens("128K") == 131072
    assert units.parse_tokens("128k") == 131072
    assert units.parse_tokens("1.5 M") == 3 * 2**19
    assert [units.format_tokens(n) for n in (2999, 131072, 2**20, 3 * 2**19, 0)] == [
        "2999", "128K", "1M", "1536K", "0",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "128 kB", "1G", "K", "1e3", "0.0001K"])
def test_refused_tokens(text: str) -> None:
    with pytest.raises(ValueError, match='such as "2999", "128K" or "1M"'):
        units.parse_tokens(text)


def test_formats_for_people() -> None:
    assert units.format_bandwidth(370.8e9) == "370.8 GB/s"
    assert units.format_bandwidth(1e9 / 3) == "333.3 MB/s"
    assert units.format_bandwidth(999.999e9) == "1 TB/s"
    assert units.format_bytes(80e9) == "80 GB"
    assert units.format_bytes(0) == "0 B"
    assert units.format_bytes(-1536) == "-1.536 kB"
    assert units.format_seconds(0.0) == "0 s"
    assert units.format_seconds(1.25e-10) == "0.125 ns"
    assert units.format_seconds(86400) == "86400 s"
    assert units.format_rate(312e12) == "312 TFLOP/s"
    assert units.format_seconds(math.inf) == "inf s"


@given(st.just(0.0) | st.floats(min_value=units.LEAST, max_value=units.MOST))
def test_exact_text_parses_back(value: float) -> None:
    assert units.parse_bandwidth(units.format_bandwidth(value, digits=None)) == value
    assert units.parse_seconds(units.format_seconds(value, digits=None)) == value
    assert units.parse_rate(units.format_rate(value, digits=None)) == value
    assert units.parse_bytes(units.format_bytes(value, digits=None)) == value


@given(st.integers(min_value=1, max_value=2**60))
def test_token_text_parses_back(count: int) -> None:
    assert units.parse_tokens(units.format_tokens(count)) == count


@given(st.text())
def test_any_text_parses_or_is_refused(text: str) -> None:
    for parse in (units.parse_bandwidth, units.parse_seconds, units.parse_rate, units.parse_bytes):
        try:
            assert math.isfinite(parse(text))
        except ValueError as error:
            assert str(error).startswith("expected ")  # noqa: PT017
