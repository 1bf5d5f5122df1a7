"""The testbed: a topology becomes a real, rate-shaped network of namespaces on this machine.

Needs Linux, root and iproute2 (`charm_sched.testbed.requirements.missing` says what is absent).
What is modelled, and how, is written in docs/testbed.md.
"""

from charm_sched.testbed.blueprint import Blueprint, blueprint
from charm_sched.testbed.commands import TestbedError, join_namespace
from charm_sched.testbed.network import Testbed, sweep_leftovers
from charm_sched.testbed.requirements import missing

__all__ = [
    "Blueprint",
    "Testbed",
    "TestbedError",
    "blueprint",
    "join_namespace",
    "missing",
    "sweep_leftovers",
]
