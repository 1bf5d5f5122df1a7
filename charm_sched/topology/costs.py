"""What a machine costs to run, where its file says so: price per hour, power, electricity.

The figures are for the whole machine, all devices of the file. They change no time and are no part
of the digest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from charm_sched import units

if TYPE_CHECKING:
    from charm_sched.topology.reader import Cursor

COST_NUMBERS = ("price", "power", "electricity")
_MONEY = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([A-Z]{3})/(h|kWh)", re.ASCII)
_HOUR = 3600.0
_MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCost:
    """What a whole machine costs to run.

    Attributes:
        price: Per hour, in `currency`; None where the file does not say.
        power: Watts under load; None where the file does not say.
        electricity: Price of a kWh, in `currency`, where `price` does not hold it already.
        currency: Three letters, such as USD; empty without a price.
        assumed: Which of the numbers are assumed.
        source: Where they come from, as one text.
    """

    price: float | None = None
    power: float | None = None
    electricity: float | None = None
    currency: str = ""
    assumed: tuple[str, ...] = ()
    source: str = ""

    def energy(self, seconds: float, tokens: int) -> float | None:
        """Give the kWh for a million tokens; None without a power."""
        if self.power is None:
            return None
        return self.power / 1000 * seconds / _HOUR / tokens * _MILLION

    def money(self, seconds: float, tokens: int) -> float | None:
        """Give the money for a million tokens, electricity included; None without a price."""
        energy = self.energy(seconds, tokens)
        extra = None if energy is None or not self.electricity else energy * self.electricity
        if self.price is None:
            return extra
        return self.price * seconds / _HOUR / tokens * _MILLION + (extra or 0.0)

    def facts(self) -> dict[str, str]:
        """Give the numbers as a file writes them."""
        found = {}
        if self.price is not None:
            found["price"] = f"{self.price:.12g} {self.currency}/h"
        if self.power is not None:
            found["power"] = units.format_quantity(self.power, units.POWER, digits=None)
        if self.electricity is not None:
            found["electricity"] = f"{self.electricity:.12g} {self.currency}/kWh"
        return found

    def to_document(self) -> dict[str, Any]:
        """Give the entry of a topology document."""
        entry: dict[str, Any] = dict(self.facts())
        if self.assumed:
            entry["assumed"] = list(self.assumed)
        if self.source:
            entry["source"] = self.source
        return entry


def read_costs(cursor: Cursor) -> RunningCost:
    """Read `costs`.

    Raises:
        TopologyError: A wrong unit, two currencies, or an electricity price without a power.
    """
    from charm_sched.topology.compute import read_assumed, read_source

    entries = cursor.mapping((), (*COST_NUMBERS, "assumed", "source"))
    if not any(key in entries for key in COST_NUMBERS):
        cursor.fail("price, power or electricity", "none of them")
    price, currency = _money(entries["price"], "h") if "price" in entries else (None, "")
    electricity = None
    if "electricity" in entries:
        electricity, other = _money(entries["electricity"], "kWh")
        if "power" not in entries:
            cursor.fail('the key "power" beside electricity', "none", "add power: 10 kW")
        if currency and other != currency:
            entries["electricity"].fail(f"one currency, {currency} as the price", other)
        currency = other
    return RunningCost(
        price=price,
        power=_power(entries["power"]) if "power" in entries else None,
        electricity=electricity,
        currency=currency,
        assumed=read_assumed(entries, COST_NUMBERS),
        source=read_source(entries, COST_NUMBERS),
    )


def _money(cursor: Cursor, per: str) -> tuple[float, str]:
    expected = f'a price such as "{"98.3 USD/h" if per == "h" else "0.12 USD/kWh"}"'
    value = cursor.node.value
    match = _MONEY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match.group(3) != per:
        cursor.fail(expected)
    return float(match.group(1)), match.group(2)


def _power(cursor: Cursor) -> float:
    value = cursor.node.value
    expected = 'a power such as "10.2 kW"'
    if not isinstance(value, str):
        cursor.fail(expected)
    try:
        watts = units.parse(value, units.POWER)
    except ValueError as error:
        cursor.fail(expected, f'"{value}"', str(error).partition(": ")[2])
    if watts <= 0:
        cursor.fail(f"{expected}, above zero")
    return watts


__all__ = ["COST_NUMBERS", "RunningCost", "read_costs"]
