"""The JSON of what stands beside a comparison: explanations, what-if, sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from charm_sched.what_if.sweep_values import words

if TYPE_CHECKING:
    from charm_sched.commands.extras import Extras
    from charm_sched.commands.what_if import Case, WhatIf
    from charm_sched.timelines.critical_path import Stretch
    from charm_sched.what_if.explain import Explanation
    from charm_sched.what_if.jitter import Jitter
    from charm_sched.what_if.layouts import LayoutResult
    from charm_sched.what_if.levers import Lever
    from charm_sched.what_if.sweep_values import Sweep
    from charm_sched.what_if.training_step import TrainingStep

Document = dict[str, Any]
MOST_STRETCHES = 1000
"""Stretches of one critical path that are listed; the longest ones."""


def extras_document(extras: Extras) -> Document:
    """Give the entries that extras add to a report."""
    return {
        "explanations": {
            direction: _explanation(found) for direction, found in extras.explanations.items()
        },
        "what_if": _what_if(extras.what_if) if extras.what_if else None,
        "jitter": _jitter(extras.what_if.jitter)
        if extras.what_if and extras.what_if.jitter
        else None,
        "sweep": _sweep(extras.sweep) if extras.sweep else None,
        "layout": _layout(extras.layout) if extras.layout else None,
        "step": _step(extras.step) if extras.step else None,
    }


def _explanation(found: Explanation) -> Document:
    path = [stretch for cause in found.causes for stretch in cause.stretches]
    longest = sorted(path, key=lambda stretch: -stretch.seconds)[:MOST_STRETCHES]
    return {
        "shares": [{"what": what, "seconds": seconds} for what, seconds in found.shares.items()],
        "causes": [{"seconds": cause.seconds, "words": cause.words} for cause in found.causes],
        "critical_path": [_stretch(one) for one in sorted(longest, key=lambda s: s.start)],
        "left_out": len(path) - len(longest),
        "cut": found.cut or None,
        "levers": None if found.levers is None else [_lever(lever) for lever in found.levers],
    }


def _stretch(one: Stretch) -> Document:
    limit = None
    if one.limit is not None:
        full = one.limit.by == "link"
        limit = {
            "by": one.limit.by,
            "kind": one.limit.kind or None,
            "link": one.limit.name or None,
            "links": one.links if full else None,
            "fill": one.fill if full else None,
            "from_s": one.full[0] if full else None,
            "to_s": one.full[1] if full else None,
            "latency_s": one.latency,
        }
    return {
        "kind": one.kind,
        "start_s": one.start,
        "end_s": one.end,
        "place": one.place,
        "source": one.source or None,
        "what": one.what or None,
        "tier": one.tier or None,
        "waits": one.waits,
        "ops": one.ops,
        "limit": limit,
    }


def _lever(lever: Lever) -> Document:
    return {
        "name": lever.name,
        "makespan_s": lever.makespan,
        "gain": lever.gain,
        "bound_s": lever.bound,
        "class_bound_s": lever.class_bound,
        "at_most": lever.at_most,
    }


def _what_if(found: WhatIf) -> Document | None:
    if not found.changed.changes:
        return None
    first = found.cases[0]
    return {
        "changes": list(found.changed.changes),
        "failed": list(found.changed.failed),
        "left_out": list(found.changed.left_out),
        "cases": [_case(case, first) for case in found.cases],
    }


def _case(case: Case, first: Case) -> Document:
    return {
        "label": case.label,
        "ranks": case.ranks,
        "makespan_s": dict(case.seconds),
        "total_s": case.total,
        "strategy": dict(case.strategies),
        "speed": first.total / case.total,
    }


def _jitter(found: tuple[Jitter, ...]) -> list[Document]:
    return [
        {
            "direction": one.direction,
            "seed": one.seed,
            "mean": one.mean,
            "undisturbed_s": one.undisturbed,
            "least_s": one.quantile(0.0),
            "median_s": one.quantile(0.5),
            "p90_s": one.quantile(0.9),
            "most_s": one.quantile(1.0),
            "makespans_s": list(one.makespans),
        }
        for one in found
    ]


def _layout(found: LayoutResult) -> Document:
    return {
        "tp": found.layout.tp,
        "cp": found.layout.cp,
        "dp": found.layout.dp,
        "groups": [
            {"ranks": list(ranks), "devices": list(devices)}
            for ranks, devices in zip(found.layout.groups(), found.groups, strict=True)
        ],
        "cases": [
            {
                "strategy": case.strategy,
                "direction": case.direction,
                "alone_s": case.alone,
                "together_s": case.together,
                "chosen": case in found.chosen,
            }
            for case in found.cases
        ],
        "sharing": [
            {"kind": one.kind, "links": one.links, "least": one.least, "most": one.most}
            for one in found.sharing
        ],
    }


def _step(step: TrainingStep) -> Document:
    cases = {"chosen": step.chosen, "ring": step.ring, "bound": step.limit}
    return {
        "model": step.model,
        "layers": step.layers,
        "tokens": step.tokens,
        "cases": {
            name: {
                "attention_s": case.attention,
                "rest_s": case.rest,
                "step_s": case.seconds,
                "tokens_per_s": step.tokens / case.seconds,
            }
            for name, case in cases.items()
        },
        "speedup_vs_ring": step.ring.seconds / step.chosen.seconds,
        "assumptions": list(step.assumptions),
    }


def _sweep(sweep: Sweep) -> Document:
    return {
        "path": sweep.axis.path,
        "unit": sweep.axis.unit,
        "points": [
            {
                "value": sample.value,
                "direction": sample.direction,
                "strategy": sample.strategy,
                "makespan_s": sample.makespan,
                "compute_s": sample.compute,
                "bound_s": sample.bound,
                "ring_s": sample.ring,
                "limit": sample.limit,
            }
            for sample in sweep.samples
        ],
        "crossovers": [
            {
                "direction": crossover.direction,
                "what": crossover.what,
                "before": crossover.before,
                "after": crossover.after,
                "below": crossover.below,
                "above": crossover.above,
                "margin": crossover.margin,
                "words": words(crossover, sweep.axis),
            }
            for crossover in sweep.crossovers
        ],
    }


__all__ = ["extras_document"]
