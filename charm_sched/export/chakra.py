"""Plans as execution traces of MLCommons Chakra, which simulators such as ASTRA-sim read.

One file per rank, ``DIRECTION.RANK.et``: a message of metadata, then one message per node, each
behind its length. An attend or a merge is a COMP_NODE; a transfer is a COMM_SEND_NODE on the rank
that sends and a COMM_RECV_NODE on the one that receives, with the same tag. What a node waits for
are nodes of its own rank: those that give its inputs and free its slots, and the batch before it.
All of them are data dependencies, for Chakra's feeder follows those alone.

Attributes are those that Chakra's feeder knows (``src/feeder/et_feeder_node.cpp`` in
github.com/mlcommons/chakra): is_cpu_op, num_ops, tensor_size, comm_src, comm_dst, comm_size,
comm_tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from charm_sched import __version__
from charm_sched.errors import CharmSchedError, PlanError
from charm_sched.export.chakra_schema import (
    COMM_RECV_NODE,
    COMM_SEND_NODE,
    COMP_NODE,
    Message,
    message_classes,
)
from charm_sched.files import write_whole
from charm_sched.masks.areas import attend_work
from charm_sched.plans.plan import ATTEND, TRANSFER
from charm_sched.proof.waits import find_waits, gates

if TYPE_CHECKING:
    from charm_sched.arrays import Ints
    from charm_sched.plans.plan import Plan
    from charm_sched.search.results import Comparison
    from charm_sched.timelines.timeline import Timeline

VERSION = "1.0.0"
"""Of the schema."""
OURS = re.compile(r"(forward|backward)\.[0-9]+\.et")
INSTALL = "pip install 'charm-sched[chakra]'"
MOST_TAG = 2**31


def check_chakra(folder: Path) -> None:
    """Check, before long work, that traces can be written to a folder.

    Raises:
        CharmSchedError: protobuf is not installed, or the folder holds something else.
    """
    if find_spec("google") is None or find_spec("google.protobuf") is None:
        raise CharmSchedError(f"--chakra needs protobuf, which is not installed: {INSTALL}")
    if not folder.exists():
        if not folder.parent.is_dir():
            raise CharmSchedError(f"{folder}: there is no folder {folder.parent}")
        return
    if not folder.is_dir():
        raise CharmSchedError(f"{folder}: expected a folder for --chakra, found something else")
    foreign = sorted(path.name for path in folder.iterdir() if not OURS.fullmatch(path.name))
    if foreign:
        raise CharmSchedError(
            f"{folder}: holds {foreign[0]}, which is no trace of a rank, so the folder is left "
            "alone; choose another one for --chakra"
        )


def write_chakra(comparison: Comparison, folder: Path) -> int:
    """Write the traces of the chosen plans into a folder; older ones there are replaced.

    Returns:
        How many files were written.

    Raises:
        CharmSchedError: protobuf is not installed, or the folder holds something else.
        PlanError: A plan is stored by its symmetry.
    """
    check_chakra(folder)
    timelines = [result.timeline for result in comparison.chosen.values()]
    for timeline in timelines:
        check_plan(timeline.plan)
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    count = 0
    for timeline in timelines:
        for rank, content in enumerate(traces(timeline)):
            write_whole(folder / f"{timeline.plan.direction}.{rank}.et", content)
            count += 1
    return count


def check_plan(plan: Plan) -> None:
    """Check, before long work, that a plan has what traces need.

    Raises:
        PlanError: It is stored by its symmetry, or has too many operations.
    """
    if plan.symmetry is not None:
        raise _by_symmetry(f"this {plan.direction} plan for {plan.num_ranks:,} ranks is")
    if len(plan) >= MOST_TAG:
        raise PlanError(
            f"--chakra: expected fewer than {MOST_TAG:,} operations, found {len(plan):,}"
        )


def check_ranks(ranks: int) -> None:
    """Check, before long work, that a plan for so many ranks will have what traces need.

    Raises:
        PlanError: It will be stored by its symmetry.
    """
    from charm_sched.search.symmetric import MOST_EXPLICIT

    if ranks > MOST_EXPLICIT:
        raise _by_symmetry(f"plans for {ranks:,} ranks are")


def _by_symmetry(what: str) -> PlanError:
    return PlanError(
        f"--chakra: {what} stored by symmetry, and a trace needs every operation; plan for fewer "
        "--ranks"
    )


def traces(timeline: Timeline) -> Iterator[bytes]:
    """Give the content of the file of each rank, in order.

    Times are those of the timeline: predicted ones in a simulation.

    Raises:
        PlanError: The plan is stored by its symmetry.
    """
    check_plan(timeline.plan)
    nodes = _Nodes(timeline)
    classes = message_classes()
    for rank in range(timeline.plan.num_ranks):
        messages = [nodes.metadata(classes, rank), *nodes.of(rank, classes)]
        yield b"".join(_delimited(message.SerializeToString()) for message in messages)


def _delimited(content: bytes) -> bytes:
    """Put the length of a message before it, as protobuf writes numbers: seven bits a byte."""
    length, prefix = len(content), bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*prefix, length]) + content


@dataclass(frozen=True, eq=False)
class _Nodes:
    """The nodes of each rank.

    A kernel of row ``i`` and the sending end of a transfer have the number ``2 i``, the receiving
    end ``2 i + 1``: so numbers are unique over all ranks.
    """

    timeline: Timeline

    @property
    def plan(self) -> Plan:
        return self.timeline.plan

    @cached_property
    def _before(self) -> tuple[Ints, Ints]:
        return find_waits(self.plan, self.timeline.rule).reversed()

    @cached_property
    def _gates(self) -> tuple[Ints, Ints]:
        """The batch at the source and at the destination of each row; -1 for kernels."""
        moves = np.flatnonzero(self.plan.columns.op == TRANSFER)
        source, target, _ = gates(self.plan, moves)
        found = np.full((2, len(self.plan)), -1, np.int64)
        found[0, moves], found[1, moves] = source + len(self.plan), target + len(self.plan)
        return found[0], found[1]

    @cached_property
    def _work(self) -> Ints:
        """FLOPs of each attend."""
        work, _ = attend_work(self.plan)
        per_pair = float(self.plan.workload.flops_per_pair(self.plan.direction))
        flops: Ints = np.rint(work * per_pair).astype(np.int64)
        return flops

    @cached_property
    def _touched(self) -> Ints:
        """Bytes of the operands of each row."""
        columns = self.plan.columns
        totals = np.concatenate([[0], np.cumsum(self.plan.item_bytes[columns.arg])])
        sums: Ints = totals[columns.ptr[1:]] - totals[columns.ptr[:-1]]
        return sums

    @cached_property
    def _ends(self) -> tuple[list[Ints], list[Ints]]:
        """Per rank the rows that it computes or sends, and those that it receives."""
        columns, ranks = self.plan.columns, range(self.plan.num_ranks)
        found: list[list[Ints]] = []
        for ends in (columns.rank, np.where(columns.op == TRANSFER, columns.peer, -1)):
            order = np.argsort(ends, kind="stable")
            ptr = np.searchsorted(ends[order], [*ranks, self.plan.num_ranks])
            found.append([order[ptr[rank] : ptr[rank + 1]] for rank in ranks])
        return found[0], found[1]

    def metadata(self, classes: dict[str, Message], rank: int) -> Message:
        """Give the first message of a rank's file."""
        plan = self.plan
        facts = {
            "generator": f"charm-sched {__version__}",
            "strategy": plan.strategy,
            "direction": plan.direction,
            "rank": str(rank),
            "ranks": str(plan.num_ranks),
            "device": plan.devices[rank] if plan.devices else "",
            "topology": plan.topology.name if plan.topology else "",
            "plan_digest": plan.digest,
            "times": self.timeline.source,
        }
        attributes = [_attribute(classes, name, string_val=text) for name, text in facts.items()]
        return classes["GlobalMetadata"](version=VERSION, attr=attributes)

    def of(self, rank: int, classes: dict[str, Message]) -> Iterator[Message]:
        """Yield the nodes of a rank in order of time, so that what is waited for comes before."""
        own, received = (ends[rank] for ends in self._ends)
        rows = np.concatenate([own, received])
        numbers = np.concatenate([2 * own, 2 * received + 1])
        order = np.lexsort((numbers, self.timeline.end[rows], self.timeline.start[rows]))
        for number in numbers[order].tolist():
            yield self._node(rank, number, classes)

    def _node(self, rank: int, number: int, classes: dict[str, Message]) -> Message:
        row, end = divmod(number, 2)
        kernel = self.plan.columns.op[row] != TRANSFER
        start, finish = (float(x[row]) * 1e6 for x in (self.timeline.start, self.timeline.end))
        return classes["Node"](
            id=number,
            name=_name(self.plan, row, end),
            type=COMP_NODE if kernel else (COMM_SEND_NODE, COMM_RECV_NODE)[end],
            data_deps=self._waits(rank, row, end),
            start_time_micros=round(start),
            duration_micros=max(round(finish - start), 1),
            attr=self._kernel(row, classes) if kernel else self._transfer(row, classes),
        )

    def _waits(self, rank: int, row: int, end: int) -> list[int]:
        """List the nodes of a rank that one of its nodes waits for."""
        ptr, before = self._before
        nodes = [row]
        if self.plan.columns.op[row] == TRANSFER:
            nodes.append(int(self._gates[end][row]))
        columns, found = self.plan.columns, set[int]()
        for cause in {b for node in nodes for b in before[ptr[node] : ptr[node + 1]].tolist()}:
            if cause >= len(self.plan):
                continue  # a gate: its own causes are looked at
            if columns.rank[cause] == rank:
                found.add(2 * cause)
            elif columns.peer[cause] == rank:
                found.add(2 * cause + 1)
        return sorted(found)

    def _kernel(self, row: int, classes: dict[str, Message]) -> list[Message]:
        attributes = [
            _attribute(classes, "is_cpu_op", bool_val=False),
            _attribute(classes, "tensor_size", uint64_val=int(self._touched[row])),
        ]
        if self.plan.columns.op[row] == ATTEND:
            attributes.append(_attribute(classes, "num_ops", int64_val=int(self._work[row])))
        return attributes

    def _transfer(self, row: int, classes: dict[str, Message]) -> list[Message]:
        columns = self.plan.columns
        return [
            _attribute(classes, "is_cpu_op", bool_val=False),
            _attribute(classes, "comm_src", int32_val=int(columns.rank[row])),
            _attribute(classes, "comm_dst", int32_val=int(columns.peer[row])),
            _attribute(classes, "comm_size", int64_val=int(self.plan.op_bytes[row])),
            _attribute(classes, "comm_tag", int32_val=row),
        ]


def _attribute(classes: dict[str, Message], name: str, **value: object) -> Message:
    return classes["AttributeProto"](name=name, **value)


def _name(plan: Plan, row: int, end: int) -> str:
    """Name a node by its operation."""
    columns = plan.columns
    if columns.op[row] != TRANSFER:
        return str(plan.op(row))
    what = ("send to", "receive from")[end]
    other = columns.peer[row] if end == 0 else columns.rank[row]
    level, stream = int(columns.level[row]), plan.streams[columns.stream[row]]
    return f"{what} {int(other)}, level {level} on {stream}"


__all__ = ["INSTALL", "check_chakra", "check_plan", "check_ranks", "traces", "write_chakra"]
