"""Plain TCP traffic over a testbed, and the rate each pair of devices gets.

Sockets stay in the namespace they were opened in, so one process can talk for all devices.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from charm_sched.testbed.commands import inside
from charm_sched.testbed.network import Testbed

_CHUNK = bytes(1 << 16)
_PATIENCE = 5.0  # seconds to connect
_GLANCE = 0.1  # seconds between looks at whether traffic has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What had arrived at an instant: seconds of the monotonic clock, bytes per flow."""

    time: float
    counts: tuple[int, ...]


class Traffic:
    """Flows that send as fast as they can, from entering to leaving.

    Args:
        bed: a network that stands.
        pairs: source and destination of each flow; a pair named twice is two connections.
    """

    def __init__(self, bed: Testbed, pairs: Sequence[tuple[str, str]]) -> None:
        self._bed, self._pairs = bed, tuple(pairs)
        self._counts = [0] * len(self._pairs)
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()

    def __enter__(self) -> Traffic:
        try:
            ends = [connect(self._bed, src, dst) for src, dst in self._pairs]
        except BaseException:
            self._close()
            raise
        senders = [sender for sender, _ in ends]
        receivers = [receiver for _, receiver in ends]
        self._sockets = senders + receivers
        lanes = min(len(ends), os.cpu_count() or 1)
        for lane in range(lanes):
            numbers = range(lane, len(ends), lanes)
            for work, sockets in ((self._send, senders), (self._receive, receivers)):
                thread = threading.Thread(target=work, args=({i: sockets[i] for i in numbers},))
                self._threads.append(thread)
                thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def received(self) -> Received:
        """Return what has arrived so far."""
        return Received(time=time.monotonic(), counts=tuple(self._counts))

    def rates(self, seconds: float) -> list[float]:
        """Return the bytes of payload per second that each flow gets from now on."""
        before = self.received()
        time.sleep(seconds)
        after = self.received()
        passed = after.time - before.time
        return [(b - a) / passed for a, b in zip(before.counts, after.counts, strict=True)]

    def _send(self, sockets: Mapping[int, socket.socket]) -> None:
        for number in self._ready(sockets, selectors.EVENT_WRITE):
            with suppress(BlockingIOError):
                sockets[number].send(_CHUNK)

    def _receive(self, sockets: Mapping[int, socket.socket]) -> None:
        buffer = bytearray(_CHUNK)
        for number in self._ready(sockets, selectors.EVENT_READ):
            with suppress(BlockingIOError):
                self._counts[number] += sockets[number].recv_into(buffer)

    def _ready(self, sockets: Mapping[int, socket.socket], events: int) -> Iterator[int]:
        """Yield the flows that can go on, in turn, until traffic ends."""
        with selectors.DefaultSelector() as waiting:
            for number, sock in sockets.items():
                sock.setblocking(False)
                waiting.register(sock, events, number)
            while not self._ended.is_set():
                for key, _ in waiting.select(_GLANCE):
                    yield key.data

    def _close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()


def connect(bed: Testbed, src: str, dst: str) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a new connection, the sender's first.

    Raises:
        OSError: no connection within five seconds.
    """

    def listen() -> socket.socket:
        return socket.create_server((bed.address(dst), 0))

    with inside(bed.namespace(dst), listen) as listener:
        listener.settimeout(_PATIENCE)
        where = listener.getsockname()
        sender = inside(
            bed.namespace(src), lambda: socket.create_connection(where, timeout=_PATIENCE)
        )
        sender.settimeout(None)
        try:
            receiver, _ = listener.accept()
        except BaseException:
            sender.close()
            raise
    receiver.settimeout(None)
    return sender, receiver


def measure(
    bed: Testbed, pairs: Sequence[tuple[str, str]], *, settle: float = 0.3, seconds: float = 1.0
) -> Mapping[tuple[str, str], float]:
    """Return the bytes of payload per second of all pairs that send at once."""
    with Traffic(bed, pairs) as traffic:
        time.sleep(settle)
        rates = traffic.rates(seconds)
    total: dict[tuple[str, str], float] = {}
    for pair, rate in zip(pairs, rates, strict=True):
        total[pair] = total.get(pair, 0.0) + rate
    return total


__all__ = ["Received", "Traffic", "connect", "measure"]
