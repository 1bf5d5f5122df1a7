"""What a fit of measured transfers starts from and ends with: cases, and numbers with a status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from charm_sched.probing.probe import Pair
from charm_sched.probing.whole_machine import LinkClass

if TYPE_CHECKING:
    from charm_sched.topology.graph import Topology

PORT = "port"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one traffic, or one kind of entry of the matrix, measured.

    Attributes:
        name: For people.
        pairs: Who sent to whom.
        rate: Bytes per second of the slowest flow.
    """

    name: str
    pairs: tuple[Pair, ...]
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number of a class of links.

    Attributes:
        file: Of the file; None for a flow cap that it does not have.
        value: After the fit; None as above.
        status: "measured"; "together" (one of several that the same flows cross, not told apart);
            "at least" (the file says less than was seen); "unseen" (never the limit).
        seen: The most that was seen to pass: a lower bound.
        others: What might be in its place, by name.
    """

    file: float | None
    value: float | None
    status: str
    seen: float
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFit:
    """What was found about a class of alike links, or alike ports of devices.

    Attributes:
        name: Kind, and the bandwidth where the file has several of that kind.
        link_class: What they have in common in the file.
        shared: Half duplex, after the fit.
        shared_status: "measured", or "unseen".
    """

    name: str
    link_class: LinkClass
    bandwidth: Number
    flow_cap: Number
    shared: bool
    shared_status: str

    @property
    def is_port(self) -> bool:
        """Whether these are ports."""
        return self.link_class[0] == PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexplained:
    """A measurement that the fitted machine does not give.

    Attributes:
        rate, fitted: Bytes per second of the slowest flow, measured and by the fitted machine.
    """

    name: str
    rate: float
    fitted: float


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What all measurements say together.

    Attributes:
        cases: How many measurements there were.
    """

    cases: int
    classes: tuple[ClassFit, ...]
    unexplained: tuple[Unexplained, ...]


def narrow_ports(topology: Topology) -> dict[int, LinkClass]:
    """Return the capacities of ports that are narrower than their device's links together."""
    from charm_sched.topology.build import natural_ports

    natural = natural_ports(list(topology.device_names), topology.links)
    first = len(topology.capacities) - 2 * len(topology.devices)
    return {
        first + 2 * number + way: (PORT, device.port, 0.0, None, False)
        for number, device in enumerate(topology.devices)
        if device.port < natural[device.name] * (1 - 1e-9)
        for way in (0, 1)
    }


def class_names(classes: Iterable[LinkClass]) -> dict[LinkClass, str]:
    """Name classes by kind; with what differs where a kind has several."""
    from charm_sched.units import format_bandwidth, format_seconds

    every = list(classes)
    names = {}
    for own in every:
        like = [other for other in every if other[0] == own[0]]
        parts = [own[0]]
        if len({other[1] for other in like}) > 1:
            parts.append(format_bandwidth(own[1]))
        if len({other[1:3] for other in like}) > len({other[1] for other in like}):
            parts.append(format_seconds(own[2]))
        if len({other[3:] for other in like}) > 1:
            parts.append("half duplex" if own[4] else "capped" if own[3] else "plain")
        names[own] = " ".join(parts)
    return names
