"""Proof that a network that was built is the one that was drawn: queues, and who reaches whom."""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from functools import partial

from charm_sched.testbed.blueprint import MEDIUM, Blueprint, Namespace
from charm_sched.testbed.commands import FOLDER, TestbedError, inside, query
from charm_sched.testbed.paths import Pair

_PORT = 1
_PATIENCE = 5.0  # seconds for all connections together
_AT_ONCE = 500
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close at once


def verify(drawing: Blueprint) -> None:
    """Check that each interface has its queue and each routed pair connects.

    Raises:
        TestbedError: the first interface or the pairs for which it is not so.
    """
    for namespace in drawing.namespaces:
        _check_queues(drawing, namespace)
    _check_connections(drawing)


def _check_queues(drawing: Blueprint, namespace: Namespace) -> None:
    shaped = {s.interface for s in drawing.shapers.values() if s.namespace == namespace.name}
    medium = namespace.role == "medium"
    expected = {
        name: {"htb"} if name in shaped else {"noqueue"} | ({"ingress"} if medium else set())
        for name in (*namespace.interfaces, *([MEDIUM] if medium else []))
    }
    found: dict[str, set[str]] = {name: set() for name in expected}
    for entry in json.loads(query("tc", namespace.name, "-json", "qdisc", "show")):
        if entry.get("root") or entry["kind"] == "ingress":
            found.setdefault(entry["dev"], set()).add(entry["kind"])
    for name, kinds in expected.items():
        if found[name] != kinds:
            raise TestbedError(
                f"{namespace.name} ({namespace.part}), interface {name}: "
                f"expected the queues {sorted(kinds)}, found {sorted(found[name])}"
            )


def _check_connections(drawing: Blueprint) -> None:
    """Connect every pair over TCP; switches answer for nobody, so a wrong route is a silence."""
    devices = drawing.namespaces[: len(drawing.devices)]
    listeners = [inside(FOLDER / each.name, partial(_listen, each)) for each in devices]
    try:
        pairs = list(drawing.paths)
        failed: dict[Pair, str] = {}
        for start in range(0, len(pairs), _AT_ONCE):
            failed |= _connect(drawing, pairs[start : start + _AT_ONCE])
    finally:
        for listener in listeners:
            listener.close()
    if failed:
        some = "; ".join(f"{a} to {b}: {why}" for (a, b), why in list(failed.items())[:3])
        raise TestbedError(
            f"{drawing.topology.name}: expected {len(pairs)} pairs of devices to connect, "
            f"found {len(failed)} that do not: {some}"
        )


def _listen(namespace: Namespace) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((namespace.address, _PORT))
    listener.listen(4096)
    return listener


def _open(count: int) -> list[socket.socket]:
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.setblocking(False)
    return sockets


def _connect(drawing: Blueprint, pairs: Sequence[Pair]) -> dict[Pair, str]:
    """Return the pairs that did not connect, and why."""
    by_source: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_source.setdefault(pair[0], []).append(pair)
    failed: dict[Pair, str] = {}
    with selectors.DefaultSelector() as waiting:
        try:
            for src, wanted in by_source.items():
                path, count = FOLDER / drawing.of_device(src).name, len(wanted)
                opened = inside(path, partial(_open, count))
                for sock, pair in zip(opened, wanted, strict=True):
                    waiting.register(sock, selectors.EVENT_WRITE, pair)
                    code = sock.connect_ex((drawing.of_device(pair[1]).address, _PORT))
                    if code not in (0, errno.EINPROGRESS):
                        failed[pair] = os.strerror(code)
            _collect(waiting, failed)
            failed |= {key.data: "no answer" for key in waiting.get_map().values()}
        finally:
            for key in list(waiting.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
    return failed


def _collect(waiting: selectors.BaseSelector, failed: dict[Pair, str]) -> None:
    """Close what has connected or failed, until nothing is left or patience is at its end."""
    deadline = time.monotonic() + _PATIENCE
    while waiting.get_map() and time.monotonic() < deadline:
        for key, _ in waiting.select(deadline - time.monotonic()):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                failed[key.data] = os.strerror(code)
            waiting.unregister(sock)
            sock.close()


__all__ = ["verify"]
