"""Topology-aware schedules for distributed long-context attention.

A plan says what every rank sends and computes. It is verified on sets, simulated on a topology and
executed on tensors, always from the same object:

    topology = load_topology("dual_node_nvlink")
    workload = Workload(seq_len=131072, heads=32, kv_heads=8, head_dim=128)
    forward = plan(topology, workload, strategy="charm", direction="forward")
    verify(forward, workload)
    print(simulate(forward, topology).makespan)

Names are imported when first used: ``import charm_sched`` itself costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would double the time this module takes
if TYPE_CHECKING:
    from charm_sched.bounds.class_bound import class_bound
    from charm_sched.bounds.schedule_bound import bound
    from charm_sched.partition import Partition
    from charm_sched.plans.builder import Builder
    from charm_sched.plans.items import Item
    from charm_sched.plans.storage import load_plan, save_plan
    from charm_sched.proof.verifier import verify
    from charm_sched.search.planning import plan, plan_all
    from charm_sched.simulator import simulate
    from charm_sched.topology.graph import load_topology
    from charm_sched.workload import Workload

__version__ = "0.1.0"

_HOMES = {
    "Builder": "plans.builder",
    "Item": "plans.items",
    "Partition": "partition",
    "Workload": "workload",
    "bound": "bounds.schedule_bound",
    "class_bound": "bounds.class_bound",
    "load_plan": "plans.storage",
    "load_topology": "topology.graph",
    "plan": "search.planning",
    "plan_all": "search.planning",
    "save_plan": "plans.storage",
    "simulate": "simulator",
    "verify": "proof.verifier",
}

__all__ = [
    "Builder", "Item", "Partition", "Workload", "__version__", "bound", "class_bound", "load_plan",
    "load_topology", "plan", "plan_all", "save_plan", "simulate", "verify",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
