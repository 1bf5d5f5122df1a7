"""Small topology files for tests, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from charm_sched.topology.file import parse_topology
from charm_sched.topology.graph import Domain, Topology, shipped_names

HEAD = """\
schema: charm-sched/topology
version: 1
name: box
profiles:
  card: {peak: {bf16: 100 TFLOP/s}, efficiency: 0.5, overhead: 0 s, memory_bandwidth: 1 TB/s}
"""


def small_shipped() -> list[str]:
    """Name the shipped machines of the plain shapes: one node or a few, eight devices and more.

    The machines of vendors and clouds, and clusters, are looked at in the tests of the library.
    """
    return [name for name in shipped_names() if name.startswith(("dual_", "four_", "single_"))]


def link(src: str, dst: str, gbps: float, kind: str, more: str = "") -> str:
    """Give one line of `links`; `gbps` is in GB/s."""
    tail = f", {more}" if more else ""
    return f"{{from: {src}, to: {dst}, kind: {kind}, bandwidth: {gbps} GB/s, latency: 1 us{tail}}}"


def section(
    *,
    devices: str = "",
    switches: Sequence[str] = (),
    links: Sequence[str] = (),
    parts: Sequence[str] = (),
) -> str:
    """Give the body of a topology or template; switches and parts are "name kind" or "name of"."""
    lines = []
    if devices:
        lines += ["devices:", f"  - {{name: {devices}, profile: card}}"]
    for key, entries, field in (("switches", switches, "kind"), ("parts", parts, "template")):
        if entries:
            lines.append(f"{key}:")
        for entry in entries:
            name, value = entry.split()
            lines.append(f"  - {{name: {name}, {field}: {value}}}")
    if links:
        lines += ["links:", *(f"  - {line}" for line in links)]
    return "\n".join(lines) + "\n"


def template(name: str, body: str) -> str:
    """Give an entry of `templates`."""
    return f"  {name}:\n" + "".join(f"    {line}\n" for line in body.splitlines())


def nvlink_node(name: str, gpus: int, *, port: float = 160, nic: float = 24) -> str:
    """Give the template of a node with an NVSwitch and a NIC per device."""
    last = gpus - 1
    return template(
        name,
        section(
            devices=f"gpu0..{last}",
            switches=["nvswitch nvswitch", f"nic0..{last} nic"],
            links=[
                link(f"gpu0..{last}", "nvswitch", port, "nvlink"),
                link(f"gpu0..{last}", f"nic0..{last}", nic, "pcie"),
            ],
        ),
    )


def parse(body: str, *, head: str = HEAD) -> Topology:
    """Read a topology from its body."""
    return parse_topology(head + body, where="box.yaml")


def cluster(pods: int, nodes: int, *, trunk: float, rail: float = 24, spines: int = 8) -> str:
    """Give pods of nodes with eight rails; each leaf has a trunk to each spine."""
    pod = section(
        parts=[f"node0..{nodes - 1} node"],
        switches=["leaf0..7 leaf"],
        links=[link(f"node0..{nodes - 1}/nic0..7", "leaf0..7", rail, "rail", "pairing: cycle")],
    )
    trunks = link(f"pod0..{pods - 1}/leaf0..7", f"spine0..{spines - 1}", trunk, "trunk")
    return (
        "templates:\n"
        + nvlink_node("node", 8)
        + template("pod", pod)
        + section(
            parts=[f"pod0..{pods - 1} pod"],
            switches=[f"spine0..{spines - 1} spine"],
            links=[trunks[:-1] + ", pairing: all}"],
        )
    )


def shape(domain: Domain) -> str:
    """Write a tree as nested brackets of short device names: "[a b] [c d]"."""
    if not domain.children:
        return domain.name.rpartition("/")[2]
    return " ".join(
        f"[{shape(child)}]" if child.children else shape(child) for child in domain.children
    )


def machine(
    devices: int,
    links: Sequence[tuple[str, str, float]],
    *,
    switches: Sequence[str] = (),
    ports: Mapping[int, float] | None = None,
    shared: Sequence[int] = (),
    latency: str = "0 s",
    overhead: str = "0 s",
    rate: str = "100 TFLOP/s",
) -> Topology:
    """Devices d0, d1, ... and links of (from, to, GB/s); those numbered in `shared` half duplex."""
    card = {"peak": {"bf16": rate}, "efficiency": 1.0, "overhead": overhead}
    named = [
        {"name": f"d{i}", "profile": "card"}
        | ({"port": f"{(ports or {})[i]!r} GB/s"} if i in (ports or {}) else {})
        for i in range(devices)
    ]
    return Topology.from_document(
        {
            "schema": "charm-sched/topology",
            "version": 1,
            "name": "machine",
            "profiles": {"card": card | {"memory_bandwidth": "1 TB/s"}},
            "devices": named,
            "switches": [{"name": name, "kind": "switch"} for name in switches],
            "links": [
                {
                    "from": src, "to": dst, "kind": "wire", "bandwidth": f"{rate!r} GB/s",
                    "latency": latency, "shared": number in shared,
                }
                for number, (src, dst, rate) in enumerate(links)
            ],
        }
    )  # fmt: skip


@st.composite
def machines(
    draw: st.DrawFn,
    most_devices: int = 4,
    latency: str = "0 s",
    overhead: str = "0 s",
    rate: str = "100 TFLOP/s",
) -> Topology:
    """Draw a machine: devices around a hub, with further links, half duplex ones, narrow ports."""
    devices = draw(st.integers(2, most_devices))
    rates = st.integers(1, 9)
    names = [*(f"d{i}" for i in range(devices)), "hub", "side"]
    links: list[tuple[str, str, float]] = [
        (name, draw(st.sampled_from(["hub", "side"])), draw(rates)) for name in names[:devices]
    ]
    links.append(("hub", "side", draw(rates)))
    for _ in range(draw(st.integers(0, 3))):
        src, dst = draw(st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True))
        if {src, dst} != {"hub", "side"}:
            links.append((src, dst, draw(rates)))
    return machine(
        devices,
        links,
        switches=["hub", "side"],
        ports=draw(st.dictionaries(st.integers(0, devices - 1), rates, max_size=2)),
        shared=draw(st.lists(st.integers(0, len(links) - 1), max_size=3)),
        latency=latency,
        overhead=overhead,
        rate=rate,
    )
