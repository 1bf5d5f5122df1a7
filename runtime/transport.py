"""The seam between a run and what carries its messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from torch import Tensor

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
