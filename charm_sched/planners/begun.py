"""Which partial results there are, under masks that hide a rank's own keys from it.

Schedules that let a gradient travel behind its keys begin it at the owner, which sees its own keys
under every mask in which tokens see themselves. Blocks need not show that: then a gradient begins
wherever the first query is that sees the keys, and before there is nothing to send.
"""

from __future__ import annotations

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.plans.builder import Builder


class Begun:
    """Follows partial results from rank to rank; costs nothing where tokens see themselves.

    Attributes:
        needed: Whether a mask may hide a rank's own keys.
    """

    def __init__(self, b: Builder) -> None:
        self._b = b
        self.needed = b.workload.mask_rule.kind == "blocks"
        self._there: set[tuple[int, int]] = set()

    def attend(
        self,
        queries: Ints,
        keys: Ints,
        *,
        results: Ints | None = None,
        gradients: Ints | None = None,
    ) -> None:
        """Note what an attend of all ranks adds to.

        Args:
            queries: Query items of each rank, ``[ranks]`` or ``[ranks, operands]``.
            keys: Key items, likewise.
            results: The ``o`` or ``dq`` of each query; None where nobody sends them.
            gradients: The ``dkv`` of each key, likewise.
        """
        if not self.needed:
            return
        count = len(queries)
        queries, keys = queries.reshape(count, -1), keys.reshape(count, -1)
        seen = self._b.areas(queries[:, :, None], keys[:, None, :]) > 0
        for items, met in ((results, seen.any(2)), (gradients, seen.any(1))):
            if items is not None:
                ranks = np.nonzero(met)[0]
                self._there.update(
                    zip(ranks.tolist(), items.reshape(count, -1)[met].tolist(), strict=True)
                )

    def move(self, src: Ints, dst: Ints, items: Ints) -> Ints:
        """Give the items that are there to be sent, -1 for others, and note where they go.

        Args:
            src: Sending ranks, ``[messages]``.
            dst: Receiving ranks, likewise.
            items: Partial results, ``[messages]`` or ``[messages, operands]``.
        """
        if not self.needed:
            return items
        sent = np.full(items.shape, -1, np.int64)
        moved: list[tuple[int, int]] = []
        for at in np.ndindex(items.shape):
            one, item = int(src[at[0]]), int(items[at])
            if (one, item) in self._there:
                self._there.remove((one, item))
                moved.append((int(dst[at[0]]), item))
                sent[at] = item
        self._there.update(moved)
        return sent
