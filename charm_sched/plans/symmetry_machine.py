"""Which translations of ranks leave a machine as it is, and what that does to its capacities.

A translation of the devices is extended to switches (each goes to the one with the translated
neighbours; where several have the same, routes tell them apart) and then checked link by link:
ends, bandwidth, latency, cap and sharing. Translations have to commute and come back to where they
began. Then the translates of one route load all capacities of an *orbit* alike, and one of them
stands for all: each crossing of it counts for (translations / size of the orbit) flows.

Routes are compared for the pairs that a plan uses, up to `MOST_PAIRS` of them per axis: where equal
paths are dealt out, the router could deal them otherwise for the translates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.arrays import Floats, Ints
from charm_sched.errors import PlanError
from charm_sched.plans.symmetry import Symmetry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from charm_sched.topology.graph import Topology

MOST_PAIRS = 4096  # of ranks whose routes are compared, per axis
_TRIED = 2048  # destinations whose routes are asked which of several switches is the translate


class SymmetryError(PlanError):
    """A machine does not look the same from translated ranks."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Action:
    """What one translation does to a machine.

    Attributes:
        devices: Where each device goes; those without a rank stay.
        capacities: Where each capacity goes.
    """

    devices: Ints
    capacities: Ints


def crossings(
    topology: Topology, devices: Sequence[str], symmetry: Symmetry, pairs: Ints
) -> Floats:
    """Give for how many flows a crossing of each capacity stands, ``[capacities]``.

    Args:
        topology: The machine.
        devices: The device of each rank.
        symmetry: The translations.
        pairs: Source and destination ranks of the representatives' transfers, ``[2, pairs]``.

    Raises:
        SymmetryError: The machine does not look the same from translated ranks.
    """
    actions = _actions(topology, devices, symmetry)
    for action in actions:
        _check_routes(topology, devices, action, pairs)
    orbit = _orbits(actions, len(topology.capacities))
    times: Floats = symmetry.order / np.bincount(orbit)[orbit]
    return times


def spread(
    topology: Topology, devices: Sequence[str], symmetry: Symmetry, crossed: Floats
) -> Floats:
    """Give what crosses each capacity, where ``crossed`` is what representatives send over it."""
    orbit = _orbits(_actions(topology, devices, symmetry), len(topology.capacities))
    return (np.bincount(orbit, crossed) * symmetry.order / np.bincount(orbit))[orbit]


def is_invariant(topology: Topology, devices: Sequence[str], symmetry: Symmetry) -> bool:
    """Say whether a machine looks the same from translated ranks, routes apart."""
    try:
        _actions(topology, devices, symmetry)
    except SymmetryError:
        return False
    return True


def _actions(topology: Topology, devices: Sequence[str], symmetry: Symmetry) -> list[Action]:
    """Give what translations by one along each axis do.

    Raises:
        SymmetryError: They change something.
    """
    actions = [_action(topology, devices, symmetry, axis) for axis in symmetry.axes]
    lengths = [symmetry.shape[axis] for axis in symmetry.axes]
    _check_group([action.capacities for action in actions], lengths)
    return actions


def _action(topology: Topology, devices: Sequence[str], symmetry: Symmetry, axis: int) -> Action:
    """Give what a translation by one along an axis does.

    Raises:
        SymmetryError: It changes something.
    """
    one = np.prod(symmetry.shape[axis + 1 :], dtype=np.int64)
    ranks = np.arange(symmetry.num_ranks)
    there = Symmetry(shape=symmetry.shape, axes=(axis,)).moved(ranks, np.full(len(ranks), one))
    index = np.array([topology.device_index(name) for name in devices], np.int64)
    moved = np.arange(len(topology.devices))
    moved[index] = index[there]
    _check_devices(topology, moved)
    image = _Images(topology, moved).found()
    return Action(devices=moved, capacities=_move_capacities(topology, image))


def _check_devices(topology: Topology, moved: Ints) -> None:
    for device, other in zip(topology.devices, moved.tolist(), strict=True):
        twin = topology.devices[other]
        facts = [(d.compute, d.port, d.memory, d.peer) for d in (device, twin)]
        if facts[0] != facts[1]:
            raise SymmetryError(
                f"symmetry: {device.name} and its translate {twin.name} are not alike"
            )


