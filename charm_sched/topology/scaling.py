"""The same machine at another speed: all rates times one factor, or links as they were measured.

A testbed carries a machine's traffic at a small part of its rates. With bandwidths and compute
rates scaled alike, and fixed times stretched, every plan takes ``1 / factor`` times as long and
keeps its shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from charm_sched.topology.graph import Topology
from charm_sched.topology.profiles import ComputeProfile

_AT_ONCE = 1e9


def scaled(topology: Topology, factor: float) -> Topology:
    """Give a machine that does everything ``factor`` times as fast.

    Bandwidths, flow caps, ports and compute rates are multiplied, latencies and kernel overheads
    divided.
    """
    profiles: dict[int, ComputeProfile] = {}
    devices = []
    for device in topology.devices:
        key = id(device.compute)
        if key not in profiles:
            profiles[key] = _scaled_profile(device.compute, factor)
        devices.append(replace(device, compute=profiles[key], port=device.port * factor))
    return replace(
        topology,
        devices=tuple(devices),
        links=tuple(
            replace(
                link,
                bandwidth=link.bandwidth * factor,
                latency=link.latency / factor,
                flow_cap=None if link.flow_cap is None else link.flow_cap * factor,
            )
            for link in topology.links
        ),
        capacities=tuple(
            replace(capacity, bandwidth=capacity.bandwidth * factor)
            for capacity in topology.capacities
        ),
    )


def _scaled_profile(profile: ComputeProfile, factor: float) -> ComputeProfile:
    return replace(
        profile,
        peak={dtype: peak * factor for dtype, peak in profile.peak.items()},
        rates=tuple(rate.scaled_to(rate.flops_per_second * factor) for rate in profile.rates),
        overhead=profile.overhead / factor,
        memory_bandwidth=profile.memory_bandwidth * factor,
    )


def weightless(topology: Topology) -> Topology:
    """Give a machine where just the bytes of transfers take time: no kernels, no latencies.

    Kernels become a thousand million times as fast, since a rate has to be finite.
    """
    fast = scaled(topology, _AT_ONCE)
    return replace(
        topology,
        devices=tuple(
            replace(device, compute=replace(quick.compute, overhead=0.0))
            for device, quick in zip(topology.devices, fast.devices, strict=True)
        ),
        links=tuple(replace(link, latency=0.0) for link in topology.links),
    )


def corrected(
    topology: Topology, *, bandwidth: Mapping[str, float], latency: Mapping[str, float]
) -> Topology:
    """Give a machine with measured links.

    Args:
        topology: The machine as its file states it.
        bandwidth: Factor per kind of link, on bandwidths and flow caps; kinds left out keep theirs.
        latency: Seconds per kind of link; kinds left out keep theirs.
    """
    factor_of = {
        index: bandwidth.get(link.kind, 1.0)
        for link, index in zip(topology.links, topology.link_capacity, strict=True)
    }
    return replace(
        topology,
        links=tuple(
            replace(
                link,
                bandwidth=link.bandwidth * bandwidth.get(link.kind, 1.0),
                latency=latency.get(link.kind, link.latency),
                flow_cap=(
                    None if link.flow_cap is None else link.flow_cap * bandwidth.get(link.kind, 1.0)
                ),
            )
            for link in topology.links
        ),
        capacities=tuple(
            replace(capacity, bandwidth=capacity.bandwidth * factor_of.get(index, 1.0))
            for index, capacity in enumerate(topology.capacities)
        ),
    )
