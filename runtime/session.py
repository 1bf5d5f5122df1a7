"""What is kept between calls: communicators and prepared plans, per process group."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from charm_sched.errors import CharmSchedError, RuntimeFailure
from charm_sched.hazards import Hazards
from charm_sched.plans import Plan
from charm_sched.runtime.execution import Execution
from charm_sched.runtime.gloo import Communicators, GlooTransport, Waiters
from charm_sched.runtime.memory import Slots
from charm_sched.runtime.passes import Worker
from charm_sched.runtime.prepare import prepare
from charm_sched.runtime.program import Program
from charm_sched.runtime.threads import run_in_threads

KEPT_PLANS = 32
_SHOWN = 12  # characters of a value that are shown: enough of a digest
_UNREADY = -1  # stands for the settings of a rank that cannot take part

Settings: TypeAlias = Mapping[str, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan that is ready to run on this rank."""

    plan: Plan
    program: Program
    slots: Slots


class Session:
    """One process group's communicators and prepared plans.

    Attributes:
        communicators: The group's communicators.
        calls: How many calls all ranks have agreed on.
    """

    def __init__(self, group: dist.ProcessGroup, timeout: float) -> None:
        self.communicators = Communicators(group, timeout)
        self.calls = 0
        self._waiters = Waiters()
        self._prepared: OrderedDict[int, Prepared] = OrderedDict()

    @property
    def rank(self) -> int:
        """This rank in the group."""
        return self.communicators.rank

    def agree(self, set_up: Callable[[], tuple[T, Settings]], timeout: float) -> T:
        """Set a pass up on every rank, and make sure that all can run it and run the same.

        Costs one exchange of 8 bytes on every call; what differs is told only where something does.

        Args:
            set_up: Does all that can fail on this rank alone; gives what it made, and what must be
                the same on all ranks, by name.
            timeout: Seconds that the other ranks may take to come.

        Raises:
            RuntimeFailure: Settings differ, or another rank cannot take part; ranks are named.
        """
        self.communicators.check()
        try:
            made, settings = set_up()
        except Exception as problem:
            self._tell(problem, timeout)
            raise
        found = self.communicators.exchange(torch.tensor([_code(settings)]), timeout)
        if len({int(code) for code in found}) > 1:
            told = self.communicators.gather((dict(settings), None), timeout)
            _refuse(self.rank, settings, told)
        self.calls += 1
        return made

    def _tell(self, problem: Exception, timeout: float) -> None:
        """Tell the other ranks why this one cannot take part."""
        kind = "" if isinstance(problem, CharmSchedError) else f"{type(problem).__name__}: "
        try:
            self.communicators.exchange(torch.tensor([_UNREADY]), timeout)
            self.communicators.gather(({}, f"{kind}{problem}"), timeout)
        except RuntimeFailure:
            return  # what this rank has to say comes first

    def prepared(self, plan: Plan, *, check: bool) -> Prepared:
        """Prepare a plan once; proved before where ``check``.

        Raises:
            PlanError: The plan is not exactly attention, or cannot run.
        """
        prepared = self._prepared.get(id(plan))
        if prepared is None:
            program = prepare(plan, self.rank, _proved(plan) if check else None)
            prepared = Prepared(plan, program, Slots(program.slots))
            self._prepared[id(plan)] = prepared
            while len(self._prepared) > KEPT_PLANS:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(id(plan))
        return prepared

    def worker(self, plan: Plan, timeout: float, *, check: bool) -> tuple[Worker, GlooTransport]:
        """Give what is needed to run a plan, once all ranks have agreed to run it."""
        prepared = self.prepared(plan, check=check)
        self.communicators.ensure(len(plan.streams), timeout)
        transport = GlooTransport(self.communicators, self._waiters, timeout)
        worker = Worker(program=prepared.program, slots=prepared.slots, transport=transport)
        return worker, transport

    def run(self, execution: Execution, transport: GlooTransport) -> None:
        """Run a program to its end.

        Raises:
            RuntimeFailure: A step failed; rank, op and peer are named.
        """
        run_in_threads(execution, transport)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Surround a pass that all ranks agreed on; if it fails the group is not used again."""
        try:
            yield
        except RuntimeFailure as failure:
            self.communicators.give_up(failure)
            raise
        except BaseException as stop:
            what = f"rank {self.rank}: stopped by {type(stop).__name__} during a pass"
            self.communicators.give_up(RuntimeFailure(what))
            raise


_SESSIONS: WeakKeyDictionary[dist.ProcessGroup, Session] = WeakKeyDictionary()


def session_of(group: dist.ProcessGroup | None, timeout: float) -> Session:
    """Give a group's session; made on the first call, which all ranks must make.

    Raises:
        RuntimeFailure: torch.distributed is not initialised, or this rank is not in the group.
    """
    if not dist.is_initialized():
        raise RuntimeFailure(
            "attention: torch.distributed is not initialised; call init_process_group first"
        )
    group = dist.group.WORLD if group is None else group
    if group is None or dist.get_rank(group) < 0:
        raise RuntimeFailure("attention: this rank is not a member of the group")
    if group not in _SESSIONS:
        _SESSIONS[group] = Session(group, timeout)
    return _SESSIONS[group]


def _proved(plan: Plan) -> Hazards:
    from charm_sched.verifier import verify

    return verify(plan).hazards


def _code(settings: Settings) -> int:
    """Give a number that stands for settings: 63 bits, never `_UNREADY`."""
    text = json.dumps(settings, sort_keys=True).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def _refuse(rank: int, mine: Settings, told: list[tuple[Settings, str | None]]) -> None:
    """Say who cannot take part, or what differs.

    Raises:
        RuntimeFailure: Always.
    """
    for other, (_, why) in enumerate(told):
        if why is not None:
            raise RuntimeFailure(f"rank {rank}: rank {other} cannot take part: {why}")
    for name in mine:
        _compare(rank, name, [settings.get(name, "none") for settings, _ in told])
    raise RuntimeFailure(f"rank {rank}: the ranks called different functions: {told}")


def _compare(rank: int, name: str, values: list[str]) -> None:
    """Refuse values that differ between ranks; the ranks in the minority are named."""
    common, count = Counter(values).most_common(1)[0]
    if count == len(values):
        return
    odd = [str(other) for other, value in enumerate(values) if value != common]
    which = "rank" if len(odd) == 1 else "ranks"
    shown = {other: value[:_SHOWN] for other, value in enumerate(values)}
    raise RuntimeFailure(
        f"rank {rank}: the {name} of {which} {', '.join(odd)} differs from the others'; "
        f"expected the same on all ranks, found {shown}"
    )
