"""What ``charm-topo detect`` does: looks at the machine at hand, and writes a topology file."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.commands.importing import add_choices, check_output, choices_of, tell
from charm_sched.commands.options import count
from charm_sched.errors import RuntimeFailure, TopologyError
from charm_sched.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from charm_sched.detection.together import Part
    from charm_sched.importers.build import Imported

DESCRIPTION = """\
Make a topology file of the machine at hand.

It reads the PCI tree, NUMA nodes and network cards from the kernel, and asks nvidia-smi, rocm-smi,
amd-smi and lstopo where they are installed. On a machine without GPUs the NUMA nodes are the
devices, with rates that are measured. Under torchrun the hosts of all ranks become one cluster:
torchrun --nproc-per-node N --nnodes M ... -m charm_sched.topo detect -o cluster.yaml"""

PATIENCE = 300.0  # seconds that a host may take to look at itself


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``charm-topo detect``."""
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path,
        help="write the topology here (.yaml) instead of standard output",
    )  # fmt: skip
    parser.add_argument("--name", help="name of the topology (default: that of the output or host)")
    parser.add_argument(
        "--split", metavar="N", type=count,
        help="without GPUs: N devices per NUMA node (default: 1; under torchrun one per rank)",
    )  # fmt: skip
    parser.add_argument(
        "--no-measure", action="store_true",
        help="without GPUs: assume rates instead of measuring them, which takes some seconds",
    )  # fmt: skip
    add_choices(parser, "what the system may not say")


def detect_command(parser: ArgumentParser, args: Namespace) -> None:
    """Run ``charm-topo detect``.

    Raises:
        CharmSchedError: The machine looks broken, or the output stands there already.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        if args.nodes is not None:
            parser.error("--nodes is for one machine; under torchrun every host is looked at")
        _on_cluster(args)
    else:
        _finish(args, [_part(args, 0)], [], _replaces(args))


def _replaces(args: Namespace) -> bool:
    from charm_sched.detection.together import MARK

    return args.output is not None and check_output(args.output, [], MARK)


def _part(args: Namespace, rank: int) -> Part:
    """Look at this machine."""
    from charm_sched.detection.access import Access
    from charm_sched.detection.host import look
    from charm_sched.detection.rates import measure_rates
    from charm_sched.detection.together import Part, slowest_node

    part = Part(seen=look(Access(), as_is=args.as_is), rank=rank)
    if part.seen.host.gpus or args.no_measure:
        return part
    nodes = [node for node in part.seen.nodes if node.usable]
    return slowest_node(part, [measure_rates(node.usable) for node in nodes])


def _on_cluster(args: Namespace) -> None:
    """Look at every host once; rank 0 puts the parts together."""
    if find_spec("torch") is None:
        raise RuntimeFailure("under torchrun charm-topo detect needs PyTorch: "
                             "pip install 'charm-sched[runtime]'")  # fmt: skip
    from charm_sched.detection.access import Access
    from charm_sched.detection.processors import read_identity
    from charm_sched.detection.together import one_each
    from charm_sched.runtime import hosts, trial

    rank, _ = trial.join_world(PATIENCE)
    try:
        found = hosts.once_per_host(read_identity(Access()), lambda: _part(args, rank))
        if rank == 0 and found is not None:
            parts, doubts = one_each(found)
            _finish(args, parts, doubts, _replaces(args))
    finally:
        trial.leave_world()


def _finish(args: Namespace, parts: Sequence[Part], doubts: Sequence[str], replaced: bool) -> None:
    output: Path | None = args.output
    made = _described(args, parts, doubts)
    hosts = ", ".join(part.seen.name for part in parts)
    tell(made, f"looked at {hosts}: {', '.join(made.formats)}")
    if output is None:
        sys.stdout.write(made.text)
        return
    write_whole(output, made.text.encode())
    sys.stderr.write(f"Saved {output}{' (replaced an earlier one)' if replaced else ''}\n")


def _described(args: Namespace, parts: Sequence[Part], doubts: Sequence[str]) -> Imported:
    from charm_sched.detection.together import described

    name = args.output.stem if args.output is not None else parts[0].seen.name
    parts = list(parts)
    if doubts:
        first = parts[0].seen
        host = replace(first.host, doubts=(*first.host.doubts, *doubts))
        parts[0] = replace(parts[0], seen=replace(first, host=host))
    choices = choices_of(args)
    if choices.nodes is not None:
        parts = [replace(parts[0], rank=i) for i in range(choices.nodes)]
        if choices.nodes < 2:
            raise TopologyError("--nodes: expected 2 or more such machines, found 1")
    return described(parts, replace(choices, nodes=None), name=name, split=args.split)


__all__ = ["DESCRIPTION", "add_arguments", "detect_command"]
