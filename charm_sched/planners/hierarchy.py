"""Who passes which piece to whom in a tree of domains, so that it enters each domain once.

At every node of the tree a rank sends what it holds to its counterpart in each sibling domain, one
sibling per *round*; the counterpart passes it on at every deeper node. One (depth, round) of one
kind of held piece, for all ranks together, is a *line*. With even domains a rank receives one
piece per line. Between domains of different sizes counterparts are dealt out in turn, over all
sub-pieces: lines then have several *blocks*, differ by sub-piece, and some ranks take no part.

Where the exchange between domains would idle while the one inside is still busy, some sub-pieces
enter a domain more than once: *direct* lines bring them from their holder to other ranks than the
counterpart, which then need not pass them on.

Read backwards, the same lines reduce gradients: inside a domain first, then once across.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from charm_sched.arrays import Ints
from charm_sched.topology.graph import Domain

Tree: TypeAlias = int | Sequence["Tree"]
Path: TypeAlias = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Line:
    """One step that many ranks take alike.

    Attributes:
        depth: Depth of the tree whose sibling domains exchange; 0 is the outermost.
        held: How the senders got what they pass on: the (depth, round, block) of each hop; empty
            for their own pieces.
        got: The same for the receivers, one hop longer. The block of a direct line is minus its
            distance.
        src: Sender of each rank, ``[ranks]``; -1 where the rank receives nothing.
        piece: Owner of what each rank receives, ``[ranks]``; -1 likewise.
        subs: The sub-pieces that take this line.
    """

    depth: int
    held: Path
    got: Path
    src: Ints
    piece: Ints
    subs: range

    @property
    def crosses(self) -> int:
        """Depth of the outermost exchange that the piece has been through."""
        return self.got[0][0]

    @property
    def direct(self) -> bool:
        """Whether the piece goes to other ranks than the counterparts of those that hold it."""
        return self.got[-1][2] < 0


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


def exchange_lines(tree: Tree, subs: int = 1) -> list[Line]:
    """List the lines of the exchange, outer depths first.

    Within a depth, own pieces come before what arrived from outside, and the rounds of one held
    piece follow each other.

    Args:
        tree: The ranks, nested by domain.
        subs: Sub-pieces of each piece.
    """
    ranks = np.arange(len(leaves(tree)))
    depths = [_Places(nodes, len(ranks)) for nodes in _levels(tree)]
    if all(place.even for place in depths):
        return _lines(depths, ranks, range(subs))
    lines = [line for sub in range(subs) for line in _lines(depths, ranks, range(sub, sub + 1))]
    return sorted(lines, key=lambda line: line.depth)


def _lines(depths: Sequence[_Places], ranks: Ints, subs: range) -> list[Line]:
    held: dict[Path, Ints] = {(): ranks}
    lines = []
    for depth, place in enumerate(depths):
        for path, pieces in list(held.items()):
            for round_ in range(1, place.most_children):
                for block in range(place.most_blocks):
                    src = place.senders(round_, block, subs.start)
                    piece = np.where(src >= 0, pieces[src], -1)
                    if (piece < 0).all():
                        continue
                    got = (*path, (depth, round_, block))
                    held[got] = piece
                    src = np.where(piece >= 0, src, -1)
                    lines.append(
                        Line(depth=depth, held=path, got=got, src=src, piece=piece, subs=subs)
                    )
    return lines


def direct_lines(tree: Tree, lines: Sequence[Line], subs: int) -> list[Line]:
    """List lines between innermost domains that bring pieces to others than the counterparts.

    The first ones listed are those worth most: the last sub-pieces of the last rounds.

    Args:
        tree: The ranks, nested by domain; all domains of a depth of equal size.
        lines: Its lines.
        subs: Sub-pieces of each piece.
    """
    nodes = _levels(tree)
    depth = len(nodes) - 2
    place = _Places(nodes[depth], len(leaves(tree)))
    entries = [line for line in lines if line.depth == depth]
    pieces = {line.got: line.piece for line in lines} | {(): np.arange(len(leaves(tree)))}
    found = []
    for line in reversed(entries):
        for distance in range(1, place.largest):
            round_ = line.got[-1][1]
            src = place.senders(round_, 0, 0, distance)
            piece = np.where(src >= 0, pieces[line.held][src], -1)
            found.append(
                Line(
                    depth=depth, held=line.held, got=(*line.held, (depth, round_, -distance)),
                    src=np.where(piece >= 0, src, -1), piece=piece, subs=range(1),
                )
            )  # fmt: skip
    return [
        replace(line, subs=range(sub, sub + 1)) for sub in reversed(range(subs)) for line in found
    ]


def domains_at(tree: Tree, depth: int) -> list[list[int]]:
    """List the ranks of each domain so many tiers below the outermost."""
    nodes = [tree]
    for _ in range(depth):
        nodes = [child for node in nodes for child in ((node,) if isinstance(node, int) else node)]
    return [leaves(node) for node in nodes]


def places_of(tree: Tree, num_ranks: int) -> list[list[int]]:
    """Give the place of each rank's domain among its siblings, at each depth; 0 where it ends."""
    places = []
    for nodes in _levels(tree):
        place = [0] * num_ranks
        for children in nodes:
            for number, ranks in enumerate(children):
                for rank in ranks:
                    place[rank] = number
        places.append(place)
    return places


