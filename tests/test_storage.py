from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from support import cases

from charm_sched.errors import PlanError, PlanFileError
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.plans.storage import load_plan, plan_suffix, save_plan
from charm_sched.search.planning import plan as make_plan
from charm_sched.topology.graph import load_topology
from charm_sched.workload import Workload


@pytest.mark.parametrize("suffix", ["json", "npz"])
@given(plan=cases.plans())
@settings(max_examples=25)
def test_plans_round_trip(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, plan: Plan
) -> None:
    path = tmp_path_factory.mktemp("plans") / f"p.{suffix}"
    loaded = load_plan(save_plan(plan, path))
    assert isinstance(loaded, Plan)
    assert loaded.digest == plan.digest
    assert list(loaded.ops()) == list(plan.ops())
    assert (loaded.workload, loaded.partition) == (plan.workload, plan.partition)
    assert loaded.params == json.loads(json.dumps(dict(plan.params)))


@pytest.fixture
def schedule() -> Schedule:
    topology = load_topology("dual_numa_pcie")
    work = Workload(seq_len=256, heads=2, kv_heads=1, head_dim=16, dtype="fp64", mask="full")
    made = make_plan(topology, work, strategy="charm", params={"pieces": 2, "save": True})
    assert isinstance(made, Schedule)
    return made


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_schedules_round_trip_with_their_topology(
    tmp_path: Path, suffix: str, schedule: Schedule
) -> None:
    loaded = load_plan(save_plan(schedule, tmp_path / f"s.{suffix}"))
    assert isinstance(loaded, Schedule)
    assert loaded.digest == schedule.digest
    assert loaded.forward.topology is not None
    assert loaded.forward.topology.digest == load_topology("dual_numa_pcie").digest
    assert len(loaded.forward.saved) == 8 * 7 * 2


def test_json_is_canonical(tmp_path: Path, schedule: Schedule) -> None:
    first = save_plan(schedule, tmp_path / "a.json").read_bytes()
    again = load_plan(tmp_path / "a.json")
    assert save_plan(again, tmp_path / "b.json").read_bytes() == first


