"""``nvidia-smi topo -p2p r|w|n|a|p``: whether pairs of GPUs have peer access, and why not."""

from __future__ import annotations

import re

from charm_sched.importers.facts import Gpu, Host
from charm_sched.importers.reading import RECOGNISED, Source
from charm_sched.importers.smi_matrix import ACCESS, read_table

_ROW = re.compile(rf"[\s|]*GPU\d+(?:[\s|]+{ACCESS}(?!\w))+[\s|]*", re.ASCII)


def recognise(text: str) -> bool:
    """Say whether there is a row of access words, one of them more than the self cell."""
    rows = [line for line in text[:RECOGNISED].split("\n") if _ROW.fullmatch(line)]
    return any(re.search(r"\b(?:OK|CNS|GNS|TNS|NS|DR|U)\b", row) for row in rows)


def read(source: Source) -> Host:
    """Read ``nvidia-smi topo -p2p``.

    Raises:
        TopologyError: a row or a word that is not as it should be.
    """
    table = read_table(source, ACCESS)
    names = [name for name in table.columns if name.startswith("GPU")]
    missing = [name for name in names if name not in table.rows]
    if missing:
        source.fail("a row for each GPU", f"none for {missing[0]}", "the text is cut; copy it anew")
    return Host(
        sources=(f"{source.where} (nvidia-smi topo -p2p)",),
        gpus=tuple(Gpu(name=name.lower()) for name in names),
        access={
            (name.lower(), other.lower()): cell
            for name in names
            for other, cell in zip(table.columns, table.rows[name].cells, strict=True)
            if other != name
        },
        peers_known=False,
        links_known=False,
        notes=tuple(f"{source.where}: {note}" for note in table.notes),
    )
