"""Buffers on a device that queues its work: which stream waits for which, access by access.

Work is handed over in an order that is right if it runs one after the other (`ordering`). What may
run at once follows from the buffers: a stream waits for the last write before it reads, and for the
last write and all reads since before it writes. Every wait is an event; the host never waits.

A contribution with a slot of its own waits for nobody: it is copied there, and a stream beside the
one that computes (or receives) combines it when those before it have landed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from charm_sched.runtime.device import Device, Event, Stream
from charm_sched.runtime.layout import Fields
from charm_sched.runtime.memory import Memory
from charm_sched.runtime.program import Receive, Sink

Beside = Callable[[Stream], Stream]
"""Gives the stream on which what arrives on another is combined."""


@dataclass(slots=True)
class _Uses:
    """Who used a buffer last: the stream and the event behind the use."""

    write: tuple[Stream, Event] | None = None
    reads: list[tuple[Stream, Event]] = field(default_factory=list)


class Accesses:
    """Orders streams by what they read and write."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._uses: dict[Hashable, _Uses] = {}
        self._open: dict[Stream, dict[Hashable, bool]] = {}

    def touch(self, place: Hashable, *, writes: bool) -> None:
        """Let the current stream wait until it may read or write a buffer."""
        here = self._device.current()
        uses = self._uses.get(place)
        if uses is not None:
            if uses.write is not None and uses.write[0] != here:
                here.wait_event(uses.write[1])
            if writes:
                for stream, event in uses.reads:
                    if stream != here:
                        here.wait_event(event)
        marks = self._open.setdefault(here, {})
        marks[place] = writes or marks.get(place, False)

    def release(self, only: Hashable = None) -> None:
        """Note that what the current stream touched is used no further than now.

        Args:
            only: One buffer; None for all that was touched since the last call.
        """
        here = self._device.current()
        marks = self._open.get(here, {})
        done = dict(marks) if only is None else {only: marks[only]}
        if not done:
            return
        event = here.record_event()
        for place, writes in done.items():
            del marks[place]
            uses = self._uses.setdefault(place, _Uses())
            if writes:
                uses.write = (here, event)
                uses.reads.clear()
            else:
                uses.reads.append((here, event))

    def last_writer(self, place: Hashable) -> Stream | None:
        """Give the stream that wrote a buffer last; None where none has."""
        for stream, marks in self._open.items():
            if marks.get(place):
                return stream
        uses = self._uses.get(place)
        return uses.write[0] if uses is not None and uses.write is not None else None


class StreamMemory(Memory):
    """The buffers of one run on a device; see `Memory`.

    Args:
        device: The device.
        beside: Gives the stream beside one.
        arguments: What `Memory` takes.
    """

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401
        device: Device,
        beside: Beside,
        **named: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*arguments, **named)
        self._queue = device
        self._beside = beside
        self._accesses = Accesses(device)
        self._lands = False

    def touch(self, place: Hashable, *, writes: bool) -> None:
        """See `Memory`."""
        self._accesses.touch(place, writes=writes)

    def release(self) -> None:
        """End the current stream's part of a step."""
        self._accesses.release()

    def arrived(self, step: Receive, message: Tensor) -> None:
        """Take in a message, on the stream beside the current one."""
        if self.lands(step):
            with self._landing():
                super().arrived(step, message)

    def contribute(self, sink: Sink, fields: Fields, *, in_place: bool = False) -> None:
        """Add to a partial result; see `Memory`."""
        turn = self._landed[sink.version] == sink.order
        if self._lands or sink.slot is None or not turn or not self._must_wait(sink):
            super().contribute(sink, fields, in_place=in_place)
            return
        staged = self.stage(sink, fields)
        self._accesses.release(sink.slot)  # the step goes on and reads what else it touched
        with self._landing():
            self.touch(sink.slot, writes=False)
            super().contribute(sink, staged, in_place=True)

    def _must_wait(self, sink: Sink) -> bool:
        """Say whether what was combined before comes from another stream."""
        writer = self._accesses.last_writer(self.place_of(sink.version))
        return writer is not None and writer != self._queue.current()

    @contextmanager
    def _landing(self) -> Iterator[None]:
        with self._queue.on(self._beside(self._queue.current())):
            self._lands = True
            try:
                yield
            finally:
                self._lands = False
            self.release()


__all__ = ["Accesses", "StreamMemory"]
