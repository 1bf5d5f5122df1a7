"""What is kept between calls: communicators and prepared plans, per process group."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from charm_sched.errors import CharmSchedError, RuntimeFailure
from charm_sched.masks.mask import Mask
from charm_sched.plans.plan import Plan
from charm_sched.proof.hazards import Hazards, find_hazards
from charm_sched.runtime.backends.choice import Kernels
from charm_sched.runtime.device import CudaDevice
from charm_sched.runtime.execution import Execution
from charm_sched.runtime.gloo import Communicators, GlooTransport, Waiters
from charm_sched.runtime.groups import Group, process_group
from charm_sched.runtime.memory import Slots
from charm_sched.runtime.nccl import NcclGroups, check_device
from charm_sched.runtime.passes import Worker
from charm_sched.runtime.prepare import prepare
from charm_sched.runtime.program import Program
from charm_sched.runtime.rebinding import rebound_plan
from charm_sched.runtime.streams import Script, StreamCarrier, StreamPool, plan_lanes
from charm_sched.runtime.tiles import Cutter
from charm_sched.runtime.transport import Carrier

CPU = torch.device("cpu")
KEPT_PLANS = 32
_SHOWN = 12  # characters of a value that are shown: enough of a digest
_UNREADY = -1  # stands for the settings of a rank that cannot take part

Settings: TypeAlias = Mapping[str, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan that is ready to run on this rank.

    Attributes:
        source: The plan that was asked for, kept so that its `id` stays its own.
        plan: It under the mask that was asked for.
        program: This rank's part of that.
        slots: Its buffers.
        script: In what order a device is given it; None on processors.
    """

    source: Plan
    plan: Plan
    program: Program
    slots: Slots
    script: Script | None = None


