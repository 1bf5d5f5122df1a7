"""Messages over gloo: communicators, waiting threads, and failures that end.

Two transfers on one connection of gloo run one after the other, also in opposite directions. So
every stream gets two process groups: one for messages to higher ranks, one for messages to lower
ones. gloo tells nobody when a transfer ends, so a thread waits for each that is under way.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from charm_sched.errors import RuntimeFailure
from charm_sched.runtime.memory import Memory
from charm_sched.runtime.threads import run_in_threads
from charm_sched.runtime.transport import Done

if TYPE_CHECKING:
    from charm_sched.runtime.execution import Execution

Json: TypeAlias = Any
_ABORT_TAG = 2**30  # above every row number: nobody ever sends it
_EXCHANGE_TAG = 2**30 - 1


class Waiters:
    """Threads that wait, as many as there are waits at once; idle ones are used again."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: list[threading.Thread] = []
        atexit.register(self.close)  # a thread that is inside torch when Python ends aborts it

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job on a thread that nothing else waits on."""
        with self._lock:
            self._jobs.put(job)
            if self._idle:
                self._idle -= 1
                return
        thread = threading.Thread(target=self._work, name="charm-wait", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """End the threads that nothing waits on; those that still wait get a second."""
        for _ in self._threads:
            self._jobs.put(None)
        end = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job
            with self._lock:
                self._idle += 1


class Communicators:
    """The process groups of a run: one for control, two per stream.

    Attributes:
        rank: This rank in the group.
        size: Ranks in the group.
        control: Group for what all ranks agree on.
        failure: What ended the use of these groups, once something has.
    """

    def __init__(self, group: dist.ProcessGroup, timeout: float) -> None:
        self._members = dist.get_process_group_ranks(group)
        self._lanes: list[tuple[dist.ProcessGroup, dist.ProcessGroup]] = []
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.failure: RuntimeFailure | None = None
        self.control = self._new_group(timeout)

    def ensure(self, lanes: int, timeout: float) -> None:
        """Make the groups of the first ``lanes`` streams; all ranks must call alike.

        Raises:
            RuntimeFailure: Some rank did not connect within the timeout.
        """
        while self.size > 1 and len(self._lanes) < lanes:
            self._lanes.append((self._new_group(timeout), self._new_group(timeout)))

    def check(self) -> None:
        """Refuse to go on after a failure.

        Raises:
            RuntimeFailure: The group failed before.
        """
        if self.failure is not None:
            raise RuntimeFailure(
                f"rank {self.rank}: this group failed before and cannot be used again: "
                f"{self.failure}"
            )

    def give_up(self, failure: RuntimeFailure) -> None:
        """Note that the group has failed, and let no other rank wait for this one."""
        if self.failure is None:
            self.failure = failure
        self.abort()

    def lane(self, number: int, peer: int, *, sends: bool) -> dist.ProcessGroup:
        """Give the group that carries messages to (or from) a peer on a stream."""
        upward = (peer > self.rank) == sends
        return self._lanes[number][0 if upward else 1]

    def abort(self) -> None:
        """Close all connections, so that no rank waits for this one, now or in a later call.

        gloo cannot cancel; but a receive that times out closes all connections of its group.
        """
        peer = self.member((self.rank + 1) % self.size)
        if self.size == 1:
            return
        for group in (self.control, *(group for lane in self._lanes for group in lane)):
            with contextlib.suppress(RuntimeError):
                nothing = torch.empty(1, dtype=torch.uint8)
                work = dist.irecv(nothing, peer, group=group, tag=_ABORT_TAG)
                assert work is not None
                work.wait(timedelta(milliseconds=1))

    def member(self, rank: int) -> int:
        """Give the global rank of a rank of the group."""
        return int(self._members[rank])

    def gather(self, value: Json, timeout: float) -> list[Json]:
        """Give the values of all ranks, in rank order; tuples come back as lists.

        Raises:
            RuntimeFailure: Some rank did not answer within the timeout.
        """
        if self.size == 1:
            return [value]
        payload = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = self.exchange(torch.tensor([len(payload)]), timeout)
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(payload)] = payload
        gathered = self.exchange(padded, timeout)
        return [
            json.loads(data[: int(length)].numpy().tobytes())
            for data, length in zip(gathered, lengths, strict=True)
        ]

    def exchange(self, mine: Tensor, timeout: float) -> list[Tensor]:
        """Give the tensors of all ranks, of one shape, in rank order.

        Every rank sends to every other, so it takes one message's time, a silent rank is known by
        name, and the timeout is the call's rather than the group's.

        Raises:
            RuntimeFailure: Some rank did not answer within the timeout; the group has failed.
        """
        self.check()
        found = [mine if rank == self.rank else torch.empty_like(mine) for rank in range(self.size)]
        deadline = time.monotonic() + timeout
        peer = self.rank
        try:
            works: list[tuple[int, dist.Work]] = []
            for receives in (True, False):
                for peer in self._others():
                    work = (
                        self.control.recv([found[peer]], peer, _EXCHANGE_TAG)
                        if receives
                        else self.control.send([mine], peer, _EXCHANGE_TAG)
                    )
                    works.append((peer, work))
            while works:
                peer, work = works.pop(0)
                work.wait(_wait(deadline - time.monotonic()))
        except RuntimeError as error:
            failure = RuntimeFailure(
                f"rank {self.rank}: agreeing with rank {peer} failed: {reason(error, timeout)}"
            )
            self.give_up(failure)
            raise failure from error
        return found

    def _others(self) -> list[int]:
        """List the other ranks, from the next one on, so that not all send to one at first."""
        return [(self.rank + distance) % self.size for distance in range(1, self.size)]

    def _new_group(self, timeout: float) -> dist.ProcessGroup:
        try:
            made = dist.new_group(
                self._members,
                backend="gloo",
                timeout=_wait(timeout),
                use_local_synchronization=True,
            )
        except RuntimeError as error:
            failure = RuntimeFailure(
                f"rank {self.rank}: connecting to the other ranks failed: {reason(error, timeout)}"
            )
            if hasattr(self, "control"):
                self.give_up(failure)
            raise failure from error
        assert isinstance(made, dist.ProcessGroup)
        return made


class GlooTransport:
    """Carries the messages of one run; see `charm_sched.runtime.transport.Carrier`.

    Attributes:
        memory: What makes the buffers of a run.
    """

    memory: Callable[..., Memory] = Memory

    def __init__(self, communicators: Communicators, waiters: Waiters, timeout: float) -> None:
        self._communicators = communicators
        self._waiters = waiters
        self._timeout = timeout
        self._limit = _wait(timeout)

    def send(self, message: Tensor, *, peer: int, lane: int, tag: int, done: Done) -> None:
        """Send bytes to a peer."""
        group = self._communicators.lane(lane, peer, sends=True)
        self._follow(partial(group.send, [message], peer, tag), done)

    def receive(self, message: Tensor, *, peer: int, lane: int, tag: int, done: Done) -> None:
        """Fill a buffer with what a peer sends."""
        group = self._communicators.lane(lane, peer, sends=False)
        self._follow(partial(group.recv, [message], peer, tag), done)

    def drive(self, execution: Execution) -> None:
        """Run a rank's program to its end; see `Carrier`."""
        run_in_threads(execution, self)

    def abort(self) -> None:
        """End everything under way, here and on the peers, after a failure."""
        self._communicators.abort()

    def _follow(self, post: Callable[[], dist.Work], done: Done) -> None:
        """Post a transfer, and have a thread wait for its end."""
        try:
            held = [post()]
        except RuntimeError as error:
            raise RuntimeFailure(reason(error, self._timeout)) from error

        def wait() -> None:
            failure: Exception | None = None
            work = held.pop()
            try:
                work.wait(self._limit)
            except Exception as error:
                failure = RuntimeFailure(reason(error, self._timeout))
                failure.__cause__ = error
            # Freed before the run can end: torch frees it without the interpreter's lock and takes
            # that again, which aborts the process if the interpreter is ending meanwhile.
            del work
            done(failure)

        self._waiters.submit(wait)


def _wait(seconds: float) -> timedelta:
    """Give a time to wait; torch counts whole milliseconds, and takes none as no limit."""
    return timedelta(milliseconds=max(1, round(seconds * 1000)))


def reason(error: Exception, timeout: float) -> str:
    """Say in words what gloo's message means."""
    text = str(error)
    if any(word in text.lower() for word in ("timed out", "wait timeout")):
        return f"no answer within {timeout:g} s"
    if "timeout caused pair closure" in text:
        return "the connection was given up after another failure on this rank"
    if "closed by peer" in text or "reset by peer" in text or "Broken pipe" in text:
        return "the connection was closed from the other side; that rank failed or ended"
    return text.strip().splitlines()[0][:200] if text.strip() else type(error).__name__
