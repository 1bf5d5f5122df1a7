"""Drives one rank's run: computation on the calling thread, communication on one beside it.

The communication thread posts transfers as soon as they are ready and takes in what arrives, also
while a kernel runs; kernels and copies release the interpreter lock.
"""

from __future__ import annotations

import heapq
import queue
import threading
from functools import partial

from charm_sched.errors import CharmSchedError, RuntimeFailure
from charm_sched.runtime.execution import Execution
from charm_sched.runtime.gloo import GlooTransport
from charm_sched.runtime.program import Receive, Send


def run_in_threads(execution: Execution, transport: GlooTransport) -> None:
    """Run a rank's program to its end.

    Raises:
        RuntimeFailure: A step failed, here or through a peer; rank, op and peer are named.
    """
    _Threads(execution, transport).run()


class _Threads:
    def __init__(self, execution: Execution, transport: GlooTransport) -> None:
        self._execution = execution
        self._transport = transport
        self._changed = threading.Condition()
        self._computable: list[int] = []
        self._busy = 0
        self._failure: tuple[int, Exception] | None = None
        self._inbox: queue.SimpleQueue[tuple[int, bool, Exception | None] | None] = (
            queue.SimpleQueue()
        )

    def run(self) -> None:
        thread = threading.Thread(target=self._communicate, name="charm-transfers", daemon=True)
        thread.start()
        try:
            self._compute()
        except BaseException:
            self._transport.abort()
            raise
        finally:
            self._inbox.put(None)
        thread.join()

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
            raise self._explained(*self._failure) from self._failure[1]

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
        """Let the other thread post transfers."""
        for number in transfers:
            self._inbox.put((number, False, None))

    def _communicate(self) -> None:
        while (message := self._inbox.get()) is not None:
            number, is_done, error = message
            if self._failure is not None:
                continue
            if error is not None:
                self._fail(number, error)
                continue
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
        self._inbox.put((number, True, error))

    def _fail(self, number: int, error: Exception) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = (number, error)
            self._changed.notify()

    def _explained(self, number: int, error: Exception) -> RuntimeFailure:
        program = self._execution.program
        step = program.steps[number]
        what = ""
        if isinstance(step, Send):
            what = f"sending to rank {step.peer} failed: "
        elif isinstance(step, Receive):
            what = f"receiving from rank {step.peer} failed: "
        place = f"rank {program.rank}: {self._execution.describe(number)}"
        kind = "" if isinstance(error, CharmSchedError) else f"{type(error).__name__}: "
        return RuntimeFailure(f"{place}: {what}{kind}{error}")
