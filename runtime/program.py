"""One rank's part of a plan, resolved: what to wait for, where to read, where to put.

`prepare` turns the plan's columns and derived hazards into plain values once; a run then only
follows them. Nothing here knows a strategy.

A *version* is the life of one content on this rank (see `charm_sched.proof.hazards`): a copy in a
slot, or a partial result from its first contribution to the read that ends it. Contributions are
combined in row order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from charm_sched.partition import Rows
from charm_sched.plans.items import Item
from charm_sched.plans.plan import Plan
from charm_sched.runtime.layout import Layout, Window
from charm_sched.runtime.numerics import Precision
from charm_sched.runtime.tiles import Cutter, Tile


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a read finds what it reads.

    Attributes:
        kind: Kind of the content.
        version: Number of the version; None for the rank's own rows.
        window: The rectangle that is read, inside the content.
    """

    kind: str
    version: int | None
    window: Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Where a contribution goes.

    Attributes:
        version: Number of the version.
        order: How many contributions come before it.
        slot: The slot it waits in when staged; None where it is added in place.
        layout: How it lies in that slot.
    """

    version: int
    order: int
    slot: int | None
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The life of one content on this rank.

    Attributes:
        item: What it is, as an item of its own kind.
        slot: The slot it lives in; None for the rank's own accumulator.
        window: Its rectangle inside the accumulator; all of it in a slot.
        layout: How it lies in the slot.
        copied: Whether it is a copy rather than a partial result.
        resident: Whether it is there at the start.
    """

    item: Item
    slot: int | None
    window: Window
    layout: Layout
    copied: bool
    resident: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """The source end of a transfer.

    Attributes:
        row: Row in the plan.
        peer: Destination.
        lane: Number of the stream.
        sources: What is read.
        layout: The message.
        whole: Version that can be sent as it lies in its slot; None where it must be packed.
    """

    row: int
    peer: int
    lane: int
    sources: tuple[Source, ...]
    layout: Layout
    whole: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """The destination end of a transfer.

    Attributes:
        row: Row in the plan.
        peer: Source.
        lane: Number of the stream.
        sinks: Where the items go.
        layout: The message.
        direct: Slot that can take the message as it comes; None where it must be unpacked.
    """

    row: int
    peer: int
    lane: int
    sinks: tuple[Sink, ...]
    layout: Layout
    direct: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A query and a key operand of one attend that share heads, whatever the mask.

    Attributes:
        query: Number of the query.
        key: Number of the key.
        heads: See `Pair`.
        query_rows: The query's tokens.
        key_rows: The key's tokens.
    """

    query: int
    key: int
    heads: tuple[tuple[slice, slice], ...]
    query_rows: Rows
    key_rows: Rows

    def under(self, cut: Cutter) -> Pair | None:
        """Give what of it a mask shows; None where it shows nothing."""
        tiles = cut(self.query_rows, self.key_rows)
        if not tiles:
            return None
        return Pair(query=self.query, key=self.key, heads=self.heads, tiles=tiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A query and a key operand that meet.

    Attributes:
        query: Number of the query.
        key: Number of the key.
        heads: Runs of query heads and of the KV heads that serve them, inside the operands; the
            second number divides the first in each.
        tiles: Which pairs of rows are visible.
    """

    query: int
    key: int
    heads: tuple[tuple[slice, slice], ...]
    tiles: tuple[Tile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """An attend.

    Attributes:
        row: Row in the plan.
        queries: The queries.
        grads: Their g; empty in the forward.
        keys: The keys and values.
        meetings: Who meets whom.
        pairs: What of that the mask shows.
        query_sinks: Where each query's o (dq) goes.
        key_sinks: Where each key's dkv goes; empty in the forward.
    """

    row: int
    queries: tuple[Source, ...]
    grads: tuple[Source, ...]
    keys: tuple[Source, ...]
    meetings: tuple[Meeting, ...]
    pairs: tuple[Pair, ...]
    query_sinks: tuple[Sink, ...]
    key_sinks: tuple[Sink, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """A merge.

    Attributes:
        row: Row in the plan.
        inputs: The partial results.
        windows: Where each lies inside the output.
        sink: Where the output goes.
    """

    row: int
    inputs: tuple[Source, ...]
    windows: tuple[Window, ...]
    sink: Sink


Step: TypeAlias = "Send | Receive | Compute | Combine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One rank's part of a plan.

    Attributes:
        plan: The plan.
        rank: The rank.
        precision: Its dtypes.
        steps: The rank's steps, in program order.
        waits: How many events each step waits for.
        releases: The steps that wait for each step.
        gates: For each batch of transfers (one level of one stream): its steps, and the steps of
            the next batch, which wait until all of them have ended.
        versions: All versions.
        slots: Bytes of each slot.
        residents: Forward: versions to keep, by the item's text.
        started: Backward: residents that are there at the start, by the item's text.
    """

    plan: Plan
    rank: int
    precision: Precision
    steps: tuple[Step, ...]
    waits: tuple[int, ...]
    releases: tuple[tuple[int, ...], ...]
    gates: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    versions: tuple[Version, ...]
    slots: dict[int, int] = field(default_factory=dict)
    residents: dict[str, int] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)

    def rebound(self, plan: Plan, cut: Cutter) -> Program:
        """Give the program of the same plan under another mask, that of ``cut``: tiles differ."""
        return replace(self, plan=plan, steps=tuple(_under(step, cut) for step in self.steps))


def visible_pairs(meetings: Iterable[Meeting], cut: Cutter) -> tuple[Pair, ...]:
    """Give what a mask shows of an attend."""
    found = (meeting.under(cut) for meeting in meetings)
    return tuple(pair for pair in found if pair is not None)


def _under(step: Step, cut: Cutter) -> Step:
    if not isinstance(step, Compute):
        return step
    return replace(step, pairs=visible_pairs(step.meetings, cut))
