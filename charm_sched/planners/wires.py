"""The links of a machine as a planner sees them: routes, and flows that share links equally."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from charm_sched.plans.builder import Builder

SLACK = 1.02
"""Links that together are wider than another by less do not fill it in a plan: measured widths of a
port and of its links differ by a few per cent."""
UNKNOWN_WIDTH = 1e9
"""Bytes per second of each rank's port where a plan is made for no machine."""


@dataclass(frozen=True, slots=True)
class Way:
    """What a message from one rank to another crosses.

    Attributes:
        links: Numbers of the capacities.
        latency: Seconds.
        cap: Bytes per second that a single flow may have.
    """

    links: tuple[int, ...]
    latency: float
    cap: float


class Ways:
    """The way between every two ranks, and the width of what they cross.

    Capacities that cannot become full, as others on the same ways are full before, are left out.

    Attributes:
        widths: Bytes per second of each capacity.
    """

    def __init__(self, b: Builder) -> None:
        topology, ranks = b.topology if b.devices else None, b.num_ranks
        self.widths = [UNKNOWN_WIDTH] * (2 * ranks)
        if topology:
            self.widths = [capacity.bandwidth for capacity in topology.capacities]
        self._ways: dict[tuple[int, int], Way] = {}
        for src, dst in itertools.permutations(range(ranks), 2):
            way = Way((src, ranks + dst), 0.0, float("inf"))
            if topology:
                route = topology.route(b.devices[src], b.devices[dst])
                latency = topology.planned_latency(route)
                way = Way(tuple(route.capacities), latency, route.flow_cap)
            self._ways[src, dst] = way
        self._leave_out()

    def __call__(self, src: int, dst: int) -> Way:
        """Give the way from one rank to another."""
        return self._ways[src, dst]

    def _leave_out(self) -> None:
        """Leave out each capacity that is as wide as the narrowest others on its ways together."""
        over: dict[int, set[tuple[int, ...]]] = {}
        for way in self._ways.values():
            for link in way.links:
                over.setdefault(link, set()).add(way.links)
        gone: set[int] = set()
        for link in sorted(over, key=lambda link: -self.widths[link]):
            witnesses = set()
            often = Counter(other for links in over[link] for other in links)
            for links in over[link]:
                others = [other for other in links if other != link and other not in gone]
                if not others:
                    break
                witnesses.add(min(others, key=lambda x: (self.widths[x], -often[x], x)))
            else:
                if sum(self.widths[other] for other in witnesses) <= self.widths[link] * SLACK:
                    gone.add(link)
        for ends, way in self._ways.items():
            self._ways[ends] = replace(way, links=tuple(x for x in way.links if x not in gone))


@dataclass(slots=True, eq=False)
class _Flow:
    """Bytes under way: how many are left since when, and how fast they go."""

    way: Way
    left: float
    since: float
    rate: float = 0.0


class Wires:
    """Flows under way. Each link is shared equally by those that cross it.

    That gives no flow more than max-min fair sharing would, and costs a few steps per change.
    """

    def __init__(self, ways: Ways) -> None:
        self._widths = ways.widths
        self._on: list[dict[int, _Flow]] = [{} for _ in ways.widths]
        self._changed: set[int] = set()
        self._alone: list[tuple[int, _Flow]] = []  # begun, and cross nothing

    def begin(self, number: int, way: Way, size: float, now: float) -> None:
        """Let a flow begin."""
        flow = _Flow(way, size, now)
        for link in way.links:
            self._on[link][number] = flow
        self._changed.update(way.links)
        if not way.links:
            self._alone.append((number, flow))

    def end(self, number: int, way: Way) -> None:
        """Let a flow end."""
        for link in way.links:
            del self._on[link][number]
        self._changed.update(way.links)

    def share(self, now: float) -> Iterator[tuple[int, float]]:
        """Share the links that changed, and give when each flow on them ends, if nothing changes.

        Yields:
            The number of a flow whose rate is another now, and the time of its end.
        """
        touched = dict(self._alone)
        for link in sorted(self._changed):
            touched.update(self._on[link])
        self._changed.clear()
        self._alone.clear()
        for number, flow in touched.items():
            rate = flow.way.cap
            for link in flow.way.links:
                rate = min(rate, self._widths[link] / len(self._on[link]))
            if rate != flow.rate:
                flow.left = max(0.0, flow.left - flow.rate * (now - flow.since))
                flow.since, flow.rate = now, rate
                yield number, now + flow.left / rate
