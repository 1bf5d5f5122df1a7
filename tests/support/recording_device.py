"""A device that queues work on paper: it runs what it is given at once, and checks that it might
have run it whenever its streams and events allow.

Every torch operator that is called is an access to bytes: what it reads and what it writes.
Streams have vector clocks, events copy them. Two accesses of which one writes have to be ordered
by a stream or events; memory may be given back only when the stream it came from is behind all uses
on other streams (the caching allocator hands it out again on that stream); nothing may make the
host wait. All of it is exact, to the byte.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from charm_sched.runtime.streams import Message


class RaceError(AssertionError):
    """Two accesses that nothing orders, or memory given back too early, or a host that waits."""


class RecordedEvent:
    """A point in a stream."""

    def __init__(self, clock: dict[int, int] | None = None) -> None:
        self.clock = clock

    def elapsed_time(self, end: RecordedEvent) -> float:
        return 0.0


class RecordedStream:
    """A queue: its clock says, per stream, up to where it is ordered behind."""

    def __init__(self, device: RecordingDevice, name: str, number: int) -> None:
        self.device, self.name, self.number = device, name, number
        self.clock: dict[int, int] = {number: 0}

    def wait_event(self, event: RecordedEvent) -> None:
        if event.clock is None:
            raise RaceError(f"{self.name} waits for an event that was never recorded")
        for stream, tick in event.clock.items():
            self.clock[stream] = max(self.clock.get(stream, 0), tick)

    def record_event(self, event: RecordedEvent | None = None) -> RecordedEvent:
        event = RecordedEvent() if event is None else event
        event.clock = dict(self.clock)
        self.clock[self.number] += 1
        return event


class _Bytes:
    """Who touched each byte of a storage last."""

    def __init__(self, size: int, home: RecordedStream) -> None:
        self.home = home
        self.writer = np.full(size, -1)
        self.tick = np.zeros(size, np.int64)
        self.reads: dict[int, Any] = {}
        self.uses: dict[int, int] = {}


class RecordingDevice:
    """See the module; one per rank, used from one thread.

    Attributes:
        kind: Where its tensors really lie.
        launched: How many operators each stream was given.
        buffers: How many buffers of bytes were made: slots and messages.
    """

    kind = torch.device("cpu")

    def __init__(self) -> None:
        self.launched: dict[str, int] = {}
        self.buffers = 0
        self._storages: dict[int, _Bytes] = {}
        self._streams: dict[int, RecordedStream] = {}
        self._count = itertools.count()
        self.graph = False
        self.main = self._made("caller")
        self._stack = [self.main]

    def _made(self, name: str) -> RecordedStream:
        number = next(self._count)
        self._streams[number] = RecordedStream(self, f"{name} {number}", number)
        return self._streams[number]

    def stream(self, *, urgent: bool) -> RecordedStream:
        return self._made("urgent" if urgent else "compute")

    def current(self) -> RecordedStream:
        return self._stack[-1]

    @contextmanager
    def on(self, stream: RecordedStream) -> Iterator[None]:
        self._stack.append(stream)
        try:
            yield
        finally:
            assert self._stack.pop() is stream

    def timing_event(self) -> RecordedEvent:
        return RecordedEvent()

    def capturing(self) -> bool:
        return self.graph

    def synchronize(self) -> None:
        raise RaceError("the host waits for the device")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record all operators that this thread calls."""
        with _Recorder(self):
            yield

    def whole(
        self, kernel: Callable[..., Sequence[Tensor]], *tensors: Tensor, **options: Any
    ) -> Any:
        """Call a kernel and count it as one access of what it takes and gives."""
        for tensor in tensors:
            self.access(tensor, writes=False, what="a kernel")
        with _disable_current_modes():
            found = kernel(*tensors, **options)
        for tensor in found:
            self.access(tensor, writes=True, what="a kernel")
        return found

    def asked(self, operator: str) -> None:
        raise RaceError(f"the host waits for a value: {operator}")

    def access(
        self, tensor: Tensor, *, writes: bool, what: str, stream: RecordedStream | None = None
    ) -> None:
        """Check one access of a stream and note it."""
        stream = stream or self.current()
        if not tensor.numel():
            return
        seen = self._bytes(tensor, stream)
        at = _positions(tensor)
        tick = stream.clock[stream.number]
        writer = seen.writer[at]
        known = np.array([*(stream.clock.get(n, -1) for n in range(len(self._streams))), 0])
        known[stream.number] = tick
        late = seen.tick[at] > known[writer]  # nobody's writes, of number -1, have tick 0
        if late.any():
            other = self._streams[int(writer[late][0])].name
            raise RaceError(
                f"{stream.name}: {what} {'writes' if writes else 'reads'} what {other} wrote"
            )
        if writes:
            for number, ticks in seen.reads.items():
                if number != stream.number and (ticks[at] > known[number]).any():
                    other = self._streams[number].name
                    raise RaceError(f"{stream.name}: {what} writes what {other} reads")
            seen.writer[at], seen.tick[at] = stream.number, tick
        else:
            if stream.number not in seen.reads:
                seen.reads[stream.number] = np.full(len(seen.writer), -1)
            seen.reads[stream.number][at] = tick
        seen.uses[stream.number] = tick

    def _bytes(self, tensor: Tensor, stream: RecordedStream) -> _Bytes:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            self._storages[key] = _Bytes(storage.nbytes(), stream)
            self.buffers += tensor.dtype == torch.uint8
            weakref.finalize(storage, self._freed, key)
        return self._storages[key]

    def adopt(self, *tensors: Tensor) -> None:
        """Count tensors as written by the caller before."""
        for tensor in tensors:
            self.access(tensor, writes=True, what="the caller", stream=self.main)

    def _freed(self, key: int) -> None:
        seen = self._storages.pop(key)
        for number, tick in seen.uses.items():
            if number != seen.home.number and seen.home.clock.get(number, -1) < tick:
                self.early = (
                    f"memory of {seen.home.name} is given back while {self._streams[number].name} "
                    f"may still use it"
                )

    early: str | None = None

    def check(self) -> None:
        """Raise what was found out while memory was given back, where nothing can be raised."""
        if self.early is not None:
            raise RaceError(self.early)


