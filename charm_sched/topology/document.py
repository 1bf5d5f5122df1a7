"""Graph to document: the explicit form that reads back, the digest, and what is assumed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from charm_sched import units
from charm_sched.topology.build import natural_ports
from charm_sched.topology.conditions import INTERFERENCE, RAMP, SHORT_KERNELS
from charm_sched.topology.conditions import sentences as condition_sentences
from charm_sched.topology.graph import Device, Domain, Link, Topology
from charm_sched.topology.profile_document import profile_document
from charm_sched.topology.profiles import ComputeProfile, source_of
from charm_sched.topology.spec import SCHEMA, VERSION


def to_document(topology: Topology, *, domains: bool = False) -> dict[str, Any]:
    """Return the explicit document: every name spelled out, the commonest values under `kinds`."""
    pairs = list(zip(topology.links[::2], topology.links[1::2], strict=True))
    values = [(a.kind, _link_values(a, b)) for a, b in pairs]
    kinds = _commonest(values)
    document: dict[str, Any] = {"schema": SCHEMA, "version": VERSION, "name": topology.name}
    if topology.description:
        document["description"] = topology.description
    if domains or topology.tier_names is not None:
        document["tiers"] = list(topology.tiers)
    profiles = {d.compute.name: d.compute for d in topology.devices}
    document["profiles"] = {name: profile_document(profile) for name, profile in profiles.items()}
    document["kinds"] = kinds
    ports = natural_ports(list(topology.device_names), topology.links)
    document["devices"] = [_device(d, ports[d.name]) for d in topology.devices]
    document["switches"] = [
        {"name": s.name, "kind": s.kind, **({"id": s.id} if s.id else {})}
        for s in topology.switches
    ]
    document["links"] = [
        {"from": a.src, "to": a.dst, "kind": a.kind, **(own if own != kinds.get(a.kind) else {})}
        for (a, _), (_, own) in zip(pairs, values, strict=True)
    ]
    if topology.domain_override is not None:
        document["domains"] = [dict(domain) for domain in topology.domain_override]
    elif domains:
        document["domains"] = [_domain(child) for child in topology.domains().children]
    if topology.costs is not None:
        document["costs"] = topology.costs.to_document()
    if topology.conditions:
        document["conditions"] = {c.name: c.to_document() for c in topology.conditions}
    if topology.under:
        document["under"] = list(topology.under)
    if topology.extra_assumptions:
        document["assumptions"] = list(topology.extra_assumptions)
    return document


def _domain(domain: Domain) -> dict[str, Any]:
    """Return a domain as an override writes it; single devices come before inner domains."""
    if not domain.children:
        return {"name": domain.name, "devices": [domain.name]}
    single = [child.name for child in domain.children if not child.children]
    inner = [_domain(child) for child in domain.children if child.children]
    return {
        "name": domain.name,
        **({"devices": single} if single else {}),
        **({"domains": inner} if inner else {}),
    }


def _commonest(values: list[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return per kind the values most of its links have, if no link would have to undo one."""
    texts = Counter((kind, json.dumps(own)) for kind, own in values)
    best: dict[str, dict[str, Any]] = {}
    for (kind, text), _ in texts.most_common():
        best.setdefault(kind, json.loads(text))
    for kind, own in values:
        if not best.get(kind, {}).keys() <= own.keys():
            best.pop(kind, None)
    return best


def _link_values(link: Link, back: Link) -> dict[str, Any]:
    values: dict[str, Any] = {
        "bandwidth": units.format_bandwidth(link.bandwidth, digits=None),
        "latency": units.format_seconds(link.latency, digits=None),
    }
    if back.bandwidth != link.bandwidth:
        values["reverse"] = units.format_bandwidth(back.bandwidth, digits=None)
    if link.flow_cap is not None:
        values["flow_cap"] = units.format_bandwidth(link.flow_cap, digits=None)
    if link.ramp is not None:
        values["ramp"] = link.ramp.to_value()
    if link.shared:
        values["shared"] = True
    if link.assumed_keys:
        values["assumed"] = list(link.assumed_keys)
    if link.source:
        values["source"] = link.source
    return values


def _device(device: Device, natural_port: float) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": device.name, "profile": device.compute.name}
    if device.memory is not None:
        entry["memory"] = units.format_bytes(device.memory, digits=None)
    if device.port != natural_port:
        entry["port"] = units.format_bandwidth(device.port, digits=None)
    if not device.peer:
        entry["peer"] = False
    if device.assumed:
        entry["assumed"] = list(device.assumed)
    if device.source:
        entry["source"] = device.source
    if device.id:
        entry["id"] = device.id
    return entry


