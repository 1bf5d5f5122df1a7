"""Compute profiles as files of their own: the shipped ones, and a user's.

A device of a topology names a profile of the same file or, where that has none of the name, a
shipped one. Profile files are read as strictly as topologies.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.topology import yaml_tree
from charm_sched.topology.compute import PROFILE_OPTIONAL, PROFILE_REQUIRED, profile_of
from charm_sched.topology.profile_document import profile_document
from charm_sched.topology.reader import Cursor
from charm_sched.topology.text import read_text

if TYPE_CHECKING:
    from charm_sched.topology.profiles import ComputeProfile

PROFILE_SCHEMA = "charm-sched/profile"
PROFILE_VERSION = 1
SHIPPED_PROFILES = Path(__file__).parent.parent / "topologies" / "profiles"
HEAD = ("schema", "version", "name")
_WIDTH = 120


def shipped_profiles() -> tuple[str, ...]:
    """Return the names of the profiles that come with the package, sorted."""
    return tuple(sorted(path.stem for path in SHIPPED_PROFILES.glob("*.yaml")))


def shipped_profile(name: str) -> ComputeProfile:
    """Return a profile that comes with the package.

    Raises:
        TopologyError: its file is not exactly as the schema says.
    """
    path = SHIPPED_PROFILES / f"{name}.yaml"
    return parse_profile(read_text(path), where=f"profiles/{path.name}")


def load_profile(path: Path) -> ComputeProfile:
    """Return the profile of a file.

    Raises:
        TopologyError: with file, line, path, what was expected and what was found.
    """
    return parse_profile(read_text(path), where=str(path))


def parse_profile(text: str, *, where: str) -> ComputeProfile:
    """Return the profile of YAML text; `where` begins every message."""
    cursor = Cursor(yaml_tree.from_text(text, where=where), "", where)
    cursor.document(PROFILE_SCHEMA, PROFILE_VERSION)
    entries = cursor.mapping((*HEAD, *PROFILE_REQUIRED), ("description", *PROFILE_OPTIONAL))
    if "description" in entries:
        entries["description"].text()
    return profile_of(entries["name"].name("a profile name"), entries)


def profile_text(profile: ComputeProfile, description: str = "") -> str:
    """Return a profile as the YAML text of a file of its own."""
    import yaml

    head = {"schema": PROFILE_SCHEMA, "version": PROFILE_VERSION, "name": profile.name}
    document = head | ({"description": description} if description else {})
    document |= profile_document(profile)
    return yaml.safe_dump(
        document, sort_keys=False, default_flow_style=None, width=_WIDTH, allow_unicode=True
    )
