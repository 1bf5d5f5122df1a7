"""What-if on the command line: the flags that change a machine, and what changed beside it."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from charm_sched.commands.options import count
from charm_sched.errors import CharmSchedError, PlanError

if TYPE_CHECKING:
    from charm_sched.search.results import Comparison
    from charm_sched.topology.change_apply import Changed
    from charm_sched.topology.changes import Change
    from charm_sched.topology.graph import Topology
    from charm_sched.what_if.jitter import Jitter
    from charm_sched.what_if.layouts import Layout
    from charm_sched.what_if.sweep_axis import Axis

MOST_SEED = 2**63


class PartFailedError(PlanError):
    """A plan needs a part of the machine that failed."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """What one plan, or the best one, takes on one machine.

    Attributes:
        label: Which plan and which machine, in words.
        ranks: How many take part.
        seconds: Makespan per direction.
        strategies: Strategy per direction.
    """

    label: str
    ranks: int
    seconds: Mapping[str, float]
    strategies: Mapping[str, str]

    @property
    def total(self) -> float:
        """Seconds of all directions."""
        return sum(self.seconds.values())


@dataclass(frozen=True, eq=False, kw_only=True)
class WhatIf:
    """What changes of a machine do.

    Attributes:
        changed: The machine before and after.
        cases: The unchanged machine first.
        jitter: How the plans scatter, per direction; empty where that was not asked for.
    """

    changed: Changed
    cases: tuple[Case, ...]
    jitter: tuple[Jitter, ...] = ()


def add_change_flags(parser: ArgumentParser, fail: str) -> None:
    """Add the flags that change the machine; ``fail`` says what happens to what failed."""
    group = parser.add_argument_group(
        "what if", "the machine is changed in the order of these flags, each may be repeated"
    )
    flags = (
        (
            "set",
            "PATH=VALUE",
            "another number, such as 'links[nic*].bandwidth=50 GB/s' or "
            "'profiles[*].overhead=x0.5'; links[KIND or END].{bandwidth,latency,flow_cap}, "
            "devices[NAME].{memory,port}, profiles[NAME].{rate,rate.forward,rate.backward,peak,"
            "overhead,memory_bandwidth}",
        ),
        ("fail", "PART", f'a device, a switch or a link ("A <-> B") is gone; {fail}'),
        (
            "slow",
            "DEVICE=FACTOR",
            "kernels of a device take FACTOR times as long, such as gpu0=1.3",
        ),
        (
            "under",
            "NAME[,NAME...]",
            "conditions that the file knows: ramp (small messages are slower), short_kernels, "
            "interference (kernels are slower under transfers), its own, or all",
        ),
    )
    for flag, metavar, text in flags:
        group.add_argument(
            f"--{flag}",
            metavar=metavar,
            dest="changes",
            type=_tagged(flag),
            action="append",
            default=[],
            help=text,
        )


def add_jitter_flags(parser: ArgumentParser) -> None:
    """Add the flags of charm-sim alone."""
    parser.add_argument(
        "--jitter",
        metavar="SEED",
        type=seed,
        help="simulate several times with every device and link a little slower, each by a factor "
        "of its own, and show how the time scatters",
    )
    parser.add_argument(
        "--jitter-mean",
        metavar="PERCENT",
        type=percent,
        help="mean slowdown of a part, exponentially distributed (default: 5%%)",
    )
    parser.add_argument(
        "--repetitions", metavar="N", type=count, help="how often with --jitter (default: 25)"
    )
    parser.add_argument(
        "--replan",
        action="store_true",
        help="also make a new plan for the changed machine, without what failed",
    )


def add_layout_flags(parser: ArgumentParser) -> None:
    """Add the flags of a parallel layout."""
    group = parser.add_argument_group(
        "layout",
        "tp x cp x dp ranks, tp fastest; the ranks of one attention group differ in cp; all groups "
        "are simulated together",
    )
    for flag, what in (("tp", "ranks that share the heads"), ("cp", "ranks that share a sequence"),
                       ("dp", "groups with sequences of their own")):  # fmt: skip
        group.add_argument(f"--{flag}", metavar="N", type=count, help=f"{what} (default: 1)")


def layout_of(parser: ArgumentParser, args: Namespace) -> Layout | None:
    """Read the layout of the flags; what goes not with it ends as a usage error."""
    if not (args.tp or args.cp or args.dp):
        return None
    from charm_sched.what_if.layouts import Layout

    for flag in ("ranks", "devices", "sweep", "step"):
        if getattr(args, flag):
            parser.error(f"--tp, --cp and --dp set the ranks; leave out --{flag}")
    return Layout(tp=args.tp or 1, cp=args.cp or 1, dp=args.dp or 1)


def add_sweep_flags(parser: ArgumentParser, examples: str) -> None:
    """Add the flags of a sweep."""
    parser.add_argument(
        "--sweep",
        metavar="NAME=FIRST..LAST",
        help=f"look at other values of one number, and find where another strategy or link becomes "
        f"the limit, such as {examples}",
    )
    parser.add_argument(
        "--steps",
        metavar="N",
        type=count,
        help="values of the sweep (default: lengths are doubled, else 6)",
    )


def axis_of(parser: ArgumentParser, args: Namespace) -> Axis | None:
    """Read the sweep of the flags.

    Raises:
        WorkloadError: It is no sweep, or an impossible one.
        TopologyError: A wrong path or unit.
    """
    from charm_sched.what_if.sweep_axis import read_axis

    if args.sweep is None:
        if args.steps is not None:
            parser.error("--steps needs --sweep")
        return None
    return read_axis(args.sweep)


def machine_at(machine: Topology, axis: Axis, value: float) -> Topology:
    """Give the machine at one value of a sweep.

    Raises:
        TopologyError: The path names nothing.
    """
    from charm_sched.topology.change_apply import apply

    return apply(machine, [axis.at(value)]).topology


def _tagged(flag: str) -> Callable[[str], tuple[str, str]]:
    return lambda text: (flag, text)


def seed(text: str) -> int:
    """Read a seed: a whole number of 0 or more."""
    if not (text.isascii() and text.isdecimal()) or int(text) >= MOST_SEED:
        raise ArgumentTypeError(f"expected a whole number from 0 to 2^63 - 1, found {text!r}")
    return int(text)


def percent(text: str) -> float:
    """Read ``5%`` as 0.05."""
    try:
        value = float(text.removesuffix("%")) / 100 if text.endswith("%") else -1.0
    except ValueError:
        value = -1.0
    if not 0 < value <= 10:
        raise ArgumentTypeError(f"expected a percentage above 0%, such as 5%, found {text!r}")
    return value


def changes_of(args: Namespace) -> list[Change]:
    """Read the changes of the flags, in their order.

    Raises:
        TopologyError: One of them is wrong.
    """
    from charm_sched.topology import changes

    read: Mapping[str, Callable[[str], Change]] = {
        "set": changes.read_setting,
        "fail": changes.read_failure,
        "slow": changes.read_slowdown,
        "under": changes.read_under,
    }
    return [read[flag](text) for flag, text in args.changes]


def case_of(label: str, comparison: Comparison) -> Case:
    """Give what the chosen plans of a comparison take."""
    chosen = comparison.chosen
    return Case(
        label=label,
        ranks=max(result.plan.num_ranks for result in chosen.values()),
        seconds={direction: result.timeline.makespan for direction, result in chosen.items()},
        strategies={direction: result.strategy for direction, result in chosen.items()},
    )


def check_devices(changed: Changed, devices: Sequence[str] | None) -> None:
    """Check that devices that a user named are still there.

    Raises:
        CharmSchedError: One failed, or no longer reaches the others.
    """
    for name in devices or ():
        if name in changed.failed:
            raise CharmSchedError(f"--devices: {name} failed; leave it out")
        if name in changed.left_out:
            raise CharmSchedError(
                f"--devices: {name} no longer reaches all other devices; leave it out"
            )


def check_plan(source: str, devices: Sequence[str], changed: Changed) -> None:
    """Check that a plan's devices are still there.

    Raises:
        PartFailedError: One of them failed.
    """
    gone = [name for name in devices if name in changed.failed]
    if gone:
        raise PartFailedError(
            f"{source}: the plan needs {gone[0]}, which failed; --replan makes a new plan without "
            "it, and so does charm-plan TOPOLOGY with the same flags"
        )


def check_names(source: str, devices: Sequence[str], machine: Topology) -> None:
    """Check that a machine has the devices of a plan.

    Raises:
        PlanError: It lacks some.
    """
    known = set(machine.device_names)
    missing = [name for name in devices if name not in known]
    if missing:
        from charm_sched.topology.change_paths import some

        raise PlanError(
            f"{source}: expected a machine with the plan's {len(devices)} devices, but "
            f"{machine.name} lacks {some(missing)}; it has {some(machine.device_names)}"
        )


__all__ = [
    "Case", "PartFailedError", "WhatIf", "add_change_flags", "add_jitter_flags", "add_layout_flags",
    "add_sweep_flags", "axis_of", "case_of", "changes_of", "check_devices", "check_names",
    "check_plan", "layout_of", "machine_at",
]  # fmt: skip
