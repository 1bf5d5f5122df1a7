"""What an adapter binds the attention of a model to."""

from __future__ import annotations

from dataclasses import dataclass

from charm_sched.plans.plan import Plan, Schedule
from charm_sched.runtime.groups import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What the attention modules of a model compute with.

    Attributes:
        plan: A schedule, or a forward plan.
        group: The ranks of the plan; None means what the adapter takes by default.
        backend: See `charm_sched.runtime.attention`; so is ``timeout``.
        timeout: Seconds.
    """

    plan: Schedule | Plan
    group: Group
    backend: str | None
    timeout: float


__all__ = ["Binding"]
