"""The three operations of a plan, as readable values with a text form that parses back.

    transfer 0 -> 1: kv[0:64]h0:8@1 | level 0 on ring
    attend 1: q[64:128]h0:32 x kv[0:64]h0:8 | on compute
    merge 1: o[64:128]h0:32.1 => o[64:128]h0:32 | on compute

``@n`` is the slot where the result that belongs to the operand goes; none means home. Plans hold
operations in columns; these values are what `Plan.op` shows and what messages print.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from charm_sched.errors import PlanError
from charm_sched.plans.items import HOME, Item, parse_item

Operand = tuple[Item, int]
Operands = tuple[Operand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Move items from one rank to another as one message."""

    src: int
    dst: int
    items: Operands
    level: int
    stream: str

    def __str__(self) -> str:
        head = f"transfer {self.src} -> {self.dst}: {_join(self.items)}"
        return f"{head} | level {self.level} on {self.stream}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attend:
    """Compute the partial attention of query pieces on key/value pieces as one kernel.

    Adds into ``o`` of each query (forward), or into ``dq`` of each query and ``dkv`` of each key
    (backward), all of the given part.
    """

    rank: int
    queries: Operands
    keys: Operands
    stream: str
    part: int = 0

    def __str__(self) -> str:
        part = f"part {self.part} " if self.part else ""
        operands = f"{_join(self.queries)} x {_join(self.keys)}"
        return f"attend {self.rank}: {operands} | {part}on {self.stream}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """Add partial results of one rank into another partial result of that rank; ends its inputs."""

    rank: int
    inputs: Operands
    output: Operand
    stream: str

    def __str__(self) -> str:
        flow = f"{_join(self.inputs)} => {_join((self.output,))}"
        return f"merge {self.rank}: {flow} | on {self.stream}"


Op: TypeAlias = Transfer | Attend | Merge

_TRANSFER = re.compile(r"transfer (\d+) -> (\d+): (.+) \| level (\d+) on (\S+)", re.ASCII)
_ATTEND = re.compile(r"attend (\d+): (.+) x (.+) \| (?:part (\d+) )?on (\S+)", re.ASCII)
_MERGE = re.compile(r"merge (\d+): (.+) => (\S+) \| on (\S+)", re.ASCII)


def parse_op(text: str) -> Op:
    """Read an operation's text form.

    Raises:
        PlanError: The text is not an operation.
    """
    if match := _TRANSFER.fullmatch(text):
        src, dst, items, level, stream = match.groups()
        return Transfer(
            src=int(src), dst=int(dst), items=_split(items), level=int(level), stream=stream
        )
    if match := _ATTEND.fullmatch(text):
        rank, queries, keys, part, stream = match.groups()
        return Attend(
            rank=int(rank),
            queries=_split(queries),
            keys=_split(keys),
            stream=stream,
            part=int(part or 0),
        )
    if match := _MERGE.fullmatch(text):
        rank, inputs, output, stream = match.groups()
        return Merge(rank=int(rank), inputs=_split(inputs), output=_split(output)[0], stream=stream)
    raise PlanError(f"op: expected transfer, attend or merge in their text form, found {text!r}")


def _join(operands: Operands) -> str:
    return " ".join(f"{item}" if slot == HOME else f"{item}@{slot}" for item, slot in operands)


def _split(text: str) -> Operands:
    operands = []
    for word in text.split():
        item, at, slot = word.partition("@")
        if at and not slot.isdecimal():
            raise PlanError(f"op: expected a slot number behind @, found {word!r}")
        operands.append((parse_item(item), int(slot) if at else HOME))
    return tuple(operands)
