"""How measured latencies of routes are shared out over the classes of links they cross."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from charm_sched.probing.whole_machine import LinkClass, link_class

if TYPE_CHECKING:
    from charm_sched.topology.graph import Route, Topology

_PULL = 1e-3  # of a measurement weighs the wish to keep the file's proportions


def share_latencies(
    topology: Topology, measured: Sequence[tuple[Route, float]]
) -> Mapping[LinkClass, float]:
    """Give seconds per class of link, so that routes have their measured latencies.

    Least squares of relative errors, none below 0. Where routes leave open how to share, links keep
    their proportions of the file.

    Args:
        topology: The machine as its file states it.
        measured: Routes, with the seconds that a transfer took before bytes flowed.
    """
    from scipy.optimize import nnls

    counts = [Counter(link_class(topology.links[i]) for i in route.links) for route, _ in measured]
    classes = list(dict.fromkeys(own for count in counts for own in count))
    if not classes:
        return {}
    seconds = np.array([max(value, 1e-12) for _, value in measured])
    rows = np.array([[count[own] for own in classes] for count in counts], np.float64)
    file = np.array([own[2] for own in classes])
    scale = np.where(file > 0, file, float(np.median(seconds / rows.sum(axis=1))))
    usual = float(np.median(seconds / (rows @ scale)))
    columns = np.vstack([rows * scale / seconds[:, None], _PULL / usual * np.eye(len(classes))])
    wanted = np.concatenate([np.ones(len(seconds)), np.full(len(classes), _PULL)])
    factors, _ = nnls(columns, wanted)
    return {own: float(f * s) for own, f, s in zip(classes, factors, scale, strict=True)}
