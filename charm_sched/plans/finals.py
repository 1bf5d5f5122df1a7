"""Which results travel as what they stay: the final ones.

A partial result keeps the accumulator's precision on its way, since more is added to it. Nothing
is added to a *final* result: it comes home as the only contribution to its rows and heads, and its
owner has computed no part of it. The owner rounds it to the workload's ``dtype`` in the end;
rounded before it leaves, it has the same bits and fewer bytes.

Without the second condition, a sum that set out from its owner and comes back complete would be
final as well. Codes of ring attention send it in fp32 all the way, and so does this one.

That follows from the operations, whatever the mask: partial results are never cut, so all
contributions to a row and head have the same extent on every rank (`proof.verifier` refuses others
at home), and all of them are in what comes home.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from charm_sched.plans.items import DKV, DQ, KINDS, PARTIAL, O

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from charm_sched.plans.plan import Plan


def find_finals(plan: Plan) -> NDArray[np.bool_]:
    """Say which operands are final results that are sent home, one entry per operand."""
    import numpy as np

    from charm_sched.plans.plan import TRANSFER

    columns, items = plan.columns, plan.items
    row = np.repeat(np.arange(len(plan)), np.diff(columns.ptr))
    peer, arrived = plan.received
    finals = np.zeros(len(row), np.bool_)
    at = np.flatnonzero((columns.op[row] == TRANSFER) & np.isin(items.kind[arrived], PARTIAL))
    at = at[(plan.item_owner[arrived[at]] == peer[row[at]]) & (items.part[arrived[at]] == 0)]
    if len(at):
        item = arrived[at]
        key = _keys(plan, peer[row[at]], items.kind[item], item)
        _, where, times = np.unique(key, return_inverse=True, return_counts=True)
        alone = times[where.reshape(-1)] == 1
        finals[at] = alone & ~np.isin(key, _added_at_home(plan, row))
    return finals


def operand_bytes(plan: Plan) -> NDArray[np.int64]:
    """Give the bytes of each operand on the wire, whole batch."""
    import numpy as np

    sizes: NDArray[np.int64] = plan.item_bytes[plan.columns.arg]
    if plan.finals.any():
        rounded = plan.bytes_as(plan.items.kind, final=True)[plan.columns.arg]
        sizes = np.where(plan.finals, rounded, sizes)
    return sizes


def _added_at_home(plan: Plan, row: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number what owners attend to, whatever becomes of it there, and what they merge at home."""
    import numpy as np

    from charm_sched.plans.plan import ATTEND, MERGE

    columns, items = plan.columns, plan.items
    arg, op = columns.arg, columns.op[row]
    owned = plan.item_owner[arg] == columns.rank[row]
    leads = np.arange(len(arg)) - columns.ptr[row] < columns.lead[row]
    merged = np.flatnonzero(owned & (op == MERGE) & ~leads & (items.part[arg] == 0))
    found = [_keys(plan, columns.rank[row[merged]], items.kind[arg[merged]], arg[merged])]
    backward = plan.direction == "backward"
    for kind, chosen in ((DQ if backward else O, leads), (DKV, ~leads)):
        at = np.flatnonzero(owned & (op == ATTEND) & chosen)
        found.append(_keys(plan, columns.rank[row[at]], kind, arg[at]))
    return np.concatenate(found)


def _keys(
    plan: Plan,
    rank: NDArray[np.integer[Any]],
    kind: NDArray[np.uint8] | int,
    item: NDArray[np.integer[Any]],
) -> NDArray[np.int64]:
    """Number (rank, kind, extent)."""
    import numpy as np

    place = rank.astype(np.int64) * len(KINDS) + kind
    extents = int(plan.item_extent.max(initial=0)) + 1
    keys: NDArray[np.int64] = place * extents + plan.item_extent[item]
    return keys


__all__ = ["find_finals", "operand_bytes"]
