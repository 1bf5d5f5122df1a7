"""A blueprint as lines for `ip -batch` and `tc -batch`, and the settings of its namespaces."""

from __future__ import annotations

from collections.abc import Iterator

from charm_sched.testbed.blueprint import MEDIUM, Blueprint, Namespace, Wire
from charm_sched.testbed.shaping import MTU, redirect_lines, setup_lines

_QUEUE = 1000  # packets; more than the windows of a flow hold, so that nothing is dropped
_GATEWAY = "169.254.0.1"  # any address: interfaces without ARP do not look for it
_FIRST_TABLE = 1000
_PRIORITY = 1000
_BUFFER = 1 << 23  # bytes; the most a socket buffers each way (its window is set by the route)
_FIRST_BUFFER = 1 << 16  # bytes to send, before the kernel lets the buffer grow with the window

SETTINGS = (  # under /proc/sys/net, in this order, in every namespace
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/tcp_congestion_control", "reno"),
    ("ipv4/tcp_sack", "0"),  # small packets overtake large ones; with it that would look like loss
    ("ipv4/tcp_slow_start_after_idle", "0"),
    ("ipv4/tcp_no_metrics_save", "1"),
    ("ipv4/tcp_moderate_rcvbuf", "0"),
    ("ipv4/tcp_rmem", f"4096 {_BUFFER} {_BUFFER}"),
    ("ipv4/tcp_wmem", f"4096 {_FIRST_BUFFER} {_BUFFER}"),
)
FORWARDING = (
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
)


def ip_lines(drawing: Blueprint, namespace: Namespace) -> Iterator[str]:
    """Yield what `ip -batch` runs inside a namespace.

    Wires are created, both ends in place, by the first of their namespaces; so namespaces are set
    up in the order of the blueprint.
    """
    order = {each.name: i for i, each in enumerate(drawing.namespaces)}
    yield "link set lo up"
    for wire in drawing.wires:
        if namespace.name == min(wire.a, wire.b, key=order.__getitem__):
            yield _wire_line(wire, namespace.name)
    if namespace.role == "medium":
        yield f"link add {MEDIUM} txqueuelen {_QUEUE} type ifb"
        yield f"link set {MEDIUM} up"
    for name in namespace.interfaces:
        yield f"link set {name} arp off up"
    if namespace.address and namespace.interfaces:
        yield f"address add {namespace.address}/32 dev {namespace.interfaces[0]}"
    yield from _route_lines(namespace)


def _wire_line(wire: Wire, first: str) -> str:
    ends = [(wire.a_interface, wire.a_packet), (wire.b_interface, wire.b_packet)]
    if first != wire.a:
        ends.reverse()
    same = f"address {wire.mac} mtu {MTU} txqueuelen {_QUEUE} gso_max_size"
    (here, small), (there, large) = ends
    other = wire.b if first == wire.a else wire.a
    return (
        f"link add {here} {same} {small} type veth peer name {there} {same} {large} netns {other}"
    )


def _route_lines(namespace: Namespace) -> Iterator[str]:
    """Yield routes; what leaves otherwise for some sources is in a table for each of these."""
    tables: dict[str, int] = {}
    source = f" src {namespace.address}" if namespace.address else ""
    for route in namespace.routes:
        line = f"route add {route.destination} via {_GATEWAY} dev {route.interface} onlink"
        if route.source is None:
            yield line + source + (f" window {route.window}" if route.window else "")
            continue
        if route.source not in tables:
            tables[route.source] = _FIRST_TABLE + len(tables)
            number = tables[route.source]
            yield f"rule add from {route.source} lookup {number} priority {_PRIORITY}"
        yield f"{line} table {tables[route.source]}"


def tc_lines(drawing: Blueprint, namespace: Namespace) -> Iterator[str]:
    """Yield what `tc -batch` runs inside a namespace."""
    for shaper in drawing.shapers.values():
        if shaper.namespace == namespace.name:
            yield from setup_lines(shaper)
    if namespace.role == "medium":
        for name in namespace.interfaces:
            yield from redirect_lines(name, MEDIUM)


__all__ = ["FORWARDING", "SETTINGS", "ip_lines", "tc_lines"]
