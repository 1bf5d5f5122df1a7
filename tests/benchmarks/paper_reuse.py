"""Searches that share what they find out: it halves the time of a case, and changes no result.

A case is planned in one direction alone and in both together, by all strategies and by ``auto``.
Most of these searches try the same plans. A plan, its proof, its timeline and its bounds are
functions of their arguments, so while `shared` lasts each is made once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from charm_sched.bounds.limits import Limits
from charm_sched.proof import verifier
from charm_sched.search import trials as search_trials
from charm_sched.simulator import engine

if TYPE_CHECKING:
    from charm_sched.partition import Partition
    from charm_sched.planners.external import Planner
    from charm_sched.plans.plan import Plan
    from charm_sched.proof.verifier import Verified
    from charm_sched.timelines.timeline import Timeline
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload


@contextmanager
def shared() -> Iterator[Shared]:
    """Let all searches in here share plans, proofs, timelines and bounds."""
    known = Shared()
    with (
        mock.patch.object(search_trials, "build", known.build),
        mock.patch.object(engine, "simulate", known.simulate),
        mock.patch.object(search_trials, "Limits", known.limits),
        mock.patch.object(verifier, "verify", known.verify),
    ):
        yield known


class Shared:
    """What was planned and simulated.

    Attributes:
        made: How many plans were made.
        given: How many were asked for.
    """

    def __init__(self) -> None:
        self._build, self._simulate = search_trials.build, engine.simulate
        self._verify = verifier.verify
        self._proved: dict[int, Verified] = {}
        self._plans: dict[tuple[Any, ...], Plan | Exception] = {}
        self._limits: dict[tuple[Any, ...], Limits] = {}
        self._lines: dict[int, Timeline] = {}
        self._later: dict[int, float] = {}
        self.made = self.given = 0

    def limits(self, topology: Topology, workload: Workload, devices: Sequence[str]) -> Limits:
        """Stand for `charm_sched.bounds.limits.Limits`, which keeps what it found itself."""
        key = (topology.digest, repr(workload), tuple(devices))
        if key not in self._limits:
            self._limits[key] = Limits(topology, workload, devices)
        return self._limits[key]

    def build(
        self,
        planner: Planner,
        name: str,
        workload: Workload,
        partition: Partition,
        *,
        params: Mapping[str, Any],
        saved: Sequence[Any] = (),
        topology: Topology,
        **more: Any,
    ) -> Plan:
        """Stand for `charm_sched.planners.strategies.build`."""
        self.given += 1
        facts = (repr(sorted(params.items())), tuple(saved), *sorted(more.items()))
        key = (name, repr(workload), topology.digest, partition, *facts)
        if key not in self._plans:
            self.made += 1
            try:
                self._plans[key] = self._build(
                    planner, name, workload, partition,
                    params=params, saved=saved, topology=topology, **more,
                )  # fmt: skip
            except Exception as error:
                self._plans[key] = error
        found = self._plans[key]
        if isinstance(found, Exception):
            raise found
        return found

    def verify(self, plan: Plan, workload: Workload) -> Verified:
        """Stand for `charm_sched.proof.verifier.verify`, with plans that `build` gave."""
        if id(plan) not in self._proved:
            self._proved[id(plan)] = self._verify(plan, workload)
        return self._proved[id(plan)]

    def simulate(
        self, plan: Plan, topology: Topology, *, until: float = np.inf, **more: Any
    ) -> Timeline:
        """Stand for `charm_sched.simulator.engine.simulate`, with plans that `build` gave."""
        if more:
            return self._simulate(plan, topology, until=until, **more)
        key = id(plan)
        if key not in self._lines:
            if until <= self._later.get(key, -np.inf):
                raise engine.TooLate
            try:
                self._lines[key] = self._simulate(plan, topology, until=until)
            except engine.TooLate:
                self._later[key] = until
                raise
        if self._lines[key].makespan > until:
            raise engine.TooLate
        return self._lines[key]
