"""Our executor's ring beside one written by hand, on the same network: it must not be slower."""

from __future__ import annotations

from pathlib import Path

import pytest

from charm_sched.cost import op_seconds
from charm_sched.plans.plan import ATTEND, Plan
from charm_sched.search.planning import plan
from charm_sched.testbed import missing
from charm_sched.topology.graph import load_topology
from charm_sched.topology.scaling import scaled
from charm_sched.workload import Workload

pytest.importorskip("torch")
from support import plain_ring

from charm_sched.testbed.experiment import laboratory

REASON = missing()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]
MACHINES = Path(__file__).parent.parent.parent / "docs" / "benchmarks" / "machines"
WORK = Workload(seq_len=8 * 64, heads=8, kv_heads=8, head_dim=128, mask="full")  # 256 KiB a rank
REPEAT, SLOWER = 4, 1.03


@pytest.mark.parametrize(("name", "scale"), [("lab_dual_numa", 0.5), ("lab_nic_each", 1.0)])
def test_the_executor_is_not_slower_than_a_loop_by_hand(name: str, scale: float) -> None:
    topology = load_topology(MACHINES / f"{name}.yaml")
    devices = topology.device_names
    with laboratory(topology, devices, scale, timeout=60) as (bed, lab):
        for direction in ("forward", "backward"):
            made = plan(scaled(topology, scale), WORK, strategy="ring", direction=direction)
            assert isinstance(made, Plan)
            seconds = op_seconds(made, scaled(topology, scale)).seconds
            kernel = float(seconds[made.columns.op == ATTEND].max())
            size = WORK.seq_len // len(devices) * WORK.num_kv_heads * WORK.row_bytes("kv")
            loop = getattr(plain_ring, direction)
            by_hand = plain_ring.plain_ring(
                bed, devices, loop, size=size, kernel=kernel, repeat=REPEAT
            )
            found = lab.run(made, [seconds.tolist()], repeat=REPEAT).timelines[direction]
            ours = [line.makespan for line in found]
            assert min(ours) <= SLOWER * min(by_hand), (direction, ours, by_hand)
