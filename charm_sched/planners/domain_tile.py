"""Where the queries and keys of a domain's tile come from, rank by rank, and who needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Bools, Ints
from charm_sched.partition import split_rows
from charm_sched.planners.domain_shape import SIDES, Shape
from charm_sched.plans.items import KINDS, KV_AXIS

if TYPE_CHECKING:
    from charm_sched.plans.builder import Builder


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """One of the two things that a rank gathers, queries or keys.

    A place ``(t, s)`` is the shard of the rank ``s`` places before a rank in its domain, in the
    t-th domain from which its domain gets this; ``(0, 0)`` is the rank's own. Places count head
    groups first, then rows or columns.

    Attributes:
        name: One of `SIDES`.
        owners: Owner of each place, ``[across, inside, ranks]``.
        before: From whom a rank gets a place inside its domain, ``[inside, ranks]``.
        after: To whom it passes one on, likewise.
        kinds: Items that travel together.
        result: What comes back; empty for nothing.
    """

    name: str
    owners: Ints
    before: Ints
    after: Ints
    kinds: tuple[str, ...]
    result: str

    @property
    def across(self) -> int:
        """Domains from which this comes, the own one included."""
        return self.owners.shape[0]

    @property
    def inside(self) -> int:
        """Ranks of a domain from which this comes, itself included."""
        return self.owners.shape[1]

    def places(self, pieces: int) -> Iterator[tuple[int, int, int]]:
        """Yield all (t, s, piece)."""
        yield from np.ndindex(self.across, self.inside, pieces)


def sides_of(nodes: Ints, shape: Shape, direction: str) -> tuple[Side, Side]:
    """Give the two sides of a tile.

    Args:
        nodes: Ranks of each domain, ``[domains, ranks of one]``.
        shape: What each domain and rank computes.
        direction: ``forward`` or ``backward``.
    """
    backward = direction == "backward"
    kinds = (("q", "g") if backward else ("q",), ("kv",))
    results = ("dq" if backward else "o", "dkv" if backward else "")
    box = (shape.groups, shape.rows, shape.columns)
    inner_box = (shape.inner_groups, shape.inner_rows, shape.inner_columns)
    found = []
    for name, axis, moved, result in zip(SIDES, (1, 2), kinds, results, strict=True):
        outer, inner = _turns(box, axis), _turns(inner_box, axis)
        owners = np.zeros((len(outer), len(inner), nodes.size), np.int64)
        owners[:, :, nodes.ravel()] = nodes[
            outer[:, None, :, None], inner[None, :, None, :]
        ].reshape(len(outer), len(inner), -1)
        found.append(
            Side(
                name=name, owners=owners, before=owners[0], after=np.argsort(owners[0], axis=1),
                kinds=moved, result=result,
            )
        )  # fmt: skip
    return found[0], found[1]


def _turns(box: tuple[int, int, int], axis: int) -> Ints:
    """Give who stands before each place of a box by some groups and some steps along an axis."""
    places = np.arange(np.prod(box)).reshape(box)
    return np.array(
        [
            np.roll(np.roll(places, group, axis=0), step, axis=axis).ravel()
            for group in range(box[0])
            for step in range(box[axis])
        ]
    )


class Pieces:
    """The shards in pieces, for head groups of domains and of ranks, and who needs which.

    Attributes:
        count: Pieces of each shard.
        outer: Head group of each rank's domain, ``[ranks]``.
        inner: Head group of each rank inside its domain, ``[ranks]``.
        areas: Unmasked pairs, ``[owner of queries, piece, owner of keys, piece]``.
    """

    def __init__(self, b: Builder, nodes: Ints, shape: Shape, count: int) -> None:
        self._b, self.count, self._shape = b, count, shape
        self.outer, self.inner = np.zeros((2, b.num_ranks), np.int64)
        box = (shape.groups, -1, shape.inner_groups, shape.inner_rows * shape.inner_columns)
        ranks = nodes.reshape(box)
        self.outer[ranks] = np.arange(shape.groups)[:, None, None, None]
        self.inner[ranks] = np.arange(shape.inner_groups)[:, None]
        self._rows = [split_rows(shard, count) for shard in b.partition.shards]
        self._known: dict[tuple[str, int, int], Ints] = {}
        q, kv = (self._table(kind, 1, 0) for kind in ("q", "kv"))
        self.areas = b.areas(q[:, :, None, None], kv)

    def _table(self, kind: str, groups: int, group: int) -> Ints:
        """Number the pieces of all shards for one of some head groups, ``[ranks, pieces]``."""
        key = (kind, groups, group)
        if key not in self._known:
            size = self._heads(kind) // groups
            heads = (group * size, (group + 1) * size)
            self._known[key] = np.array(
                [[self._b.item(kind, rows, heads) for rows in of] for of in self._rows], np.int64
            )
        return self._known[key]

    def _heads(self, kind: str) -> int:
        work = self._b.workload
        return work.num_kv_heads if KINDS.index(kind) in KV_AXIS else work.heads

    def shares(self, kind: str) -> tuple[int, int]:
        """Give into how many parts the heads are dealt, to domains and to ranks."""
        outer = self._shape.groups
        return min(outer, self._heads(kind)), min(
            outer * self._shape.inner_groups, self._heads(kind)
        )

    def share_of(self, kind: str, outer: int | Ints, inner: int | Ints) -> Ints:
        """Give which part a head group of a domain and a rank is."""
        parts = self._shape.groups * self._shape.inner_groups
        return np.asarray(
            (outer * self._shape.inner_groups + inner) * self.shares(kind)[1] // parts
        )

    def of_domain(self, kind: str, owners: Ints, piece: int) -> Ints:
        """Number the pieces of some owners, the heads of each rank's domain: ``[ranks]``."""
        count = self.shares(kind)[0]
        tables = np.array([self._table(kind, count, group) for group in range(count)])
        return np.asarray(tables[self.outer * count // self._shape.groups, owners, piece])

    def of_share(self, kind: str, owners: Ints, piece: int, share: int | Ints) -> Ints:
        """Number the pieces of some owners, the heads of one part: ``[ranks]``."""
        count = self.shares(kind)[1]
        tables = np.array([self._table(kind, count, group) for group in range(count)])
        return np.asarray(tables[share, owners, piece])

    def home_shares(self, kind: str) -> list[Ints]:
        """List the parts that each rank attends of its own domain's queries and keys."""
        every = [self.share_of(kind, group, self.inner) for group in range(self._shape.groups)]
        return list({share.tobytes(): share for share in every}.values())

    def own_share(self, kind: str) -> Ints:
        """Give the part that each rank attends of other domains' queries or keys."""
        return self.share_of(kind, self.outer, self.inner)

    def domain_shares(self, kind: str) -> list[Ints]:
        """List the parts that the ranks of each rank's domain attend."""
        inner = range(self._shape.inner_groups)
        every = [self.share_of(kind, self.outer, group) for group in inner]
        return list({share.tobytes(): share for share in every}.values())

    def needs(self, sides: tuple[Side, Side], allowed: Bools) -> dict[str, Bools]:
        """Say which pieces each rank attends, ``[across, inside, piece, ranks]`` per side.

        Args:
            sides: Queries and keys.
            allowed: Whether the queries of a domain meet the keys of another here, ``[across,
                across]``.
        """
        queries, keys = sides
        seen = self.areas > 0
        found = {
            side.name: np.zeros((side.across, side.inside, self.count, len(self.outer)), bool)
            for side in sides
        }
        for t, row in enumerate(allowed):
            columns = np.flatnonzero(row)
            for s, piece in np.ndindex(queries.inside, self.count):
                # [across, inside, ranks, piece of the keys]
                pairs = seen[queries.owners[t, s], piece, keys.owners[columns]]
                found["queries"][t, s, piece] = pairs.any(axis=(0, 1, 3))
                found["keys"][columns] |= np.moveaxis(pairs, 3, 2)
        return found


__all__ = ["Pieces", "Side", "sides_of"]
