"""Faults on purpose: a link slowed, cut or flapping, a rank killed, while a plan runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from charm_sched.errors import TopologyError, WorkloadError

if TYPE_CHECKING:
    from charm_sched.runtime.lab import Lab, Measured
    from charm_sched.testbed import Testbed
    from charm_sched.topology.graph import Topology

FAULT_FORMS = "slow:A->B=0.1@0.5, cut:A->B@0.5, flap:A->B@0.5 or kill:3@0.5"
_FLAPS, _FLAP_SECONDS = 3, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        kind: ``slow``, ``cut``, ``flap`` or ``kill``.
        target: A link as FROM->TO, both directions of which suffer, or a rank.
        factor: Of ``slow``: what the link's rate is multiplied by.
        when: Seconds after the run was started.
    """

    kind: str
    target: str
    factor: float
    when: float


def parse_fault(text: str) -> Fault:
    """Read a fault as the command line spells it.

    >>> parse_fault("slow:a->b=0.1@0.5").factor
    0.1

    Raises:
        ValueError: It is none.
    """
    kind, _, rest = text.partition(":")
    target, _, when = rest.rpartition("@")
    factor = "1"
    if kind == "slow":
        target, _, factor = target.rpartition("=")
    try:
        fault = Fault(kind=kind, target=target, factor=float(factor), when=float(when))
    except ValueError:
        fault = Fault(kind="", target="", factor=0.0, when=-1.0)
    known = fault.kind in ("slow", "cut", "flap", "kill")
    if not (known and fault.target and fault.factor > 0 and fault.when >= 0):
        raise ValueError(f"expected a fault such as {FAULT_FORMS}, found {text!r}")
    return fault


def place_of(fault: Fault, ranks: int, topology: Topology) -> int:
    """Give the number of the rank or link that a fault is about.

    Raises:
        WorkloadError: There is no such rank.
        TopologyError: There is no such link.
    """
    if fault.kind == "kill":
        if not fault.target.isdecimal() or int(fault.target) >= ranks:
            raise WorkloadError(
                f"fault kill: expected a rank below {ranks}, found {fault.target!r}"
            )
        return int(fault.target)
    src, _, dst = fault.target.partition("->")
    link = next((k.index for k in topology.links if (k.src, k.dst) == (src, dst)), None)
    if link is None:
        raise TopologyError(
            f"fault {fault.kind}: {topology.name} has no link {fault.target!r} (FROM->TO); "
            "charm-topo show --json lists them"
        )
    return link


def action(fault: Fault, bed: Testbed, lab: Lab, topology: Topology) -> Callable[[], None]:
    """Give what makes a fault happen.

    Raises:
        WorkloadError: There is no such rank.
        TopologyError: There is no such link.
    """
    place = place_of(fault, lab.num_ranks, topology)
    if fault.kind == "kill":
        return lambda: lab.kill(place)
    if fault.kind == "cut":
        return lambda: bed.cut(place)
    if fault.kind == "slow":
        return lambda: bed.set_rate(place, fault.factor)
    return lambda: _flap(bed, place)


def _flap(bed: Testbed, link: int) -> None:
    for _ in range(_FLAPS):
        bed.cut(link)
        time.sleep(_FLAP_SECONDS)
        bed.restore(link)
        time.sleep(_FLAP_SECONDS)


def finish_disturbed(lab: Lab, fault: Fault, act: Callable[[], None]) -> tuple[Measured, float]:
    """Disturb a run that has been started, and wait for it.

    Returns:
        What was measured, and the seconds since the start.

    Raises:
        LabFailure: Ranks failed; each has its message.
    """
    begin = time.monotonic()
    time.sleep(fault.when)
    act()
    found = lab.finish()
    return found, time.monotonic() - begin
