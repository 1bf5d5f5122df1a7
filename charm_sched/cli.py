"""The commands charm-plan and charm-sim.

Results go to stdout, everything else to stderr. Exit 0: done; 1: a problem in what the user gave;
2: usage. Whatever costs time to import is imported in the handlers, so that ``--help`` is
immediate.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from charm_sched.commands.common import add_version, make_parser, run_command
from charm_sched.commands.exports import add_export_flags
from charm_sched.commands.options import (
    STRATEGY_HELP,
    add_workload_flags,
    argument,
    memory_size,
    parameter,
    strategy_names,
)
from charm_sched.commands.planning import plan_command
from charm_sched.commands.simulating import sim_command
from charm_sched.commands.what_if import (
    add_change_flags,
    add_jitter_flags,
    add_layout_flags,
    add_sweep_flags,
)


def plan_main(argv: Sequence[str] | None = None) -> int:
    """Run charm-plan."""
    return run_command(_plan_parser(), plan_command, argv)


def sim_main(argv: Sequence[str] | None = None) -> int:
    """Run charm-sim."""
    return run_command(_sim_parser(), sim_command, argv)


def _add_outputs(parser: ArgumentParser) -> None:
    add_export_flags(parser)
    parser.add_argument(
        "--explain",
        action="store_true",
        help="say at length why the plan takes as long as it does, and what would help most: each "
        "part of the machine twice as good, the plan simulated again",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else"
    )


def _plan_parser() -> ArgumentParser:
    parser = make_parser(
        "charm-plan",
        "charm-plan TOPOLOGY... [workload flags] [options]",
        "Compile the best attention schedule for a machine, save it, and compare it with\n"
        "Ring-Attention. Without workload flags it also shows several sequence lengths:\n"
        "where communication is the limit, and where computation is.",
        "examples:\n"
        "  charm-plan dual_node_nvlink\n"
        "  charm-plan rack.yaml --model llama3-70b --seq-len 256K --strategy all\n"
        "  charm-plan dual_node_nvlink dual_node_nvlink_4nic   (side by side)\n"
        "  charm-plan dual_node_nvlink --fail node0/nic3       (without a network card)\n"
        "  charm-plan dual_numa_pcie --sweep 'links[upi].bandwidth=10..60 GB/s'",
    )
    parser.add_argument(
        "topologies",
        metavar="TOPOLOGY",
        nargs="+",
        help="a topology file, or the name of a shipped one (charm-topo list)",
    )
    _add_search(parser)
    parser.add_argument(
        "-o",
        metavar="PLAN",
        dest="output",
        type=Path,
        help="where to save the plan (default: NAME.plan.json or .npz; with --json nowhere)",
    )
    _add_outputs(parser)
    parser.add_argument(
        "--step",
        action="store_true",
        help="also put the plans into a whole training step of --model: all layers, attention and "
        "every other product, so that the gain of the whole step is shown",
    )
    add_sweep_flags(parser, "seq-len=8K..1M or 'links[upi].bandwidth=10..60 GB/s'")
    add_version(parser)
    add_workload_flags(parser)
    add_layout_flags(parser)
    add_change_flags(parser, "the plan works around it, and the loss is stated")
    return parser


def _add_search(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--strategy",
        metavar="WHAT",
        type=argument(strategy_names),
        default=("auto",),
        help=STRATEGY_HELP,
    )
    parser.add_argument(
        "--direction",
        choices=("forward", "backward", "both"),
        default="both",
        help="pass to plan (default: both)",
    )
    parser.add_argument(
        "--param",
        metavar="NAME=VALUE",
        dest="params",
        type=argument(parameter),
        action="append",
        default=[],
        help="fix a parameter of the strategies that take it, such as pieces=2, save=true, or an "
        "ablation: levels=false, decouple=false, remerge=false (repeatable)",
    )
    parser.add_argument(
        "--place",
        choices=("given", "best"),
        default="given",
        help="best: look for the devices and the order that take the least time, for --ranks N or "
        "all (default: given, as --ranks or --devices say)",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        type=argument(memory_size),
        help='most that a plan may need per device, such as "40 GB" (default: what the device has)',
    )


def _sim_parser() -> ArgumentParser:
    parser = make_parser(
        "charm-sim",
        "charm-sim PLAN [options]",
        "Verify a saved plan, simulate it and compare it with Ring-Attention.",
        "examples:\n  charm-sim dual_node_nvlink.plan.json --topology dual_node_nvlink_4nic\n"
        "  charm-sim dual_node_nvlink.plan.json --set 'links[nic*].bandwidth=50 GB/s'\n"
        "  charm-sim dual_node_nvlink.plan.json --fail node0/nic3 --replan",
    )
    parser.add_argument("plan", metavar="PLAN", help="a plan saved by charm-plan")
    parser.add_argument(
        "--topology",
        metavar="TOPOLOGY",
        help="another machine with the same device names (default: the one in the plan)",
    )
    _add_outputs(parser)
    add_jitter_flags(parser)
    add_sweep_flags(parser, "'links[upi].bandwidth=10..60 GB/s' or 'links[*].latency=x0.5..x4'")
    add_version(parser)
    add_change_flags(parser, "the plan is simulated without it, where it can be")
    return parser
