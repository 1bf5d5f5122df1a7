"""What charm-plan does with its arguments: plan, compare, save, show."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charm_sched.commands.common import load_machine
from charm_sched.commands.exports import check_exports, wants_export, wants_levers, write_exports
from charm_sched.commands.options import DEFAULT_MODEL, HEAD_FLAGS, names_workload, workload_of
from charm_sched.commands.what_if import (
    Case,
    WhatIf,
    axis_of,
    case_of,
    changes_of,
    check_devices,
    layout_of,
    machine_at,
)
from charm_sched.errors import PlanFileError, WorkloadError
from charm_sched.render.terminal import progress_line, room_for, warn

if TYPE_CHECKING:
    from charm_sched.commands.extras import Extras
    from charm_sched.commands.output import Saved
    from charm_sched.search.results import Comparison
    from charm_sched.topology.change_apply import Changed
    from charm_sched.topology.changes import Change
    from charm_sched.topology.graph import Topology
    from charm_sched.what_if.explain import Explanation
    from charm_sched.what_if.layouts import Layout, LayoutResult
    from charm_sched.what_if.lengths import Point
    from charm_sched.what_if.sweep_axis import Axis
    from charm_sched.what_if.sweep_values import Sweep
    from charm_sched.workload import Workload

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True, eq=False, kw_only=True)
class _Answer:
    """What was found for one machine, and what stands beside it."""

    comparison: Comparison
    extras: Extras


def plan_command(parser: ArgumentParser, args: Namespace) -> None:
    """Plan a workload on some machines, as charm-plan's arguments say."""
    from charm_sched.report import documents as report

    if len(args.topologies) > 1 and (args.output or args.sweep or wants_export(args)):
        parser.error(
            "-o, --sweep, --report, --trace and --chakra take one topology; plan several machines "
            "one by one"
        )
    workload = workload_of(parser, args)
    _check_step(parser, args)
    axis, layout = axis_of(parser, args), layout_of(parser, args)
    machines = _machines(args)
    if args.place == "best":
        _place(parser, args, machines[0].topology, workload)
    _check_axis(axis, workload, machines[0].topology)
    _check_outputs(args, [machine.topology for machine in machines])
    answers, documents = [], []
    for machine in machines:
        answer = _answer(args, machine, workload, axis, layout)
        saved = _save(args, machine.topology, answer.comparison)
        plain = names_workload(args) or axis or layout or (args.json and not args.report)
        points = () if plain else _lengths(args, machine.topology, answer)
        traces, lines = write_exports(args, answer.comparison, answer.extras, points)
        extras = answer.extras if args.explain else answer.extras.without_levers()
        if args.json:
            path = saved.path if saved else None
            documents.append(report.document(answer.comparison, path, traces, extras))
        else:
            footer = _next_steps(saved, answer.comparison) if saved else []
            show(answer.comparison, points, [*footer, *lines], extras)
        answers.append(answer)
        warn_of_memory(answer.comparison)
    if args.json:
        found = [answer.comparison for answer in answers]
        report.write_json(report.combined(documents, found))
    elif len(answers) > 1:
        from charm_sched.render import comparison as render
        from charm_sched.render import terminal

        with terminal.results() as console:
            render.machines(console, [answer.comparison for answer in answers])


def warn_of_memory(comparison: Comparison) -> None:
    """Say on stderr which of the chosen plans do not fit into the devices' memory."""
    from charm_sched.report.memory import shortages

    for sentence in shortages(comparison):
        warn(sentence)


def _machines(args: Namespace) -> list[Changed]:
    """Load the machines and change them."""
    from charm_sched.topology.change_apply import apply

    changes: list[Change] = changes_of(args)
    found = [apply(load_machine(name), changes, leave_out=True) for name in args.topologies]
    for changed in found:
        check_devices(changed, args.devices)
    return found


