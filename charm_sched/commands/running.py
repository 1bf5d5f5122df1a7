"""What charm-run runs, one strategy after the other, and what it reports of each."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from charm_sched.plans.plan import Plan, Schedule
    from charm_sched.report.documents import Document
    from charm_sched.runtime.trial import Trial
    from charm_sched.search.results import Comparison, Result
    from charm_sched.timelines.timeline import Timeline

AUTO, ALL = "auto", "all"


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """A strategy that is run.

    Attributes:
        name: Its name; ``auto`` for what a search over all of them chose.
        results: Its plans by direction; a backward never alone.
    """

    name: str
    results: Mapping[str, Result]

    @property
    def stored(self) -> Schedule | Plan:
        """The plan, or both as a schedule."""
        from charm_sched.plans.plan import Schedule

        if len(self.results) == 1:
            return self.results["forward"].plan
        return Schedule(
            forward=self.results["forward"].plan, backward=self.results["backward"].plan
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Row:
    """One direction of a strategy that was run.

    Attributes:
        name: As in `Run`.
        result: What was predicted.
        lines: Measured timelines, one per timed run.
        max_error: Largest absolute difference from dense attention; None where not compared.
        exact: Whether that is what one device is off, too; None where not compared.
    """

    name: str
    result: Result
    lines: Sequence[Timeline]
    max_error: float | None
    exact: bool | None

    @property
    def measured(self) -> float:
        """Seconds of the median run."""
        return statistics.median(line.makespan for line in self.lines)

    @property
    def spread(self) -> float | None:
        """Seconds from the fastest to the slowest run; None of one run."""
        times = [line.makespan for line in self.lines]
        return max(times) - min(times) if len(times) > 1 else None

    @property
    def error(self) -> float:
        """The predicted over the measured time, minus one."""
        return self.result.timeline.makespan / self.measured - 1

    @property
    def typical(self) -> Timeline:
        """The run that took the median time, or next to it."""
        return min(self.lines, key=lambda line: abs(line.makespan - self.measured))


def runs_of(comparison: Comparison, names: Sequence[str] | None) -> list[Run]:
    """List what is run: each strategy that was named, or what was chosen.

    Args:
        comparison: What was planned.
        names: As given to ``--strategy``; None for a stored plan, or the default.
    """
    chosen = dict(comparison.chosen)
    if names is None or tuple(names) == (AUTO,):
        return [Run(name=next(iter(chosen.values())).strategy, results=chosen)]
    found = []
    for name in dict.fromkeys(result.strategy for result in comparison.results):
        own = {r.direction: r for r in comparison.results if r.strategy == name}
        if len({result.partition for result in own.values()}) > 1:
            del own["backward"]  # they were chosen apart, and do not fit together
        if "forward" in own:
            found.append(Run(name=name, results=own))
    if tuple(names) == (ALL,):
        found.append(Run(name=AUTO, results=chosen))
    return found


def rows_of(run: Run, found: Trial, direction: str) -> list[Row]:
    """Give a row for each direction that is asked for: ``forward``, ``backward`` or ``both``."""
    return [
        Row(
            name=run.name,
            result=result,
            lines=found.timelines[way],
            max_error=None if found.max_error is None else found.max_error[way],
            exact=None if found.exact is None else found.exact[way],
        )
        for way, result in run.results.items()
        if direction in (way, "both")
    ]


def run_document(comparison: Comparison, rows: Sequence[Row]) -> Document:
    """Give charm-plan's document for what was run, with what was measured."""
    from dataclasses import replace

    from charm_sched.report import documents as report

    run = replace(comparison, results=tuple(row.result for row in rows))
    document = report.document(run)
    for result, row in zip(document["results"], rows, strict=True):
        result.update(_measured(row))
        if row.name == AUTO:
            result["strategy"] = AUTO
    return document


def _measured(row: Row) -> dict[str, Any]:
    return {
        "measured_s": row.measured,
        "measured_spread_s": row.spread,
        "prediction_error": row.error,
        "max_error": row.max_error,
        "exact": row.exact,
    }


def check_profile(path: Path, runs: Sequence[Run]) -> None:
    """Check, before long work, that the timelines can be written.

    Raises:
        CharmSchedError: A target is no trace, or its folder is missing.
    """
    from charm_sched.commands.output import check_is_name, check_traces

    check_is_name(path, "--profile")
    for target in _targets(path, [(run.name, way) for run in runs for way in run.results]).values():
        check_traces(target, ("forward",), "--profile")


def profile_targets(path: Path, rows: Sequence[Row]) -> dict[tuple[str, str], Path]:
    """Give the file of each row: ``NAME.STRATEGY.DIRECTION.json``, without what is the same."""
    return _targets(path, [(row.name, row.result.direction) for row in rows])


def _targets(path: Path, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Path]:
    from charm_sched.planners.external import short_name

    several = [len({key[at] for key in keys}) > 1 for at in (0, 1)]
    found = {}
    for name, way in keys:
        parts = [part for part, told in zip((short_name(name), way), several, strict=True) if told]
        stem = ".".join([path.stem, *(part.replace("/", "_").replace(":", "_") for part in parts)])
        found[name, way] = path.with_name(f"{stem}{path.suffix}")
    return found


def write_profiles(path: Path, rows: Sequence[Row]) -> None:
    """Write the measured timeline of each row's median run."""
    from charm_sched.timelines.trace import write_trace

    targets = profile_targets(path, rows)
    for row in rows:
        write_trace(row.typical, targets[row.name, row.result.direction])


__all__ = [
    "Row", "Run", "check_profile", "profile_targets", "rows_of", "run_document", "runs_of",
    "write_profiles",
]  # fmt: skip
