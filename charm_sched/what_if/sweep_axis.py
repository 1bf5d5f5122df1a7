"""What a sweep goes over: lengths, or one number of the machine, from a first to a last value."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from charm_sched import units
from charm_sched.errors import WorkloadError
from charm_sched.topology.changes import FIELDS, Setting, amount_of, read_path

LENGTH = "seq-len"
STEPS = 6
WIDE = 8.0  # from this ratio of last to first on, values grow by factors, not by steps
GRAIN = 128  # tokens; lengths between those asked for are multiples of it
_SPAN = re.compile(r"(.+?)\s*\.\.\s*(.+)")
_UNIT = re.compile(r"(x?)\s*[0-9.eE+-]+?\s*([A-Za-z].*)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The values of a sweep, in base units: tokens, bytes per second, seconds, or factors.

    Attributes:
        path: What is varied: ``seq-len``, or as ``links[upi].bandwidth``.
        setting: The change of the machine, whose value is replaced; None for lengths.
        first: Least value.
        last: Largest value.
        factor: Values are factors of what the machine has.
    """

    path: str
    setting: Setting | None
    first: float
    last: float
    factor: bool = False

    @property
    def unit(self) -> str:
        """The unit of the values, as JSON has it."""
        if self.setting is None:
            return "tokens"
        if self.factor:
            return "times"
        dimension = FIELDS[self.setting.section][self.setting.field]
        return next(unit for unit, scale in dimension.units.items() if scale == 1)

    def values(self, steps: int | None = None) -> list[float]:
        """Give the values to look at: lengths doubled, others by even steps or even factors."""
        if self.setting is None and steps is None:
            found = [self.first]
            while found[-1] * 2 < self.last:
                found.append(found[-1] * 2)
            return [*found, self.last]
        count = max(steps or STEPS, 2)
        parts = [number / (count - 1) for number in range(count)]
        if self.last >= WIDE * self.first > 0:
            ratio = self.last / self.first
            found = [self.first * ratio**part for part in parts]
        else:
            found = [self.first + (self.last - self.first) * part for part in parts]
        settled = [self.first, *(self._settled(value) for value in found[1:-1]), self.last]
        return sorted(set(settled))

    def between(self, low: float, high: float, fine: float) -> float | None:
        """Give a value about half way between two; None where they are near enough.

        Args:
            low: The smaller one.
            high: The larger one.
            fine: They are near enough if they differ by this part of the larger.
        """
        if high - low <= fine * high:
            return None
        middle = self._settled(math.sqrt(low * high) if low > 0 else (low + high) / 2)
        return middle if low < middle < high else None

    def _settled(self, value: float) -> float:
        if self.setting is None:
            return float(max(round(value / GRAIN) * GRAIN, 1))
        return float(f"{value:.4g}")

    def show(self, value: float) -> str:
        """Write a value as a person would."""
        if self.setting is None:
            return units.format_tokens(round(value))
        if self.factor:
            return f"x{value:.4g}"
        return units.format_quantity(
            value, FIELDS[self.setting.section][self.setting.field], digits=4
        )

    def at(self, value: float) -> Setting:
        """Give the change of the machine for one value.

        Raises:
            WorkloadError: The axis is one of lengths.
        """
        if self.setting is None:
            raise WorkloadError(f"{self.path}: expected a number of the machine, found lengths")
        text = f"x{value!r}" if self.factor else f"{value!r} {self.unit}"
        return replace(self.setting, value=text)


def read_axis(text: str) -> Axis:
    """Read ``seq-len=8K..1M`` or ``links[upi].bandwidth=10..60 GB/s``.

    Raises:
        WorkloadError: It is no sweep, or goes from a larger to a smaller value.
        TopologyError: A wrong path or unit.
    """
    path, _, span = text.partition("=")
    path = path.strip()
    match = _SPAN.fullmatch(span.strip())
    if match is None:
        raise WorkloadError(
            f'--sweep "{text}": expected NAME=FIRST..LAST, such as seq-len=8K..1M or '
            "'links[upi].bandwidth=10..60 GB/s'"
        )
    first, last = match.groups()
    axis = _lengths(text, first, last) if path == LENGTH else _numbers(text, path, first, last)
    if not axis.first < axis.last:
        raise WorkloadError(
            f'--sweep "{text}": expected a smaller and a larger value, found '
            f"{axis.show(axis.first)} and {axis.show(axis.last)}"
        )
    return axis


def _lengths(text: str, first: str, last: str) -> Axis:
    try:
        low, high = (units.parse_tokens(value) for value in (first, last))
    except ValueError as error:
        raise WorkloadError(f'--sweep "{text}": {error}') from error
    return Axis(path=LENGTH, setting=None, first=float(low), last=float(high))


def _numbers(text: str, path: str, first: str, last: str) -> Axis:
    if "[" not in path:
        raise WorkloadError(
            f'--sweep "{text}": expected seq-len or a path such as links[upi].bandwidth, found '
            f'"{path}"'
        )
    section, pattern, field = read_path(path, text)
    end = _UNIT.fullmatch(last.strip())
    factor = bool(end and end.group(1))
    begin = _UNIT.fullmatch(first.strip())
    if begin is not None and not begin.group(2) and not factor and end is not None:
        first = f"{first} {end.group(2) or ''}".strip()
    setting = Setting(section=section, pattern=pattern, field=field, value="")
    if factor != bool(begin and begin.group(1)):
        raise WorkloadError(
            f'--sweep "{text}": expected two factors such as x0.5..x4, or two numbers with a unit'
        )
    low, high = (amount_of(replace(setting, value=value))(1.0) for value in (first, last))
    if not math.isfinite(low + high):
        raise WorkloadError(f'--sweep "{text}": expected two numbers, found {first} and {last}')
    return Axis(path=path, setting=setting, first=low, last=high, factor=factor)


__all__ = ["LENGTH", "STEPS", "Axis", "read_axis"]
