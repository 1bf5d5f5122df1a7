"""Measures transfers between ranks with plain torch.distributed: gloo, or NCCL on CUDA tensors.

One way for both backends. Before each repetition all ranks meet at a barrier, and a message of one
byte goes the way of each transfer and back, so that both ends are there. Then the transfers start.
A receiver answers with one byte; a transfer has ended when its sender has the answer. So one clock
measures each transfer, and clocks of different machines are never compared.

gloo moves opposite transfers of one process group between the same ranks one after the other, so
there is a group per direction and one for answers. NCCL gets one group, and each rank's sends and
receives as one batch. It has not been run on NCCL yet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from charm_sched.errors import RuntimeFailure
from charm_sched.probing.whole_machine import Traffic
from charm_sched.runtime.gloo import reason

Record: TypeAlias = list[list[list[float]]]
"""Seconds per traffic, size and repetition; 0 where this rank sent nothing."""
_Operation: TypeAlias = "tuple[Callable[..., dist.Work | None], Tensor, int, dist.ProcessGroup]"
"""isend or irecv, the tensor, the other rank, and the group."""

_MARKS = 251  # what a rank's bytes are taken modulo, a prime below 256


def join_world(timeout: float) -> tuple[int, int]:
    """Join the processes that torchrun started; give this rank and their number.

    Raises:
        RuntimeFailure: The others do not come.
    """
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError) as error:
        raise RuntimeFailure(f"the processes do not find each other: {error}") from error
    return dist.get_rank(), dist.get_world_size()


def default_backend() -> str:
    """Return nccl where this machine has a CUDA device, else gloo."""
    return "nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"


def measure(
    traffics: Sequence[Traffic],
    *,
    backend: str,
    repeat: int,
    timeout: float,
    say: Callable[[str], None] | None = None,
) -> Record:
    """Measure traffic; all ranks of the default process group must call alike.

    Args:
        traffics: What to move.
        backend: "gloo", or "nccl".
        repeat: Timed repetitions per size, after one that is not.
        timeout: Seconds that a transfer may take.
        say: Hears what is measured.

    Raises:
        RuntimeFailure: A transfer failed, or what arrived is not what was sent; named.
    """
    ranks = _Ranks(backend, timeout, traffics)
    record: Record = []
    for number, traffic in enumerate(traffics):
        if say is not None:
            say(f"{number + 1} of {len(traffics)}: {traffic.name}")
        ranks.check(traffic)
        record.append(
            [[ranks.time(traffic, size) for _ in range(repeat)] for size in traffic.sizes]
        )
    return record


def gather(record: Record) -> list[Record] | None:
    """Give the records of all ranks on rank 0, nothing elsewhere; all ranks must call."""
    first = dist.get_rank() == 0
    found: list[Record] | None = [[] for _ in range(dist.get_world_size())] if first else None
    dist.gather_object(record, found, dst=0)
    return found


def slowest(records: Sequence[Record]) -> list[NDArray[np.float64]]:
    """Return seconds until the last transfer ended, ``[sizes, repetitions]`` per traffic."""
    return [np.max([np.array(part) for part in parts], axis=0) for parts in zip(*records)]  # noqa: B905


class _Ranks:
    """This rank, its buffers, and its ways to the others."""

    def __init__(self, backend: str, timeout: float, traffics: Sequence[Traffic]) -> None:
        self.rank = dist.get_rank()
        self._timeout, self._nccl = timeout, backend == "nccl"
        limit = timedelta(seconds=timeout)
        self._device = _own_gpu() if self._nccl else torch.device("cpu")
        try:
            self._control = dist.new_group(backend="gloo", timeout=limit)
            count = 1 if self._nccl else 3
            ways = [dist.new_group(backend=backend, timeout=limit) for _ in range(count)]
            self._up, self._down, self._answers = ways * (3 // count)
            if self._nccl:  # a batch of some ranks alone may not be the first call of a group
                dist.all_reduce(torch.zeros(1, device=self._device), group=self._up)
        except (RuntimeError, ValueError) as error:
            raise RuntimeFailure(
                f"rank {self.rank}: connecting to the other ranks over {backend} failed: "
                f"{reason(error, timeout)}"
            ) from error
        largest = max(max(traffic.sizes) for traffic in traffics)
        most = max(len(self._peers(traffic)[1]) for traffic in traffics)
        self._out = torch.full(
            (largest,), self.rank % _MARKS + 1, dtype=torch.uint8, device=self._device
        )
        self._in = torch.zeros((max(most, 1), largest), dtype=torch.uint8, device=self._device)
        self._answer = torch.zeros((2, 1), dtype=torch.uint8, device=self._device)

    def time(self, traffic: Traffic, size: int) -> float:
        """Return the seconds of one repetition; 0 if this rank sends nothing in it."""
        targets, sources = self._peers(traffic)
        self._meet(traffic)
        if not targets and not sources:
            return 0.0
        self._move(traffic, 1)
        begin = time.perf_counter()
        self._move(traffic, size)
        return time.perf_counter() - begin if targets else 0.0

    def check(self, traffic: Traffic) -> None:
        """Move the largest size once, and look at what arrives.

        Raises:
            RuntimeFailure: It is not what was sent.
        """
        targets, sources = self._peers(traffic)
        size = max(traffic.sizes)
        self._in.zero_()
        self._meet(traffic)
        if targets or sources:
            self._move(traffic, size)
        for number, source in enumerate(sources):
            if not bool((self._in[number, :size] == source % _MARKS + 1).all()):
                raise RuntimeFailure(
                    f"rank {self.rank}: {traffic.name}: what rank {source} sent arrived changed; "
                    "direct access between devices may be broken here (IOMMU or PCIe access "
                    "control); NCCL_P2P_DISABLE=1 goes around it"
                )

    def _peers(self, traffic: Traffic) -> tuple[list[int], list[int]]:
        """Give whom this rank sends to, and whom it receives from."""
        return (
            [b for a, b in traffic.pairs if a == self.rank],
            [a for a, b in traffic.pairs if b == self.rank],
        )

    def _meet(self, traffic: Traffic) -> None:
        if self._nccl:
            torch.cuda.synchronize()
        try:
            dist.barrier(group=self._control)
        except RuntimeError as error:
            raise RuntimeFailure(
                f"rank {self.rank}: before {traffic.name}: the ranks do not meet: "
                f"{reason(error, self._timeout)}"
            ) from error

    def _move(self, traffic: Traffic, size: int) -> None:
        """Send and receive at once; ends when what this rank sent has been answered."""
        targets, sources = self._peers(traffic)
        out, answer, answered = self._out[:size], self._answer[0], self._answer[1]
        data: list[_Operation] = [
            (dist.irecv, self._in[number, :size], source, self._way(source))
            for number, source in enumerate(sources)
        ]
        data += [(dist.isend, out, target, self._way(target, sends=True)) for target in targets]
        back: list[_Operation] = [
            (dist.irecv, answered, target, self._answers) for target in targets
        ]
        back += [(dist.isend, answer, source, self._answers) for source in sources]
        for operations in (data, back):
            self._wait(operations, traffic)
        if self._nccl:
            torch.cuda.synchronize()

    def _way(self, peer: int, *, sends: bool = False) -> dist.ProcessGroup:
        return self._up if (peer > self.rank) == sends else self._down

    def _wait(self, operations: Sequence[_Operation], traffic: Traffic) -> None:
        """Post operations and wait for their ends; NCCL waits on the device alone."""
        peers = ", ".join(str(peer) for peer in dict.fromkeys(peer for _, _, peer, _ in operations))
        try:
            if self._nccl:
                batch = [dist.P2POp(op, tensor, peer, way) for op, tensor, peer, way in operations]
                for started in dist.batch_isend_irecv(batch):
                    started.wait()
                return
            posted = [op(tensor, peer, way) for op, tensor, peer, way in operations]
            for work in posted:
                assert work is not None, "this rank is a member of the group"
                work.wait(timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise RuntimeFailure(
                f"rank {self.rank}: {traffic.name}: a transfer with rank {peers} failed: "
                f"{reason(error, self._timeout)}"
            ) from error


def _own_gpu() -> torch.device:
    """Take the CUDA device of this rank's number on its machine.

    Raises:
        RuntimeFailure: There is none.
    """
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= count:
        raise RuntimeFailure(
            f"rank {dist.get_rank()}: NCCL needs a CUDA device per rank of a machine, found "
            f"{count} for local rank {local}; start fewer processes, or use --backend gloo"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)
