"""Run plans on machines as real networks, beside predictions; writes docs/benchmarks/testbed.md.

Run from a checkout, as root, on a machine that does nothing else (an hour or more):

    python -m tests.benchmarks.testbed --keep FOLDER [MACHINE...]

A machine is one of the small shapes, the name of one with ``/all`` behind it for every strategy, or
a shipped one; by default all of these are measured. What was measured is kept in the folder, and
the page has all that is there: so it can be measured in parts.
"""

import argparse
import pickle
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from charm_sched import Workload, class_bound, load_topology, plan, simulate
from charm_sched.cost import op_seconds
from charm_sched.planners import PLANNERS
from charm_sched.plans.plan import ATTEND, Plan
from charm_sched.search.planning import AUTO
from charm_sched.testbed import Testbed
from charm_sched.testbed.capacity import Carrying, choose_scale, measure_carrying
from charm_sched.testbed.experiment import Experiment, experiment, laboratory, probe
from charm_sched.topology.graph import Topology
from charm_sched.topology.scaling import scaled, weightless
from tests.benchmarks.testbed_page import ByHand, Share, page
from tests.support import plain_ring

FOLDER = Path(__file__).parent.parent.parent / "docs" / "benchmarks"
DIRECTIONS = ("forward", "backward")
SHAPES = ("lab_dual_numa", "lab_one_uplink", "lab_nic_each", "lab_four_nodes")
SHIPPED = (
    "dual_numa_pcie", "dual_numa_pcie_gen5", "single_node_nvlink", "dual_node_nvlink",
    "dual_node_nvlink_4nic", "dual_node_h800", "four_node_nvlink",
)  # fmt: skip
# 256 rows of 8 and of 16 heads of 128 in bf16: 1 and 2 MiB of keys and values per rank.
HEADS = (8, 16)
ROWS, REPEAT, TIMEOUT = 256, 5, 120.0
# On shipped machines pieces are larger: charm cuts them, and a message costs the host the same
# whatever its size. 4 MiB per rank, 2 where ring has many hops of them, 8 where charm cuts most.
HEADS_OF = {"dual_node_nvlink_4nic": 64, "four_node_nvlink": 16}
LIKE_RING = {"save": False}  # nothing stays resident, so that both passes move what ring moves
RING_RUNS = (1, 0)  # timed and not, on shipped machines, where one run takes up to two minutes


def say(text: str) -> None:
    """Tell how far it is."""
    sys.stderr.write(f"{text}\n")


def work(ranks: int, heads: int) -> Workload:
    """Give a full mask over so many heads."""
    return Workload(seq_len=ROWS * ranks, heads=heads, kv_heads=heads, mask="full")


def scale_of(topology: Topology, carrying: Carrying) -> float:
    """Give the rates of the file, or what this machine carries of them."""
    return min(1.0, choose_scale(topology, topology.device_names, carrying=carrying))


def run_shape(topology: Topology, scale: float) -> tuple[list[Experiment], list[ByHand]]:
    """Run one of the small shapes: with both sizes of pieces, and the ring by hand."""
    devices = topology.device_names
    with laboratory(topology, devices, scale, timeout=TIMEOUT) as (bed, lab):
        calibration = probe(lab, scaled(topology, scale))
        found = [
            experiment(
                lab, topology, work(len(devices), heads), calibration, scale=scale,
                strategies=("ring", "charm"), directions=DIRECTIONS, repeat=REPEAT,
                timeout=TIMEOUT, paced=True, say=lambda text: say(f"{topology.name}: {text}"),
            )
            for heads in HEADS
        ]  # fmt: skip
        by_hand = list(_by_hand(topology, found[0], bed))
    return found, by_hand


def run_all(topology: Topology, scale: float) -> list[Experiment]:
    """Run every strategy, and what auto chooses, on one of the small shapes."""
    devices = topology.device_names
    with laboratory(topology, devices, scale, timeout=TIMEOUT) as (_, lab):
        return [
            experiment(
                lab, topology, work(len(devices), HEADS[0]), probe(lab, scaled(topology, scale)),
                scale=scale, strategies=(*PLANNERS, AUTO), directions=DIRECTIONS, repeat=REPEAT,
                timeout=TIMEOUT, paced=True, say=lambda text: say(f"{topology.name}: {text}"),
            )
        ]  # fmt: skip