def is_even(tree: Tree) -> bool:
    """Say whether all domains of each depth are of equal size."""
    return all(_Places(nodes, len(leaves(tree))).even for nodes in _levels(tree))


def _levels(tree: Tree) -> list[list[list[list[int]]]]:
    """List, per depth, the inner nodes as lists of their children's ranks."""
    levels: list[list[list[list[int]]]] = []
    nodes = [tree]
    while nodes := [node for node in nodes if not isinstance(node, int)]:
        levels.append([[leaves(child) for child in node] for node in nodes])
        nodes = [child for node in nodes for child in node]
    return levels


class _Places:
    """Where each rank stands among the children of its node at one depth.

    Attributes:
        most_children: Children of the largest node.
        most_blocks: Ranks of one child for which a rank of a sibling may be the counterpart.
        largest: Ranks of the largest child.
        even: Whether all children hold equally many ranks.
    """

    def __init__(self, nodes: list[list[list[int]]], num_ranks: int) -> None:
        sizes = {len(ranks) for children in nodes for ranks in children}
        self.most_children = max(len(children) for children in nodes)
        self.largest, self.most_blocks = max(sizes), -(-max(sizes) // min(sizes))
        self.even = len(sizes) == 1
        self._members = np.full((len(nodes), self.most_children, self.largest), -1)
        self._sizes = np.ones((len(nodes), self.most_children), np.int64)
        self._count = np.array([len(children) for children in nodes])
        self._node, self._child, self._index = np.full((3, num_ranks), -1)
        for n, children in enumerate(nodes):
            for c, ranks in enumerate(children):
                self._members[n, c, : len(ranks)] = ranks
                self._sizes[n, c] = len(ranks)
                self._node[ranks], self._child[ranks] = n, c
                self._index[ranks] = np.arange(len(ranks))

    def senders(self, round_: int, block: int, sub: int, distance: int = 0) -> Ints:
        """Give the rank that sends to each rank in a round, or -1.

        Sub-piece ``s`` of rank ``i`` in a domain of ``a`` ranks goes to rank ``(s * a + i) % b`` of
        a sibling of ``b`` ranks: in turn over all sub-pieces, and for equal sizes to rank ``i``.
        With a distance it goes that many ranks further.
        """
        count = self._count[self._node]
        child = (self._child - round_) % count
        own, other = self._sizes[self._node, self._child], self._sizes[self._node, child]
        index = (self._index - sub * other - distance) % own + block * own
        inside = (self._node >= 0) & (round_ < count) & (index < other)
        found: Ints = self._members[self._node, child, np.where(inside, index, 0)]
        return np.where(inside, found, -1)