def _place(parser: ArgumentParser, args: Namespace, machine: Topology, workload: Workload) -> None:
    """Choose the devices, say what those that were given cost, and go on with the best."""
    from charm_sched.bounds.bound import choose_devices
    from charm_sched.commands.placing import told
    from charm_sched.placement.place import place

    if len(args.topologies) > 1:
        parser.error("--place best takes one topology; plan several machines one by one")
    given = choose_devices(machine, args.ranks, args.devices)
    with progress_line(machine.name, quiet=args.json) as say:
        found = place(machine, workload, ranks=len(given), given=given, progress=say)
    sys.stderr.write("".join(f"{line}\n" for line in told(found, given)))
    args.ranks, args.devices = None, found.best.devices


def _check_step(parser: ArgumentParser, args: Namespace) -> None:
    """Refuse a training step of heads without a model, or of one direction."""
    own = [flag for flag in HEAD_FLAGS if getattr(args, flag) is not None]
    if args.step and own:
        parser.error(f"--step needs a --model; leave out --{own[0].replace('_', '-')}")
    if args.step and args.direction != "both":
        parser.error("--step needs both directions; leave out --direction")


def _check_axis(axis: Axis | None, workload: Workload, machine: Topology) -> None:
    """Refuse an impossible sweep before the long work.

    Raises:
        WorkloadError: Other lengths than those of the documents.
        TopologyError: The path names nothing.
    """
    if axis is None:
        return
    if axis.setting is not None:
        machine_at(machine, axis, axis.first)
    elif workload.mask_rule.documents:
        raise WorkloadError(
            "--sweep seq-len: the lengths of the documents set the length; sweep without --mask "
            f"{workload.mask_rule.kind}"
        )


def _check_outputs(args: Namespace, machines: Sequence[Topology]) -> None:
    """Refuse names that cannot be written to, before the long work."""
    from charm_sched.commands import output

    targets = [args.output] if args.output else []
    if not targets and not args.json:
        targets = [path for m in machines for path in output.default_targets(m.name)]
        _check_different(targets)
    check_exports(args, _choices(args)["directions"], targets)
    if args.chakra and not (args.tp or args.cp or args.dp):
        from charm_sched.export.chakra import check_ranks

        check_ranks(len(args.devices or ()) or args.ranks or len(machines[0].devices))
    for target in targets:
        output.check_target(target)


def _check_different(targets: Sequence[Path]) -> None:
    """Refuse machines of one name: the plan of the one would replace that of the other."""
    for path in targets:
        if targets.count(path) > 1:
            raise PlanFileError(
                f"{path}: the plans of two of these topologies would have this name; expected "
                "topologies with different names; plan them one by one with -o, or with --json, "
                "which saves nothing"
            )


def _save(args: Namespace, machine: Topology, comparison: Comparison) -> Saved | None:
    """Save the plan, unless only JSON is asked for."""
    from charm_sched.commands import output

    if args.json and not args.output:
        return None
    return output.save(comparison.schedule(), args.output, machine.name)


def _choices(args: Namespace) -> dict[str, Any]:
    """Give the flags that `plan_all` takes."""
    return {
        "strategies": args.strategy,
        "directions": DIRECTIONS if args.direction == "both" else (args.direction,),
        "partition": args.partition or "auto",
        "ranks": args.ranks,
        "devices": args.devices,
        "params": dict(args.params),
        "memory": args.memory,
    }


def _answer(
    args: Namespace,
    machine: Changed,
    workload: Workload,
    axis: Axis | None,
    layout: Layout | None,
) -> _Answer:
    """Plan a machine; one that was changed also as it was before."""
    from charm_sched.commands.extras import Extras
    from charm_sched.what_if.training_step import training_step

    comparison, groups = _compare(args, machine.topology, workload, layout)
    what_if = None
    if machine.changes:
        before = _compare(args, machine.original, workload, layout)
        after = comparison, groups
        cases = (_case("unchanged", *before), _case("changed, a plan for it", *after))
        what_if = WhatIf(changed=machine, cases=cases)
    extras = Extras(
        explanations=explanations(args, comparison),
        step=training_step(comparison, args.model or DEFAULT_MODEL) if args.step else None,
        what_if=what_if,
        layout=groups,
        sweep=_sweep(args, machine.topology, workload, axis) if axis else None,
    )
    return _Answer(comparison=comparison, extras=extras)