def _by_hand(topology: Topology, found: Experiment, bed: Testbed) -> Iterator[ByHand]:
    slow = scaled(topology, found.scale)
    for trial in found.trials:
        made = trial.result.plan
        if trial.result.strategy != "ring":
            continue
        say(f"{topology.name}: running the ring by hand, {made.direction}")
        kernel = float(op_seconds(made, slow).seconds[made.columns.op == ATTEND].max())
        size = ROWS * made.workload.num_kv_heads * made.workload.row_bytes("kv")
        times = plain_ring.plain_ring(
            bed, topology.device_names, getattr(plain_ring, made.direction),
            size=size, kernel=kernel, repeat=REPEAT,
        )  # fmt: skip
        yield ByHand(topology.name, made.direction, statistics.median(times), trial.measured)


def run_shipped(name: str, carrying: Carrying) -> list[Share]:
    """Run a shipped machine with communication alone."""
    topology = weightless(load_topology(name))
    devices = topology.device_names
    ranks = len(devices)
    workload = work(ranks, HEADS_OF.get(name, 256 // ranks if ranks > 8 else 32))
    scale = scale_of(topology, carrying)
    piece = ROWS * workload.num_kv_heads * workload.row_bytes("kv")
    trials = {}
    with laboratory(topology, devices, scale, timeout=TIMEOUT) as (_, lab):
        calibration = probe(lab, scaled(topology, scale))
        for strategy, repeat, warm in (("ring", *RING_RUNS), ("charm", REPEAT, 1)):
            found = experiment(
                lab, topology, workload, calibration, scale=scale, strategies=(strategy,),
                directions=DIRECTIONS, params=LIKE_RING if strategy == "charm" else None,
                planned_for=topology,  # as the file states it; nothing in it has a time of its own
                repeat=repeat, warm=warm, timeout=TIMEOUT, paced=True,
                say=lambda text: say(f"{name}: {text}"),
            )  # fmt: skip
            trials.update({(strategy, trial.result.direction): trial for trial in found.trials})
    return [
        Share(
            name, len(devices), scale, piece, direction,
            trials["ring", direction].measured, trials["charm", direction].measured,
            trials["charm", direction].error, cap(topology, workload, direction),
        )
        for direction in DIRECTIONS
    ]  # fmt: skip


def cap(topology: Topology, workload: Workload, direction: str) -> float:
    """Give how much faster than ring a plan that moves KV can be, by the file alone."""
    ring = plan(topology, workload, strategy="ring", direction=direction)
    assert isinstance(ring, Plan)
    limit = class_bound(topology, workload, direction=direction, partition=ring.partition)
    return simulate(ring, topology).makespan / limit.seconds


def main() -> None:
    """Measure what is asked for, and write the page of all that was measured."""
    parser = argparse.ArgumentParser(description="Run plans on machines as real networks.")
    parser.add_argument("--keep", type=Path, required=True, help="folder of what was measured")
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help="default: all")
    args = parser.parse_args()
    every = (*SHAPES, *(f"{name}/all" for name in SHAPES), *SHIPPED)
    if unknown := set(args.machines) - set(every):
        parser.error(f"expected {', '.join(every)}, found {', '.join(unknown)}")
    args.keep.mkdir(parents=True, exist_ok=True)
    carrying = measure_carrying()
    for name in args.machines or every:
        (args.keep / _file(name)).write_bytes(pickle.dumps(measure(name, carrying)))
    shapes = kept(args.keep, SHAPES)
    (FOLDER / "testbed.md").write_text(
        page(
            [each for experiments, _ in shapes for each in experiments],
            [each for _, by_hand in shapes for each in by_hand],
            [
                each
                for found in kept(args.keep, [f"{name}/all" for name in SHAPES])
                for each in found
            ],
            [each for shares in kept(args.keep, SHIPPED) for each in shares],
            repeat=REPEAT,
        )
    )


def measure(name: str, carrying: Carrying) -> object:
    """Measure one machine."""
    if name in SHIPPED:
        return run_shipped(name, carrying)
    shape, _, all_of_them = name.partition("/")
    topology = load_topology(FOLDER / "machines" / f"{shape}.yaml")
    return (run_all if all_of_them else run_shape)(topology, scale_of(topology, carrying))


def _file(name: str) -> str:
    return f"{name.replace('/', '-')}.pickle"


def kept(folder: Path, names: Sequence[str]) -> list[Any]:
    """Give what was measured of machines, those that were."""
    files = [folder / _file(name) for name in names]
    return [pickle.loads(file.read_bytes()) for file in files if file.exists()]


if __name__ == "__main__":
    main()
