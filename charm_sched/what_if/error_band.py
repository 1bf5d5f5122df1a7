"""How far predictions of a kind were from measurements: the error band that stands beside each.

The numbers are those of docs/benchmarks/validation.md. The command that writes the page writes them
as data too (``error_bands.json``). An error is the predicted time over the measured one, minus one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from charm_sched.plans.plan import TRANSFER
from charm_sched.topology.graph import HOST_MEMORY

if TYPE_CHECKING:
    from charm_sched.timelines.timeline import Timeline
    from charm_sched.topology.graph import Topology

DATA = Path(__file__).with_name("error_bands.json")
PAGE = "docs/benchmarks/validation.md"

COMPUTE_BOUND = 0.8
"""The part of the makespan that computation takes from which on a plan counts as compute bound."""
SEVERAL = 3
"""Messages that a device sends at once from which on these count as several."""
VALID = 0.15
"""The largest median error with which predictions of a kind count as validated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What comparisons with measurements have shown for one kind of prediction.

    Attributes:
        regime: Its name, see `regime_of`.
        median: Of the absolute errors.
        worst: The largest absolute error.
        bias: The median error with its sign; below zero predictions were too short.
        cases: How many measurements.
        basis: Of what, in words.
    """

    regime: str
    median: float
    worst: float
    bias: float
    cases: int
    basis: str

    def __str__(self) -> str:
        spread = f"{self.median:.1%} (median) and {self.worst:.0%} (worst)"
        if self.median <= VALID:
            text = f"within {spread} on {self.cases} measurements of {self.basis}"
        else:
            way = "short" if self.bias < 0 else "long"
            text = (
                f"not for this: on {self.cases} measurements of {self.basis} times were "
                f"predicted too {way} by {spread}"
            )
        return f"{text}; see {PAGE}"

    def document(self) -> dict[str, Any]:
        """Give the band as JSON has it."""
        return {
            "regime": self.regime,
            "median": self.median,
            "worst": self.worst,
            "bias": self.bias,
            "cases": self.cases,
            "basis": self.basis,
            "page": PAGE,
        }


@functools.cache
def bands() -> Mapping[str, Band]:
    """Read all bands, by regime."""
    stored: dict[str, dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))
    return {regime: Band(regime=regime, **values) for regime, values in stored.items()}


def band_of(timeline: Timeline) -> Band:
    """Give the band of a prediction."""
    return bands()[regime_of(timeline)]


def regime_of(timeline: Timeline) -> str:
    """Say what kind of prediction a timeline is.

    ``compute``: computation takes most of it. Else ``network``: bytes cross network cards;
    ``bounce``: devices reach each other through the memory of a host; ``dense``: devices on PCIe
    send several messages at once; ``shared``: all others, flows that share links.
    """
    machine = timeline.topology
    if timeline.compute_s >= COMPUTE_BOUND * timeline.makespan or machine is None:
        return "compute"
    used = {kind for kind, moved in timeline.link_bytes.items() if moved}
    if used & _kinds_at(machine, "nic"):
        return "network"
    if not all(device.peer for device in machine.devices) and used & _kinds_at(
        machine, HOST_MEMORY
    ):
        return "bounce"
    on_pcie = any(kind.startswith("pcie") for kind in used)
    return "dense" if on_pcie and _most_at_once(timeline) >= SEVERAL else "shared"


def _kinds_at(machine: Topology, switch: str) -> set[str]:
    """List the kinds of links that are at switches of a kind and nowhere else.

    PCIe may join a device to a card and to other devices as well.
    """
    names = {one.name for one in machine.switches if one.kind == switch}
    return {link.kind for link in machine.links if {link.src, link.dst} & names} - {
        link.kind for link in machine.links if not {link.src, link.dst} & names
    }


def _most_at_once(timeline: Timeline) -> int:
    """Count the messages of the fullest batch of any rank."""
    columns = timeline.plan.columns
    sent = columns.op == TRANSFER
    batches = np.stack([columns.rank[sent], columns.stream[sent], columns.level[sent]])
    return int(np.unique(batches, axis=1, return_counts=True)[1].max(initial=0))


__all__ = ["Band", "band_of", "bands", "regime_of"]
