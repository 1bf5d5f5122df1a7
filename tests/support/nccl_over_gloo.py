"""NCCL's rules with real processes: the stream path of the runtime over gloo.

Each communicator is a thread that runs its groups in order: all transfers of a group are posted at
once, and the next group begins when the last of them has ended. gloo does not end a send before its
receive is posted, and transfers of a pair match in the order of the calls, as with NCCL. The host
runs kernels itself, in the order in which it hands work over, and waits where a stream would: that
is a device with one hardware queue. So an order that hangs with NCCL hangs here, and says so.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from charm_sched.errors import RuntimeFailure
from charm_sched.runtime.streams import Message


class Event:
    def __init__(self) -> None:
        self.works: set[Group] = set()

    def elapsed_time(self, end: Event) -> float:
        return 0.0


class Stream:
    def __init__(self) -> None:
        self.works: set[Group] = set()

    def wait_event(self, event: Event) -> None:
        for work in event.works:
            work.finish()

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.works = set(self.works)
        return event


class HostDevice:
    """The processor as a device with one hardware queue; see the module."""

    kind = torch.device("cpu")

    def __init__(self) -> None:
        self._stack = [Stream()]

    def current(self) -> Stream:
        return self._stack[-1]

    def stream(self, *, urgent: bool) -> Stream:
        return Stream()

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        self._stack.append(stream)
        try:
            yield
        finally:
            self._stack.pop()

    def timing_event(self) -> Event:
        return Event()

    def capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        raise AssertionError("the host waits for the device")


class Running(TorchDispatchMode):
    """Lets the host wait, before an operator, for what the current stream waits for."""

    def __init__(self, device: HostDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not func.is_view:
            for work in self._device.current().works:
                work.finish()
        return func(*args, **(kwargs or {}))


class Group:
    """A group that was handed over."""

    def __init__(
        self, device: HostDevice, name: str, messages: Sequence[Message], timeout: float
    ) -> None:
        self.device, self.name, self.messages, self.timeout = device, name, messages, timeout
        self.ended = threading.Event()
        self.problem: Exception | None = None

    def wait(self) -> None:
        self.device.current().works = {self}  # those before it on the communicator have ended then

    def finish(self) -> None:
        rows = ", ".join(
            f"row {m.tag} {'to' if m.sends else 'from'} rank {m.peer}" for m in self.messages
        )
        if not self.ended.wait(self.timeout):
            raise RuntimeFailure(f"{self.name} hangs: {rows}: not within {self.timeout:g} s")
        if self.problem is not None:
            raise RuntimeFailure(f"{self.name} failed: {rows}: {self.problem}")


class GlooGroups:
    """Communicators of a rank; all ranks make as many."""

    def __init__(self, device: HostDevice, count: int, timeout: float) -> None:
        self._device, self._timeout = device, timeout
        self._queues: list[queue.SimpleQueue[Group]] = []
        for _ in range(count):
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=3 * timeout))
            self._queues.append(queue.SimpleQueue())
            threading.Thread(target=self._work, args=(group, self._queues[-1]), daemon=True).start()

    def issue(self, number: int, messages: Sequence[Message]) -> Group:
        name = f"rank {dist.get_rank()}: communicator {number}"
        group = Group(self._device, name, messages, self._timeout)
        self._queues[number].put(group)
        return group

    def abort(self) -> None:
        pass

    def _work(self, group: dist.ProcessGroup, groups: queue.SimpleQueue[Group]) -> None:
        counts: dict[tuple[int, bool], int] = defaultdict(int)
        while True:
            work = groups.get()
            try:
                under_way = []
                for message in work.messages:
                    number = counts[message.peer, message.sends]
                    counts[message.peer, message.sends] += 1
                    call = group.send if message.sends else group.recv
                    under_way.append(call([message.tensor], message.peer, number))
                for one in under_way:
                    one.wait()
            except Exception as problem:
                work.problem = problem
            work.ended.set()
