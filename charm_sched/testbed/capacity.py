"""How much this machine can carry through a testbed, and the scale of rates that follows.

Cost model: a byte of payload costs the whole machine `endpoint + hops * hop` seconds, one hop being
one namespace left. Both are measured with real TCP through shaped networks of 1 and 5 links.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from charm_sched.testbed.blueprint import Blueprint, blueprint
from charm_sched.testbed.network import Testbed
from charm_sched.testbed.paths import find_routes
from charm_sched.testbed.traffic import measure
from charm_sched.topology import Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAFE_SHARE = 0.15  # of the machine is given to carrying; the rest is for ranks, timers and others
_SHORT, _LONG = 1, 5  # links of the two networks
_WIDE = "20 GB/s"  # more than a network of namespaces carries
_DIGITS = 2  # of a scale, so that it can be written down


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrying:
    """What it costs this machine to carry payload.

    Attributes:
        endpoint: seconds of the whole machine per byte, to send and receive.
        hop: seconds of the whole machine per byte and namespace left.
    """

    endpoint: float
    hop: float

    def rate(self, hops: int) -> float:
        """Return the bytes of payload per second, all flows together, over `hops` hops."""
        return 1 / (self.endpoint + hops * self.hop)


def measure_carrying(*, seconds: float = 0.4) -> Carrying:
    """Measure with as many flows as processors, twice `seconds` and some tenths to settle.

    What else runs on the machine counts as its load: the result is what is left.

    Raises:
        TestbedError: a testbed is not possible here.
    """
    short, long = (1 / _saturated(links, seconds) for links in (_SHORT, _LONG))
    hop = (long - short) / (_LONG - _SHORT)
    if hop <= 0 or short < hop * _SHORT:  # noise: all of the cost is given to hops
        hop = long / _LONG
    return Carrying(endpoint=max(short - hop * _SHORT, 0.0), hop=hop)


def _saturated(links: int, seconds: float) -> float:
    """Return the bytes per second of all flows through a chain of links."""
    chain = ("a", *(f"s{i}" for i in range(1, links)), "b")
    topology = Topology.from_document(
        {
            "schema": "charm-sched/topology",
            "version": 1,
            "name": "chain",
            "profiles": {
                "none": {
                    "peak": {"bf16": "1 TFLOP/s"},
                    "efficiency": 1.0,
                    "overhead": "0 s",
                    "memory_bandwidth": "1 TB/s",
                }
            },
            "devices": [{"name": name, "profile": "none"} for name in ("a", "b")],
            "switches": [{"name": name, "kind": "switch"} for name in chain[1:-1]],
            "links": [
                {"from": a, "to": b, "kind": "wire", "bandwidth": _WIDE, "latency": "0 s"}
                for a, b in itertools.pairwise(chain)
            ],
        }
    )
    flows = [("a", "b"), ("b", "a")] * max(1, (os.cpu_count() or 1) // 2)
    with Testbed(topology, scale=1.0) as bed:
        return sum(measure(bed, flows, settle=0.1, seconds=seconds).values())


def choose_scale(
    topology: Topology,
    devices: Sequence[str] | None = None,
    *,
    carrying: Carrying | None = None,
    share: float = SAFE_SHARE,
) -> float:
    """Return one factor for all rates, such that the busiest phase needs `share` of the machine.

    The busiest phase is the worst there can be: of all rates that the flows between the devices can
    have at once within capacities and flow caps, those that cost most to carry (a linear program).
    Rounded down to two digits; the same for the same measurement.

    Args:
        topology: what is modelled.
        devices: those that take part; all by default.
        carrying: measured now by default.
        share: of what the machine can carry.

    Raises:
        TopologyError: see `blueprint`; or no device can send to another.
        TestbedError: a testbed is not possible here.
    """
    names = tuple(topology.device_names if devices is None else devices)
    drawing = blueprint(topology, names, scale=1.0)
    cost = carrying if carrying is not None else measure_carrying()
    scale = share / _busiest(drawing, cost) if drawing.paths else 1.0
    unit = 10.0 ** (math.floor(math.log10(scale)) - _DIGITS + 1)
    return float(f"{math.floor(scale / unit * (1 + 1e-12)) * unit:.{_DIGITS}g}")


def _busiest(drawing: Blueprint, carrying: Carrying) -> float:
    """Return the greatest seconds of the machine per second that flows at nominal rates need."""
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    topology = drawing.topology
    routes = find_routes(topology, drawing.devices)
    crossings = [
        (capacity, flow)
        for flow, route in enumerate(routes.values())
        for capacity in route.capacities
    ]
    rows, columns = np.array(crossings).T
    widths = np.array([capacity.bandwidth for capacity in topology.capacities])
    unit = widths.max()  # the solver likes numbers near one
    costs: NDArray[np.float64] = np.array(
        [1 / carrying.rate(len(drawing.paths[p])) for p in routes]
    )
    found = linprog(
        -costs / costs.max(),
        A_ub=csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(widths), len(routes))),
        b_ub=widths / unit,
        bounds=[(0, min(r.flow_cap / unit, 1.0)) for r in routes.values()],
        method="highs",
    )
    return float(-found.fun * unit * costs.max())


__all__ = ["SAFE_SHARE", "Carrying", "choose_scale", "measure_carrying"]
