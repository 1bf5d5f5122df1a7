"""Measured flows that ran at the same time, predicted from what single flows got.

Each machine is a small topology whose bandwidths are published rates of single flows. The rate of
several flows at once is predicted with nothing else and compared with the published total. Units:
GB/s, 1e9 bytes per second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any

from charm_sched.partition import Partition
from charm_sched.plans.builder import Builder
from charm_sched.simulator import simulate
from charm_sched.topology.graph import Topology
from charm_sched.workload import Workload

Flow = tuple[int, int]
Link = tuple[str, str, float]
MEGABYTES = 64  # per flow

RTX = "github voipmonitor/rtx6kpro, "
ASUS = RTX + "hardware/asus-esc8000a-e13p-broadcom-switches.md"
PCIE = RTX + "hardware/pcie-bandwidth.md"
HCDIAG = "IBM hcdiag, p2pBandwidthLatencyTest.sh"
DENSE = "writes to several peers at once hold each other up in PCIe switches and root complexes; "
DENSE += "links are fluid and independent here"
BOUNCE = (
    "without peer access each flow is two copies through host memory, which both directions use"
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A measured machine.

    Attributes:
        name: Short.
        devices: How many.
        links: (from, to, GB/s) each way; devices are d0, d1, ..., everything else is a switch.
        given: What the bandwidths are, in words.
        source: Where they are published.
        shared: Links, by number, whose two directions share their bandwidth.
    """

    name: str
    devices: int
    links: tuple[Link, ...]
    given: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """Flows that ran at the same time.

    Attributes:
        what: In words.
        flows: (source, destination) of each.
        measured: GB/s, total, or the mean of the flows.
        pattern: One of `PATTERNS`.
        spread: How far apart published numbers of this row are, either side, as a fraction; 0 where
            one number is published.
        mean: Whether the mean is compared, not the total.
        reason: Why the prediction does not fit, where it does not.
    """

    machine: Machine
    what: str
    flows: tuple[Flow, ...]
    measured: float
    pattern: str
    spread: float = 0.0
    mean: bool = False
    reason: str = ""


PATTERNS = {
    "shared": "Flows in one direction that share links",
    "both ways": "Two devices that send to each other",
    "dense": "Several flows per device at once over PCIe",
    "bounce": "Without peer access, through host memory",
}


def star(devices: int, rate: float) -> tuple[Link, ...]:
    """Give each device a link to one switch."""
    return tuple((f"d{i}", "hub", rate) for i in range(devices))


def two_switches(rate: float, between: float) -> tuple[Link, ...]:
    """Give four devices on each of two switches, and a path between these."""
    own = tuple((f"d{i}", f"s{i // 4}", rate) for i in range(8))
    return (*own, ("s0", "s1", between))


def pair(name: str, rate: float, given: str, source: str) -> Machine:
    """Give two devices and a link."""
    return Machine(name=name, devices=2, links=(("d0", "d1", rate),), given=given, source=source)


ASUS_TURIN = Machine(
    name="two EPYC Turin, four virtual switches of two cards", devices=8,
    links=(
        *((f"d{i}", f"v{i // 2}", 53.4) for i in range(8)),
        ("v0", "v1", 106.8), ("v2", "v3", 106.8),
        *((f"v{i}", f"root{i // 2}", 38.3) for i in range(4)),
        ("root0", "root1", 200.0),
    ),
    given="one flow inside a socket 53.4; one across 38.3, taken as the limit of each uplink; "
    "the path between sockets wider than that",
    source=ASUS,
)  # fmt: skip
WRX90 = Machine(
    name="one socket, two switches", devices=8, links=two_switches(53.4, 53.1),
    given="one flow on a switch 53.4, one between switches 53.1", source=PCIE,
)  # fmt: skip
RING = Machine(
    name="one socket, two switches, all send and receive", devices=8,
    links=two_switches(50.59, 50.59),
    given="the ring shift by one, 50.59: each device sends and receives", source=PCIE,
)  # fmt: skip
ROOT_PORTS = Machine(
    name="one socket, eight cards on root ports", devices=8, links=star(8, 56.26),
    given="one flow 56.26, all pairs", source=PCIE,
)  # fmt: skip


def all_to_all(devices: Iterable[int]) -> tuple[Flow, ...]:
    """Give a flow for each ordered pair."""
    return tuple(permutations(devices, 2))


