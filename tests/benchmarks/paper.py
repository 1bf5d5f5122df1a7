"""The comparison of arXiv:2611.05906 on the shipped dual machines; writes docs/benchmarks/paper.md.

The abstract states averages of CHARM+ over Ring-Attention: 1.3x forward and 1.7x backward on a
dual-NUMA PCIe machine, 2.8x and 2.9x on two NVLink nodes. It states no lengths, heads or rates, so
all cases below were fixed beforehand, and all are reported. Run from a checkout (half an hour):

    python -m tests.benchmarks.paper
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from charm_sched import Workload, load_topology, plan_all
from charm_sched.planners import PLANNERS
from charm_sched.plans import DIRECTIONS
from charm_sched.topology import Topology

FOLDER = Path(__file__).parent.parent.parent / "docs" / "benchmarks"
NUMA = ("dual_numa_pcie", "dual_numa_pcie_gen5")
NODES = ("dual_node_nvlink", "dual_node_nvlink_4nic", "dual_node_h800")
LENGTHS = tuple(1024 * k for k in (8, 16, 32, 64, 128, 256))
KV_HEADS = (32, 8)  # of 32 query heads of 128, bf16
MASKS = ("full", "causal")
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "charm": {},
    "without levels": {"levels": False},
    "without decoupling": {"decouple": False},
    "without re-merge": {"remerge": False},
}
ABLATED = ("dual_numa_pcie", "dual_node_nvlink")
# What a result may hang on, one factor at a time, for multi-head attention and a full mask.
SENSITIVITY: Mapping[str, tuple[float, float]] = {  # factor on cross links, factor on kernels
    "as shipped": (1.0, 1.0),
    "half the cross links": (0.5, 1.0),
    "twice the cross links": (2.0, 1.0),
    "half the kernel rate": (1.0, 0.5),
    "twice the kernel rate": (1.0, 2.0),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One machine and workload in one direction.

    Attributes:
        times: Predicted seconds per strategy; those that refused are left out.
        auto: The strategy that was chosen.
        bound: Seconds, for any schedule.
        class_bound: Seconds, for plans that move keys and values, with charm's partition.
        assumptions: What the times rest on.
    """

    machine: str
    seq_len: int
    kv_heads: int
    mask: str
    direction: str
    times: Mapping[str, float]
    auto: str
    bound: float
    class_bound: float
    assumptions: tuple[str, ...]


def workload(seq_len: int, kv_heads: int, mask: str) -> Workload:
    """Give the workload of a case."""
    return Workload(
        seq_len=seq_len, heads=32, kv_heads=kv_heads, head_dim=128, dtype="bf16", mask=mask
    )


def compare(machine: str, seq_len: int, kv_heads: int, mask: str) -> list[Case]:
    """Plan all strategies in both directions."""
    work = workload(seq_len, kv_heads, mask)
    found = plan_all(load_topology(machine), work, strategies=tuple(PLANNERS))
    cases = []
    for direction in DIRECTIONS:
        rows = {r.strategy: r for r in found.results if r.direction == direction}
        charm = rows["charm"]
        assert charm.bound is not None
        assert charm.class_bound is not None
        chosen = found.chosen[direction]
        times = {name: row.timeline.makespan for name, row in rows.items()}
        cases.append(
            Case(
                machine=machine, seq_len=seq_len, kv_heads=kv_heads, mask=mask,
                direction=direction,
                times={**times, "auto": chosen.timeline.makespan}, auto=chosen.strategy,
                bound=charm.bound.seconds, class_bound=charm.class_bound.seconds,
                assumptions=found.assumptions,
            )
        )  # fmt: skip
    return cases


def ablate(machine: str, seq_len: int, mask: str) -> list[tuple[str, int, str, str, list[float]]]:
    """Plan charm with each of its ideas switched off."""
    work = workload(seq_len, 32, mask)
    times: dict[str, list[float]] = {direction: [] for direction in DIRECTIONS}
    for params in ABLATIONS.values():
        compared = plan_all(load_topology(machine), work, strategies=("charm",), params=params)
        for result in compared.results:
            times[result.direction].append(result.timeline.makespan)
    return [(machine, seq_len, mask, direction, row) for direction, row in times.items()]


def vary(machine: str, name: str, seq_len: int) -> list[tuple[str, str, int, str, float]]:
    """Give charm's speedup over ring on a machine with one thing changed."""
    cross, kernels = SENSITIVITY[name]
    topology = changed(load_topology(machine), cross=cross, kernels=kernels)
    found = plan_all(topology, workload(seq_len, 32, "full"), strategies=("ring", "charm"))
    return [
        (machine, name, seq_len, result.direction, result.speedup_vs_ring or 0.0)
        for result in found.results
        if result.strategy == "charm"
    ]


def changed(topology: Topology, *, cross: float, kernels: float) -> Topology:
    """Give a machine whose links between domains, or whose kernels, are faster or slower."""
    kinds = {"upi", "network"} & {link.kind for link in topology.links}
    assert kinds
    links = tuple(
        replace(
            link, bandwidth=link.bandwidth * cross,
            flow_cap=None if link.flow_cap is None else link.flow_cap * cross,
        )
        if link.kind in kinds else link
        for link in topology.links
    )  # fmt: skip
    capacities = tuple(
        replace(c, bandwidth=c.bandwidth * cross) if c.kind in kinds else c
        for c in topology.capacities
    )
    devices = tuple(
        replace(
            device,
            compute=replace(
                device.compute,
                peak={dtype: peak * kernels for dtype, peak in device.compute.peak.items()},
                rates=tuple(
                    replace(rate, flops_per_second=rate.flops_per_second * kernels)
                    for rate in device.compute.rates
                ),
            ),
        )
        for device in topology.devices
    )
    return replace(topology, links=links, capacities=capacities, devices=devices)


def main() -> None:
    """Run everything on all cores and write the page."""
    from tests.benchmarks.paper_page import page

    with ProcessPoolExecutor() as pool:
        grid = list(itertools.product(NUMA + NODES, LENGTHS, KV_HEADS, MASKS))
        waiting = [pool.submit(compare, *case) for case in grid]
        ablating = [
            pool.submit(ablate, *case) for case in itertools.product(ABLATED, LENGTHS, MASKS)
        ]
        varying = [
            pool.submit(vary, *case) for case in itertools.product(ABLATED, SENSITIVITY, LENGTHS)
        ]
        cases: list[Case] = []
        for case, future in zip(grid, waiting, strict=True):
            cases += future.result()
            sys.stderr.write(f"{len(cases) // 2}/{len(grid)} {case}\n")
        ablations = [row for future in ablating for row in future.result()]
        variations = [row for future in varying for row in future.result()]
    (FOLDER / "paper.md").write_text(page(cases, ablations, variations))


if __name__ == "__main__":
    main()
