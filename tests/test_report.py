"""The JSON documents: their form, key by key, and that the numbers in them agree."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.machines import small_shipped

from charm_sched import Workload, load_topology, plan_all
from charm_sched.commands.assess import assess
from charm_sched.report.documents import (
    combined,
    document,
    tiers,
    topology_report,
    workload_document,
)
from charm_sched.search.results import Comparison

NUMBER, TEXT, COUNT = (int, float), (str,), (int,)
RESULT = {
    "strategy": TEXT, "detail": (dict,), "direction": TEXT, "partition": TEXT,
    "makespan_s": NUMBER, "bound_s": NUMBER, "bound_by": TEXT, "efficiency": NUMBER,
    "class_bound_s": (int, float, type(None)), "class_efficiency": (int, float, type(None)),
    "compute_s": NUMBER,
    "exposed_comm_s": NUMBER, "bytes": (dict,), "link_bytes": (dict,), "peak_bytes": COUNT,
    "fits": (bool, type(None)), "ranks": COUNT, "ops": COUNT, "levels": COUNT,
    "speedup_vs_ring": NUMBER, "validated": (dict,),
}  # fmt: skip
DOCUMENT = {
    "schema": TEXT, "version": COUNT, "topology": (dict,), "workload": (dict,),
    "results": (list,), "refused": (list,), "not_tried": (list,), "chosen": (dict,), "why": TEXT,
    "memory_limit": (int, float, type(None)), "memory": (dict,), "plan_file": (str, type(None)),
    "trace_files": (list,), "assumptions": (list,), "seconds": (dict,),
    "cost": (dict, type(None)), "explanations": (dict,),
    "what_if": (dict, type(None)), "jitter": (list, type(None)), "sweep": (dict, type(None)),
    "layout": (dict, type(None)), "step": (dict, type(None)),
}  # fmt: skip
WORKLOAD = {
    "seq_len": COUNT, "batch": COUNT, "heads": COUNT, "kv_heads": COUNT, "head_dim": COUNT,
    "v_head_dim": COUNT, "dtype": TEXT, "grad_dtype": TEXT, "mask": TEXT,
}  # fmt: skip
TIER = {"name": TEXT, "domains": COUNT, "bandwidth": NUMBER}


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    workload = Workload(seq_len=4099, heads=8, kv_heads=2, mask="causal")
    return plan_all(
        load_topology("dual_node_nvlink"), workload, strategies=("ring", "charm"), ranks=6
    )


@pytest.fixture(scope="module")
def report(comparison: Comparison) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(document(comparison, Path("p.json"))))
    return loaded


def assert_form(value: dict[str, Any], form: dict[str, tuple[type, ...]]) -> None:
    assert list(value) == list(form)
    for key, types in form.items():
        assert isinstance(value[key], types), key


def test_form_of_the_document(report: dict[str, Any]) -> None:
    assert_form(report, DOCUMENT)
    assert (report["schema"], report["version"]) == ("charm-sched/report", 1)
    assert list(report["topology"]) == ["name", "digest", "devices", "tiers"]
    for tier in report["topology"]["tiers"]:
        assert_form(tier, TIER)
    assert_form(report["workload"], WORKLOAD)
    for row in report["results"]:
        assert_form(row, RESULT)
        assert list(row["detail"]) == ["planner", "params"]
    assert list(report["seconds"]) == ["plan", "verify", "bound", "simulate"]
    assert list(report["chosen"]) == ["forward", "backward"]
    assert report["plan_file"] == "p.json"
    assert report["assumptions"]


def test_one_row_per_strategy_and_direction(report: dict[str, Any]) -> None:
    rows = [(row["strategy"], row["direction"]) for row in report["results"]]
    assert sorted(rows) == [
        ("charm", "backward"), ("charm", "forward"), ("ring", "backward"), ("ring", "forward"),
    ]  # fmt: skip


def test_numbers_agree(report: dict[str, Any], comparison: Comparison) -> None:
    names = [tier["name"] for tier in report["topology"]["tiers"]]
    for row, result in zip(report["results"], comparison.results, strict=True):
        total = row["compute_s"] + row["exposed_comm_s"]
        assert math.isclose(total, row["makespan_s"], rel_tol=1e-12)
        assert row["compute_s"] > 0
        assert list(row["bytes"]) == names
        assert sum(row["bytes"].values()) == result.plan.op_bytes.sum()
        assert row["ops"] == len(result.plan)
        assert row["ranks"] == 6
        assert row["levels"] == result.plan.num_levels > 0
        assert row["peak_bytes"] == result.peak_bytes > 0
        assert row["fits"] is True


def test_speedups_are_over_ring(report: dict[str, Any]) -> None:
    times = {(row["strategy"], row["direction"]): row["makespan_s"] for row in report["results"]}
    for row in report["results"]:
        expected = times["ring", row["direction"]] / row["makespan_s"]
        assert math.isclose(row["speedup_vs_ring"], expected, rel_tol=1e-12)


def test_chosen_is_the_fastest(report: dict[str, Any]) -> None:
    for direction, detail in report["chosen"].items():
        rows = [row for row in report["results"] if row["direction"] == direction]
        assert detail == min(rows, key=lambda row: row["makespan_s"])["detail"]


def test_defaults_of_the_workload_are_spelt_out() -> None:
    assert workload_document(Workload(seq_len=10, heads=4, dtype="fp64", mask="window:3")) == {
        "seq_len": 10, "batch": 1, "heads": 4, "kv_heads": 4, "head_dim": 128, "v_head_dim": 128,
        "dtype": "fp64", "grad_dtype": "fp64", "mask": "window:3",
    }  # fmt: skip


def test_assessing_the_chosen_schedule_gives_the_same_rows(comparison: Comparison) -> None:
    again = document(assess(comparison.schedule()))
    chosen = [
        document(comparison)["results"][comparison.results.index(r)] for r in _rows(comparison)
    ]
    assert again["results"] == chosen
    assert set(again["assumptions"]) <= set(document(comparison)["assumptions"])


def _rows(comparison: Comparison) -> list[Any]:
    """Give the listed results whose plans were chosen, forward first."""
    plans = [result.plan for result in comparison.chosen.values()]
    return [result for plan in plans for result in comparison.results if result.plan is plan]


def test_one_document_stays_alone_and_several_are_listed() -> None:
    assert combined([{"a": 1}]) == {"a": 1}
    assert combined([{"a": 1}, {"b": 2}]) == {
        "schema": "charm-sched/report", "version": 1, "reports": [{"a": 1}, {"b": 2}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("mask", "told"), [("full", False), ("causal", False), ("window:64", True), ("docs:99,1", True)]
)
def test_report_says_what_ring_sends_under_other_masks(mask: str, told: bool) -> None:
    length = 100 if mask.startswith("docs") else 256
    workload = Workload(seq_len=length, heads=2, mask=mask)
    found = plan_all(load_topology("dual_numa_pcie"), workload, strategies=("ring",), ranks=2)
    sentences = document(found)["assumptions"]
    assert any("also sends the shards that a " in sentence for sentence in sentences) == told


@pytest.mark.parametrize("name", small_shipped())
def test_tiers_of_shipped_machines(name: str) -> None:
    topology = load_topology(name)
    found = tiers(topology)
    assert [tier["name"] for tier in found] == list(topology.tiers)
    assert found[-1]["domains"] == len(topology.devices)
    assert all(tier["bandwidth"] > 0 for tier in found)
    counts = [tier["domains"] for tier in found]
    assert counts == sorted(counts)


def test_tier_bandwidth_is_what_leaves_one_domain() -> None:
    """Eight 24 GB/s network cards per node; 160 GB/s of NVLink and the card per device."""
    outer, inner = tiers(load_topology("dual_node_nvlink"))
    assert outer == {"name": "network", "domains": 2, "bandwidth": 8 * 24e9}
    assert inner == {"name": "nvlink", "domains": 16, "bandwidth": 184e9}


def test_report_of_a_machine() -> None:
    topology = load_topology("dual_numa_pcie")
    found = topology_report(topology)
    assert found["devices"] == len(found["device_names"]) == 8
    assert found["device_names"][:2] == ["socket0/gpu0", "socket0/gpu1"]
    assert found["digest"] == topology.digest
    assert sum(kind["count"] for kind in found["links"]) == len(topology.links)
    assert {kind["kind"] for kind in found["links"]} == {link.kind for link in topology.links}
    assert found["assumptions"] == list(topology.assumptions)
    json.dumps(found, allow_nan=False)
