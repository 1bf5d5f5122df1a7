"""What a capacity becomes: HTB classes, one per flow, as lines for `tc -batch`.

Rates are those of the payload. On the wire a segment of 1448 bytes of payload takes 1514 (TCP with
timestamps, MTU 1500, Ethernet header), so HTB is told 1514/1448 of the rate, and payload flows at
the modelled rate. Acknowledgements and other packets below 128 bytes have a class beside the shaped
ones, cost nothing and wait for nobody: in the model they do not exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MTU = 1500
PAYLOAD = 1448  # of one segment: MTU less IP (20), TCP (20) and timestamps (12)
WIRE = 1514  # of the same segment as HTB counts it: MTU and the Ethernet header
GSO_BYTES = 16384  # the most that passes a queue as one packet
_PACKET_SECONDS = 1e-3  # that a packet holds others up: also the small ones that begin a message
_QUANTUM = 1.1  # packets that one class sends in its turn; below one, shares are unfair
_BURST_SECONDS = 2e-4
_BURST_LEAST = 3000  # bytes
_SMALL = 1e-3  # of the capacity is guaranteed to each flow; the rest is shared fairly
_CONTROL_RATE = 125e6  # bytes per second; far above what acknowledgements need
_CUT = "protocol ip prio 1 u32 match u32 0 0 flowid 1:3"
_SMALL_PACKET = (
    "protocol ip prio 2 u32 match u8 0x05 0x0f at 0 match u16 0x0000 0xff80 at 2 "
    "match ip protocol 6 0xff flowid 1:2"
)  # five words of IP header, total length below 128: acknowledgements, and what begins a message
_FIRST_CLASS = 0x10


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What one device sends to one other: the unit of fairness and of flow caps.

    Several connections between the same two devices in the same direction are one flow.

    Attributes:
        ceiling: the most it gets, in bytes of payload per second; infinite without a flow cap.
    """

    src: str
    dst: str
    src_address: str
    dst_address: str
    ceiling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaper:
    """One capacity, enforced at one place.

    Attributes:
        capacity: index in Topology.capacities.
        rate: scaled bytes of payload per second.
        packet: bytes of the largest packet that crosses it.
        flows: all that cross it, in order of source and destination.
    """

    capacity: int
    namespace: str
    interface: str
    rate: float
    packet: int
    flows: tuple[Flow, ...]


def packet_bytes(rate: float) -> int:
    """Return the most that flows of a rate may send as one packet: two segments at least."""
    return min(max(round(rate * _PACKET_SECONDS), 2 * WIRE), GSO_BYTES)


def setup_lines(shaper: Shaper) -> Iterator[str]:
    """Yield the lines that create a shaper on its interface."""
    dev = f"dev {shaper.interface}"
    control = _class(_CONTROL_RATE, _CONTROL_RATE, GSO_BYTES)
    yield f"qdisc add {dev} root handle 1: htb default 2"
    whole = _class(shaper.rate, shaper.rate, shaper.packet)
    yield f"class add {dev} parent 1: classid 1:1 htb {whole}"
    yield f"class add {dev} parent 1: classid 1:2 htb {control}"
    yield f"class add {dev} parent 1: classid 1:3 htb {control}"
    yield f"qdisc add {dev} parent 1:3 pfifo limit 0"
    yield f"filter add {dev} parent 1: {_SMALL_PACKET}"
    for number, flow in enumerate(shaper.flows, _FIRST_CLASS):
        child = _child(shaper.rate, flow, shaper.packet)
        match = f"match ip src {flow.src_address}/32 match ip dst {flow.dst_address}/32"
        yield f"class add {dev} parent 1:1 classid 1:{number:x} htb {child}"
        yield f"filter add {dev} parent 1: protocol ip prio 3 u32 {match} flowid 1:{number:x}"


def rate_lines(shaper: Shaper, factor: float) -> Iterator[str]:
    """Yield the lines that set the rate to `factor` of the nominal one, while traffic runs."""
    dev, rate = f"dev {shaper.interface}", shaper.rate * factor
    yield f"class change {dev} parent 1: classid 1:1 htb {_class(rate, rate, shaper.packet)}"
    for number, flow in enumerate(shaper.flows, _FIRST_CLASS):
        child = _child(rate, flow, shaper.packet)
        yield f"class change {dev} parent 1:1 classid 1:{number:x} htb {child}"


def cut_line(shaper: Shaper) -> str:
    """Return the line after which everything that would cross is dropped silently."""
    return f"filter add dev {shaper.interface} parent 1: {_CUT}"


def restore_line(shaper: Shaper) -> str:
    """Return the line that undoes a cut."""
    return f"filter del dev {shaper.interface} parent 1: prio 1 protocol ip u32"


def redirect_lines(interface: str, target: str) -> Iterator[str]:
    """Yield the lines that lead what an interface receives through another device first."""
    yield f"qdisc add dev {interface} ingress"
    yield (
        f"filter add dev {interface} parent ffff: protocol ip u32 match u32 0 0 "
        f"action mirred egress redirect dev {target}"
    )


def _child(rate: float, flow: Flow, packet: int) -> str:
    ceiling = min(rate, flow.ceiling)
    return _class(min(rate * _SMALL, ceiling), ceiling, packet)


def _class(rate: float, ceiling: float, packet: int) -> str:
    """Return the parameters of a class; bytes of payload per second, bytes of a packet."""
    low, high = (max(round(8 * r * WIRE / PAYLOAD), 8) for r in (rate, ceiling))
    burst = max(round(ceiling * _BURST_SECONDS), _BURST_LEAST)
    return (
        f"rate {low}bit ceil {high}bit burst {burst}b cburst {burst}b "
        f"quantum {round(packet * _QUANTUM)} prio 1 mtu {WIRE}"
    )


__all__ = [
    "GSO_BYTES",
    "MTU",
    "PAYLOAD",
    "WIRE",
    "Flow",
    "Shaper",
    "cut_line",
    "packet_bytes",
    "rate_lines",
    "redirect_lines",
    "restore_line",
    "setup_lines",
]
