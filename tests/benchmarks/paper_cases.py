"""The cases of the comparison with arXiv:2611.05906, and what is recorded of each.

All of them were fixed before the first was run. A slice is what is computed, and kept, at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from charm_sched import Workload, load_topology, plan_all, simulate
from charm_sched.plans.plan import DIRECTIONS
from charm_sched.search.results import Comparison, Result
from charm_sched.topology.graph import Topology
from charm_sched.topology.scaling import corrected
from charm_sched.units import format_bandwidth, format_rate, parse_bandwidth, parse_rate
from tests.benchmarks.paper_reuse import shared
from tests.benchmarks.paper_stops import Stop, fullest, stop_of

NUMA = ("dual_numa_pcie", "dual_numa_pcie_gen5")
NODES = ("dual_node_nvlink", "dual_node_nvlink_4nic", "dual_node_h800")
DUAL = NUMA + NODES
MACHINES = (*DUAL, "single_node_nvlink", "four_node_nvlink")
VARIED = (NUMA[0], NODES[0])  # one of each kind, as in the abstract
LENGTHS = tuple(1024 * k for k in (8, 16, 32, 64, 128, 256))
SOME_LENGTHS = LENGTHS[::2]  # of what is varied
KV_HEADS = (32, 8)  # of 32 query heads of 128, bf16
MASKS = ("full", "causal")
BOTH = "both"
ABSTRACT = "charm, abstract"
ABSTRACT_PARAMS = {"remerge": True, "top_up": False}
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "all three": ABSTRACT_PARAMS,
    "without levels": {**ABSTRACT_PARAMS, "levels": False},
    "without decoupling": {**ABSTRACT_PARAMS, "decouple": False},
    "without re-merge": {**ABSTRACT_PARAMS, "remerge": False},
}
SLOWER = 0.7  # of its planned bandwidth: what a tier has that turns out slower


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is changed of a machine or workload: factors, and the dtype of travelling gradients."""

    cross: float = 1.0
    inside: float = 1.0
    kernels: float = 1.0
    grad_dtype: str = "fp32"


