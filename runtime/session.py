"""What is kept between calls: communicators and prepared plans, per process group."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch.distributed as dist

from charm_sched.errors import RuntimeFailure
from charm_sched.hazards import Hazards
from charm_sched.plans import Plan, Schedule
from charm_sched.runtime.execution import Execution
from charm_sched.runtime.gloo import Communicators, GlooTransport, Waiters
from charm_sched.runtime.memory import Slots
from charm_sched.runtime.passes import Worker
from charm_sched.runtime.prepare import prepare
from charm_sched.runtime.program import Program
from charm_sched.runtime.threads import run_in_threads

KEPT_PLANS = 32


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
    """

    def __init__(self, group: dist.ProcessGroup, timeout: float) -> None:
        self.communicators = Communicators(group, timeout)
        self._waiters = Waiters()
        self._prepared: OrderedDict[int, Prepared] = OrderedDict()
        self._agreed: OrderedDict[tuple[str, float, str, bool], None] = OrderedDict()
        self._broken: RuntimeFailure | None = None

    @property
    def rank(self) -> int:
        """This rank in the group."""
        return self.communicators.rank

    def agree(
        self,
        plan: Schedule | Plan,
        *,
        scale: float,
        kernel: str,
        gradient: bool,
        problem: Exception | None,
        timeout: float,
    ) -> None:
        """Make sure, before a combination is first run, that all ranks run the same.

        Raises:
            RuntimeFailure: Plans or settings differ, or a rank cannot take part; ranks are named.
        """
        if self._broken is not None:
            raise RuntimeFailure(
                f"rank {self.rank}: this group failed before and cannot be used again: "
                f"{self._broken}"
            )
        key = (plan.digest, scale, kernel, gradient)
        if key in self._agreed:  # the others go on without asking
            if problem is not None:
                raise problem
            return
        try:
            gathered = self.communicators.gather((*key, problem and str(problem)), timeout)
        except RuntimeFailure:
            if problem is None:
                raise
        if problem is not None:
            raise problem
        *settings, problems = zip(*gathered, strict=True)
        for other, why in enumerate(problems):
            if why is not None:
                raise RuntimeFailure(f"rank {self.rank}: rank {other} cannot take part: {why}")
        names = ("plan", "softmax scale", "backend", "need of a gradient")
        for name, values in zip(names, settings, strict=True):
            _compare(self.rank, name, values)
        self._agreed[key] = None
        while len(self._agreed) > 4 * KEPT_PLANS:
            self._agreed.popitem(last=False)

    def worker(self, plan: Plan, timeout: float, *, check: bool) -> tuple[Worker, GlooTransport]:
        """Give what is needed to run a plan; prepared once, proved before where ``check``."""
        prepared = self._prepared.get(id(plan))
        if prepared is None:
            program = prepare(plan, self.rank, _proved(plan) if check else None)
            prepared = Prepared(plan, program, Slots(program.slots))
            self._prepared[id(plan)] = prepared
            while len(self._prepared) > KEPT_PLANS:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(id(plan))
        self.communicators.ensure(len(plan.streams))
        transport = GlooTransport(self.communicators, self._waiters, timeout)
        worker = Worker(program=prepared.program, slots=prepared.slots, transport=transport)
        return worker, transport

    def run(self, execution: Execution, transport: GlooTransport) -> None:
        """Run a program to its end; after a failure the group is not used again.

        Raises:
            RuntimeFailure: A step failed; rank, op and peer are named.
        """
        try:
            run_in_threads(execution, transport)
        except RuntimeFailure as failure:
            self._broken = failure
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


def _compare(rank: int, name: str, values: tuple[object, ...]) -> None:
    """Refuse values that differ between ranks; the ranks in the minority are named."""
    common, count = Counter(values).most_common(1)[0]
    if count == len(values):
        return
    odd = [str(other) for other, value in enumerate(values) if value != common]
    which = "rank" if len(odd) == 1 else "ranks"
    shown = {other: str(value)[:12] for other, value in enumerate(values)}
    raise RuntimeFailure(
        f"rank {rank}: the {name} of {which} {', '.join(odd)} differs from the others'; "
        f"expected the same on all ranks, found {shown}"
    )
