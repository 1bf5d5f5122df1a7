"""Random networks and sets of flows, beside SimGrid where it is installed.

Debian has it as ``python3-simgrid``, for the system's interpreter. Its model is CM02 without TCP's
window, cross traffic and factors, and all routes have one latency; its sizes are whole bytes.
"""

from __future__ import annotations

import functools
import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from charm_sched.plans.plan import TRANSFER, Plan
from charm_sched.simulator import simulate
from charm_sched.topology.graph import Topology

Machine = Callable[..., Topology]
Moves = Callable[..., Plan]
SCRIPT = Path(__file__).parents[1] / "support" / "simgrid_flows.py"
LATENCY = 1e-6


@functools.cache
def simgrid() -> str | None:
    """Find an interpreter that has SimGrid."""
    for name in ("/usr/bin/python3", shutil.which("python3")):
        if name and Path(name).exists():
            done = subprocess.run([name, "-c", "import simgrid"], capture_output=True, check=False)
            if done.returncode == 0:
                return name
    return None


def ends_in_simgrid(plan: Plan) -> list[float]:
    """Run the transfers of a plan in SimGrid, without their latencies."""
    interpreter, topology, columns = simgrid(), plan.topology, plan.columns
    assert interpreter
    assert topology
    assert (columns.op == TRANSFER).all()
    links = [capacity.bandwidth for capacity in topology.capacities]
    flows: list[dict[str, Any]] = []
    for row in range(len(plan)):
        route = topology.route(*(plan.devices[end[row]] for end in (columns.rank, columns.peer)))
        crossed = list(route.capacities)
        if route.flow_cap < float("inf"):
            crossed.append(len(links))  # a link of its own
            links.append(route.flow_cap)
        flows.append({"route": crossed, "size": int(plan.op_bytes[row])})
    done = subprocess.run(
        [interpreter, str(SCRIPT)],
        input=json.dumps({"links": links, "flows": flows, "latency": LATENCY}),
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return [end - LATENCY for end in json.loads(done.stdout)["ends"]]


def random_machine(draw: random.Random, machine: Machine) -> Topology:
    """Devices on switches in a tree with a few more links; some half duplex, some with a cap."""
    devices, switches = draw.randint(3, 10), [f"s{i}" for i in range(draw.randint(1, 4))]
    links = [(f"d{i}", draw.choice(switches), values(draw)) for i in range(devices)]
    for i, name in enumerate(switches[1:]):
        links.append((name, draw.choice(switches[: i + 1]), values(draw)))
    links += [
        (f"d{draw.randrange(devices)}", draw.choice(switches), values(draw))
        for _ in range(draw.randint(0, 3))
    ]
    return machine(devices, links, switches=switches)


def values(draw: random.Random) -> dict[str, object]:
    width = draw.uniform(0.5, 20)
    found: dict[str, object] = {"bandwidth": f"{width!r} GB/s", "shared": draw.random() < 0.2}
    if draw.random() < 0.2:
        found["flow_cap"] = f"{width * draw.uniform(0.2, 0.9)!r} GB/s"
    return found


@pytest.mark.skipif(simgrid() is None, reason="needs SimGrid: apt-get install python3-simgrid")
@pytest.mark.parametrize("seed", range(24))
def test_random_flows(seed: int, machine: Machine, moves: Moves) -> None:
    draw = random.Random(seed)
    topology = random_machine(draw, machine)
    count = len(topology.devices)
    pairs = [draw.sample(range(count), 2) for _ in range(draw.randint(5, 60))]
    sizes = [2 * draw.randint(10**5, 10**7) for _ in pairs]
    if seed % 3 == 0:
        sizes = [sizes[0]] * len(pairs)  # alike: many end at once
    plan = moves(
        topology, [(src, dst, size) for (src, dst), size in zip(pairs, sizes, strict=True)]
    )
    expected = ends_in_simgrid(plan)
    assert simulate(plan).end.tolist() == pytest.approx(expected, rel=1e-6)
