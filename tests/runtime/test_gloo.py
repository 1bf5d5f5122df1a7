"""How a transfer over gloo ends: on a thread of its own, and before its run does."""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta
from functools import partial
from typing import cast

import pytest
import torch

from charm_sched.runtime.gloo import Communicators, GlooTransport, Waiters


class Transfer:
    """A transfer under way, as torch gives it: no frame of Python holds it while it waits."""

    def __init__(self, problem: Exception | None) -> None:
        self.wait = partial(end, problem)


def end(problem: Exception | None, limit: timedelta) -> None:
    if problem is not None:
        raise problem


class Group:
    """A process group, and communicators that have no other."""

    def __init__(self, problem: Exception | None) -> None:
        self.problem = problem
        self.begun: list[weakref.ref[Transfer]] = []

    def lane(self, number: int, peer: int, *, sends: bool) -> Group:
        return self

    def send(self, messages: list[torch.Tensor], peer: int, tag: int) -> Transfer:
        transfer = Transfer(self.problem)
        self.begun.append(weakref.ref(transfer))
        return transfer

    recv = send


@pytest.mark.parametrize("problem", [None, RuntimeError("Connection closed by peer")])
@pytest.mark.parametrize("way", ["send", "receive"])
def test_transfers_are_freed_before_their_end_is_told(problem: Exception | None, way: str) -> None:
    """A run may end at once then, and the process; torch must not be freeing anything meanwhile."""
    group = Group(problem)
    transport = GlooTransport(cast("Communicators", group), Waiters(), 5.0)
    told: list[tuple[bool, str]] = []
    over = threading.Event()

    def done(failure: Exception | None) -> None:
        told.append((group.begun[0]() is None, str(failure)))
        over.set()

    getattr(transport, way)(torch.zeros(1), peer=1, lane=0, tag=3, done=done)
    assert over.wait(5.0)
    why = "None" if problem is None else "the connection was closed from the other side"
    assert told[0][0]
    assert told[0][1].startswith(why)