class _Recorder(TorchDispatchMode):
    def __init__(self, device: RecordingDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        if any(word in name for word in ("_local_scalar_dense", "nonzero", "is_nonzero", "item")):
            self._device.asked(name)
        inputs, written = [], []
        for number, spec in enumerate(func._schema.arguments):
            value = kwargs.get(spec.name, args[number] if number < len(args) else None)
            tensors = [v for v in (value if isinstance(value, list | tuple) else [value])
                       if isinstance(v, Tensor)]  # fmt: skip
            writes = spec.alias_info is not None and spec.alias_info.is_write
            (written if writes else inputs).extend(tensors)
        result = func(*args, **kwargs)
        views = [r for r in func._schema.returns if r.alias_info is not None]
        if views and not written:
            return result  # a view touches nothing
        for tensor in inputs:
            self._device.access(tensor, writes=False, what=name)
        found = result if isinstance(result, list | tuple) else [result]
        outputs = [] if written else [t for t in found if isinstance(t, Tensor)]
        reads_too = name not in ("aten.copy_.default", "aten.fill_.Scalar", "aten.zero_.default")
        for tensor in written:
            if reads_too:
                self._device.access(tensor, writes=False, what=name)
            self._device.access(tensor, writes=True, what=name)
        for tensor in outputs:
            self._device.access(tensor, writes=True, what=name)
        here = self._device.current().name
        self._device.launched[here] = self._device.launched.get(here, 0) + 1
        return result


def _positions(tensor: Tensor) -> Any:
    """Give the bytes of a storage that a tensor covers."""
    return _covered(
        tensor.element_size(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    )


@lru_cache(maxsize=4096)
def _covered(size: int, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> Any:
    at = np.array([offset])
    for length, step in zip(shape, stride, strict=True):
        at = (at[:, None] + np.arange(length) * step).reshape(-1)
    return (at[:, None] * size + np.arange(size)).reshape(-1)


class Post:
    """Carries messages between the devices of a process: a post office for threads."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._changed = threading.Condition()
        self._letters: dict[tuple[int, int, int], list[tuple[int, Tensor]]] = {}
        self.broken: str | None = None

    def put(self, comm: int, source: int, target: int, tag: int, content: Tensor) -> None:
        with self._changed:
            self._letters.setdefault((comm, source, target), []).append((tag, content))
            self._changed.notify_all()

    def take(self, comm: int, source: int, target: int) -> tuple[int, Tensor]:
        key = (comm, source, target)
        with self._changed:
            arrived = self._changed.wait_for(
                lambda: self.broken is not None or bool(self._letters.get(key)), timeout=30
            )
            assert arrived, f"communicator {comm}: rank {target} waits for rank {source}"
            assert self.broken is None, self.broken
            return self._letters[key].pop(0)

    def give_up(self, why: str) -> None:
        with self._changed:
            self.broken = self.broken or why
            self._changed.notify_all()


class RecordedGroups:
    """The communicators of one rank; each has a stream, and runs its groups in order.

    Attributes:
        issued: Messages of each group, by communicator.
    """

    def __init__(self, device: RecordingDevice, post: Post, rank: int) -> None:
        self._device, self._post, self._rank = device, post, rank
        self._streams: dict[int, RecordedStream] = {}
        self.issued: list[tuple[int, int]] = []

    def issue(self, number: int, messages: Sequence[Message]) -> _Group:
        if number not in self._streams:
            self._streams[number] = self._device._made(f"communicator {number} on")
        stream = self._streams[number]
        stream.wait_event(self._device.current().record_event())
        self.issued.append((number, len(messages)))
        for message in messages:
            what = f"transfer of row {message.tag}"
            self._device.access(message.tensor, writes=not message.sends, what=what, stream=stream)
            if message.sends:
                with _disable_current_modes():
                    content = message.tensor.clone()
                self._post.put(number, self._rank, message.peer, message.tag, content)
        return _Group(self, number, messages, stream.record_event())

    def abort(self) -> None:
        self._post.give_up(f"rank {self._rank} gave up")


class _Group:
    def __init__(
        self, groups: RecordedGroups, number: int, messages: Sequence[Message], end: RecordedEvent
    ) -> None:
        self._groups, self._number, self._messages, self._end = groups, number, messages, end

    def wait(self) -> None:
        groups = self._groups
        for message in self._messages:
            if not message.sends:
                tag, content = groups._post.take(self._number, message.peer, groups._rank)
                assert tag == message.tag, f"row {message.tag} meets row {tag}"
                with _disable_current_modes():
                    message.tensor.copy_(content)
        groups._device.current().wait_event(self._end)
