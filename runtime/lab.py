"""Ranks on a testbed: a process per device, in its namespace, that runs plans on command.

The processes are forked after torch is imported, move into their namespaces, and die with their
parent. Commands and results go through pipes, so that just the plans use the network.
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

from charm_sched.errors import CharmSchedError, RuntimeFailure
from charm_sched.plans.plan import Plan, Schedule
from charm_sched.plans.storage import from_bytes, to_bytes
from charm_sched.runtime.checks import checked_timeout
from charm_sched.runtime.layout import Fields
from charm_sched.runtime.pacing import run_paced
from charm_sched.runtime.recording import merged
from charm_sched.runtime.session import session_of
from charm_sched.runtime.trial import try_out
from charm_sched.timelines.timeline import Timeline

if TYPE_CHECKING:
    from charm_sched.testbed import Testbed

_PR_SET_PDEATHSIG = 1
_GRACE = 15.0  # seconds that a rank may take to answer beyond the timeout of its transfers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What a rank is told to do.

    Attributes:
        plan: A stored plan or schedule, as bytes of a ``.npz``.
        seconds: Per plan, the least time of each row's kernel; None to compute for real.
        repeat: Timed runs.
        warm: Runs before these that are not timed.
        timeout: Seconds that a transfer may take.
        expected: Seconds that all transfers of a run may take together.
    """

    plan: bytes
    seconds: tuple[Sequence[float], ...] | None
    repeat: int
    warm: int
    timeout: float
    expected: float


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a rank answers.

    Attributes:
        failure: What went wrong; None after a success.
        result: What was asked for.
        broken: Whether the rank cannot reach the others any more.
    """

    failure: str | None = None
    result: Any = None
    broken: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """What runs on the testbed took.

    Attributes:
        timelines: Per direction, one per repetition.
        max_error: Largest absolute difference from dense attention per direction; None if paced.
    """

    timelines: Mapping[str, list[Timeline]]
    max_error: Mapping[str, float] | None = None


class LabFailure(RuntimeFailure):
    """Ranks failed.

    Attributes:
        messages: What each rank said, in rank order; None where one succeeded.
    """

    def __init__(self, message: str, messages: Sequence[str | None] = ()) -> None:
        super().__init__(message, messages)
        self.messages = tuple(messages)

    def __str__(self) -> str:
        return str(self.args[0])


class Lab:
    """The ranks of a testbed; a context manager.

    Args:
        bed: The network, built.
        devices: Device of each rank.
        timeout: Seconds that connecting may take.
    """

    def __init__(self, bed: Testbed, devices: Sequence[str], *, timeout: float = 60.0) -> None:
        self._bed, self._devices, self._timeout = bed, tuple(devices), timeout
        self._ends: list[Connection] = []
        self._processes: list[Any] = []
        self._stack = ExitStack()
        self._broken: str | None = None

    def __enter__(self) -> Lab:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="charm-lab-"))
        forked = multiprocessing.get_context("fork")
        for rank, device in enumerate(self._devices):
            mine, theirs = forked.Pipe()
            process = forked.Process(
                target=_rank,
                args=(
                    theirs,
                    (*self._ends, mine),
                    self._bed,
                    device,
                    rank,
                    len(self._devices),
                    folder,
                    self._timeout,
                ),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._ends.append(mine)
            self._processes.append(process)
        try:
            self._answers(self._timeout)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    @property
    def devices(self) -> tuple[str, ...]:
        """Device of each rank."""
        return self._devices

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self._devices)

    def kill(self, rank: int) -> None:
        """Kill a rank's process, as a fault."""
        self._processes[rank].kill()

    def start(
        self,
        stored: Plan | Schedule,
        seconds: Sequence[Sequence[float]] | None,
        *,
        repeat: int = 5,
        warm: int = 1,
        timeout: float = 60.0,
        expected: float = 0.0,
    ) -> None:
        """Tell all ranks to run a plan; `finish` waits for them.

        Args:
            stored: A plan, or a schedule, whose backward runs after its forward.
            seconds: Per plan, the least time of each row's kernel; None to compute for real and
                compare with dense attention.
            repeat: Timed runs.
            warm: Runs before these that are not timed; where kernels compute it is always one.
            timeout: Seconds that a transfer may take.
            expected: Seconds that a run should take; ranks get three times as long, and two
                timeouts, before they are said not to answer.

        Raises:
            LabFailure: The ranks failed before, so that they cannot reach each other any more.
            RuntimeFailure: The timeout is not a positive, finite number.
        """
        if self._broken is not None:
            raise LabFailure(
                f"these ranks failed before and cannot be used again; start them anew: "
                f"{self._broken}"
            )
        timeout = checked_timeout(timeout)
        content = to_bytes(stored)
        paced = None if seconds is None else tuple(tuple(map(float, s)) for s in seconds)
        job = _Job(
            plan=content, seconds=paced, repeat=repeat, warm=warm, timeout=timeout,
            expected=expected,
        )  # fmt: skip
        self._current = stored, job
        for end in self._ends:
            end.send(job)

    def finish(self) -> Measured:
        """Wait for what `start` started.

        Raises:
            LabFailure: Ranks failed or did not answer; each has its message.
        """
        stored, job = self._current
        plans = stored.plans if isinstance(stored, Schedule) else (stored,)
        longest = sum(max(s, default=0.0) * len(s) for s in job.seconds or ())
        longest += 3 * job.expected + 2 * job.timeout
        answers = self._answers(
            _GRACE + (job.warm + job.repeat) * longest, _GRACE + 2 * job.timeout
        )
        if job.seconds is None:
            found: Measured = answers[0]
            return found
        timelines: dict[str, list[Timeline]] = {}
        for number, plan in enumerate(plans):
            passes = zip(*(answer[number] for answer in answers), strict=True)
            timelines[plan.direction] = [merged(plan, records) for records in passes]
        return Measured(timelines=timelines)

    def run(
        self,
        stored: Plan | Schedule,
        seconds: Sequence[Sequence[float]] | None,
        *,
        repeat: int = 5,
        warm: int = 1,
        timeout: float = 60.0,
        expected: float = 0.0,
    ) -> Measured:
        """Run a plan on all ranks; see `start` and `finish`."""
        self.start(stored, seconds, repeat=repeat, warm=warm, timeout=timeout, expected=expected)
        return self.finish()

    def call(self, work: Callable[[], Any], *, patience: float) -> list[Any]:
        """Have all ranks call a function that can be pickled; give what each returns.

        Args:
            work: Called on every rank; the default process group connects them.
            patience: Seconds that it may take.

        Raises:
            LabFailure: Ranks failed or did not answer; each has its message.
        """
        for end in self._ends:
            end.send(work)
        return self._answers(_GRACE + patience)

    def _answers(self, patience: float, mercy: float = math.inf) -> list[Any]:
        """Collect one answer per rank; those left once one has failed get ``mercy`` seconds."""
        begin = time.monotonic()
        deadline = begin + patience
        answers: dict[int, _Answer] = {}
        while len(answers) < len(self._ends):
            open_ends = [end for rank, end in enumerate(self._ends) if rank not in answers]
            ready = wait(open_ends, max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for end in ready:
                rank = self._ends.index(end)  # type: ignore[arg-type]
                try:
                    answers[rank] = self._ends[rank].recv()
                except (EOFError, OSError):
                    answers[rank] = _Answer(f"rank {rank}: its process ended", broken=True)
                if answers[rank].failure is not None:
                    deadline = min(deadline, time.monotonic() + mercy)
        for rank in range(len(self._ends)):
            missing = f"rank {rank}: no answer within {time.monotonic() - begin:.0f} s"
            answers.setdefault(rank, _Answer(missing, broken=True))
        found = [answers[rank] for rank in range(len(self._ends))]
        messages = [answer.failure for answer in found]
        if any(messages):
            first = next(message for message in messages if message)
            count = sum(message is not None for message in messages)
            if any(answer.broken for answer in found):
                self._broken = first
            raise LabFailure(f"{count} of {len(messages)} ranks failed; {first}", messages)
        return [answer.result for answer in found]

    def _close(self) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()
        self._stack.close()


def _rank(
    end: Connection,
    inherited: Sequence[Connection],
    bed: Testbed,
    device: str,
    rank: int,
    size: int,
    folder: str,
    timeout: float,
) -> None:
    """Be one rank: connect, then run what is told until the parent closes its end."""
    for other in inherited:  # or no rank would see the parent close its end
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent closes us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        bed.enter(device)
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = bed.interfaces(device)[0]
        dist.init_process_group(
            "gloo",
            store=FileStore(str(Path(folder) / "store"), size),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
        session = session_of(None, timeout)
        end.send(_Answer())
    except Exception as error:
        end.send(_Answer(f"rank {rank} ({device}): cannot connect: {error}", broken=True))
        return
    while True:
        try:
            job = end.recv()
        except (EOFError, OSError):
            os._exit(0)  # without waiting for connections to peers that are gone
        try:
            answer = _Answer(result=_do(job) if isinstance(job, _Job) else job())
        except Exception as error:
            kind = "" if isinstance(error, CharmSchedError) else f"{type(error).__name__}: "
            text = f"{kind}{error}"
            start = "" if text.startswith(f"rank {rank}: ") else f"rank {rank}: "
            broken = session.communicators.failure is not None
            answer = _Answer(f"{start}{text}", broken=broken)
        end.send(answer)


def _do(job: _Job) -> object:
    stored = from_bytes(job.plan)
    if job.seconds is None:
        trial = try_out(stored, repeat=job.repeat, timeout=job.timeout)
        return Measured(timelines=trial.timelines, max_error=trial.max_error)
    session = session_of(None, job.timeout)
    plans = stored.plans if isinstance(stored, Schedule) else (stored,)
    found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in plans]
    for repetition in range(job.warm + job.repeat):
        kept: Mapping[str, Fields] = {}
        for number, (plan, seconds) in enumerate(zip(plans, job.seconds, strict=True)):
            record, kept = run_paced(session, plan, seconds, timeout=job.timeout, residents=kept)
            if repetition >= job.warm:
                found[number].append(record.own)
    return found
