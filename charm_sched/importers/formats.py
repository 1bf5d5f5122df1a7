"""The formats that can be imported, and which of them a text is in.

To add one: write a module with ``recognise(text)`` and ``read(source)`` and put it in `FORMATS`.
The first that recognises a text reads it, so the narrower one comes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from charm_sched.errors import TopologyError
from charm_sched.importers import (
    amd_smi,
    astra,
    edge_list,
    hwloc_xml,
    ibnetdiscover,
    infragraph,
    nccl_graph,
    nccl_log,
    nccl_xml,
    rocm_smi,
    slurm_conf,
    slurm_yaml,
    smi_matrix,
    smi_nvlink,
    smi_p2p,
)
from charm_sched.importers.facts import Host, Network
from charm_sched.importers.nccl_graph import Graph
from charm_sched.importers.reading import Source


@dataclass(frozen=True, slots=True)
class Format:
    """A format: what it is called, what it is, and its two functions."""

    name: str
    about: str
    recognise: Callable[[str], bool]
    read: Callable[[Source], Host | Network | Graph]


FORMATS: tuple[Format, ...] = (
    Format("nccl-graph", "NCCL graph XML", nccl_graph.recognise, nccl_graph.read),
    Format("nccl-xml", "NCCL or RCCL topology XML", nccl_xml.recognise, nccl_xml.read),
    Format("hwloc", "hwloc XML (lstopo)", hwloc_xml.recognise, hwloc_xml.read),
    Format("rocm-smi", "rocm-smi --showtopo", rocm_smi.recognise, rocm_smi.read),
    Format("amd-smi", "amd-smi topology", amd_smi.recognise, amd_smi.read),
    Format("topo-p2p", "nvidia-smi topo -p2p", smi_p2p.recognise, smi_p2p.read),
    Format("topo-m", "nvidia-smi topo -m, -mp", smi_matrix.recognise, smi_matrix.read),
    Format("nvlink-s", "nvidia-smi nvlink -s", smi_nvlink.recognise, smi_nvlink.read),
    Format("nccl-log", "NCCL_DEBUG log", nccl_log.recognise, nccl_log.read),
    Format("astra-sim", "ASTRA-sim network", astra.recognise, astra.read),
    Format("slurm-conf", "Slurm topology.conf", slurm_conf.recognise, slurm_conf.read),
    Format("slurm-yaml", "Slurm topology.yaml", slurm_yaml.recognise, slurm_yaml.read),
    Format("ibnetdiscover", "ibnetdiscover", ibnetdiscover.recognise, ibnetdiscover.read),
    Format("edge-list", "SimAI or ns-3 edge list", edge_list.recognise, edge_list.read),
    Format("infragraph", "InfraGraph YAML", infragraph.recognise, infragraph.read),
)
# Texts that people try and that cannot be imported: a pattern, what it is, and what helps.
STRANGERS = (
    (r"^Machine \(.*\n(?:.*\n){0,3} *(?:Package|NUMANode|Group)", "lstopo's console text",
     "save it as XML: lstopo file.xml"),
    (r"^CA '\w+'\n\s+CA type:", "ibstat, which tells of one host's ports alone",
     "--nic gives their rate"),
    (r"^schema: charm-sched/topology", "a topology file of this project already",
     "charm-plan takes it as it is"),
    (r"\"(?:scheduling-policy|all-reduce-implementation)\"\s*:", "an ASTRA-sim system file",
     "give the network file"),
    (r"\.topograph\.run/|^kind: Node$", "labels of a Kubernetes node",
     "give Slurm's topology.conf or nvidia-smi topo -m"),
)  # fmt: skip


def format_of(source: Source, name: str | None = None) -> Format:
    """Return the format of a name, or the one that recognises the text.

    Raises:
        TopologyError: no such name, or none recognises it.
    """
    names = ", ".join(each.name for each in FORMATS)
    for each in FORMATS:
        if each.name == name if name is not None else each.recognise(source.text):
            return each
    if name is not None:
        raise TopologyError(f"--format: expected one of {names}, found {name}")
    for pattern, what, help_ in STRANGERS:
        if re.search(pattern, source.text[:100_000], re.MULTILINE):
            source.fail("one of the formats that can be imported", what, help_)
    first = next((line.strip() for line in source.lines() if line.strip()), "")
    return source.fail(
        f"one of the formats {names}", f'a text that begins with "{first[:60]}"',
        "--format names the format; docs/importing.md says how to get each of them",
    )  # fmt: skip
