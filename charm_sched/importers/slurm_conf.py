"""Slurm's topology.conf: SwitchName, BlockName or RingName with host lists."""

from __future__ import annotations

from charm_sched.importers.facts import Network
from charm_sched.importers.reading import Source, has_line, quoted
from charm_sched.importers.slurm import Tree

_KEYS = {"switchname", "blockname", "ringname", "nodes", "switches", "linkspeed", "blocksizes"}
_FIRST = ("switchname", "blockname", "ringname", "blocksizes")


def recognise(text: str) -> bool:
    """Say whether a line begins with SwitchName=, BlockName= or RingName=."""
    return has_line(text, r"(?i)\s*(?:Switch|Block|Ring)Name=")


def read(source: Source) -> Network:
    """Read a topology.conf.

    Raises:
        TopologyError: an unknown key, a bad host list, or a ring, which says nothing about links.
    """
    tree = Tree(source)
    blocks = False
    for number, line in _lines(source):
        values = _values(source, line, number)
        if "ringname" in values:
            source.fail("switches or blocks", "a ring", "a ring tells Slurm in which order to hand "
                        "out hosts, not how they are joined", line=number)  # fmt: skip
        if "linkspeed" in values:
            tree.notes.append(f"{source.where}: LinkSpeed is ignored, as Slurm does")
        if "blockname" in values:
            blocks = True
            tree.add(values["blockname"], "block", values.get("nodes", ""), "", number)
        elif "switchname" in values:
            tree.add(values["switchname"], "switch", values.get("nodes", ""),
                     values.get("switches", ""), number)  # fmt: skip
    if blocks:
        tree.joined()
    tree.notes = list(dict.fromkeys(tree.notes))
    return tree.network("Slurm topology.conf")


def _lines(source: Source) -> list[tuple[int, str]]:
    """Return the lines that say something, continued ones put together, with their numbers."""
    found: list[tuple[int, str]] = []
    start, text = 0, ""
    for number, line in enumerate(source.lines(), start=1):
        start = start or number
        text += line.split("#", 1)[0].strip()
        if text.endswith("\\"):
            text = text[:-1] + " "
            continue
        if text.strip():
            found.append((start, text.strip()))
        start, text = 0, ""
    if text.strip():
        found.append((start, text.strip()))
    return found


def _values(source: Source, line: str, number: int) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in line.split():
        key, found, value = word.partition("=")
        key = key.lower()
        if not found or not value or key not in _KEYS or key in values:
            source.fail("KEY=VALUE with the keys SwitchName, Switches, Nodes, BlockName, "
                        "BlockSizes, LinkSpeed", quoted(word), line=number)  # fmt: skip
        values[key] = value
    if not any(key in values for key in _FIRST):
        source.fail("SwitchName= or BlockName= first", quoted(line), line=number)
    return values
