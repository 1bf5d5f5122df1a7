"""How fast a device computes: peaks, sustained attention rates, and what of it is assumed.

A sustained rate counts the FLOPs that the mask leaves (a causal kernel does about half the work of
a full one), so that time is FLOPs / rate + overhead. It is the rate of long sequences; a profile
may say besides how it falls towards short ones.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from charm_sched import units
from charm_sched.errors import TopologyError

DIRECTIONS = ("forward", "backward")
DTYPES = ("bf16", "fp16", "fp32", "fp64")


_PART = re.compile(
    r"(?:^|; )(bandwidth|reverse|latency|flow_cap|ramp|memory|port|peer|rate|by_length|"
    r"peak(?:\.[a-z0-9]+)?|efficiency|overhead|memory_bandwidth|interference): "
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
    """One measured (or assumed) rate of an attention kernel, in FLOP/s.

    Attributes:
        flops_per_second: The rate of long sequences.
        by_length: Rates of as many queries as keys, by their number, ascending; empty where nobody
            has measured that.
    """

    direction: str
    head_dim: int
    causal: bool
    dtypes: tuple[str, ...]
    flops_per_second: float
    by_length: tuple[tuple[int, float], ...] = ()
    assumed: bool = False
    source: str = ""

    def at(self, length: float) -> float:
        """Return the FLOP/s of a kernel of so many queries and keys.

        Between two lengths of the table the rate is linear in the logarithm of the length; outside
        it is that of the nearest one. Without a table it is the rate of long sequences.
        """
        table = self.by_length
        if not table:
            return self.flops_per_second
        if length <= table[0][0]:
            return table[0][1]
        for (short, low), (long, high) in itertools.pairwise(table):
            if length <= long:
                return low + (high - low) * math.log(length / short) / math.log(long / short)
        return table[-1][1]

    @property
    def best(self) -> float:
        """The highest rate of any length."""
        return max(self.flops_per_second, *(rate for _, rate in self.by_length), 0.0)

    def scaled_to(self, best: float) -> KernelRate:
        """Return the same with another rate of long sequences, and the others in proportion."""
        return replace(
            self,
            flops_per_second=best,
            by_length=tuple(
                (length, best * (rate / self.flops_per_second)) for length, rate in self.by_length
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProfile:
    """What one kind of device computes, and how sure that is.

    Attributes:
        peak: FLOP/s per dtype, from the datasheet.
        rates: sustained rates of whole attention kernels.
        efficiency: the part of the peak taken where no rate is given; always an assumption.
        overhead: seconds per kernel call that are not arithmetic.
        memory_bandwidth: bytes per second to the device's own memory.
        memory: bytes of a device for which the topology file does not say it; None where unknown.
        interference: how many times as long a kernel takes while transfers cross the device; 1
            where nobody has said.
        assumed: names of the numbers above that are assumed, e.g. "overhead" or "peak.fp64".
        source: where the numbers come from, as one text.
    """

    name: str
    peak: Mapping[str, float] = field(hash=False)
    rates: tuple[KernelRate, ...]
    efficiency: float
    overhead: float
    memory_bandwidth: float
    memory: float | None = None
    interference: float = 1.0
    assumed: tuple[str, ...] = ()
    source: str = ""

    def entry(
        self, *, direction: str, head_dim: int, causal: bool, dtype: str
    ) -> KernelRate | None:
        """Return the entry of the nearest head dimension, the smaller of two; None for none."""
        entries = [
            entry
            for entry in self.rates
            if entry.direction == direction and entry.causal == causal and dtype in entry.dtypes
        ]
        return min(entries, key=lambda e: (abs(e.head_dim - head_dim), e.head_dim), default=None)

    def rate(
        self, *, direction: str, head_dim: int, causal: bool, dtype: str, any_length: bool = False
    ) -> tuple[float, str | None]:
        """Return the FLOP/s of an attention kernel of many keys, and a note where it is assumed.

        An exact entry is taken as it stands; else the entry of the nearest head dimension of the
        same direction and mask (the smaller of two equally near ones); else peak times efficiency.
        With `any_length` it is the highest rate of any length.

        Raises:
            TopologyError: the profile knows neither a rate nor a peak for `dtype`.
        """
        mask = "causal" if causal else "full"
        best = self.entry(direction=direction, head_dim=head_dim, causal=causal, dtype=dtype)
        if best is not None:
            notes = [self._sentence(best)] if best.assumed else []
            if best.head_dim != head_dim:
                notes.insert(
                    0,
                    f"{self.name}: no {direction} {dtype} rate for head dimension {head_dim} "
                    f"({mask}); the rate for {best.head_dim} is used",
                )
            found = best.best if any_length else best.flops_per_second
            return found, "; ".join(notes) or None
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
            if key in ("memory", "interference"):  # told by devices, and where it is in force
                continue
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
        if key == "memory":
            return units.format_bytes(self.memory or 0.0)
        if key == "interference":
            return f"{self.interference:g}"
        return units.format_bandwidth(self.memory_bandwidth)
