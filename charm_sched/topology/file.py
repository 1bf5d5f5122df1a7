"""Topology files: found, read safely and strictly, checked whole."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from charm_sched.errors import TopologyError
from charm_sched.topology import yaml_tree as topology_yaml
from charm_sched.topology.build import build
from charm_sched.topology.graph import Topology
from charm_sched.topology.reader import Cursor, nearest
from charm_sched.topology.spec import read_document
from charm_sched.topology.text import read_text

SHIPPED = Path(__file__).parent.parent / "topologies"  # a link in a checkout, a folder in the wheel


def shipped_names() -> tuple[str, ...]:
    """Return the names of the topologies that come with the package, sorted."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def load_topology(source: str | os.PathLike[str]) -> Topology:
    """Return the topology of a shipped name (without .yaml) or of a file.

    Raises:
        TopologyError: with file, line, path, what was expected and what was found.
    """
    path = _find(os.fspath(source))
    shipped = path.parent == SHIPPED
    where = path.name if shipped else os.fspath(source)
    topology = parse_topology(read_text(path), where=where, folder=path.parent)
    topology.domains()  # the tier names must fit the hierarchy
    return topology


def parse_topology(text: str, *, where: str, folder: Path | None = None) -> Topology:
    """Return the topology of YAML text; `where` begins every message.

    Profile files that it names are looked for in `folder`; without one they are refused.
    """
    node = topology_yaml.from_text(text, where=where)
    return build(read_document(Cursor(node, "", where), folder))


def read_topology(document: Mapping[str, Any], *, where: str) -> Topology:
    """Return the topology of a document of plain values; `where` begins every message."""
    node = topology_yaml.from_value(document, where=where)
    return build(read_document(Cursor(node, "", where)))


def _find(source: str) -> Path:
    names = shipped_names()
    if source in names:
        return SHIPPED / f"{source}.yaml"
    path = Path(source)
    try:
        is_file, exists, is_folder = path.is_file(), path.exists(), path.is_dir()
    except (OSError, ValueError) as error:
        raise TopologyError(f"{source}: expected a topology file, found {error}") from error
    if is_file:
        return path
    if exists:
        found = "a directory" if is_folder else "something that is no file"
        raise TopologyError(f"{source}: expected a topology file, found {found}")
    near = nearest(path.stem, names)
    raise TopologyError(
        f"{source}: expected a topology file or a shipped name, found no such file"
        + (f' (did you mean "{near}"?)' if near else "")
        + f"; charm-topo list shows the {len(names)} shipped ones"
    )
