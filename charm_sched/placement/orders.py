"""Orders of a set of devices in which a ring is short: all of them, or a search by exchanges."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from charm_sched.placement.pairs import Pairs

EXHAUSTIVE = 8  # devices, all of whose rings are compared: 5,040
SEARCHED = 64  # devices; beyond, the order of the domains is taken
ROUNDS = 20
NEARLY = 1e-6
ALONG = 0.01  # of the mean flow, beside the slowest


def best_order(pairs: Pairs, start: Sequence[int]) -> tuple[int, ...]:
    """Return an order whose ring step is shortest, `start` itself if none is shorter.

    Up to eight devices all orders are compared. Above, pieces of the order are turned round and
    single devices moved as long as that helps (2-opt and or-opt); that may miss the best.
    """
    first = tuple(start)
    if len(first) < 4 or len(first) > SEARCHED:
        return first
    if len(first) <= EXHAUSTIVE:
        orders = np.array(
            [(first[0], *rest) for rest in itertools.permutations(first[1:])], np.int64
        )
        seconds = pairs.ring(orders)
        best = int(seconds.argmin())
        kept = seconds[best] >= seconds[0] * (1 - NEARLY)  # the first permutation is `start`
        return first if kept else tuple(orders[best].tolist())
    return _searched(pairs, first)


def _searched(pairs: Pairs, first: tuple[int, ...]) -> tuple[int, ...]:
    order = first
    best = float(_score(pairs, np.array([order]))[0])
    for _ in range(ROUNDS):
        tried = np.array(_neighbours(order), np.int64)
        scores = _score(pairs, tried)
        at = int(scores.argmin())
        if scores[at] >= best * (1 - NEARLY):
            break
        order, best = tuple(tried[at].tolist()), float(scores[at])
    before, after = pairs.ring(np.array([first, order]))
    return order if after < before * (1 - NEARLY) else first


def _score(pairs: Pairs, orders: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the step of the ring, and a little of all its flows: fewer slow ones lead on."""
    flows = pairs.alone[orders, np.roll(orders, -1, axis=1)]
    return pairs.ring(orders) + ALONG * flows.mean(axis=1)


def _neighbours(order: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the orders with one piece turned round, one device moved, or two exchanged."""
    size = len(order)
    found = []
    for i in range(1, size):
        for j in range(i + 1, size):
            found.append((*order[:i], *reversed(order[i : j + 1]), *order[j + 1 :]))
            rest = (*order[:i], *order[i + 1 :])
            found.append((*rest[:j], order[i], *rest[j:]))
            swapped = list(order)
            swapped[i], swapped[j] = swapped[j], swapped[i]
            found.append(tuple(swapped))
    return found
