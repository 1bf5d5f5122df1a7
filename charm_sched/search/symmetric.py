"""Planning by symmetry, for machines whose explicit plans would be too large.

An explicit plan has about two operations for each pair of ranks. From `MOST_EXPLICIT` ranks on, the
operations of representatives are planned, proved and simulated instead (`symmetry`). That serves
full masks and the strategies of `FOLDED`.
"""

from __future__ import annotations

import inspect
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from charm_sched.bounds.limits import Limits, check
from charm_sched.errors import StrategyError
from charm_sched.partition import Partition
from charm_sched.planners.charm_folded import charm_folded
from charm_sched.planners.ring import ring
from charm_sched.plans.builder import Builder
from charm_sched.plans.symmetry import Symmetry
from charm_sched.plans.symmetry_machine import SymmetryError, crossings, is_invariant
from charm_sched.proof.verifier import verify
from charm_sched.search.choice import reason, with_speedup
from charm_sched.search.results import Comparison, Refusal, Result, fits
from charm_sched.simulator import simulate

if TYPE_CHECKING:
    from charm_sched.topology.graph import Domain, Topology
    from charm_sched.workload import Workload

    Planner = Callable[..., None]

MOST_EXPLICIT = 2048
"""Ranks up to which plans are explicit: 8 million operations, and a minute or two, each."""
FOLDED: Mapping[str, Planner] = {"ring": ring, "charm": charm_folded}
"""Strategies that can be written for representatives alone."""
PARTITION = "contiguous"
_SAMPLE = 64  # pairs of ranks whose routes are compared while a symmetry is sought


