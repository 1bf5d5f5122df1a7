"""What-if changes of a machine: other numbers, failed parts, slow devices.

Each is read from one text of the command line; `change_apply` makes a machine of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from charm_sched import units
from charm_sched.errors import TopologyError

_PATH = re.compile(r"([A-Za-z_]+)\[([^\[\]]*)\]\.([A-Za-z0-9_.]+)")
TIMES = re.compile(r"x\s*(\d+(?:\.\d*)?|\.\d+)", re.ASCII)
SUFFIX = "+what-if"
"""Ends the name of a changed machine."""

FIELDS: Mapping[str, Mapping[str, units.Dimension]] = {
    "links": {
        "bandwidth": units.BANDWIDTH,
        "latency": units.TIME,
        "flow_cap": units.BANDWIDTH,
    },
    "devices": {"memory": units.SIZE, "port": units.BANDWIDTH},
    "profiles": {
        "rate": units.RATE,
        "rate.forward": units.RATE,
        "rate.backward": units.RATE,
        "peak": units.RATE,
        "overhead": units.TIME,
        "memory_bandwidth": units.BANDWIDTH,
    },
}
"""What can be set, with the kind of quantity that it is."""
ZERO_FIELDS = ("latency", "overhead")

Amount = Callable[[float], float]
"""From the number that a machine has to the one it gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Other numbers for links, devices or profiles.

    Attributes:
        section: ``links``, ``devices`` or ``profiles``.
        pattern: Which of them.
        field: Which number.
        value: The number as text with its unit, or ``x2`` for twice what is there.
    """

    section: str
    pattern: str
    field: str
    value: str

    @property
    def path(self) -> str:
        """Which numbers, as they are written before the equals sign."""
        return f"{self.section}[{self.pattern}].{self.field}"

    def __str__(self) -> str:
        return f"{self.path} = {self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Devices, switches or links that are gone."""

    pattern: str

    def __str__(self) -> str:
        return f"{self.pattern} failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Devices whose kernels take so many times as long."""

    pattern: str
    factor: float

    def __str__(self) -> str:
        return f"{self.pattern} {self.factor:g} times as slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Under:
    """Conditions that hold: their names, or `all`."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"under {', '.join(self.names)}"


Change: TypeAlias = "Setting | Failure | Slowdown | Under"


def read_setting(text: str) -> Setting:
    """Read ``links[nic*].bandwidth=50 GB/s``.

    Raises:
        TopologyError: The text is no setting, or there is no such field.
    """
    path, equals, value = text.partition("=")
    section, pattern, field = read_path(path, text)
    if not equals or not value.strip():
        raise TopologyError(f'"{text}": expected a value, such as {path.strip()}=x2, found none')
    setting = Setting(section=section, pattern=pattern, field=field, value=value.strip())
    amount_of(setting)
    return setting


def read_path(path: str, text: str) -> tuple[str, str, str]:
    """Split ``links[nic*].bandwidth``; ``text`` is what messages quote.

    Raises:
        TopologyError: It is no path, or there is no such field.
    """
    match = _PATH.fullmatch(path.strip())
    if match is None:
        raise TopologyError(
            f'"{text}": expected a path such as links[nic*].bandwidth, devices[gpu0].memory or '
            f'profiles[*].overhead, found "{path.strip()}"'
        )
    section, pattern, field = match.groups()
    if section not in FIELDS:
        raise TopologyError(f'"{text}": expected links, devices or profiles, found "{section}"')
    if field not in FIELDS[section]:
        raise TopologyError(
            f'"{text}": expected one of {", ".join(FIELDS[section])} of {section}, found "{field}"'
        )
    return section, pattern.strip(), field


def amount_of(setting: Setting) -> Amount:
    """Give what a setting makes of a number.

    Raises:
        TopologyError: A wrong unit, no number, or a number out of range.
    """
    times = TIMES.fullmatch(setting.value)
    if times is not None:
        factor = float(times.group(1))
        if not factor:
            raise TopologyError(f"{setting}: expected a factor above 0, found {setting.value}")
        return lambda number: number * factor
    if setting.field == "flow_cap" and setting.value == "none":
        return lambda number: math.inf
    try:
        value = units.parse(setting.value, FIELDS[setting.section][setting.field])
    except ValueError as error:
        raise TopologyError(f"{setting.path}: {error}") from error
    if value < 0 or (not value and setting.field not in ZERO_FIELDS):
        least = "0 or more" if setting.field in ZERO_FIELDS else "above 0"
        raise TopologyError(f"{setting.path}: expected a number {least}, found {setting.value}")
    return lambda number: value


def read_failure(text: str) -> Failure:
    """Read the name of a device, a switch or a link.

    Raises:
        TopologyError: It is empty.
    """
    if not text.strip():
        raise TopologyError('--fail: expected a name such as gpu0 or "gpu0 <-> nic0", found none')
    return Failure(pattern=text.strip())


def read_slowdown(text: str) -> Slowdown:
    """Read ``gpu0=1.3``: kernels of that device take 1.3 times as long.

    Raises:
        TopologyError: There is no factor, or it is below 1.
    """
    pattern, _, number = text.rpartition("=")
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if not pattern.strip() or not 1 <= factor < math.inf:
        raise TopologyError(
            f'"{text}": expected DEVICE=FACTOR with a factor of 1 or more: how many times as long '
            "its kernels take, such as gpu0=1.3"
        )
    return Slowdown(pattern=pattern.strip(), factor=factor)


def read_under(text: str) -> Under:
    """Read names of conditions, such as ``ramp,interference`` or ``all``.

    Raises:
        TopologyError: One of them is empty.
    """
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise TopologyError(f'--under: expected names such as ramp,interference, found "{text}"')
    return Under(names=names)


__all__ = [
    "FIELDS", "SUFFIX", "TIMES", "Amount", "Change", "Failure", "Setting", "Slowdown", "Under",
    "amount_of", "read_failure", "read_path", "read_setting", "read_slowdown", "read_under",
]  # fmt: skip
