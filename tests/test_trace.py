"""Traces: what a viewer needs, and the same bytes every time."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from charm_sched.partition import Partition
from charm_sched.plans.builder import Builder
from charm_sched.plans.plan import Plan
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