class _Images:
    """Finds where switches go when devices are translated."""

    def __init__(self, topology: Topology, moved: Ints) -> None:
        self._topology = topology
        names = topology.part_names
        index = {name: i for i, name in enumerate(names)}
        self._near: list[dict[int, None]] = [{} for _ in names]
        for link in topology.links:
            self._near[index[link.src]][index[link.dst]] = None
        self._ends = [(index[link.src], index[link.dst]) for link in topology.links]
        self._kinds = [""] * len(topology.devices) + [s.kind for s in topology.switches]
        self._image = [*moved.tolist(), *([-1] * len(topology.switches))]
        self._taken = set(self._image[: len(moved)])

    def found(self) -> Ints:
        """Give where each device and switch goes.

        Raises:
            SymmetryError: Some switch has nowhere to go.
        """
        waiting = list(range(len(self._topology.devices), len(self._image)))
        asked = False
        while waiting:
            left, options = [], {}
            for switch in waiting:
                candidates = self._candidates(switch)
                if candidates is None or len(candidates) > 1:
                    left.append(switch)
                    options[switch] = candidates
                elif not candidates:
                    name = self._topology.part_names[switch]
                    raise SymmetryError(f"symmetry: no switch is the translate of {name}")
                else:
                    self._set(switch, candidates[0])
            if len(left) == len(waiting):
                if asked:
                    self._guess(left, options)
                else:
                    self._ask_routes()
                asked = True
            waiting = [switch for switch in left if self._image[switch] < 0]
        return np.array(self._image, np.int64)

    def _set(self, switch: int, image: int) -> None:
        if image not in self._taken:
            self._image[switch] = image
            self._taken.add(image)

    def _candidates(self, switch: int) -> list[int] | None:
        """Give where a switch may go, as far as its neighbours are known; None: none is."""
        known = [self._image[n] for n in self._near[switch] if self._image[n] >= 0]
        if not known:
            return None
        degree, kind = len(self._near[switch]), self._kinds[switch]
        found = [
            w
            for w in self._near[known[0]]
            if w not in self._taken and self._kinds[w] == kind and len(self._near[w]) == degree
        ]
        return [w for w in found if all(w in self._near[n] for n in known)]

    def _ask_routes(self) -> None:
        """Let routes from the first device say where switches with equal neighbours go."""
        topology, devices = self._topology, len(self._topology.devices)
        names = topology.device_names
        for far in range(1, min(devices, _TRIED)):
            near = topology.route(names[0], names[far])
            image = topology.route(names[self._image[0]], names[self._image[far]])
            for one, other in zip(near.links, image.links, strict=False):
                end, there = self._ends[one][1], self._ends[other][1]
                if end >= devices and self._image[end] < 0:
                    self._set(end, there)

    def _guess(self, left: Sequence[int], options: dict[int, list[int] | None]) -> None:
        """Let the first of the switches that nothing tells apart stay, or take any place."""
        for switch in left:
            free = [w for w in options[switch] or () if w not in self._taken]
            if free:
                self._set(switch, switch if switch in free else free[0])
                return
        name = self._topology.part_names[left[0]]
        raise SymmetryError(f"symmetry: no switch is the translate of {name}")


def _move_capacities(topology: Topology, image: Ints) -> Ints:
    """Give where each capacity goes.

    Raises:
        SymmetryError: A link has no like at the translated place.
    """
    index = {name: i for i, name in enumerate(topology.part_names)}
    numbers = {facts: i for i, facts in enumerate(dict.fromkeys(_facts(topology)))}
    src = np.array([index[link.src] for link in topology.links], np.int64)
    dst = np.array([index[link.dst] for link in topology.links], np.int64)
    like = np.array([numbers[facts] for facts in _facts(topology)], np.int64)
    before = np.stack([src, dst, like])
    after = np.stack([image[src], image[dst], like])
    first, second = np.lexsort(before[::-1]), np.lexsort(after[::-1])
    if (before[:, first] != after[:, second]).any():
        at = int(np.flatnonzero((before[:, first] != after[:, second]).any(axis=0))[0])
        link = topology.links[int(second[at])]
        raise SymmetryError(
            f"symmetry: the link {link.src} -> {link.dst} has no like at the translated place"
        )
    moved = np.empty(len(src), np.int64)
    moved[second] = first
    of = np.array(topology.link_capacity, np.int64)
    found = np.arange(len(topology.capacities))
    found[of] = of[moved]
    if (found[of] != of[moved]).any():
        raise SymmetryError("symmetry: links that share a bandwidth do not do so when translated")
    devices = np.arange(len(topology.devices))
    ports = len(topology.capacities) - 2 * len(devices)
    for way in range(2):
        found[ports + 2 * devices + way] = ports + 2 * image[devices] + way
    return found


def _facts(topology: Topology) -> Iterator[tuple[object, ...]]:
    for link in topology.links:
        yield link.bandwidth, link.latency, link.flow_cap, link.shared, link.ramp


def _check_group(moves: Sequence[Ints], lengths: Sequence[int]) -> None:
    """Check that translations along the axes commute and come back after their length."""
    for move, length in zip(moves, lengths, strict=True):
        at: Ints = np.arange(len(move))
        for _ in range(length):
            at = move[at]
        if (at != np.arange(len(move))).any() or any((move[o] != o[move]).any() for o in moves):
            raise SymmetryError("symmetry: switches do not come back when devices do")


def _orbits(actions: Sequence[Action], count: int) -> Ints:
    """Number the orbits of capacities, and give the number of each capacity's one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends = np.concatenate([*(action.capacities for action in actions), np.arange(count)])
    starts = np.tile(np.arange(count), len(actions) + 1)
    graph = coo_array((np.ones(len(ends), np.int8), (starts, ends)), shape=(count, count))
    label: Ints = connected_components(graph, directed=False)[1]
    return label


def _check_routes(topology: Topology, devices: Sequence[str], action: Action, pairs: Ints) -> None:
    """Compare routes with those of the translated pairs.

    Raises:
        SymmetryError: One is another.
    """
    names = topology.device_names
    step = -(-max(pairs.shape[1], 1) // MOST_PAIRS)
    for src, dst in pairs[:, ::step].T.tolist():
        one, other = topology.device_index(devices[src]), topology.device_index(devices[dst])
        route = topology.route(names[one], names[other])
        there = topology.route(names[action.devices[one]], names[action.devices[other]])
        if sorted(action.capacities[list(route.capacities)]) != sorted(there.capacities):
            raise SymmetryError(
                f"symmetry: the route from {names[one]} to {names[other]} does not become that of "
                "its translate"
            )


__all__ = ["SymmetryError", "crossings", "is_invariant"]
