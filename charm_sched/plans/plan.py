"""The plan: one immutable table of operations that every interpreter reads.

Rows are program order: an operation reads what rows above it wrote. Columns are read-only NumPy
arrays, operand lists in compressed sparse row form, because 1,024 ranks mean millions of rows.

Slots. An operand is (item, slot); the slot says where the result that belongs to the operand goes:
at a query its ``o`` (``dq``), at a key its ``dkv``, at a transfer's item its destination. A slot is
a numbered buffer of the rank, or home (`HOME`): for part 0 on the owner of the rows the owner's own
buffer, otherwise the slot that the first contribution named. A contribution to a partial result
that names the home is added in place and waits for all earlier contributions in row order. One
that names another slot is *staged*: it waits for nobody and is combined after the earlier ones;
only then is its slot free. Readers wait for the last combine. Dependencies follow from this and
are derived in `hazards`, never stored.

Levels. The transfers of one (rank, stream, level) are a batch; batches of a stream run in order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from charm_sched.errors import PlanError
from charm_sched.masks.mask import Mask
from charm_sched.partition import Partition
from charm_sched.plans.finals import find_finals, operand_bytes
from charm_sched.plans.items import KINDS, KV_AXIS, ItemTable
from charm_sched.plans.ops import Attend, Merge, Op, Operands, Transfer
from charm_sched.plans.symmetry import Names, Symmetry, received
from charm_sched.workload import Workload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from charm_sched.topology.graph import Topology

TRANSFER, ATTEND, MERGE = range(3)
OP_NAMES = ("transfer", "attend", "merge")
DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True, eq=False, kw_only=True)
class Columns:
    """The operations, one row each.

    Attributes:
        op: `TRANSFER`, `ATTEND` or `MERGE`, uint8.
        rank: The acting rank; the source of a transfer, int32.
        peer: The destination of a transfer; -1 otherwise, int32.
        level: Level of a transfer on its stream; -1 otherwise, int32.
        stream: Index into `Plan.streams`, int16.
        part: Part that an attend adds into; 0 otherwise, int16.
        lead: Number of leading operands: queries, a merge's inputs, all items of a transfer, int32.
        ptr: Operands of row ``i`` are ``arg/slot[ptr[i]:ptr[i + 1]]``, int64.
        arg: Index into `Plan.items`, int32.
        slot: Slot number of the operand's result, or `HOME`, int32.
    """

    op: NDArray[np.uint8]
    rank: NDArray[np.int32]
    peer: NDArray[np.int32]
    level: NDArray[np.int32]
    stream: NDArray[np.int16]
    part: NDArray[np.int16]
    lead: NDArray[np.int32]
    ptr: NDArray[np.int64]
    arg: NDArray[np.int32]
    slot: NDArray[np.int32]


@dataclass(frozen=True, eq=False, kw_only=True)
class Residents:
    """Copies that stay in slots from the end of the forward to the backward.

    Attributes:
        rank: Where, int32.
        item: Index into `Plan.items`, int32.
        slot: The slot that holds it, int32.
    """

    rank: NDArray[np.int32]
    item: NDArray[np.int32]
    slot: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """What one pass of attention does, on every rank.

    Attributes:
        direction: ``forward`` or ``backward``.
        strategy: Name of the algorithm that made it.
        params: Its parameters.
        workload: What is computed.
        partition: Who owns which rows.
        devices: The topology's device of each rank; empty when the plan names none.
        topology: The machine it was made for; None when made for none.
        streams: Names of the streams.
        items: All items mentioned.
        columns: The operations.
        saved: Forward: what stays resident at its end. Backward: what is resident at its start.
        symmetry: Each row stands for all its translates; None: for itself.
    """

    direction: str
    strategy: str
    workload: Workload
    partition: Partition
    streams: tuple[str, ...]
    items: ItemTable
    columns: Columns
    saved: Residents
    params: Mapping[str, object] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    topology: Topology | None = None
    symmetry: Symmetry | None = None

    def __len__(self) -> int:
        return len(self.columns.op)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.partition.num_ranks

    @property
    def copies(self) -> int:
        """For how many operations each row stands."""
        return self.symmetry.order if self.symmetry else 1

    @cached_property
    def names(self) -> Names:
        """Items as translated ranks see them.

        Raises:
            PlanError: The plan has no symmetry, or does not look the same from all its ranks.
        """
        if self.symmetry is None:
            raise PlanError("plan: expected a symmetry, found none")
        return Names(self, self.symmetry)

    @cached_property
    def received(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Destination of each row and item of each operand, as a representative sees them."""
        return received(self)

    def op(self, row: int) -> Op:
        """Give one row as a readable value."""
        columns = self.columns
        start, end = int(columns.ptr[row]), int(columns.ptr[row + 1])
        middle = start + int(columns.lead[row])
        rank, stream = int(columns.rank[row]), self.streams[columns.stream[row]]
        lead, rest = self._operands(start, middle), self._operands(middle, end)
        match int(columns.op[row]):
            case 0:
                peer, level = int(columns.peer[row]), int(columns.level[row])
                return Transfer(src=rank, dst=peer, items=lead, level=level, stream=stream)
            case 1:
                part = int(columns.part[row])
                return Attend(rank=rank, queries=lead, keys=rest, stream=stream, part=part)
            case _:
                return Merge(rank=rank, inputs=lead, output=rest[0], stream=stream)

    def ops(self) -> Iterator[Op]:
        """Yield all rows as readable values, in program order."""
        return (self.op(row) for row in range(len(self)))

    def describe(self, row: int) -> str:
        """Name a row in a message: its number and its text form."""
        return f"op {row} ({self.op(row)})"

    def _operands(self, start: int, end: int) -> Operands:
        columns = self.columns
        return tuple((self.items[columns.arg[i]], int(columns.slot[i])) for i in range(start, end))

    def rebind(self, mask: Mask | str) -> Plan:
        """Give the same plan for another mask: same transfers, new areas.

        Verify the result: a mask that shows more than this plan computes is refused there.
        """
        return replace(self, workload=replace(self.workload, mask=mask))

    @cached_property
    def row_owner(self) -> NDArray[np.int32]:
        """Rank that owns all rows of a row set, or -1 where none does."""
        import numpy as np

        runs = sorted(
            (first, last, rank)
            for rank, shard in enumerate(self.partition.shards)
            for first, last in shard
        )
        starts = np.array([run[0] for run in runs], np.int64)
        ends = np.array([run[1] for run in runs], np.int64)
        ranks = np.array([run[2] for run in runs], np.int32)
        items = self.items
        at = np.searchsorted(starts, items.row_lo, side="right") - 1
        owner = np.where(items.row_hi <= ends[at], ranks[at], -1).astype(np.int32)
        if not len(items.row_ptr) - 1:
            return np.zeros(0, np.int32)
        low = np.minimum.reduceat(owner, items.row_ptr[:-1])
        high = np.maximum.reduceat(owner, items.row_ptr[:-1])
        return np.where(low == high, low, -1).astype(np.int32)

    @cached_property
    def item_owner(self) -> NDArray[np.int32]:
        """Rank that owns an item's rows, or -1."""
        owners: NDArray[np.int32] = self.row_owner[self.items.rows]
        return owners

    @cached_property
    def item_heads(self) -> tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]:
        """First and past-the-last head of each item, on the query-head axis."""
        import numpy as np

        items = self.items
        share = np.where(np.isin(items.kind, KV_AXIS), self.workload.heads_per_kv, 1)
        return items.head_lo * share, items.head_hi * share

    @cached_property
    def item_extent(self) -> NDArray[np.int64]:
        """Number of an item's extent: its rows and its range on the query-head axis.

        Items of equal extent describe the same rectangle, so a query, its ``o`` and its ``dq``, or
        a key and its ``dkv``, have the same number.
        """
        import numpy as np

        span, (low, high) = self.workload.heads + 1, self.item_heads
        packed = (self.items.rows.astype(np.int64) * span + low) * span + high
        return np.unique(packed, return_inverse=True)[1].reshape(-1).astype(np.int64)

    @cached_property
    def item_bytes(self) -> NDArray[np.int64]:
        """Bytes of each item on the wire, whole batch; of results that are not final."""
        return self.bytes_as(self.items.kind)

    @cached_property
    def finals(self) -> NDArray[np.bool_]:
        """Whether each operand is a final result on its way home (see `plans.finals`)."""
        return find_finals(self)

    def bytes_as(self, kind: NDArray[np.uint8], *, final: bool = False) -> NDArray[np.int64]:
        """Bytes that each item's rectangle takes as another kind (a key as its ``dkv``)."""
        import numpy as np

        items = self.items
        width = np.array([self.workload.row_bytes(name, final=final) for name in KINDS], np.int64)
        heads = (items.head_hi - items.head_lo).astype(np.int64)
        volume: NDArray[np.int64] = items.row_counts[items.rows] * heads * width[kind]
        return volume

    @cached_property
    def op_bytes(self) -> NDArray[np.int64]:
        """Bytes that each transfer moves; 0 for other rows."""
        import numpy as np

        ends = np.concatenate([[0], np.cumsum(operand_bytes(self))])
        moved = ends[self.columns.ptr[1:]] - ends[self.columns.ptr[:-1]]
        return np.where(self.columns.op == TRANSFER, moved, 0).astype(np.int64)

    @cached_property
    def num_levels(self) -> int:
        """The largest number of levels on any (rank, stream)."""
        import numpy as np

        columns = self.columns
        moves = np.flatnonzero(columns.op == TRANSFER)
        if not len(moves):
            return 0
        ends = np.concatenate([columns.rank[moves], self.received[0][moves]]).astype(np.int64)
        lanes = ends * len(self.streams) + np.tile(columns.stream[moves], 2)
        batches = np.unique(np.stack([lanes, np.tile(columns.level[moves], 2)]), axis=1)
        return int(np.unique(batches[0], return_counts=True)[1].max())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that decides what the ranks do."""
        header = {
            "direction": self.direction,
            "strategy": self.strategy,
            "workload": self.workload.to_document(),
            "partition": [self.partition.kind, self.partition.seq_len, self.partition.shards],
            "devices": self.devices,
            "topology": self.topology.to_document() if self.topology else None,
            "streams": self.streams,
            "params": dict(self.params),
        }
        if self.symmetry:
            header["symmetry"] = self.symmetry.to_document()
        state = hashlib.sha256(json.dumps(header, sort_keys=True, default=str).encode())
        for table in (self.columns, self.items, self.saved):
            for name in table.__dataclass_fields__:
                column = getattr(table, name)
                state.update(f"{name}:{column.dtype.str}:{len(column)};".encode())
                state.update(column.tobytes())
        return state.hexdigest()


@dataclass(frozen=True, eq=False, kw_only=True)
class Schedule:
    """A forward plan, a backward plan, and what stays resident between them.

    Raises:
        PlanError: The two plans differ in workload, partition, devices or residents.
    """

    forward: Plan
    backward: Plan

    def __post_init__(self) -> None:
        first, second = self.forward, self.backward
        if (first.direction, second.direction) != DIRECTIONS:
            raise PlanError(
                f"schedule: expected a forward and a backward plan, "
                f"found {first.direction} and {second.direction}"
            )
        for name in ("workload", "partition", "devices"):
            if getattr(first, name) != getattr(second, name):
                raise PlanError(f"schedule: the two plans differ in {name}")
        if residents_of(first) != residents_of(second):
            raise PlanError(
                "schedule: what the forward plan keeps resident is not what the backward plan "
                "starts from; plan the backward with the forward's saved items"
            )

    @property
    def plans(self) -> tuple[Plan, Plan]:
        """Both plans, forward first."""
        return self.forward, self.backward

    @cached_property
    def digest(self) -> str:
        """SHA-256 over both plans."""
        return hashlib.sha256((self.forward.digest + self.backward.digest).encode()).hexdigest()


def check_stream(name: str) -> None:
    """Check that a stream's name can stand in an operation's text form.

    Raises:
        PlanError: It is empty or holds white space.
    """
    if not name or name.split() != [name]:
        raise PlanError(f"stream: expected a name without white space, found {name!r}")


def whole(values: object, dtype: type[np.integer[Any]], what: str) -> NDArray[Any]:
    """Give whole numbers in a column's type.

    Raises:
        PlanError: They are no whole numbers, or do not fit.
    """
    import numpy as np

    found = np.asarray(values)
    if found.dtype.kind not in "iu" and found.size:
        raise PlanError(f"{what}: expected whole numbers, found {found.dtype}")
    limits = np.iinfo(dtype)
    if found.size and not limits.min <= found.min() <= found.max() <= limits.max:
        worst = found.max() if found.max() > limits.max else found.min()
        raise PlanError(f"{what}: expected numbers up to {limits.max}, found {worst}")
    return found.astype(dtype)


def residents_of(plan: Plan) -> tuple[tuple[int, str, int], ...]:
    """List a plan's saved items by value: (rank, item, slot), sorted."""
    saved = plan.saved
    return tuple(
        sorted(
            (int(rank), str(plan.items[item]), int(slot))
            for rank, item, slot in zip(saved.rank, saved.item, saved.slot, strict=True)
        )
    )


def program(plan: Plan, rank: int) -> NDArray[np.int64]:
    """Give the rows that one rank takes part in, in program order.

    Raises:
        PlanError: The plan holds the operations of representatives alone.
    """
    import numpy as np

    if plan.symmetry:
        raise PlanError(
            f"plan: expected the operations of all {plan.num_ranks} ranks, found those of "
            f"{len(plan.symmetry.representatives())} representatives; expand it "
            "(charm_sched.plans.symmetry.expand)"
        )
    columns = plan.columns
    return np.flatnonzero((columns.rank == rank) | (columns.peer == rank))
