"""Measurements of machines that exist on paper alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from charm_sched.probing.result import Found, find, second_look, together
from charm_sched.probing.whole_machine import Traffic, choose_traffic, default_largest
from charm_sched.simulator.maxmin import max_min_rates
from charm_sched.topology.graph import Topology

Change = Callable[[dict[str, Any]], None]
REPEAT = 3


def changed(topology: Topology, change: Change) -> Topology:
    """Give a machine that differs from its file."""
    document = copy.deepcopy(topology.to_document(domains=True))
    change(document)
    return Topology.from_document(document)


def slowest_rate(real: Topology, devices: Sequence[str], traffic: Traffic) -> float:
    """Give the bytes per second of the slowest flow."""
    routes = [real.route(devices[a], devices[b]) for a, b in traffic.pairs]
    rates = max_min_rates(
        [route.capacities for route in routes],
        [capacity.bandwidth for capacity in real.capacities],
        [route.flow_cap for route in routes],
    )
    return float(rates.min())


def seconds_on(
    real: Topology,
    devices: Sequence[str],
    traffic: Traffic,
    delays: np.random.Generator | None = None,
) -> NDArray[np.float64]:
    """Give what traffic would take, and its answer, ``[sizes, REPEAT]``.

    With ``delays`` each transfer takes up to 30 % longer, small ones up to 5 ms.
    """
    rate = slowest_rate(real, devices, traffic)
    latency = max(real.route(devices[a], devices[b]).latency for a, b in traffic.pairs)
    exact = np.array([[2 * latency + size / rate] * REPEAT for size in traffic.sizes])
    if delays is None:
        return exact
    shape = exact.shape
    wait = 5e-3 * delays.random(shape) * (delays.random(shape) > 0.5) * (exact < 5e-3)
    late = 1 + 0.3 * delays.random(shape) * (delays.random(shape) > 0.6)
    return exact * late + wait


def probed(
    stated: Topology,
    real: Topology,
    devices: Sequence[str] | None = None,
    *,
    delays: np.random.Generator | None = None,
) -> Found:
    """Probe a machine with the file of another."""
    names = tuple(devices or stated.device_names)
    traffics, notes = choose_traffic(stated, names, default_largest(stated, names))
    measured = [(traffic, seconds_on(real, names, traffic, delays)) for traffic in traffics]
    found = find(stated, names, measured, how="on paper", notes=notes)
    more = [(t, seconds_on(real, names, t, delays)) for t in second_look(found)]
    return find(stated, names, together(measured, more), how="on paper", notes=notes)
