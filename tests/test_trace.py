"""Traces: what a viewer needs, and the same bytes every time."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from charm_sched import load_topology, simulate
from charm_sched import plan as make_plan
from charm_sched.commands.output import TRACE_START
from charm_sched.partition import Partition
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
from charm_sched.timelines import trace
from charm_sched.timelines.timeline import Timeline
from charm_sched.timelines.trace import trace_document, write_trace
from charm_sched.workload import Workload


def plan() -> Plan:
    work = Workload(seq_len=40, heads=1, head_dim=1, mask="full")
    b = Builder(work, Partition.contiguous(40, 2), devices=("gpu-a", "gpu-b"))
    q, kv, half = b.shards("q"), b.shards("kv"), b.pieces("kv", 2)
    b.transfer(src=[0, 0], dst=1, items=half[0], level=0, stream="ring", slot=[0, 1])
    b.attend(rank=b.ranks, queries=q, keys=kv)
    b.attend(rank=1, queries=q[1], keys=half[0, 0], stream="second", part=1, query_slot=2)
    b.merge(rank=1, inputs=b.shards("o", part=1)[1], output=b.shards("o")[1])
    return b.build()


@pytest.fixture
def line() -> Timeline:
    start = np.array([0, 1, 0, 0, 2, 4]) * 1e-6
    return Timeline(plan=plan(), start=start, end=start + 2e-6, source="measured")


def events(line: Timeline, phase: str) -> list[dict[str, Any]]:
    document: Any = trace_document(line)
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def test_each_op_is_one_complete_event_in_microseconds(line: Timeline) -> None:
    found = {event["args"]["row"]: event for event in events(line, "X")}
    assert sorted(found) == list(range(6))
    assert (found[4]["ts"], found[4]["dur"], found[4]["pid"]) == (2.0, 2.0, 1)
    assert found[0]["name"] == "level 0 to 1"
    assert found[0]["cat"] == "transfer"
    assert found[0]["args"]["op"] == str(line.plan.op(0))
    assert (found[0]["args"]["bytes"], found[0]["args"]["GB/s"]) == (40, 0.02)


def test_ranks_are_processes_and_streams_threads(line: Timeline) -> None:
    names = {
        (event["pid"], event["tid"], event["args"]["name"])
        for event in events(line, "M")
        if event["name"].endswith("_name")
    }
    assert names == {
        (0, 0, "rank 0 (gpu-a)"), (1, 0, "rank 1 (gpu-b)"), (0, 1, "ring"), (0, 2, "ring (2)"),
        (0, 3, "compute"), (1, 1, "compute"), (1, 2, "second"),
    }  # fmt: skip


def test_events_of_one_thread_do_not_overlap(line: Timeline) -> None:
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events(line, "X"):
        span = (event["ts"], event["ts"] + event["dur"])
        threads.setdefault((event["pid"], event["tid"]), []).append(span)
    for spans in threads.values():
        ordered = sorted(spans)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ordered))


def test_a_file_has_the_same_bytes_every_time(line: Timeline, tmp_path: Path) -> None:
    write_trace(line, tmp_path / "a.json")
    write_trace(line, tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert json.loads((tmp_path / "a.json").read_text())["traceEvents"]


@pytest.fixture(scope="module")
def simulated() -> Timeline:
    machine = load_topology("dual_numa_pcie")
    work = Workload(seq_len=2048, heads=8, kv_heads=2, head_dim=64, dtype="bf16", mask="causal")
    return simulate(make_plan(machine, work, strategy="charm", direction="forward"), machine)


def counters(line: Timeline) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for event in events(line, "C"):
        found.setdefault(event["name"], []).append((event["ts"], event["args"]["used"]))
    return found


def test_each_link_in_use_has_a_counter(simulated: Timeline) -> None:
    found = counters(simulated)
    assert simulated.topology is not None
    used = {
        f"{capacity.name} ({capacity.kind})"
        for capacity, part in zip(simulated.topology.capacities, simulated.link_busy, strict=True)
        if part > 0
    }
    assert found.keys() == used
    for steps in found.values():
        times = [time for time, _ in steps]
        assert times == sorted(times)
        assert all(0 <= part <= 1 for _, part in steps)
        assert max(part for _, part in steps) > 0
        assert steps[-1][1] == 0
        assert times[-1] <= simulated.makespan * 1e6 * (1 + 1e-9)


def test_links_are_a_process_behind_the_ranks(simulated: Timeline) -> None:
    assert {event["pid"] for event in events(simulated, "C")} == {8}
    names = {
        event["args"]["name"]: event["pid"]
        for event in events(simulated, "M")
        if event["name"] == "process_name"
    }
    assert names["links (part of the bandwidth in use)"] == 8
    assert len(names) == 9


def test_very_many_transfers_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = load_topology("dual_numa_pcie")
    made = make_plan(
        machine, Workload(seq_len=2048, heads=8, mask="causal"), strategy="all_gather",
        direction="forward", params={"algorithm": "direct", "chunks": 1},
    )  # fmt: skip
    simulated = simulate(made, machine)
    single = events(simulated, "X")
    monkeypatch.setattr(trace, "MOST_SINGLE", 0)
    monkeypatch.setattr(trace, "MOST_TOLD", 0)
    joined = events(simulated, "X")
    sums = [sum(event["args"].get("bytes", 0) for event in some) for some in (single, joined)]
    assert sums[0] == sums[1] == simulated.total_bytes
    kernels = [[e for e in some if e["cat"] != "transfer"] for some in (single, joined)]
    assert len(kernels[0]) == len(kernels[1])
    batches = {(e["pid"], e["args"]["level"], e["tid"]) for e in joined if e["cat"] == "transfer"}
    assert len(joined) - len(kernels[1]) == len(batches) < len(single) - len(kernels[0])
    assert not any("op" in event["args"] for event in joined)
    document: Any = trace_document(simulated)
    assert len(document["otherData"]["left_out"]) == 2


def test_of_very_many_links_the_fullest_have_a_counter(
    simulated: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MOST_LINKS", 1)
    monkeypatch.setattr(trace, "MOST_STEPS", 5)
    ((name, steps),) = counters(simulated).items()
    assert name.startswith(simulated.busiest_link[0])
    assert len(steps) <= 6
    document: Any = trace_document(simulated)
    assert document["otherData"]["left_out"] == ["all links but the 1 fullest"]


def test_a_trace_begins_as_the_commands_know_it(simulated: Timeline, tmp_path: Path) -> None:
    write_trace(simulated, tmp_path / "t.json")
    assert (tmp_path / "t.json").read_bytes().startswith(TRACE_START)
