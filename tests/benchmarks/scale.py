"""Measure planning, proving and simulating by size, and write docs/benchmarks/scale.md.

Run from a checkout, on a quiet machine, for about ten minutes:

    PYTHONPATH=.:tests python tests/benchmarks/scale.py

Every case runs in a process of its own, whose peak memory is read at its end. Seconds are those of
the processor. SimGrid runs beside it where ``python3-simgrid`` is installed.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from charm_sched.plans.plan import Plan
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload

ROOT = Path(__file__).parents[2]
TOKENS = 2048  # per device
SPREAD, SEED = 0.1, 0
SIMGRID = "/usr/bin/python3"

Document = dict[str, Any]


def machine(name: str) -> Topology:
    """Give a machine: a shipped name, or ``rails:PODS:NODES`` cut out of the shipped rails."""
    from charm_sched.topology.file import parse_topology
    from charm_sched.topology.graph import load_topology

    if not name.startswith("rails:"):
        return load_topology(name)
    pods, nodes = (int(part) for part in name.split(":")[1:])
    text = (ROOT / "topologies" / "cluster_8192_rails.yaml").read_text()
    for part, count in (("node0..63", nodes), ("pod0..15", pods), ("spine0..63", nodes)):
        text = text.replace(part, f"{part.split('0')[0]}0..{count - 1}")
    return parse_topology(text, where=name)


def irregular(topology: Topology) -> Topology:
    """Change the bandwidth of every link, each way, by up to `SPREAD`; ports take them all."""
    draw = random.Random(SEED)
    factor = [draw.uniform(1 - SPREAD, 1 + SPREAD) for _ in topology.capacities]
    links = tuple(
        replace(link, bandwidth=link.bandwidth * factor[topology.link_capacity[link.index]])
        for link in topology.links
    )
    widths = [c.bandwidth * f for c, f in zip(topology.capacities, factor, strict=True)]
    index = {name: i for i, name in enumerate(topology.device_names)}
    ports = len(widths) - 2 * len(index)
    widths[ports:] = [0.0] * (2 * len(index))
    for link in links:
        for way, end in enumerate((link.src, link.dst)):
            if end in index:
                widths[ports + 2 * index[end] + way] += link.bandwidth
    capacities = zip(topology.capacities, widths, strict=True)
    changed = tuple(replace(c, bandwidth=width) for c, width in capacities)
    return replace(topology, links=links, capacities=changed)


def workload(topology: Topology) -> Workload:
    """Give the workload of all cases: llama3-8b under a full mask, so many tokens per device."""
    from charm_sched.workload import Workload

    tokens = TOKENS * len(topology.devices)
    return Workload(seq_len=tokens, heads=32, kv_heads=8, head_dim=128, mask="full")


class Laps:
    """Processor seconds of the steps of a case."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Take the time of a block."""
        start = time.process_time()
        yield
        self.seconds[name] = time.process_time() - start


def build_plan(topology: Topology, strategy: str, *, folded: bool) -> Plan:
    """Plan one forward, explicitly or by symmetry."""
    from charm_sched.partition import Partition
    from charm_sched.planners import PLANNERS
    from charm_sched.plans.builder import Builder
    from charm_sched.search.symmetric import FOLDED, symmetry_of

    work, devices = workload(topology), topology.device_names
    shards = Partition.contiguous(work.seq_len, len(devices))
    symmetry = symmetry_of(topology, devices, strategy) if folded else None
    b = Builder(work, shards, topology=topology, devices=devices, symmetry=symmetry)
    if folded:
        FOLDED[strategy](b)
    else:
        PLANNERS[strategy](b, **({"remerge": False} if strategy == "charm" else {}))
    return b.build(strategy)


def plan_case(name: str, strategy: str, kind: str) -> Document:
    """Plan, prove and simulate one forward; ``kind`` is explicit, irregular or folded."""
    from charm_sched.proof.verifier import verify
    from charm_sched.simulator import simulate

    lap = Laps()
    with lap("load"):
        topology = machine(name)
        if kind == "irregular":
            topology = irregular(topology)
        topology.domains()
    with lap("plan"):
        plan = build_plan(topology, strategy, folded=kind == "folded")
    with lap("verify"):
        verified = verify(plan)
        edges = verified.hazards.edges
        del verified
    with lap("simulate"):
        line = simulate(plan, topology, edges=edges)
    return {
        "machine": name, "devices": plan.num_ranks, "strategy": strategy, "kind": kind,
        "rows": len(plan), "ops": len(plan) * plan.copies, "makespan": line.makespan,
        "seconds": lap.seconds, "memory": memory(),
    }  # fmt: skip


