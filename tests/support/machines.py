"""Small topology files for tests, as text."""

from __future__ import annotations

from collections.abc import Sequence

from charm_sched.topology import Domain, Topology
from charm_sched.topology_file import parse_topology

HEAD = """\
schema: charm-sched/topology
version: 1
name: box
profiles:
  card: {peak: {bf16: 100 TFLOP/s}, efficiency: 0.5, overhead: 0 s, memory_bandwidth: 1 TB/s}
"""


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
