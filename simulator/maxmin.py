"""Max-min fair rates of flows that cross several capacities at once.

Equal weights: no flow can get more without taking from one that has no more than it. A flow crosses
all capacities of its route at the same time, each as often as the route lists it, and never exceeds
its own cap. The allocation is unique. It is found by progressive filling: the *share* of a capacity
is what it has left over what wants it; the flows of the capacity with the least share get that
share, are subtracted, and so on (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2).

Three facts keep it fast:

* The *bound* of a route is the least of its cap and its capacities taken alone. A capacity that can
  carry the bounds of all its flows never limits anything, and drops out.
* Shares only grow while flows are fixed. So every capacity whose share is the least for all its
  flows, and every flow whose bound is below all its shares, can be fixed in the same round.
* Flows on one route are one class with a multiplicity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

TOLERANCE = 1e-12  # relative; shares that differ by less are the same share
FEW = 24  # classes; below this plain Python beats rounds of NumPy


@dataclass(frozen=True, eq=False, kw_only=True)
class RouteTable:
    """All routes that flows may take.

    Attributes:
        ptr: Route ``i`` crosses ``capacity[ptr[i]:ptr[i + 1]]``, int64 ``[routes + 1]``.
        capacity: Index into `bandwidth`, each once per route.
        weight: How often the route crosses it.
        bandwidth: Of the capacities that can limit some route, in units per second.
        bound: The most a flow on each route can get, in units per second.
    """

    ptr: Ints
    capacity: Ints
    weight: Floats
    bandwidth: Floats
    bound: Floats

    def entries(self, routes: Ints) -> tuple[Ints, Ints]:
        """Give, for each crossing of the routes, its position in `routes` and in `capacity`."""
        start = self.ptr[routes]
        lengths = self.ptr[routes + 1] - start
        which = np.repeat(np.arange(len(routes)), lengths)
        return which, np.arange(len(which)) + (start - np.cumsum(lengths) + lengths)[which]


def compile_routes(
    routes: Sequence[Sequence[int]],
    bandwidth: Floats | Sequence[float],
    caps: Sequence[float],
    times: Floats | None = None,
) -> RouteTable:
    """Make the table of routes, given as lists of capacities in order, with one cap per route.

    Args:
        routes: The capacities each route crosses; one named twice is crossed twice.
        bandwidth: Of each capacity, in units per second.
        caps: The most a flow on each route may get.
        times: How many flows each crossing of a capacity stands for; None for one.
    """
    lengths = np.fromiter(map(len, routes), np.int64, len(routes))
    flat = np.fromiter((c for route in routes for c in route), np.int64, int(lengths.sum()))
    width = np.asarray(bandwidth, np.float64)
    owner = np.repeat(np.arange(len(routes)), lengths)
    _, first, count = np.unique(
        owner * max(len(width), 1) + flat, return_index=True, return_counts=True
    )
    order = np.argsort(first)
    owner, flat = owner[first[order]], flat[first[order]]
    weight = count[order].astype(np.float64)
    if times is not None:
        weight *= times[flat]
    bound = np.array(caps, np.float64)
    np.minimum.at(bound, owner, width[flat] / weight)
    pairs = np.stack([owner, flat])
    for rule in (_not_in_series, _not_implied):
        keep = rule(pairs, weight, width)
        pairs, weight = pairs[:, keep], weight[keep]
    names, capacity = np.unique(pairs[1], return_inverse=True)
    counts = np.bincount(pairs[0], minlength=len(routes))
    return RouteTable(
        ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        capacity=capacity.reshape(-1),
        weight=weight,
        bandwidth=width[names],
        bound=bound,
    )


def _not_in_series(pairs: Ints, weight: Floats, width: Floats) -> NDArray[np.bool_]:
    """Leave out a capacity that exactly the routes of a narrower one cross: it never limits."""
    order = np.argsort(pairs[1], kind="stable")
    cuts = np.flatnonzero(np.diff(pairs[1][order])) + 1
    narrowest: dict[bytes, int] = {}
    drop = np.zeros(len(width), bool)
    for entries in np.split(order, cuts) if len(order) else ():
        capacity = int(pairs[1][entries[0]])
        users = pairs[0][entries].tobytes() + weight[entries].tobytes()
        other = narrowest.setdefault(users, capacity)
        wider = capacity if width[other] <= width[capacity] else other
        if other != capacity:
            drop[wider] = True
            narrowest[users] = other + capacity - wider
    return ~drop[pairs[1]]


def _not_implied(pairs: Ints, weight: Floats, width: Floats) -> NDArray[np.bool_]:
    """Leave out a capacity as wide as all those together that its routes cross next (or before).

    A device's port, for one, that takes what its links carry. What implies another must not have
    been left out before, so nothing is left out in a circle.
    """
    drop = np.zeros(len(width), bool)
    neighbours = [_next_to(pairs, weight), _next_to(pairs[:, ::-1], weight[::-1])]
    names = np.unique(pairs[1])
    for capacity in names[np.argsort(-width[names], kind="stable")].tolist():
        for ptr, other, ratio in neighbours:
            span = slice(ptr[capacity], ptr[capacity + 1])
            near = other[span]
            if not len(near) or near[0] < 0 or drop[near].any():
                continue
            if (ratio[span] * width[near]).sum() <= width[capacity]:
                drop[capacity] = True
    return ~drop[pairs[1]]


def _next_to(pairs: Ints, weight: Floats) -> tuple[Ints, Ints, Floats]:
    """Give what follows each capacity on routes.

    Returns:
        Pointers by capacity into: capacities that follow it, -1 first where a route ends there;
        and how many times more often, at most, a route crosses it than what follows.
    """
    route, capacity = pairs
    last = np.concatenate([route[1:] != route[:-1], [True]])[: len(route)]
    following = np.where(last, -1, np.concatenate([capacity[1:], [-1]])[: len(route)])
    ratio = weight / np.concatenate([weight[1:], [1.0]])[: len(route)]
    order = np.lexsort((ratio, following, capacity))
    capacity, following, ratio = capacity[order], following[order], ratio[order]
    same = (capacity[1:] == capacity[:-1]) & (following[1:] == following[:-1])
    keep = np.concatenate([~same, [True]])[: len(capacity)]  # the largest ratio of each
    capacity, following, ratio = capacity[keep], following[keep], ratio[keep]
    ptr = np.searchsorted(capacity, np.arange(capacity.max(initial=-1) + 2))
    return ptr, following, ratio


def max_min_rates(
    routes: Sequence[Sequence[int]],
    capacities: Sequence[float],
    caps: Sequence[float] | None = None,
) -> Floats:
    """Give the max-min fair rate of every flow.

    >>> max_min_rates([[0], [0, 1], [1]], [10.0, 4.0]).tolist()
    [8.0, 2.0, 2.0]

    Args:
        routes: The capacities each flow crosses, by index; one named twice is crossed twice.
        capacities: In units per second.
        caps: The most each flow may get; None for no caps.

    Returns:
        Units per second, ``[flows]``; infinite for a flow without capacities and cap.
    """
    limits = [float("inf")] * len(routes) if caps is None else list(caps)
    classes: dict[tuple[tuple[int, ...], float], int] = {}
    member = [
        classes.setdefault((tuple(sorted(route)), cap), len(classes))
        for route, cap in zip(routes, limits, strict=True)
    ]
    table = compile_routes([r for r, _ in classes], capacities, [cap for _, cap in classes])
    counts = np.bincount(np.array(member, np.int64), minlength=len(classes))
    rates: Floats = fair_rates(table, np.arange(len(classes)), counts)[member]
    return rates


def fair_rates(table: RouteTable, routes: Ints, counts: Ints) -> Floats:
    """Give the rate of each flow on the given distinct routes, with how many flows each has."""
    flow, entry = table.entries(routes)
    capacity = table.capacity[entry]
    usage = table.weight[entry] * counts[flow]
    bound: Floats = table.bound[routes]
    wanted = np.bincount(capacity, usage * bound[flow], minlength=len(table.bandwidth))
    tight = (wanted > table.bandwidth * (1 + TOLERANCE))[capacity]
    if not tight.any():
        return bound
    return _fill(table.bandwidth.copy(), flow[tight], capacity[tight], usage[tight], bound)


def _fill(left: Floats, flow: Ints, capacity: Ints, usage: Floats, bound: Floats) -> Floats:
    """Fill in rounds; entries say which class uses which capacity, sorted by class."""
    rates = bound.copy()
    share = np.zeros(len(left))
    while len(flow):
        first = np.concatenate([[True], flow[1:] != flow[:-1]])
        starts = np.flatnonzero(first)
        if len(starts) <= FEW:
            _fill_one_by_one(rates, left, share, flow, capacity, usage)
            break
        total = np.bincount(capacity, usage, minlength=len(left))
        used = total > 0
        share[used] = np.maximum(share[used], np.maximum(left[used], 0.0) / total[used])
        at_entry = share[capacity]
        low = np.minimum.reduceat(at_entry, starts)
        own = bound[flow[starts]]
        rate = np.minimum(low, own)
        number = np.cumsum(first) - 1
        elsewhere = rate[number] < at_entry * (1 - TOLERANCE)
        blocked = np.bincount(capacity, elsewhere, minlength=len(left)) > 0
        fixed = (own <= low) | np.logical_or.reduceat(~blocked[capacity], starts)
        rates[flow[starts[fixed]]] = rate[fixed]
        done = fixed[number]
        spent = usage[done] * rate[number[done]]
        left -= np.bincount(capacity[done], spent, minlength=len(left))
        flow, capacity, usage = flow[~done], capacity[~done], usage[~done]
        if fixed.sum() < 0.15 * len(starts):
            _fill_one_by_one(rates, left, share, flow, capacity, usage)
            break
    return rates


def _fill_one_by_one(
    rates: Floats, left: Floats, share: Floats, flow: Ints, capacity: Ints, usage: Floats
) -> None:
    """Fill one capacity at a time; ``rates`` holds bounds on entry, rates on exit.

    Shares only grow, so a heap entry that is out of date is an underestimate: it is looked up again
    when it comes to the top.
    """
    starts = np.flatnonzero(np.concatenate([[True], flow[1:] != flow[:-1]])[: len(flow)])
    flows, first = flow[starts].tolist(), [*starts.tolist(), len(flow)]
    names, local = np.unique(capacity, return_inverse=True)
    local = local.reshape(-1)
    number = np.repeat(np.arange(len(flows)), np.diff(first))
    users = number[np.argsort(local, kind="stable")].tolist()
    begin = [0, *np.cumsum(np.bincount(local)).tolist()]
    total, room = np.bincount(local, usage).tolist(), np.maximum(left[names], 0.0).tolist()
    crossed, use = local.tolist(), usage.tolist()
    heap = [(rate, -1 - f) for f, rate in enumerate(rates[flow[starts]].tolist())]
    heap += [(rate, c) for c, rate in enumerate(share[names].tolist())]
    heapify(heap)
    waiting, remain = [True] * len(flows), len(flows)
    while remain:
        rate, which = heappop(heap)
        if which >= 0:
            if total[which] <= 0:
                continue
            now = room[which] / total[which]
            if now > rate:
                heappush(heap, (now, which))
                continue
        for f in users[begin[which] : begin[which + 1]] if which >= 0 else (-1 - which,):
            if waiting[f]:
                waiting[f], remain = False, remain - 1
                rates[flows[f]] = rate
                for entry in range(first[f], first[f + 1]):
                    room[crossed[entry]] -= use[entry] * rate
                    total[crossed[entry]] -= use[entry]


__all__ = ["RouteTable", "compile_routes", "fair_rates", "max_min_rates"]