def explanations(args: Namespace, comparison: Comparison) -> Mapping[str, Explanation]:
    """Explain the chosen plans; with ``--explain`` or ``--report`` also what would help them.

    A plan that is stored by its symmetry has no critical path of its own rows: it is left out. So
    is a very long one, unless it was asked for.
    """
    from charm_sched.what_if.explain import MOST_OPERATIONS, explain
    from charm_sched.what_if.levers import find_levers

    chosen = {
        direction: result
        for direction, result in comparison.chosen.items()
        if result.plan.symmetry is None and (args.explain or len(result.plan) <= MOST_OPERATIONS)
    }
    levers: Sequence[Any] = [None] * len(chosen)
    if chosen and wants_levers(args, comparison):
        machine = comparison.topology
        with progress_line(machine.name, quiet=args.json) as say:
            levers = find_levers(list(chosen.values()), machine, progress=say)
    return {
        direction: explain(result, found)
        for (direction, result), found in zip(chosen.items(), levers, strict=True)
    }


def _case(label: str, comparison: Comparison, groups: LayoutResult | None) -> Case:
    """Give what the chosen plans take; in a layout with all its groups together."""
    case = case_of(label, comparison)
    if groups is None:
        return case
    seconds = {one.direction: one.together for one in groups.chosen}
    return replace(case, ranks=groups.layout.ranks, seconds=seconds)


def _compare(
    args: Namespace, machine: Topology, workload: Workload, layout: Layout | None
) -> tuple[Comparison, LayoutResult | None]:
    from charm_sched.search.planning import plan_all
    from charm_sched.what_if.layouts import plan_layout

    ranks = len(args.devices or ()) or args.ranks or len(machine.devices)
    with progress_line(machine.name, quiet=args.json) as say, room_for(ranks):
        if layout is not None:
            return plan_layout(machine, workload, layout, _choices(args), progress=say)
        return plan_all(machine, workload, progress=say, **_choices(args)), None


def _sweep(args: Namespace, machine: Topology, workload: Workload, axis: Axis) -> Sweep:
    """Plan at each value of a sweep."""
    from charm_sched.search.planning import plan_all
    from charm_sched.what_if.sweep_values import run_sweep

    def evaluate(value: float) -> Comparison:
        work, where = workload, machine
        if axis.setting is None:
            work = replace(workload, seq_len=round(value))
        else:
            where = machine_at(machine, axis, value)
        return plan_all(where, work, **_choices(args), thorough=False)

    with progress_line(machine.name, quiet=args.json) as say:
        return run_sweep(axis, evaluate, steps=args.steps, progress=say)


def _lengths(args: Namespace, machine: Topology, answer: _Answer) -> Sequence[Point]:
    from charm_sched.search.planning import MOST_THOROUGH
    from charm_sched.what_if.lengths import sweep

    known = answer.comparison
    if _ranks(known) > MOST_THOROUGH:
        return ()
    with progress_line(machine.name, quiet=args.json) as say:
        return sweep(machine, known.workload, _choices(args), known=known, progress=say)


def _next_steps(saved: Saved, comparison: Comparison) -> list[str]:
    """Say how a saved plan is used."""
    from charm_sched.search.planning import MOST_THOROUGH

    ranks = _ranks(comparison)
    lines = [
        str(saved),
        f"Simulate: charm-sim {saved.path} --topology OTHER",
        f"Run:      torchrun --nproc-per-node {ranks} -m charm_sched.run {saved.path}",
    ]
    if ranks > MOST_THOROUGH:
        lines.append("Lengths:  --sweep seq-len=8K..256K (not by itself for so many ranks)")
    return lines


def _ranks(comparison: Comparison) -> int:
    return next(iter(comparison.chosen.values())).plan.num_ranks


def show(
    comparison: Comparison, points: Sequence[Point], footer: Sequence[str], extras: Extras
) -> None:
    """Print a report on the terminal."""
    from charm_sched.render import comparison as render
    from charm_sched.render import terminal

    with terminal.results() as console:
        render.show(console, comparison, points=points, footer=footer, extras=extras)


__all__ = ["DIRECTIONS", "explanations", "plan_command", "show", "warn_of_memory"]
