"""From texts to the text of a topology: read, merge, examine, lay out, write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from charm_sched.errors import TopologyError
from charm_sched.importers import writing
from charm_sched.importers.checks import AS_IS, examined
from charm_sched.importers.choices import Choices, Ledger
from charm_sched.importers.cluster import Cluster, one_fabric
from charm_sched.importers.facts import ANYWHERE, Host, Network
from charm_sched.importers.figures import figures_for
from charm_sched.importers.formats import format_of
from charm_sched.importers.grouping import find_places
from charm_sched.importers.machine import Machine
from charm_sched.importers.merge import merged, regrouped
from charm_sched.importers.naming import plain_name
from charm_sched.importers.nccl_graph import Graph, compared
from charm_sched.importers.network import device_network
from charm_sched.importers.reading import Source
from charm_sched.importers.sheet import Section, Sheet
from charm_sched.importers.soundness import sound_host, sound_network


@dataclass(frozen=True, slots=True)
class Given:
    """A text, and the host that it is about; "" where all hosts are alike."""

    source: Source
    host: str = ""


@dataclass(frozen=True, slots=True)
class Imported:
    """A topology file, and what its reader should know."""

    text: str
    formats: tuple[str, ...]
    notes: tuple[str, ...]
    doubts: tuple[str, ...]
    assumptions: tuple[str, ...]


Lay = Callable[[Sheet, Host, Choices, Ledger], Machine]


def gpu_machine(sheet: Sheet, host: Host, choices: Choices, ledger: Ledger) -> Machine:
    """Return a machine of GPUs, ready to be laid out."""
    figures = figures_for(host, choices, ledger)
    return Machine(sheet, host, find_places(host), figures, Section())


@dataclass(slots=True)
class _Import:
    """One import under way."""

    choices: Choices
    sheet: Sheet
    ledger: Ledger
    notes: list[str]
    doubts: list[str]
    sources: list[str]
    lay: Lay = gpu_machine


def import_texts(
    given: Sequence[Given], choices: Choices, form: str | None = None, name: str = "imported"
) -> Imported:
    """Return the topology file of one or several texts.

    Args:
        given: The texts.
        choices: What the user adds.
        form: Name of the format of all of them; None to recognise it.
        name: Of the topology, unless the user chose one.

    Raises:
        TopologyError: a text cannot be read, they do not fit together, or the machine looks broken.
    """
    formats = [format_of(each.source, form) for each in given]
    facts = [form.read(each.source) for form, each in zip(formats, given, strict=True)]
    hosts: dict[str, list[Host]] = {}
    networks: list[Network] = []
    graphs: list[Graph] = []
    for each, fact in zip(given, facts, strict=True):
        match fact:
            case Host():
                hosts.setdefault(each.host, []).append(sound_host(fact))
            case Network():
                networks.append(sound_network(fact))
            case Graph():
                graphs.append(fact)
    if not hosts and not networks:
        raise TopologyError(
            f"{graphs[0].source}: expected a machine, found an NCCL graph (root element <graphs>): "
            "channels that NCCL chose (add the machine's topology, and they are compared)"
        )
    if len(networks) > 1:
        raise TopologyError(
            f"{networks[1].sources[0]}: expected one network, found another in "
            f"{networks[0].sources[0]}"
        )
    sheet = Sheet(plain_name(choices.name or name))
    work = _Import(choices, sheet, Ledger(), [], [], [])
    work.sources += [s for fact in facts if not isinstance(fact, Graph) for s in fact.sources]
    inside = {host: _examined(work, merged(texts)) for host, texts in hosts.items()}
    for graph in graphs:
        work.notes += [line for host in inside.values() for line in compared(graph, host)]
    if networks and networks[0].devices:
        _network(work, networks[0], inside)
    elif networks or choices.nodes is not None or len(inside) > 1:
        _cluster(work, networks[0] if networks else None, inside)
    else:
        (only,) = inside.values()
        section, _ = _machine(work, only)
        sheet.body = section
    if choices.strict:
        work.ledger.refuse(given[0].source.where)
    return _finished(work, [form.name for form in formats])


def build_hosts(
    inside: Mapping[str, Host], hosts: Sequence[str], choices: Choices, *, name: str, mark: str,
    lay: Lay = gpu_machine,
) -> Imported:  # fmt: skip
    """Return the topology file of machines whose facts are known already.

    Args:
        inside: The facts of one machine of each kind, by host; "" for all others.
        hosts: All hosts, in order; one of them is a machine alone.
        choices: What the user adds.
        name: Of the topology, unless the user chose one.
        mark: First line of the file.
        lay: Begins the layout of a machine.

    Raises:
        TopologyError: A machine looks broken, or something had to be assumed and must not be.
    """
    sheet = Sheet(plain_name(choices.name or name), mark)
    work = _Import(choices, sheet, Ledger(), [], [], [], lay)
    work.sources += dict.fromkeys(s for host in inside.values() for s in host.sources)
    sound = {host: _examined(work, sound_host(facts)) for host, facts in inside.items()}
    if len(hosts) > 1:
        _cluster(work, one_fabric(hosts, "the hosts", work.ledger), sound)
    else:
        (only,) = sound.values()
        sheet.body = _machine(work, only)[0]
    if choices.strict:
        work.ledger.refuse(name)
    return _finished(work, list(work.sources))


def _examined(work: _Import, host: Host) -> Host:
    """Check one host, and refuse what cannot be planned on."""
    where = host.sources[0]
    if not host.links_known:
        raise TopologyError(
            f"{where}: expected the paths between GPUs, found none in it (add nvidia-smi topo -m, "
            "rocm-smi --showtopo or an NCCL topology XML of the same machine)"
        )
    if any(peer.target == ANYWHERE for gpu in host.gpus for peer in gpu.peers):
        host = replace(
            host,
            gpus=tuple(
                replace(g, peers=tuple(p for p in g.peers if p.target != ANYWHERE))
                for g in host.gpus
            ),
        )
    if work.choices.numa:
        host = regrouped(host, work.choices.numa)
    host = examined(host)
    if host.faults and not work.choices.as_is:
        raise TopologyError(
            f"{where}: expected a sound machine, found: {'; '.join(host.faults)} ({AS_IS})"
        )
    work.doubts += [*host.doubts, *host.faults]
    work.notes += host.notes
    return host


def _machine(work: _Import, host: Host) -> tuple[Section, Machine]:
    machine = work.lay(work.sheet, host, work.choices, work.ledger)
    work.doubts += machine.places.doubts
    work.notes += machine.places.notes
    section = machine.lay_out()
    work.notes += machine.left_out
    return section, machine


def _cluster(work: _Import, network: Network | None, inside: dict[str, Host]) -> None:
    if not inside:
        assert network is not None
        raise TopologyError(
            f"{network.sources[0]}: expected a machine to put at its {len(network.hosts)} hosts, "
            "found none, as such a file says nothing about GPUs (add the output of nvidia-smi "
            "topo -m, or another file about one host)"
        )
    machines = {name: _machine(work, host)[1] for name, host in inside.items()}
    cluster = Cluster(work.sheet, work.choices, work.ledger, machines)
    cluster.lay_out(network)
    work.notes += cluster.notes
    if network is not None:
        work.notes += network.notes
        work.doubts += network.doubts


def _network(work: _Import, network: Network, inside: dict[str, Host]) -> None:
    if inside:
        raise TopologyError(
            f"{network.sources[0]}: expected to be imported alone, as it goes down to devices "
            "already, found other files beside it"
        )
    device_network(work.sheet, network, work.choices, work.ledger)
    work.notes += network.notes
    work.doubts += network.doubts


def _finished(work: _Import, formats: list[str]) -> Imported:
    sheet = work.sheet
    notes = tuple(dict.fromkeys(work.notes))
    doubts = tuple(dict.fromkeys(work.doubts))
    assumed = work.ledger.sentences()
    sheet.heading += [f"from {source}" for source in work.sources]
    sheet.heading += ["what had to be assumed is marked where it stands, and listed at the end"]
    sheet.heading += [f"note: {note}" for note in notes]
    sheet.heading += [f"WARNING: {doubt}" for doubt in doubts]
    sheet.assumptions = (*assumed, *(f"doubtful: {doubt}" for doubt in doubts))
    try:
        text = writing.write(sheet)
    except TopologyError as error:
        raise TopologyError(f"{work.sources[0]}: {error}") from error
    return Imported(text, tuple(formats), notes, doubts, assumed)
