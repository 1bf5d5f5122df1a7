"""What stands beside a comparison where it was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from charm_sched.commands.what_if import WhatIf
    from charm_sched.what_if.explain import Explanation
    from charm_sched.what_if.layouts import LayoutResult
    from charm_sched.what_if.sweep_values import Sweep
    from charm_sched.what_if.training_step import TrainingStep


@dataclass(frozen=True, eq=False, kw_only=True)
class Extras:
    """Further answers about one machine and workload.

    Attributes:
        explanations: Why the chosen plans take as long as they do, per direction.
        what_if: What changes of the machine do; None where nothing was changed.
        layout: All attention groups of a parallel layout; None where none was given.
        step: A whole training step; None where that was not asked for.
        sweep: What other values of one number do; None where that was not asked for.
    """

    explanations: Mapping[str, Explanation] = field(default_factory=dict)
    what_if: WhatIf | None = None
    sweep: Sweep | None = None
    step: TrainingStep | None = None
    layout: LayoutResult | None = None

    def without_levers(self) -> Extras:
        """Leave out what a better machine would gain."""
        told = {key: replace(one, levers=None) for key, one in self.explanations.items()}
        return replace(self, explanations=told)


__all__ = ["Extras"]
