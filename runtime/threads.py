"""Drives one rank's run: computation on the calling thread, communication on whoever is free.

Transfers are posted as soon as they are ready, and what arrives is taken in at once, also while a
kernel runs; kernels and copies release the interpreter lock. One thread at a time serves them: the
one that learns of an arrival, or the calling thread before it computes; waking another thread costs
more than posting a transfer. A helper packs what is large while the calling thread computes.
"""

from __future__ import annotations

import heapq
import math
import queue
import threading
import time
from collections import deque
from functools import partial

import torch

from charm_sched.errors import RuntimeFailure
from charm_sched.runtime.execution import Execution
from charm_sched.runtime.transport import Carrier

HELPED_BYTES = 1 << 18
"""From here on packing messages takes longer than waking a thread, some 0.05 ms."""
PATIENCE = 1e-3
"""Seconds for which the calling thread serves transfers while a kernel is ready. Starting a helper
and taking turns with it costs as much as posting some thirty small messages: with 0.3 ms a backward
of `mesh` on 16 ranks, whose twelve messages are sent at once, took 39 us per op, with 1 ms 17."""

FAREWELL = 5.0
"""Seconds for which a run waits for its helper at the end; it has nothing left to do."""


def run_in_threads(execution: Execution, transport: Carrier) -> None:
    """Run a rank's program to its end.

    Raises:
        RuntimeFailure: A step failed, here or through a peer; rank, op and peer are named.
    """
    _Threads(execution, transport).run()


class _Threads:
    def __init__(self, execution: Execution, transport: Carrier) -> None:
        self._execution = execution
        self._transport = transport
        self._changed = threading.Condition()
        self._computable: list[int] = []
        self._busy = 0
        self._failure: tuple[int, Exception] | None = None
        self._closed = False
        self._letters: deque[tuple[int, bool, Exception | None]] = deque()
        self._serving = threading.Lock()
        self._alarm: queue.SimpleQueue[bool] | None = None
        self._helper: threading.Thread | None = None

    def run(self) -> None:
        try:
            self._compute()
        except BaseException:
            self._closed = True
            self._transport.abort()
            raise
        finally:
            if self._alarm is not None and self._helper is not None:
                # Waited for: a thread that is inside torch when the interpreter ends aborts it.
                self._alarm.put(False)
                self._helper.join(FAREWELL)

    def _compute(self) -> None:
        with self._changed:
            first = self._hand_out(self._execution.first())
        self._send_off(first)
        while (number := self._next()) is not None:
            try:
                self._execution.compute(number)
                self._send_off(self._end(number))
            except Exception as error:
                self._fail(number, error)
        if self._failure is not None:
            raise self._execution.failure(*self._failure) from self._failure[1]

    def _next(self) -> int | None:
        """Wait for a step to compute; None when all is done or something failed."""
        with self._changed:
            while True:
                if self._failure is not None or not self._execution.left:
                    return None
                if self._computable:
                    return heapq.heappop(self._computable)
                if not self._busy:
                    rank, left = self._execution.program.rank, self._execution.left
                    raise RuntimeFailure(
                        f"rank {rank}: the plan cannot go on, {left} ops wait for each other"
                    )
                self._changed.wait()

    def _end(self, number: int) -> list[int]:
        """Note that a step has ended, and hand out those that are ready now."""
        ready = self._execution.finish(number)
        with self._changed:
            self._busy -= 1
            return self._hand_out(ready)

    def _hand_out(self, ready: list[int]) -> list[int]:
        """Give what is ready to whoever computes; the transfers among it are left to the caller."""
        self._busy += len(ready)
        transfers = [number for number in ready if self._execution.is_transfer(number)]
        for number in ready:
            if not self._execution.is_transfer(number):
                heapq.heappush(self._computable, number)
        if len(transfers) < len(ready) or not self._busy:
            self._changed.notify()
        return transfers

    def _send_off(self, transfers: list[int]) -> None:
        """Have transfers posted: by a helper where that takes long and a kernel is ready."""
        if not transfers:
            return
        self._letters.extend((number, False, None) for number in transfers)
        packed = sum(map(self._execution.packed_bytes, transfers))
        if packed < HELPED_BYTES or not self._computable:
            self._serve(PATIENCE if self._computable else math.inf)
        if self._letters and self._computable:
            self._call_helper()

    def _call_helper(self) -> None:
        if self._alarm is None:
            self._alarm = queue.SimpleQueue()
            self._helper = threading.Thread(
                target=self._help, args=(self._alarm,), name="charm-transfers", daemon=True
            )
            self._helper.start()
        self._alarm.put(True)

    def _help(self, alarm: queue.SimpleQueue[bool]) -> None:
        while alarm.get():
            self._serve()

    def _serve(self, patience: float = math.inf) -> None:
        """Post and take in transfers until none is left, unless another thread does.

        Args:
            patience: Seconds after which no other one is begun. Who has little sees to it that
                another thread goes on.
        """
        end = time.monotonic() + patience
        while self._letters and time.monotonic() < end and self._serving.acquire(blocking=False):
            try:
                with torch.no_grad():  # a mode of each thread; kept buffers are written here
                    while self._letters and time.monotonic() < end:
                        self._handle(*self._letters.popleft())
            finally:
                self._serving.release()

    def _handle(self, number: int, is_done: bool, error: Exception | None) -> None:
        if self._failure is not None or self._closed:
            return
        if error is not None:
            self._fail(number, error)
            return
        try:
            waiting = [number]
            if is_done:
                self._execution.land(number)
                waiting = self._end(number)
            for number in waiting:
                self._execution.post(number, partial(self._done, number))
        except Exception as problem:
            self._fail(number, problem)

    def _done(self, number: int, error: Exception | None) -> None:
        self._letters.append((number, True, error))
        self._serve()

    def _fail(self, number: int, error: Exception) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = (number, error)
            self._changed.notify()
