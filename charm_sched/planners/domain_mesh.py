"""Domain mesh: domains attend tiles of queries, keys and heads; inside each, ranks share by levels.

Mesh-Attention (arXiv:2512.20968) lets every rank attend a tile of queries and keys instead of a
row; Ulysses (arXiv:2309.14509) lets it attend some heads of all rows. Here *domains* do: where they
are many, a tile moves fewer bytes between them than any exchange of keys alone
(`domain_shape` weighs what moves per tier). As in CHARM+ (arXiv:2611.05906, abstract) every piece
enters a domain once, through the counterpart of its owner, so that all links between domains carry
equal shares; it is passed on inside on streams of its own while others still cross, in levels of
one peer each. Results go the same way back, summed inside the domain before they cross.

The pairs of a domain's own queries and keys stay in the domain for all heads: that is what it
computes while the first pieces cross. After that it takes the queries of other domains first, so
that their results leave early, and its own last.

Every piece has a buffer of its own: there is no waiting for buffers, and the tile is the memory.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from charm_sched.arrays import Bools, Floats, Ints
from charm_sched.errors import StrategyError
from charm_sched.planners.domain_order import Kernel, Tile, order_kernels
from charm_sched.planners.domain_shape import Shape, choose_shape, domains_of, two_tiers
from charm_sched.planners.domain_tile import Pieces, Side, sides_of
from charm_sched.planners.hierarchy import Tree
from charm_sched.planners.machine import Machine, machine_of
from charm_sched.planners.slots import Slots
from charm_sched.planners.tiles import shard_bytes
from charm_sched.planners.timetable import Lanes, Passage
from charm_sched.plans.builder import Builder
from charm_sched.plans.items import HOME

ACROSS, INSIDE = 0, 1
WAIT = 0.05
"""A lane's latency, as a part of a message's time, from which on a second lane pays."""
KERNELS, SPARE = 10, 8
"""A kernel takes so many overheads of a call at least, and this part of the time by which
computation is longer than gathering."""
LATENCIES = 4
"""Messages inside a domain that are shorter than so many latencies are sent together."""


def domain_mesh(
    b: Builder,
    *,
    groups: int = 0,
    rows: int = 0,
    inner_groups: int = 0,
    inner_rows: int = 0,
    pieces: int = 1,
    domains: Tree | None = None,
) -> None:
    """Write the mesh of domains.

    Args:
        b: The builder.
        groups: Groups of domains that attend different heads. 0 means whatever keeps the busiest
            tier busy for the shortest time, as for the next three.
        rows: Domains of a group whose queries a domain attends; the others give keys.
        inner_groups: Groups of ranks of a domain that attend different heads.
        inner_rows: Ranks of such a group whose queries a rank attends; the others give keys.
        pieces: Sub-pieces that each shard moves in.
        domains: Nested ranks, instead of the topology's domains.

    Raises:
        StrategyError: Innermost domains of different sizes, numbers that do not divide them,
            ``pieces`` below 1, or ``domains`` that are not the ranks.
    """
    if pieces < 1:
        raise StrategyError(f"domain_mesh: expected pieces of 1 or more, found {pieces}")
    machine = machine_of(b, domains)
    nodes = domains_of(machine.tree)
    fixed = {
        "groups": groups, "rows": rows, "inner_groups": inner_groups, "inner_rows": inner_rows
    }  # fmt: skip
    shape = choose_shape(b, machine, nodes, fixed)
    _DomainMesh(b, machine, nodes, shape, pieces).write()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    """A message of every rank, of one side of its tile.

    Attributes:
        side: Which side.
        places: Pieces (t, piece) that it holds.
        inside: How far away inside the domain the rank is that they are passed on to, or come back
            from; 0 for a message across.
        passage: When it moves.
    """

    side: Side
    places: tuple[tuple[int, int], ...]
    inside: int
    passage: Passage


class _DomainMesh:
    """Writes one pass."""

    def __init__(
        self, b: Builder, machine: Machine, nodes: Ints, shape: Shape, pieces: int
    ) -> None:
        self.b, self.machine, self.slots = b, machine, Slots(b)
        self.streams, self.paces = two_tiers(machine)
        self.sides = sides_of(nodes, shape, b.direction)
        self.pieces = Pieces(b, nodes, shape, pieces)
        self.shape, self.split = shape, shape.groups > 1
        self.allowed = self._allowed()
        self.needs = self.pieces.needs(self.sides, self.allowed)
        home = np.zeros_like(self.allowed)
        home[0, 0] = True
        self.home_needs = self.pieces.needs(self.sides, home)
        sizes = shard_bytes(b, shape.finals(b.workload))
        self.sizes = dict(zip((side.name for side in self.sides), sizes, strict=True))

    def write(self) -> None:
        """Write the gathering, the kernels in order, and the returns."""
        gathers = self._plan_gathers()
        arrivals = self._arrivals(gathers)
        kernels = order_kernels(self._tile(arrivals))
        for move in gathers:
            self._write_gather(move)
        for kernel in kernels:
            self._write_kernel(kernel)
        for move in self._plan_returns(kernels):
            self._write_return(move)

    def _allowed(self) -> Bools:
        """Say which queries meet which keys, ``[across, across]``, by domain.

        A domain's own queries and keys meet at home, for all heads.
        """
        queries, keys = self.sides
        groups = self.shape.groups
        group_of_row, row = np.divmod(np.arange(queries.across), queries.across // groups)
        group_of_column, column = np.divmod(np.arange(keys.across), keys.across // groups)
        same = (group_of_row[:, None] == group_of_column) & (row[:, None] == 0) & (column == 0)
        same[0, 0] = False
        return np.asarray(~same)

    def _size(self, side: Side, t: int, inside: int, *, back: bool = False) -> float:
        """Give the bytes of one piece in a message across (inside is 0) or inside."""
        outer, inner = self.pieces.shares(side.kinds[0])
        heads = inner / (1 if t else outer) if inside else outer
        return self.sizes[side.name][back] / heads / self.pieces.count

    def _lanes(self, moves: list[_Move]) -> list[int]:
        """Give a tier a second lane where one would wait for its latency."""
        lanes = []
        for depth, pace in enumerate(self.paces):
            sizes = [move.passage.size for move in moves if move.passage.depth == depth]
            mean = float(np.mean(sizes)) if sizes else 0.0
            lanes.append(1 + (pace.latency * pace.bandwidth > WAIT * mean > 0))
        return lanes

    def _run(self, moves: list[_Move]) -> list[_Move]:
        """Plan when messages move; give them in order."""
        passages = list({id(move.passage): move.passage for move in moves}.values())
        Lanes(self.paces, self._lanes(moves)).run(passages)
        return sorted(moves, key=lambda move: move.passage.start)

    def _bundles(
        self, side: Side, places: list[tuple[int, int]], *, back: bool = False
    ) -> list[tuple[tuple[int, int], ...]]:
        """Put pieces together that are sent as one message inside a domain."""
        pace = self.paces[INSIDE]
        size = self._size(side, 1, 1, back=back)
        count = math.ceil(LATENCIES * pace.latency * pace.bandwidth / size) if size else 1
        own = [((t, piece),) for t, piece in places if not t]
        others = [place for place in places if place[0]]
        cuts = [*range(0, len(others), max(1, count)), len(others)]
        return [*own, *(tuple(others[a:b]) for a, b in itertools.pairwise(cuts))]

    def _plan_gathers(self) -> list[_Move]:
        """Plan the messages that bring queries and keys."""
        moves: list[_Move] = []
        for side in self.sides:
            brought: dict[tuple[int, int], Passage] = {}
            places = list(np.ndindex(side.across, self.pieces.count))
            for t, piece in places[self.pieces.count :]:
                order = (t * self.pieces.count + piece) / len(places)
                passage = Passage(depth=ACROSS, size=self._size(side, t, 0), order=(order,))
                brought[t, piece] = passage
                moves.append(_Move(side=side, places=((t, piece),), inside=0, passage=passage))
            for bundle in self._bundles(side, places):
                for s in range(1, side.inside):
                    passage = Passage(
                        depth=INSIDE, size=sum(self._size(side, t, s) for t, _ in bundle),
                        order=(float(bundle[0][0] > 0),),
                        after=[brought[place] for place in bundle if place in brought],
                    )  # fmt: skip
                    moves.append(_Move(side=side, places=bundle, inside=s, passage=passage))
        return self._run(moves)

    def _arrivals(self, gathers: list[_Move]) -> dict[str, Floats]:
        """Give when each place is there, ``[across, inside, piece]`` per side."""
        found = {
            side.name: np.zeros((side.across, side.inside, self.pieces.count))
            for side in self.sides
        }
        for move in gathers:
            for t, piece in move.places:
                found[move.side.name][t, move.inside, piece] = move.passage.end
        return found

    def _tile(self, arrivals: dict[str, Floats]) -> Tile:
        """Describe the tile of any rank, with mean times."""
        across = [
            np.repeat(np.arange(side.across), side.inside * self.pieces.count)
            for side in self.sides
        ]
        home = (across[0][:, None] == 0) & (across[1] == 0)
        heads = (
            self.b.workload.heads / self.shape.inner_groups / np.where(home, 1, self.shape.groups)
        )
        mean = float(self.pieces.areas.mean()) * float(self.machine.triple_seconds.mean())
        pairs = self.allowed[np.ix_(*across)]
        seconds = pairs * heads * mean
        own, bundles = self._last(seconds, across[1])
        latest = max(float(found.max()) for found in arrivals.values())
        spare = (float(seconds.sum()) - latest) / SPARE
        return Tile(
            seconds=seconds,
            rows=arrivals["queries"].ravel(),
            columns=arrivals["keys"].ravel(),
            kinds=(home & self.split).astype(np.int64),
            own=own,
            bundles=bundles,
            overhead=self.machine.overhead,
            least=max(KERNELS * self.machine.overhead, spare),
        )

    def _last(self, seconds: Floats, across: Ints) -> tuple[Bools, Ints]:
        """Give the rows that are attended last, and which columns they take in turn.

        Forward: a rank's own. Backward: all rows of its domain, where the gradients of one domain's
        keys take longer to leave than its own row attends the next domain's. The domain whose
        gradients are soonest home goes last.
        """
        queries, keys = self.sides
        own = np.zeros((queries.across, queries.inside, self.pieces.count), bool)
        own[0, 0] = True
        if self.b.direction == "forward" or keys.across == 1:
            return own.ravel(), np.zeros_like(across)
        inner, outer = self.paces[INSIDE].bandwidth, self.paces[ACROSS].bandwidth
        home, inside = ((keys.inside - 1) * self._size(keys, t, 1, back=True) for t in (0, 1))
        crossing = self._size(keys, 1, 0, back=True) / outer
        row = float(seconds[own.ravel()].sum()) / keys.across
        own[0, : 1 if row >= self.pieces.count * crossing else None] = True
        turns = np.arange(keys.across)
        turns[0] = keys.across if home / inner < inside / inner + crossing else 0
        return own.ravel(), turns[across]

    def _attends(self, side: Side, kind: str, place: tuple[int, int, int], share: Ints) -> Bools:
        """Say whether each rank attends a part of the heads of a place, ``[ranks]``."""
        t, s, piece = place
        own = self.needs[side.name][t, s, piece] & (share == self.pieces.own_share(kind))
        return np.asarray(own | self.home_needs[side.name][t, s, piece])

    def _sent_across(
        self, side: Side, kind: str, t: int, piece: int, share: Ints | None = None
    ) -> Bools:
        """Say whether some rank of a domain attends what enters there at each rank, ``[ranks]``.

        Args:
            side: Which side.
            kind: Kind of item.
            t: From which domain.
            piece: Which piece.
            share: Part of the heads at each rank; None for all parts.
        """
        found = np.zeros(self.b.num_ranks, bool)
        for s, after in enumerate(side.after):
            needs = self.needs[side.name][t, s, piece, after]
            found |= (
                needs if share is None else needs & (self.pieces.own_share(kind)[after] == share)
            )
        return found

    def _write_gather(self, move: _Move) -> None:
        side, s, pieces = move.side, move.inside, self.pieces
        found: list[tuple[Ints, Bools, int]] = []
        for (t, piece), kind in itertools.product(move.places, side.kinds):
            owners = side.owners[t, s]
            if not s:
                goes = self._sent_across(side, kind, t, piece)
                slot = self.slots(kind, t, s, piece)
                found.append((pieces.of_domain(kind, owners, piece), goes, slot))
                continue
            for number, share in enumerate(self._shares(kind, t)):
                goes = self._attends(side, kind, (t, s, piece), share)
                slot = self.slots(kind, t, s, piece, number)
                found.append((pieces.of_share(kind, owners, piece, share), goes, slot))
        src = side.before[s] if s else side.owners[move.places[0][0], 0]
        self._transfer(move, src, self.b.ranks, found)

    def _shares(self, kind: str, t: int) -> list[Ints]:
        """List which parts of the heads each rank attends of a domain's queries or keys."""
        return [self.pieces.own_share(kind)] if t else self.pieces.home_shares(kind)

    def _transfer(
        self, move: _Move, src: Ints, dst: Ints, found: list[tuple[Ints, Bools, int]],
        suffix: str = "",
    ) -> None:  # fmt: skip
        """Write a message of (items, which of them go, slot)."""
        passage = move.passage
        lane = f"-{passage.lane + 1}" if passage.lane else ""
        self.b.transfer(
            src=src, dst=dst, level=passage.level,
            items=np.stack([np.where(goes, item, -1) for item, goes, _ in found], axis=1),
            stream=f"{self.streams[passage.depth]}{lane}{suffix}",
            slot=np.array([[slot for _, _, slot in found]]),
        )  # fmt: skip

    def _write_kernel(self, kernel: Kernel) -> None:
        rows, columns = (
            [list(side.places(self.pieces.count))[number] for number in numbers]
            for side, numbers in zip(self.sides, (kernel.rows, kernel.columns), strict=True)
        )
        home = not rows[0][0] and not columns[0][0]
        query, key = (
            self._operands(side, places, home=home)
            for side, places in zip(self.sides, (rows, columns), strict=True)
        )
        self.b.attend(
            rank=self.b.ranks, queries=query[0], query_slot=query[1], keys=key[0], key_slot=key[1]
        )

    def _operands(
        self, side: Side, places: list[tuple[int, int, int]], *, home: bool
    ) -> tuple[Ints, Ints]:
        """Give items and slots of one side of a kernel, ``[ranks, operands]``."""
        kind, items, slots = side.kinds[0], [], []
        for t, s, piece in places:
            for share in self._shares(kind, not home):
                items.append(self.pieces.of_share(kind, side.owners[t, s], piece, share))
                slots.append(np.full(self.b.num_ranks, HOME))
                if side.result and (t or s):
                    numbers = range(self.pieces.shares(kind)[1])
                    slot = [self.slots("sum", side.result, t, s, piece, n) for n in numbers]
                    slots[-1] = np.array(slot)[share]
        return np.stack(items, axis=1), np.stack(slots, axis=1)

    def _plan_returns(self, kernels: list[Kernel]) -> list[_Move]:
        """Plan the messages that bring results home."""
        moves: list[_Move] = []
        ends = [np.zeros(side.across * side.inside * self.pieces.count) for side in self.sides]
        for kernel in kernels:
            for numbers, end in zip((kernel.rows, kernel.columns), ends, strict=True):
                end[list(numbers)] = kernel.end
        for side, end in zip(self.sides, ends, strict=True):
            if not side.result:
                continue
            done = end.reshape(side.across, side.inside, self.pieces.count)
            places = sorted(
                np.ndindex(side.across, self.pieces.count),
                key=lambda place: (float(done[place[0], :, place[1]].max()), place),
            )
            joined: dict[tuple[int, int], list[Passage]] = {}
            for bundle in self._bundles(side, places, back=True):
                for s in range(1, side.inside):
                    passage = Passage(
                        depth=INSIDE,
                        size=sum(self._size(side, t, s, back=True) for t, _ in bundle),
                        ready=max(float(done[t, s, piece]) for t, piece in bundle),
                    )  # fmt: skip
                    moves.append(_Move(side=side, places=bundle, inside=s, passage=passage))
                    for place in bundle:
                        joined.setdefault(place, []).append(passage)
            for t, piece in places:
                if t:
                    passage = Passage(
                        depth=ACROSS, size=self._size(side, t, 0, back=True),
                        ready=float(done[t, 0, piece]), after=joined.get((t, piece), []),
                    )  # fmt: skip
                    moves.append(_Move(side=side, places=((t, piece),), inside=0, passage=passage))
        return self._run(moves)

    def _write_return(self, move: _Move) -> None:
        side, s, pieces, kind = move.side, move.inside, self.pieces, move.side.result
        found: list[tuple[Ints, Bools, int]] = []
        for t, piece in move.places:
            shares = self._shares(kind, t) if s else pieces.domain_shares(kind)
            for number, share in enumerate(shares):
                item = pieces.of_share(kind, side.owners[t, s], piece, share)
                if s:
                    goes = self._attends(side, kind, (t, s, piece), share)
                else:
                    goes = self._sent_across(side, kind, t, piece, share)
                found.append((item, goes, self.slots("share", kind, t, s, piece, number)))
        dst = side.before[s] if s else side.owners[move.places[0][0], 0]
        self._transfer(move, self.b.ranks, dst, found, "-results")
