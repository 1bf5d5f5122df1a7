"""Communicators of NCCL: one per stream of a plan that has transfers, and groups of transfers.

**Not yet run on a GPU.** What follows is written from the sources below and tested on a device that
records what it is given (`tests/support/recording_device.py`).

* A process group in eager mode (bound to its device) is one NCCL communicator with one stream of
  its own, and runs what it is given in order. Several groups run beside each other. So every plan
  stream with transfers gets a group: 1 for a ring, 2 to 4 for most other strategies.
* The batch of a level is one ``batch_isend_irecv``, which is one NCCL group: it ends as a whole, so
  sends and receives of a level cannot block each other, in whatever order the peers are served. A
  batch of one transfer is a group of one: single calls would run one after the other all the same.
* Transfers of a pair match in the order of rows, on both sides.
* Ranks hand over groups of different communicators in one common order (`ordering`), as NCCL asks
  for where several communicators are in use at once.

Sources: torch.distributed (``batch_isend_irecv``, ``new_group``, ``split_group``), the warnings of
ProcessGroupNCCL about unbatched transfers in eager mode, and the NCCL user guide ("Using multiple
NCCL communicators concurrently").
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from charm_sched.errors import RuntimeFailure
from charm_sched.runtime.device import Work
from charm_sched.runtime.streams import Message

MOST_COMMUNICATORS = 16
"""Each takes a stream and, per peer and channel, buffers of NCCL_BUFFSIZE (4 MiB by default)."""


class NcclGroups:
    """The communicators of a session on one device; see `charm_sched.runtime.streams.Groups`.

    Args:
        group: The ranks.
        device: This rank's device.
        timeout: Seconds after which NCCL's watchdog ends a process whose transfer does not end.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, timeout: float) -> None:
        self._parent = group
        self._device = device
        self._timeout = timeout
        self._groups: list[dist.ProcessGroup] = []
        self._rank = dist.get_rank(group)
        self._members = dist.get_process_group_ranks(group)

    def ensure(self, number: int, timeout: float) -> None:
        """Make the first ``number`` communicators; all ranks must call alike.

        Raises:
            RuntimeFailure: There is no NCCL, the plan has too many streams, or connecting failed.
        """
        if number and not (dist.is_available() and dist.is_nccl_available()):
            raise RuntimeFailure(
                f"rank {self._rank}: tensors on {self._device} are sent with NCCL, which this "
                f"PyTorch ({torch.__version__}) does not have; install one built for CUDA"
            )
        check_environment(self._rank)
        if number > MOST_COMMUNICATORS:
            raise RuntimeFailure(
                f"rank {self._rank}: expected a plan with at most {MOST_COMMUNICATORS} streams of "
                f"transfers, found {number}: each needs an NCCL communicator"
            )
        if timeout != self._timeout:
            self._timeout = timeout
            for made in self._groups:
                _backend(made, self._device)._set_default_timeout(timedelta(seconds=timeout))
        while len(self._groups) < number:
            self._groups.append(self._made(len(self._groups)))

    def issue(self, number: int, messages: Sequence[Message]) -> Work:
        """Hand a group of transfers to a communicator, behind the current stream."""
        group = self._groups[number]
        operations = [
            dist.P2POp(
                dist.isend if message.sends else dist.irecv,
                message.tensor,
                self._members[message.peer],
                group,
            )
            for message in messages
        ]
        return _Works(dist.batch_isend_irecv(operations))

    def abort(self) -> None:
        """End everything under way on this rank; the others end by their watchdog's timeout."""
        for group in self._groups:
            with contextlib.suppress(RuntimeError, AttributeError):
                _backend(group, self._device).abort()

    def _made(self, number: int) -> dist.ProcessGroup:
        """Make a communicator.

        Where the default group is bound to a device, new groups are split from it, which all of
        its ranks have to join; so those of a part of the ranks are split from the user's group.
        """
        part = len(self._members) < dist.get_world_size()
        split = part and _bound(dist.group.WORLD) is not None
        if split and not self._splits():
            raise RuntimeFailure(
                f"rank {self._rank}: the default group is bound to a device, and the group of "
                f"{len(self._members)} ranks has no NCCL communicator to split from; make the "
                f"group with backend 'nccl'"
            )
        options: Any = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        wait = timedelta(seconds=self._timeout)
        options._timeout = wait
        description = f"charm-{number}"
        try:
            if split:
                made = dist.split_group(
                    self._parent, [list(range(len(self._members)))], timeout=wait,
                    pg_options=options, group_desc=description,
                )  # fmt: skip
            else:
                made = dist.new_group(
                    self._members, backend="nccl", timeout=wait, pg_options=options,
                    use_local_synchronization=True, group_desc=description,
                    device_id=self._device,
                )  # fmt: skip
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            raise RuntimeFailure(
                f"rank {self._rank}: making NCCL communicator {number} on {self._device} failed: "
                f"{str(error).strip().splitlines()[0][:200]}"
            ) from error
        assert isinstance(made, dist.ProcessGroup)
        return made

    def _splits(self) -> bool:
        """Say whether the user's group has a communicator on the device to split from."""
        try:
            return bool(_backend(self._parent, self._device).supports_splitting)
        except RuntimeError:
            return False


class _Works:
    """What ``batch_isend_irecv`` gives: one work with NCCL, maybe several elsewhere."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        """Let the current stream wait."""
        for work in self._works:
            work.wait()


def check_environment(rank: int, environment: Mapping[str, str] | None = None) -> None:
    """Refuse settings under which the host waits for each transfer, before it starts the next.

    Groups of a pass wait for groups that other ranks start later; a host that waits in between may
    wait for ever.

    Args:
        rank: This rank, for the message.
        environment: Variables to look at, instead of the process's own.

    Raises:
        RuntimeFailure: One is set.
    """
    variables = os.environ if environment is None else environment
    for name in ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT", "CUDA_LAUNCH_BLOCKING"):
        if variables.get(name, "0").lower() not in ("", "0", "false", "no"):
            raise RuntimeFailure(
                f"rank {rank}: {name}={variables[name]}: the host would wait for each transfer, "
                f"and ranks could wait for each other; unset it for attention over NCCL"
            )


def check_device(device: torch.device) -> None:
    """Check that transfers of this process go to one device, the one that its tensors are on.

    Raises:
        RuntimeFailure: The current device is another one, which NCCL would use.
    """
    current = torch.cuda.current_device()
    if device.index is not None and device.index != current:
        raise RuntimeFailure(
            f"attention: tensors are on {device}, but the current device is cuda:{current}; call "
            f"torch.cuda.set_device({device.index}) first"
        )


def _bound(group: object) -> torch.device | None:
    return getattr(group, "bound_device_id", None)


def _backend(group: Any, device: torch.device) -> Any:  # noqa: ANN401
    return group._get_backend(device)


__all__ = ["MOST_COMMUNICATORS", "NcclGroups", "check_device"]
