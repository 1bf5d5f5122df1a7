"""The seam between a run and what carries its messages and its work.

A `Carrier` is one backend: gloo on processors (`gloo`), NCCL on CUDA devices (`nccl`). The
executor, the plans and the kernels know neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from torch import Tensor

if TYPE_CHECKING:
    from charm_sched.runtime.execution import Execution
    from charm_sched.runtime.memory import Memory

Done: TypeAlias = Callable[[Exception | None], None]


class Transport(Protocol):
    """Carries messages between ranks; matched by (source, destination, lane, tag).

    Both calls return at once and call ``done`` once, from any thread, with None or with what went
    wrong. The buffer belongs to the transport until then.
    """

    def send(self, message: Tensor, *, peer: int, lane: int, tag: int, done: Done) -> None:
        """Send bytes, ``[nbytes]`` uint8, to a peer."""

    def receive(self, message: Tensor, *, peer: int, lane: int, tag: int, done: Done) -> None:
        """Fill a buffer, ``[nbytes]`` uint8, with what a peer sends."""


class Carrier(Transport, Protocol):
    """A transport that also runs the steps of a rank, on processors or on a device."""

    @property
    def memory(self) -> Callable[..., Memory]:
        """What makes the buffers of a run; takes what `Memory` takes."""

    def drive(self, execution: Execution) -> None:
        """Run a rank's program to its end, or hand all of it to a device.

        Raises:
            RuntimeFailure: A step failed; rank, op and peer are named.
        """

    def abort(self) -> None:
        """End everything under way, here and on the peers, after a failure."""
