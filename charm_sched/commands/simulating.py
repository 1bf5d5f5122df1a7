"""What charm-sim does with its arguments: verify, simulate, change the machine, show."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.commands.common import load_machine
from charm_sched.commands.exports import check_exports, write_exports
from charm_sched.commands.planning import explanations, show, warn_of_memory
from charm_sched.commands.what_if import (
    Case,
    PartFailedError,
    WhatIf,
    axis_of,
    case_of,
    changes_of,
    check_names,
    check_plan,
    machine_at,
)
from charm_sched.errors import PlanError, PlanFileError, StrategyError, TopologyError
from charm_sched.render.terminal import progress_line, room_for

if TYPE_CHECKING:
    from charm_sched.plans.plan import Plan, Schedule
    from charm_sched.search.results import Comparison
    from charm_sched.topology.change_apply import Changed
    from charm_sched.topology.graph import Topology
    from charm_sched.what_if.jitter import Jitter
    from charm_sched.what_if.sweep_axis import Axis
    from charm_sched.what_if.sweep_values import Sweep

Say = Callable[[str], None]


def sim_command(parser: ArgumentParser, args: Namespace) -> None:
    """Simulate a saved plan, as charm-sim's arguments say."""
    from charm_sched.commands.extras import Extras
    from charm_sched.plans.plan import Schedule
    from charm_sched.report import documents as report

    if args.jitter is None and (args.jitter_mean or args.repetitions):
        parser.error("--jitter-mean and --repetitions need --jitter SEED")
    stored = _stored(args.plan)
    plans = stored.plans if isinstance(stored, Schedule) else (stored,)
    check_exports(args, [plan.direction for plan in plans], [Path(args.plan)])
    if args.chakra:
        from charm_sched.export import chakra

        for plan in plans:
            chakra.check_plan(plan)
    changed = _machine(args, plans)
    axis = axis_of(parser, args)
    if axis is not None:
        _check_axis(args.plan, axis, changed.topology)
    room = room_for(plans[0].num_ranks, sum(map(len, plans)))
    with progress_line(args.plan, quiet=args.json) as say, room:
        comparison, what_if = _simulate(args, stored, plans, changed, say)
    extras = Extras(
        explanations=explanations(args, comparison),
        what_if=what_if,
        sweep=_sweep(args, stored, changed.topology, axis) if axis else None,
    )
    warn_of_memory(comparison)
    traces, lines = write_exports(args, comparison, extras, ())
    told = extras if args.explain else extras.without_levers()
    if args.json:
        report.write_json(report.document(comparison, args.plan, traces, told))
    else:
        show(comparison, (), lines, told)


def _check_axis(source: str, axis: Axis, machine: Topology) -> None:
    if axis.setting is None:
        raise PlanError(
            f"{source}: --sweep seq-len: a saved plan has one length; charm-plan TOPOLOGY --sweep "
            "plans for each"
        )
    machine_at(machine, axis, axis.first)


def _sweep(args: Namespace, stored: Plan | Schedule, machine: Topology, axis: Axis) -> Sweep:
    """Simulate the plan at each value of a sweep."""
    from charm_sched.commands.assess import assess
    from charm_sched.what_if.sweep_values import run_sweep

    def evaluate(value: float) -> Comparison:
        return assess(stored, machine_at(machine, axis, value))

    with progress_line(args.plan, quiet=args.json) as say:
        return run_sweep(axis, evaluate, steps=args.steps, progress=say)


def _machine(args: Namespace, plans: Sequence[Plan]) -> Changed:
    """Give the machine to simulate on, with its changes.

    Raises:
        PlanError: The plan names no machine, or one that the machine lacks.
        TopologyError: A change is wrong.
    """
    from charm_sched.topology.change_apply import apply

    changes = changes_of(args)
    if args.replan and not changes:
        raise PlanError("--replan: expected a change of the machine (--set, --fail or --slow)")
    machine = load_machine(args.topology) if args.topology else plans[0].topology
    if machine is None or not plans[0].devices:
        raise PlanError(
            f"{args.plan}: expected a machine and the device of each rank, found none in it"
        )
    check_names(args.plan, plans[0].devices, machine)
    return apply(machine, changes)


