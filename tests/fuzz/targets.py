"""What is fuzzed: a name, texts to begin with, and a function that takes any bytes.

A fine end is a return, or the one error that the function documents. Everything else is a fault.
"""

from __future__ import annotations

import functools
import json
import os
import posixpath
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from charm_sched.detection.access import Access
from charm_sched.detection.host import look
from charm_sched.detection.together import Part, described
from charm_sched.detection.tools import QUERY
from charm_sched.errors import CharmSchedError, PlanFileError, TopologyError
from charm_sched.importers.choices import Choices
from charm_sched.topology.graph import Topology

IMPORTERS = Path(__file__).parent.parent / "importers"
DETECTION = Path(__file__).parent.parent / "detection"


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        form: What a mutation knows about its inputs: "text", "json" or "npz".
        fine: The error that it may end in.
    """

    name: str
    seeds: tuple[bytes, ...]
    run: Callable[[bytes], object]
    form: str = "text"
    fine: type[CharmSchedError] = TopologyError


def _import(form: str, data: bytes) -> None:
    from charm_sched.importers.build import Given, import_texts
    from charm_sched.importers.choices import Choices
    from charm_sched.importers.reading import Source, decode

    given = [Given(decode(data, "input"))]
    if form in _BESIDE:
        given.insert(0, Given(Source(_node(2 if form in _PAIR else 1), "node")))
        form = ""
    choices = Choices(as_is=len(data) % 3 > 0, nodes=2 if len(data) % 7 == 0 else None)
    import_texts(given, choices, form or None)


_PAIR = ("topo-p2p", "nvlink-s")  # about two GPUs, in their seeds
_BESIDE = (*_PAIR, "nccl-graph", "slurm-conf", "slurm-yaml", "ibnetdiscover")


@functools.cache
def _node(gpus: int) -> str:
    from foreign import Box, matrix

    return matrix(Box([[gpus]], nics=1))


def _importers() -> list[Target]:
    if str(IMPORTERS) not in sys.path:
        sys.path.insert(0, str(IMPORTERS))
    from test_fuzz import TEXTS

    return [
        Target(form, (text.encode(),), functools.partial(_import, form))
        for form, text in TEXTS.items()
    ]


def _any_format(data: bytes) -> None:
    """Import bytes of which nobody says what they are."""
    from charm_sched.importers.build import Given, import_texts
    from charm_sched.importers.choices import Choices
    from charm_sched.importers.reading import decode

    import_texts([Given(decode(data, "input"))], Choices())


TOPOLOGY = """\
schema: charm-sched/topology
version: 1
name: box
tiers: [socket, pcie]
profiles:
  p: &p
    peak: {bf16: 1 TFLOP/s, fp16: 1 TFLOP/s, fp32: 1 TFLOP/s, fp64: 1 TFLOP/s}
    memory_bandwidth: 100 GB/s
    efficiency: 0.5
    overhead: 5 us
    rates:
      - {direction: forward, head_dim: 64, causal: true, dtypes: [bf16], rate: 1 TFLOP/s}
kinds:
  pcie: {bandwidth: 24 GB/s, latency: 1 us, assumed: [latency], source: {latency: guess}}
templates:
  half:
    devices:
      - {name: gpu0..1, profile: p, memory: 8 GB}
    switches:
      - {name: root, kind: root_complex}
    links:
      - {from: gpu0..1, to: root, kind: pcie}
parts:
  - {name: s0..1, template: half}
links:
  - {from: s0/root, to: s1/root, kind: upi, bandwidth: 20 GB/s, latency: 1 us, flow_cap: 9 GB/s}
assumptions:
  - none