class Session:
    """One process group's communicators and prepared plans.

    Attributes:
        communicators: The group's communicators.
        calls: How many calls all ranks have agreed on.
        kernels: The backends that were used.
    """

    def __init__(self, group: dist.ProcessGroup, timeout: float) -> None:
        self.communicators = Communicators(group, timeout)
        self.calls = 0
        self.kernels = Kernels()
        self._group, self._timeout = group, timeout
        self._waiters = Waiters()
        self._prepared: OrderedDict[tuple[int, Mask | None, torch.device], Prepared] = OrderedDict()
        self._queued: dict[torch.device, tuple[StreamPool, NcclGroups]] = {}
        self._cutter: Cutter | None = None

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

    def prepared(
        self, plan: Plan, *, check: bool, mask: Mask | None = None, device: torch.device = CPU
    ) -> Prepared:
        """Prepare a plan once, for its own mask or another; proved before where ``check``.

        Raises:
            PlanError: The plan is not exactly attention, cannot run, or cannot serve the mask.
            RuntimeFailure: There is no memory for its buffers, or the device cannot run it now.
        """
        key = id(plan), mask, device
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = (
                self._rebound(plan, mask, check, device)
                if mask
                else self._made(plan, check, device)
            )
            self._prepared[key] = prepared
            while len(self._prepared) > KEPT_PLANS:
                _, oldest = self._prepared.popitem(last=False)
                if oldest.script is not None:
                    self._queue(oldest.slots.device)[0].settle()
        self._prepared.move_to_end(key)
        prepared.slots.fill()
        if prepared.script is not None and prepared.script.lanes:
            self._check_device(device)
        return prepared

    def _made(self, plan: Plan, check: bool, device: torch.device) -> Prepared:
        hazards = _proved(plan) if check else find_hazards(plan)
        program = prepare(plan, self.rank, hazards)
        script = None if device.type == "cpu" else Script(program, hazards)
        return Prepared(plan, plan, program, Slots(program.slots, device), script)

    def _rebound(self, plan: Plan, mask: Mask, check: bool, device: torch.device) -> Prepared:
        """Give a plan under another mask; it has the buffers of the plan itself."""
        base = self.prepared(plan, check=check, device=device)
        rebound = rebound_plan(plan, mask, check=check)
        if self._cutter is None or self._cutter.mask != mask:
            self._cutter = Cutter(mask, plan.workload.seq_len)
        program = base.program.rebound(rebound, self._cutter)
        return Prepared(plan, rebound, program, base.slots, base.script)

    def _check_device(self, device: torch.device) -> None:
        """Refuse what a device cannot do with transfers.

        Raises:
            RuntimeFailure: A CUDA graph is being captured, or another device is current.
        """
        check_device(device)
        pool, _ = self._queue(device)
        if pool.device.capturing():
            raise RuntimeFailure(
                f"rank {self.rank}: attention was called while a CUDA graph is captured, but its "
                f"transfers cannot be captured (PyTorch issue 133984: point-to-point operations); "
                f"capture what is before and behind it, and call it between the graphs"
            )

    def _queue(self, device: torch.device) -> tuple[StreamPool, NcclGroups]:
        """Give the streams and the communicators of a device."""
        if device not in self._queued:
            groups = NcclGroups(self._group, device, self._timeout)
            self._queued[device] = StreamPool(CudaDevice(device)), groups
        return self._queued[device]

    def worker(
        self,
        plan: Plan,
        timeout: float,
        *,
        check: bool,
        mask: Mask | None = None,
        device: torch.device = CPU,
    ) -> tuple[Worker, Carrier]:
        """Give what is needed to run a plan, once all ranks have agreed to run it.

        Raises:
            RuntimeFailure: Some rank did not connect within the timeout.
        """
        prepared = self.prepared(plan, check=check, mask=mask, device=device)
        carrier: Carrier
        if prepared.script is None:
            self.communicators.ensure(len(plan.streams), timeout)
            carrier = GlooTransport(self.communicators, self._waiters, timeout)
        else:
            pool, groups = self._queue(device)
            groups.ensure(len(plan_lanes(plan)), timeout)
            carrier = StreamCarrier(prepared.script, pool, groups)
        worker = Worker(
            program=prepared.program, slots=prepared.slots, transport=carrier, memory=carrier.memory
        )
        return worker, carrier

    def run(self, execution: Execution, carrier: Carrier) -> None:
        """Run a program to its end, or hand it to a device.

        Raises:
            RuntimeFailure: A step failed; rank, op and peer are named.
        """
        carrier.drive(execution)

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


def session_of(group: Group, timeout: float) -> Session:
    """Give a group's session; made on the first call, which all ranks must make.

    Raises:
        RuntimeFailure: torch.distributed is not initialised, this rank is not in the group, or a
            mesh has several dimensions.
    """
    if not dist.is_initialized():
        raise RuntimeFailure(
            "attention: torch.distributed is not initialised; call init_process_group first"
        )
    group = dist.group.WORLD if group is None else process_group(group)
    if group is None or dist.get_rank(group) < 0:
        raise RuntimeFailure("attention: this rank is not a member of the group")
    if group not in _SESSIONS:
        _SESSIONS[group] = Session(group, timeout)
    return _SESSIONS[group]


def _proved(plan: Plan) -> Hazards:
    from charm_sched.proof.verifier import verify

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
    start = _first_difference(values)
    shown = {other: _excerpt(value, start) for other, value in enumerate(values)}
    raise RuntimeFailure(
        f"rank {rank}: the {name} of {which} {', '.join(odd)} differs from the others'; "
        f"expected the same on all ranks, found {shown}"
    )


def _first_difference(values: Sequence[str]) -> int:
    """Give where texts begin to differ."""
    columns = zip(*values, strict=False)
    shortest = min(map(len, values))
    return next((at for at, column in enumerate(columns) if len(set(column)) > 1), shortest)


def _excerpt(value: str, start: int) -> str:
    """Give enough of a text to see how it differs from others from ``start`` on."""
    first = 0 if start < _SHOWN else start - _SHOWN // 2
    lead = "..." if first else ""
    return f"{lead}{value[first : first + _SHOWN]}"
