"""What an experiment on the testbed found: for the terminal, as Markdown, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from charm_sched.timelines.deviation import by_level, by_link
from charm_sched.units import format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from charm_sched.testbed.experiment import Experiment, Trial

PROBE_HEAD = ("probe", "latency", "measured", "file", "ratio")
TRIAL_HEAD = (
    "strategy", "pass", "predicted", "measured", "spread", "error", "vs ring", "max error",
)  # fmt: skip
STREAM_HEAD = ("strategy", "pass", "stream", "ends predicted", "measured", "error", "worst level")
LINK_HEAD = ("strategy", "pass", "busiest link", "in use predicted", "measured", "error")
MARKDOWN_HEAD = (
    "strategy", "pass", "predicted", "measured", "spread", "error", "vs ring", "worst level",
    "worst link",
)  # fmt: skip


def lab_document(found: Experiment) -> dict[str, Any]:
    """Give charm-plan's document with what was measured per result, and the probe."""
    from charm_sched.report import documents as report

    document = report.document(found.comparison)
    for result, trial in zip(document["results"], found.trials, strict=True):
        result["measured_s"] = trial.measured
        result["measured_spread_s"] = trial.spread
        result["prediction_error"] = trial.error
        result["measured_speedup_vs_ring"] = trial.speedup_vs_ring
        result["max_error"] = trial.max_error
        result["levels_measured"] = [
            {
                "stream": level.stream,
                "level": level.level,
                "predicted_s": level.predicted,
                "measured_s": level.measured,
                "error": level.error,
            }
            for level in by_level(trial.result.timeline, trial.typical)
        ]
        result["links_measured"] = [
            {
                "kind": link.kind,
                "link": link.name,
                "predicted_s": link.predicted,
                "measured_s": link.measured,
                "error": link.error,
            }
            for link in by_link(trial.result.timeline, trial.typical)
        ]
    document["lab"] = {
        "scale": found.scale,
        "paced": found.paced,
        "probe": [
            {
                "name": f.name, "tier": f.tier, "latency_s": f.latency, "bandwidth": f.bandwidth,
                "expected_bandwidth": f.expected, "bound_by": f.bound_by,
            }
            for f in found.calibration.findings
        ],
        "latency_s": dict(found.calibration.latency),
        "bandwidth_factor": dict(found.calibration.factor),
        "host_s": asdict(found.calibration.host),
    }  # fmt: skip
    return document


def show(console: Console, found: Experiment) -> None:
    """Print an experiment."""
    from charm_sched.render.tables import fitting

    for line in _head(found):
        console.print(line)
    for head, rows, left in (
        (PROBE_HEAD, _probe_rows(found), 1),
        (TRIAL_HEAD, [_trial_row(trial) for trial in found.trials], 2),
        (STREAM_HEAD, [row for trial in found.trials for row in _stream_rows(trial)], 3),
        (LINK_HEAD, [row for trial in found.trials for row in _link_rows(trial)], 3),
    ):
        console.print()
        console.print(fitting(head, rows, console.width, left=range(left)))


def markdown(found: Sequence[Experiment]) -> str:
    """Give experiments as Markdown tables; what the probe found once per network."""
    parts, before = [], None
    for each in found:
        parts.append("\n".join(_head(each)))
        if each.calibration is not before:
            parts.append(_table(PROBE_HEAD, _probe_rows(each)))
        before = each.calibration
        rows = [(*_trial_row(trial)[:-1], *_worst(trial)) for trial in each.trials]
        parts.append(_table(MARKDOWN_HEAD, rows))
    errors = [abs(trial.error) for each in found for trial in each.trials]
    if errors:
        parts.append(
            f"{len(errors)} predictions: mean absolute error {sum(errors) / len(errors):.1%}, "
            f"worst {max(errors):.1%}."
        )
    return "\n\n".join(parts) + "\n"


def _head(found: Experiment) -> list[str]:
    work = found.comparison.workload
    ranks = found.comparison.results[0].plan.num_ranks
    piece = -(-work.seq_len // ranks) * work.num_kv_heads * work.row_bytes("kv")
    kernels = "take the time of the model" if found.paced else "compute"
    return [
        f"{found.topology.name}: {ranks} ranks, rates times {found.scale:.3g}; "
        f"{work.seq_len} tokens, {work.mask}, {format_bytes(piece)} of keys and values per rank; "
        f"kernels {kernels}",
    ]


def _probe_rows(found: Experiment) -> list[tuple[str, ...]]:
    """List what transfers alone showed, and what an op costs the machine that carries them."""
    host = found.calibration.host
    costs = [
        (f"host, per {name}", format_seconds(seconds, digits=2), "-", "-", "-")
        for name, seconds in (("message", host.message), ("kernel", host.kernel))
    ]
    measured = [
        (
            finding.name,
            format_seconds(finding.latency, digits=2),
            format_bandwidth(finding.bandwidth, digits=3),
            format_bandwidth(finding.expected, digits=3),
            f"{finding.bandwidth / finding.expected:.3f}",
        )
        for finding in found.calibration.findings
    ]
    return [*costs, *measured]


def _name(trial: Trial) -> str:
    """Name a strategy, and what was chosen where it was free."""
    name = trial.result.strategy
    return f"{name}: {trial.result.plan.strategy}" if name == "auto" else name


def _trial_row(trial: Trial) -> tuple[str, ...]:
    return (
        _name(trial),
        trial.result.direction,
        format_seconds(trial.result.timeline.makespan, digits=3),
        format_seconds(trial.measured, digits=3),
        format_seconds(trial.spread, digits=2),
        f"{trial.error:+.1%}",
        "-" if trial.speedup_vs_ring is None else f"{trial.speedup_vs_ring:.2f}x",
        "-" if trial.max_error is None else f"{trial.max_error:.1e}",
    )


def _worst(trial: Trial) -> tuple[str, str]:
    """Name the level and the link that are furthest off."""
    line, typical = trial.result.timeline, trial.typical
    level = max(by_level(line, typical), key=lambda each: abs(each.error), default=None)
    link = max(by_link(line, typical), key=lambda each: abs(each.error), default=None)
    return (
        "-" if level is None else f"{level.stream} {level.level}: {level.error:+.1%}",
        "-" if link is None else f"{link.kind}: {link.error:+.1%}",
    )


def _stream_rows(trial: Trial) -> list[tuple[str, ...]]:
    """Compare, stream by stream, when levels end."""
    levels = by_level(trial.result.timeline, trial.typical)
    rows: list[tuple[str, ...]] = []
    for stream in dict.fromkeys(level.stream for level in levels):
        own = [level for level in levels if level.stream == stream]
        worst = max(own, key=lambda level: abs(level.error))
        rows.append(
            (
                _name(trial),
                trial.result.direction,
                stream,
                format_seconds(own[-1].predicted, digits=3),
                format_seconds(own[-1].measured, digits=3),
                f"{own[-1].error:+.1%}",
                f"{worst.level}: {worst.error:+.1%}",
            )
        )
    return rows


def _link_rows(trial: Trial) -> list[tuple[str, ...]]:
    return [
        (
            _name(trial),
            trial.result.direction,
            f"{link.kind} ({link.name})",
            format_seconds(link.predicted, digits=3),
            format_seconds(link.measured, digits=3),
            f"{link.error:+.1%}",
        )
        for link in by_link(trial.result.timeline, trial.typical)
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