def star_case(hosts: int) -> Document:
    """Simulate an equal all-to-all of 1 MiB on a star of hosts, here and in SimGrid."""
    from charm_sched.simulator import simulate

    topology, plan = star(hosts)
    lap = Laps()
    with lap("first"):
        line = simulate(plan, topology)
    with lap("again"):
        simulate(plan, topology)
    links = [c.bandwidth for c in topology.capacities]
    names, flows = topology.device_names, []
    for src, dst in zip(plan.columns.rank, plan.columns.peer, strict=True):
        ends = [names[src], names[dst]]
        flows.append({"route": list(topology.route(*ends).capacities), "size": 2**20, "ends": ends})
    other = simgrid({"links": links, "flows": flows, "latency": 1e-6})
    return {
        "hosts": hosts, "flows": len(plan), "makespan": line.makespan, "seconds": lap.seconds,
        "memory": memory(), "simgrid": other,
    }  # fmt: skip


def star(hosts: int) -> tuple[Topology, Plan]:
    """Give hosts with 50 GiB/s to a switch, and a transfer for each pair of them."""
    from charm_sched.partition import Partition
    from charm_sched.plans.builder import Builder
    from charm_sched.topology.graph import Topology
    from charm_sched.workload import Workload

    card = {"peak": {"bf16": "1 TFLOP/s"}, "efficiency": 1.0, "overhead": "0 s"}
    wire = {"kind": "wire", "bandwidth": "50 GiB/s", "latency": "500 ns"}
    topology = Topology.from_document(
        {
            "schema": "charm-sched/topology",
            "version": 1,
            "name": "star",
            "profiles": {"card": card | {"memory_bandwidth": "1 TB/s"}},
            "devices": [{"name": f"d0..{hosts - 1}", "profile": "card"}],
            "switches": [{"name": "hub", "kind": "switch"}],
            "links": [{"from": f"d0..{hosts - 1}", "to": "hub"} | wire],
        }
    )
    work = Workload(seq_len=hosts, heads=1, head_dim=2**18, mask="full")
    shards = Partition.contiguous(hosts, hosts)
    b = Builder(work, shards, topology=topology, devices=topology.device_names)
    r, kv = b.ranks, b.shards("kv")
    for k in range(1, hosts):
        b.transfer(src=r, dst=(r + k) % hosts, items=kv, level=0, stream="all", slot=k)
    return topology, b.build()


def simgrid(document: Document) -> Document | None:
    """Run flows in SimGrid; None where it is not installed."""
    script = ROOT / "tests" / "support" / "simgrid_flows.py"
    try:
        done = subprocess.run(
            [SIMGRID, str(script)], input=json.dumps(document), capture_output=True, text=True,
            check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    found: Document = json.loads(done.stdout)
    return {"makespan": max(found["ends"]), "seconds": found["seconds"]}


def memory() -> float:
    """Give the peak of this process's memory, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


CASES: dict[str, Callable[..., Document]] = {"plan": plan_case, "star": star_case}


def apart(case: str, *arguments: str | int) -> Document:
    """Run a case in a process of its own."""
    sys.stderr.write(f"{case} {' '.join(map(str, arguments))}\n")
    done = subprocess.run(
        [sys.executable, __file__, json.dumps([case, *arguments])],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    found: Document = json.loads(done.stdout)
    return found


def main() -> None:
    """Run one case if it is named, or all, and write the page."""
    if sys.argv[1:]:
        case, *arguments = json.loads(sys.argv[1])
        json.dump(CASES[case](*arguments), sys.stdout)
        return
    sys.path.insert(0, str(Path(__file__).parent))
    from scale_page import write_page

    write_page(apart)


if __name__ == "__main__":
    main()
