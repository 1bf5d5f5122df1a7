"""Changes applied to a machine: a new `Topology`; the original stays.

What was changed is listed among the assumptions of the new machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from charm_sched.errors import TopologyError
from charm_sched.topology.change_paths import matching, matching_links, some
from charm_sched.topology.changes import (
    SUFFIX,
    TIMES,
    Amount,
    Change,
    Failure,
    Setting,
    Slowdown,
    Under,
    amount_of,
)
from charm_sched.topology.conditions import BUILT_IN, chosen, turned_on
from charm_sched.topology.rebuild import cut_off, rebuilt, slowed, without

if TYPE_CHECKING:
    from charm_sched.topology.graph import Topology
    from charm_sched.topology.profiles import ComputeProfile


@dataclass(frozen=True, kw_only=True, eq=False)
class Changed:
    """A machine after changes.

    Attributes:
        original: Before.
        topology: After.
        changes: What was changed, one sentence each, with what it named.
        failed: Devices that failed.
        left_out: Devices that work but no longer reach all others; they are not in `topology` if
            they were to be left out.
    """

    original: Topology
    topology: Topology
    changes: tuple[str, ...]
    failed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def apply(machine: Topology, changes: Sequence[Change], *, leave_out: bool = False) -> Changed:
    """Apply changes one after the other.

    Args:
        machine: The machine; it stays.
        changes: What to change.
        leave_out: Take out the devices that failed links cut off from others, so that what is left
            can be planned for.

    Raises:
        TopologyError: A change names nothing, or nothing is left.
    """
    told: list[str] = []
    now = machine
    for change in changes:
        match change:
            case Setting():
                now, sentence = _set(now, change)
            case Failure():
                now, sentence = _fail(now, change)
            case Slowdown():
                now, sentence = _slow(now, change)
            case Under():
                now, sentence = _under(now, change)
        told.append(sentence)
    lost = cut_off(now) if any(isinstance(change, Failure) for change in changes) else ()
    if lost and leave_out:
        now = without(now, lost, ())
    left = set(now.device_names) | set(lost)
    failed = tuple(name for name in machine.device_names if name not in left)
    return Changed(
        original=machine,
        topology=_named(machine, now, told),
        changes=tuple(told),
        failed=failed,
        left_out=lost,
    )


def _named(machine: Topology, now: Topology, told: Iterable[str]) -> Topology:
    sentences = [f"what if: {sentence}" for sentence in told]
    if not sentences:
        return machine
    name = machine.name if machine.name.endswith(SUFFIX) else f"{machine.name}{SUFFIX}"
    return replace(now, name=name, extra_assumptions=(*now.extra_assumptions, *sentences))


def _set(machine: Topology, setting: Setting) -> tuple[Topology, str]:
    amount = amount_of(setting)
    match setting.section:
        case "links":
            made, count = _set_links(machine, setting, amount)
        case "devices":
            made, count = _set_devices(machine, setting, amount)
        case _:
            made, count = _set_profiles(machine, setting, amount)
    noun = setting.section if count > 1 else setting.section[:-1]
    return made, f"{setting} ({count} {noun})"


def _set_links(machine: Topology, setting: Setting, amount: Amount) -> tuple[Topology, int]:
    found = {link.index for link in matching_links(machine, setting.pattern)}
    links = list(machine.links)
    for index in found | {i ^ 1 for i in found if links[i].shared}:
        link = links[index]
        if setting.field == "bandwidth":
            link = replace(link, bandwidth=amount(link.bandwidth))
        elif setting.field == "latency":
            link = replace(link, latency=amount(link.latency))
        else:
            cap = amount(math.inf if link.flow_cap is None else link.flow_cap)
            link = replace(link, flow_cap=None if math.isinf(cap) else cap)
        assumed = tuple(key for key in link.assumed_keys if key != setting.field)
        links[index] = replace(link, assumed_keys=assumed, assumed=bool(assumed))
    return rebuilt(machine, links=links), len({index // 2 for index in found})


def _set_devices(machine: Topology, setting: Setting, amount: Amount) -> tuple[Topology, int]:
    found = set(_devices(machine, setting.pattern))
    devices = []
    for device in machine.devices:
        if device.name in found:
            assumed = tuple(key for key in device.assumed if key != setting.field)
            device = replace(device, assumed=assumed)
            if setting.field == "port":
                device = replace(device, port=amount(device.port))
            else:
                device = replace(device, memory=_memory(device.memory, setting, amount))
        devices.append(device)
    return rebuilt(machine, devices=devices), len(found)


def _memory(present: float | None, setting: Setting, amount: Amount) -> float:
    if present is None and TIMES.fullmatch(setting.value):
        raise TopologyError(
            f"{setting}: expected a size such as 80 GB, for the file does not say what is there"
        )
    return amount(present or 0.0)


def _devices(machine: Topology, pattern: str) -> list[str]:
    """List the devices that a pattern names.

    Raises:
        TopologyError: It names none.
    """
    found = matching(machine.device_names, pattern)
    if not found:
        raise TopologyError(
            f'"{pattern}" names no device of {machine.name}; its devices are '
            f"{some(machine.device_names)}"
        )
    return found


def _set_profiles(machine: Topology, setting: Setting, amount: Amount) -> tuple[Topology, int]:
    names = dict.fromkeys(device.compute.name for device in machine.devices)
    found = set(matching(names, setting.pattern))
    if not found:
        raise TopologyError(
            f'"{setting.pattern}" names no profile of {machine.name}; its profiles are '
            f"{', '.join(names)}"
        )
    made = {
        id(device.compute): _with_number(device.compute, setting.field, amount)
        for device in machine.devices
        if device.compute.name in found
    }
    devices = [replace(d, compute=made.get(id(d.compute), d.compute)) for d in machine.devices]
    return rebuilt(machine, devices=devices), len(found)


def _with_number(profile: ComputeProfile, field: str, amount: Amount) -> ComputeProfile:
    name, _, direction = field.partition(".")
    match name:
        case "rate":
            rates = tuple(
                replace(rate.scaled_to(amount(rate.flops_per_second)), assumed=False)
                if direction in ("", rate.direction)
                else rate
                for rate in profile.rates
            )
            return replace(profile, rates=rates)
        case "peak":
            peak = {dtype: amount(value) for dtype, value in profile.peak.items()}
            return replace(profile, peak=peak)
        case "overhead":
            profile = replace(profile, overhead=amount(profile.overhead))
        case _:
            profile = replace(profile, memory_bandwidth=amount(profile.memory_bandwidth))
    return replace(profile, assumed=tuple(key for key in profile.assumed if key != name))


def _fail(machine: Topology, failure: Failure) -> tuple[Topology, str]:
    pattern = failure.pattern
    match = re.fullmatch(r"links\[([^\[\]]*)\]", pattern)
    parts = [] if match else matching(machine.part_names, pattern)
    if parts:
        return without(machine, set(parts), ()), f"{some(parts)} failed"
    if match is None and "->" not in pattern:
        raise TopologyError(
            f'"{pattern}" names no part of {machine.name}; it has the devices '
            f"{some(machine.device_names)}, the switches "
            f"{some(switch.name for switch in machine.switches)}; a link is named by its ends, "
            '"A <-> B", or links[KIND] for all of a kind'
        )
    links = matching_links(machine, match.group(1) if match else pattern)
    pairs = {link.index // 2: f"{link.src} <-> {link.dst}" for link in links}
    made = without(machine, (), {link.index for link in links})
    noun = "link" if len(pairs) == 1 else "links"
    return made, f"{noun} {some(pairs.values())} failed"


def _slow(machine: Topology, slowdown: Slowdown) -> tuple[Topology, str]:
    found = set(_devices(machine, slowdown.pattern))
    made: dict[int, ComputeProfile] = {}
    devices = []
    for device in machine.devices:
        if device.name in found:
            own = device.compute
            if id(own) not in made:
                made[id(own)] = slowed(own, slowdown.factor)
            device = replace(device, compute=made[id(own)])
        devices.append(device)
    names = some(name for name in machine.device_names if name in found)
    return rebuilt(machine, devices=devices), f"{names} {slowdown.factor:g} times as slow"


def _under(machine: Topology, change: Under) -> tuple[Topology, str]:
    """Turn conditions on; one that a file names is used up by that."""
    named = {condition.name: condition for condition in machine.conditions}
    names = chosen(machine, change.names)
    now, told = machine, []
    for name in names:
        if name in BUILT_IN:
            now = turned_on(now, name)
            told.append(name)
            continue
        settings = named[name].changes()
        for setting in settings:
            now, _ = _set(now, setting)
        source = f" ({named[name].source})" if named[name].source else ""
        told.append(f"{name}: {', '.join(map(str, settings))}{source}")
    left = tuple(condition for condition in machine.conditions if condition.name not in names)
    return replace(now, conditions=left), f"under {'; '.join(told)}"


__all__ = ["Changed", "apply"]
