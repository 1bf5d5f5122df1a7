"""Quantities at the boundary: text with a unit outside, bytes, seconds and FLOP inside.

GB is 1e9 bytes, GiB is 2**30 bytes and Gb is 1e9 bits; the factor of eight between GB/s and Gb/s is
why a bare number is refused wherever a unit belongs. Arithmetic is decimal, so that the exact text
of a value parses back to the very same float.

>>> parse_bandwidth("400 Gb/s") == parse_bandwidth("50 GB/s") == 50e9
True
>>> format_bandwidth(50e9), format_seconds(2.5e-6), format_tokens(131072)
('50 GB/s', '2.5 us', '128K')
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_EIGHTH = Decimal(1) / 8

_BYTES = {f"{p}B": Decimal(n) for p, n in (_DECIMAL | _BINARY).items()}
_BYTE_RATES = {f"{unit}/s": scale for unit, scale in _BYTES.items()}
_BIT_RATES = {f"{p}b/s": n * _EIGHTH for p, n in _DECIMAL.items()}
_SECONDS = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "ns": Decimal("1e-9")}
_RATES = {f"{p}FLOP/s": Decimal(n) for p, n in _DECIMAL.items()}
_WATTS = {"W": Decimal(1), "kW": Decimal(10**3), "MW": Decimal(10**6)}
_TOKENS = {"": 1, "K": 2**10, "M": 2**20}

LEAST, MOST = 1e-18, 1e24
"""What a value in base units may be, if not 0: no sum or quotient of such values overflows."""

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*(\S.*)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dimension:
    """A kind of quantity: its units with their scale, and those that formatting uses."""

    noun: str
    example: str
    units: Mapping[str, Decimal]
    shown: tuple[str, ...]  # largest first


BANDWIDTH = Dimension(
    noun="a bandwidth",
    example="450 GB/s",
    units=_BYTE_RATES | _BIT_RATES,
    shown=("TB/s", "GB/s", "MB/s", "kB/s", "B/s"),
)
TIME = Dimension(noun="a time", example="2 us", units=_SECONDS, shown=("s", "ms", "us", "ns"))
RATE = Dimension(
    noun="a compute rate",
    example="312 TFLOP/s",
    units=_RATES,
    shown=("PFLOP/s", "TFLOP/s", "GFLOP/s", "MFLOP/s", "kFLOP/s", "FLOP/s"),
)
SIZE = Dimension(
    noun="a memory size",
    example="80 GB",
    units=_BYTES,
    shown=("PB", "TB", "GB", "MB", "kB", "B"),
)
POWER = Dimension(
    noun="a power",
    example="10.2 kW",
    units=_WATTS,
    shown=("MW", "kW", "W"),
)


def parse_bandwidth(text: str) -> float:
    """Return the bytes per second that `text` states, e.g. "24 GB/s" or "400 Gb/s".

    Raises:
        ValueError: no number, no unit, an unknown unit, or not a finite number.
    """
    return parse(text, BANDWIDTH)


def parse_seconds(text: str) -> float:
    """Return the seconds in `text`, e.g. "2 us" or "0 s"; ValueError as parse_bandwidth."""
    return parse(text, TIME)


def parse_rate(text: str) -> float:
    """Return the FLOP/s that `text` states, e.g. "312 TFLOP/s"; ValueError as parse_bandwidth."""
    return parse(text, RATE)


def parse_bytes(text: str) -> float:
    """Return the bytes in `text`, e.g. "80 GB" or "80 GiB"; ValueError as parse_bandwidth."""
    return parse(text, SIZE)


@functools.lru_cache(maxsize=4096)
def parse(text: str, dimension: Dimension) -> float:
    """Return the value of `text` in base units.

    Raises:
        ValueError: the message says what was expected, what was found and how to write it.
    """
    expected = f'expected {dimension.noun} such as "{dimension.example}", found "{text}"'
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(expected)
    number, unit = match.group(1), match.group(2)
    if unit is None:
        shown = dimension.example.split()[1]
        raise ValueError(f'{expected}: a number needs its unit (write "{number} {shown}")')
    scale = dimension.units.get(unit)
    if scale is None:
        raise ValueError(f"{expected}: {_unit_hint(unit, dimension)}")
    value = float(Decimal(number) * scale)
    if abs(value) > MOST:
        raise ValueError(f"{expected}: the number is too large")
    if Decimal(number) and abs(value) < LEAST:
        raise ValueError(f"{expected}: the number is too small")
    return value


def _unit_hint(unit: str, dimension: Dimension) -> str:
    """Say which unit may have been meant by an unknown one."""
    for spelling in {unit.replace("bps", "b/s"), unit.replace("Bps", "B/s")} - {unit}:
        if spelling in dimension.units:
            return f'the unit "{unit}" is written "{spelling}"'
    same = [known for known in dimension.units if known.lower() == unit.lower()]
    if len(same) > 1:
        meant = " or ".join(f'"{known}" ({_b_word(known)})' for known in same)
        return f'the unit "{unit}" is ambiguous; write {meant}'
    near = same or difflib.get_close_matches(unit, dimension.units, n=1, cutoff=0.5)
    if near:
        return f'unknown unit "{unit}"; did you mean "{near[0]}"?'
    return f'unknown unit "{unit}"; known units: {", ".join(dimension.shown)}'


def _b_word(unit: str) -> str:
    return "bytes" if "B" in unit else "bits"


def parse_tokens(text: str) -> int:
    """Return a token count: "2999", "128K" (K is 1024, k as well) or "1M" (M is 1024 K).

    Raises:
        ValueError: not a positive whole number with an optional K or M.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMkm]?)", text.strip(), re.ASCII)
    count = Decimal(match.group(1)) * _TOKENS[match.group(2).upper()] if match else Decimal(0)
    if count <= 0 or count != count.to_integral_value():
        raise ValueError(
            f'expected a token count such as "2999", "128K" or "1M" (K is 1024), found "{text}"'
        )
    return int(count)


