"""Hands a rank's program to a device that queues its work: streams, events, groups of transfers.

The plan's compute streams and communicators become streams of the device; the first compute stream
is the caller's own. The host hands everything over in the common order (`ordering`) and returns
before any of it has run; the caller's stream waits for the end of it, so what the caller queues
behind it sees the results. No step waits on the host, and nothing is allocated per step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from charm_sched.errors import RuntimeFailure
from charm_sched.plans.plan import TRANSFER, Plan
from charm_sched.proof.hazards import Hazards
from charm_sched.runtime.device import Device, Event, Stream, Work, check_connections
from charm_sched.runtime.execution import Execution, Observer
from charm_sched.runtime.memory import Memory
from charm_sched.runtime.ordering import Batch, issue_order
from charm_sched.runtime.program import Program, Receive, Send
from charm_sched.runtime.stream_memory import StreamMemory
from charm_sched.runtime.transport import Done


@dataclass(frozen=True, slots=True)
class Message:
    """One end of a transfer.

    Attributes:
        tensor: ``[nbytes]`` uint8, to send or to fill.
        peer: The other rank.
        sends: Whether it is sent.
        tag: Its row in the plan.
    """

    tensor: Tensor
    peer: int
    sends: bool
    tag: int


class Groups(Protocol):
    """The communicators of a session."""

    def issue(self, number: int, messages: Sequence[Message]) -> Work:
        """Hand a group of transfers to a communicator, behind the current stream.

        Args:
            number: Number of the communicator.
            messages: In an order in which both ends of a pair agree.
        """

    def abort(self) -> None:
        """End everything under way."""


class Script:
    """A program in the order in which it is handed over.

    Attributes:
        program: The program.
        lanes: The communicator of each stream that has transfers.
    """

    def __init__(self, program: Program, hazards: Hazards | None = None) -> None:
        self.program = program
        self._hazards = hazards
        self.lanes = plan_lanes(program.plan)

    @cached_property
    def order(self) -> tuple[tuple[int, ...] | int, ...]:
        """Numbers of the steps: one that computes, or those of a batch."""
        number = {step.row: at for at, step in enumerate(self.program.steps)}
        order = issue_order(self.program.plan, self.program.rank, self._hazards)
        self._hazards = None
        return tuple(
            tuple(number[row] for row in work.rows) if isinstance(work, Batch) else number[work]
            for work in order
        )


def plan_lanes(plan: Plan) -> dict[int, int]:
    """Number the streams of a plan that have transfers, on whatever rank: one communicator each."""
    columns = plan.columns
    streams = np.unique(columns.stream[columns.op == TRANSFER]).tolist()
    return {int(stream): number for number, stream in enumerate(streams)}


class StreamPool:
    """The streams of a session, made when they are first used.

    Args:
        device: The device.
        notice: Is told how many streams a pass used, whenever that is more than before.

    Attributes:
        device: The device.
        ended: Behind the last pass, which the next one follows: they share buffers.
    """

    def __init__(self, device: Device, notice: Callable[[int], None] = check_connections) -> None:
        self.device = device
        self.ended: Event | None = None
        self._notice, self._most = notice, 0
        self._named: dict[tuple[str, int], Stream] = {}
        self._beside: dict[Stream, Stream] = {}
        self._callers: dict[Stream, None] = {}

    def begin(self, caller: Stream) -> None:
        """Put a caller's stream behind the last pass."""
        self._callers[caller] = None
        if self.ended is not None:
            caller.wait_event(self.ended)

    def settle(self) -> None:
        """Put all streams behind the last pass, before buffers are given back.

        What is given back may be handed out again on the stream that it was made on, while other
        streams still use it.
        """
        if self.ended is not None:
            for stream in (*self._callers, *self._named.values(), *self._beside.values()):
                stream.wait_event(self.ended)

    def named(self, kind: str, number: int) -> Stream:
        """Give a stream for transfers (urgent) or for computation."""
        key = (kind, number)
        if key not in self._named:
            self._named[key] = self.device.stream(urgent=kind == "transfer")
        return self._named[key]

    def beside(self, stream: Stream) -> Stream:
        """Give the stream on which what another brings is combined."""
        if stream not in self._beside:
            self._beside[stream] = self.device.stream(urgent=True)
        return self._beside[stream]

    def count(self, streams: int) -> None:
        """Take note of how many streams a pass used."""
        if streams > self._most:
            self._most = streams
            self._notice(streams)


