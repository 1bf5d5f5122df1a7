"""What this machine lacks for a testbed."""

from __future__ import annotations

import functools
import os
import platform
import sys
from pathlib import Path

from charm_sched.testbed.commands import TestbedError, ip_batch, program, run_prefix, tc_batch

_HOW = "install iproute2 (apt install iproute2, dnf install iproute iproute-tc)"
_TRIALS = (  # what is tried, in a namespace that is thrown away: feature, modules, tool, lines
    ("veth", "veth", "ip", ("link add eth0 type veth peer name eth1", "link set eth0 up")),
    ("ifb", "ifb numifbs=0", "ip", ("link add ifb0 type ifb", "link set ifb0 up")),
    (
        "HTB",
        "sch_htb",
        "tc",
        (
            "qdisc add dev eth0 root handle 1: htb default 1",
            "class add dev eth0 parent 1: classid 1:1 htb rate 8000bit",
        ),
    ),
    (
        "u32",
        "cls_u32",
        "tc",
        ("filter add dev eth0 parent 1: protocol ip prio 1 u32 match u32 0 0 flowid 1:1",),
    ),
    (
        "ingress and mirred",
        "sch_ingress act_mirred",
        "tc",
        (
            "qdisc add dev eth0 ingress",
            "filter add dev eth0 parent ffff: protocol ip u32 match u32 0 0 "
            "action mirred egress redirect dev ifb0",
        ),
    ),
)


@functools.cache
def missing() -> str | None:
    """Return what is missing for a testbed and how to get it, in one sentence; None if nothing.

    Found by trying, in a network namespace that is removed again; asked once per process.
    """
    if not sys.platform.startswith("linux"):
        return f"a testbed needs Linux (network namespaces, tc), found {sys.platform}"
    if os.geteuid() != 0:
        return "a testbed needs root (network namespaces, tc), found an ordinary user: use sudo"
    for tool in ("ip", "tc"):
        if program(tool) is None:
            return f"a testbed needs the program {tool}, found none: {_HOW}"
    if _unloaded("ifb"):  # loaded on demand it would put devices into the host's namespace
        return "a testbed needs the kernel module ifb: modprobe ifb numifbs=0"
    return _try()


def _unloaded(module: str) -> bool:
    """Say whether a feature is a module that is not loaded (not built in, not absent)."""
    folder = Path("/lib/modules", platform.release())
    loaded = any(line.startswith(f"{module} ") for line in _lines(Path("/proc/modules")))
    return not loaded and any(folder.glob(f"kernel/**/{module}.ko*"))


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _try() -> str | None:
    name = f"{run_prefix()}-trial"
    try:
        ip_batch([f"netns add {name}"])
    except TestbedError as error:
        return f"a testbed needs network namespaces (ip netns add), found: {error}"
    try:
        for feature, modules, tool, lines in _TRIALS:
            try:
                (ip_batch if tool == "ip" else tc_batch)(lines, name)
            except TestbedError as error:
                loads = " and ".join(f"modprobe {m}" for m in modules.split(" and "))
                return f"a testbed needs {feature} in the kernel ({loads}), found: {error}"
    finally:
        ip_batch([f"netns delete {name}"], force=True)
    return None


__all__ = ["missing"]