CHANGES: Mapping[str, Change] = {
    "as shipped": Change(),
    "cross links / 2": Change(cross=0.5),
    "cross links x 2": Change(cross=2.0),
    "inside links / 2": Change(inside=0.5),
    "inside links x 2": Change(inside=2.0),
    "kernel rate / 2": Change(kernels=0.5),
    "kernel rate x 2": Change(kernels=2.0),
    "bf16 gradients": Change(grad_dtype="bf16"),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One plan: one strategy in one direction, at its best.

    Attributes:
        seconds: Makespan.
        compute: Seconds of the computation of the busiest rank.
        bound: Seconds, for any schedule; `bound_compute` is its part that is computation.
        class_bound: Seconds, for plans that move keys and values, as this one; None for others.
        class_compute: The part of `class_bound` that is computation.
        class_communication: The part that is communication.
        full: Seconds of the fullest link of each kind, and of kernels.
        stop: What it hangs on.
    """

    strategy: str
    params: Mapping[str, Any]
    direction: str
    partition: str
    seconds: float
    compute: float
    bound: float
    bound_compute: float
    class_bound: float | None
    class_compute: float | None
    class_communication: float | None
    full: Mapping[str, float]
    stop: Stop


@dataclass(frozen=True, kw_only=True)
class Case:
    """One machine and workload in one direction, or in both together.

    Attributes:
        what: ``forward`` or ``backward``: planned alone, with nothing resident; or ``both``.
        rows: Per strategy a row, or with ``both`` one per direction; ``auto`` is what was chosen.
        refused: Strategies without a row, with the reason.
        assumptions: What the times rest on.
    """

    machine: str
    seq_len: int
    kv_heads: int
    mask: str
    what: str
    rows: Mapping[str, tuple[Row, ...]]
    refused: Mapping[str, str]
    assumptions: tuple[str, ...]

    def seconds(self, strategy: str) -> float:
        """Give the makespan, or the sum of two."""
        return sum(row.seconds for row in self.rows[strategy])

    def bound(self, strategy: str) -> float:
        """Give the bound of any schedule, with the partition and the residents of a strategy."""
        return sum(row.bound for row in self.rows[strategy])

    def class_bound(self, strategy: str) -> float | None:
        """Give the bound of plans that move keys and values, for comparison with a strategy.

        Its own where it moves nothing else. Otherwise charm's, and None for both directions, as
        that depends on what stays resident.
        """
        own = [row.class_bound for row in self.rows[strategy]]
        if None in own and self.what == BOTH:
            return None
        limits = [row.class_bound for row in self.rows["charm"]] if None in own else own
        return sum(limit or 0.0 for limit in limits)


@dataclass(frozen=True, kw_only=True)
class Times:
    """Makespans of one workload, by name: of an ablation, a change, or a slower tier."""

    kind: str
    machine: str
    seq_len: int
    kv_heads: int
    mask: str
    direction: str
    name: str
    seconds: Mapping[str, float]


Found = Sequence[Case | Times]


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What is computed at once: a key of `COMPUTED`, and its arguments."""

    kind: str
    args: tuple[Any, ...]

    @property
    def name(self) -> str:
        """Give the name of its file."""
        return "-".join(map(str, (self.kind, *self.args)))


def workload(seq_len: int, kv_heads: int, mask: str, grad_dtype: str = "fp32") -> Workload:
    """Give the workload of a case."""
    return Workload(
        seq_len=seq_len, heads=32, kv_heads=kv_heads, head_dim=128, dtype="bf16", mask=mask,
        grad_dtype=grad_dtype,
    )  # fmt: skip


def compare(machine: str, seq_len: int, kv_heads: int, mask: str) -> list[Case]:
    """Plan all strategies: each direction alone, and both together."""
    topology, work = load_topology(machine), workload(seq_len, kv_heads, mask)
    with shared():
        return [_compare(topology, work, what) for what in (*DIRECTIONS, BOTH)]


def _compare(topology: Topology, work: Workload, what: str) -> Case:
    directions = DIRECTIONS if what == BOTH else (what,)
    every = plan_all(topology, work, directions=directions)
    auto = plan_all(topology, work, directions=directions, strategies=("auto",))
    stated = plan_all(
        topology, work, directions=directions, strategies=("charm",), params=ABSTRACT_PARAMS
    )
    return Case(
        machine=topology.name, seq_len=work.seq_len, kv_heads=work.num_kv_heads,
        mask=str(work.mask), what=what,
        rows={
            **_by_strategy(every.results),
            ABSTRACT: _by_strategy(stated.results)["charm"],
            "auto": tuple(map(_row, auto.chosen.values())),
        },
        refused={refusal.strategy: refusal.reason for refusal in every.refused},
        assumptions=tuple(dict.fromkeys([*every.assumptions, *auto.assumptions])),
    )  # fmt: skip


def _by_strategy(results: Sequence[Result]) -> dict[str, tuple[Row, ...]]:
    found: dict[str, tuple[Row, ...]] = {}
    for result in results:
        found[result.strategy] = (*found.get(result.strategy, ()), _row(result))
    return found


def _row(result: Result) -> Row:
    limit, timeline = result.class_bound, result.timeline
    return Row(
        strategy=result.strategy,
        params=dict(result.params),
        direction=result.direction,
        partition=result.partition,
        seconds=timeline.makespan,
        compute=timeline.compute_s,
        bound=result.bound.seconds,
        bound_compute=result.bound.compute,
        class_bound=None if limit is None else limit.seconds,
        class_compute=None if limit is None else limit.compute,
        class_communication=None if limit is None else limit.communication,
        full=fullest(timeline),
        stop=stop_of(timeline),
    )


def _best(topology: Topology, work: Workload, direction: str, **more: Any) -> Result:
    """Plan charm in one direction alone, with some parameters fixed."""
    found: Comparison = plan_all(
        topology, work, directions=(direction,), strategies=("charm",), params=more
    )
    return found.results[0]


def ablate(machine: str, seq_len: int, mask: str) -> list[Times]:
    """Plan charm with each of its ideas switched off, and run it where a tier is slower."""
    topology, work = load_topology(machine), workload(seq_len, KV_HEADS[0], mask)
    found = []
    for direction in DIRECTIONS:
        with shared():
            plans = {n: _best(topology, work, direction, **p) for n, p in ABLATIONS.items()}
        planned = {name: result.timeline.makespan for name, result in plans.items()}
        first = next(iter(plans.values()))
        planned["ring"] = first.timeline.makespan * (first.speedup_vs_ring or 0.0)
        lines = {"as planned": planned}
        for tier in topology.tiers:
            slow = corrected(topology, bandwidth={tier: SLOWER}, latency={})
            lines[f"{tier} slower"] = {
                name: simulate(result.plan, slow).makespan for name, result in plans.items()
            }
        found += [
            Times(
                kind="ablation", machine=machine, seq_len=seq_len, kv_heads=KV_HEADS[0], mask=mask,
                direction=direction, name=name, seconds=seconds,
            )
            for name, seconds in lines.items()
        ]  # fmt: skip
    return found


def vary(machine: str, seq_len: int, kv_heads: int, mask: str) -> list[Times]:
    """Plan ring and charm with one thing changed."""
    found = []
    for name, change in CHANGES.items():
        topology = changed(load_topology(machine), change)
        work = workload(seq_len, kv_heads, mask, change.grad_dtype)
        for direction in DIRECTIONS:
            rows = plan_all(
                topology, work, directions=(direction,), strategies=("ring", "charm")
            ).results
            found.append(
                Times(
                    kind="change", machine=machine, seq_len=seq_len, kv_heads=kv_heads, mask=mask,
                    direction=direction, name=name,
                    seconds={row.strategy: row.timeline.makespan for row in rows},
                )
            )  # fmt: skip
    return found


def changed(topology: Topology, change: Change) -> Topology:
    """Give a machine whose links between domains, links inside, or kernels have another speed.

    Cross links are of kinds that are used between domains alone; what is behind them counts: a
    network card's slot, a socket's uplinks.
    """
    document = topology.to_document(domains=True)
    cross = _cross_kinds(topology)
    for entry in (*document["kinds"].items(), *((e["kind"], e) for e in document["links"])):
        kind, values = entry
        factor = change.cross if kind in cross else change.inside
        for key in ("bandwidth", "reverse", "flow_cap"):
            if key in values:
                values[key] = format_bandwidth(factor * parse_bandwidth(values[key]), digits=None)
    for profile in document["profiles"].values():
        tables = [(profile["peak"], dtype) for dtype in profile["peak"]]
        tables += [(rate, "rate") for rate in profile.get("rates", ())]
        for table, key in tables:
            table[key] = format_rate(change.kernels * parse_rate(table[key]), digits=None)
    return Topology.from_document(document)


def _cross_kinds(topology: Topology) -> set[str]:
    """Give the kinds of links that no route inside a top-level domain uses."""
    kinds: dict[bool, set[str]] = {False: set(), True: set()}
    domain_of = {d: i for i, dom in enumerate(topology.domains().children) for d in dom.devices}
    for one, other in itertools.permutations(topology.device_names, 2):
        inside = domain_of[one] == domain_of[other]
        kinds[inside] |= {topology.links[i].kind for i in topology.route(one, other).links}
    return kinds[False] - kinds[True]


COMPUTED: Mapping[str, Callable[..., Found]] = {
    "compare": compare, "ablate": ablate, "vary": vary,
}  # fmt: skip


def slices() -> list[Slice]:
    """List all slices; every second length first, so that a run that is ended has all machines."""
    product, found = itertools.product, []
    for lengths in (SOME_LENGTHS, tuple(n for n in LENGTHS if n not in SOME_LENGTHS)):
        compared = product(lengths, MACHINES, KV_HEADS, MASKS)
        found += [Slice(kind="compare", args=(m, n, k, mask)) for n, m, k, mask in compared]
        found += [Slice(kind="ablate", args=a) for a in product(DUAL, lengths, MASKS)]
        if lengths == SOME_LENGTHS:
            varied = product(VARIED, lengths, KV_HEADS, MASKS)
            found += [Slice(kind="vary", args=a) for a in varied]
    return found


def in_order(found: Found) -> list[Case | Times]:
    """Sort by machine, length, heads and mask, as tables show it."""
    return sorted(
        found,
        key=lambda one: (
            MACHINES.index(one.machine), one.seq_len, KV_HEADS.index(one.kv_heads),
            MASKS.index(one.mask),
        ),
    )  # fmt: skip


def to_json(found: Found) -> list[dict[str, Any]]:
    """Give what a slice found as JSON values."""
    return [asdict(one) for one in found]


def from_json(entries: Sequence[dict[str, Any]]) -> list[Case | Times]:
    """Give what a slice found."""
    return [_case(entry) if "rows" in entry else Times(**entry) for entry in entries]


def _case(entry: dict[str, Any]) -> Case:
    rows = {
        name: tuple(Row(**{**row, "stop": Stop(**row["stop"])}) for row in rows)
        for name, rows in entry["rows"].items()
    }
    return Case(**{**entry, "rows": rows, "assumptions": tuple(entry["assumptions"])})
