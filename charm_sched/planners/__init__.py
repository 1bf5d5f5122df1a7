"""Strategies: one algorithm per file, one function each, listed in `PLANNERS`.

A planner writes to a `Builder` and takes its parameters by keyword. To add one, write its file and
its line here; proof, simulation, trace and execution follow.
"""

from __future__ import annotations

from collections.abc import Callable

from charm_sched.planners.charm import charm
from charm_sched.planners.ring import ring

PLANNERS: dict[str, Callable[..., None]] = {
    "ring": ring,
    "charm": charm,
}
