"""Where plans and traces are written, without destroying anything that is neither."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.errors import CharmSchedError, PlanFileError
from charm_sched.units import format_tokens

if TYPE_CHECKING:
    from charm_sched.plans.plan import Plan, Schedule

SUFFIXES = (".json", ".npz")
TRACE_START = b'{"displayTimeUnit":"ns","otherData":{"direction":"'
PLAN_MARK, TOPOLOGY_MARK = b"charm-sched/plan", b"charm-sched/topology"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A plan file that was written.

    Attributes:
        path: Where.
        replaced: What an older plan there was for; empty if none stood there.
    """

    path: Path
    replaced: str = ""

    def __str__(self) -> str:
        return f"Saved {self.path}" + (f" (replaced {self.replaced})." if self.replaced else "")


def default_targets(name: str) -> tuple[Path, ...]:
    """Give the names that a plan for a machine may be saved under by default: small, large."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", name)
    return tuple(Path(f"{stem}.plan{suffix}") for suffix in SUFFIXES)


def check_target(path: Path) -> Plan | Schedule | None:
    """Check, before long work, that a plan can be saved under a name.

    Returns:
        The plan that stands there now.

    Raises:
        PlanFileError: An unknown suffix, no such folder, or a file that is no plan stands there.
    """
    from charm_sched.plans.storage import load_plan

    if path.suffix not in SUFFIXES:
        raise PlanFileError(f"{path}: expected a name that ends in .json or .npz")
    check_folder(path)
    if not path.exists():
        return None
    if not path.is_file():
        raise PlanFileError(f"{path}: expected the name of a file, found something else there")
    try:
        return load_plan(path)
    except PlanFileError as error:
        raise PlanFileError(
            f"{path}: stands there already and is no plan of charm-sched, so it is left alone; "
            "choose another name with -o, or remove it"
        ) from error


def save(stored: Plan | Schedule, target: Path | None, name: str) -> Saved:
    """Save a plan under ``target``, by default as ``NAME.plan.json`` or ``.npz`` in this folder.

    Raises:
        PlanFileError: A file that is no plan stands there, or it cannot be written.
    """
    from charm_sched.plans.storage import plan_suffix, save_plan

    if target is None:
        small, large = default_targets(name)
        target = small if small.name.endswith(plan_suffix(stored)) else large
    before = check_target(target)
    replaced = "" if before is None else _difference(before, stored)
    return Saved(path=save_plan(stored, target), replaced=replaced)


def _difference(before: Plan | Schedule, now: Plan | Schedule) -> str:
    """Say what a plan was for, where it was for something else."""
    old, new = (_first(stored) for stored in (before, now))
    if (old.workload, old.devices) == (new.workload, new.devices):
        return "the plan that was there"
    return f"a plan for {format_tokens(old.workload.seq_len)} tokens on {old.num_ranks} ranks"


def _first(stored: Plan | Schedule) -> Plan:
    return next(iter(stored.plans)) if hasattr(stored, "plans") else stored


def trace_targets(path: Path, directions: Sequence[str]) -> dict[str, Path]:
    """Give the trace file of each direction; two go to ``NAME.DIRECTION.json``."""
    if len(directions) == 1:
        return {directions[0]: path}
    return {d: path.parent / f"{path.stem}.{d}{path.suffix}" for d in directions}


def check_traces(path: Path, directions: Sequence[str], flag: str) -> None:
    """Check, before long work, that traces can be written.

    Args:
        path: What the user asked for.
        directions: Of the traces.
        flag: Which asked for it.

    Raises:
        CharmSchedError: A target is a file that is no trace, or its folder is not there or cannot
            be written to.
    """
    for target in trace_targets(path, directions).values():
        check_place(target, TRACE_START, "trace", flag)


def check_is_name(path: Path, flag: str) -> None:
    """Check that a flag names a file, not a folder.

    Raises:
        CharmSchedError: It is a folder.
    """
    if path.is_dir():
        raise CharmSchedError(f"{path}: expected the name of a file for {flag}, found a folder")


def check_apart(plans: Sequence[Path], targets: Sequence[tuple[str, Path]]) -> None:
    """Check that no two flags write to the same place.

    Args:
        plans: Files that plans are read from or go to.
        targets: Flags with what each writes: a file, or for ``--chakra`` a folder with all in it.

    Raises:
        CharmSchedError: A flag names a plan, or two flags name one file, or one names a file in
            a folder that another fills.
    """
    seen: list[tuple[str, Path]] = [("", path.resolve()) for path in plans]
    for flag, path in targets:
        own = path.resolve()
        for other, place in seen:
            if own not in (place, place.parent) and place != own.parent:
                continue
            if not other and own == place:
                raise CharmSchedError(f"{path}: the plan has this name; choose another for {flag}")
            what = f"{other or 'the plan'} and {flag}"
            same = "have one name" if own == place else "are a folder and a file in it"
            raise CharmSchedError(f"{path}: {what} {same}; choose another for {flag}")
        seen += [(flag, own)]


def check_place(path: Path, start: bytes, kind: str, flag: str) -> None:
    """Check that a file can be written, and replaces nothing but one of its kind.

    Args:
        path: The file.
        start: How files of its kind begin; empty where none is replaced.
        kind: What they are called.
        flag: Which names it.

    Raises:
        CharmSchedError: Another file stands there, or nothing can be written there.
    """
    check_folder(path)
    if not path.exists():
        return
    if not start or not path.is_file() or not _starts_with(path, start):
        raise CharmSchedError(
            f"{path}: stands there already and is no {kind} of charm-sched, so it is left alone; "
            f"choose another name for {flag}, or remove it"
        )
    if not os.access(path, os.W_OK):
        raise CharmSchedError(f"{path}: cannot be written")


def check_folder(path: Path) -> None:
    """Check that a file can be made in its folder.

    Raises:
        PlanFileError: There is no such folder, or nothing can be written to it.
    """
    if not path.parent.is_dir():
        raise PlanFileError(f"{path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise PlanFileError(f"{path}: the folder {path.parent} cannot be written to")


def _starts_with(path: Path, start: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(start)) == start


def is_plan_file(path: str) -> bool:
    """Say whether a file, however broken, was meant as a plan."""
    source = Path(path)
    return source.is_file() and (source.suffix == ".npz" or PLAN_MARK in _content(source))


def is_topology(path: str) -> bool:
    """Say whether this is the name of a shipped topology, or a file meant as one."""
    from charm_sched.topology.graph import shipped_names

    source = Path(path)
    if not source.is_file():
        return path in shipped_names()
    content = _content(source)
    return PLAN_MARK not in content and TOPOLOGY_MARK in content


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(2**24)
    except OSError:
        return b""
