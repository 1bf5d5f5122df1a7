"""How much this machine can carry through a testbed, and the scale of rates that follows.

Cost model: a byte of payload costs the whole machine `endpoint + hops * hop` seconds, one hop being
one namespace left. Both are measured with real TCP through shaped networks of 1 and 5 links.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.testbed.blueprint import Blueprint, blueprint
from charm_sched.testbed.network import Testbed
from charm_sched.testbed.paths import find_routes
from charm_sched.testbed.traffic import Traffic
from charm_sched.topology.graph import Topology

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAFE_SHARE = (
    0.15  # of the machine is given to carrying; slow flows cost up to twice, and ranks work too
)
_SHORT, _LONG = 2, 6  # links from end to end in the two networks
_TRIES = 3
_SETTLE = 0.1  # seconds
_CHAINS, _RATE = 4, "25 MB/s"  # a load of 200 MB/s
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
    """Measure what carrying costs the processors: `_TRIES` times on each of two networks.

    Counted is the time that the processors are busy, whoever keeps them so: on a machine that does
    other things as well the cost comes out higher, and the scale lower.

    Args:
        seconds: of each try, and some tenths to settle.

    Raises:
        TestbedError: a testbed is not possible here.
    """
    tries = [[_cost(links, seconds) for links in (_SHORT, _LONG)] for _ in range(_TRIES)]
    short, long = (statistics.median(found) for found in zip(*tries, strict=True))
    hop = (long - short) / (_LONG - _SHORT)
    if hop <= 0 or short < hop * _SHORT:  # noise: all of the cost is given to hops
        hop = long / _LONG
    return Carrying(endpoint=max(short - hop * _SHORT, 0.0), hop=hop)


def _cost(links: int, seconds: float) -> float:
    """Return the seconds of the whole machine per byte that goes through chains of links."""
    topology, flows = _chains(links)
    with Testbed(topology, scale=1.0) as bed, Traffic(bed, flows) as traffic:
        time.sleep(_SETTLE)
        before, busy = traffic.received(), _busy()
        time.sleep(seconds)
        after, busy_after = traffic.received(), _busy()
    moved = sum(after.counts) - sum(before.counts)
    return (busy_after - busy) / (os.cpu_count() or 1) / max(moved, 1)


def _chains(links: int) -> tuple[Topology, list[tuple[str, str]]]:
    """Return chains of links that cross at a hub in their middle, and a flow each way on each."""
    half = range(1, links // 2)
    chains = [
        (f"a{n}", *(f"a{n}-{i}" for i in half), "hub", *(f"b{n}-{i}" for i in half), f"b{n}")
        for n in range(_CHAINS)
    ]
    ends = [(chain[0], chain[-1]) for chain in chains]
    switches = dict.fromkeys(name for chain in chains for name in chain[1:-1])
    topology = Topology.from_document(
        {
            "schema": "charm-sched/topology",
            "version": 1,
            "name": "chains",
            "profiles": {
                "none": {
                    "peak": {"bf16": "1 TFLOP/s"},
                    "efficiency": 1.0,
                    "overhead": "0 s",
                    "memory_bandwidth": "1 TB/s",
                }
            },
            "devices": [{"name": name, "profile": "none"} for pair in ends for name in pair],
            "switches": [{"name": name, "kind": "switch"} for name in switches],
            "links": [
                {"from": a, "to": b, "kind": "wire", "bandwidth": _RATE, "latency": "0 s"}
                for chain in chains
                for a, b in itertools.pairwise(chain)
            ],
        }
    )
    return topology, [pair for src, dst in ends for pair in ((src, dst), (dst, src))]


def _busy() -> float:
    """Return the seconds that all processors together have been busy (proc(5), /proc/stat)."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


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
