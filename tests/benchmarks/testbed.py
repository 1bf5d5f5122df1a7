"""Run plans on machines as real networks, beside predictions; writes docs/benchmarks/testbed.md.

Run from a checkout, as root, on a machine that does nothing else (about half an hour):

    python -m tests.benchmarks.testbed

Names of shipped machines behind it measure just those of them.
"""

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from charm_sched import Workload, class_bound, load_topology, plan, simulate
from charm_sched.cost import op_seconds
from charm_sched.experiment import Experiment, experiment, laboratory, probe
from charm_sched.plans import ATTEND, Plan
from charm_sched.scaling import scaled, weightless
from charm_sched.testbed import Testbed
from charm_sched.testbed.capacity import Carrying, choose_scale, measure_carrying
from charm_sched.topology import Topology
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
LIKE_RING = {"save": False}  # nothing stays resident, so that both passes move what ring moves
RING_REPEAT = 1  # on shipped machines, where one run of ring takes up to a minute


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
    # 4 MiB per rank, and less where many ranks make for many hops.
    workload = work(len(devices), 256 // len(devices) if len(devices) > 8 else 32)
    scale = scale_of(topology, carrying)
    piece = ROWS * workload.num_kv_heads * workload.row_bytes("kv")
    trials = {}
    with laboratory(topology, devices, scale, timeout=TIMEOUT) as (_, lab):
        calibration = probe(lab, scaled(topology, scale))
        for strategy, repeat in (("ring", RING_REPEAT), ("charm", REPEAT)):
            found = experiment(
                lab, topology, workload, calibration, scale=scale, strategies=(strategy,),
                directions=DIRECTIONS, params=LIKE_RING if strategy == "charm" else None,
                repeat=repeat, timeout=TIMEOUT, paced=True,
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
    """Run everything and write the page."""
    carrying = measure_carrying()
    found: list[Experiment] = []
    by_hand: list[ByHand] = []
    for name in SHAPES:
        topology = load_topology(FOLDER / "machines" / f"{name}.yaml")
        more, rings = run_shape(topology, scale_of(topology, carrying))
        found, by_hand = found + more, by_hand + rings
    chosen = sys.argv[1:] or SHIPPED
    shares = [share for name in chosen for share in run_shipped(name, carrying)]
    (FOLDER / "testbed.md").write_text(page(found, by_hand, shares, repeat=REPEAT))


if __name__ == "__main__":
    main()
