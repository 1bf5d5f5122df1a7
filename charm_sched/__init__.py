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
    from charm_sched.builder import Builder
    from charm_sched.class_bounds import class_bound
    from charm_sched.items import Item
    from charm_sched.partition import Partition
    from charm_sched.schedule_bounds import bound
    from charm_sched.search import plan, plan_all
    from charm_sched.simulator import simulate
    from charm_sched.storage import load_plan, save_plan
    from charm_sched.topology import load_topology
    from charm_sched.verifier import verify
    from charm_sched.workload import Workload

__version__ = "0.1.0"

_HOMES = {
    "Builder": "builder",
    "Item": "items",
    "Partition": "partition",
    "Workload": "workload",
    "bound": "schedule_bounds",
    "class_bound": "class_bounds",
    "load_plan": "storage",
    "load_topology": "topology",
    "plan": "search",
    "plan_all": "search",
    "save_plan": "storage",
    "simulate": "simulator",
    "verify": "verifier",
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
