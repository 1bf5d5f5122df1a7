"""The inside of one machine as a section of a topology: GPUs, PCIe switches, processors, NICs."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from charm_sched import units
from charm_sched.importers import pcie
from charm_sched.importers.choices import Figure
from charm_sched.importers.facts import SWITCH, Host, Nic, PeerLink
from charm_sched.importers.figures import LATENCY, Figures
from charm_sched.importers.grouping import NUMA, Place, Places, planes
from charm_sched.importers.naming import plain_name, printable
from charm_sched.importers.sheet import Entry, Section, Sheet

SLOWEST = 10e9 / 8  # bytes per second; NICs up to here manage machines
_PORT = re.compile(r"(.*?)(?:f|np|\.)\d+$")


@dataclass(frozen=True, slots=True)
class Card:
    """A network card of a laid-out machine: its switch, its ports, and how near a GPU it is."""

    name: str
    ports: tuple[Nic, ...]


@dataclass(slots=True)
class Machine:
    """A section under construction."""

    device_link: ClassVar[str] = "pcie"  # the kind of link between a device and what is above it

    sheet: Sheet
    host: Host
    places: Places
    figures: Figures
    section: Section = field(default_factory=Section)
    cards: list[Card] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _switches: int = 0
    _shares: dict[str, Figure] = field(default_factory=dict)

    def lay_out(self) -> Section:
        """Return the section of this machine."""
        self._devices()
        self._direct_links()
        chosen = self._chosen_nics()
        roots = [place for place in self.places.processors if self._holds(place, chosen)]
        if not self._peer_access():
            roots = [self._without_peers(place) for place in roots]
        for place in roots:
            self._place(place, None, chosen)
        self._join([place.name for place in roots])
        return self.section

    def _devices(self) -> None:
        """Add the GPUs and their profile."""
        model = self.figures.model
        profile = model.profile()
        self.sheet.profiles.setdefault(profile.name, profile)
        memory = units.format_bytes(model.memory * 1e9)
        for gpu in self.host.gpus:
            fields: dict[str, Any] = {"name": gpu.name, "profile": profile.name, "memory": memory}
            if not self.figures.exact:
                fields |= {"assumed": ["memory"]}
            fields |= {"source": {"memory": f"{model.name} datasheet"}}
            if gpu.bus or gpu.uuid:
                fields |= {"id": _words(gpu.bus, gpu.uuid)}
            self.section.devices.append(Entry(fields, gpu.model))

    def _peer_access(self) -> bool:
        return self.figures.peer_access()

    def _holds(self, place: Place, chosen: frozenset[str]) -> bool:
        gpus = {gpu.name for gpu in self.host.gpus}
        return any(name in gpus or name in chosen for name in place.everything())

    def _latency(self, kind: str) -> Figure:
        value, source = LATENCY[kind]
        return Figure(value, source, assumed=True)

    def _direct_links(self) -> None:
        """Add NVLink and XGMI: to a plane of NVSwitches, or from GPU to GPU."""
        hidden = self.figures.hidden_links()
        if hidden:
            link = PeerLink(kind="nvlink", target=SWITCH, count=hidden)
            gpus = tuple(replace(gpu, peers=(link,)) for gpu in self.host.gpus)
            self.host = replace(self.host, gpus=gpus, labels={})
        groups = planes(self.host)
        plane_of = {name: i for i, group in enumerate(groups) for name in group}
        for i in range(len(groups)):
            self.section.switches.append(
                Entry({"name": _plane(i, len(groups)), "kind": "nvswitch"},
                      "the NVSwitches together, taken as one crossbar")
            )  # fmt: skip
        done: set[tuple[str, str]] = set()
        for gpu in self.host.gpus:
            for peer in gpu.peers:
                figure = self.figures.peer_link(peer)
                if peer.target == SWITCH:
                    plane = _plane(plane_of[gpu.name], len(groups))
                    self.sheet.link(self.section, gpu.name, plane, "nvlink", figure,
                                    self._latency("nvlink"))  # fmt: skip
                elif (peer.target, gpu.name) not in done:
                    done.add((gpu.name, peer.target))
                    kind = "xgmi" if peer.kind == "xgmi" else "nvlink"
                    latency = self._latency("xgmi" if kind == "xgmi" else "bridge")
                    self.sheet.link(self.section, gpu.name, peer.target, kind, figure, latency)

    def _chosen_nics(self) -> frozenset[str]:
        """Choose the NICs for computing: those near GPUs, and not the slow ones."""
        nics = self.host.nics
        fast = [nic for nic in nics if nic.speed is None or nic.speed > SLOWEST] or nics
        gpus = {gpu.name for gpu in self.host.gpus}
        near: set[str] = set()
        beside: set[str] = set()
        for place in self.places.processors:
            inside = place.everything()
            if gpus.intersection(inside):
                beside.update(inside)
            for each in place.inner:
                if gpus.intersection(each.everything()):
                    near.update(each.everything())
        names = [nic.name for nic in fast]
        best = [name for name in names if name in near]
        best = best or [name for name in names if name in beside] or names
        away = [nic.name for nic in self.host.nics if nic.name not in best]
        if away:
            verb = "is" if len(best) == 1 else "are"
            self.left_out.append(f"{', '.join(away)}: left out, as {', '.join(best)} {verb} nearer "
                                 "to GPUs or faster")  # fmt: skip
        return frozenset(best)

    def _place(self, place: Place, above: str | None, chosen: frozenset[str]) -> None:
        """Add a processor or a PCIe switch and everything below it."""
        if above is None:
            name = plain_name(place.name)
            self.section.switches.append(
                Entry({"name": name, "kind": "root_complex"}, self._processor(place))
            )
        elif not self._holds(place, chosen):
            return
        else:
            name = f"switch{self._switches}"
            self._switches += 1
            about = place.name if ":" in place.name else ""
            if not self.host.paths:
                self.figures.ledger.assume(
                    "each PCIe switch has one link towards its processor, as a matrix of classes "
                    "does not count them", ""
                )  # fmt: skip
            self.section.switches.append(Entry({"name": name, "kind": "pcie_switch"}, about))
            self.sheet.link(self.section, name, above, "uplink",
                            self.figures.slot(place.uplink),
                            self._latency("uplink"))  # fmt: skip
        slots = {gpu.name: gpu.slot for gpu in self.host.gpus}
        gpus = [name for name in place.members if name in slots]
        for gpu in gpus:
            figure = self._shares.get(gpu) or self._slot(gpu, slots[gpu])
            kind = self.device_link
            self.sheet.link(self.section, gpu, name, kind, figure, self._latency(kind))
        self._nics(place, name, chosen)
        for each in place.inner:
            self._place(each, name, chosen)

    def _without_peers(self, place: Place) -> Place:
        """Move the GPUs below switches to the processor, each with its share of the uplinks.

        Without peer access every byte goes through host memory, so that two GPUs below one switch
        load its uplink both ways and are no nearer to each other than to others.
        """
        names = {gpu.name: gpu.slot for gpu in self.host.gpus}
        moved: list[str] = []

        def strip(each: Place, share: float) -> Place:
            inside = [name for name in each.everything() if name in names]
            figure = self.figures.slot(each.uplink)
            share = min(share, figure.value / max(1, len(inside)))
            for name in each.members:
                if name in names:
                    own = min(self._slot(name, names[name]).value, share)
                    told = f"without peer access, a share of the switch's uplink: {figure.source}"
                    self._shares[name] = Figure(own, told, assumed=True)
                    moved.append(name)
            rest = tuple(name for name in each.members if name not in names)
            return replace(each, members=rest, inner=tuple(strip(i, share) for i in each.inner))

        inner = tuple(strip(each, math.inf) for each in place.inner)
        return replace(place, members=(*place.members, *moved), inner=inner)

    def _processor(self, place: Place) -> str:
        numa = place.name.removeprefix("numa")
        cpu = next((c for c in self.host.cpus if str(c.numa) == numa), None)
        about = f"{cpu.vendor} family {cpu.family} model {cpu.model}" if cpu and cpu.vendor else ""
        return _about("the processor" if place.name != "numa" else "a processor", about)

    def _slot(self, name: str, known: float | None) -> Figure:
        width = self.places.narrow.get(name)
        known = known if width is None else min(width, known if known is not None else width)
        return self.figures.slot(known)

    def _nics(self, place: Place, above: str, chosen: frozenset[str]) -> None:
        cards: dict[str, list[Nic]] = {}
        one_card = place.kind != NUMA and all(
            nic_name in {nic.name for nic in self.host.nics} for nic_name in place.everything()
        )
        for nic in self.host.nics:
            if nic.name in place.members and nic.name in chosen:
                key = place.name if one_card else nic.card or _card(nic)
                cards.setdefault(key, []).append(nic)
        for ports in cards.values():
            name = plain_name(ports[0].name)
            shared = f"{len(ports)} ports of one card" if len(ports) > 1 else ""
            called = _called(ports)
            fields = {"name": name, "kind": "nic", **({"id": called} if called else {})}
            self.section.switches.append(Entry(fields, shared))
            figure = self._slot(ports[0].name, ports[0].slot)
            self.sheet.link(self.section, name, above, "pcie", figure, self._latency("pcie"))
            self.cards.append(Card(name, tuple(ports)))

    def _join(self, roots: list[str]) -> None:
        """Join the processors: two directly, more through a common switch."""
        names = [plain_name(name) for name in roots]
        if len(names) < 2:
            return
        figure, cap = self.figures.socket()
        latency = self._latency("socket")
        if len(names) == 2:
            self.sheet.link(self.section, names[0], names[1], "socket", figure, latency, cap=cap)
            return
        self.section.switches.append(
            Entry({"name": "system", "kind": "interconnect"},
                  "joins the processors; how they are joined is not in the text")
        )  # fmt: skip
        half = Figure(latency.value / 2, f"half of: {latency.source}", assumed=True)
        for name in names:
            self.sheet.link(self.section, name, "system", "socket", figure, half, cap=cap)


def _plane(number: int, count: int) -> str:
    return "nvswitch" if count == 1 else f"nvswitch{number}"


def _about(*texts: str) -> str:
    return ", ".join(text for text in texts if text)


def _words(*texts: str) -> str:
    return " ".join(dict.fromkeys(printable(" ".join(texts)).split()))


def _called(ports: list[Nic]) -> str:
    """Return what the system calls a card: its address, its ports, their interfaces."""
    names = [
        nic.device or ("" if re.fullmatch(r"(?:nic|net)[\d.-]*", nic.name) else nic.name)
        for nic in ports
    ]
    return _words(pcie.bus_address(ports[0].card), *(nic.id for nic in ports), *names)


def _card(nic: Nic) -> str:
    """Return what two ports of one card have in common: "rocep4s0" of "rocep4s0f1"."""
    match = _PORT.fullmatch(nic.device)
    return match[1] if match else nic.name
