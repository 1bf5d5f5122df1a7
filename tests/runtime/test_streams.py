"""The path for devices that queue their work, on a device that finds every race."""

from __future__ import annotations

import gc
from typing import Any

import attention_cases as cases
import pytest
import torch
from custom_planners import query_moving, scattered
from recorded_runs import Rank, run_recorded
from support.cases import ranks_for
from support.recording_device import RaceError, RecordingDevice

from charm_sched.planners import PLANNERS
from charm_sched.runtime.device import check_connections
from charm_sched.runtime.stream_memory import Accesses
from charm_sched.runtime.streams import plan_lanes
from charm_sched.workload import Workload


def workload(seq_len: int = 14, **other: Any) -> Workload:
    shape = {"heads": 4, "kv_heads": 2, "head_dim": 2, "dtype": "fp64"}
    return Workload(seq_len=seq_len, **shape | other)


def check(schedule: Any, work: Workload, **options: Any) -> None:
    tensors = cases.make_tensors(work)
    found = run_recorded(schedule, tensors, **options)
    wrong = cases.errors(found, cases.dense_attention(work, *tensors))
    assert max(wrong.values()) < 1e-10, wrong


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", PLANNERS)
def test_no_strategy_races(name: str, ranks: int) -> None:
    partition, mask = (("zigzag", "causal"), ("contiguous", "full"))[ranks % 2]
    work = workload(mask=mask, heads=cases.heads_for(name, ranks, 4))
    check(cases.make_schedule(name, work, partition, ranks_for(name, ranks)), work)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [6, 8])
@pytest.mark.parametrize("name", PLANNERS)
def test_no_strategy_races_on_more_ranks(name: str, ranks: int) -> None:
    work = workload(16, heads=cases.heads_for(name, ranks, 2), kv_heads=1, head_dim=2)
    check(cases.make_schedule(name, work, "zigzag", ranks_for(name, ranks)), work)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("charm", {"save": True}),
        ("charm", {"pieces": 2, "remerge": False}),
        ("charm", {"domains": ((0, 1), (2, 3)), "pieces": 2}),
        ("ulysses", {"chunks": 2, "save": True}),
        ("usp", {"degree": 2, "inside": "ring"}),
        ("all_gather", {"chunks": 2, "save": True, "algorithm": "direct"}),
        ("mesh", {"tile_rows": 2}),
        ("pass_q", {"direct": False}),
        (query_moving, {}),
    ],
)
def test_no_variant_races(name: Any, params: dict[str, Any]) -> None:
    work = workload()
    check(cases.make_schedule(name, work, "zigzag", 4, params), work, repeat=2)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_that_verifies_races(seed: int) -> None:
    work = workload(17, mask=("full", "causal", "window:5", "docs:5,1,11")[seed % 4])
    schedule = cases.make_schedule(scattered, work, "zigzag", 2 + seed % 4, {"seed": seed})
    check(schedule, work, repeat=2)


def test_partial_results_may_travel_in_another_dtype() -> None:
    work = workload(grad_dtype="fp32")
    schedule = cases.make_schedule("charm", work, "zigzag", 4)
    tensors = cases.make_tensors(work)
    found = run_recorded(schedule, tensors)
    assert max(cases.errors(found, cases.dense_attention(work, *tensors)).values()) < 1e-5


def test_results_are_those_of_the_other_paths_to_the_bit() -> None:
    work = workload(dtype="fp32")
    for name, params in (("ring", {}), ("charm", {"pieces": 2}), (scattered, {"seed": 3})):
        schedule = cases.make_schedule(name, work, "zigzag", 4, params)
        tensors = cases.make_tensors(work)
        pairs = zip(
            run_recorded(schedule, tensors),
            cases.run_in_process(schedule, tensors, backend="reference"),
            strict=True,
        )
        assert all(torch.equal(*pair) for pair in pairs)


def test_a_level_is_one_group_and_a_stream_one_communicator() -> None:
    work = workload()
    schedule = cases.make_schedule("ring", work, "contiguous", 4)
    crew: list[Rank] = []
    run_recorded(schedule, cases.make_tensors(work), ranks=crew)
    assert [count for number, count in crew[0].groups.issued if number == 0][:3] == [2, 2, 2]
    used = {number for number, _ in crew[0].groups.issued}
    assert used == set(range(max(len(plan_lanes(plan)) for plan in schedule.plans)))


