"""Predict and run plans on four machines as real networks; write docs/benchmarks/testbed.md.

Run from a checkout, as root, on a machine that does nothing else (about twenty minutes):

    python docs/benchmarks/testbed.py
"""

import platform
import statistics
import sys
from datetime import date
from pathlib import Path

from charm_sched import Workload, load_topology
from charm_sched.experiment import Experiment, experiment, laboratory, probe
from charm_sched.render_lab import markdown
from charm_sched.scaling import scaled

HERE = Path(__file__).parent
MACHINES = ("lab_dual_numa", "lab_one_uplink", "lab_nic_each", "lab_four_nodes")
SLOWER = ("lab_dual_numa", 0.5)  # once more at half of all rates, where two cores keep up
# 256 rows of 8 and of 32 heads of 128 in bf16: 1 and 4 MiB of keys and values per rank.
HEADS = (8, 32)
ROWS, REPEAT = 256, 5


def say(text: str) -> None:
    """Tell how far it is."""
    sys.stderr.write(f"{text}\n")


def run(name: str, heads: tuple[int, ...], repeat: int, scale: float = 1.0) -> list[Experiment]:
    """Run one machine with all its workloads."""
    topology = load_topology(HERE / "machines" / f"{name}.yaml")
    devices = topology.device_names
    with laboratory(topology, devices, scale, timeout=60) as (_, lab):
        calibration = probe(lab, scaled(topology, scale))
        return [
            experiment(
                lab, topology,
                Workload(seq_len=ROWS * len(devices), heads=count, kv_heads=count, mask="full"),
                calibration, scale=scale, strategies=("ring", "charm"),
                directions=("forward", "backward"), repeat=repeat, timeout=60, paced=True,
                say=lambda text: say(f"{name}: {text}"),
            )
            for count in heads
        ]  # fmt: skip


def summary(found: list[Experiment]) -> str:
    """Say how far predictions are off, with and without what computation limits."""
    trials = [trial for each in found for trial in each.trials]
    bound = [t for t in trials if t.result.timeline.compute_s <= t.result.timeline.makespan / 2]
    errors = [abs(trial.error) for trial in bound]
    return (
        f"Of {len(trials)} runs {len(bound)} are limited by communication (computation takes at "
        f"most half of the predicted time). Over these the mean absolute error of the predicted "
        f"time is **{statistics.mean(errors):.1%}**, the worst **{max(errors):.1%}**."
    )


def main() -> None:
    """Run everything and write the page."""
    found = [each for name in MACHINES for each in run(name, HEADS, REPEAT)]
    slower = run(SLOWER[0], HEADS, REPEAT, SLOWER[1])
    page = HERE / "testbed.md"
    page.write_text(
        "# Predictions against real transfers\n\n"
        f"{date.today()}, {platform.processor() or platform.machine()}, Python "
        f"{platform.python_version()}. Written by `python docs/benchmarks/testbed.py`: eight "
        "ranks, gloo over a shaped\nnetwork on one machine with two cores, kernels paced; medians "
        f"of {REPEAT}. The model is calibrated with\nthe probe's transfers alone. How it works: "
        "[testbed](../testbed.md).\n\n"
        f"{summary(found)}\n\n{markdown(found)}\n"
        f"## {SLOWER[0]} once more, at {SLOWER[1]} of all rates\n\n"
        f"{summary(slower)}\n\n{markdown(slower)}"
    )


if __name__ == "__main__":
    main()
