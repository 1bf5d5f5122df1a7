"""Machines on paper are probed with files that are wrong about them; the fit finds in what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.machines import small_shipped
from support.probes import changed, probed, slowest_rate

from charm_sched.probing.numbers import ClassFit
from charm_sched.probing.report import differences, document, undetermined, unexplained
from charm_sched.probing.result import Found, fit_alone, second_look, together
from charm_sched.probing.whole_machine import MATRIX_RANKS, Traffic, choose_traffic
from charm_sched.probing.write import calibrated
from charm_sched.topology.graph import load_topology

PCIE = load_topology("dual_numa_pcie")
NVLINK = load_topology("dual_node_nvlink")


def kind(name: str, **values: Any) -> Any:
    """Change a kind of link; None takes a value away."""

    def change(document: dict[str, Any]) -> None:
        own = document["kinds"][name]
        own.update(values)
        for key in [key for key, value in values.items() if value is None]:
            del own[key]
            own["assumed"] = [each for each in own["assumed"] if each != key]

    return change


def one_link(end: str, **values: Any) -> Any:
    """Change the links that end in a switch."""

    def change(document: dict[str, Any]) -> None:
        for link in document["links"]:
            if link["to"] == end:
                link.update(values)

    return change


def fit_of(found: Found, name: str) -> ClassFit:
    (own,) = (fit for fit in found.fit.classes if fit.name == name)
    return own


def told(found: Found) -> list[str]:
    return [each.text for each in differences(found)]


@pytest.mark.parametrize("name", small_shipped())
def test_a_machine_that_is_as_its_file_says_shows_no_difference(name: str) -> None:
    stated = load_topology(name)
    found = probed(stated, stated)
    assert told(found) == []
    assert unexplained(found) == ()
    assert second_look(found) == ()
    for fit in found.fit.classes:
        if fit.bandwidth.status in ("measured", "together"):
            assert fit.bandwidth.value == pytest.approx(fit.bandwidth.file, rel=0.02)
        assert found.latencies[fit.link_class] == pytest.approx(fit.link_class[2], rel=0.02)


def test_a_narrower_shared_link_is_named() -> None:
    found = probed(PCIE, changed(PCIE, kind("upi", bandwidth="20 GB/s")))
    (one,) = differences(found)
    assert (one.what, one.number, one.file) == ("upi", "bandwidth", 36e9)
    assert one.measured == pytest.approx(20e9, rel=0.01)
    assert one.text == "upi: bandwidth: the file says 36 GB/s, measured 20 GB/s (-44 %)"
    assert fit_of(found, "upi").bandwidth.status == "measured"
    assert fit_of(found, "pcie").bandwidth.value == pytest.approx(24e9, rel=0.01)


def test_one_flow_at_20_and_four_at_36_are_a_cap_and_a_capacity() -> None:
    stated = changed(PCIE, kind("upi", flow_cap=None))
    real = changed(PCIE, kind("upi", flow_cap="20 GB/s"))
    found = probed(stated, real)
    fit = fit_of(found, "upi")
    assert fit.flow_cap.file is None
    assert fit.flow_cap.value == pytest.approx(20e9, rel=0.01)
    assert fit.bandwidth.value == pytest.approx(36e9, rel=0.01)
    assert fit.bandwidth.status == "measured"
    (one,) = told(found)
    assert one.startswith("upi: the file has no flow cap, one flow gets no more than 20 GB/s")


def test_a_lower_cap_is_named_with_what_could_stand_in_its_place() -> None:
    found = probed(PCIE, changed(PCIE, kind("upi", flow_cap="12 GB/s")))
    (one,) = differences(found)
    assert (one.what, one.number) == ("upi", "flow_cap")
    assert one.measured == pytest.approx(12e9, rel=0.01)
    assert "could as well be: uplink flow cap" in one.text


def test_a_cap_that_is_not_there_is_raised_to_what_passed() -> None:
    found = probed(PCIE, changed(PCIE, kind("upi", flow_cap=None)))
    (one,) = differences(found)
    assert fit_of(found, "upi").flow_cap.status == "at least"
    assert one.text == "upi: flow cap: the file says 18 GB/s, 24 GB/s was seen to pass (+33 %)"


def test_half_duplex_shows_when_both_directions_get_half() -> None:
    found = probed(PCIE, changed(PCIE, kind("upi", shared=True)))
    fit = fit_of(found, "upi")
    assert (fit.shared, fit.shared_status) == (True, "measured")
    (one,) = told(found)
    assert one.startswith(
        "upi: the file says full duplex, it is half duplex: 4 flows each way over socket0/root"
    )
    assert fit.bandwidth.value == pytest.approx(36e9, rel=0.01)


def test_full_duplex_is_seen_where_the_file_says_half() -> None:
    stated = changed(PCIE, kind("upi", shared=True))
    found = probed(stated, PCIE)
    fit = fit_of(found, "upi")
    assert (fit.shared, fit.shared_status) == (False, "measured")
    assert fit.bandwidth.value == pytest.approx(36e9, rel=0.01)
    assert [each.number for each in differences(found)] == ["duplex"]


def test_duplex_that_nothing_shows_is_left_open() -> None:
    """One flow each way, capped at half of the link, fits half duplex and full."""
    devices = ("socket0/gpu0", "socket1/gpu0")
    found = probed(PCIE, PCIE, devices)
    assert "upi: nothing told half from full duplex; the file's full stays" in undetermined(found)
    assert fit_of(found, "upi").bandwidth.status == "unseen"


def test_a_device_with_a_slow_card_is_named() -> None:
    found = probed(NVLINK, changed(NVLINK, one_link("node1/nic3", bandwidth="12 GB/s",
                                                    latency="1 us")))  # fmt: skip
    (one,) = differences(found)
    assert one.number == "slow"
    assert one.what.startswith("node1/gpu3's ")
    assert "node1/nic3 <-> node1/gpu3" in one.what
    assert one.measured == pytest.approx(12e9, rel=0.02)
    assert "16 pairs cross it: 12 GB/s" in one.text
    assert "(-50 %)" in one.text
    assert fit_of(found, "network").bandwidth.value == pytest.approx(24e9, rel=0.02)
    assert unexplained(found) == ()


def test_a_link_that_is_slow_one_way_is_told_from_its_way_back() -> None:
    real = changed(PCIE, one_link("socket0/switch", bandwidth="24 GB/s", latency="0.75 us"))

    def change(document: dict[str, Any]) -> None:
        (link,) = (k for k in document["links"] if k["from"] == "socket1/gpu2")
        link.update(bandwidth="8 GB/s", reverse="24 GB/s", latency="0.75 us")

    found = probed(PCIE, changed(real, change))
    (one,) = differences(found)
    assert one.what == "socket1/gpu2's pcie (socket1/gpu2 -> socket1/switch)"
    made = calibrated(found, "2030-01-02")
    out = next(k for k in made.links if k.src == "socket1/gpu2")
    assert out.bandwidth == pytest.approx(8e9, rel=0.01)
    assert made.links[out.index ^ 1].bandwidth == pytest.approx(24e9, rel=0.01)


def test_a_narrow_port_is_measured() -> None:
    def narrow(value: str) -> Any:
        def change(document: dict[str, Any]) -> None:
            for device in document["devices"]:
                device["port"] = value

        return change

    stated, real = (changed(PCIE, narrow(value)) for value in ("20 GB/s", "15 GB/s"))
    found = probed(stated, real)
    assert fit_of(found, "port").bandwidth.value == pytest.approx(15e9, rel=0.01)
    assert calibrated(found, "2030-01-02").devices[0].port == pytest.approx(15e9, rel=0.01)


def test_latencies_are_shared_out_over_links() -> None:
    """No route tells uplink from upi, so the two keep their proportion."""
    found = probed(PCIE, changed(PCIE, kind("upi", latency="40 us")))
    latency = {name: found.latencies[fit_of(found, name).link_class]
               for name in ("pcie", "uplink", "upi")}  # fmt: skip
    assert latency["pcie"] == pytest.approx(0.75e-6, rel=0.02)
    assert 2 * latency["uplink"] + latency["upi"] == pytest.approx(40.5e-6, rel=0.02)
    assert latency["upi"] == pytest.approx(2 * latency["uplink"], rel=0.02)
    assert {each.number for each in differences(found)} == {"latency"}


def test_delays_of_a_busy_machine_do_not_matter() -> None:
    real = changed(PCIE, kind("upi", bandwidth="20 GB/s"))
    found = probed(PCIE, real, delays=np.random.default_rng(3))
    named = [one for one in differences(found) if one.number in ("bandwidth", "flow_cap", "duplex")]
    assert [(one.what, one.number) for one in named] == [("upi", "bandwidth")]
    assert named[0].measured == pytest.approx(20e9, rel=0.08)


CLASSES = st.sampled_from(["pcie", "uplink", "upi"])


@settings(max_examples=40, deadline=None)
@given(name=CLASSES, gigabytes=st.floats(3, 36), cap=st.none() | st.floats(3, 30),
       shared=st.booleans())  # fmt: skip
def test_the_calibrated_machine_gives_what_was_measured(
    name: str, gigabytes: float, cap: float | None, shared: bool
) -> None:
    """Whatever one kind of link really does, the new file predicts all traffic or says not."""
    values: dict[str, Any] = {"bandwidth": f"{gigabytes} GB/s", "shared": shared}
    if cap is not None:
        values["flow_cap"] = f"{cap} GB/s"
    real = changed(PCIE, kind(name, **values))
    found = probed(PCIE, real)
    made = calibrated(found, "2030-01-02")
    excused = {each.name for each in found.fit.unexplained}
    for reading in found.readings:
        if reading.traffic.name not in excused:
            rate = slowest_rate(made, found.devices, reading.traffic)
            assert rate == pytest.approx(slowest_rate(real, found.devices, reading.traffic),
                                         rel=0.13), reading.traffic.name  # fmt: skip
    assert len(excused) <= 0.25 * found.fit.cases


def test_a_line_is_fitted_to_what_can_be_right() -> None:
    sizes, exact = (4096, 16384, 65536, 262144, 1048576), 1e-3
    line = np.array([exact + size / 1e8 for size in sizes])
    assert fit_alone(sizes, line, 0.1) == pytest.approx((exact, 1e8))
    delayed = line * [1, 3, 2, 1, 1]
    assert fit_alone(sizes, delayed, 0.1) == pytest.approx((exact, 1e8))
    swallowed = np.array([size / 1e8 for size in sizes]) * [0.3, 1, 1, 1, 1]
    fixed, rate = fit_alone(sizes, swallowed, 0.1)
    assert fixed == pytest.approx(0, abs=1e-12)
    assert rate == pytest.approx(1e8)


def test_traffic_has_senders_and_receivers_of_its_own_where_links_allow() -> None:
    traffics, notes = choose_traffic(PCIE, PCIE.device_names, 1 << 20)
    assert notes == ()
    pairs = [t.pairs[0] for t in traffics if t.role == "pair"]
    assert len(set(pairs)) == len(pairs) == 8 * 7
    (upi,) = (t for t in traffics if t.name == "4 flows over socket0/root -> socket1/root")
    assert len({a for a, _ in upi.pairs}) == len({b for _, b in upi.pairs}) == 4
    assert all(a < 4 <= b for a, b in upi.pairs)
    (back,) = (t for t in traffics if t.name.startswith("4 flows each way over socket0/root"))
    assert set(back.pairs) == {*upi.pairs, *((b, a) for a, b in upi.pairs)}
    (fan,) = (t for t in traffics if t.name == "4 flows over socket0/gpu0 -> socket0/switch")
    assert {a for a, _ in fan.pairs} == {0}


def test_many_ranks_are_sampled_and_it_says_how() -> None:
    stated = load_topology("four_node_nvlink")
    assert len(stated.devices) > MATRIX_RANKS
    real = changed(stated, one_link("node1/nic3", bandwidth="12 GB/s", latency="1 us"))
    found = probed(stated, real)
    assert found.notes[0].startswith("32 ranks: one pair per kind of route")
    (one,) = differences(found)
    assert one.what.startswith("node1/gpu3's ")


def test_the_document_holds_numbers_alone_where_numbers_belong() -> None:
    found = probed(PCIE, changed(PCIE, kind("upi", bandwidth="20 GB/s")))
    made = document(found, None)
    assert made["schema"] == "charm-sched/probe"
    assert made["topology"] == {"name": PCIE.name, "digest": PCIE.digest}
    assert made["differences"][0]["measured"] == pytest.approx(20e9, rel=0.01)
    assert made["topology_file"] is None
    by_name = {entry["name"]: entry for entry in made["links"]}
    assert by_name["upi"]["bandwidth"]["file"] == 36e9
    assert by_name["upi"]["half_duplex"] == {"file": False, "value": False, "status": "measured"}


def test_a_slow_device_does_not_hide_what_shared_links_can_do() -> None:
    """Flows over a shared link are chosen again without it."""

    def change(document: dict[str, Any]) -> None:
        document["kinds"]["upi"]["bandwidth"] = "24 GB/s"
        (link,) = (k for k in document["links"] if k["from"] == "socket1/gpu1")
        link.update(bandwidth="3 GB/s", latency="0.75 us")

    found = probed(PCIE, changed(PCIE, change))
    slow, upi = differences(found)
    assert slow.what.startswith("socket1/gpu1's pcie (")
    assert (upi.what, upi.number) == ("upi", "bandwidth")
    assert upi.measured == pytest.approx(24e9, rel=0.01)
    assert fit_of(found, "upi").bandwidth.status == "measured"
    assert any(
        r.traffic.name == "3 flows over socket0/root -> socket1/root" for r in found.readings
    )


def test_a_second_look_adds_repetitions() -> None:
    one, other = (Traffic(name=n, role="pair", pairs=((0, 1),), sizes=(8,)) for n in "ab")
    found = dict(together([(one, np.array([[1.0, 2.0]]))],
                          [(one, np.array([[3.0]])), (other, np.array([[4.0]]))]))  # fmt: skip
    assert found[one].tolist() == [[1.0, 2.0, 3.0]]
    assert found[other].tolist() == [[4.0]]
