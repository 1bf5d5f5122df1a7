"""A topology as a file: YAML for people, or JSON."""

from __future__ import annotations

import json
from pathlib import Path

from charm_sched.files import write_whole
from charm_sched.topology.graph import Topology

_WIDTH = 120


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
