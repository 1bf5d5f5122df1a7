"""The network itself: built, verified, disturbed on purpose, and always torn down.

>>> with Testbed(topology, devices, scale=1e-3) as bed:   # doctest: +SKIP
...     bed.namespace("gpu0"), bed.address("gpu0"), bed.interfaces("gpu0")
('/var/run/netns/charm-4711-2a0f-51c3a9-d0', '10.77.0.1', ('eth0',))
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ClassVar

from charm_sched.errors import TopologyError
from charm_sched.testbed import requirements, scripts
from charm_sched.testbed.blueprint import Blueprint, blueprint
from charm_sched.testbed.commands import (
    FOLDER,
    TestbedError,
    ip_batch,
    join_namespace,
    run_prefix,
    start_time,
    tc_batch,
    write_settings,
)
from charm_sched.testbed.paths import Pair
from charm_sched.testbed.shaping import Shaper, cut_line, rate_lines, restore_line
from charm_sched.testbed.verify import verify
from charm_sched.topology.graph import Topology

_NAME = re.compile(r"charm-(\d+)-([0-9a-f]+)-[0-9a-f]+-\w+")


class Testbed:
    """A network for some devices of a topology; a context manager.

    Args:
        topology: what is modelled.
        devices: those that take part, in order of rank; all by default.
        scale: what nominal rates are multiplied by; `capacity.choose_scale` finds a safe one.

    Raises:
        TopologyError: see `blueprint`.
        TestbedError: on entering: something is missing here, or the network does not work.
    """

    __test__: ClassVar[bool] = False  # not a class of tests, whatever its name begins with

    def __init__(
        self, topology: Topology, devices: Sequence[str] | None = None, *, scale: float
    ) -> None:
        names = tuple(topology.device_names if devices is None else devices)
        self._drawing = blueprint(topology, names, scale=scale, prefix=run_prefix())
        self._owner = os.getpid()
        self._cut: set[int] = set()
        self._signals = _Unwinding()

    @property
    def blueprint(self) -> Blueprint:
        """What is built."""
        return self._drawing

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The ordered pairs of devices that can talk."""
        return tuple(self._drawing.paths)

    def __enter__(self) -> Testbed:
        reason = requirements.missing()
        if reason:
            raise TestbedError(reason)
        sweep_leftovers()
        self._signals.install()
        try:
            self._build()
            verify(self._drawing)
        except BaseException:
            self._tear_down()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tear_down()

    def _build(self) -> None:
        drawing = self._drawing
        names = [each.name for each in drawing.namespaces]
        ip_batch([f"netns add {name}" for name in names])
        write_settings(names, scripts.SETTINGS)
        forwarding = [each.name for each in drawing.namespaces if each.role != "device"]
        write_settings(forwarding, scripts.FORWARDING)
        for each in drawing.namespaces:
            ip_batch(list(scripts.ip_lines(drawing, each)), each.name)
        for each in drawing.namespaces:
            tc_batch(list(scripts.tc_lines(drawing, each)), each.name)

    def _tear_down(self) -> None:
        if os.getpid() != self._owner:  # a forked child leaves the network to its parent
            return
        try:
            _delete([each.name for each in self._drawing.namespaces])
        finally:
            self._signals.restore()

    def namespace(self, device: str) -> Path:
        """Return the path of a device's namespace, for `join_namespace` or `nsenter --net=`."""
        return FOLDER / self._drawing.of_device(device).name

    def address(self, device: str) -> str:
        """Return the IPv4 address of a device."""
        address = self._drawing.of_device(device).address
        assert address is not None
        return address

    def interfaces(self, device: str) -> tuple[str, ...]:
        """Return a device's interfaces; its address is on the first, routes choose among all."""
        return self._drawing.of_device(device).interfaces

    def enter(self, device: str) -> None:
        """Move the calling thread into a device's namespace, for good: call it in a fresh rank."""
        join_namespace(self.namespace(device))

    def set_rate(self, link: int, factor: float, *, both: bool = True) -> None:
        """Set a link to `factor` of its rate while traffic runs; flow caps stay as they are.

        Args:
            link: index in Topology.links.
            factor: above 0; 1 is the nominal rate.
            both: the opposite direction too (always so where the link is half duplex).

        Raises:
            TopologyError: no such link, no route crosses it, or a factor not above 0.
        """
        if not 0 < factor < float("inf"):
            raise TopologyError(f"link {link}: expected a factor above 0, found {factor}")
        for shaper in self._shapers(link, both):
            tc_batch(list(rate_lines(shaper, factor)), shaper.namespace)

    def cut(self, link: int, *, both: bool = True) -> None:
        """Drop silently what would cross a link, as if the cable were out; nobody is told.

        What is already queued behind the cut still arrives. Cutting twice changes nothing.

        Raises:
            TopologyError: no such link, or no route crosses it.
        """
        for shaper in self._shapers(link, both):
            if shaper.capacity not in self._cut:
                tc_batch([cut_line(shaper)], shaper.namespace)
                self._cut.add(shaper.capacity)

    def restore(self, link: int, *, both: bool = True) -> None:
        """Undo `cut` and `set_rate`.

        Raises:
            TopologyError: no such link, or no route crosses it.
        """
        for shaper in self._shapers(link, both):
            tc_batch(list(rate_lines(shaper, 1.0)), shaper.namespace)
            if shaper.capacity in self._cut:
                tc_batch([restore_line(shaper)], shaper.namespace)
                self._cut.discard(shaper.capacity)

    @contextmanager
    def flap(self, link: int, *, down: float, up: float, both: bool = True) -> Iterator[None]:
        """Cut a link for `down` seconds and restore it for `up`, again and again, in a thread.

        On leaving, the link is restored.

        Raises:
            TopologyError: no such link, or no route crosses it.
        """
        self._shapers(link, both)
        ended = threading.Event()

        def work() -> None:
            while not ended.is_set():
                self.cut(link, both=both)
                ended.wait(down)
                self.restore(link, both=both)
                ended.wait(up)

        thread = threading.Thread(target=work, name="charm-flap")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _shapers(self, link: int, both: bool) -> list[Shaper]:
        """Return the shapers of a link, and those of its opposite."""
        topology = self._drawing.topology
        if not 0 <= link < len(topology.links):
            raise TopologyError(
                f"{topology.name}: expected one of its {len(topology.links)} links, found {link}"
            )
        wanted = (link, link ^ 1) if both else (link,)
        capacities = dict.fromkeys(topology.link_capacity[i] for i in wanted)
        found = [self._drawing.shapers[c] for c in capacities if c in self._drawing.shapers]
        if not found:
            name = topology.capacities[topology.link_capacity[link]].name
            raise TopologyError(
                f"{topology.name}: expected a link that some route between the devices crosses, "
                f"found link {link} ({name})"
            )
        return found


class _Unwinding:
    """Lets SIGTERM and SIGHUP unwind the stack, as Ctrl-C does, so that tear-down runs."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may; leftovers are swept by the next run
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                self._before[number] = signal.signal(number, _exit)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def sweep_leftovers() -> tuple[str, ...]:
    """Remove the namespaces of runs whose process is gone; return their names.

    A run is known by the number and the start time of its process, so that a number that is used
    again does not protect what an earlier process left.
    """
    found = sorted(path.name for path in FOLDER.glob("charm-*")) if FOLDER.is_dir() else []
    dead = []
    for name in found:
        match = _NAME.fullmatch(name)
        if match and start_time(int(match.group(1))) != int(match.group(2), 16):
            dead.append(name)
    _delete(dead)
    return tuple(dead)


def _delete(names: Sequence[str]) -> None:
    """Delete those of the namespaces that exist; wires go with them."""
    there = [name for name in names if (FOLDER / name).exists()]
    ip_batch([f"netns delete {name}" for name in there], force=True)


__all__ = ["Testbed", "sweep_leftovers"]