@pytest.mark.parametrize("name", ["ring", "charm", "ulysses"])
def test_messages_and_slots_are_allocated_once(name: str) -> None:
    work = workload()
    schedule = cases.make_schedule(name, work, "zigzag", 3)
    counts = []
    for repeat in (1, 3):
        crew: list[Rank] = []
        run_recorded(schedule, cases.make_tensors(work), ranks=crew, repeat=repeat)
        counts.append([rank.device.buffers for rank in crew])
    assert counts[0] == counts[1]
    assert all(count > 0 for count in counts[0])


@pytest.mark.parametrize("settled", [True, False])
def test_kept_buffers_are_given_back_behind_all_uses(settled: bool) -> None:
    work = workload(grad_dtype="fp32")  # so that messages are unpacked on a stream beside
    schedule = cases.make_schedule("charm", work, "zigzag", 4)
    crew: list[Rank] = []
    run_recorded(schedule, cases.make_tensors(work), ranks=crew)
    for rank in crew:
        if settled:
            rank.pool.settle()
        rank.prepared.clear()
    gc.collect()
    early = [rank.device.early for rank in crew if rank.device.early]
    assert bool(early) != settled, early


BROKEN = {
    "waits": lambda patch: patch.setattr(Accesses, "touch", _touch_without_waiting),
    "release": lambda patch: patch.setattr(Accesses, "release", _release_nothing),
    "step": lambda patch: patch.setattr(Accesses, "release", _release_all),
}


def _touch_without_waiting(self: Accesses, place: Any, *, writes: bool) -> None:
    self._open.setdefault(self._device.current(), {})[place] = writes  # type: ignore[index]


def _release_all(self: Accesses, only: Any = None, release: Any = Accesses.release) -> None:
    """End a step when a part of it has ended: kernels behind that still read."""
    release(self)


def _release_nothing(self: Accesses, only: Any = None) -> None:
    self._open.pop(self._device.current(), None)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("ring", "waits"), ("charm", "waits"), ("ulysses", "release"), ("mesh", "release"),
        ("pass_q", "step"),
    ],
)  # fmt: skip
def test_a_missing_wait_is_found(name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work = workload()
    params = {"direct": False} if name == "pass_q" else None
    schedule = cases.make_schedule(name, work, "zigzag", 4, params)
    BROKEN[what](monkeypatch)
    repeat = 2 if what == "step" else 1
    with pytest.raises(Exception, match=r"reads what .* wrote|writes what .* (reads|wrote)"):
        run_recorded(schedule, cases.make_tensors(work), repeat=repeat)


def test_work_that_is_handed_over_too_early_is_named() -> None:
    work = workload()
    schedule = cases.make_schedule("ring", work, "contiguous", 4)

    def swap(script: Any) -> None:
        order = list(script.order)
        at = [i for i, one in enumerate(order) if not isinstance(one, int)]
        order[at[0]], order[at[1]] = order[at[1]], order[at[0]]
        script.__dict__["order"] = tuple(order)

    with pytest.raises(Exception, match=r"rank \d: op \d+ .*handed over before what it waits for"):
        run_recorded(schedule, cases.make_tensors(work), change=swap)


def test_the_device_finds_races_of_every_kind() -> None:
    device = RecordingDevice()
    other = device.stream(urgent=False)
    with device.recording():
        x = torch.zeros(4)
        with pytest.raises(RaceError, match="reads what caller 0 wrote"), device.on(other):
            x + 1
        other.wait_event(device.main.record_event())
        with device.on(other):
            _ = x + 1
        with pytest.raises(RaceError, match="writes what compute 1 reads"):
            x.fill_(2)
        device.main.wait_event(other.record_event())
        x.fill_(2)
        with pytest.raises(RaceError, match="the host waits for a value"):
            bool(x.any())
        with device.on(other):  # halves of one tensor are not in each other's way
            x[:2].fill_(1) if other.clock.get(0, 0) >= 2 else None
        y = torch.zeros(3)
        other.wait_event(device.main.record_event())
        with device.on(other):
            y.add_(1)
        del y
    with pytest.raises(RaceError, match="memory of caller 0 is given back while compute 1"):
        device.check()


@pytest.mark.parametrize(("connections", "streams"), [("1", 2), ("8", 9), (None, 9), ("32", 33)])
def test_too_few_connections_are_told(connections: str | None, streams: int) -> None:
    environment = {} if connections is None else {"CUDA_DEVICE_MAX_CONNECTIONS": connections}
    with pytest.warns(RuntimeWarning, match=f"uses {streams} CUDA streams, but .* through"):
        check_connections(streams, environment)
    check_connections(streams - 1, environment)
