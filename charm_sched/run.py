"""The command charm-run: execute a plan under torchrun, check it, time it, compare.

Rank 0 plans and everybody runs its plan. Results go to rank 0's stdout, everything else to stderr.
Exit 0: done; 1: a problem in what the user gave or in the run; 2: usage.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charm_sched import __version__
from charm_sched.errors import CharmSchedError, RuntimeFailure, WorkloadError
from charm_sched.options import Help, add_workload_flags, count, read_workload

if TYPE_CHECKING:
    from charm_sched.plans import Plan, Schedule
    from charm_sched.report import Document
    from charm_sched.runtime.trial import Trial
    from charm_sched.search import Comparison, Result

PLAN_SUFFIXES = (".json", ".npz")


def main(argv: Sequence[str] | None = None) -> int:
    """Run charm-run."""
    args = _parser().parse_args(argv)
    rank = int(os.environ.get("RANK", "0"))
    try:
        _run(args)
        sys.stdout.flush()
    except RuntimeFailure as error:  # every rank has its own to tell
        return _complain(str(error))
    except CharmSchedError as error:
        return _complain(str(error)) if rank == 0 else 1
    except KeyboardInterrupt:
        return 130
    return 0


def _complain(message: str) -> int:
    print(f"error: {message}", file=sys.stderr, flush=True)  # noqa: T201
    return 1


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="charm-run",
        usage="torchrun --nproc-per-node N -m charm_sched.run PLAN|TOPOLOGY [options]",
        description="Execute a plan on torch.distributed (gloo) with drawn tensors, compare the\n"
        "results with dense attention on one device and the times with the prediction.",
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument(
        "target",
        metavar="PLAN|TOPOLOGY",
        help="a plan saved by charm-plan (.json, .npz), or a topology to plan for",
    )
    parser.add_argument(
        "--strategy", metavar="NAME", default="auto", help="of a topology (default: auto)"
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
        type=float,
        default=300.0,
        help="longest time for one transfer (default: 300)",
    )
    parser.add_argument(
        "--backend", choices=("reference", "cpu_flash"), help="kernel (default: by dtype)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else"
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    add_workload_flags(parser)
    return parser


def _run(args: Namespace) -> None:
    try:
        from charm_sched.runtime import trial
    except ModuleNotFoundError as error:
        raise RuntimeFailure(
            f"charm-run needs PyTorch ({error}): pip install 'charm-sched[runtime]'"
        ) from error
    rank, size = trial.join_world(args.timeout)
    try:
        comparison = None
        content = b""
        problem = None
        if rank == 0:
            try:
                comparison = _choose(args, size)
                content = _to_bytes(comparison.schedule())
            except CharmSchedError as error:
                problem = error
        content = trial.broadcast(content)
        if problem is not None:
            raise problem
        if not content:
            raise WorkloadError("rank 0 has no plan")  # which it says itself
        found = trial.try_out(
            _from_bytes(content), repeat=args.repeat, timeout=args.timeout, backend=args.backend
        )
        if comparison is not None:
            _report(args, comparison, found)
    finally:
        trial.leave_world()


def _choose(args: Namespace, size: int) -> Comparison:
    """Give the plans to run, with their prediction."""
    from charm_sched.assess import assess
    from charm_sched.planners import PLANNERS
    from charm_sched.search import plan_all
    from charm_sched.storage import load_plan
    from charm_sched.topology import load_topology

    if Path(args.target).suffix in PLAN_SUFFIXES:
        return assess(load_plan(args.target))
    if args.ranks not in (None, size) or (args.devices and len(args.devices) != size):
        raise WorkloadError(f"ranks: torchrun started {size} processes; plan for as many devices")
    return plan_all(
        load_topology(args.target),
        read_workload(args),
        strategies=tuple(PLANNERS) if args.strategy == "auto" else (args.strategy,),
        directions=("forward",) if args.direction == "forward" else ("forward", "backward"),
        partition=args.partition or "auto",
        ranks=None if args.devices else size,
        devices=args.devices,
    )


def _to_bytes(stored: Schedule | Plan) -> bytes:
    from charm_sched.storage import save_plan

    with tempfile.TemporaryDirectory() as folder:
        return save_plan(stored, Path(folder) / "plan.npz").read_bytes()


def _from_bytes(content: bytes) -> Schedule | Plan:
    from charm_sched.storage import load_plan

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.npz"
        path.write_bytes(content)
        return load_plan(path)


def _report(args: Namespace, comparison: Comparison, found: Trial) -> None:
    directions = [d for d in comparison.chosen if args.direction in (d, "both")]
    measured = {d: measurement(comparison.chosen[d], d, found) for d in directions}
    if args.json:
        from charm_sched import report

        report.write_json(_document(comparison, measured))
        return
    from charm_sched import terminal

    with terminal.results() as console:
        console.print(_table(comparison, measured))
        if found.max_error is None:
            console.print("Too long to compare with dense attention; results are not checked.")


def measurement(result: Result, direction: str, found: Trial) -> dict[str, Any]:
    """Give what was measured of one direction: seconds, and the largest error."""
    times = [line.makespan for line in found.timelines[direction]]
    median = statistics.median(times)
    return {
        "measured_s": median,
        "measured_spread_s": max(times) - min(times),
        "prediction_error": result.timeline.makespan / median - 1,
        "max_error": None if found.max_error is None else found.max_error[direction],
    }


def _document(comparison: Comparison, measured: dict[str, dict[str, Any]]) -> Document:
    """Give charm-plan's document for what was run, with what was measured."""
    from dataclasses import replace

    from charm_sched import report

    run = replace(comparison, results=tuple(comparison.chosen[d] for d in measured))
    document = report.document(run)
    for result in document["results"]:
        result.update(measured[result["direction"]])
    return document


def _table(comparison: Comparison, measured: dict[str, dict[str, Any]]) -> object:
    from rich import box
    from rich.table import Table

    from charm_sched.units import format_seconds

    table = Table(box=box.SIMPLE_HEAD)
    for number, name in enumerate(
        ("pass", "strategy", "predicted", "measured", "spread", "prediction", "max error")
    ):
        table.add_column(name, justify="left" if number < 2 else "right", no_wrap=True)
    for direction, row in measured.items():
        result = comparison.chosen[direction]
        error = row["max_error"]
        table.add_row(
            direction,
            result.strategy,
            format_seconds(result.timeline.makespan, digits=3),
            format_seconds(row["measured_s"], digits=3),
            format_seconds(row["measured_spread_s"], digits=2),
            f"{100 * row['prediction_error']:+.1f} %",
            "-" if error is None else f"{error:.1e}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
