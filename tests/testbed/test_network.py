"""Real networks of namespaces, and what really flows through them."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from charm_sched.errors import TopologyError
from charm_sched.simulator import max_min_rates
from charm_sched.testbed import capacity, requirements, scripts
from charm_sched.testbed.commands import FOLDER, TestbedError, inside, query
from charm_sched.testbed.network import Testbed, sweep_leftovers
from charm_sched.testbed.traffic import Traffic, connect, measure
from charm_sched.topology.graph import Topology, load_topology

Machine = Callable[..., Topology]
Pairs = Sequence[tuple[str, str]]
WITHIN = 0.08  # relative; the machine is shared with other tests
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _possible() -> None:
    reason = requirements.missing()
    if reason:
        pytest.skip(reason)


def host() -> str:
    """Give what the host's own namespace holds."""
    asked = ("ip -br link", "ip -br address", "ip route", "ip rule", "tc qdisc")
    lines = [subprocess.check_output(line.split(), text=True) for line in asked]
    return "\n".join([*lines, Path("/proc/sys/net/ipv4/tcp_rmem").read_text()])


def predicted(topology: Topology, pairs: Pairs, scale: float = 1.0) -> dict[tuple[str, str], float]:
    routes = [topology.route(*pair) for pair in pairs]
    rates = max_min_rates(
        [route.capacities for route in routes],
        [capacity.bandwidth * scale for capacity in topology.capacities],
        [route.flow_cap * scale for route in routes],
    )
    return dict(zip(pairs, rates.tolist(), strict=True))


def check(topology: Topology, pairs: Pairs, *, scale: float = 1.0, seconds: float = 0.8) -> None:
    """Check the rates of flows that run at once; once more if somebody took the processor."""
    wanted = predicted(topology, pairs, scale)
    with Testbed(topology, scale=scale) as bed:
        for _ in range(3):
            got = measure(bed, pairs, seconds=seconds)
            if all(abs(got[p] / rate - 1) <= WITHIN for p, rate in wanted.items()):
                return
    assert got == pytest.approx(wanted, rel=WITHIN)


def test_one_link(machine: Machine) -> None:
    check(machine(2, [("d0", "d1", {})]), [("d0", "d1")])


def test_two_flows_share_a_link(machine: Machine) -> None:
    wide = {"bandwidth": "30 MB/s"}
    star = machine(3, [("d0", "s", wide), ("d1", "s", wide), ("s", "d2", {})], switches=["s"])
    check(star, [("d0", "d2"), ("d1", "d2"), ("d2", "d0")])


def test_opposite_directions_do_not_disturb_each_other(machine: Machine) -> None:
    check(machine(2, [("d0", "d1", {})]), [("d0", "d1"), ("d1", "d0")])


def test_half_duplex_halves(machine: Machine) -> None:
    check(machine(2, [("d0", "d1", {"shared": True})]), [("d0", "d1"), ("d1", "d0")])
    check(machine(2, [("d0", "d1", {"shared": True})]), [("d0", "d1")])


def test_flow_cap(machine: Machine) -> None:
    """Two connections of one pair are one flow; two pairs are two."""
    wide = {"bandwidth": "30 MB/s"}
    capped = {"bandwidth": "10 MB/s", "flow_cap": "3 MB/s"}
    star = machine(3, [("d0", "s", wide), ("d1", "s", wide), ("s", "d2", capped)], switches=["s"])
    check(star, [("d0", "d2"), ("d1", "d2")])
    with Testbed(star, scale=1.0) as bed:
        got = measure(bed, [("d0", "d2"), ("d0", "d2")], seconds=0.8)
    assert got["d0", "d2"] == pytest.approx(3e6, rel=WITHIN)


def test_device_port(machine: Machine) -> None:
    fork = machine(3, [("d0", "d1", {}), ("d0", "d2", {})], ports={0: "12 MB/s"})
    check(fork, [("d0", "d1"), ("d0", "d2")])
    check(fork, [("d1", "d0"), ("d2", "d0")])


def test_asymmetric_link(machine: Machine) -> None:
    check(machine(2, [("d0", "d1", {"reverse": "4 MB/s"})]), [("d0", "d1"), ("d1", "d0")])


def test_tree_with_a_shared_socket_link(pcie_tree: Topology) -> None:
    """All at once, over up to six hops, with several bottlenecks."""
    names = pcie_tree.device_names
    ring = [(names[i], names[(i + 1) % 8]) for i in range(8)]
    across = [(names[i], names[(i + 4) % 8]) for i in range(8)]
    check(pcie_tree, ring + across, seconds=2.0)


