"""The command charm-run: execute a plan under torchrun, check it, time it, compare.

Rank 0 plans and everybody runs its plan. Results go to rank 0's stdout, everything else to stderr.
Exit 0: done; 1: a problem in what the user gave or in the run; 2: usage.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.commands.common import add_version, load_machine, make_parser
from charm_sched.commands.options import (
    STRATEGY_HELP,
    add_workload_flags,
    argument,
    count,
    given_flags,
    read_workload,
    seconds,
    strategy_names,
)
from charm_sched.commands.running import (
    Row,
    check_profile,
    profile_targets,
    rows_of,
    run_document,
    runs_of,
    write_profiles,
)
from charm_sched.errors import CharmSchedError, RuntimeFailure, WorkloadError
from charm_sched.render.terminal import complain, explain, progress_line, room_for
from charm_sched.units import format_rate

if TYPE_CHECKING:
    from charm_sched.search.planning import Comparison
    from charm_sched.workload import Workload

PLAN_SUFFIXES = (".json", ".npz")
LONG_FLOPS = 1e13
"""Per rank and run; a processor core does some 1e10 to 1e11 a second."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run charm-run."""
    args = _parser().parse_args(argv)
    rank = int(os.environ.get("RANK", "0"))
    try:
        _run(args)
        sys.stdout.flush()
    except (RuntimeFailure, MemoryError) as error:  # every rank has its own to tell
        return complain(explain(error))
    except (CharmSchedError, OSError, OverflowError) as error:
        return complain(explain(error)) if rank == 0 else 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> ArgumentParser:
    parser = make_parser(
        "charm-run",
        "torchrun --nproc-per-node N -m charm_sched.run PLAN|TOPOLOGY [options]",
        "Execute a plan on torch.distributed (gloo, on processors) with drawn\n"
        "tensors, compare the results with dense attention on one device and the times\n"
        "with the prediction.",
    )
    parser.add_argument(
        "target",
        metavar="PLAN|TOPOLOGY",
        help="a plan saved by charm-plan (.json, .npz), which fixes workload, devices and "
        "strategy; or a topology to plan for",
    )
    parser.add_argument(
        "--strategy",
        metavar="WHAT",
        type=argument(strategy_names),
        help=f"{STRATEGY_HELP}; of several each is run; not with a PLAN",
    )
    parser.add_argument(
        "--direction",
        choices=("forward", "backward", "both"),
        default="both",
        help="pass to report; a backward runs its forward first (default: both)",
    )
    parser.add_argument(
        "--repeat", metavar="N", type=count, default=5, help="timed runs (default: 5)"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=300.0,
        help="longest time for one transfer (default: 300)",
    )
    parser.add_argument(
        "--backend", choices=("reference", "cpu_flash"), help="kernel (default: by dtype)"
    )
    parser.add_argument(
        "--profile",
        metavar="FILE.json",
        type=Path,
        help="write the measured timeline of the median run, with the plan's ops by name, as a "
        "trace for ui.perfetto.dev, and print when each level ended, predicted and measured",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else"
    )
    add_version(parser)
    add_workload_flags(parser)
    return parser


