"""Double ring: inside windows of ranks KV goes around a ring; windows pass it on to each other.

As LoongTrain (arXiv:2406.18485; InternLM/InternEvo) and BurstAttention (arXiv:2403.09347) do it.
Ranks stand in ``n`` windows of ``w``, and steps are counted in windows too. When a window of steps
begins, each rank sends the KV that it begins with to its counterpart in the next window of ranks:
one transfer, in a stream of its own, which has all steps of the window to hide in. So KV enters
each window of ranks once, by ``n - 1`` transfers across per rank, beside ``n (w - 1)`` inside.

Backward: inside, the gradient travels behind its KV, ``w`` hops back to where the window began;
then it crosses to the next window of ranks while the first kernel there runs, and after ``n``
crossings it is home. (InternEvo waits for the last hop inside before it goes on computing. Nothing
does here.)

Buffers keep the lock-step of Ring-Attention: a transfer inside starts when the kernel before the
last one has ended, one across when the window of steps before has ended.
"""

from __future__ import annotations

import numpy as np

from charm_sched.arrays import Ints
from charm_sched.errors import StrategyError
from charm_sched.planners.begun import Begun
from charm_sched.planners.hierarchy import Tree, leaves
from charm_sched.planners.machine import machine_of
from charm_sched.plans.builder import Builder

KV_SLOTS = 4


def double_ring(b: Builder, *, window: int = 0, domains: Tree | None = None) -> None:
    """Write the double ring.

    Args:
        b: The builder.
        window: Ranks per window, in the order of the domains. 0: a window for each domain of the
            outermost tier.
        domains: Nested ranks, instead of the topology's domains.

    Raises:
        StrategyError: Windows are not equally large, or ``domains`` are not the ranks.
    """
    rings = _Rings(_windows(machine_of(b, domains).tree, window))
    if b.direction == "forward":
        _forward(b, rings)
    else:
        _backward(b, rings)


def _windows(tree: Tree, size: int) -> Ints:
    """Give the ranks of each window, ``[windows, ranks per window]``."""
    order = leaves(tree)
    if size:
        if size < 0 or len(order) % size:
            sizes = [n for n in range(1, len(order) + 1) if len(order) % n == 0]
            raise StrategyError(
                f"double_ring: expected windows of {', '.join(map(str, sizes))} ranks, which "
                f"divide the {len(order)} ranks; found {size}"
            )
        return np.array(order).reshape(-1, size)
    while not isinstance(tree, int) and len(tree) == 1:
        tree = tree[0]
    if isinstance(tree, int) or all(isinstance(child, int) for child in tree):
        return np.array([order])
    windows = [leaves(child) for child in tree]
    if len({len(ranks) for ranks in windows}) > 1:
        raise StrategyError(
            "double_ring: expected domains of equally many ranks, as windows pass their KV on rank "
            f"by rank; found domains of {', '.join(str(len(ranks)) for ranks in windows)} ranks. "
            "Choose devices that fill domains evenly, name `window`, or use charm, which serves "
            "uneven domains"
        )
    return np.array(windows)


class _Rings:
    """Who sends to whom, and whose KV a rank holds in step ``i`` of its window of steps ``j``.

    Attributes:
        windows: How many windows.
        size: Ranks per window, which is also the steps of a window.
        right: Next rank inside, ``[ranks]``.
        across: Counterpart in the next window of ranks, ``[ranks]``.
    """

    def __init__(self, members: Ints) -> None:
        self.windows, self.size = members.shape
        self._members = members
        self._window, self._place = np.empty((2, members.size), np.int64)
        self._window[members], self._place[members] = np.indices(members.shape)
        self.right, self.across = self._at(0, -1), self._at(-1, 0)

    def _at(self, windows: int, places: int) -> Ints:
        """Give the rank that many windows and places before each rank."""
        window = (self._window - windows) % self.windows
        found: Ints = self._members[window, (self._place - places) % self.size]
        return found

    def owner(self, j: int, i: int) -> Ints:
        """Give whose KV each rank attends in a step, ``[ranks]``."""
        return self._at(j, i)


def _kv_slots(windows: int, size: int) -> list[list[int]]:
    """Give the slot of each step's KV, ``[windows][size]``; that of the first is not used.

    Inside a window two slots alternate. What crosses takes the slot of the last step of the window
    before: so it begins when that window has ended.
    """
    begin, arriving, *spare = range(KV_SLOTS)
    slots = []
    for _ in range(windows):
        used = [begin, *(spare[i % 2] for i in range(size - 1))]
        slots.append(used)
        spare = [slot for slot in (*spare, begin) if slot != used[-1]][:2]
        begin, arriving = arriving, used[-1]
    return slots


def _forward(b: Builder, rings: _Rings) -> None:
    q, kv = b.shards("q"), b.shards("kv")
    slots = _kv_slots(rings.windows, rings.size)
    for j in range(rings.windows):
        for i in range(rings.size):
            held = kv[rings.owner(j, i)]
            b.attend(rank=b.ranks, queries=q, keys=held)
            _pass_on(b, rings, held, slots, j, i)


def _pass_on(b: Builder, rings: _Rings, held: Ints, slots: list[list[int]], j: int, i: int) -> None:
    """Write the KV transfers that begin with a step."""
    if i == 0 and j + 1 < rings.windows:
        b.transfer(
            src=b.ranks, dst=rings.across, items=held, level=j, stream="across",
            slot=slots[j + 1][0],
        )  # fmt: skip
    if i + 1 < rings.size:
        b.transfer(
            src=b.ranks, dst=rings.right, items=held, level=j * (rings.size - 1) + i,
            stream="inside", slot=slots[j][i + 1],
        )  # fmt: skip


def _backward(b: Builder, rings: _Rings) -> None:
    # Slots after those of KV: 0, 1 hold the gradient that travels inside; 2 what a kernel adds to
    # it; 3 what came back to where its window began; 4, 5 what came across.
    q, kv, dkv = b.shards("q"), b.shards("kv"), b.shards("dkv")
    slots = _kv_slots(rings.windows, rings.size)

    begun = Begun(b)

    def send(dst: Ints, gradients: Ints, level: int, stream: str, slot: int) -> None:
        gradients = begun.move(b.ranks, dst, gradients)
        b.transfer(src=b.ranks, dst=dst, items=gradients, level=level, stream=stream, slot=slot)

    for j in range(rings.windows):
        for i in range(rings.size):
            if i:
                level, slot = j * rings.size + i - 1, KV_SLOTS + i % 2
                send(rings.right, dkv[rings.owner(j, i - 1)], level, "inside-gradients", slot)
            held = kv[rings.owner(j, i)]
            added = KV_SLOTS + 2 if i or j else -1
            b.attend(rank=b.ranks, queries=q, keys=held, key_slot=added)
            begun.attend(q, held, gradients=dkv[rings.owner(j, i)])
            _pass_on(b, rings, held, slots, j, i)
        if rings.size > 1:
            level, slot = (j + 1) * rings.size - 1, KV_SLOTS + 3 if j else -1
            last = dkv[rings.owner(j, rings.size - 1)]
            send(rings.right, last, level, "inside-gradients", slot)
        if rings.windows > 1:
            slot = KV_SLOTS + 4 + j % 2 if j + 1 < rings.windows else -1
            send(rings.across, dkv[rings.owner(j, 0)], j, "across-gradients", slot)
