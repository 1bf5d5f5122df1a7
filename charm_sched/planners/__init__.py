"""Strategies: one algorithm per file, one function each, listed in `PLANNERS`.

A planner writes to a `Builder` and takes its parameters by keyword. To add one, write its file and
its line here; proof, simulation, trace and execution follow.
"""

from __future__ import annotations

from collections.abc import Callable

from charm_sched.planners.all_gather import all_gather
from charm_sched.planners.charm import charm
from charm_sched.planners.domain_mesh import domain_mesh
from charm_sched.planners.double_ring import double_ring
from charm_sched.planners.mesh import mesh
from charm_sched.planners.pass_q import pass_q
from charm_sched.planners.reverse_ring import reverse_ring
from charm_sched.planners.ring import ring
from charm_sched.planners.tasp import tasp
from charm_sched.planners.ulysses import ulysses
from charm_sched.planners.usp import usp

PLANNERS: dict[str, Callable[..., None]] = {
    "ring": ring,
    "reverse_ring": reverse_ring,
    "double_ring": double_ring,
    "all_gather": all_gather,
    "tasp": tasp,
    "ulysses": ulysses,
    "usp": usp,
    "mesh": mesh,
    "pass_q": pass_q,
    "domain_mesh": domain_mesh,
    "charm": charm,
}
