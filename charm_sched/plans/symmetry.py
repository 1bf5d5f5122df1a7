"""Plans that repeat under translations of the ranks: the operations of representatives alone.

Ranks have mixed-radix coordinates, the last one running fastest. A translation adds to the
coordinates of some axes, each modulo its length, without carry. Where topology, partition and mask
look the same from every translated rank, a plan may hold the operations of the ranks with
coordinate 0 on those axes, each for all its translates: the *orbit* of the operation. What arrives
at a rank is then known from who sends to its representative, named as the representative sees it.

`expand` gives the explicit plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from charm_sched.errors import PlanError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from charm_sched.arrays import Ints
    from charm_sched.plans.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Symmetry:
    """Translations of ranks.

    Attributes:
        shape: How many ranks along each axis; their product is the number of ranks.
        axes: The axes along which the ranks may be translated, ascending.

    Raises:
        PlanError: An axis is not there, or a length is below 1.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        known = range(len(self.shape))
        if sorted(set(self.axes)) != list(self.axes) or not set(self.axes) <= set(known):
            raise PlanError(f"symmetry: expected some of the axes 0 to {len(self.shape) - 1}, "
                            f"ascending, found {self.axes}")  # fmt: skip
        if min(self.shape, default=1) < 1:
            raise PlanError(f"symmetry: expected axes of 1 rank or more, found {self.shape}")

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return math.prod(self.shape)

    @property
    def order(self) -> int:
        """Number of translations: for how many operations each one stands."""
        return math.prod(self.shape[axis] for axis in self.axes)

    @cached_property
    def _strides(self) -> tuple[tuple[int, int], ...]:
        """Length and stride of each axis of translation."""
        return tuple((self.shape[axis], math.prod(self.shape[axis + 1 :])) for axis in self.axes)

    def representative(self, ranks: Ints) -> Ints:
        """Give the rank with coordinate 0 on the axes that each rank is a translate of."""
        found = ranks
        for length, stride in self._strides:
            found = found - ranks // stride % length * stride
        return found

    def moved(self, ranks: Ints, by: Ints) -> Ints:
        """Translate ranks by what takes its representative to each rank of ``by``."""
        return self._add(ranks, by, 1)

    def moved_back(self, ranks: Ints, by: Ints) -> Ints:
        """Translate ranks by what takes each rank of ``by`` to its representative."""
        return self._add(ranks, by, -1)

    def _add(self, ranks: Ints, by: Ints, sign: int) -> Ints:
        found = ranks
        for length, stride in self._strides:
            own = ranks // stride % length
            found = found + ((own + sign * (by // stride)) % length - own) * stride
        return found

    def representatives(self) -> Ints:
        """Give the ranks with coordinate 0 on the axes, ascending."""
        import numpy as np

        ranks = np.arange(self.num_ranks)
        return ranks[self.representative(ranks) == ranks]

    def elements(self) -> Ints:
        """Give the translates of rank 0, ascending: one for each translation."""
        import numpy as np

        ranks = np.arange(self.num_ranks)
        return ranks[self.representative(ranks) == 0]

    def to_document(self) -> dict[str, list[int]]:
        """Give a plain dict."""
        return {"shape": list(self.shape), "axes": list(self.axes)}


class Names:
    """The items of a plan as seen from translated ranks.

    An item is told by what it is in its owner's shard; translated, it is the same of the translated
    owner's shard.
    """

    def __init__(self, plan: Plan, symmetry: Symmetry) -> None:
        """Number what items are in their shards.

        Raises:
            PlanError: Shards are not equally long runs of tokens, or an item is in no shard.
        """
        import numpy as np

        items, self._symmetry = plan.items, symmetry
        starts = _shard_starts(plan, symmetry)
        self._owner = plan.item_owner.astype(np.int64)
        if (np.diff(items.row_ptr) != 1).any() or (self._owner < 0).any():
            raise PlanError("symmetry: expected items that are one run of tokens of one shard each")
        low = items.row_lo[items.rows] - starts[self._owner]
        high = items.row_hi[items.rows] - starts[self._owner]
        facts = np.stack([items.kind, items.head_lo, items.head_hi, items.part, low, high])
        length = starts[1] - starts[0] if len(starts) > 1 else plan.workload.seq_len
        whole = np.flatnonzero((low == 0) & (high == length))
        self._sets = np.full(symmetry.num_ranks, -1)
        self._sets[self._owner[whole]] = items.rows[whole]
        self._like = np.unique(facts, axis=1, return_inverse=True)[1].reshape(-1)
        count = int(self._like.max(initial=-1)) + 1
        self._table = np.full((count, symmetry.num_ranks), -1)
        self._table[self._like, self._owner] = np.arange(len(items))

    def shards(self, ranks: Ints) -> Ints:
        """Give the row sets that hold the whole shards of some ranks.

        Raises:
            PlanError: The plan names no shard as a whole.
        """
        found: Ints = self._sets[ranks]
        if (found < 0).any():
            raise PlanError("symmetry: expected an item that is the whole shard of each rank")
        return found

    def moved_back(self, items: Ints, by: Ints) -> Ints:
        """Name items as those see them who are to the representatives what ``by`` ranks are.

        Raises:
            PlanError: The plan has no such item.
        """
        owners = self._symmetry.moved_back(self._owner[items], by)
        return self._named(items, owners)

    def moved(self, items: Ints, by: Ints) -> Ints:
        """Translate items by what takes its representative to each rank of ``by``."""
        return self._named(items, self._symmetry.moved(self._owner[items], by))

    def _named(self, items: Ints, owners: Ints) -> Ints:
        found: Ints = self._table[self._like[items], owners]
        if (found < 0).any():
            raise PlanError(
                "symmetry: a translated item is missing; name what operations move or read on all "
                "ranks, not on the representatives alone"
            )
        return found


def _shard_starts(plan: Plan, symmetry: Symmetry) -> Ints:
    import numpy as np

    shards = plan.partition.shards
    if symmetry.num_ranks != len(shards):
        raise PlanError(
            f"symmetry: expected a shape of {len(shards)} ranks, found {symmetry.num_ranks}"
        )
    lengths = {last - first for shard in shards for first, last in shard}
    if any(len(shard) != 1 for shard in shards) or len(lengths) != 1:
        raise PlanError(
            "symmetry: expected contiguous shards of equal length: a sequence length that the "
            f"{len(shards)} ranks divide"
        )
    if plan.workload.mask_rule.kind != "full":
        raise PlanError(
            f"symmetry: expected a full mask, which looks the same from every rank, found "
            f"{plan.workload.mask_rule}"
        )
    return np.array([shard[0][0] for shard in shards], np.int64)


def received(plan: Plan) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Give where transfers arrive, as representatives see it.

    Returns:
        The destination per row, -1 where the row is no transfer, and the item per operand.
    """
    import numpy as np

    columns, symmetry = plan.columns, plan.symmetry
    if symmetry is None:
        return columns.peer, columns.arg
    peer = columns.peer.astype(np.int64)
    moves = peer >= 0
    ends = np.where(moves, symmetry.representative(peer), -1)
    away = np.repeat(moves, np.diff(columns.ptr))
    arg = columns.arg.astype(np.int64)
    by = np.repeat(peer, np.diff(columns.ptr))[away]
    arg[away] = plan.names.moved_back(arg[away], by)
    return ends.astype(np.int32), arg.astype(np.int32)


def folded(plan: Plan, symmetry: Symmetry) -> Plan:
    """Make a plan of one operation per orbit, written at any translates, one of representatives.

    Raises:
        PlanError: Topology apart, the plan does not look the same from translated ranks.
    """
    import numpy as np

    columns = plan.columns
    if len(plan.saved):
        raise PlanError("symmetry: expected a plan that keeps nothing resident")
    rank = columns.rank.astype(np.int64)
    made = replace(plan, symmetry=symmetry)
    peer, count = columns.peer.astype(np.int64), np.diff(columns.ptr)
    there = np.where(peer >= 0, symmetry.moved_back(peer, rank), -1)
    arg = made.names.moved_back(columns.arg.astype(np.int64), np.repeat(rank, count))
    changed = [symmetry.representative(rank), there, arg]
    ranks, peers, args = (column.astype(np.int32) for column in changed)
    for column in (ranks, peers, args):
        column.setflags(write=False)
    return replace(made, columns=replace(columns, rank=ranks, peer=peers, arg=args))


def expand(plan: Plan) -> Plan:
    """Give the explicit plan: each row's translates in turn, in the place of the row."""
    import numpy as np

    symmetry, columns = plan.symmetry, plan.columns
    if symmetry is None:
        return plan
    elements, copies = symmetry.elements(), symmetry.order
    count = np.diff(columns.ptr)
    by = np.tile(elements, len(plan))
    rank = symmetry.moved(np.repeat(columns.rank.astype(np.int64), copies), by)
    peer = np.repeat(columns.peer.astype(np.int64), copies)
    peer = np.where(peer >= 0, symmetry.moved(np.maximum(peer, 0), by), -1)
    counts = np.repeat(count, copies)
    ptr = np.concatenate([[0], np.cumsum(counts)])
    at = np.arange(ptr[-1]) + np.repeat(np.repeat(columns.ptr[:-1], copies) - ptr[:-1], counts)
    arg = plan.names.moved(columns.arg[at].astype(np.int64), np.repeat(by, counts))
    wide = {
        name: np.repeat(getattr(columns, name), copies)
        for name in ("op", "level", "stream", "part", "lead")
    }
    wide |= {"rank": rank.astype(np.int32), "peer": peer.astype(np.int32)}
    wide |= {"ptr": ptr, "arg": arg.astype(np.int32), "slot": columns.slot[at]}
    for column in wide.values():
        column.setflags(write=False)
    return replace(plan, columns=replace(columns, **wide), symmetry=None)


__all__ = ["Names", "Symmetry", "expand", "folded", "received"]