def _dense(name: str, devices: int, ideal: float, measured: float) -> Row:
    machine = Machine(
        name=name, devices=devices, links=star(devices, ideal / devices),
        given=f"one flow {ideal / devices:.1f}", source=PCIE,
    )  # fmt: skip
    return Row(
        machine=machine, what=f"all-to-all of {devices}", flows=all_to_all(range(devices)),
        measured=measured, pattern="dense", reason=DENSE,
    )  # fmt: skip


def _both(
    name: str, one: float, both: float, source: str, spread: float = 0.0, reason: str = "",
    pattern: str = "both ways",
) -> Row:  # fmt: skip
    return Row(
        machine=pair(name, one, f"one flow {one}", source), what="both directions",
        flows=((0, 1), (1, 0)), measured=both, pattern=pattern, spread=spread, reason=reason,
    )  # fmt: skip


def _shift(k: int, measured: float) -> Row:
    flows = tuple((i, (i + k) % 8) for i in range(8))
    return Row(
        machine=RING, what=f"ring shift by {k}, mean", flows=flows, measured=measured,
        pattern="shared", spread=0.02, mean=True,
    )  # fmt: skip


def _on(machine: Machine, what: str, flows: Sequence[Flow], measured: float, pattern: str,
        reason: str = "", spread: float = 0.0) -> Row:  # fmt: skip
    return Row(
        machine=machine, what=what, flows=tuple(flows), measured=measured, pattern=pattern,
        reason=reason, spread=spread,
    )  # fmt: skip


ACROSS = tuple((i, i + 4) for i in range(4))
ANSWERS = "the answers to what goes one way take a few per cent of the other way"
COLLAPSE = "posted writes of two devices behind one uplink to two root ports collapse "
COLLAPSE += "(`--under posted_write_collapse` on dual_numa_pcie_gen5)"

ROWS = (
    *(_shift(k, m) for k, m in enumerate((37.89, 25.64, 12.62, 25.70, 37.96, 50.35), start=2)),
    _on(WRX90, "two flows on one switch", [(0, 1), (2, 3)], 107.5, "shared"),
    _on(WRX90, "two flows of one device to the other switch", [(0, 4), (0, 5)], 53.8, "shared"),
    _on(WRX90, "four flows between switches", ACROSS, 53.3, "shared"),
    _on(WRX90, "16 flows between switches", [(i, j) for i in range(4) for j in range(4, 8)], 51.6,
        "shared"),
    _on(WRX90, "all-to-all of four on one switch", all_to_all(range(4)), 148.9, "dense", DENSE),
    _on(WRX90, "all-to-all of eight", all_to_all(range(8)), 168.4, "dense", DENSE),
    _on(ASUS_TURIN, "two flows inside a socket", [(0, 1), (2, 3)], 108.6, "shared"),
    _on(ASUS_TURIN, "four flows inside sockets", [(0, 1), (2, 3), (4, 5), (6, 7)], 203.9, "shared"),
    _on(ASUS_TURIN, "two across, two uplinks", [(0, 4), (2, 6)], 80.2, "shared", "", 0.056),
    _on(ASUS_TURIN, "two across, one uplink, one root port", [(0, 4), (1, 5)], 40.3, "shared", "",
        0.056),
    _on(ASUS_TURIN, "four across", ACROSS, 83.2, "shared",
        "a root complex takes a little more from several sources than from one", 0.056),
    _on(ASUS_TURIN, "two behind one uplink to two root ports", [(0, 4), (1, 6)], 2.7, "dense",
        COLLAPSE),
    _on(ASUS_TURIN, "16 across", [(i, j) for i in range(4) for j in range(4, 8)], 7.4, "dense",
        COLLAPSE),
    _on(ASUS_TURIN, "four across, both directions", [*ACROSS, *((j, i) for i, j in ACROSS)], 82.2,
        "dense", "the two directions between the sockets are not independent under load"),
    _on(ASUS_TURIN, "all-to-all of four in a socket", all_to_all(range(4)), 153.0, "dense", DENSE),
    _on(ASUS_TURIN, "all-to-all of eight, best of three", all_to_all(range(8)), 53.9, "dense",
        COLLAPSE),
    _on(ASUS_TURIN, "both directions inside a socket", [(0, 1), (1, 0)], 103.0, "both ways",
        ANSWERS, 0.01),
    _on(ASUS_TURIN, "both directions across", [(0, 4), (4, 0)], 94.8, "both ways",
        "one flow across is limited by its writes, not by a link; two together get more", 0.018),
    _on(ROOT_PORTS, "both directions", [(0, 1), (1, 0)], 109.3, "both ways"),
    _on(ROOT_PORTS, "all-to-all of eight", all_to_all(range(8)), 179.0, "dense", DENSE),
    _dense("one socket, three switches", 8, 434.7, 191.8),
    _dense("two EPYC Turin, direct", 8, 421.3, 173.1),
    _dense("one socket, four switches", 8, 431.2, 164.3),
    _dense("one socket, three switches", 4, 217.7, 138.3),
    _dense("two EPYC Turin, direct", 4, 220.6, 129.7),
    _dense("one socket, four switches", 4, 221.0, 127.6),
    _both("two EPYC Turin, same socket", 55.5, 111.0, PCIE, 0.01),
    _both("two EPYC Turin, across", 51.0, 99.0, PCIE),
    _both("two EPYC Genoa, same socket", 54.0, 103.0, PCIE),
    _both("two EPYC Genoa, across", 39.0, 64.0, PCIE,
          reason="the two directions between the sockets are not independent"),
    _both("POWER9, NVLink", 68.9, 136.2, HCDIAG, 0.01, ANSWERS),
    _both("POWER9, across the X-bus", 28.9, 34.1, HCDIAG,
          reason="the X-bus is nearly half duplex for this traffic; a topology file says `shared`"),
    _both("two H100 PCIe, NVLink bridge", 256.8, 509.0, "p2pBandwidthLatencyTest, public log"),
    _both("two RTX 6000 Ada, peer access", 26.3, 52.1, "p2pBandwidthLatencyTest, public log"),
    _both("two H100 PCIe, no peer access", 25.5, 35.2, "p2pBandwidthLatencyTest, public log",
          reason=BOUNCE, pattern="bounce"),
    _both("two RTX 6000 Ada, no peer access", 22.3, 31.4, "p2pBandwidthLatencyTest, public log",
          reason=BOUNCE, pattern="bounce"),
    _both("two RTX 5090, no peer access", 38.5, 42.9, "p2pBandwidthLatencyTest, public log",
          reason=BOUNCE, pattern="bounce"),
    _both("A100 SXM, no peer access, one switch", 16.9, 11.1, "p2pBandwidthLatencyTest, public log",
          reason=BOUNCE + "; and one uplink", pattern="bounce"),
    _both("A100 SXM, no peer access, two switches", 20.2, 28.1,
          "p2pBandwidthLatencyTest, public log", reason=BOUNCE, pattern="bounce"),
    _on(Machine(name="two nodes with four HDR cards each", devices=8, links=star(8, 24.0),
                given="one card 24", source="NVIDIA/nccl#412, NVIDIA/nccl-tests#119"),
        "all cards of a node (84.8 to 96)", ACROSS, 90.4, "shared", "", 0.062),
)  # fmt: skip