def _run(args: Namespace) -> None:
    try:
        from charm_sched.runtime import trial
    except ModuleNotFoundError as error:
        raise RuntimeFailure(
            f"charm-run needs PyTorch ({error}): pip install 'charm-sched[runtime]'"
        ) from error
    from charm_sched.plans.storage import from_bytes, to_bytes

    rank, size = trial.join_world(args.timeout)
    try:
        comparison, runs, problem = None, [], None
        if rank == 0:
            try:
                comparison = _choose(args, size)
                runs = runs_of(comparison, args.strategy)
                if args.profile:
                    check_profile(args.profile, runs)
            except (CharmSchedError, OSError, OverflowError) as error:
                problem, runs = error, []
            else:
                _warn(long_work(comparison, args.repeat))
        count = int(trial.broadcast(b"%d" % len(runs) if rank == 0 else None))
        if problem is not None:
            raise problem
        if not count:
            raise WorkloadError("rank 0 has no plan")  # which it says itself
        yardstick = trial.Yardstick(comparison.workload) if comparison is not None else None
        rows: list[Row] = []
        for number in range(count):
            run = runs[number] if runs else None
            content = trial.broadcast(to_bytes(run.stored) if run else None)
            label = f"running {run.name if run else ''} {args.repeat + 1} times"
            with progress_line(label, quiet=args.json or rank > 0):
                found = trial.try_out(
                    from_bytes(content), repeat=args.repeat, timeout=args.timeout,
                    backend=args.backend, yardstick=yardstick,
                )  # fmt: skip
            if run is not None:
                rows += rows_of(run, found, args.direction)
        if comparison is not None:
            _report(args, comparison, rows)
    finally:
        trial.leave_world()


def _warn(message: str | None) -> None:
    if message:
        print(message, file=sys.stderr, flush=True)  # noqa: T201


def _choose(args: Namespace, size: int) -> Comparison:
    """Give the plans to run, with their prediction."""
    from charm_sched.commands.assess import assess
    from charm_sched.plans.storage import load_plan
    from charm_sched.search.planning import AUTO, plan_all

    if Path(args.target).suffix in PLAN_SUFFIXES:
        given = [*(["--strategy"] if args.strategy else []), *given_flags(args)]
        if given:
            raise WorkloadError(
                f"{', '.join(given)}: {args.target} is a plan, which fixes workload, devices and "
                "strategy; leave the flags out, or name a topology instead"
            )
        return assess(load_plan(args.target))
    if args.ranks not in (None, size) or (args.devices and len(args.devices) != size):
        raise WorkloadError(f"ranks: torchrun started {size} processes; plan for as many devices")
    with room_for(size):
        return plan_all(
            load_machine(args.target),
            read_workload(args),
            strategies=args.strategy or (AUTO,),
            directions=("forward",) if args.direction == "forward" else ("forward", "backward"),
            partition=args.partition or "auto",
            ranks=None if args.devices else size,
            devices=args.devices,
        )


def _report(args: Namespace, comparison: Comparison, rows: Sequence[Row]) -> None:
    if args.profile:
        write_profiles(args.profile, rows)
    if args.json:
        from charm_sched.report import documents as report

        report.write_json(run_document(comparison, rows))
        return
    from charm_sched.render import run as render_run
    from charm_sched.render import terminal

    kernel = args.backend or default_kernel(comparison.workload)
    with terminal.results() as console:
        render_run.show(console, comparison, rows, kernel=kernel, repeat=args.repeat)
        if args.profile:
            render_run.show_levels(console, rows)
            for path in profile_targets(args.profile, rows).values():
                console.print(f"Timeline: {path} (open it in ui.perfetto.dev)", soft_wrap=True)


def default_kernel(workload: Workload) -> str:
    """Give the kernel that runs where none is asked for."""
    return "reference" if workload.dtype == "fp64" else "cpu_flash"


def long_work(comparison: Comparison, repeat: int) -> str | None:
    """Say that a run will take long on processors, where it will.

    Args:
        comparison: What was chosen.
        repeat: Timed runs; one more warms up.
    """
    work = comparison.workload
    plan = next(iter(comparison.chosen.values())).plan
    pairs = work.heads * work.seq_len**2
    flops = sum(work.flops_per_pair(d) for d in comparison.chosen) * pairs / plan.num_ranks
    if flops <= LONG_FLOPS:
        return None
    return (
        f"note: about {format_rate(flops, digits=2).replace('/s', '')} per rank and run, "
        f"{repeat + 1} runs: this takes long on processors; a smaller --seq-len is quicker"
    )


if __name__ == "__main__":
    sys.exit(main())
