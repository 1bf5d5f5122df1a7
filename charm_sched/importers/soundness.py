"""Facts that no machine has, taken out or refused in one place, whichever text they come from."""

from __future__ import annotations

from dataclasses import replace

from charm_sched.errors import TopologyError
from charm_sched.importers.facts import Gpu, Host, Network
from charm_sched.importers.naming import plain_name


def sound_host(host: Host) -> Host:
    """Return the host without rates of zero, which tools print for what they do not know."""
    dead = [
        f"{gpu.name} to {peer.target or 'the NVSwitches'}"
        for gpu in host.gpus
        for peer in gpu.peers
        if peer.bandwidth is not None and not peer.bandwidth > 0
    ]
    notes = [f"links without bandwidth, left out: {', '.join(dead[:4])}"] if dead else []
    return replace(
        host,
        gpus=tuple(_sound_gpu(gpu) for gpu in host.gpus),
        nics=tuple(
            replace(nic, speed=_above_zero(nic.speed), slot=_above_zero(nic.slot))
            for nic in host.nics
        ),
        bridges={name: _above_zero(width) for name, width in host.bridges.items()},
        rate=_above_zero(host.rate),
        socket=_above_zero(host.socket),
        notes=(*host.notes, *notes),
    )


def _sound_gpu(gpu: Gpu) -> Gpu:
    kept = tuple(p for p in gpu.peers if p.bandwidth is None or p.bandwidth > 0)
    return replace(gpu, slot=_above_zero(gpu.slot), peers=kept)


def _above_zero(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None


def sound_network(network: Network) -> Network:
    """Return the network without links from a switch to itself, kinds of links as files have them.

    Raises:
        TopologyError: A link without bandwidth, or a host that nothing joins.
    """
    where = network.sources[0]
    for edge in network.edges:
        if edge.bandwidth is not None and not edge.bandwidth > 0:
            raise TopologyError(
                f"{where}: expected bandwidths above zero, found none between {edge.a} and {edge.b}"
            )
    kept = [edge for edge in network.edges if plain_name(edge.a) != plain_name(edge.b)]
    joined = {name for edge in kept for name in (edge.a, edge.b)}
    alone = [host for host in network.hosts if host not in joined]
    if alone:
        raise TopologyError(f"{where}: expected a link from every host, found none of {alone[0]}")
    loops = [edge.a for edge in network.edges if plain_name(edge.a) == plain_name(edge.b)]
    notes = [f"links of a part with itself, left out: {', '.join(loops[:4])}"] if loops else []
    return replace(
        network,
        edges=tuple(replace(edge, kind=plain_name(edge.kind)) for edge in kept),
        notes=(*network.notes, *notes),
    )
