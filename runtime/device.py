"""What a run needs of a device that queues its work: streams, events, and how they order it.

`CudaDevice` is torch.cuda in that form. Tests put a device in its place that records what is queued
and finds every access that no stream and no event orders.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

CONNECTIONS = 8
"""Hardware queues of a device where CUDA_DEVICE_MAX_CONNECTIONS is not set; at most 32.

Source: CUDA programming guide, "CUDA environment variables".
"""


class Event(Protocol):
    """A point in a stream."""

    def elapsed_time(self, end_event: Any) -> float:  # noqa: ANN401
        """Give the milliseconds to a later event; both made with timing, both past."""


class Stream(Protocol):
    """A queue of the device: what it holds runs in order."""

    def wait_event(self, event: Any) -> None:  # noqa: ANN401
        """Let what is queued from now on wait for an event; the host does not wait."""

    def record_event(self, event: Any = None) -> Any:  # noqa: ANN401
        """Give the point behind all that is queued now."""


class Work(Protocol):
    """A group of transfers under way."""

    def wait(self) -> object:
        """Let the current stream wait for the group; the host does not wait."""


class Device(Protocol):
    """A device that queues work."""

    @property
    def kind(self) -> torch.device:
        """Where its tensors lie."""

    def current(self) -> Stream:
        """Give the stream that takes what is called now."""

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        """Let a stream take what is called inside."""

    def stream(self, *, urgent: bool) -> Stream:
        """Make a stream; what is in an urgent one goes first where both could run."""

    def timing_event(self) -> Event:
        """Make an event that can be compared with others in time."""

    def capturing(self) -> bool:
        """Say whether what is called now goes into a graph instead of being run."""

    def synchronize(self) -> None:
        """Let the host wait for all that is queued."""


class CudaDevice:
    """One CUDA device; see `Device`."""

    def __init__(self, kind: torch.device) -> None:
        self._kind = kind

    @property
    def kind(self) -> torch.device:
        """Where its tensors lie."""
        return self._kind

    def current(self) -> Stream:
        """See `Device`."""
        return torch.cuda.current_stream(self._kind)

    def on(self, stream: Stream) -> AbstractContextManager[object]:
        """See `Device`."""
        return torch.cuda.stream(stream)  # type: ignore[arg-type]

    def stream(self, *, urgent: bool) -> Stream:
        """See `Device`; lower numbers are more urgent in CUDA."""
        made: Stream = torch.cuda.Stream(self._kind, priority=-1 if urgent else 0)  # type: ignore[no-untyped-call]
        return made

    def timing_event(self) -> Event:
        """See `Device`."""
        made: Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return made

    def capturing(self) -> bool:
        """See `Device`."""
        return torch.cuda.is_current_stream_capturing()

    def synchronize(self) -> None:
        """See `Device`."""
        torch.cuda.synchronize(self._kind)


def check_connections(streams: int, environment: Mapping[str, str] | None = None) -> None:
    """Warn where streams will share hardware queues, so that work waits that need not.

    The order in which work is handed over keeps this from hanging (`ordering`); what is lost is
    overlap.

    Args:
        streams: Streams in use, those of the communicators included.
        environment: Variables to look at, instead of the process's own.
    """
    variables = os.environ if environment is None else environment
    text = variables.get("CUDA_DEVICE_MAX_CONNECTIONS", str(CONNECTIONS))
    connections = int(text) if text.isdecimal() else CONNECTIONS
    if streams > connections:
        warnings.warn(
            f"attention: the plan uses {streams} CUDA streams, but the device takes work through "
            f"{connections} queues (CUDA_DEVICE_MAX_CONNECTIONS={text}): transfers and kernels "
            f"that share a queue may wait for each other; set CUDA_DEVICE_MAX_CONNECTIONS={streams}"
            f" or more (at most 32) before the process first uses CUDA",
            RuntimeWarning,
            stacklevel=2,
        )


__all__ = ["CONNECTIONS", "CudaDevice", "Device", "Event", "Stream", "Work", "check_connections"]
