"""How measured latencies of routes are shared out over the classes of links they cross."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from charm_sched.topology.graph import Link, Route, Topology

_PULL = 1e-3  # of a measurement weighs the wish to keep the file's proportions
_INSTANT = 1e-12  # seconds: less is no latency but what rounding left; it counts where all are zero

Class = TypeVar("Class", bound=Hashable)


def share_latencies(
    topology: Topology,
    measured: Sequence[tuple[Route, float]],
    class_of: Callable[[Link], Class],
) -> Mapping[Class, float]:
    """Give seconds per class of link, so that routes have their measured latencies.

    Least squares of relative errors, none below 0, and 0 for less than a picosecond; errors of a
    route without latency count by the usual one. Where routes leave open how to share, classes keep
    their proportions of the file.

    Args:
        topology: The machine as its file states it.
        measured: Routes, with the seconds that a transfer took before bytes flowed; below 0 where
            what was taken off for the host is more than that.
        class_of: Which links have one latency, such as those of one kind.
    """
    from scipy.optimize import nnls

    crossed = [[topology.links[i] for i in route.links] for route, _ in measured]
    counts = [Counter(class_of(link) for link in links) for links in crossed]
    classes = list(dict.fromkeys(own for count in counts for own in count))
    if not classes:
        return {}
    rows = np.array([[count[own] for own in classes] for count in counts], np.float64)
    found = np.array([value if value >= _INSTANT else 0.0 for _, value in measured])
    usually = float(np.median(found[found > 0])) if (found > 0).any() else _INSTANT
    seconds = np.where(found > 0, found, usually)
    stated = {own: [link.latency for links in crossed for link in links if class_of(link) == own]
              for own in classes}  # fmt: skip
    file = np.array([float(np.mean(stated[own])) for own in classes])
    scale = np.where(file > 0, file, float(np.median(seconds / rows.sum(axis=1))))
    usual = float(np.median(seconds / (rows @ scale)))
    columns = np.vstack([rows * scale / seconds[:, None], _PULL / usual * np.eye(len(classes))])
    wanted = np.concatenate([found / seconds, np.full(len(classes), _PULL)])
    factors, _ = nnls(columns, wanted)
    shares = np.where(factors * scale < _INSTANT, 0.0, factors * scale)
    return dict(zip(classes, shares.tolist(), strict=True))
