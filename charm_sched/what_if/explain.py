"""Why a plan takes as long as it does, in words: its critical path, its cut, what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from charm_sched.timelines.critical_path import Stretch, stretches
from charm_sched.timelines.link_usage import FULL, PORT
from charm_sched.units import format_bandwidth, format_seconds

if TYPE_CHECKING:
    from charm_sched.search.results import Result
    from charm_sched.topology.graph import Topology
    from charm_sched.what_if.levers import Lever

COMPUTATION = "computation"
MOST_CAUSES = 8
"""With more causes than that, those are put together that differ in who and from whom alone."""
MOST_OPERATIONS = 300_000
"""A longer plan is explained where that is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What stands on the critical path once or several times.

    Attributes:
        seconds: For how long in all.
        stretches: Those that say the same.
        words: In one sentence.
    """

    seconds: float
    stretches: tuple[Stretch, ...]
    words: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation:
    """Why one plan takes as long as it does.

    Attributes:
        makespan: Seconds that it takes.
        causes: What stands on the critical path, in order of time; the seconds add up to the
            makespan.
        shares: Seconds on the critical path by what they are: computation, or the data waited for
            and the tier, the longest first.
        cut: The cut of the network that is the narrowest for it, in words; empty where nothing has
            to move.
        levers: What a change of the machine would gain, the most first; None where that was not
            asked for.
    """

    makespan: float
    causes: tuple[Cause, ...]
    shares: Mapping[str, float]
    cut: str
    levers: tuple[Lever, ...] | None = None


def explain(result: Result, levers: tuple[Lever, ...] | None = None) -> Explanation:
    """Explain one result."""
    timeline = result.timeline
    assert timeline.topology is not None
    path = stretches(timeline)
    tightest = (result.class_bound or result.bound).cut
    return Explanation(
        makespan=timeline.makespan,
        causes=tuple(_causes(path, timeline.topology)),
        shares=_shares(path),
        cut="" if tightest is None else tightest.words,
        levers=levers,
    )


def _shares(path: Sequence[Stretch]) -> dict[str, float]:
    found: dict[str, float] = {}
    for stretch in path:
        name = COMPUTATION
        if stretch.kind != COMPUTATION:
            name = f"{stretch.what} over {stretch.tier}" if stretch.tier else stretch.what
        found[name] = found.get(name, 0.0) + stretch.seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _causes(path: Sequence[Stretch], machine: Topology) -> list[Cause]:
    """Put stretches together that say the same, in order of their first.

    Where that leaves many, whatever moves for the same reason is one cause, from and to wherever.
    """
    alike = _grouped(path, places=True)
    if len(alike) > MOST_CAUSES:
        alike = _grouped(path, places=False)
    return [
        Cause(
            seconds=sum(one.seconds for one in group),
            stretches=tuple(group),
            words=words(group, machine),
        )
        for group in alike
    ]


def _grouped(path: Sequence[Stretch], *, places: bool) -> list[list[Stretch]]:
    alike: dict[tuple[object, ...], list[Stretch]] = {}
    for one in path:
        limit = (one.limit.by, one.limit.kind) if one.limit else ()
        where = (one.place, one.source) if places else ()
        key = (one.kind, one.what, one.tier, one.waits, limit, where)
        alike.setdefault(key, []).append(one)
    return list(alike.values())


def words(group: Sequence[Stretch], machine: Topology) -> str:
    """Say what stretches that say the same are."""
    first = group[0]
    took = format_seconds(sum(one.seconds for one in group), digits=3)
    times = f" in {len(group)} turns" if len(group) > 1 else ""
    places = list(dict.fromkeys(one.place for one in group))
    who, verb = _listed(places), "s" * (len(places) == 1)
    if first.kind == COMPUTATION:
        kernels = sum(one.ops for one in group)
        noun = "kernel" if kernels == 1 else "kernels"
        return f"{who} compute{verb} for {took}{times} ({kernels} {noun})"
    longest = max(group, key=lambda one: one.seconds)
    source = _listed(list(dict.fromkeys(one.source for one in group)))
    if first.waits:
        head = f"{who} wait{verb} {took}{times} for {first.what} from {source}"
    else:
        head = f"{who} receive{verb} {first.what} from {source} for {took}{times}"
        head += ", computing meanwhile"
    return f"{head}: {_limit_words(longest, machine)}"


def _listed(names: Sequence[str]) -> str:
    """Name one or two things, or the first of many.

    >>> _listed(["a"]), _listed(["a", "b"]), _listed(["a", "b", "c"])
    ('a', 'a and b', 'a and 2 others')
    """
    if len(names) > 2:
        return f"{names[0]} and {len(names) - 1} others"
    return " and ".join(names)


def _limit_words(stretch: Stretch, machine: Topology) -> str:
    """Say what keeps the transfers of a stretch from being faster."""
    limit = stretch.limit
    assert limit is not None
    delay = format_seconds(stretch.latency, digits=3)
    match limit.by:
        case "latency":
            return f"{delay} of it is latency"
        case "flow_cap":
            caps = {k.flow_cap for k in machine.links if k.kind == limit.kind and k.flow_cap}
            most = format_bandwidth(min(caps), digits=3)
            return f"no single transfer gets more than {most} over {limit.name}"
        case "ramp":
            return f"messages of this size get a part of the bandwidth of {limit.name} alone"
        case _:
            return _link_words(stretch, delay)


def _link_words(stretch: Stretch, delay: str) -> str:
    limit = stretch.limit
    assert limit is not None
    noun = "device port" if limit.kind == PORT else f"{limit.kind} link"
    many = "both" if stretch.links == 2 else f"all {stretch.links}"
    which = f"{limit.name} is" if stretch.links == 1 else f"{many} {noun}s are"
    if stretch.fill >= FULL:
        begin, end = (format_seconds(time, digits=3) for time in stretch.full)
        return f"{which} full from {begin} to {end}"
    return f"{which} {stretch.fill:.0%} full, and {delay} of it is latency"


__all__ = ["MOST_OPERATIONS", "Cause", "Explanation", "explain", "words"]
