"""Topology and profile files as text: read whole, written as YAML for people, or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.errors import TopologyError
from charm_sched.files import write_whole

if TYPE_CHECKING:
    from charm_sched.topology.graph import Topology

MAX_BYTES = 256 * 2**20
_WIDTH = 120


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        TopologyError: it cannot be read, is far too large or is no UTF-8.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TopologyError(f"{path}: expected at most {MAX_BYTES} bytes, found more")
        data = path.read_bytes()
    except OSError as error:
        raise TopologyError(
            f"{path}: expected a readable file, found: {error.strerror or error}"
        ) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TopologyError(
            f"{path}:{line}: expected UTF-8 text, found byte 0x{data[error.start]:02x} "
            "(save the file as UTF-8)"
        ) from error


def write_topology(topology: Topology, path: Path) -> None:
    """Write a topology in its explicit form; the suffix .json gives JSON, any other YAML."""
    document = topology.to_document()
    if path.suffix == ".json":
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        write_whole(path, text.encode())
        return
    import yaml

    text = yaml.safe_dump(
        document, sort_keys=False, default_flow_style=None, width=_WIDTH, allow_unicode=True
    )
    write_whole(path, text.encode())
