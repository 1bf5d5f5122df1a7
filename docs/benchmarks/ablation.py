"""Predict CHARM+ with each of its ideas switched off; print a Markdown table.

Run from a checkout: python docs/benchmarks/ablation.py
"""

import sys

from charm_sched import Workload, load_topology, plan_all
from charm_sched.plans import DIRECTIONS

MACHINES = ("dual_node_nvlink", "dual_numa_pcie")
LENGTHS = (8 * 1024, 32 * 1024, 128 * 1024)
SWITCHES = {
    "CHARM+": {"remerge": True},
    "no levels": {"remerge": True, "levels": False},
    "no decoupling": {"remerge": True, "decouple": False},
    "no re-merge": {"remerge": False},
}


def main() -> None:
    """Print the table."""
    out = sys.stdout.write
    out(f"| machine | tokens | mask | pass | {' | '.join(SWITCHES)} | ring |\n")
    out("|---" * (5 + len(SWITCHES)) + "|\n")
    for name in MACHINES:
        topology = load_topology(name)
        for seq_len in LENGTHS:
            for mask in ("full", "causal"):
                work = Workload(seq_len=seq_len, heads=32, kv_heads=32, head_dim=128, mask=mask)
                rows: dict[str, list[str]] = {direction: [] for direction in DIRECTIONS}
                for params in SWITCHES.values():
                    compared = plan_all(topology, work, strategies=("charm",), params=params)
                    for result in compared.results:
                        rows[result.direction].append(f"{1e3 * result.timeline.makespan:.2f} ms")
                for result in plan_all(topology, work, strategies=("ring",)).results:
                    rows[result.direction].append(f"{1e3 * result.timeline.makespan:.2f} ms")
                for direction, cells in rows.items():
                    case = f"{name} | {seq_len // 1024}K | {mask} | {direction}"
                    out(f"| {case} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
