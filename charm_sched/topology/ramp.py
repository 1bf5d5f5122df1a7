"""How much of a link's bandwidth a message gets by its size.

Either the size at which it is half (with r = n / (n + half), as in Hockney's model; R. W. Hockney,
Parallel Computing 20, 1994), or a table of measured parts by size.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from charm_sched import units

if TYPE_CHECKING:
    from charm_sched.topology.reader import Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """The part of the bandwidth by message size.

    Attributes:
        half: Bytes of a message that gets half of it; 0 where a table is given.
        table: (bytes, part), ascending in bytes; empty where `half` is given.
    """

    half: float = 0.0
    table: tuple[tuple[float, float], ...] = ()

    def part(self, size: float) -> float:
        """Return the part, above 0 and at most 1, that a message of so many bytes gets.

        Between two sizes of the table it is linear in the logarithm of the size. Below the first a
        message takes as long as the first, above the last it gets the part of the last.
        """
        if not self.table:
            return size / (size + self.half)
        first, part = self.table[0]
        if size <= first:
            return part * size / first
        for (small, low), (large, high) in itertools.pairwise(self.table):
            if size <= large:
                return low + (high - low) * math.log(size / small) / math.log(large / small)
        return self.table[-1][1]

    def delay(self, bandwidth: float) -> float:
        """Return how much longer a message takes, in seconds, as one number for all sizes.

        Exact for the first form. For a table it is what a message near half of the bandwidth loses.
        """
        if not self.table:
            return self.half / bandwidth
        size, part = min(self.table, key=lambda point: abs(point[1] - 0.5))
        return (size / part - size) / bandwidth

    def to_value(self) -> str | dict[str, float]:
        """Return it as a file writes it."""
        if not self.table:
            return units.format_bytes(self.half, digits=None)
        return {units.format_bytes(size, digits=None): part for size, part in self.table}

    def __str__(self) -> str:
        if not self.table:
            return f"half of the bandwidth at {units.format_bytes(self.half)}"
        return "; ".join(f"{part:.0%} at {units.format_bytes(size)}" for size, part in self.table)


def read_ramp(cursor: Cursor) -> Ramp:
    """Read `1 MB`, or `{64 KiB: 0.1, 1 MiB: 0.6}`, in any order."""
    if not isinstance(cursor.node.value, dict):
        return Ramp(half=cursor.bytes())
    table: dict[float, float] = {}
    for key, entry in cursor.entries().items():
        try:
            size = units.parse_bytes(key)
        except ValueError as error:
            entry.fail("a message size such as 64 KiB", f'"{key}"', str(error))
        if not 0 < size < math.inf or size in table:
            entry.fail("sizes above zero, each once", f'"{key}"')
        table[size] = entry.fraction("the part of the bandwidth")
    if not table:
        cursor.fail("a part of the bandwidth for at least one size")
    return Ramp(table=tuple(sorted(table.items())))