def _simulate(
    args: Namespace,
    stored: Plan | Schedule,
    plans: Sequence[Plan],
    changed: Changed,
    say: Say | None,
) -> tuple[Comparison, WhatIf | None]:
    """Judge a stored plan on the changed machine; with ``--replan`` make a new one beside it."""
    from charm_sched.commands.assess import assess

    if not changed.changes:
        comparison = assess(stored, changed.topology, progress=say)
        return comparison, _scatter(args, comparison, changed, (), say)
    cases = [_unchanged(plans, changed.original)]
    replanned = _replan(plans, changed, say) if args.replan else None
    try:
        check_plan(args.plan, plans[0].devices, changed)
        comparison = _assess_changed(args.plan, stored, changed, say)
        cases.append(case_of("changed, this plan", comparison))
    except PartFailedError:
        if replanned is None:
            raise
        comparison = replanned
    if replanned is not None:
        cases.append(case_of("changed, a new plan", replanned))
    found = _scatter(args, comparison, changed, cases, say)
    return comparison, found or WhatIf(changed=changed, cases=tuple(cases))


def _assess_changed(
    source: str, stored: Plan | Schedule, changed: Changed, say: Say | None
) -> Comparison:
    """Judge a plan on a machine where routes may be gone.

    Raises:
        PartFailedError: The plan needs a route that is gone.
    """
    from charm_sched.commands.assess import assess

    try:
        return assess(stored, changed.topology, progress=say)
    except (TopologyError, StrategyError) as error:
        if not changed.left_out:
            raise
        raise PartFailedError(
            f"{source}: the plan cannot run there: {error}; --replan makes a new plan without "
            f"{changed.left_out[0]}, and so does charm-plan TOPOLOGY with the same flags"
        ) from error


def _unchanged(plans: Sequence[Plan], machine: Topology) -> Case:
    from charm_sched.simulator import simulate

    return Case(
        label="unchanged, this plan",
        ranks=plans[0].num_ranks,
        seconds={plan.direction: simulate(plan, machine).makespan for plan in plans},
        strategies={plan.direction: plan.strategy for plan in plans},
    )


def _replan(plans: Sequence[Plan], changed: Changed, say: Say | None) -> Comparison:
    """Make the best plan for what is left of a plan's devices."""
    from charm_sched.search.planning import plan_all
    from charm_sched.topology.rebuild import without

    machine = changed.topology
    if changed.left_out:
        machine = without(machine, changed.left_out, ())
    left = set(machine.device_names)
    return plan_all(
        machine,
        plans[0].workload,
        strategies=("auto",),
        directions=tuple(plan.direction for plan in plans),
        devices=[name for name in plans[0].devices if name in left],
        progress=say,
    )


def _scatter(
    args: Namespace,
    comparison: Comparison,
    changed: Changed,
    cases: Sequence[Case],
    say: Say | None,
) -> WhatIf | None:
    """Simulate with jitter where that is asked for."""
    if args.jitter is None:
        return None
    from charm_sched.what_if.jitter import MEAN, REPETITIONS, jitter

    found: tuple[Jitter, ...] = jitter(
        list(comparison.chosen.values()),
        comparison.topology,
        seed=args.jitter,
        mean=args.jitter_mean or MEAN,
        repetitions=args.repetitions or REPETITIONS,
        progress=say,
    )
    return WhatIf(changed=changed, cases=tuple(cases), jitter=found)


def _stored(source: str) -> Plan | Schedule:
    from charm_sched.commands.output import is_topology
    from charm_sched.plans.storage import load_plan

    try:
        return load_plan(source)
    except PlanFileError as error:
        if not is_topology(source):
            raise
        raise PlanFileError(
            f"{source}: expected a plan, found a topology; charm-plan {source} makes a plan for it"
        ) from error


__all__ = ["sim_command"]