def plan_symmetric(
    topology: Topology,
    workload: Workload,
    devices: Sequence[str],
    *,
    strategies: Sequence[str],
    directions: Sequence[str],
    partition: str = "auto",
    params: Mapping[str, Any] | None = None,
    memory: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare strategies by symmetry, against Ring-Attention.

    Args:
        topology: The machine.
        workload: What is computed; under a full mask, of a length that the ranks divide.
        devices: The device of each rank.
        strategies: Names; ``auto`` or ``all`` for all of `FOLDED`.
        directions: ``forward``, ``backward`` or both.
        partition: ``contiguous``, or ``auto`` for the same.
        params: Parameters that the strategies get, those that take them.
        memory: Bytes that no rank should exceed; None for what its device has.
        progress: Called with a line of text before each step.

    Raises:
        StrategyError: Nothing can be planned by symmetry; the message says what stands against it.
    """
    if partition not in ("auto", PARTITION):
        raise StrategyError(
            f"partition {partition}: for {len(devices)} ranks plans are made by symmetry; expected "
            f"{PARTITION} or auto"
        )
    names = tuple(FOLDED) if strategies[0] in ("auto", "all") else tuple(strategies)
    search = _Search(topology, workload, devices, params or {}, memory, progress)
    return search.comparison(names, directions)


class _Search:
    def __init__(
        self,
        topology: Topology,
        workload: Workload,
        devices: Sequence[str],
        params: Mapping[str, Any],
        memory: float | None,
        progress: Callable[[str], None] | None,
    ) -> None:
        self._topology, self._workload, self._devices = topology, workload, tuple(devices)
        self._params, self._memory = params, memory
        self._say = progress or (lambda text: None)
        self._limits = Limits(topology, workload, self._devices)
        self._seconds = dict.fromkeys(("plan", "verify", "bound", "simulate"), 0.0)
        self._check_workload()
        self._partition = Partition.of(PARTITION, workload, len(devices))
        self._say("looking for a symmetry")
        with self._timed("plan"):
            self._period = find_period(topology, self._devices)

    def _check_workload(self) -> None:
        ranks, work = len(self._devices), self._workload
        wrong = None
        if work.mask_rule.kind != "full":
            wrong = f"the mask is {work.mask_rule}, which looks different from each rank"
        elif work.seq_len % ranks:
            wrong = f"{work.seq_len} tokens are no multiple of the ranks"
        if wrong:
            raise StrategyError(
                f"{ranks} ranks: an explicit plan would have some {2 * ranks**2:,} operations, and "
                f"by symmetry none can be made, as {wrong}; plan for at most {MOST_EXPLICIT} ranks "
                f"(--ranks), or with --mask full and a --seq-len that {ranks} divides"
            )

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._seconds[what] += time.perf_counter() - start

    def comparison(self, names: Sequence[str], directions: Sequence[str]) -> Comparison:
        """Plan, prove, simulate and bound each strategy in each direction."""
        base = {direction: self._result("ring", {}, direction) for direction in directions}
        rows, refused = [], []
        for name, direction in itertools.product(names, directions):
            if name not in FOLDED:
                why = f"expected {' or '.join(FOLDED)}, which alone are planned by symmetry"
                why = f"{len(self._devices)} ranks: {why}"
                refused.append(Refusal(strategy=name, direction=direction, reason=why))
                continue
            try:
                plain = name == "ring"
                result = (
                    base[direction] if plain else self._result(name, self._taken(name), direction)
                )
            except StrategyError as error:
                refused.append(Refusal(strategy=name, direction=direction, reason=str(error)))
                continue
            rows.append(with_speedup(result, list(base.values())))
        return self._together(rows, refused, directions, base)

    def _taken(self, name: str) -> dict[str, Any]:
        known = list(inspect.signature(FOLDED[name]).parameters)[1:]
        return {key: value for key, value in self._params.items() if key in known}

    def _together(
        self,
        rows: Sequence[Result],
        refused: Sequence[Refusal],
        directions: Sequence[str],
        base: Mapping[str, Result],
    ) -> Comparison:
        chosen = {}
        for direction in directions:
            found = [row for row in rows if row.direction == direction]
            if not found:
                raise StrategyError("; ".join(f"{r.strategy}: {r.reason}" for r in refused))
            chosen[direction] = min(
                found, key=lambda row: (row.fits is False, row.timeline.makespan)
            )
        notes = [
            n for row in rows for n in (row.timeline.costs.notes if row.timeline.costs else ())
        ]
        held = sorted(
            {len(row.plan.symmetry.representatives()) for row in rows if row.plan.symmetry}
        )
        why = reason(list(chosen.values()), rows, list(base.values()), self._memory)
        ranks = len(self._devices)
        return Comparison(
            topology=self._topology,
            workload=self._workload,
            results=tuple(rows),
            refused=tuple(refused),
            chosen=chosen,
            seconds=self._seconds,
            assumptions=tuple(dict.fromkeys([*self._topology.basic_assumptions, *notes])),
            why=f"{why}; by symmetry: planned, proved and simulated for "
            f"{' or '.join(map(str, held))} ranks that stand for all {ranks:,}",
            memory=self._memory,
            simulated=len({id(row.plan) for row in rows}),
        )

    def _result(self, name: str, params: Mapping[str, Any], direction: str) -> Result:
        self._say(f"planning {name}, {direction}")
        with self._timed("plan"):
            builder = Builder(
                self._workload,
                self._partition,
                direction=direction,
                topology=self._topology,
                devices=self._devices,
                symmetry=symmetry_of(self._topology, self._devices, name, self._period),
            )
            FOLDED[name](builder, **params)
            plan = builder.build(name, params)
            del builder
        self._say(f"proving {name}, {direction}: {len(plan):,} operations")
        with self._timed("verify"):
            verified = verify(plan, self._workload)
        self._say(f"simulating {name}, {direction}: {len(plan):,} operations")
        edges, peaks = verified.hazards.edges, verified.peak_bytes
        del verified
        with self._timed("simulate"):
            timeline = simulate(plan, self._topology, edges=edges)
        with self._timed("bound"):
            limit, class_limit = self._limits.of(plan)
            check(plan, params, timeline.makespan, limit, class_limit)
        return Result(
            strategy=name,
            params=params,
            direction=direction,
            partition=PARTITION,
            plan=plan,
            timeline=timeline,
            peak_bytes=int(peaks.max()),
            fits=fits(peaks.tolist(), plan, self._topology, self._memory),
            bound=limit,
            class_bound=class_limit,
        )


def symmetry_of(
    topology: Topology, devices: Sequence[str], strategy: str, period: int | None = None
) -> Symmetry:
    """Give the largest symmetry that a strategy has on a machine.

    Args:
        topology: The machine.
        devices: The device of each rank.
        strategy: A name of `FOLDED`.
        period: What `find_period` gives, where it is known.

    Raises:
        StrategyError: There is none.
    """
    ranks, period = len(devices), period or find_period(topology, devices)
    inner = _innermost(topology.domains(devices))
    if strategy == "charm" and period % inner == 0 and inner > 1:
        finer = Symmetry(shape=(ranks // period, period // inner, inner), axes=(0, 2))
        if _holds(topology, devices, finer):
            return finer
    return Symmetry(shape=(ranks // period, period), axes=(0,))


def find_period(topology: Topology, devices: Sequence[str]) -> int:
    """Give the least number of ranks by which all may be shifted and the machine stays as it is.

    Raises:
        StrategyError: There is none below the number of ranks.
    """
    ranks = len(devices)
    inner = _innermost(topology.domains(devices))
    for period in range(inner, ranks // 2 + 1, inner):
        if ranks % period == 0:
            symmetry = Symmetry(shape=(ranks // period, period), axes=(0,))
            if _holds(topology, devices, symmetry):
                return period
    raise StrategyError(
        f"{topology.name}: {ranks} ranks: an explicit plan would have some {2 * ranks**2:,} "
        "operations, and by symmetry none can be made, as no shift of the ranks leaves the machine "
        f"as it is; plan for at most {MOST_EXPLICIT} ranks (--ranks)"
    )


def _holds(topology: Topology, devices: Sequence[str], symmetry: Symmetry) -> bool:
    """Say whether a machine has a symmetry, by a sample of routes."""
    if not is_invariant(topology, devices, symmetry):
        return False
    ranks = symmetry.num_ranks
    far = np.unique(np.linspace(1, ranks - 1, min(_SAMPLE, ranks - 1), dtype=np.int64))
    try:
        crossings(topology, devices, symmetry, np.stack([np.zeros_like(far), far]))
    except SymmetryError:
        return False
    return True


def _innermost(domain: Domain) -> int:
    """Give the common size of the innermost domains, 1 where there is just one tier."""
    sizes: set[int] = set()
    nodes = [domain]
    while nodes:
        node = nodes.pop()
        if node.children and not any(child.children for child in node.children):
            sizes.add(len(node.devices))
        nodes += node.children
    whole = len(domain.devices)
    return math.gcd(*sizes) if sizes and sizes != {whole} else 1


__all__ = ["FOLDED", "MOST_EXPLICIT", "find_period", "plan_symmetric", "symmetry_of"]
