"""Builder: how a strategy writes a plan.

Calls are vectorised over ranks. With ``r = b.ranks`` and ``kv = b.shards("kv")``, one step of a
ring for all ranks is::

    b.transfer(src=r, dst=(r + 1) % n, items=kv[(r - t) % n], level=t, stream="ring",
               slot=(t + 1) % 2)

What is not there is dropped: operands of empty shards, and (query, key) operands that share no
unmasked pair. A call may name an ``order`` key per row; `build` then sorts all rows by it (equal
keys keep call order). The rows of one batch (rank, stream, level) should share one key.

Changing this file never changes what a plan means: the verifier does not know the builder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from charm_sched.arrays import Bools, Floats, Ints
from charm_sched.errors import PlanError
from charm_sched.masks.areas import row_set_areas
from charm_sched.partition import Partition, Rows, split_rows
from charm_sched.plans.items import HOME, KINDS, KV_AXIS, Item, ItemInterner
from charm_sched.plans.plan import (
    ATTEND,
    MERGE,
    TRANSFER,
    Columns,
    Plan,
    Residents,
    check_stream,
    whole,
)  # fmt: skip
from charm_sched.plans.symmetry import Symmetry, folded
from charm_sched.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from charm_sched.plans.items import ItemTable
    from charm_sched.topology.graph import Topology


IntLike: TypeAlias = "int | Sequence[int] | Ints"
FloatLike: TypeAlias = "float | Sequence[float] | Floats | Ints"


Table = TypeVar("Table")


class Builder:
    """Collects operations and makes a `Plan`.

    Attributes:
        workload: What is computed.
        partition: Who owns which rows.
        direction: ``forward`` or ``backward``.
        topology: The machine; None where a plan is made for none.
        devices: The topology's device of each rank.
        saved: Residents that the forward keeps, as (rank, item, slot); the backward may read them.
        symmetry: Write the operations of representatives alone: `ranks` are those.
    """

    def __init__(
        self,
        workload: Workload,
        partition: Partition,
        *,
        direction: str = "forward",
        topology: Topology | None = None,
        devices: Sequence[str] = (),
        saved: Sequence[tuple[int, Item, int]] = (),
        symmetry: Symmetry | None = None,
    ) -> None:
        if partition.seq_len != workload.seq_len:
            raise PlanError(
                f"builder: the partition covers {partition.seq_len} tokens, "
                f"the workload has {workload.seq_len}"
            )
        self.workload = workload
        self.partition = partition
        self.direction = direction
        self.symmetry = symmetry
        self.topology = topology
        self.devices = tuple(devices)
        self.saved = tuple(saved) if direction == "backward" else ()
        self._keep: list[tuple[int, Item, int]] = []
        self._intern = ItemInterner()
        self._streams: dict[str, int] = {}
        self._calls: list[dict[str, NDArray[np.generic]]] = []
        self._ordered: set[bool] = set()
        self._table: ItemTable | None = None

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.partition.num_ranks

    @property
    def ranks(self) -> Ints:
        """All ranks, ``[num_ranks]``; with a symmetry the representatives alone."""
        return self.symmetry.representatives() if self.symmetry else np.arange(self.num_ranks)

    def item(
        self, kind: str, rows: Rows, heads: tuple[int, int] | None = None, part: int = 0
    ) -> int:
        """Number an item; all heads when ``heads`` is None, -1 when ``rows`` is empty."""
        if not rows:
            return -1
        axis = self.workload.num_kv_heads if KINDS.index(kind) in KV_AXIS else self.workload.heads
        return self._intern(Item(kind, rows, heads or (0, axis), part))

    def shards(self, kind: str, part: int = 0) -> Ints:
        """Number the whole shard of each rank as an item of ``kind``: ``[num_ranks]``."""
        shards = self.partition.shards
        return np.array([self.item(kind, rows, part=part) for rows in shards], np.int64)

    def pieces(self, kind: str, parts: int, part: int = 0) -> Ints:
        """Number each shard cut into ``parts`` pieces of rows: ``[num_ranks, parts]``."""
        return np.array(
            [
                [self.item(kind, piece, part=part) for piece in split_rows(rows, parts)]
                for rows in self.partition.shards
            ],
            np.int64,
        )

    def transfer(
        self,
        *,
        src: IntLike,
        dst: IntLike,
        items: IntLike,
        level: IntLike,
        stream: str,
        slot: IntLike = HOME,
        order: FloatLike | None = None,
    ) -> None:
        """Add transfers, one per element of ``src``.

        Args:
            src: Sources, ``[n]`` or one number.
            dst: Destinations, broadcast against ``src``.
            items: Item numbers, ``[n]`` or ``[n, items per message]``; -1 is left out.
            level: Levels on the stream.
            stream: Name of the stream.
            slot: Where the destination puts each item, broadcast against ``items``.
            order: Sort keys.

        Raises:
            PlanError: Shapes do not fit each other, or a number is out of range.
        """
        with _named("transfer"):
            source, destination = np.broadcast_arrays(np.atleast_1d(src), np.atleast_1d(dst))
            args, slots = self._operands(items, slot, len(source))
            self._add(
                TRANSFER, source, destination, level, stream, 0, args, slots, args.shape[1], order
            )

    def attend(
        self,
        *,
        rank: IntLike,
        queries: IntLike,
        keys: IntLike,
        stream: str = "compute",
        part: IntLike = 0,
        query_slot: IntLike = HOME,
        key_slot: IntLike = HOME,
        order: FloatLike | None = None,
    ) -> None:
        """Add attends, one per element of ``rank``.

        Args:
            rank: Where, ``[n]`` or one number.
            queries: Query items, ``[n]`` or ``[n, queries]``; -1 is left out.
            keys: Key/value items, ``[n]`` or ``[n, keys]``; -1 is left out.
            stream: Name of the compute stream.
            part: Part of the partial results.
            query_slot: Slot of each query's ``o`` (``dq``).
            key_slot: Slot of each key's ``dkv`` in the backward.
            order: Sort keys.
        """
        with _named("attend"):
            ranks = np.atleast_1d(rank)
            query_args, query_slots = self._operands(queries, query_slot, len(ranks))
            key_args, key_slots = self._operands(keys, key_slot, len(ranks))
            query_args, key_args = self._drop_masked(query_args, key_args)
            gone = _none_left(query_args) | _none_left(key_args)
            args = np.where(gone[:, None], -1, np.hstack([query_args, key_args]))
            slots = np.hstack([query_slots, key_slots])
            num_queries = query_args.shape[1]
            self._add(ATTEND, ranks, -1, -1, stream, part, args, slots, num_queries, order)

    def merge(
        self,
        *,
        rank: IntLike,
        inputs: IntLike,
        output: IntLike,
        stream: str = "compute",
        slot: IntLike = HOME,
        order: FloatLike | None = None,
    ) -> None:
        """Add merges, one per element of ``rank``; ``slot`` is where the output's result goes."""
        with _named("merge"):
            ranks = np.atleast_1d(rank)
            ins, _ = self._operands(inputs, HOME, len(ranks))
            out, slots = self._operands(output, slot, len(ranks))
            gone = _none_left(ins) | _none_left(out)
            args = np.where(gone[:, None], -1, np.hstack([ins, out]))
            self._add(
                MERGE, ranks, -1, -1, stream, 0, args, np.hstack([np.full_like(ins, HOME), slots]),
                ins.shape[1], order,
            )  # fmt: skip

    def keep(self, *, rank: IntLike, items: IntLike, slot: IntLike) -> None:
        """Say that copies in slots stay resident at the end of the forward."""
        ranks, args, slots = np.broadcast_arrays(np.atleast_1d(rank), items, slot)
        table = self._item_table()
        self._keep += [
            (int(r), table[int(a)], int(s))
            for r, a, s in zip(ranks, args, slots, strict=True)
            if a >= 0
        ]

    def areas(self, queries: Ints, keys: Ints) -> Ints:
        """Count the unmasked (query, key) pairs of query items with key items; 0 for -1."""
        queries, keys = np.broadcast_arrays(queries, keys)
        there = (queries >= 0) & (keys >= 0)
        counts = np.zeros(queries.shape, np.int64)
        table = self._item_table()
        counts[there] = row_set_areas(
            self.workload, table, table.rows[queries[there]], table.rows[keys[there]]
        )
        return counts

    def build(self, strategy: str = "custom", params: Mapping[str, object] | None = None) -> Plan:
        """Make the plan.

        Raises:
            PlanError: Some calls named an order key and some did not.
        """
        if len(self._ordered) > 1:
            raise PlanError("builder: name an order key in every call or in none")
        residents = self._keep if self.direction == "forward" else self.saved
        saved = [(rank, self._intern(item), slot) for rank, item, slot in residents]
        rank, item, slot = np.array(saved, np.int32).reshape(-1, 3).T
        made = Plan(
            direction=self.direction,
            strategy=strategy,
            params=dict(params or {}),
            workload=self.workload,
            partition=self.partition,
            devices=self.devices,
            topology=self.topology,
            streams=tuple(self._streams),
            items=freeze(self._intern.table()),
            columns=freeze(self._sorted_columns()),
            saved=freeze(Residents(rank=rank.copy(), item=item.copy(), slot=slot.copy())),
        )
        return folded(made, self.symmetry) if self.symmetry else made

    def _item_table(self) -> ItemTable:
        if self._table is None or len(self._table) != len(self._intern):
            self._table = self._intern.table()
        return self._table

    def _operands(self, items: IntLike, slot: IntLike, count: int) -> tuple[Ints, Ints]:
        args = whole(items, np.int64, "builder: items")
        if args.size and not -1 <= args.min() <= args.max() < len(self._intern):
            raise PlanError(
                f"builder: items: expected numbers that this builder gave or -1, found {args.max()}"
            )
        args = args[:, None] if args.ndim == 1 else np.atleast_2d(args)
        args = np.broadcast_to(args, (count, args.shape[1]))
        slots = whole(slot, np.int32, "builder: slot").astype(np.int64)
        slots = slots[:, None] if slots.ndim == 1 and len(slots) == count else slots
        return args, np.broadcast_to(slots, args.shape)

    def _drop_masked(self, queries: Ints, keys: Ints) -> tuple[Ints, Ints]:
        """Leave out operands that share no unmasked pair with any operand of the other side."""
        if self.workload.mask_rule.kind == "full":
            return queries, keys
        seen = self.areas(queries[:, :, None], keys[:, None, :]) > 0
        return np.where(seen.any(axis=2), queries, -1), np.where(seen.any(axis=1), keys, -1)

    def _add(
        self,
        op: int,
        rank: Ints,
        peer: Ints | int,
        level: IntLike,
        stream: str,
        part: IntLike,
        args: Ints,
        slots: Ints,
        lead: int,
        order: FloatLike | None,
    ) -> None:
        there = args >= 0
        rows = there.any(axis=1)
        count = int(rows.sum())
        self._ordered.add(order is not None)
        check_stream(stream)
        number = self._streams.setdefault(stream, len(self._streams))

        def column(name: str, values: object, dtype: type[np.integer[Any]]) -> Ints:
            checked = whole(values, dtype, f"builder: {name}")
            return np.broadcast_to(checked, rows.shape)[rows]

        self._calls.append(
            {
                "op": np.full(count, op, np.uint8),
                "rank": column("rank", rank, np.int32),
                "peer": column("dst", peer, np.int32),
                "level": column("level", level, np.int32),
                "stream": whole(np.full(count, number), np.int16, "builder: streams"),
                "part": column("part", part, np.int16),
                "lead": there[:, :lead].sum(axis=1)[rows].astype(np.int32),
                "length": there.sum(axis=1)[rows],
                "order": np.broadcast_to(0.0 if order is None else order, rows.shape)[rows],
                "arg": args[there].astype(np.int32),
                "slot": slots[there].astype(np.int32),
            }
        )

    def _sorted_columns(self) -> Columns:
        empty = np.zeros(0, np.int64)

        def joined(name: str) -> NDArray[np.generic]:
            return np.concatenate([call[name] for call in self._calls]) if self._calls else empty

        length = joined("length").astype(np.int64)
        starts = np.cumsum(length) - length
        arg, slot = joined("arg"), joined("slot")
        names = ("op", "rank", "peer", "level", "stream", "part", "lead")
        columns = {name: joined(name) for name in names}
        if self._ordered == {True}:
            by_key = np.argsort(joined("order"), kind="stable")
            columns = {name: column[by_key] for name, column in columns.items()}
            length, starts = length[by_key], starts[by_key]
            ends = np.cumsum(length)
            where = np.arange(len(arg)) + np.repeat(starts - ends + length, length)
            arg, slot = arg[where], slot[where]
        types = {"op": np.uint8, "stream": np.int16, "part": np.int16}
        typed = {name: c.astype(types.get(name, np.int32)) for name, c in columns.items()}
        return Columns(
            **typed,
            ptr=np.concatenate([[0], np.cumsum(length)]).astype(np.int64),
            arg=arg.astype(np.int32),
            slot=slot.astype(np.int32),
        )


@contextmanager
def _named(call: str) -> Iterator[None]:
    """Turn NumPy's complaint about shapes into a message about a call."""
    try:
        yield
    except PlanError:
        raise
    except (ValueError, TypeError, IndexError) as error:
        raise PlanError(f"builder: {call}: shapes or values do not fit: {error}") from error


def _none_left(args: Ints) -> Bools:
    """Say which rows of operands are all left out."""
    return np.asarray((args < 0).all(axis=1), bool)


def freeze(table: Table) -> Table:
    """Make a table's columns read-only, and give the table back."""
    for name in table.__dataclass_fields__:  # type: ignore[attr-defined]
        getattr(table, name).setflags(write=False)
    return table
