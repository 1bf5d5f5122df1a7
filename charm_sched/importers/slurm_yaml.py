"""Slurm's topology.yaml: a list of topologies, of which the cluster's default is taken."""

from __future__ import annotations

from charm_sched.importers.facts import Network
from charm_sched.importers.reading import Source, has_line, read_yaml
from charm_sched.importers.slurm import Tree
from charm_sched.topology.reader import Cursor

KINDS = ("tree", "block", "flat", "ring", "torus3d")


def recognise(text: str) -> bool:
    """Say whether the text lists topologies, or is the name of one of Slurm's plugins."""
    return has_line(text, r"-?\s*topology:\s|topology/(?:tree|block|flat)\s*$")


def read(source: Source) -> Network:
    """Read a topology.yaml.

    Raises:
        TopologyError: with line and path, where it is not as Slurm reads it.
    """
    root = read_yaml(source)
    if isinstance(root.node.value, dict):
        entries = [root]
    elif isinstance(root.node.value, list):
        entries = root.sequence("topologies")
    else:
        root.fail("a list of topologies, or one of them")
    read_all = [(entry, entry.mapping(("topology",), ("cluster_default", *KINDS)))
                for entry in entries]  # fmt: skip
    if not read_all:
        root.fail("at least one topology")
    chosen = [
        (entry, keys) for entry, keys in read_all
        if "cluster_default" in keys and keys["cluster_default"].flag()
    ]  # fmt: skip
    entry, keys = (chosen or read_all)[0]
    name = keys["topology"].text("a name")
    tree = Tree(source)
    if len(read_all) > 1:
        why = "the cluster's default" if chosen else "the first, as none is the default"
        tree.notes.append(f"{source.where}: topology {name} of {len(read_all)} was taken, {why}")
    found = [kind for kind in KINDS if kind in keys]
    if len(found) != 1 or found[0] not in ("tree", "block"):
        entry.fail("a tree or a block", found[0] if found else "none",
                   "the others do not say how hosts are joined")  # fmt: skip
    _fill(tree, keys[found[0]], found[0])
    return tree.network("Slurm topology.yaml")


def _fill(tree: Tree, cursor: Cursor, kind: str) -> None:
    plural = {"tree": "switches", "block": "blocks"}[kind]
    single = {"tree": "switch", "block": "block"}[kind]
    keys = cursor.mapping((plural,), ("block_sizes",) if kind == "block" else ())
    items = keys[plural]
    entries = [items] if isinstance(items.node.value, dict) else items.sequence(plural)
    for entry in entries:
        values = entry.mapping((single,), ("nodes", "children"))
        tree.add(
            values[single].text("a name"),
            single,
            values["nodes"].text("a host list") if "nodes" in values else "",
            values["children"].text("a list of switches") if "children" in values else "",
            entry.node.line or 0,
        )
    if kind == "block":
        tree.joined()
