"""An experiment on the testbed: probe, calibrate, predict, run, compare.

The prediction rests on the topology file, scaled, and on the probe's transfers; never on a run of
attention. Kernels take the time of the file's model (paced) or compute for real.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from charm_sched.cost import op_seconds
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.probing.probe import SIZES, Calibration, calibrate, patterns
from charm_sched.search.planning import AUTO, plan_all
from charm_sched.search.results import Comparison, Result
from charm_sched.simulator import simulate
from charm_sched.topology.scaling import scaled

if TYPE_CHECKING:
    from charm_sched.runtime.lab import Lab
    from charm_sched.testbed import Testbed
    from charm_sched.timelines.timeline import Timeline
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload

PROBE_REPEATS = 3
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """One strategy and direction, predicted and measured.

    Attributes:
        result: The plan with its predicted timeline.
        timelines: Measured ones.
        max_error: Largest absolute difference from dense attention; None where paced.
        speedup_vs_ring: Of the measured medians; None without ring.
    """

    result: Result
    timelines: tuple[Timeline, ...]
    max_error: float | None
    speedup_vs_ring: float | None = None

    @property
    def measured(self) -> float:
        """Median makespan, seconds."""
        return statistics.median(line.makespan for line in self.timelines)

    @property
    def spread(self) -> float:
        """Longest minus shortest makespan, seconds."""
        spans = [line.makespan for line in self.timelines]
        return max(spans) - min(spans)

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""
        return self.result.timeline.makespan / self.measured - 1

    @property
    def typical(self) -> Timeline:
        """The measured timeline whose makespan is nearest to the median."""
        return min(self.timelines, key=lambda line: abs(line.makespan - self.measured))


@dataclass(frozen=True, eq=False, kw_only=True)
class Experiment:
    """What was found on one machine with one workload.

    Attributes:
        topology: The machine as its file states it.
        scale: What its rates were multiplied by.
        calibration: What the probe found on the scaled machine.
        comparison: The predictions, on the calibrated scaled machine.
        trials: One per strategy and direction.
        paced: Whether kernels took modelled times instead of computing.
    """

    topology: Topology
    scale: float
    calibration: Calibration
    comparison: Comparison
    trials: tuple[Trial, ...]
    paced: bool


@contextmanager
def laboratory(
    topology: Topology, devices: Sequence[str], scale: float, *, timeout: float
) -> Iterator[tuple[Testbed, Lab]]:
    """Give a network of some devices of a machine, with a rank on each.

    Raises:
        TestbedError: It cannot be built here.
        RuntimeFailure: The ranks cannot connect.
    """
    from charm_sched.runtime.lab import Lab
    from charm_sched.testbed import Testbed

    with Testbed(topology, devices, scale=scale) as bed, Lab(bed, devices, timeout=timeout) as lab:
        yield bed, lab


def probe(
    lab: Lab,
    topology: Topology,
    *,
    sizes: Sequence[int] = SIZES,
    timeout: float = 60.0,
) -> Calibration:
    """Measure transfers alone, and calibrate a (scaled) machine with them.

    Args:
        lab: Ranks on the machine.
        topology: The machine, scaled as the laboratory is.
        sizes: Bytes of the transfers.
        timeout: Seconds that a transfer may take.
    """
    from charm_sched.runtime.host_cost import measure_host_cost

    host = measure_host_cost(lab, timeout=timeout)
    measured = []
    for pattern in patterns(topology, lab.devices, sizes):
        found = lab.run(
            pattern.plan, [[0.0] * len(pattern.plan)], repeat=PROBE_REPEATS, timeout=timeout
        )
        measured.append((pattern, found.timelines["forward"]))
    return calibrate(topology, measured, host)


def experiment(
    lab: Lab,
    topology: Topology,
    workload: Workload,
    calibration: Calibration,
    *,
    scale: float,
    strategies: Sequence[str],
    directions: Sequence[str],
    partition: str = "auto",
    params: Mapping[str, Any] | None = None,
    planned_for: Topology | None = None,
    repeat: int,
    warm: int = 1,
    timeout: float,
    paced: bool,
    say: Say = lambda text: None,
) -> Experiment:
    """Predict and run strategies on a laboratory.

    Args:
        lab: Ranks on the scaled machine.
        topology: The machine as its file states it.
        workload: What is computed.
        calibration: What the probe found.
        scale: What the machine's rates are multiplied by.
        strategies: Names; ``auto`` among them for the plans that would be chosen of all there are.
        directions: ``forward``, ``backward`` or both.
        partition: Its name, or ``auto`` for the best of each strategy.
        params: Parameters that the strategies get, those that take them.
        planned_for: The machine that plans are made for; None means as it was calibrated, which
            the prediction always is for.
        repeat: Timed runs each.
        warm: Runs before these that are not timed.
        timeout: Seconds that a transfer may take.
        paced: Whether kernels take the modelled time instead of computing.
        say: Told what is being done.
    """
    compare = partial(
        plan_all, planned_for or calibration.topology, workload, directions=directions,
        partition=partition, params=params, devices=lab.devices,
    )  # fmt: skip
    compared = _compared(compare, strategies)
    predicted = [_as_gloo(result, calibration) for result in compared.results]
    slow = scaled(topology, scale)
    trials: list[Trial] = []
    for name in dict.fromkeys(result.strategy for result in predicted):
        say(f"running {name}")
        rows = [result for result in predicted if result.strategy == name]
        trials += _known(rows, trials) or _run(
            lab, rows, slow, repeat=repeat, warm=warm, timeout=timeout, paced=paced
        )
    return Experiment(
        topology=topology,
        scale=scale,
        calibration=calibration,
        comparison=replace(compared, results=tuple(predicted)),
        trials=tuple(_with_speedups(trials)),
        paced=paced,
    )


def _compared(compare: Callable[..., Comparison], strategies: Sequence[str]) -> Comparison:
    """Plan strategies, each at its best; ``auto`` has the rows that it chooses."""
    named = [name for name in strategies if name != AUTO]
    if len(named) == len(strategies):
        return compare(strategies=strategies)
    free = compare(strategies=(AUTO,))
    chosen = tuple(replace(result, strategy=AUTO) for result in free.chosen.values())
    if not named:
        return replace(free, results=chosen)
    compared = compare(strategies=named)
    return replace(compared, results=(*compared.results, *chosen), chosen=free.chosen)


def _known(rows: Sequence[Result], trials: Sequence[Trial]) -> list[Trial]:
    """Give the trials of plans that have run already; none if one of them has not."""
    done = {trial.result.plan.digest: trial for trial in trials}
    if not all(row.plan.digest in done for row in rows):
        return []
    return [replace(done[row.plan.digest], result=row) for row in rows]


def _with_speedups(trials: Sequence[Trial]) -> Iterator[Trial]:
    ring = {t.result.direction: t.measured for t in trials if t.result.strategy == "ring"}
    for trial in trials:
        base = ring.get(trial.result.direction)
        speedup = None if base is None else base / trial.measured
        yield replace(trial, speedup_vs_ring=speedup)


def _as_gloo(result: Result, calibration: Calibration) -> Result:
    """Predict a plan as gloo runs it: each transfer waits for its own input and slot alone."""
    line = simulate(result.plan, calibration.topology, rule="free", host=calibration.host)
    return replace(result, timeline=line)


def _run(
    lab: Lab,
    rows: Sequence[Result],
    machine: Topology,
    *,
    repeat: int,
    warm: int,
    timeout: float,
    paced: bool,
) -> list[Trial]:
    """Run one strategy's plans on the ranks."""
    plans = [row.plan for row in rows]
    stored: Plan | Schedule = plans[0]
    if len(plans) == 2:
        stored = Schedule(forward=plans[0], backward=plans[1])
    seconds = [op_seconds(plan, machine).seconds.tolist() for plan in plans] if paced else None
    found = lab.run(
        stored, seconds, repeat=repeat, warm=warm, timeout=timeout,
        expected=sum(row.timeline.makespan for row in rows),
    )  # fmt: skip
    return [
        Trial(
            result=row,
            timelines=tuple(found.timelines[row.direction]),
            max_error=None if found.max_error is None else found.max_error[row.direction],
        )
        for row in rows
    ]
