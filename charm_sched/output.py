"""Where a plan is saved, without destroying anything that is no plan."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.errors import PlanFileError

if TYPE_CHECKING:
    from charm_sched.plans import Plan, Schedule

SUFFIXES = (".json", ".npz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A plan file that was written.

    Attributes:
        path: Where.
        replaced: Whether an older plan stood there.
    """

    path: Path
    replaced: bool

    def __str__(self) -> str:
        return f"Saved {self.path}" + (" (replaced the plan that was there)." * self.replaced)


def check_target(path: Path) -> None:
    """Check, before long work, that a plan can be saved under a name.

    Raises:
        PlanFileError: An unknown suffix, no such folder, or a file that is no plan stands there.
    """
    from charm_sched.storage import load_plan

    if path.suffix not in SUFFIXES:
        raise PlanFileError(f"{path}: expected a name that ends in .json or .npz")
    if not path.parent.is_dir():
        raise PlanFileError(f"{path}: there is no folder {path.parent}")
    if not path.exists():
        return
    try:
        load_plan(path)
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
    from charm_sched.storage import plan_suffix, save_plan

    if target is None:
        target = Path(re.sub(r"[^A-Za-z0-9._-]+", "_", name) + plan_suffix(stored))
    check_target(target)
    replaced = target.exists()
    return Saved(path=save_plan(stored, target), replaced=replaced)
