"""Execution traces of Chakra: what they say is the plan, and its readers can read them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from charm_sched import Workload, load_topology, plan, simulate
from charm_sched.commands.assess import assess
from charm_sched.errors import CharmSchedError, PlanError
from charm_sched.export import chakra
from charm_sched.export.chakra_schema import (
    COMM_RECV_NODE,
    COMM_SEND_NODE,
    COMP_NODE,
    message_classes,
)
from charm_sched.plans.plan import ATTEND, TRANSFER
from charm_sched.timelines.timeline import Timeline

MACHINE = load_topology("dual_numa_pcie")
WORK = Workload(seq_len=4096, heads=8, kv_heads=2, head_dim=64, dtype="bf16", mask="causal")


def has_reader() -> bool:
    """Say whether Chakra's own tools are installed; another package has the same name."""
    try:
        return importlib.util.find_spec("chakra.src.jsonizer") is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(scope="module", params=["forward", "backward"])
def line(request: pytest.FixtureRequest) -> Timeline:
    made = plan(MACHINE, WORK, strategy="charm", direction=request.param)
    return simulate(made, MACHINE)


def messages(content: bytes) -> Iterator[bytes]:
    """Take a file apart: each message stands behind its length."""
    while content:
        length, shift, at = 0, 0, 0
        while True:
            length |= (content[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if content[at - 1] < 0x80:
                break
        yield content[at : at + length]
        content = content[at + length :]


def read(content: bytes) -> tuple[Any, list[Any]]:
    classes = message_classes()
    first, *rest = messages(content)
    return (
        classes["GlobalMetadata"].FromString(first),
        [classes["Node"].FromString(one) for one in rest],
    )


@pytest.fixture(scope="module")
def nodes(line: Timeline) -> list[list[Any]]:
    return [read(content)[1] for content in chakra.traces(line)]


def facts(node: Any) -> dict[str, Any]:
    return {one.name: getattr(one, one.WhichOneof("value")) for one in node.attr}


def test_each_kernel_is_a_node_and_each_transfer_two(line: Timeline, nodes: list[Any]) -> None:
    columns = line.plan.columns
    for rank, found in enumerate(nodes):
        kinds = [node.type for node in found]
        own = columns.rank == rank
        assert kinds.count(COMP_NODE) == (own & (columns.op != TRANSFER)).sum()
        assert kinds.count(COMM_SEND_NODE) == (own & (columns.op == TRANSFER)).sum()
        assert kinds.count(COMM_RECV_NODE) == (columns.peer == rank).sum()
        assert len({node.id for node in found}) == len(found)


def test_sends_and_receives_match_and_carry_the_bytes(line: Timeline, nodes: list[Any]) -> None:
    ends: dict[int, dict[int, tuple[int, Any]]] = {COMM_SEND_NODE: {}, COMM_RECV_NODE: {}}
    for rank, found in enumerate(nodes):
        for node in found:
            if node.type != COMP_NODE:
                told = facts(node)
                ends[node.type][told["comm_tag"]] = (rank, told)
    sent, received = ends[COMM_SEND_NODE], ends[COMM_RECV_NODE]
    assert sent.keys() == received.keys()
    assert sum(told["comm_size"] for _, told in sent.values()) == line.total_bytes
    for tag, (rank, told) in sent.items():
        peer, same = received[tag]
        assert told == same
        assert (told["comm_src"], told["comm_dst"]) == (rank, peer)


def test_kernels_carry_the_work(line: Timeline, nodes: list[Any]) -> None:
    every = [node for found in nodes for node in found if node.type == COMP_NODE]
    flops = sum(facts(node).get("num_ops", 0) for node in every)
    pairs = WORK.heads * WORK.seq_len * (WORK.seq_len + 1) // 2  # causal
    assert flops == pairs * WORK.flops_per_pair(line.plan.direction)
    attends = [node for node in every if "num_ops" in facts(node)]
    assert len(attends) == (line.plan.columns.op == ATTEND).sum()
    assert all(facts(node)["tensor_size"] > 0 for node in every)


def test_dependencies_stand_before_and_say_when_each_op_can_start(
    line: Timeline, nodes: list[Any]
) -> None:
    """An op of a simulation starts when the last thing that it waits for ends: neither too few
    dependencies, nor one too many."""
    ready = np.zeros(len(line.plan))
    for found in nodes:
        seen: set[int] = set()
        for node in found:
            assert set(node.data_deps) <= seen
            seen.add(node.id)
            ends = [line.end[before // 2] for before in node.data_deps]
            row = node.id // 2
            ready[row] = max([ready[row], *ends])
    assert np.allclose(ready, line.start, rtol=0, atol=1e-9 * line.makespan)


def test_files_say_what_they_are(line: Timeline) -> None:
    content = list(chakra.traces(line))
    assert len(content) == 8
    metadata, _ = read(content[3])
    told = {one.name: one.string_val for one in metadata.attr}
    assert metadata.version == chakra.VERSION
    assert (told["rank"], told["ranks"], told["device"]) == ("3", "8", line.plan.devices[3])
    assert told["plan_digest"] == line.plan.digest
    assert told["direction"] == line.plan.direction


def test_lengths_of_several_bytes_are_written_as_protobuf_does() -> None:
    for length in (0, 1, 127, 128, 300, 16_383, 16_384, 70_000):
        (found,) = messages(chakra._delimited(b"x" * length))
        assert found == b"x" * length


def test_a_folder_is_filled_and_filled_again(line: Timeline, tmp_path: Path) -> None:
    folder = tmp_path / "et"
    comparison = assess(line.plan, MACHINE)
    assert chakra.write_chakra(comparison, folder) == 8
    names = {f"{line.plan.direction}.{rank}.et" for rank in range(8)}
    assert {path.name for path in folder.iterdir()} == names
    (folder / f"{line.plan.direction}.99.et").write_bytes(b"of an older plan")
    chakra.write_chakra(comparison, folder)
    assert {path.name for path in folder.iterdir()} == names


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CharmSchedError, match=r"holds thesis\.tex"):
        chakra.check_chakra(tmp_path)
    with pytest.raises(CharmSchedError, match="there is no folder"):
        chakra.check_chakra(tmp_path / "nowhere" / "et")
    with pytest.raises(CharmSchedError, match="expected a folder"):
        chakra.check_chakra(tmp_path / "thesis.tex")


def test_without_protobuf_the_message_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chakra, "find_spec", lambda name: None)
    with pytest.raises(CharmSchedError, match=r"pip install 'charm-sched\[chakra\]'"):
        chakra.check_chakra(tmp_path)


def test_plans_by_symmetry_are_refused() -> None:
    from charm_sched.plans.symmetry import Symmetry

    made = plan(MACHINE, WORK, strategy="ring", direction="forward")
    line = simulate(made, MACHINE)
    object.__setattr__(made, "symmetry", Symmetry(shape=(8,), axes=(0,)))
    with pytest.raises(PlanError, match="needs every operation"):
        next(chakra.traces(line))


@pytest.mark.skipif(not has_reader(), reason="github.com/mlcommons/chakra is not installed")
def test_chakras_own_tools_read_them(line: Timeline, nodes: list[Any], tmp_path: Path) -> None:
    (tmp_path / "0.et").write_bytes(next(chakra.traces(line)))
    tools = (("jsonizer.jsonizer", "0.json"), ("visualizer.visualizer", "0.graphml"))
    for tool, target in tools:
        command = [sys.executable, "-m", f"chakra.src.{tool}", "--input_filename", "0.et",
                   "--output_filename", target]  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    text = (tmp_path / "0.json").read_text().replace("}{", "},{")
    _, *told = json.loads(f"[{text}]")
    assert [int(one["id"]) for one in told] == [node.id for node in nodes[0]]
    assert (tmp_path / "0.graphml").read_text().count("<node ") == len(nodes[0])
