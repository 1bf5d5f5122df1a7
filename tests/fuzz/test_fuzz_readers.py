"""A short campaign, what campaigns found before, and inputs that are large on purpose."""

from __future__ import annotations

import io
import json
import random
import sys
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from campaign import Tally, fault_of, main, make_input, run
from mutate import mutated
from targets import TOPOLOGY, Target, targets

from charm_sched.errors import CharmSchedError, PlanFileError, TopologyError, cut_long
from charm_sched.plans import storage
from charm_sched.topology.file import parse_topology

NAMES = tuple(targets())
FOUND = sorted((Path(__file__).parent / "found").iterdir())
SHORT = 25


@pytest.mark.parametrize("name", NAMES)
def test_a_short_campaign_finds_nothing(name: str) -> None:
    tally = Tally()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(targets()[name], tally, SHORT, time.monotonic() + 60, None)
    assert tally.faults == {}
    assert tally.inputs > 0


@pytest.mark.parametrize("name", NAMES)
def test_seeds_are_accepted_and_damage_is_not_all_refused(name: str) -> None:
    """Otherwise only the first lines of a reader would be fuzzed."""
    target = targets()[name]
    assert any(fault_of(target, seed) == ("", True) for seed in target.seeds)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_what_was_found_stays_fixed(path: Path) -> None:
    target = targets()[path.name.rpartition("-")[0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fault_of(target, path.read_bytes())[0] == ""


def test_an_input_is_given_by_its_number() -> None:
    target = targets()["topo-m"]
    assert make_input(target, 7) == make_input(target, 7)
    assert len({make_input(target, i) for i in range(50)}) > 40


def test_faults_are_told_from_fine_ends() -> None:
    def crash(data: bytes) -> None:
        raise (TopologyError("told") if data == b"a" else KeyError("x"))

    target = Target("t", (b"",), crash)
    assert fault_of(target, b"a") == ("", False)
    assert fault_of(target, b"b")[0].startswith("KeyError")


def test_a_campaign_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("campaign.resource.setrlimit", lambda *args: None)
    arguments = ["edge-list", "--state", str(tmp_path)]
    with warnings.catch_warnings():
        assert main([*arguments, "--inputs", "5"]) == 0
        assert main([*arguments, "--inputs", "9"]) == 0
    assert json.loads((tmp_path / "edge-list.json").read_text())["inputs"] == 9
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("edge-list")


def test_mutations_reach_every_form() -> None:
    draw = random.Random(1)
    for name in ("topo-m", "topology-json", "plan-json", "plan-npz"):
        target = targets()[name]
        for _ in range(30):
            assert isinstance(mutated(draw, target.seeds, target.form), bytes)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB, "[" * 100_000, "a: " * 5000 + "b", "- " * 100_000, "x" * 10**7, "? " * 50_000,
        TOPOLOGY.replace("s0..1, template", "s0..199999, template"),
        TOPOLOGY.replace("gpu0..1, profile", "gpu0..99999999, profile"),
        TOPOLOGY.replace("- none", f"- {'9' * 100_000}"), "a: !!python/object:os.system x",
        TOPOLOGY.replace("1 TFLOP/s, fp16", f"{'1' * 5000} TFLOP/s, fp16"), "%YAML 9.9\n---\n",
    ],
    ids=range(12),
)  # fmt: skip
def test_topologies_that_are_large_on_purpose_end_soon(text: str) -> None:
    began = time.process_time()
    with pytest.raises(TopologyError) as caught:
        parse_topology(text, where="x")
    assert time.process_time() - began < 30
    assert len(str(caught.value)) < 5000


def packed(shape: str, content: bytes = b"") -> bytes:
    """Give an archive whose header claims an array of some shape."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.npy", member)
    return stream.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 10**7, b'{"a":' * 10**6, b"0" * 10**7, b"PK", b"", b"\x00" * 1000,
        packed("(10**15,)"), packed("(1000000000000000,)"), packed("(-5,)"),
        packed("(268435456,)", bytes(2**28)),
    ],
    ids=range(10),
)  # fmt: skip
def test_plans_that_are_large_on_purpose_end_soon(data: bytes) -> None:
    began = time.process_time()
    with pytest.raises(PlanFileError):
        storage.from_bytes(data, "x")
    assert time.process_time() - began < 20


def test_what_unpacks_to_too_much_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(storage.MOST_BYTES, ".npz", 10**6)
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(PlanFileError, match="expected at most 1000000 bytes, unpacked 2000"):
        storage.from_bytes(packed("(2000000,)", bytes(2 * 10**6)), "x")


def test_files_beyond_the_limit_are_refused_by_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.json"
    path.write_text("{}" + " " * 200)
    monkeypatch.setitem(storage.MOST_BYTES, ".npz", 100)
    with pytest.raises(PlanFileError, match="expected at most 100 bytes"):
        storage.load_plan(path)


@pytest.mark.parametrize("value", ["x" * 10**6, "'" + "a b " * 10**5 + "'", "no end " * 10**5])
def test_messages_repeat_no_value_at_length(value: str) -> None:
    for message in (cut_long(f"x: expected a name, found {value}"),
                    str(CharmSchedError(f"x: expected a name, found {value}")),
                    str(TopologyError(f"x: expected a name, found {value}"))):  # fmt: skip
        assert len(message) <= 4000
        assert message.startswith("x: expected a name, found ")
        assert "..." in message
    assert cut_long("x: expected a, found 'b c'") == "x: expected a, found 'b c'"
