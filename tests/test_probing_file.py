"""The calibrated topology file: valid, marked, and as before wherever nothing was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.probes import changed, probed

from charm_sched import cli, topo
from charm_sched.errors import TopologyError
from charm_sched.plans.storage import save_plan
from charm_sched.probing.numbers import Unexplained
from charm_sched.probing.write import calibrated, check_output, save
from charm_sched.search.planning import plan
from charm_sched.topology.graph import load_topology
from charm_sched.topology.profiles import source_of
from charm_sched.workload import Workload

PCIE = load_topology("dual_numa_pcie")
SHARED = {"bandwidth": "20 GB/s", "shared": True}


def slower(document: dict[str, Any]) -> None:
    document["kinds"]["upi"].update(bandwidth="20 GB/s")


@pytest.mark.parametrize("name", ["new.yaml", "new.json"])
def test_numbers_are_measured_and_the_rest_is_as_before(tmp_path: Path, name: str) -> None:
    found = probed(PCIE, changed(PCIE, slower))
    save(calibrated(found, "2030-01-02"), tmp_path / name)
    new = load_topology(tmp_path / name)
    assert (new.name, new.device_names, new.tiers) == (PCIE.name, PCIE.device_names, PCIE.tiers)
    assert new.domains() == PCIE.domains()
    assert [s.name for s in new.switches] == [s.name for s in PCIE.switches]
    assert [d.compute.rates for d in new.devices] == [d.compute.rates for d in PCIE.devices]
    (upi,) = (k for k in new.links[::2] if k.kind == "upi")
    assert upi.bandwidth == pytest.approx(20e9, rel=0.01)
    label = "measured by charm-topo probe, 2030-01-02, on paper"
    assert source_of(upi.source, "bandwidth") == label
    assert source_of(upi.source, "latency") == label
    assert "bandwidth" not in upi.assumed_keys
    (uplink,) = {(k.bandwidth, k.source) for k in new.links if k.kind == "uplink"}
    assert uplink[0] == pytest.approx(24e9, rel=0.01)


def test_what_never_limited_anything_keeps_its_number_and_its_mark(tmp_path: Path) -> None:
    """Between two devices the link between sockets carries one flow, so its bandwidth is open."""
    found = probed(PCIE, PCIE, ("socket0/gpu0", "socket1/gpu0"))
    new = calibrated(found, "2030-01-02")
    (old,), (upi,) = ([k for k in each.links[::2] if k.kind == "upi"] for each in (PCIE, new))
    assert upi.bandwidth == old.bandwidth == 36e9
    assert "bandwidth" in upi.assumed_keys
    assert source_of(upi.source, "bandwidth") == source_of(old.source, "bandwidth")
    assert "flow_cap" not in upi.assumed_keys
    assert any("upi links: bandwidth 36 GB/s is assumed" in text for text in new.assumptions)


def test_half_duplex_is_written(tmp_path: Path) -> None:
    found = probed(PCIE, changed(PCIE, lambda d: d["kinds"]["upi"].update(SHARED)))
    new = calibrated(found, "2030-01-02")
    assert {k.shared for k in new.links if k.kind == "upi"} == {True}
    assert {k.shared for k in new.links if k.kind != "upi"} == {False}
    (capacity,) = (c for c in new.capacities if c.kind == "upi")
    assert capacity.bandwidth == pytest.approx(20e9, rel=0.01)


def test_a_stored_plan_is_simulated_on_the_new_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Workload(seq_len=8192, heads=8, kv_heads=8, head_dim=64, mask="full")
    stored = plan(PCIE, work, strategy="ring", direction="forward")
    save_plan(stored, tmp_path / "stored.plan.json")
    save(calibrated(probed(PCIE, changed(PCIE, slower)), "2030-01-02"), tmp_path / "new.yaml")
    times = []
    for machine in ("dual_numa_pcie", str(tmp_path / "new.yaml")):
        arguments = [str(tmp_path / "stored.plan.json"), "--topology", machine, "--json"]
        assert cli.sim_main(arguments) == 0
        document = json.loads(capsys.readouterr().out)
        times.append(document["results"][0]["makespan_s"])
    assert times[1] > times[0] * 0.99


def test_only_a_file_of_an_earlier_probe_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "new.yaml"
    assert not check_output(target, "dual_numa_pcie")
    save(calibrated(probed(PCIE, PCIE), "2030-01-02"), target)
    assert check_output(target, "dual_numa_pcie")
    with pytest.raises(TopologyError, match="is the file that is probed"):
        check_output(target, str(target))
    mine = tmp_path / "mine.yaml"
    mine.write_text("schema: charm-sched/topology\n")
    notes = tmp_path / "notes.json"
    notes.write_text("measured by charm-topo probe")
    for other in (mine, notes):
        with pytest.raises(TopologyError, match="is no topology written by charm-topo probe"):
            check_output(other, "dual_numa_pcie")
    with pytest.raises(TopologyError, match=r"ends in \.yaml, \.yml, \.json"):
        check_output(tmp_path / "new.txt", "dual_numa_pcie")
    with pytest.raises(TopologyError, match="a folder that can be written to"):
        check_output(tmp_path / "nowhere" / "new.yaml", "dual_numa_pcie")


def test_without_torchrun_and_root_one_message_names_both_ways(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("charm_sched.testbed.missing", lambda: "a testbed needs root")
    assert topo.main(["probe", "dual_numa_pcie"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "torchrun --nproc-per-node N -m charm_sched.topo probe TOPOLOGY" in line
    assert "a testbed needs root" in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--tolerance", "2"), "expected a part below 0.5"),
        (("--largest", "3"), "a number needs its unit"),
        (("--largest", "3 B"), "expected from 1 KiB to 4 GiB"),
        (("--scale", "0"), "expected a positive number"),
        (("--backend", "nccl"), "--backend nccl needs torchrun"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    arguments: tuple[str, ...],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as stop:
        topo.main(["probe", "dual_numa_pcie", *arguments])
    assert stop.value.code == 2
    assert expected in capsys.readouterr().err


def test_domains_stay_where_measured_links_would_give_others(tmp_path: Path) -> None:
    real = changed(PCIE, lambda d: d["kinds"]["pcie"].update(bandwidth="4 GB/s"))
    assert {k.bandwidth for k in real.links if k.kind == "pcie"} == {4e9}
    new = calibrated(probed(PCIE, real), "2030-01-02")
    save(new, tmp_path / "new.yaml")
    loaded = load_topology(tmp_path / "new.yaml")
    assert loaded.domains() == PCIE.domains()
    assert loaded.tiers == PCIE.tiers
    (pcie,) = {k.bandwidth for k in loaded.links if k.kind == "pcie"}
    assert pcie == pytest.approx(4e9, rel=0.01)


def test_a_file_that_fits_badly_says_so_in_every_result() -> None:
    found = probed(PCIE, PCIE)
    assert calibrated(found, "2030-01-02").extra_assumptions == ()
    wrong = [Unexplained(name="x", rate=1.0, fitted=2.0)] * found.fit.cases
    bad = replace(found, fit=replace(found.fit, unexplained=tuple(wrong)))
    (sentence,) = calibrated(bad, "2030-01-02").assumptions[-1:]
    assert sentence.startswith("links describe this machine badly: ")