class StreamCarrier:
    """Runs one pass of a rank on a device; see `charm_sched.runtime.transport.Carrier`."""

    def __init__(self, script: Script, pool: StreamPool, groups: Groups) -> None:
        self._script, self._pool, self._groups = script, pool, groups
        self._device = pool.device
        self._messages: list[Message] = []
        self._memory: StreamMemory | None = None
        self._used: dict[Stream, None] = {}
        self._clock: _Clock | None = None
        self._first_stream: int | None = None
        self._at = 0  # the step that is handed over, for messages

    @property
    def memory(self) -> Callable[..., Memory]:
        """See `Carrier`."""

        def made(*arguments: Any, **named: Any) -> Memory:  # noqa: ANN401
            self._memory = StreamMemory(
                *arguments, device=self._device, beside=self._joined_beside, **named
            )
            return self._memory

        return made

    def send(self, message: Tensor, *, peer: int, lane: int, tag: int, done: Done) -> None:
        """Put a message into the group that is being made."""
        self._messages.append(Message(message, peer, True, tag))

    def receive(self, message: Tensor, *, peer: int, lane: int, tag: int, done: Done) -> None:
        """Put a buffer into the group that is being made."""
        self._messages.append(Message(message, peer, False, tag))

    def abort(self) -> None:
        """See `Carrier`."""
        self._groups.abort()

    def drive(self, execution: Execution) -> None:
        """Hand all of a rank's program to the device; see `Carrier`."""
        caller = self._device.current()
        self._pool.begin(caller)
        self._begin = caller.record_event()
        self._used = {caller: None}
        observer, execution.observer = execution.observer, None
        self._clock = None if observer is None else _Clock(self._device)
        self._hand_over(execution, caller)
        for stream in self._used:
            if stream != caller:
                caller.wait_event(stream.record_event())
        self._pool.ended = caller.record_event()
        self._pool.count(len(self._used) + len(self._script.lanes))
        if self._clock is not None and observer is not None:
            self._clock.tell(observer)

    def _hand_over(self, execution: Execution, caller: Stream) -> None:
        ready = set(execution.first())
        for work in self._script.order:
            numbers = (work,) if isinstance(work, int) else work
            number = next((n for n in numbers if n not in ready), numbers[0])
            if number not in ready:
                raise execution.failure(
                    number, RuntimeFailure("it is handed over before what it waits for")
                )
            try:
                if isinstance(work, int):
                    self._compute(execution, work, caller)
                else:
                    self._transfer(execution, work)
                for number in numbers:
                    ready.update(execution.finish(number))
            except Exception as error:
                self.abort()
                raise execution.failure(self._at, error) from error

    def _compute(self, execution: Execution, number: int, caller: Stream) -> None:
        row = self._script.program.steps[number].row
        stream = self._compute_stream(row, caller)
        self._at = number
        with self._device.on(stream), self._timed(stream, (row,)):
            execution.compute(number)
            self._released()

    def _compute_stream(self, row: int, caller: Stream) -> Stream:
        plan = self._script.program.plan
        number = int(plan.columns.stream[row])
        if self._first_stream is None:
            self._first_stream = number
        if number == self._first_stream:
            return caller
        return self._joined(self._pool.named("compute", number))

    def _transfer(self, execution: Execution, numbers: tuple[int, ...]) -> None:
        steps = self._script.program.steps
        first = steps[numbers[0]]
        assert isinstance(first, Send | Receive)
        communicator = self._script.lanes[first.lane]
        stream = self._joined(self._pool.named("transfer", communicator))
        with self._device.on(stream):
            with self._timed(stream, [steps[number].row for number in numbers]):
                for number in numbers:
                    self._at = number
                    execution.post(number, _nobody)
                messages, self._messages = self._messages, []
                self._groups.issue(communicator, messages).wait()
                self._released()
            for number in numbers:
                self._at = number
                execution.land(number)

    def _timed(self, stream: Stream, rows: Sequence[int]) -> AbstractContextManager[None]:
        return nullcontext() if self._clock is None else self._clock.span(stream, rows)

    def _released(self) -> None:
        assert self._memory is not None, "the run's buffers come from this carrier"
        self._memory.release()

    def _joined(self, stream: Stream) -> Stream:
        """Let a stream begin behind what the caller queued before."""
        if stream not in self._used:
            self._used[stream] = None
            stream.wait_event(self._begin)
        return stream

    def _joined_beside(self, stream: Stream) -> Stream:
        return self._joined(self._pool.beside(stream))


class _Clock:
    """When the device did what, on the clock of the host; asking for it makes the host wait."""

    def __init__(self, device: Device) -> None:
        self._device = device
        device.synchronize()
        self._begin = device.timing_event()
        device.current().record_event(self._begin)
        self._zero = time.monotonic()
        self._spans: list[tuple[Sequence[int], Event, Event]] = []

    @contextmanager
    def span(self, stream: Stream, rows: Sequence[int]) -> Iterator[None]:
        """Take the time of what is queued inside."""
        start, end = self._device.timing_event(), self._device.timing_event()
        stream.record_event(start)
        yield
        stream.record_event(end)
        self._spans.append((rows, start, end))

    def tell(self, observer: Observer) -> None:
        """Tell an observer all times, after the end of everything."""
        self._device.synchronize()
        for rows, start, end in self._spans:
            for row in rows:
                observer.started(row, self._zero + self._begin.elapsed_time(start) / 1e3)
                observer.ended(row, self._zero + self._begin.elapsed_time(end) / 1e3)


def _nobody(error: Exception | None) -> None:
    """Be told of the end of a transfer; on a device nobody is."""


__all__ = ["Groups", "Message", "Script", "StreamCarrier", "StreamPool", "plan_lanes"]
