"""Who passes which piece to whom in a tree of domains, so that it enters each domain once.

At every node of the tree a rank sends what it holds to its counterpart in each sibling domain, one
sibling per *round*; the counterpart passes it on at every deeper node. One (depth, round) of one
kind of held piece, for all ranks together, is a *line*. With even domains a rank receives one
piece per line; with uneven ones lines have several *blocks*, and some ranks take no part.

Read backwards, the same lines reduce gradients: inside a domain first, then once across.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from charm_sched.arrays import Ints
from charm_sched.topology import Domain

Tree: TypeAlias = int | Sequence["Tree"]
Path: TypeAlias = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Line:
    """One step that many ranks take alike.

    Attributes:
        depth: Depth of the tree whose sibling domains exchange; 0 is the outermost.
        held: How the senders got what they pass on: the (depth, round, block) of each hop; empty
            for their own pieces.
        got: The same for the receivers, one hop longer.
        src: Sender of each rank, ``[ranks]``; -1 where the rank receives nothing.
        piece: Owner of what each rank receives, ``[ranks]``; -1 likewise.
    """

    depth: int
    held: Path
    got: Path
    src: Ints
    piece: Ints

    @property
    def crosses(self) -> int:
        """Depth of the outermost exchange that the piece has been through."""
        return self.got[0][0]


def tree_of(domain: Domain, devices: Sequence[str]) -> Tree:
    """Give a topology's domains as a tree of ranks."""
    if not domain.children:
        return list(devices).index(domain.devices[0])
    return [tree_of(child, devices) for child in domain.children]


def leaves(tree: Tree) -> list[int]:
    """List the ranks of a tree, left to right."""
    if isinstance(tree, int):
        return [tree]
    return [rank for child in tree for rank in leaves(child)]


def exchange_lines(tree: Tree) -> tuple[list[Line], ...]:
    """List the lines of each depth.

    Within a depth, own pieces come before what arrived from outside, and the rounds of one held
    piece follow each other.
    """
    ranks = np.arange(len(leaves(tree)))
    held: dict[Path, Ints] = {(): ranks}
    depths = []
    for depth, nodes in enumerate(_levels(tree)):
        place = _Places(nodes, len(ranks))
        lines = []
        for path, pieces in list(held.items()):
            for round_ in range(1, place.most_children):
                for block in range(place.most_blocks):
                    src = place.senders(round_, block)
                    piece = np.where(src >= 0, pieces[src], -1)
                    if (piece < 0).all():
                        continue
                    got = (*path, (depth, round_, block))
                    held[got] = piece
                    src = np.where(piece >= 0, src, -1)
                    lines.append(Line(depth=depth, held=path, got=got, src=src, piece=piece))
        depths.append(lines)
    return tuple(depths)


def _levels(tree: Tree) -> list[list[list[list[int]]]]:
    """List, per depth, the inner nodes as lists of their children's ranks."""
    levels: list[list[list[list[int]]]] = []
    nodes = [tree]
    while nodes := [node for node in nodes if not isinstance(node, int)]:
        levels.append([[leaves(child) for child in node] for node in nodes])
        nodes = [child for node in nodes for child in node]
    return levels


class _Places:
    """Where each rank stands among the children of its node at one depth."""

    def __init__(self, nodes: list[list[list[int]]], num_ranks: int) -> None:
        self.most_children = max(len(children) for children in nodes)
        largest = max(len(ranks) for children in nodes for ranks in children)
        self._members = np.full((len(nodes), self.most_children, largest), -1)
        self._count = np.array([len(children) for children in nodes])
        self._node, self._child, self._index, self._size = np.full((4, num_ranks), -1)
        for n, children in enumerate(nodes):
            for c, ranks in enumerate(children):
                self._members[n, c, : len(ranks)] = ranks
                self._node[ranks], self._child[ranks] = n, c
                self._index[ranks], self._size[ranks] = np.arange(len(ranks)), len(ranks)
        smallest = min(len(ranks) for children in nodes for ranks in children)
        self.most_blocks = -(-largest // smallest)

    def senders(self, round_: int, block: int) -> Ints:
        """Give the rank that sends to each rank in a round, or -1.

        Rank ``i`` of a domain of ``size`` ranks is the counterpart of the ranks ``i``,
        ``i + size``, ... of each sibling.
        """
        count = self._count[self._node]
        child = (self._child - round_) % count
        index = self._index + block * self._size
        inside = (self._node >= 0) & (round_ < count) & (index < self._members.shape[2])
        found: Ints = self._members[self._node, child, np.where(inside, index, 0)]
        return np.where(inside, found, -1)
