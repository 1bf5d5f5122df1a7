"""What is shipped, as a listing needs it: read from the files, without building any graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from charm_sched.topology import yaml_tree
from charm_sched.topology.file import SHIPPED, shipped_names
from charm_sched.topology.reader import Cursor
from charm_sched.topology.spec import Document, Section, read_document
from charm_sched.topology.text import read_text

LINKED, PCIE, NODES, CLOUD, CLUSTER = GROUPS = (
    "one machine, devices joined by NVLink or Infinity Fabric",
    "one machine, devices on PCIe alone",
    "a few nodes and a network",
    "cloud instances",
    "clusters",
)
PROVIDERS = ("aws_", "azure_", "gcp_")
MANY = 128  # devices; so many and more are a cluster
DIRECT = ("nvlink", "bridge", "fabric", "xgmi")  # how the kinds of such links begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """One shipped machine: its name, number of devices, what it is, and the group it belongs to."""

    name: str
    devices: int
    description: str
    group: str

    def matches(self, word: str) -> bool:
        """Say whether its name or description has the word, in any case."""
        return word.casefold() in f"{self.name} {self.description}".casefold()


def shipped_machines(word: str = "") -> tuple[Shipped, ...]:
    """Return the shipped machines whose name or description has the word, group by group.

    Raises:
        TopologyError: A shipped file is not exactly as the schema says.
    """
    found = [_shipped(name) for name in shipped_names()]
    found.sort(key=lambda each: (GROUPS.index(each.group), each.devices, each.name))
    return tuple(each for each in found if each.matches(word))


def _shipped(name: str) -> Shipped:
    where = f"{name}.yaml"
    node = yaml_tree.from_text(read_text(SHIPPED / where), where=where)
    document = read_document(Cursor(node, "", where), SHIPPED)
    devices = count_devices(document)
    return Shipped(
        name=document.name,
        devices=devices,
        description=" ".join(document.description.split()),
        group=_group(document, devices),
    )


def count_devices(document: Document) -> int:
    """Count the devices of a document: templates times their instances, no name spelled out."""
    known: dict[str, int] = {}
    return _count(document.body, document.templates, known)


def _count(section: Section, templates: Mapping[str, Section], known: dict[str, int]) -> int:
    total = sum(device.pattern.count for device in section.devices)
    for part in section.parts:
        if part.template not in known:
            known[part.template] = 0  # a template inside itself is refused when the graph is built
            known[part.template] = _count(templates[part.template], templates, known)
        total += part.pattern.count * known[part.template]
    return total


def _group(document: Document, devices: int) -> str:
    if document.name.startswith(PROVIDERS):
        return CLOUD
    if devices >= MANY:
        return CLUSTER
    sections = (document.body, *document.templates.values())
    kinds = {link.kind for section in sections for link in section.links}
    if "network" in kinds:
        return NODES
    return LINKED if any(kind.startswith(DIRECT) for kind in kinds) else PCIE
