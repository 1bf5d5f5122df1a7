"""Pass-Q: keys and values stay, queries travel, and partial results return to their owners.

Forward as TokenRing (arXiv:2412.20501; ACA-Lab-SJTU/token-ring): rank r gets the queries of rank
r + t at step t, and sends the partial output straight to its owner on a second stream while it
computes the next. (The ring pass-Q of arXiv:2411.01783 collects them in the end.) Queries go on as
far as some rank needs them; of zigzag shards in two pieces just the late half goes on. In the
backward, which TokenRing leaves out, the gradient of the output travels beside the queries, dQ
returns and dKV never moves. With ``direct`` off the sums travel behind the queries instead, P hops
to their home, as dQ in the backward of BurstAttention (arXiv:2403.09347;
MayDomine/Burst-Attention).

Two buffers for queries and two for sums per rank keep the ring in lock-step, so a step takes
``max(transfer, attend)``. Cheaper than moving KV where queries are few, and in the backward where
every query head has its own KV head.
"""

from __future__ import annotations

import numpy as np

from charm_sched.arrays import Bools, Ints
from charm_sched.errors import StrategyError
from charm_sched.planners.slots import Slots
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import HOME


def pass_q(b: Builder, *, direct: bool = True, pieces: int = 2) -> None:
    """Write pass-Q.

    Args:
        b: The builder.
        direct: Send partial results straight home; otherwise they travel behind the queries.
        pieces: Sub-pieces of each shard's queries, left behind one by one.

    Raises:
        StrategyError: ``pieces`` below 1.
    """
    if pieces < 1:
        raise StrategyError(f"pass_q: expected pieces of 1 or more, found {pieces}")
    n, r = b.num_ranks, b.ranks
    backward = b.direction == "backward"
    kinds = ("q", "g") if backward else ("q",)
    moved = np.stack([b.pieces(kind, pieces) for kind in kinds], axis=2)  # [owner, piece, kind]
    sums, kv = b.pieces("dq" if backward else "o", pieces), b.shards("kv")
    seen = b.areas(moved[:, :, 0, None], kv) > 0  # [owner, piece, rank]
    slots = _slot_table(Slots(b), pieces, kinds)
    for t in range(n):
        held = (r + t) % n
        if t and not direct:
            b.transfer(
                src=(r + 1) % n, dst=r, items=sums[held], level=t - 1, stream="results",
                slot=slots["sum"][t % 2],
            )  # fmt: skip
        here = slots["sum"][t % 2] if direct else slots["kernel"][0]
        b.attend(rank=r, queries=moved[held, :, 0], keys=kv, query_slot=here if t else HOME)
        if t and direct:
            back = np.where(seen[held, :, r], sums[held], -1)
            b.transfer(src=r, dst=held, items=back, level=t - 1, stream="results")
        if t < n - 1:
            wanted = _wanted_from(seen, t + 1)[r]  # by who receives from r
            going = np.where(wanted[:, :, None], moved[held], -1).reshape(n, -1)
            b.transfer(
                src=r, dst=(r - 1) % n, items=going, level=t, stream="queries",
                slot=slots["moved"][(t + 1) % 2],
            )  # fmt: skip
    if n > 1 and not direct:
        last = (r - 1) % n
        b.transfer(src=r, dst=last, items=sums[last], level=n - 1, stream="results")


def _slot_table(slots: Slots, pieces: int, kinds: tuple[str, ...]) -> dict[str, Ints]:
    """Number the slots: ``[2, 1, pieces x kinds]`` and ``[2 or 1, 1, pieces]``."""
    moved = [
        [slots(kind, turn, piece) for piece in range(pieces) for kind in kinds] for turn in (0, 1)
    ]
    sums = [[slots("sum", turn, piece) for piece in range(pieces)] for turn in (0, 1)]
    kernel = [[slots("kernel", piece) for piece in range(pieces)]]
    named = {"moved": moved, "sum": sums, "kernel": kernel}
    return {name: np.array(numbers)[:, None] for name, numbers in named.items()}


def _wanted_from(seen: Bools, step: int) -> Bools:
    """Say which pieces some rank needs that has them at a step or later.

    Args:
        seen: Whether a rank sees a piece, ``[owner, piece, rank]``.
        step: Step at which the receiver holds the piece.

    Returns:
        For each sender, whether the piece that it passes on is wanted, ``[sender, piece]``.
    """
    n = len(seen)
    sender = np.arange(n)
    owner = (sender + step - 1) % n
    visits = (owner[:, None] - np.arange(step, n)) % n  # [sender, steps left]
    return np.asarray(seen[owner[:, None], :, visits].any(axis=1))
