"""Compute profiles of a topology document, and where its numbers come from.

Any entry with numbers may say which of them are assumed (`assumed`) and where they
come from (`source`).
"""

from __future__ import annotations

from collections.abc import Mapping

from charm_sched import units
from charm_sched.topology.profiles import DIRECTIONS, DTYPES, ComputeProfile, KernelRate
from charm_sched.topology.reader import Cursor


def read_assumed(entries: Mapping[str, Cursor], numbers: tuple[str, ...]) -> tuple[str, ...]:
    """Read `assumed`: true for every number given beside it, or the list of those that are."""
    if "assumed" not in entries:
        return ()
    cursor = entries["assumed"]
    given = tuple(key for key in numbers if key in entries)
    if not isinstance(cursor.node.value, list):
        return given if cursor.flag() else ()
    named = tuple(
        item.choice(numbers, "a number of this entry") for item in cursor.sequence("keys")
    )
    return tuple(key for key in numbers if key in named)


def read_source(entries: Mapping[str, Cursor], numbers: tuple[str, ...]) -> str:
    """Read `source`: one text for all numbers, or a text per number; returns one text."""
    if "source" not in entries:
        return ""
    cursor = entries["source"]
    if not isinstance(cursor.node.value, dict):
        return cursor.text("a source: a text, or a mapping from number to text")
    texts = {key: value.text("a source") for key, value in cursor.mapping((), numbers).items()}
    return "; ".join(f"{key}: {text}" for key, text in texts.items())


PROFILE_REQUIRED = ("peak", "efficiency", "overhead", "memory_bandwidth")
PROFILE_NUMBERS = ("memory", "interference")
PROFILE_OPTIONAL = (*PROFILE_NUMBERS, "rates", "assumed", "source")
RATE_REQUIRED = ("direction", "head_dim", "causal", "dtypes", "rate")
RATE_NUMBERS = ("rate", "by_length")


def read_profile(name: str, cursor: Cursor) -> ComputeProfile:
    """Read one compute profile."""
    return profile_of(name, cursor.mapping(PROFILE_REQUIRED, PROFILE_OPTIONAL))


def profile_of(name: str, entries: Mapping[str, Cursor]) -> ComputeProfile:
    """Return the profile of entries whose keys have been checked."""
    peaks = entries["peak"].mapping((), DTYPES)
    if not peaks:
        entries["peak"].fail("a peak for at least one dtype", hint="e.g. bf16: 312 TFLOP/s")
    numbers = (*(f"peak.{dtype}" for dtype in DTYPES), *PROFILE_REQUIRED, *PROFILE_NUMBERS)
    flat = {**entries, **{f"peak.{dtype}": value for dtype, value in peaks.items()}}
    assumed = set(read_assumed(flat, numbers)) | {"efficiency"}
    if "peak" in assumed:
        assumed |= {f"peak.{dtype}" for dtype in peaks}
    rates = entries["rates"].sequence("kernel rates") if "rates" in entries else []
    return ComputeProfile(
        name=name,
        peak={dtype: peaks[dtype].rate() for dtype in DTYPES if dtype in peaks},
        rates=tuple(_read_rate(item) for item in rates),
        efficiency=entries["efficiency"].fraction("the part of the peak that is sustained"),
        overhead=entries["overhead"].seconds(),
        memory_bandwidth=entries["memory_bandwidth"].bandwidth(),
        memory=entries["memory"].bytes() if "memory" in entries else None,
        interference=entries["interference"].factor("how many times as long kernels take")
        if "interference" in entries
        else 1.0,
        assumed=tuple(key for key in numbers if key in assumed and key in flat and key != "peak"),
        source=read_source(entries, numbers),
    )


def _read_rate(cursor: Cursor) -> KernelRate:
    entries = cursor.mapping(RATE_REQUIRED, ("by_length", "assumed", "source"))
    dtypes = [item.choice(DTYPES, "a dtype") for item in entries["dtypes"].sequence("dtypes")]
    if not dtypes or len(set(dtypes)) < len(dtypes):
        entries["dtypes"].fail("at least one dtype, each once")
    return KernelRate(
        direction=entries["direction"].choice(DIRECTIONS, "a direction"),
        head_dim=entries["head_dim"].integer("a head dimension", most=4096),
        causal=entries["causal"].flag(),
        dtypes=tuple(dtypes),
        flops_per_second=entries["rate"].rate(),
        by_length=_read_lengths(entries["by_length"]) if "by_length" in entries else (),
        assumed=bool(read_assumed(entries, RATE_NUMBERS)),
        source=read_source(entries, RATE_NUMBERS),
    )


def _read_lengths(cursor: Cursor) -> tuple[tuple[int, float], ...]:
    """Read rates by length: `{"512": 197 TFLOP/s, 1K: 265 TFLOP/s}`, in any order."""
    table: dict[int, float] = {}
    for key, entry in cursor.entries().items():
        try:
            length = units.parse_tokens(key)
        except ValueError as error:
            entry.fail("a length in tokens, such as 512 or 16K", f'"{key}"', str(error))
        if length in table:
            entry.fail("each length once", f'"{key}", which is there already')
        table[length] = entry.rate()
    if not table:
        cursor.fail("a rate for at least one length")
    return tuple(sorted(table.items()))