def digest(topology: Topology) -> str:
    """Return the SHA-256 of the physical part: no names of profiles, sources, tiers or comments."""
    profiles: dict[int, list[Any]] = {}
    for device in topology.devices:
        profiles.setdefault(id(device.compute), _physical_profile(device.compute))
    distinct: dict[str, int] = {}
    for numbers in profiles.values():
        distinct.setdefault(json.dumps(numbers), len(distinct))
    number_of = {key: distinct[json.dumps(numbers)] for key, numbers in profiles.items()}
    physical = {
        "profiles": list(distinct),
        "devices": [[d.name, number_of[id(d.compute)], d.memory, d.port] for d in topology.devices],
        "switches": [[s.name, s.kind] for s in topology.switches],
        "links": [
            [k.src, k.dst, k.kind, k.bandwidth, k.latency, k.flow_cap, k.shared]
            for k in topology.links
        ],
    }
    physical |= _conditional(topology)
    text = json.dumps(physical, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _conditional(topology: Topology) -> dict[str, Any]:
    """Return what is physical just where a device lacks peer access, or under a condition."""
    found: dict[str, Any] = {}
    if not all(device.peer for device in topology.devices):
        found["no_peer"] = [device.name for device in topology.devices if not device.peer]
    if RAMP in topology.under:
        found["ramp"] = [link.ramp and link.ramp.to_value() for link in topology.links]
    profiles = {id(d.compute): d.compute for d in topology.devices}.values()
    if SHORT_KERNELS in topology.under:
        found["by_length"] = [
            sorted(
                [r.direction, r.head_dim, r.causal, sorted(r.dtypes), r.by_length] for r in p.rates
            )
            for p in profiles
        ]
    if INTERFERENCE in topology.under:
        found["interference"] = [profile.interference for profile in profiles]
    return found


def _physical_profile(profile: ComputeProfile) -> list[Any]:
    rates = sorted(
        [r.direction, r.head_dim, r.causal, sorted(r.dtypes), r.flops_per_second]
        for r in profile.rates
    )
    peak = sorted(profile.peak.items())
    return [peak, rates, profile.efficiency, profile.overhead, profile.memory_bandwidth]


def assumptions(topology: Topology, *, rates: bool = True) -> tuple[str, ...]:
    """Return a sentence per assumed number, alike links and alike devices taken together."""
    sentences = dict.fromkeys(
        sentence
        for profile in {id(d.compute): d.compute for d in topology.devices}.values()
        for sentence in profile.assumptions(rates=rates)
    )
    sentences |= dict.fromkeys(_device_sentences(topology))
    sentences |= dict.fromkeys(_link_sentences(topology))
    sentences |= dict.fromkeys(_cost_sentences(topology))
    sentences |= dict.fromkeys(condition_sentences(topology))
    sentences |= dict.fromkeys(topology.extra_assumptions)
    return tuple(sentences)


def _device_sentences(topology: Topology) -> Iterator[str]:
    for device in topology.devices:
        for key in device.assumed:
            value = device.memory if key == "memory" else device.port
            shown = units.format_bytes(value or 0.0) + ("/s" if key == "port" else "")
            yield _sentence(
                f"devices with {device.compute.name}: {key} {shown}", device.source, key
            )


def _link_sentences(topology: Topology) -> Iterator[str]:
    for link, back in zip(topology.links[::2], topology.links[1::2], strict=True):
        for key in link.assumed_keys:
            match key:
                case "ramp":  # told where it is in force
                    continue
                case "latency":
                    shown = units.format_seconds(link.latency)
                case "flow_cap":
                    shown = units.format_bandwidth(link.flow_cap or 0.0)
                case "reverse":
                    shown = units.format_bandwidth(back.bandwidth)
                case _:
                    shown = units.format_bandwidth(link.bandwidth)
            yield _sentence(f"{link.kind} links: {key} {shown}", link.source, key)


def _cost_sentences(topology: Topology) -> Iterator[str]:
    if topology.costs is not None:
        facts = topology.costs.facts()
        for key in topology.costs.assumed:
            yield _sentence(f"{topology.name}: {key} {facts[key]}", topology.costs.source, key)


def _sentence(fact: str, source: str, key: str) -> str:
    reason = source_of(source, key)
    return f"{fact} is assumed" + (f" ({reason})" if reason else "")
