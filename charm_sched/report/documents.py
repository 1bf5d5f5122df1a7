"""The JSON documents that the commands print: seconds, bytes, bytes per second.

``null`` stands where a thing does not apply.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charm_sched.commands.extras import Extras
from charm_sched.report.extras import extras_document
from charm_sched.report.memory import memory_documents
from charm_sched.topology.conditions import possible
from charm_sched.what_if.error_band import band_of
from charm_sched.what_if.machines import cost_document, machine_documents

if TYPE_CHECKING:
    from charm_sched.bounds.bound import Bound
    from charm_sched.bounds.limits import MachineLimit
    from charm_sched.search.results import Comparison, Result
    from charm_sched.topology.graph import Domain, Topology
    from charm_sched.topology.listing import Shipped
    from charm_sched.workload import Workload

Document = dict[str, Any]
SCHEMA, VERSION = "charm-sched/report", 1

MOST_DOMAINS = 64  # that are looked at one by one


def document(
    comparison: Comparison,
    plan_file: str | Path | None = None,
    trace_files: Sequence[Path] = (),
    extras: Extras | None = None,
) -> Document:
    """Give the document of one comparison, with the files that were written and what was asked."""
    chosen = comparison.chosen.items()
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "topology": {
            "name": comparison.topology.name,
            "digest": comparison.topology.digest,
            "devices": len(comparison.topology.devices),
            "tiers": tiers(comparison.topology),
        },
        "workload": workload_document(comparison.workload),
        "results": [_result(result) for result in comparison.results],
        "refused": [
            {"strategy": r.strategy, "direction": r.direction, "reason": r.reason}
            for r in comparison.refused
        ],
        "not_tried": [
            {
                "strategy": n.strategy,
                "direction": n.direction,
                "bound_s": n.bound,
                "reason": n.reason,
            }
            for n in comparison.not_tried
        ],
        "chosen": {direction: _detail(result) for direction, result in chosen},
        "why": comparison.why,
        "memory_limit": comparison.memory,
        "memory": memory_documents(comparison),
        "plan_file": None if plan_file is None else str(plan_file),
        "trace_files": [str(path) for path in trace_files],
        "assumptions": assumptions(comparison),
        "seconds": dict(comparison.seconds),
        "cost": cost_document(comparison),
        **extras_document(extras or Extras()),
    }


def assumptions(comparison: Comparison) -> list[str]:
    """List what the numbers of a comparison rest on, and what its baseline is."""
    sentences = list(comparison.assumptions)
    kind = comparison.workload.mask_rule.kind
    if kind not in ("full", "causal"):
        sentences.append(
            "Ring-Attention, as public implementations do it, also sends the shards that a "
            f'{kind} mask hides, so "vs ring" is large for every strategy that leaves them out'
        )
    return sentences


def combined(documents: Sequence[Document], comparisons: Sequence[Comparison] = ()) -> Document:
    """Give a single document as it is, several ones as one document with ``reports``.

    ``machines`` then holds a row for each of the comparisons.
    """
    if len(documents) == 1:
        return documents[0]
    several: Document = {"schema": SCHEMA, "version": VERSION, "reports": list(documents)}
    if comparisons:
        several["machines"] = machine_documents(comparisons)
    return several


def write_json(value: Document | Sequence[Document]) -> None:
    """Print one JSON document on stdout.

    Raises:
        ValueError: A number is not finite: a mistake of this program.
    """
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def workload_document(workload: Workload) -> Document:
    """Give a workload with everything that was left to a default."""
    return {
        "seq_len": workload.seq_len,
        "batch": workload.batch,
        "heads": workload.heads,
        "kv_heads": workload.num_kv_heads,
        "head_dim": workload.head_dim,
        "v_head_dim": workload.value_dim,
        "dtype": workload.dtype,
        "grad_dtype": workload.wire_dtype,
        "mask": str(workload.mask),
    }


def _result(result: Result) -> Document:
    timeline, limit = result.timeline, result.class_bound
    return {
        "strategy": result.strategy,
        "detail": _detail(result),
        "direction": result.direction,
        "partition": result.partition,
        "makespan_s": timeline.makespan,
        "bound_s": result.bound.seconds,
        "bound_by": result.bound.reason,
        "efficiency": result.efficiency(result.bound),
        "class_bound_s": None if limit is None else limit.seconds,
        "class_efficiency": None if limit is None else result.efficiency(limit),
        "compute_s": timeline.compute_s,
        "exposed_comm_s": timeline.exposed_comm,
        "bytes": dict(timeline.tier_bytes),
        "link_bytes": dict(timeline.link_bytes),
        "peak_bytes": result.peak_bytes,
        "fits": result.fits,
        "ranks": result.plan.num_ranks,
        "ops": len(result.plan) * result.plan.copies,
        "levels": result.plan.num_levels,
        "speedup_vs_ring": result.speedup_vs_ring,
        "validated": band_of(timeline).document(),
    }


def _detail(result: Result) -> Document:
    planner = result.plan.strategy if result.strategy == "auto" else result.strategy
    return {"planner": planner, "params": dict(result.params)}


def tiers(topology: Topology) -> list[Document]:
    """List the tiers, outermost first.

    A tier joins domains: ``domains`` counts them, ``bandwidth`` is what one of them can send to
    the others that it is joined with, all its devices sending at once; the least of them.
    """
    joined: dict[str, list[Domain]] = {name: [] for name in topology.tiers}
    _collect(topology.domains(), joined)
    return [
        {
            "name": name,
            "domains": sum(len(domain.children) for domain in parents),
            "bandwidth": min(
                (inside_bandwidth(topology, d) for d in _unlike(topology, parents)), default=None
            ),
        }
        for name, parents in joined.items()
    ]


def _unlike(topology: Topology, domains: Sequence[Domain]) -> list[Domain]:
    """Give one of the domains that play the same part in the graph, where there are many."""
    if len(domains) < MOST_DOMAINS:
        return list(domains)
    from charm_sched.bounds.cuts import cut_graph

    names = topology.device_names
    colours = dict(
        zip(names, cut_graph(topology, names).colours()[: len(names)].tolist(), strict=True)
    )
    looks = {tuple(sorted(colours[name] for name in d.devices)): d for d in domains}
    return list(looks.values())


def _collect(domain: Domain, joined: dict[str, list[Domain]]) -> None:
    if domain.tier is not None:
        joined[domain.tier].append(domain)
    for child in domain.children:
        _collect(child, joined)


def inside_bandwidth(topology: Topology, domain: Domain) -> float:
    """Give the least bytes per second that a child of a domain can send to the other children."""
    alone = topology.domains(domain.devices)
    return min(topology.domain_bandwidth(child) for child in alone.children)


def topology_report(topology: Topology) -> Document:
    """Give what ``charm-topo show`` prints."""
    return {
        "name": topology.name,
        "digest": topology.digest,
        "description": topology.description,
        "devices": len(topology.devices),
        "device_names": list(topology.device_names),
        "tiers": tiers(topology),
        "links": link_kinds(topology),
        "conditions": list(possible(topology)),
        "under": list(topology.under),
        "assumptions": list(topology.assumptions),
    }


def link_kinds(topology: Topology) -> list[Document]:
    """Count the links that are alike: both directions of a link are two."""
    kinds: dict[tuple[Any, ...], Document] = {}
    for link in topology.links:
        facts = {
            "kind": link.kind,
            "bandwidth": link.bandwidth,
            "latency": link.latency,
            "flow_cap": link.flow_cap,
            "shared": link.shared,
            "assumed": link.assumed,
        }
        entry = kinds.setdefault(tuple(facts.values()), facts | {"count": 0})
        entry["count"] += 1
    return list(kinds.values())


def limit_document(limit: MachineLimit) -> Document:
    """Give one direction of what ``charm-topo bound`` prints."""
    return {
        "direction": limit.direction,
        "bound_s": limit.bound.seconds,
        "bound_by": limit.bound.reason,
        "class_bound_s": limit.class_bound.seconds,
        "class_bound_by": limit.class_bound.reason,
        "partition": limit.partition,
        "compute_s": limit.bound.compute,
        "cut": _cut(limit.bound),
        "class_cut": _cut(limit.class_bound),
    }


def _cut(limit: Bound) -> Document | None:
    if limit.cut is None:
        return None
    return {"devices": list(limit.cut.devices), "bandwidth": limit.cut.bandwidth}


def shipped_summary(machine: Shipped) -> Document:
    """Give one entry of ``charm-topo list``."""
    return {
        "name": machine.name,
        "group": machine.group,
        "description": machine.description,
        "devices": machine.devices,
    }


def write_traces(comparison: Comparison, path: Path) -> tuple[Path, ...]:
    """Write the timelines of the chosen plans; two directions go to ``NAME.DIRECTION.json``."""
    from charm_sched.commands.output import trace_targets
    from charm_sched.timelines.trace import write_trace

    targets = trace_targets(path, tuple(comparison.chosen))
    for direction, target in targets.items():
        write_trace(comparison.chosen[direction].timeline, target)
    return tuple(targets.values())
