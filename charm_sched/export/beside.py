"""What stands beside a comparison where it was asked for, in HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from charm_sched.export.markup import escape, listing, table, tag
from charm_sched.export.sections import section
from charm_sched.planners.external import short_name
from charm_sched.render.layout import LAYOUT_HEAD, layout_cells, layout_title, sharing_lines
from charm_sched.render.step import STEP_HEAD, step_rows, step_title, verdict
from charm_sched.render.what_if import compared
from charm_sched.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from charm_sched.commands.extras import Extras
    from charm_sched.commands.what_if import WhatIf
    from charm_sched.what_if.jitter import Jitter
    from charm_sched.what_if.layouts import LayoutResult
    from charm_sched.what_if.training_step import TrainingStep


def beside(extras: Extras) -> str:
    """Give the sections of what was asked for: changes, jitter, a layout, a training step."""
    found = [
        _what_if(extras.what_if) if extras.what_if and extras.what_if.changed.changes else "",
        _jitter(extras.what_if.jitter) if extras.what_if and extras.what_if.jitter else "",
        _layout(extras.layout) if extras.layout else "",
        _step(extras.step) if extras.step else "",
    ]
    return "\n".join(part for part in found if part)


def _what_if(found: WhatIf) -> str:
    first = found.cases[0]
    rows = [
        (
            case.label,
            str(case.ranks),
            *(format_seconds(case.seconds[d], digits=3) for d in first.seconds),
            format_seconds(case.total, digits=3),
            f"{first.total / case.total:.2f}x",
            ", ".join(dict.fromkeys(short_name(name) for name in case.strategies.values())),
        )
        for case in found.cases
    ]
    head = ("case", "ranks", *first.seconds, "total", "speed", "strategies")
    told = [compared(first, case) for case in found.cases[1:]]
    return section(f"What if: {'; '.join(found.changed.changes)}", table(head, rows), listing(told))


def _jitter(found: Sequence[Jitter]) -> str:
    rows = [
        (
            one.direction,
            format_seconds(one.undisturbed, digits=3),
            *(format_seconds(one.quantile(q), digits=3) for q in (0.0, 0.5, 0.9, 1.0)),
        )
        for one in found
    ]
    first = found[0]
    note = (
        f"Each device and link {100 * first.mean:g}% slower on average, "
        f"{len(first.makespans)} repetitions, seed {first.seed}."
    )
    head = ("direction", "undisturbed", "least", "median", "90%", "most")
    return section("Jitter", tag("p", escape(note)), table(head, rows))


def _layout(found: LayoutResult) -> str:
    rows = [
        (
            short_name(case.strategy) + (" (chosen)" if case in found.chosen else ""),
            *layout_cells(case),
        )
        for case in found.cases
    ]
    sharing = listing(sharing_lines(found))
    return section(layout_title(found), table(LAYOUT_HEAD, rows, left=2), sharing)


def _step(step: TrainingStep) -> str:
    assumed = [f"Assumed: {text}." for text in step.assumptions]
    return section(
        step_title(step),
        table(STEP_HEAD, step_rows(step)),
        tag("p", escape(verdict(step))),
        listing(assumed),
    )


__all__ = ["beside"]