def test_parallel_links_and_flow_caps_of_a_shipped_machine() -> None:
    topology = load_topology("dual_numa_pcie")
    names = topology.device_names
    check(topology, [(a, b) for a in names[:4] for b in names[4:]], scale=3e-4, seconds=2.0)


def test_bytes_cross_exactly_the_links_of_the_route() -> None:
    """Each pair sends; the counters of the classes say where its bytes went."""
    topology = load_topology("dual_numa_pcie")
    size = 20_000
    with Testbed(topology, scale=1e-3) as bed:
        for src, dst in bed.pairs:
            sender, receiver = connect(bed, src, dst)
            with sender, receiver:
                sender.sendall(bytes(size))
                left = size
                while left:
                    left -= len(receiver.recv(left))
        for shaper in bed.blueprint.shapers.values():
            text = query("tc", shaper.namespace, "-s", "class", "show", "dev", shaper.interface)
            sent = {
                int(minor, 16): int(count)
                for minor, count in re.findall(r"class htb 1:(\w+) .*\n Sent (\d+) bytes", text)
            }
            for number, flow in enumerate(shaper.flows, 0x10):
                assert size < sent.pop(number) < 1.3 * size, (shaper, flow)
            del sent[1], sent[2]  # all, and acknowledgements
            assert sent == {3: 0}


def wait_for(traffic: Traffic, rate: float, *, within: float = 0.15) -> float:
    """Wait until the only flow has this rate; give the last one seen."""
    for _ in range(10):
        (got,) = traffic.rates(0.4)
        if abs(got - rate) <= max(within * rate, 1.0):
            break
    return got


def test_a_link_is_slowed_cut_and_restored(machine: Machine) -> None:
    topology = machine(2, [("d0", "s", {}), ("s", "d1", {})], switches=["s"])
    with Testbed(topology, scale=1.0) as bed, Traffic(bed, [("d0", "d1")]) as traffic:
        assert wait_for(traffic, 1e7) == pytest.approx(1e7, rel=0.15)
        bed.set_rate(2, 0.25)
        assert wait_for(traffic, 2.5e6) == pytest.approx(2.5e6, rel=0.15)
        bed.restore(2)
        assert wait_for(traffic, 1e7) == pytest.approx(1e7, rel=0.15)
        bed.cut(2)
        bed.cut(2)
        assert wait_for(traffic, 0.0) == 0
        bed.restore(2)
        assert wait_for(traffic, 1e7) == pytest.approx(1e7, rel=0.15)
        with bed.flap(2, down=0.1, up=0.5):
            assert 0 < traffic.rates(1.2)[0] < 0.97e7
        assert wait_for(traffic, 1e7) == pytest.approx(1e7, rel=0.15)


def test_a_half_duplex_link_is_cut_both_ways(machine: Machine) -> None:
    topology = machine(2, [("d0", "d1", {"shared": True})])
    with Testbed(topology, scale=1.0) as bed, Traffic(bed, [("d0", "d1")]) as traffic:
        bed.cut(1, both=False)
        assert wait_for(traffic, 0.0) == 0
        bed.restore(0)
        assert wait_for(traffic, 1e7) == pytest.approx(1e7, rel=0.15)


def test_links_that_cannot_be_disturbed_are_named(machine: Machine) -> None:
    topology = machine(3, [("d0", "s", {}), ("s", "d1", {}), ("s", "d2", {})], switches=["s"])
    with Testbed(topology, ["d0", "d1"], scale=1.0) as bed:
        with pytest.raises(TopologyError, match=r"some route .* found link 4 \(s -> d2\)"):
            bed.cut(4)
        with pytest.raises(TopologyError, match="one of its 6 links, found 6"):
            bed.restore(6)
        with pytest.raises(TopologyError, match="a factor above 0, found 0"):
            bed.set_rate(0, 0.0)
        with pytest.raises(TopologyError, match='found "d2"'):
            bed.namespace("d2")


