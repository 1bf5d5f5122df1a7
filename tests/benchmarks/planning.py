"""Measure building and proving plans, and the automatic planner; print Markdown tables.

Run from a checkout: python -m tests.benchmarks.planning [auto | many NODES]
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from charm_sched import Workload
from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.planners.strategies import build
from charm_sched.proof.verifier import verify
from charm_sched.topology.graph import load_topology, shipped_names

ROOT = Path(__file__).parents[2]
COMMAND = "import sys; from charm_sched.cli import plan_main; sys.exit(plan_main(sys.argv[1:]))"
RANKS = (16, 64, 256, 1024)


def best(ranks: int, strategy: str, direction: str) -> tuple[int, float, float]:
    """Give operations, and the least seconds of building and of proving."""
    params: Mapping[str, object] = {}
    if strategy == "charm":
        params = {"domains": [list(range(i, i + 8)) for i in range(0, ranks, 8)]}
    work = Workload(seq_len=8 * ranks, mask="full")
    shards = Partition.zigzag(work.seq_len, ranks)
    times = []
    for _ in range(5 if ranks < 1024 else 2):
        start = time.perf_counter()
        plan = build(PLANNERS[strategy], strategy, work, shards, direction=direction, params=params)
        middle = time.perf_counter()
        verify(plan)
        times.append((middle - start, time.perf_counter() - middle))
    return len(plan), min(t[0] for t in times), min(t[1] for t in times)


def auto() -> None:
    """Print how long ``charm-plan TOPOLOGY`` takes, with its sweep of lengths."""
    out = sys.stdout.write
    out("| machine | devices | wall | processor |\n|---|---|---|---|\n")
    with tempfile.TemporaryDirectory() as folder:
        four = (ROOT / "topologies" / "four_node_nvlink.yaml").read_text()
        eight = Path(folder) / "eight_node_nvlink.yaml"
        name = four.replace("name: four_node_nvlink", "name: eight_node_nvlink")
        eight.write_text(name.replace("node0..3", "node0..7"))
        for machine in (*shipped_names(), str(eight)):
            start, before = time.perf_counter(), os.times()
            subprocess.run(
                [sys.executable, "-c", COMMAND, machine, "-o", f"{folder}/plan.npz"],
                check=True, cwd=ROOT, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            wall, after = time.perf_counter() - start, os.times()
            used = after.children_user + after.children_system
            used -= before.children_user + before.children_system
            devices = len(load_topology(machine).devices)
            out(f"| {Path(machine).stem} | {devices} | {wall:.1f} s | {used:.1f} s |\n")


def many(nodes: int) -> None:
    """Print what ``auto`` chooses for 1M tokens on many nodes: `dual_node_h800` with more."""
    from charm_sched.bounds.limits import Limits
    from charm_sched.search.planning import plan_all

    out, start = sys.stdout.write, time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        two = (ROOT / "topologies" / "dual_node_h800.yaml").read_text()
        path = Path(folder) / "nodes.yaml"
        path.write_text(two.replace("node0..1", f"node0..{nodes - 1}"))
        topology = load_topology(str(path))
    work = Workload(seq_len=2**20, heads=32, kv_heads=32, head_dim=128, mask="full")
    found = plan_all(topology, work, strategies=("auto",))
    seconds = time.perf_counter() - start
    limits = Limits(topology, work, topology.device_names)
    shards = Partition.contiguous(work.seq_len, len(topology.devices))
    for direction, chosen in found.chosen.items():
        keys = ("kv",) if direction == "forward" else ("kv", "dkv")
        once = work.seq_len * work.num_kv_heads * sum(work.row_bytes(kind) for kind in keys)
        moved, least = chosen.timeline.tier_bytes["network"], (nodes - 1) * once
        *_, floor = limits.floors(direction, shards, keys=True)
        out(
            f"| {nodes} x 8 | {direction} | {chosen.strategy} | {moved / 1e9:.1f} GB | "
            f"{least / 1e9:.1f} GB | {least / moved:.1f} | {chosen.timeline.makespan * 1e3:.2f} ms "
            f"| {floor * 1e3:.2f} ms |\n"
        )
    out(f"Planned and proved in {seconds:.0f} s.\n")


def main() -> None:
    """Print the tables."""
    if sys.argv[1:2] == ["many"]:
        many(int(sys.argv[2]))
        return
    if sys.argv[1:] == ["auto"]:
        auto()
        return
    out = sys.stdout.write
    out("| ranks | strategy | direction | operations | build | verify | both |\n")
    out("|---|---|---|---|---|---|---|\n")
    for ranks in RANKS:
        for strategy in ("ring", "charm"):
            for direction in ("forward", "backward"):
                ops, made, proved = best(ranks, strategy, direction)
                cells = (
                    ranks,
                    strategy,
                    direction,
                    f"{ops:,}",
                    *(
                        f"{1e3 * t:.1f} ms" if t < 1 else f"{t:.2f} s"
                        for t in (made, proved, made + proved)
                    ),
                )
                out("| " + " | ".join(map(str, cells)) + " |\n")


if __name__ == "__main__":
    main()
