"""One run of one rank's program: what is ready, and what doing it means.

A driver (`threads`, `together`) decides when and on which thread; this module decides nothing about
time. The order of results never depends on it: a step becomes ready when all it waits for has
ended, and contributions are combined in the plan's order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from charm_sched.errors import CharmSchedError, RuntimeFailure
from charm_sched.runtime import compute
from charm_sched.runtime.kernels import Kernel
from charm_sched.runtime.memory import Memory
from charm_sched.runtime.program import Combine, Compute, Program, Receive, Send, Step
from charm_sched.runtime.transport import Done, Transport


class Observer(Protocol):
    """Is told when each step of a rank starts and ends."""

    def started(self, row: int, when: float) -> None:
        """A step was started or posted at ``when``, in seconds of `time.monotonic`."""

    def ended(self, row: int, when: float) -> None:
        """A step ended at ``when``."""


class Execution:
    """One run of one rank's program.

    Attributes:
        program: The program.
        left: Steps that have not ended.
        observer: Is told when steps start and end; a driver with a clock of its own takes it away.
    """

    def __init__(
        self,
        program: Program,
        memory: Memory,
        kernel: Kernel,
        transport: Transport,
        *,
        scale: float,
        observer: Observer | None = None,
        pace: Sequence[float] | None = None,
    ) -> None:
        """Set a run up.

        With ``pace`` nothing is computed: each row's kernel takes that many seconds instead. The
        memory should be idle then.
        """
        self.program = program
        self.left = len(program.steps)
        self._memory = memory
        self._kernel = kernel
        self._transport = transport
        self._scale = scale
        self.observer = observer
        self._pace = pace
        self._lock = threading.Lock()
        self._waits = list(program.waits)
        self._gate_left = [len(before) for before, _ in program.gates]
        self._gates_of: dict[int, int] = {
            number: gate for gate, (before, _) in enumerate(program.gates) for number in before
        }
        self._messages: dict[int, Tensor] = {}

    def first(self) -> list[int]:
        """Give the steps that wait for nothing."""
        return self._receives_first([i for i, waits in enumerate(self._waits) if not waits])

    def is_transfer(self, number: int) -> bool:
        """Say whether a step is an end of a transfer."""
        return isinstance(self.program.steps[number], Send | Receive)

    def finish(self, number: int) -> list[int]:
        """Note that a step has ended; give the steps that are ready now."""
        if self.observer is not None:
            self.observer.ended(self.program.steps[number].row, time.monotonic())
        with self._lock:
            self.left -= 1
            freed = list(self.program.releases[number])
            gate = self._gates_of.get(number)
            if gate is not None:
                self._gate_left[gate] -= 1
                if not self._gate_left[gate]:
                    freed += self.program.gates[gate][1]
            ready = []
            for after in freed:
                self._waits[after] -= 1
                if not self._waits[after]:
                    ready.append(after)
        return self._receives_first(ready)

    def post(self, number: int, done: Done) -> None:
        """Hand an end of a transfer to the transport."""
        step = self.program.steps[number]
        assert isinstance(step, Send | Receive)
        if isinstance(step, Send):
            message, carry = self._memory.message_to_send(step), self._transport.send
        else:
            message, carry = self._memory.message_to_receive(step), self._transport.receive
        self._messages[number] = message
        self._observe_start(step.row)
        carry(message, peer=step.peer, lane=step.lane, tag=step.row, done=done)

    def packed_bytes(self, number: int) -> int:
        """Give how many bytes are copied before a transfer can be sent."""
        step = self.program.steps[number]
        return self._memory.packed_bytes(step) if isinstance(step, Send) else 0

    def land(self, number: int) -> None:
        """Take in what a transfer brought, once the transport is done with it."""
        step = self.program.steps[number]
        message = self._messages.pop(number)
        if isinstance(step, Receive):
            self._memory.arrived(step, message)
        else:
            assert isinstance(step, Send)
            self._memory.sent(step, message)

    def compute(self, number: int) -> None:
        """Do an attend or a merge."""
        step = self.program.steps[number]
        self._observe_start(step.row)
        if self._pace is None:
            with torch.autocast(self._memory.device.type, enabled=False):  # the plan says it
                self._do(number, step)
            return
        if self._pace[step.row] > 0:  # sleeping for no time takes 50 us and more
            time.sleep(self._pace[step.row])
        assert isinstance(step, Compute | Combine)
        sinks = (step.sink,) if isinstance(step, Combine) else (*step.query_sinks, *step.key_sinks)
        for sink in sinks:
            self._memory.contribute(sink, ())

    def _do(self, number: int, step: Step) -> None:
        match step:
            case Compute(grads=()):
                compute.attend_forward(step, self._memory, self._kernel, self._scale)
            case Compute():
                compute.attend_backward(step, self._memory, self._kernel, self._scale)
            case Combine():
                compute.combine(step, self._memory)
            case _:
                raise AssertionError(f"step {number} computes nothing")

    def describe(self, number: int) -> str:
        """Name a step in a message."""
        return self.program.plan.describe(self.program.steps[number].row)

    def failure(self, number: int, error: Exception) -> RuntimeFailure:
        """Name rank, op and peer of a step that failed."""
        step = self.program.steps[number]
        what = ""
        if isinstance(step, Send):
            what = f"sending to rank {step.peer} failed: "
        elif isinstance(step, Receive):
            what = f"receiving from rank {step.peer} failed: "
        kind = "" if isinstance(error, CharmSchedError) else f"{type(error).__name__}: "
        return RuntimeFailure(
            f"rank {self.program.rank}: {self.describe(number)}: {what}{kind}{error}"
        )

    def _observe_start(self, row: int) -> None:
        if self.observer is not None:
            self.observer.started(row, time.monotonic())

    def _receives_first(self, ready: list[int]) -> list[int]:
        steps = self.program.steps
        return sorted(ready, key=lambda number: (not isinstance(steps[number], Receive), number))