@cache
def topology_of(machine: Machine) -> Topology:
    """Build the machine."""
    names = [f"d{i}" for i in range(machine.devices)]
    switches = sorted({end for link in machine.links for end in link[:2]} - set(names))
    card = {"peak": {"bf16": "1 TFLOP/s"}, "efficiency": 1.0, "overhead": "0 s"}
    document: dict[str, Any] = {
        "schema": "charm-sched/topology",
        "version": 1,
        "name": "machine",
        "profiles": {"card": card | {"memory_bandwidth": "1 TB/s"}},
        "devices": [{"name": name, "profile": "card"} for name in names],
        "switches": [{"name": name, "kind": "switch"} for name in switches],
        "links": [
            {"kind": "wire", "bandwidth": f"{rate!r} GB/s", "latency": "0 s", "from": a, "to": b}
            for a, b, rate in machine.links
        ],
    }
    return Topology.from_document({k: v for k, v in document.items() if v})


def predict(row: Row) -> float:
    """Give the rate of all flows together, or their mean: each moves the same, from one instant."""
    topology = topology_of(row.machine)
    ranks, width = row.machine.devices, MEGABYTES * 500_000
    work = Workload(seq_len=ranks * len(row.flows), heads=1, head_dim=width, mask="full")
    b = Builder(
        work, Partition.contiguous(work.seq_len, ranks), topology=topology,
        devices=topology.device_names,
    )  # fmt: skip
    for number, (src, dst) in enumerate(row.flows):
        token = src * len(row.flows) + number
        item = b.item("q", ((token, token + 1),))
        b.transfer(src=src, dst=dst, items=item, level=0, stream=f"s{number}", slot=number)
    plan = b.build()
    rates = plan.op_bytes / simulate(plan, topology).end / 1e9
    return float(rates.mean() if row.mean else rates.sum())
