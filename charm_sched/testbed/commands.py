"""What touches the system: `ip` and `tc` batches, settings of a namespace, joining one."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

from charm_sched.errors import CharmSchedError

FOLDER = Path("/var/run/netns")  # where `ip netns` names namespaces, see ip-netns(8)
_SEARCH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_BEFORE_STATE = 2  # fields of /proc/PID/stat; the start time is field 22, see proc(5)
_CLONE_NEWNET = 0x40000000  # linux/sched.h

Result = TypeVar("Result")


class TestbedError(CharmSchedError):
    """The network could not be built, verified or changed."""

    __test__: ClassVar[bool] = False  # not a class of tests, whatever its name begins with


def run_prefix() -> str:
    """Return what names of a new network begin with: this process, its start, a time."""
    pid = os.getpid()
    return f"charm-{pid}-{start_time(pid) or 0:x}-{time.monotonic_ns():x}"


def start_time(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[22 - _BEFORE_STATE - 1])


def program(name: str) -> str | None:
    """Return the path of `ip` or `tc`, also where PATH leaves out the folders of root."""
    return shutil.which(name, path=_SEARCH)


def ip_batch(lines: Sequence[str], namespace: str | None = None, *, force: bool = False) -> None:
    """Run lines through one `ip -batch`, inside a namespace; `force` goes on after a failure.

    Raises:
        TestbedError: a line was refused, and not `force`.
    """
    _batch("ip", lines, namespace, force)


def tc_batch(lines: Sequence[str], namespace: str) -> None:
    """Run lines through one `tc -batch` inside a namespace.

    Raises:
        TestbedError: a line was refused.
    """
    _batch("tc", lines, namespace, force=False)


def query(tool: str, namespace: str, *arguments: str) -> str:
    """Return what `ip` or `tc` prints inside a namespace.

    Raises:
        TestbedError: it failed.
    """
    done = _run([tool, "-n", namespace, *arguments])
    if done.returncode:
        raise TestbedError(f"{namespace}: {tool} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _batch(tool: str, lines: Sequence[str], namespace: str | None, force: bool) -> None:
    if not lines:
        return
    command = [tool, *(["-n", namespace] if namespace else []), *(["-force"] if force else [])]
    done = _run([*command, "-batch", "-"], "\n".join(lines) + "\n")
    if done.returncode and not force:
        number = re.search(r"Command failed -:(\d+)", done.stderr)
        line = lines[int(number.group(1)) - 1] if number else lines[0]
        reason = " ".join(
            text for text in done.stderr.splitlines() if not text.startswith("Command failed")
        )
        raise TestbedError(
            f'{namespace or "namespaces"}: expected {tool} to accept "{line}", '
            f"found: {reason or f'exit status {done.returncode}'}"
        )


def _run(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Run in a session of its own, so that a Ctrl-C meant for us does not cut it short."""
    path = program(command[0])
    if path is None:
        raise TestbedError(f"expected the program {command[0]}, found none: install iproute2")
    return subprocess.run(
        [path, *command[1:]],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
    )


def join_namespace(path: str | os.PathLike[str]) -> None:
    """Move the calling thread into the network namespace at `path`; nothing else changes.

    Sockets stay in the namespace they were opened in. Call it in a fresh process or thread.

    Raises:
        OSError: no such namespace, or no permission.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if sys.version_info >= (3, 12):
            os.setns(descriptor, _CLONE_NEWNET)
        elif ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(path))
    finally:
        os.close(descriptor)


def inside(path: str | os.PathLike[str], call: Callable[[], Result]) -> Result:
    """Return `call()`, made by a thread that has joined the namespace; its exception is raised."""
    results: list[Result] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            join_namespace(path)
            results.append(call())
        except BaseException as error:  # noqa: BLE001, RUF100  (carried to the caller)
            failures.append(error)

    thread = threading.Thread(target=work, name="charm-namespace")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def write_settings(namespaces: Sequence[str], settings: Sequence[tuple[str, str]]) -> None:
    """Write settings under /proc/sys/net in each namespace, in order.

    Those that this kernel does not have are left out (IPv6 may be absent).

    Raises:
        TestbedError: the kernel refused a value.
    """
    for name in namespaces:
        inside(FOLDER / name, partial(_write, name, settings))


def _write(namespace: str, settings: Sequence[tuple[str, str]]) -> None:
    for key, value in settings:
        try:
            with suppress(FileNotFoundError):
                Path("/proc/sys/net", key).write_text(value)
        except OSError as error:
            raise TestbedError(f"{namespace}: {key} = {value}: {error.strerror}") from error


__all__ = [
    "FOLDER",
    "TestbedError",
    "inside",
    "ip_batch",
    "join_namespace",
    "program",
    "query",
    "run_prefix",
    "start_time",
    "tc_batch",
    "write_settings",
]
