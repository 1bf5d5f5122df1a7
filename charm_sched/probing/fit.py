"""What measured transfers say about links: the smallest change to the file that explains them.

The model is the one that plans are simulated with. Flows of one size start at once; the slowest of
them gets the least, over everything it crosses, of bandwidth over the number of flows there, and
never more than a flow cap; so one number per traffic is compared, the time until its last transfer
ends. Turned round, each measurement bounds each number of the file from below: a link that carries
n flows at a rate r has a bandwidth of at least n r, and a flow cap of at least r. And something
that the flows cross must have just that, or they would have been faster.

So for each class of alike links, bandwidth, flow cap and half duplex either stay as the file says,
or change to the least that the measurements allow. Of all such changes that set is taken which
leaves the fewest measurements unexplained, then is the smallest, then differs least from the file.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from charm_sched.arrays import Bools, Floats
from charm_sched.probing.numbers import (
    PORT,
    Case,
    ClassFit,
    Fit,
    Number,
    Unexplained,
    class_names,
    narrow_ports,
)
from charm_sched.probing.whole_machine import LinkClass, link_class

if TYPE_CHECKING:
    from charm_sched.topology.graph import Topology

UNEXPLAINED_COSTS = 1.5  # changes: one measurement is worth one change, none is worth two
_NEAR = 1e-3  # of a change: weighs the size of changes where their number is equal
_NEW = 10.0  # the size of a new number: more than any factor has

Change: TypeAlias = tuple[int, str]
"""Class of links, and "bandwidth", "flow_cap" or "shared"."""


def fit_classes(
    topology: Topology,
    devices: Sequence[str],
    cases: Sequence[Case],
    *,
    tolerance: float,
    slow: Mapping[int, float] | None = None,
) -> Fit:
    """Find what explains the measurements.

    Args:
        topology: The machine as its file states it.
        devices: Device of each rank.
        cases: Measurements, at the file's own scale.
        tolerance: Relative; rates that differ by less are the same.
        slow: Bandwidth of links (by index) that are slower than those like them.
    """
    return _Fitter(topology, devices, cases, tolerance, slow or {}).run()


@dataclass(frozen=True, eq=False)
class _Outcome:
    """A set of changes, tried out.

    Attributes:
        score: What it costs; infinite where a measurement contradicts it.
        value: Bandwidth, then flow cap, of each class, ``[2 classes]``.
        tight: How much of each number each case uses, ``[cases, 2 classes]``.
        fixed: The same for slow links, ``[cases]``.
    """

    score: float
    value: Floats
    tight: Floats
    fixed: Floats

    def explained(self, tolerance: float) -> Bools:
        return np.maximum(self.tight.max(axis=1), self.fixed) >= 1 - tolerance

    def fitted(self, rates: Floats) -> Floats:
        """Give what the machine allows each case."""
        return rates / np.maximum(self.tight.max(axis=1), self.fixed)


class _Fitter:
    """The search, and what follows from its result."""

    def __init__(
        self,
        topology: Topology,
        devices: Sequence[str],
        cases: Sequence[Case],
        tolerance: float,
        slow: Mapping[int, float],
    ) -> None:
        self._topology, self._devices, self._cases = topology, devices, cases
        self._tolerance, self._slow = tolerance, slow
        self._rates = np.array([case.rate for case in cases], np.float64)
        self._ports = narrow_ports(topology)
        self._count_loads()
        self._file = np.array(
            [c[1] for c in self._classes]
            + [math.inf if c[3] is None else c[3] for c in self._classes],
            np.float64,
        )
        self._cache: dict[frozenset[Change], _Outcome] = {}

    def _count_loads(self) -> None:
        """Count, per case and class, the most flows on one link: one way, and both ways."""
        found = []
        seen: dict[LinkClass, int] = {}
        for case in self._cases:
            one, both = Counter[int](), Counter[int]()
            of: dict[int, LinkClass] = {}
            for a, b in case.pairs:
                route = self._topology.route(self._devices[a], self._devices[b])
                for index in route.links:
                    one[index] += 1
                    both[index] += 1
                    both[index ^ 1] += 1
                    of[index] = link_class(self._topology.links[index])
                for capacity in route.capacities:
                    if capacity in self._ports:
                        key = -1 - capacity
                        one[key] += 1
                        both[key] += 1
                        of[key] = self._ports[capacity]
            for own in of.values():
                seen.setdefault(own, len(seen))
            found.append((one, both, of))
        self._classes = list(seen)
        shape = (len(found), len(seen))
        self._one, self._both, self._fixed = np.zeros(shape), np.zeros(shape), np.zeros(len(found))
        for row, (one, both, of) in enumerate(found):
            for key, own in of.items():
                column = seen[own]
                if key in self._slow:
                    flows = both[key] if self._topology.links[key].shared else one[key]
                    used = flows * self._rates[row] / self._slow[key]
                    self._fixed[row] = max(self._fixed[row], used)
                    continue
                self._one[row, column] = max(self._one[row, column], one[key])
                self._both[row, column] = max(self._both[row, column], both[key])

    def run(self) -> Fit:
        """Search, and say what was found."""
        changes = self._search()
        best = self._try(changes)
        explained = best.explained(self._tolerance)
        fitted = best.fitted(self._rates)
        return Fit(
            cases=len(self._cases),
            classes=tuple(self._class_fit(k, changes, best) for k in range(len(self._classes))),
            unexplained=tuple(
                Unexplained(name=case.name, rate=case.rate, fitted=float(rate))
                for case, rate, fine in zip(self._cases, fitted, explained, strict=True)
                if not fine
            ),
        )

    def _search(self) -> frozenset[Change]:
        """Change what is contradicted, then toggle one or two changes while that helps."""
        possible = list(self._possible())
        now = frozenset(
            change for change in possible if change[1] != "shared" and self._contradicted(change)
        )
        steps = [frozenset(s) for n in (1, 2) for s in itertools.combinations(possible, n)]
        while True:
            best = min((now ^ step for step in steps), key=self._score, default=now)
            if self._score(best) >= self._score(now) - 1e-12:
                return now
            now = best

    def _possible(self) -> Iterator[Change]:
        for number, own in enumerate(self._classes):
            yield number, "bandwidth"
            if own[0] != PORT:
                yield number, "flow_cap"
                if (self._both[:, number] > self._one[:, number]).any():
                    yield number, "shared"

    def _contradicted(self, change: Change) -> bool:
        number, what = change
        column = number + len(self._classes) * (what == "flow_cap")
        seen = float((self._loads(frozenset())[:, column] * self._rates).max())
        return seen > self._file[column] * (1 + self._tolerance)

    def _loads(self, changes: frozenset[Change]) -> Floats:
        shared = np.array(
            [own[4] != ((k, "shared") in changes) for k, own in enumerate(self._classes)], bool
        )
        return np.hstack([np.where(shared, self._both, self._one), self._one > 0])

    def _score(self, changes: frozenset[Change]) -> float:
        return self._try(changes).score

    def _try(self, changes: frozenset[Change]) -> _Outcome:
        if changes not in self._cache:
            self._cache[changes] = self._outcome(changes)
        return self._cache[changes]

    def _outcome(self, changes: frozenset[Change]) -> _Outcome:
        count = len(self._classes)
        used = self._loads(changes) * self._rates[:, None]
        least = used.max(axis=0)
        change = np.array(
            [(k % count, "flow_cap" if k >= count else "bandwidth") in changes
             for k in range(2 * count)], bool,
        )  # fmt: skip
        value = np.where(change & (least > 0), least, self._file)
        contradicted = bool((least > value * (1 + self._tolerance)).any())
        outcome = _Outcome(0.0, value, used / value, self._fixed)
        wrong = int((~outcome.explained(self._tolerance)).sum())
        size = float(self._size(value)[change].sum())
        score = UNEXPLAINED_COSTS * wrong + len(changes) + _NEAR * size
        return _Outcome(math.inf if contradicted else score, value, used / value, self._fixed)

    def _size(self, value: Floats) -> Floats:
        """Say how far each number is from the file's, ``[2 classes]``.

        A flow cap that the file does not have is farther than any change of a number it has. It
        counts the less the more bandwidth its link has beyond it: a link for many flows is where
        one flow does not get all.
        """
        wide = np.tile(self._file[: len(self._classes)], 2)
        old = np.where(np.isinf(self._file), wide, self._file)
        far = np.abs(np.log(value / old))
        return np.where(np.isinf(self._file), _NEW + 1 / (1 + far), far)

    def _class_fit(self, number: int, changes: frozenset[Change], best: _Outcome) -> ClassFit:
        own, count = self._classes[number], len(self._classes)
        return ClassFit(
            name=self._names[own],
            link_class=own,
            bandwidth=self._number((number, "bandwidth"), number, changes, best),
            flow_cap=self._number((number, "flow_cap"), number + count, changes, best),
            shared=own[4] != ((number, "shared") in changes),
            shared_status=self._duplex(number, changes, best),
        )

    @property
    def _names(self) -> dict[LinkClass, str]:
        every = {link_class(link) for link in self._topology.links} | set(self._ports.values())
        return class_names(sorted(every, key=repr))

    def _number(
        self, change: Change, column: int, changes: frozenset[Change], best: _Outcome
    ) -> Number:
        used = best.tight[:, column] * best.value[column] if best.value[column] < math.inf else (
            self._loads(changes)[:, column] * self._rates
        )  # fmt: skip
        limit = 1 - self._tolerance
        tight = best.tight[:, column] >= limit
        elsewhere = np.maximum(np.delete(best.tight, column, axis=1).max(axis=1), best.fixed)
        sole = tight & (elsewhere < limit)
        others = self._in_its_place(change, changes) if change in changes else ()
        raised = self._file[column] * (1 + self._tolerance) < best.value[column]
        if sole.any():
            status = "measured"
        elif change in changes and raised:
            status = "at least"
        else:
            status = "together" if tight.any() else "unseen"
        value = float(best.value[column])
        if status in ("measured", "together"):
            value = float(np.median(used[sole if sole.any() else tight]))
        if status == "together" and not others:
            others = self._beside(column, best)
        file = float(self._file[column])
        return Number(
            file=None if math.isinf(file) else file,
            value=None if math.isinf(value) else value,
            status=status,
            seen=float(used.max()),
            others=others,
        )

    def _in_its_place(self, change: Change, changes: frozenset[Change]) -> tuple[str, ...]:
        """Name the changes that would explain as much in place of one."""
        least = self._wrong(changes)
        return tuple(
            self._label(other)
            for other in self._possible()
            if other not in changes
            and self._score(changes - {change} | {other}) < math.inf
            and self._wrong(changes - {change} | {other}) <= least
        )

    def _wrong(self, changes: frozenset[Change]) -> int:
        return int((~self._try(changes).explained(self._tolerance)).sum())

    def _beside(self, column: int, best: _Outcome) -> tuple[str, ...]:
        """Name the numbers that are limits wherever one is."""
        limit, count = 1 - self._tolerance, len(self._classes)
        rows = best.tight[:, column] >= limit
        return tuple(
            self._label((k % count, "flow_cap" if k >= count else "bandwidth"))
            for k in range(2 * count)
            if k != column and (best.tight[rows, k] >= limit).all()
        )

    def _label(self, change: Change) -> str:
        what = {"bandwidth": "bandwidth", "flow_cap": "flow cap", "shared": "half duplex"}
        return f"{self._names[self._classes[change[0]]]} {what[change[1]]}"

    def _duplex(self, number: int, changes: frozenset[Change], best: _Outcome) -> str:
        """Say whether some case would have gone otherwise with the other duplex."""
        loads = (self._one, self._both)
        shared = self._classes[number][4] != ((number, "shared") in changes)
        other = loads[not shared][:, number] * self._rates / best.value[number]
        tight = best.tight.copy()
        tight[:, number] = other
        then = np.maximum(tight.max(axis=1), best.fixed)
        now = np.maximum(best.tight.max(axis=1), best.fixed)
        known = best.explained(self._tolerance) & (np.abs(then / now - 1) > self._tolerance)
        return "measured" if known.any() else "unseen"
