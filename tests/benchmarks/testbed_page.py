"""The page docs/benchmarks/testbed.md: what is written of what was measured."""

import os
import platform
import statistics
from collections.abc import Sequence
from datetime import date
from typing import NamedTuple

from charm_sched.render.lab import markdown
from charm_sched.testbed.experiment import Experiment, Trial

PAGE = """\
# Predictions against real transfers

{where} Written by
`python -m tests.benchmarks.testbed`: gloo over shaped networks on one machine, kernels paced;
medians of {repeat}. The model is calibrated with the probe's transfers and with the processor time
of a message and of a kernel, never with a run of attention. How it works:
[testbed](../testbed.md).

## Predicted and measured

Rates are those of the file times what this machine carries (`choose_scale`, at most 1). An error is
predicted over measured, minus one. "Worst level" is the level whose end is furthest off, "worst
link" the kind of link whose busiest one is in use for a time that is furthest off, both relative to
the measured time. Where it pays, `charm` keeps what its forward received for its backward (`save`);
ring keeps nothing.

{summary}

{predictions}
## Ring by hand

The same transfers as ring, written as a plain loop over `isend`, `irecv` and `wait`
(`tests/support/plain_ring.py`), on the same networks.

{by_hand}

## Every strategy

{every}

What `auto` chooses, beside the bound of the calibrated machine (of plans that move keys and values
where it moves just these, else of any schedule) and beside the fastest of the other strategies, all
measured. `auto` decides by the model as it is used for NCCL, without the cost of the host.

{auto}

## Shipped machines

All rates of a shipped machine times one factor; communication alone (kernels and the latencies of
the file count as nothing), and nothing kept resident, as with ring. Medians of {repeat}, of ring
one run. The cap is how much faster than ring a plan that moves keys and values can
be by the file: the simulated ring, which is its closed form, over the class bound.

{shares}

A share above 100 % means that ring itself was slower than in the model: here two transfers between
the same two devices share one flow cap, in the model each has its own. Machines without a row
have not been run.
"""


NOTHING = "Not run yet."


class ByHand(NamedTuple):
    """The ring by hand beside ours: medians, seconds."""

    machine: str
    direction: str
    by_hand: float
    ours: float


class Share(NamedTuple):
    """Measured speedup of charm over ring, and what is possible."""

    machine: str
    ranks: int
    scale: float
    piece: int
    direction: str
    ring: float
    charm: float
    error: float
    cap: float

    @property
    def speedup(self) -> float:
        """Ring over charm, both measured."""
        return self.ring / self.charm


def summary(found: Sequence[Experiment]) -> str:
    """Say how far predictions are off."""
    trials = [trial for each in found for trial in each.trials]
    bound = [t for t in trials if t.result.timeline.compute_s <= t.result.timeline.makespan / 2]
    if not bound:
        return "No run that communication limits has been measured."
    return (
        f"Of {len(trials)} runs {len(bound)} are limited by communication (computation takes at "
        f"most half of the predicted time).\nOver these {_errors(bound)}."
    )


def _errors(trials: Sequence[Trial]) -> str:
    errors = [abs(trial.error) for trial in trials]
    return (
        f"the mean absolute error of the predicted time is **{statistics.mean(errors):.1%}**, "
        f"the worst **{max(errors):.1%}**"
    )


def auto_table(found: Sequence[Experiment]) -> str:
    """Compare auto with its bound, and with the fastest of the others."""
    head = (
        "machine", "pass", "auto", "measured", "bound", "measured / bound", "fastest other",
        "measured", "auto / other",
    )  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for each in found:
        for auto in (trial for trial in each.trials if trial.result.strategy == "auto"):
            result = auto.result
            limit = result.class_bound or result.bound
            other = min(
                (
                    trial for trial in each.trials
                    if trial.result.direction == result.direction
                    and trial.result.strategy != "auto"
                ),
                key=lambda trial: trial.measured,
            )  # fmt: skip
            lines.append(
                f"| {each.topology.name} | {result.direction} | {result.plan.strategy} | "
                f"{auto.measured:.3f} s | {limit.seconds:.3f} s | "
                f"{auto.measured / limit.seconds:.2f} | {other.result.strategy} | "
                f"{other.measured:.3f} s | {auto.measured / other.measured:.2f} |"
            )
    return "\n".join(lines)


def hand_table(rows: Sequence[ByHand]) -> str:
    """Compare our executor's ring with the one by hand."""
    lines = ["| machine | pass | by hand | ours | ours / by hand |", "| --- " * 5 + "|"]
    lines += [
        f"| {row.machine} | {row.direction} | {row.by_hand:.3f} s | {row.ours:.3f} s | "
        f"{row.ours / row.by_hand:.3f} |"
        for row in rows
    ]
    return "\n".join(lines)


def share_table(rows: Sequence[Share]) -> str:
    """Compare measured speedups with the caps."""
    head = (
        "machine", "ranks", "rates times", "KV per rank", "pass", "ring", "charm", "error",
        "measured speedup", "cap", "share of the cap",
    )  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    lines += [
        f"| {row.machine} | {row.ranks} | {row.scale:.2g} | "
        f"{row.piece / 2**20:g} MiB | {row.direction} | {row.ring:.3f} s | "
        f"{row.charm:.3f} s | {row.error:+.1%} | {row.speedup:.2f}x | {row.cap:.2f}x | "
        f"{row.speedup / row.cap:.0%} |"
        for row in rows
    ]
    return "\n".join(lines)


def page(
    found: Sequence[Experiment],
    by_hand: Sequence[ByHand],
    every: Sequence[Experiment],
    shares: Sequence[Share],
    *,
    repeat: int,
) -> str:
    """Write it all down."""
    cpu = platform.processor() or platform.machine()
    return PAGE.format(
        where=f"{date.today()}, {cpu}, {os.cpu_count()} cores, Python {platform.python_version()}.",
        repeat=repeat,
        summary=summary(found),
        predictions=markdown(found),
        every=markdown(every) if every else NOTHING,
        auto=auto_table(every) if every else NOTHING,
        by_hand=hand_table(by_hand),
        shares=share_table(shares),
    )