def test_the_namespace_of_a_device(machine: Machine) -> None:
    topology = machine(3, [("d0", "d1", {}), ("d0", "d2", {})])
    with Testbed(topology, scale=1.0) as bed:
        seen = inside(bed.namespace("d0"), lambda: [name for _, name in socket.if_nameindex()])
        assert seen == ["lo", "eth0", "eth1"]
        assert bed.interfaces("d0") == ("eth0", "eth1")
        address = query("ip", bed.namespace("d0").name, "-br", "address", "show", "eth0")
        assert f"{bed.address('d0')}/32" in address
        child = os.fork()
        if not child:  # a rank: it joins, and leaves the network alone when it ends
            bed.enter("d1")
            names = Path("/proc/self/net/dev").read_text()
            bed.__exit__(None, None, None)
            os._exit(0 if "eth0" in names and "eth1" not in names else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert bed.namespace("d1").exists()
    assert not bed.namespace("d1").exists()


def test_torn_down_after_an_exception(machine: Machine) -> None:
    bed = Testbed(machine(2, [("d0", "d1", {})]), scale=1.0)

    def fail() -> None:
        with bed:
            assert bed.namespace("d0").exists()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not list(FOLDER.glob(f"{bed.blueprint.prefix}-*"))


@pytest.mark.parametrize(
    ("lines", "spoilt", "message"),
    [
        ("tc_lines", lambda lines: [], r"\(d0\), interface eth0: expected the queues \['htb'\]"),
        ("tc_lines", lambda lines: ["qdisc add dev eth9 root htb"], "eth9"),
        ("ip_lines", lambda lines: [x for x in lines if "via" not in x], "do not: d0 to d1"),
        ("ip_lines", lambda lines: [*lines, "link add"], 'accept "link add", found: '),
    ],
)
def test_a_network_that_is_not_as_drawn_is_refused_and_torn_down(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    spoilt: Callable[[list[str]], list[str]],
    message: str,
) -> None:
    right = getattr(scripts, lines)
    monkeypatch.setattr(scripts, lines, lambda *given: spoilt(list(right(*given))))
    bed = Testbed(machine(2, [("d0", "d1", {})]), scale=1.0)
    with pytest.raises(TestbedError, match=message):
        bed.__enter__()
    assert not list(FOLDER.glob(f"{bed.blueprint.prefix}-*"))


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> str:
        return str(requirements.missing.__wrapped__())

    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        assert "needs root" in asked()
    with monkeypatch.context() as patch:
        patch.setattr(requirements, "program", lambda name: None if name == "tc" else name)
        assert "needs the program tc, found none: install iproute2" in asked()
    with monkeypatch.context() as patch:
        trial = ("QFQ", "sch_no", "tc", ("qdisc add dev lo root no",))
        patch.setattr(requirements, "_TRIALS", (trial,))
        assert "needs QFQ in the kernel (modprobe sch_no)" in asked()
    assert asked() == "None"


@pytest.fixture
def builder() -> Iterator[subprocess.Popen[str]]:
    """A process that has built a network and holds it."""
    code = """
        import signal
        from charm_sched.testbed.network import Testbed
        from charm_sched.topology.graph import load_topology
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever started us may ignore them
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with Testbed(load_topology("single_node_nvlink"), scale=1e-4) as bed:
            print(bed.blueprint.prefix, flush=True)
            signal.pause()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_torn_down_after_a_signal(builder: subprocess.Popen[str], number: signal.Signals) -> None:
    assert builder.stdout is not None
    prefix = builder.stdout.readline().strip()
    assert len(list(FOLDER.glob(f"{prefix}-*"))) == 9
    builder.send_signal(number)
    assert builder.wait(20) != 0
    assert not list(FOLDER.glob(f"{prefix}-*"))


def test_leftovers_of_a_killed_run_are_swept(builder: subprocess.Popen[str]) -> None:
    assert builder.stdout is not None
    prefix = builder.stdout.readline().strip()
    assert not [name for name in sweep_leftovers() if name.startswith(f"{prefix}-")]
    builder.kill()
    builder.wait(20)
    assert len(list(FOLDER.glob(f"{prefix}-*"))) == 9
    sweep_leftovers()
    assert not list(FOLDER.glob(f"{prefix}-*"))


def test_the_host_is_left_alone(pcie_tree: Topology) -> None:
    before = host()
    with Testbed(pcie_tree, scale=1.0) as bed:
        measure(bed, [("d0", "d7")], settle=0.1, seconds=0.1)
        assert host() == before
    assert host() == before


def test_builds_and_ends_quickly() -> None:
    topology = load_topology("dual_node_nvlink")
    start = time.monotonic()
    with Testbed(topology, scale=1e-4) as bed:
        built = time.monotonic()
        assert len(bed.pairs) == len(list(itertools.permutations(topology.devices, 2)))
    assert built - start < 10  # a few tenths alone on the machine
    assert time.monotonic() - built < 5


def test_what_this_machine_carries() -> None:
    carrying = capacity.measure_carrying(seconds=0.2)
    assert carrying.rate(1) > carrying.rate(5) > 1e6