"""


def _topology(data: bytes) -> None:
    from charm_sched.topology.file import parse_topology

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return  # the file reader refuses it before
    parse_topology(text, where="input").domains()


def _plan_seeds() -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    from charm_sched.plans.storage import _json_bytes, _plans, to_bytes
    from charm_sched.search.planning import plan
    from charm_sched.topology.file import parse_topology
    from charm_sched.workload import Workload

    topology = parse_topology(TOPOLOGY, where="seed")
    made = [
        plan(topology, Workload(seq_len=16, heads=2, kv_heads=1, head_dim=8, mask=mask),
             strategy=strategy, direction=direction)
        for strategy, mask, direction in (
            ("ring", "full", "forward"), ("charm", "causal", "both"), ("usp", "window:5", "both"),
        )
    ]  # fmt: skip
    return tuple(_json_bytes(_plans(p)) for p in made), tuple(to_bytes(p) for p in made)


def _plan(data: bytes) -> None:
    from charm_sched.plans.storage import from_bytes

    from_bytes(data, "input")


class _Remembered(Access):
    """A machine out of one document: files, links and what tools print."""

    def __init__(self, document: dict[str, dict[str, str]]) -> None:
        super().__init__(run=lambda command: document["tools"].get(" ".join(command[:3]), ""))
        object.__setattr__(self, "document", document)

    def text(self, path: str) -> str:
        return self._of("files").get(self._real(path), "").strip()

    def link(self, path: str) -> str:
        return self._of("links").get(path, "")

    def exists(self, path: str) -> bool:
        return self._real(path) in self._of("files") or path in self._of("links")

    def names(self, folder: str) -> list[str]:
        inside = f"{self._real(folder)}/"
        known = (*self._of("files"), *self._of("links"))
        return sorted({p[len(inside) :].split("/")[0] for p in known if p.startswith(inside)})

    def _of(self, what: str) -> dict[str, str]:
        found: dict[str, str] = self.document[what]  # type: ignore[attr-defined]
        return found

    def _real(self, path: str) -> str:
        for link, target in self._of("links").items():
            if path == link or path.startswith(f"{link}/"):
                return posixpath.normpath(f"{posixpath.dirname(link)}/{target}") + path[len(link) :]
        return path


def _remember(root: Path, tools: dict[str, str]) -> bytes:
    """Write down what stands below a root."""
    every = [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]
    links = {f"/{p.relative_to(root)}": os.readlink(p) for p in every if p.is_symlink()}
    files = {f"/{p.relative_to(root)}": p.read_text() for p in every if not p.is_symlink()}
    return json.dumps({"files": files, "links": links, "tools": tools}).encode()


def _machine_seeds() -> tuple[bytes, ...]:
    if str(DETECTION) not in sys.path:
        sys.path.insert(0, str(DETECTION))
    from foreign import Box, matrix
    from trees import Tree, box, smi

    seeds = []
    with tempfile.TemporaryDirectory() as folder:
        tree = box(Path(folder) / "a")
        smi(tree)
        tree.tool("nvidia-smi topo -m", matrix(Box([[2], [2]], nv=4, nics=1)))
        listed = next(text for key, text in tree.outputs.items() if "query" in key)
        tools = {f"nvidia-smi --query-gpu={','.join(QUERY)} --format=csv,noheader": listed,
                 "nvidia-smi topo -m": tree.outputs["nvidia-smi topo -m"]}  # fmt: skip
        seeds.append(_remember(tree.root, tools))
        seeds.append(_remember(Tree(Path(folder) / "b").root, {}))
    return tuple(seeds)


def _detect(data: bytes) -> None:
    try:
        document = json.loads(data)
    except ValueError:
        return
    whole = isinstance(document, dict) and all(
        isinstance(document.get(key), dict)
        and all(isinstance(v, str) for v in document[key].values())
        for key in ("files", "links", "tools")
    )
    if whole:  # else it is no machine, but the mutation's own form that is broken
        seen = look(_Remembered(document))
        described([Part(seen=seen)], Choices(as_is=len(data) % 2 > 0), name="box")


def _devices(data: bytes) -> None:
    from charm_sched.launch.hosts import hosts_of
    from charm_sched.topology.calling import resolved, visible

    words = visible({"CUDA_VISIBLE_DEVICES": data.decode("utf-8", "replace")})
    machine = _named_machine()
    hosts_of(machine, resolved(machine, words))


@functools.cache
def _named_machine() -> Topology:
    from charm_sched.topology.file import parse_topology

    text = TOPOLOGY.replace("name: root, kind", "name: root, id: '0000:00:01.0', kind")
    return parse_topology(text, where="seed")


@functools.cache
def targets() -> dict[str, Target]:
    """Return all targets by name."""
    as_json, as_npz = _plan_seeds()
    importers = _importers()
    document = json.dumps(_document()).encode()
    found = [
        *importers,
        Target("any-format", tuple(t.seeds[0] for t in importers), _any_format),
        Target("machine", _machine_seeds(), _detect, "json"),
        Target("devices", (b"0,3,s0/gpu1,-1", b"GPU-12ab,0000:00:01.0"), _devices),
        Target("topology-yaml", (TOPOLOGY.encode(),), _topology),
        Target("topology-json", (document,), _topology, "json"),
        Target("plan-json", as_json, _plan, "json", PlanFileError),
        Target("plan-npz", as_npz, _plan, "npz", PlanFileError),
    ]
    return {target.name: target for target in found}


def _document() -> object:
    from charm_sched.topology.file import parse_topology

    return parse_topology(TOPOLOGY, where="seed").to_document()
