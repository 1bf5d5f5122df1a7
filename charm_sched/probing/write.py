"""The calibrated topology: the file's machine with measured numbers, each marked as measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.commands.output import TOPOLOGY_MARK
from charm_sched.errors import TopologyError
from charm_sched.probing.report import MANY
from charm_sched.probing.result import Found, blamed
from charm_sched.probing.whole_machine import LinkClass, link_class
from charm_sched.topology.build import natural_ports
from charm_sched.topology.graph import Link, Topology, load_topology
from charm_sched.topology.profiles import source_of
from charm_sched.topology.spec import LINK_NUMBERS
from charm_sched.topology.text import write_topology

if TYPE_CHECKING:
    from charm_sched.probing.numbers import ClassFit

SUFFIXES = (".yaml", ".yml", ".json")
MARK = "charm-topo probe"
_DIGITS = 4  # of what is written; no measurement has more


def calibrated(found: Found, date: str) -> Topology:
    """Return the machine with what was measured; what was not stays as in the file.

    Names, devices, domains and tiers stay, so that plans made for the file run on it.

    Args:
        found: What a probe found.
        date: The day, for the source of each number.
    """
    old = found.topology
    label = f"measured by {MARK}, {date}, {found.how}"
    fits = {each.link_class: each for each in found.fit.classes}
    slow = blamed(old, found.slow)
    links = tuple(_link(link, fits, found.latencies, slow, label) for link in old.links)
    links = tuple(_with_reverse(links[i], links[i ^ 1], old.links[i]) for i in range(len(links)))
    before, after = (natural_ports(list(old.device_names), each) for each in (old.links, links))
    devices = tuple(
        replace(device, port=after[device.name]) if device.port == before[device.name]
        else replace(device, port=_port(device.port, fits, after[device.name]))
        for device in old.devices
    )  # fmt: skip
    spelled = old.to_document(domains=True)
    made = replace(
        old,
        devices=devices,
        links=links,
        tier_names=old.tiers,
        domain_override=tuple(spelled["domains"]),
        extra_assumptions=(*old.extra_assumptions, *_doubts(found, label)),
        where="calibrated topology",
    )
    return Topology.from_document(made.to_document(), where=made.where)


def _doubts(found: Found, label: str) -> tuple[str, ...]:
    """Give a sentence for every later result where the measurements do not fit the links."""
    count, every = len(found.fit.unexplained), found.fit.cases
    if count <= every * MANY:
        return ()
    return (f"links describe this machine badly: {count} of {every} kinds of traffic {label} do "
            "not fit them",)  # fmt: skip


def _link(
    link: Link,
    fits: Mapping[LinkClass, ClassFit],
    latencies: Mapping[LinkClass, float],
    slow: Mapping[int, float],
    label: str,
) -> Link:
    """Give one direction of a link its numbers, and each its source."""
    own = link_class(link)
    fit = fits.get(own)
    new: dict[str, float | None] = {}
    told: dict[str, str] = {}
    assumed = set(link.assumed_keys)
    if fit is not None:
        for key, number in (("bandwidth", fit.bandwidth), ("flow_cap", fit.flow_cap)):
            if number.status == "unseen" or number.value is None:
                continue
            new[key] = _rounded(number.value)
            if number.status == "at least":
                told[key] = f"at least this, {label}"
                assumed.add(key)
            else:
                told[key] = label
                assumed.discard(key)
    if own in latencies:
        new["latency"] = _rounded(latencies[own])
        told["latency"] = label
        assumed.discard("latency")
    rate = slow.get(link.index, slow.get(link.index ^ 1) if link.shared else None)
    if rate is not None:
        new["bandwidth"], told["bandwidth"] = _rounded(rate), label
        assumed.discard("bandwidth")
    changed: dict[str, float] = {k: v for k, v in new.items() if v is not None}
    made = replace(
        link,
        bandwidth=changed.get("bandwidth", link.bandwidth),
        latency=changed.get("latency", link.latency),
        flow_cap=changed.get("flow_cap", link.flow_cap),
        shared=link.shared if fit is None else fit.shared,
        assumed_keys=tuple(key for key in LINK_NUMBERS if key in assumed),
    )
    return replace(made, source=_source(made, link.source, told))


def _with_reverse(link: Link, back: Link, old: Link) -> Link:
    """Bring both directions of a link together, as a file writes them: values of the first.

    What is measured of the second direction's own bandwidth is called "reverse".
    """
    if link.index % 2:
        shared, cap, latency = back.shared, back.flow_cap, back.latency
        bandwidth = back.bandwidth if shared else link.bandwidth
        return replace(link, bandwidth=bandwidth, shared=shared, flow_cap=cap, latency=latency)
    if link.shared or back.bandwidth == link.bandwidth:
        return link
    text = source_of(back.source, "bandwidth")
    assumed = set(link.assumed_keys)
    if MARK in text:
        assumed.discard("reverse")
    else:  # a direction of its own that was not measured
        key = "reverse" if "reverse" in old.assumed_keys else "bandwidth"
        text = source_of(old.source, key)
        if key in old.assumed_keys:
            assumed.add("reverse")
    source = f"{link.source}; reverse: {text}" if text else link.source
    return replace(link, assumed_keys=tuple(k for k in LINK_NUMBERS if k in assumed), source=source)


def _source(link: Link, old: str, told: Mapping[str, str]) -> str:
    """Write where each number comes from."""
    if not told:
        return old
    absent = {"reverse", *(key for key in ("flow_cap", "ramp") if getattr(link, key) is None)}
    keys = [key for key in LINK_NUMBERS if key not in absent]
    texts = {key: told.get(key) or source_of(old, key) for key in keys}
    return "; ".join(f"{key}: {text}" for key, text in texts.items() if text)


def _port(port: float, fits: Mapping[LinkClass, ClassFit], natural: float) -> float:
    """Give a narrow port what was measured of ports like it."""
    for own, fit in fits.items():
        if fit.is_port and own[1] == port and fit.bandwidth.status != "unseen":
            return _rounded(fit.bandwidth.value or port)
    return min(port, natural)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def check_output(path: Path, *sources: str) -> bool:
    """Check, before long work, that a topology can be written under a name.

    Args:
        path: Where.
        sources: The topologies that are probed, files or shipped names.

    Returns:
        Whether a topology of an earlier probe stands there, and will be replaced.

    Raises:
        TopologyError: An unknown suffix, no such folder, or another file stands there.
    """
    import os

    if path.suffix not in SUFFIXES:
        raise TopologyError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise TopologyError(f"{path}: expected a folder that can be written to: {path.parent}")
    if not path.exists():
        return False
    if any(Path(source).exists() and path.samefile(source) for source in sources):
        raise TopologyError(f"{path}: is the file that is probed; choose another name with -o")
    content = path.read_bytes() if path.is_file() else b""
    if TOPOLOGY_MARK not in content or f"measured by {MARK}".encode() not in content:
        raise TopologyError(
            f"{path}: stands there already and is no topology written by {MARK}, so it is left "
            "alone; choose another name with -o, or remove it"
        )
    return True


def save(topology: Topology, path: Path) -> None:
    """Write a topology, and make sure that it reads back as the same machine.

    Raises:
        TopologyError: It does not.
    """
    write_topology(topology, path)
    if load_topology(path).digest != topology.digest:
        raise TopologyError(f"{path}: does not read back as what was written")
