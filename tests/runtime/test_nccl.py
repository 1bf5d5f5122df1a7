"""How communicators are made and groups are handed over, on a stand-in for torch.distributed."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from charm_sched.errors import RuntimeFailure
from charm_sched.runtime import nccl
from charm_sched.runtime.nccl import MOST_COMMUNICATORS, NcclGroups, check_environment
from charm_sched.runtime.streams import Message

DEVICE = torch.device("cuda", 1)


class Group:
    """A process group as far as it is looked at."""

    def __init__(self, bound: Any = None, splits: bool = True) -> None:
        self.bound_device_id = bound
        self.aborted = 0
        self.timeout: timedelta | None = None
        self.supports_splitting = splits

    def _get_backend(self, device: torch.device) -> Group:
        assert device == DEVICE
        return self

    def abort(self) -> None:
        self.aborted += 1

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout


class Operation:
    def __init__(self, call: str, tensor: torch.Tensor, peer: int, group: Group) -> None:
        self.told = call, tensor.numel(), peer
        self.group = group


class Distributed:
    """torch.distributed on four ranks, of which 1 and 3 are the group."""

    isend, irecv, P2POp, ProcessGroup = "send", "receive", Operation, Group
    ProcessGroupNCCL = SimpleNamespace(
        Options=lambda is_high_priority_stream: SimpleNamespace(urgent=is_high_priority_stream)
    )

    def __init__(self, *, world: Group, nccl: bool = True) -> None:
        self.group = SimpleNamespace(WORLD=world)
        self.made: list[tuple[str, Any, dict[str, Any]]] = []
        self.batches: list[list[Operation]] = []
        self.waits = 0
        self.is_nccl_available = lambda: nccl
        self.problem: str | None = None

    def is_available(self) -> bool:
        return True

    def get_rank(self, group: Group) -> int:
        return 1

    def get_world_size(self) -> int:
        return 4

    def get_process_group_ranks(self, group: Group) -> list[int]:
        return [1, 3]

    def new_group(self, ranks: list[int], **options: Any) -> Group:
        return self._made("new", ranks, options)

    def split_group(self, parent: Group, ranks: list[list[int]], **options: Any) -> Group:
        return self._made("split", ranks, options)

    def _made(self, how: str, ranks: Any, options: dict[str, Any]) -> Group:
        if self.problem is not None:
            raise RuntimeError(self.problem)
        self.made.append((how, ranks, options))
        return Group(DEVICE)

    def batch_isend_irecv(self, operations: list[Operation]) -> list[Any]:
        self.batches.append(operations)
        return [self]

    def wait(self) -> None:
        self.waits += 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(**options: Any) -> Distributed:
        found = Distributed(**options)
        monkeypatch.setattr(nccl, "dist", found)
        for name in ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT", "CUDA_LAUNCH_BLOCKING"):
            monkeypatch.delenv(name, raising=False)
        return found

    return put


def groups(parent: Group | None = None) -> NcclGroups:
    return NcclGroups(parent or Group(), DEVICE, 30.0)  # type: ignore[arg-type]


def test_communicators_are_bound_urgent_and_made_once(fake: Any) -> None:
    world = fake(world=Group())
    made = groups()
    made.ensure(2, 30.0)
    made.ensure(1, 30.0)
    assert [(how, ranks) for how, ranks, _ in world.made] == [("new", [1, 3])] * 2
    for _, _, options in world.made:
        assert options["backend"] == "nccl"
        assert options["device_id"] == DEVICE
        assert options["pg_options"].urgent
        assert options["use_local_synchronization"]
        assert options["timeout"] == timedelta(seconds=30)


def test_where_the_world_is_bound_they_are_split_from_the_users_group(fake: Any) -> None:
    """A new group would be split from the world, and ranks outside the group would have to come."""
    world = fake(world=Group(DEVICE))
    groups(Group(DEVICE)).ensure(1, 30.0)
    assert [(how, ranks) for how, ranks, _ in world.made] == [("split", [[0, 1]])]
    world = fake(world=Group(DEVICE))
    world.get_world_size = lambda: 2  # the group is the world: all ranks are there
    groups(Group(DEVICE, splits=False)).ensure(1, 30.0)
    assert [how for how, _, _ in world.made] == ["new"]
    fake(world=Group(DEVICE))
    with pytest.raises(RuntimeFailure, match=r"rank 1: .*no NCCL communicator to split from"):
        groups(Group(DEVICE, splits=False)).ensure(1, 30.0)


def test_a_level_is_one_group_of_transfers_in_the_order_of_rows(fake: Any) -> None:
    world = fake(world=Group())
    made = groups()
    made.ensure(1, 30.0)
    small, large = torch.zeros(3, dtype=torch.uint8), torch.zeros(5, dtype=torch.uint8)
    work = made.issue(0, [Message(small, 1, True, 4), Message(large, 1, False, 9)])
    assert [op.told for op in world.batches[0]] == [("send", 3, 3), ("receive", 5, 3)]
    assert world.waits == 0
    work.wait()
    assert world.waits == 1


def test_timeouts_follow_the_call_and_failures_end_all(fake: Any) -> None:
    fake(world=Group())
    made = groups()
    made.ensure(2, 30.0)
    made.ensure(2, 5.0)
    assert [group.timeout for group in made._groups] == [timedelta(seconds=5)] * 2  # type: ignore[attr-defined]
    made.abort()
    assert [group.aborted for group in made._groups] == [1, 1]  # type: ignore[attr-defined]


def test_what_cannot_be_is_said(fake: Any) -> None:
    fake(world=Group(), nccl=False)
    with pytest.raises(
        RuntimeFailure, match=r"rank 1: tensors on cuda:1 are sent with NCCL, which"
    ):
        groups().ensure(1, 30.0)
    fake(world=Group()).problem = "ncclInvalidUsage: Duplicate GPU detected\nmore"
    with pytest.raises(RuntimeFailure, match=r"communicator 0 on cuda:1 failed: .*Duplicate GPU d"):
        groups().ensure(1, 30.0)
    fake(world=Group())
    with pytest.raises(RuntimeFailure, match=f"at most {MOST_COMMUNICATORS} streams"):
        groups().ensure(MOST_COMMUNICATORS + 1, 30.0)


@pytest.mark.parametrize("name", ["TORCH_NCCL_BLOCKING_WAIT", "CUDA_LAUNCH_BLOCKING"])
def test_a_host_that_waits_for_each_transfer_is_refused(name: str) -> None:
    check_environment(0, {name: "0"})
    with pytest.raises(RuntimeFailure, match=f"rank 2: {name}=1: the host would wait"):
        check_environment(2, {name: "1"})
