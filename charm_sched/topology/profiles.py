"""How fast a device computes: peaks, sustained attention rates, and what of it is assumed.

A sustained rate counts the FLOPs that the mask leaves (a causal kernel does about half the work of
a full one), so that time is FLOPs / rate + overhead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from charm_sched import units
from charm_sched.errors import TopologyError

DIRECTIONS = ("forward", "backward")
DTYPES = ("bf16", "fp16", "fp32", "fp64")


_PART = re.compile(
    r"(?:^|; )(bandwidth|reverse|latency|flow_cap|memory|port|rate|peak(?:\.[a-z0-9]+)?|efficiency|"
    r"overhead|memory_bandwidth): "
)


def source_of(source: str, key: str) -> str:
    """Return what a source text says about one number: the part after "key: ", or all of it.

    A text per number that leaves `key` out says nothing about it; "peak" stands for every peak.

    >>> source_of("bandwidth: datasheet; latency: a guess", "latency")
    'a guess'
    >>> source_of("datasheet", "latency")
    'datasheet'
    """
    first, *rest = _PART.split(source)
    if not rest:
        return first
    parts = dict(zip(rest[::2], rest[1::2], strict=True))
    return parts.get(key) or parts.get(key.partition(".")[0]) or first


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRate:
    """One measured (or assumed) rate of an attention kernel, in FLOP/s."""

    direction: str
    head_dim: int
    causal: bool
    dtypes: tuple[str, ...]
    flops_per_second: float
    assumed: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProfile:
    """What one kind of device computes, and how sure that is.

    Attributes:
        peak: FLOP/s per dtype, from the datasheet.
        rates: sustained rates of whole attention kernels.
        efficiency: the part of the peak taken where no rate is given; always an assumption.
        overhead: seconds per kernel call that are not arithmetic.
        memory_bandwidth: bytes per second to the device's own memory.
        assumed: names of the numbers above that are assumed, e.g. "overhead" or "peak.fp64".
        source: where the numbers come from, as one text.
    """

    name: str
    peak: Mapping[str, float] = field(hash=False)
    rates: tuple[KernelRate, ...]
    efficiency: float
    overhead: float
    memory_bandwidth: float
    assumed: tuple[str, ...] = ()
    source: str = ""

    def rate(
        self, *, direction: str, head_dim: int, causal: bool, dtype: str
    ) -> tuple[float, str | None]:
        """Return the sustained FLOP/s of an attention kernel, and a note where it is assumed.

        An exact entry is taken as it stands; else the entry of the nearest head dimension of the
        same direction and mask (the smaller of two equally near ones); else peak times efficiency.

        Raises:
            TopologyError: the profile knows neither a rate nor a peak for `dtype`.
        """
        mask = "causal" if causal else "full"
        entries = [
            entry
            for entry in self.rates
            if entry.direction == direction and entry.causal == causal and dtype in entry.dtypes
        ]
        if entries:
            best = min(entries, key=lambda e: (abs(e.head_dim - head_dim), e.head_dim))
            notes = [self._sentence(best)] if best.assumed else []
            if best.head_dim != head_dim:
                notes.insert(
                    0,
                    f"{self.name}: no {direction} {dtype} rate for head dimension {head_dim} "
                    f"({mask}); the rate for {best.head_dim} is used",
                )
            return best.flops_per_second, "; ".join(notes) or None
        if dtype not in self.peak:
            raise TopologyError(
                f"compute profile {self.name}: expected a peak for {dtype}, "
                f"found {', '.join(self.peak)} (add peak.{dtype})"
            )
        return self.peak[dtype] * self.efficiency, (
            f"{self.name}: no {direction} {dtype} rate ({mask}); "
            f"{self.efficiency:g} of the peak {units.format_rate(self.peak[dtype])} is assumed"
        )

    def assumptions(self, *, rates: bool = True) -> tuple[str, ...]:
        """Return one sentence for each number of this profile that is marked assumed.

        Without ``rates``, those that every attend rests on; `rate` notes the others where used.
        """
        found = []
        for key in self.assumed:
            if not rates and key not in ("overhead", "memory_bandwidth"):
                continue
            reason = source_of(self.source, key)
            found.append(
                f"{self.name}: {key} {self._value(key)} is assumed"
                + (f" ({reason})" if reason else "")
            )
        if rates:
            found += [self._sentence(entry) for entry in self.rates if entry.assumed]
        return tuple(found)

    def _sentence(self, entry: KernelRate) -> str:
        mask = "causal" if entry.causal else "full"
        rate = units.format_rate(entry.flops_per_second)
        return (
            f"{self.name}: {entry.direction} rate {rate} for head dimension "
            f"{entry.head_dim} ({mask}, {', '.join(entry.dtypes)}) is assumed"
            + (f" ({entry.source})" if entry.source else "")
        )

    def _value(self, key: str) -> str:
        if key.startswith("peak."):
            return units.format_rate(self.peak[key.removeprefix("peak.")])
        if key == "efficiency":
            return f"{self.efficiency:g}"
        if key == "overhead":
            return units.format_seconds(self.overhead)
        return units.format_bandwidth(self.memory_bandwidth)
