"""What an experiment on the testbed found: for the terminal, as Markdown, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from charm_sched.units import format_bandwidth, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from charm_sched.experiment import Experiment, Trial

PROBE_HEAD = ("probe", "latency", "measured", "file", "ratio")
TRIAL_HEAD = (
    "strategy", "pass", "predicted", "measured", "spread", "error", "vs ring", "max error",
)  # fmt: skip
STREAM_HEAD = ("strategy", "pass", "stream", "ends predicted", "measured", "worst level")


def lab_document(found: Experiment) -> dict[str, Any]:
    """Give charm-plan's document with what was measured per result, and the probe."""
    from charm_sched import report

    document = report.document(found.comparison)
    for result, trial in zip(document["results"], found.trials, strict=True):
        result["measured_s"] = trial.measured
        result["measured_spread_s"] = trial.spread
        result["prediction_error"] = trial.error
        result["measured_speedup_vs_ring"] = trial.speedup_vs_ring
        result["max_error"] = trial.max_error
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
    }  # fmt: skip
    return document


def show(console: Console, found: Experiment) -> None:
    """Print an experiment."""
    from rich import box
    from rich.table import Table

    for line in _head(found):
        console.print(line)
    for head, rows, left in (
        (PROBE_HEAD, _probe_rows(found), 1),
        (TRIAL_HEAD, [_trial_row(trial) for trial in found.trials], 2),
        (STREAM_HEAD, [row for trial in found.trials for row in _stream_rows(trial)], 3),
    ):
        table = Table(box=box.SIMPLE_HEAD)
        for number, name in enumerate(head):
            table.add_column(name, justify="left" if number < left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)


def markdown(found: Sequence[Experiment]) -> str:
    """Give experiments as Markdown tables."""
    parts = []
    for each in found:
        parts.append("\n".join(_head(each)))
        parts.append(_table(PROBE_HEAD, _probe_rows(each)))
        parts.append(_table(TRIAL_HEAD, [_trial_row(trial) for trial in each.trials]))
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
    return [
        (
            finding.name,
            format_seconds(finding.latency, digits=2),
            format_bandwidth(finding.bandwidth, digits=3),
            format_bandwidth(finding.expected, digits=3),
            f"{finding.bandwidth / finding.expected:.3f}",
        )
        for finding in found.calibration.findings
    ]


def _trial_row(trial: Trial) -> tuple[str, ...]:
    return (
        trial.result.strategy,
        trial.result.direction,
        format_seconds(trial.result.timeline.makespan, digits=3),
        format_seconds(trial.measured, digits=3),
        format_seconds(trial.spread, digits=2),
        f"{trial.error:+.1%}",
        "-" if trial.speedup_vs_ring is None else f"{trial.speedup_vs_ring:.2f}x",
        "-" if trial.max_error is None else f"{trial.max_error:.1e}",
    )


def _stream_rows(trial: Trial) -> list[tuple[str, ...]]:
    """Compare, stream by stream, when levels end."""
    measured = {(level.stream, level.level): level for level in trial.typical.levels}
    rows: list[tuple[str, ...]] = []
    predicted = trial.result.timeline.levels
    for stream in dict.fromkeys(level.stream for level in predicted):
        levels = [level for level in predicted if level.stream == stream]
        late = max(
            levels, key=lambda level: abs(level.end - measured[level.stream, level.level].end)
        )
        off = late.end - measured[late.stream, late.level].end
        last = levels[-1]
        rows.append(
            (
                trial.result.strategy,
                trial.result.direction,
                stream,
                format_seconds(last.end, digits=3),
                format_seconds(measured[last.stream, last.level].end, digits=3),
                f"{format_seconds(abs(off), digits=2)} {'late' if off > 0 else 'early'} "
                f"at {late.level}",
            )
        )
    return rows


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