def format_bandwidth(value: float, *, digits: int | None = 4) -> str:
    """Return bytes per second as text; `digits` None gives the exact text, which parses back."""
    return _format(value, BANDWIDTH, digits)


def format_seconds(value: float, *, digits: int | None = 4) -> str:
    """Return seconds as text; `digits` None gives the exact text, which parses back."""
    return _format(value, TIME, digits)


def format_rate(value: float, *, digits: int | None = 4) -> str:
    """Return FLOP/s as text; `digits` None gives the exact text, which parses back."""
    return _format(value, RATE, digits)


def format_bytes(value: float, *, digits: int | None = 4) -> str:
    """Return bytes as text; `digits` None gives the exact text, which parses back."""
    return _format(value, SIZE, digits)


def format_quantity(value: float, dimension: Dimension, *, digits: int | None = 4) -> str:
    """Return a value of any dimension as text; `digits` None gives the exact text."""
    return _format(value, dimension, digits)


def format_tokens(count: int) -> str:
    """Return a token count in the largest unit that divides it: 131072 is "128K"."""
    for suffix in ("M", "K"):
        if count and count % _TOKENS[suffix] == 0:
            return f"{count // _TOKENS[suffix]}{suffix}"
    return str(count)


@functools.lru_cache(maxsize=4096)
def _format(value: float, dimension: Dimension, digits: int | None) -> str:
    base = next(unit for unit in dimension.shown if dimension.units[unit] == 1)
    if not math.isfinite(value):
        return f"{value} {base}"
    exact = Decimal(repr(float(value)))
    if digits is not None and exact:
        exact = Decimal(f"{exact:.{digits}g}")
    if not exact:
        return f"0 {base}"
    unit = next((u for u in dimension.shown if abs(exact) >= dimension.units[u]), None)
    unit = unit or dimension.shown[-1]
    return f"{_plain(exact / dimension.units[unit])} {unit}"


def _plain(number: Decimal) -> str:
    """Write a decimal without trailing zeros, and without an exponent while it is short."""
    text = f"{number.normalize():f}"
    return text if len(text) <= 24 else str(number.normalize())