def _edit(path: Path, change: Callable[[dict], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def _drop_transfer(document: dict) -> None:
    ops = document["plans"][0]["ops"]
    del ops[next(i for i, op in enumerate(ops) if op.startswith("transfer"))]


def _drop_attend(document: dict) -> None:
    ops = document["plans"][0]["ops"]
    del ops[max(i for i, op in enumerate(ops) if op.startswith("attend"))]


def _other_peer(document: dict) -> None:
    ops = document["plans"][1]["ops"]
    at = next(i for i, op in enumerate(ops) if op.startswith("transfer 0 -> 1"))
    ops[at] = ops[at].replace("0 -> 1", "0 -> 2")


def _digest_byte(document: dict) -> None:
    entry = document["plans"][0]
    entry["digest"] = ("0" if entry["digest"][0] != "0" else "1") + entry["digest"][1:]


def _level(document: dict) -> None:
    ops = document["plans"][0]["ops"]
    at = max(i for i, op in enumerate(ops) if "level" in op)
    ops[at] = re.sub(r"level (\d+)", lambda m: f"level {int(m[1]) + 50}", ops[at])


def _arabic_digits(document: dict) -> None:
    document["plans"][0]["ops"][0] = document["plans"][0]["ops"][0].replace("0", "\u0660")


def _leading_zero(document: dict) -> None:
    ops = document["plans"][0]["ops"]
    at = next(i for i, op in enumerate(ops) if "level 0" in op)
    ops[at] = ops[at].replace("level 0", "level 00")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop_transfer, r"op \d+ \(.*reads kv\[.*on rank \d"),
        (_drop_attend, r"coverage: queries .* with keys .* are never attended"),
        (_other_peer, r"op \d+ \(transfer|op \d+ \(attend"),
        (_digest_byte, r"digest: the forward plan was changed after it was written: expected"),
        (_level, r"digest: the forward plan was changed"),
        (lambda d: d["workload"].update(heads=0), r"heads: expected a whole number"),
        (lambda d: d["workload"].pop("dtype"), r"check dtype"),
        (lambda d: d.pop("partition"), r"'partition' is missing"),
        (lambda d: d.update(version=9), r"version: expected 1, found 9; plan again"),
        (lambda d: d.update(schema="x"), r'expected "schema": "charm-sched/plan"'),
        (lambda d: d.update(plans=[]), r"plans: expected one or two, found 0"),
        (lambda d: d["plans"][0]["ops"].append("hop"), r"op: expected transfer, attend or merge"),
        (lambda d: d["plans"][0]["items"].append("x"), r"item: expected a form such as"),
        (lambda d: d["plans"][0].update(streams=["x"]), r"expected a stream of \('x',\), found"),
        (lambda d: d["topology"].pop("links"), r"topology"),
        (
            lambda d: d["plans"][0].update(params={"pieces": 9}),
            r"digest: the forward plan was",
        ),
        (lambda d: d["topology"].update(tiers=["pcie", "upi"]), r"digest"),
        (lambda d: d["plans"].pop(), r"digest: the file holds other plans"),
        (lambda d: d.update(version=1.0), r"version: expected 1, found 1.0"),
        (lambda d: d["partition"]["shards"][0][0].__setitem__(0, 0.0), r"expected whole numbers"),
        (_arabic_digits, r"op: expected|item: expected"),
        (_leading_zero, r"expected 'transfer .* found 'transfer "),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_edited_files_are_refused_by_name(
    tmp_path: Path, schedule: Schedule, change: Callable[[dict], None], message: str
) -> None:
    path = save_plan(schedule, tmp_path / "s.json")
    _edit(path, change)
    with pytest.raises(PlanFileError) as caught:
        load_plan(path)
    assert str(caught.value).startswith(str(path))
    assert re.search(message, str(caught.value)), caught.value


def test_every_single_byte_of_an_npz_counts(tmp_path: Path) -> None:
    plan = cases.made("ring", 2, cases.small_workload(6))
    path = save_plan(plan, tmp_path / "p.npz")
    content = path.read_bytes()
    rng = np.random.default_rng(1)
    for at in rng.choice(len(content), 200, replace=False):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            loaded = load_plan(path)
        except PlanFileError:
            continue
        assert isinstance(loaded, Plan)  # a byte that means nothing, such as a time stamp
        assert loaded.digest == plan.digest


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"PK\x03\x04", b"\xff\xfe", b'"x"'])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(PlanFileError, match="not a plan file"):
        load_plan(path)


def test_paths_that_do_not_work(tmp_path: Path) -> None:
    plan = cases.made("ring", 2, cases.small_workload(6))
    with pytest.raises(PlanFileError, match="cannot be read: No such file"):
        load_plan(tmp_path / "none.json")
    with pytest.raises(PlanFileError, match=r"ends in .json or .npz"):
        save_plan(plan, tmp_path / "p.yaml")
    with pytest.raises(PlanFileError, match="cannot be written"):
        save_plan(plan, tmp_path / "no" / "p.json")


def test_large_plans_go_to_npz() -> None:
    small = cases.made("ring", 8, cases.small_workload(16))
    large = cases.made("ring", 128, cases.small_workload(256))
    assert plan_suffix(small) == ".plan.json"
    assert plan_suffix(large) == ".plan.npz"


def test_a_schedule_of_unlike_plans_is_refused(schedule: Schedule) -> None:
    other = make_plan(
        load_topology("dual_numa_pcie"), schedule.forward.workload, strategy="ring",
        direction="backward", partition=schedule.forward.partition.kind,
    )  # fmt: skip
    assert isinstance(other, Plan)
    with pytest.raises(PlanError, match="keeps resident is not what the backward plan starts from"):
        Schedule(forward=schedule.forward, backward=other)
