"""The best devices for some ranks and their order, and what another choice costs.

Quick figures (`pairs`) choose a few sets and orders; those are planned and simulated, unless a
bound shows that they cannot win.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from charm_sched.bounds.schedule_bound import bound
from charm_sched.errors import CharmSchedError, TopologyError
from charm_sched.placement.orders import EXHAUSTIVE, best_order
from charm_sched.placement.pairs import Pairs
from charm_sched.placement.subsets import candidates
from charm_sched.plans.plan import DIRECTIONS
from charm_sched.search.planning import plan_all
from charm_sched.topology.graph import Topology
from charm_sched.workload import Workload

STRATEGIES = ("ring", "charm")
FINALISTS = 4  # sets that are simulated; of more than eight devices half as many
MOST = 256  # devices of a machine that sets are looked for in
EQUAL = 1e-4  # relative; less is no difference


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Devices in rank order, simulated.

    Attributes:
        seconds: Forward and backward together, each with the faster of the strategies.
        ring_seconds: The same of Ring-Attention alone, which the order matters most to.
        strategies: The faster one, per direction.
        crossings: Neighbours in the order, the last and the first included, by tier.
    """

    devices: tuple[str, ...]
    seconds: float
    ring_seconds: float
    strategies: dict[str, str]
    crossings: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What was found.

    Attributes:
        given: The choice that was asked about; None where there was none.
        simulated: How many choices were simulated.
        sets: How many kinds of sets were looked at.
        exact: Whether those were all kinds, and all orders of each.
    """

    best: Placed
    given: Placed | None
    simulated: int
    sets: int
    exact: bool

    @property
    def cost(self) -> float:
        """What the given choice costs over the best: 0.12 is 12 % more time."""
        return self.given.seconds / self.best.seconds - 1 if self.given is not None else 0.0

    @property
    def ring_cost(self) -> float:
        """What the given choice costs Ring-Attention over the best."""
        if self.given is None or not self.best.ring_seconds:
            return 0.0
        return self.given.ring_seconds / self.best.ring_seconds - 1

    def reason(self) -> str:
        """Say what the given choice does worse, as far as neighbours tell."""
        if self.given is None or max(self.cost, self.ring_cost) <= EQUAL:
            return ""
        told = []
        for tier, count in self.given.crossings.items():
            least = self.best.crossings.get(tier, 0)
            if count > least:
                told.append(f"{count} neighbours across {tier}, {least} are needed")
                break
        if set(self.given.devices) != set(self.best.devices):
            told.append(f"{', '.join(self.best.devices)} are better joined")
        return "; ".join(told) or "its ranks own the work less evenly"


def place(
    topology: Topology,
    workload: Workload,
    *,
    ranks: int | None = None,
    among: Sequence[str] | None = None,
    given: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Placement:
    """Choose devices and their order.

    Args:
        topology: The machine.
        workload: What is computed.
        ranks: How many devices; None for as many as `among`, or all.
        among: Which devices may be chosen; None for all.
        given: A choice to compare with.
        progress: Called with a line of text now and then.

    Raises:
        TopologyError: More ranks than devices, unknown devices, or too many of them.
        CharmSchedError: No choice can be planned.
    """
    names = tuple(among or topology.device_names)
    for name in names:
        topology.device_index(name)
    count = len(names) if ranks is None else ranks
    if not 1 <= count <= len(names):
        raise TopologyError(f"{topology.name}: expected 1 to {len(names)} ranks, found {count}")
    if len(names) > MOST:
        raise TopologyError(
            f"{topology.name}: expected at most {MOST} devices to choose from, found {len(names)} "
            "(name some with --devices)"
        )
    judge = _Judge(topology, workload, progress or (lambda text: None))
    pairs = Pairs.of(topology, names)
    sets, every = candidates(topology, pairs, count)
    for members in sets[: FINALISTS if count <= EXHAUSTIVE else FINALISTS // 2]:
        for order in _orders(topology, pairs, members):
            judge.consider(order)
    asked = judge.simulate(tuple(given)) if given is not None else None
    if asked is not None and (judge.best is None or _before(asked, judge.best)):
        judge.best = asked
    if judge.best is None:
        raise CharmSchedError(f"{topology.name}: no choice of devices can be planned")
    return Placement(
        best=judge.best,
        given=asked,
        simulated=judge.simulated,
        sets=len(sets),
        exact=every and len(sets) <= FINALISTS and count <= EXHAUSTIVE,
    )


def _orders(topology: Topology, pairs: Pairs, members: Sequence[int]) -> list[tuple[str, ...]]:
    """Return the order of the domains, and that of the shortest ring where it is another."""
    names = tuple(pairs.devices[i] for i in members)
    index = {name: i for i, name in enumerate(pairs.devices)}
    whole = _walk(topology, names)
    start = tuple(index[name] for name in whole)
    shortest = best_order(pairs, start)
    found = [whole, tuple(pairs.devices[i] for i in shortest)]
    return list(dict.fromkeys(found))


def _walk(topology: Topology, names: Sequence[str]) -> tuple[str, ...]:
    """Return devices domain by domain, however they stand in the file."""
    if len(names) < 2:
        return tuple(names)
    found: list[str] = []
    todo = [topology.domains(names)]
    while todo:
        domain = todo.pop()
        if domain.children:
            todo += reversed(domain.children)
        else:
            found += domain.devices
    return tuple(found)


@dataclass(slots=True)
class _Judge:
    """Simulates choices and keeps the best."""

    topology: Topology
    workload: Workload
    progress: Callable[[str], None]
    best: Placed | None = None
    simulated: int = 0

    def consider(self, devices: tuple[str, ...]) -> None:
        """Simulate a choice, unless its bound shows that it cannot be the best."""
        if self.best is not None:
            if devices == self.best.devices:
                return
            least = sum(
                bound(self.topology, self.workload, direction=d, devices=devices).seconds
                for d in DIRECTIONS
            )
            if least >= self.best.seconds:
                return
        found = self.simulate(devices)
        if self.best is None or _before(found, self.best):
            self.best = found

    def simulate(self, devices: tuple[str, ...]) -> Placed:
        """Plan and simulate a choice."""
        if self.best is not None and devices == self.best.devices:
            return self.best
        self.simulated += 1
        self.progress(f"placing on {', '.join(devices[:8])}")
        found = plan_all(
            self.topology, self.workload, strategies=STRATEGIES, devices=devices, thorough=False
        )
        return Placed(
            devices=devices,
            seconds=sum(result.timeline.makespan for result in found.chosen.values()),
            ring_seconds=sum(
                result.timeline.makespan for result in found.results if result.strategy == "ring"
            ),
            strategies={d: result.strategy for d, result in found.chosen.items()},
            crossings=_crossings(self.topology, devices),
        )


def _before(a: Placed, b: Placed) -> bool:
    """Say whether a choice is better: faster, or as fast and better for a plain ring."""
    if a.seconds < b.seconds * (1 - EQUAL):
        return True
    return a.seconds <= b.seconds * (1 + EQUAL) and a.ring_seconds < b.ring_seconds * (1 - EQUAL)


def _crossings(topology: Topology, devices: Sequence[str]) -> dict[str, int]:
    pairs = [
        (a, b) for a, b in zip(devices, (*devices[1:], devices[0]), strict=True) if a != b
    ]  # fmt: skip
    counts = Counter(topology.tier_of(a, b) for a, b in pairs)
    return {tier: counts[tier] for tier in topology.tiers if counts[tier]}
