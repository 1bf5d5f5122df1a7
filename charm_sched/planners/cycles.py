"""Edge-disjoint Hamiltonian cycles that use every directed edge between ``count`` ranks.

* Odd counts: Walecki's zigzag ``0, 1, -1, 2, -2, ...`` through all but one rank, closed over that
  one. Its turns by 0, 1, 2, ... share no edge (Alspach 2008, "The wonderful Walecki construction").
* Even counts from 8 on have such cycles too (Tillson 1980, "A Hamiltonian decomposition of K*_2m");
  4 and 6 do not. Here one rank is put into the cycles of the others: it replaces an edge of each,
  and the edges that it replaced, closed over it, are the last cycle. For that they must form a
  Hamiltonian path with one edge of each cycle, which is found by search.
"""

from __future__ import annotations

import functools
import itertools
import random

import numpy as np

from charm_sched.arrays import Bools, Ints
from charm_sched.errors import StrategyError

STEPS, RESTARTS = 1000, 100  # of the search; up to 64 ranks it needs a few


@functools.lru_cache(maxsize=8)
def hamiltonian_cycles(count: int) -> Ints:
    """Give the successor of each rank on each cycle, ``[count - 1, count]``, read-only.

    Raises:
        StrategyError: There are no such cycles, or the search does not find them.
    """
    if count in (4, 6):
        raise StrategyError(
            f"tasp: expected another number of ranks than 4 and 6, found {count}: {count} ranks "
            f"have no {count - 1} rings that share no link; use all_gather, which serves any"
        )
    found = _even(count) if count > 2 and count % 2 == 0 else _odd(count)
    if not are_disjoint_cycles(found):
        raise AssertionError(f"cycles of {count} ranks share an edge")
    found.setflags(write=False)
    return found


def are_disjoint_cycles(successors: Ints) -> bool:
    """Say whether each row is one cycle through all ranks, and no edge is used twice."""
    cycles, count = successors.shape
    at: Ints = np.zeros(cycles, np.int64)
    visits = [at]
    for _ in range(count - 1):
        at = successors[np.arange(cycles), at]
        visits.append(at)
    through_all = all(len(set(visited)) == count for visited in np.array(visits).T.tolist())
    edges = np.arange(count) * count + successors
    return through_all and len(np.unique(edges)) == cycles * count


def _odd(count: int) -> Ints:
    """Turn Walecki's zigzag; the last rank is the one that closes it. Also for two ranks."""
    turns = hub = count - 1
    zigzag = [(step + 1) // 2 * (1 if step % 2 else -1) for step in range(turns)]
    successors = np.full((turns, count), hub)
    for turn in range(turns):
        visited = [(place + turn) % turns for place in zigzag]
        successors[turn, visited[:-1]] = visited[1:]
        successors[turn, hub] = visited[0]
    return successors


def _even(count: int) -> Ints:
    """Put the last rank into the cycles of the others."""
    others = _odd(count - 1)
    cycle_of = np.full((count - 1, count - 1), -1)
    for cycle, successors in enumerate(others):
        cycle_of[np.arange(count - 1), successors] = cycle
    path = _rainbow_path(cycle_of)
    last = count - 1
    cycles = np.full((last, count), last)
    cycles[:-1, :-1] = others
    for tail, head in itertools.pairwise(path):
        cycle = cycle_of[tail, head]
        cycles[cycle, tail], cycles[cycle, last] = last, head
        cycles[-1, tail] = head
    cycles[-1, last] = path[0]
    return cycles


def _rainbow_path(colour: Ints) -> list[int]:
    """Find a path through all vertices that takes one edge of each colour.

    Args:
        colour: Colour of each directed edge, ``[vertices, vertices]``; -1 on the diagonal.
    """
    for seed in range(RESTARTS):
        path = _Path(colour, random.Random(seed)).search()
        if path:
            return path
    raise StrategyError(
        f"tasp: expected an odd number of ranks, or an even one up to 64, found "
        f"{len(colour) + 1}: {RESTARTS} searches gave no {len(colour)} rings that share no link"
    )


class _Path:
    """Depth-first search for a path that uses each vertex and each colour once.

    It goes on over the edge whose colour and whose head have the fewest other edges left.
    """

    def __init__(self, colour: Ints, draw: random.Random) -> None:
        self.size, self.draw = len(colour), draw
        self.spent = self.size - 1  # a colour that is never free
        self.colour = np.where(colour < 0, self.spent, colour)
        self.vertices = np.ones(self.size, bool)
        self.colours = np.arange(self.size) != self.spent
        self.path: list[int] = []

    def search(self) -> list[int] | None:
        """Give a path, or None after `STEPS` steps."""
        untried = [[self.draw.randrange(self.size)]]
        for _ in range(STEPS):
            while not untried[-1]:
                untried.pop()
                if not untried:
                    return None
                self._step_back()
            self._step_on(untried[-1].pop())
            if len(self.path) == self.size:
                return self.path
            untried.append(self._choices())
        return None

    def _choices(self) -> list[int]:
        """List the vertices to go on to, best last."""
        edges = self.colour[self.path[-1]]
        heads = np.flatnonzero(self.vertices & self.colours[edges])
        if not len(heads):
            return []
        free: Bools = self.vertices[:, None] & self.vertices & self.colours[self.colour]
        alike = np.bincount(self.colour[free], minlength=self.size)[edges[heads]]
        ways_in = free.sum(axis=0)[heads]
        ties = np.array([self.draw.random() for _ in heads])
        return [int(head) for head in heads[np.argsort(-(alike + ways_in + ties))]]

    def _step_on(self, head: int) -> None:
        if self.path:
            self.colours[self.colour[self.path[-1], head]] = False
        self.vertices[head] = False
        self.path.append(head)

    def _step_back(self) -> None:
        tail = self.path.pop()
        self.vertices[tail] = True
        if self.path:
            self.colours[self.colour[self.path[-1], tail]] = True
