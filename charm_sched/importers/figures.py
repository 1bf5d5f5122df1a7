"""Every number of a machine's links, each with its source: the text, the user, or an assumption."""

from __future__ import annotations

from dataclasses import dataclass

from charm_sched.importers import models, pcie
from charm_sched.importers.choices import Choices, Figure, Ledger
from charm_sched.importers.facts import SWITCH, Gpu, Host, PeerLink
from charm_sched.importers.models import Model

GIGA = 1e9
LATENCY = {
    "nvlink": (1.7e-6, "half of NCCL's 3.4 us per NVLink hop (Simple protocol, graph/tuning.cc)"),
    "xgmi": (3.4e-6, "NCCL's 3.4 us per NVLink hop (Simple protocol, graph/tuning.cc)"),
    "bridge": (3.4e-6, "NCCL's 3.4 us per NVLink hop (Simple protocol, graph/tuning.cc)"),
    "pcie": (0.75e-6, "half of the 1.5 us between near devices of Gen4 machines"),
    "memory": (1e-6, "a margin over 0.1 us for one access to memory"),
    "uplink": (0.25e-6, "shared out from the 2.5 us across sockets of Gen4 machines"),
    "socket": (0.5e-6, "shared out from the 2.5 us across sockets of Gen4 machines"),
    "network": (6e-6, "shared out from NCCL's 14 us per network hop (Simple protocol, "
                      "graph/tuning.cc)"),
}  # fmt: skip
# Between processors, by PCIe generation: one flow, and all flows together, each way.
SOCKET = {
    3: (10.0, 20.0, "NCCL's 10 GB/s between Skylake sockets (graph/topo.h), and two such flows"),
    4: (18.0, 36.0, "public reports on Gen4 machines give 12 to 20 for one flow and 20 to 36"),
    5: (38.0, 83.0, "measured on two EPYC Turin, github voipmonitor/rtx6kpro"),
}
NIC_RATE = {3: 100e9 / 8, 4: 200e9 / 8, 5: 400e9 / 8}


@dataclass(frozen=True, slots=True)
class Figures:
    """Numbers for one host."""

    host: Host
    model: Model
    exact: bool
    choices: Choices
    ledger: Ledger

    def slot(self, known: float | None) -> Figure:
        """Return the bandwidth of a PCIe link, each way."""
        if self.choices.pcie is not None:
            return Figure(self.choices.pcie, "given by --pcie")
        if known is not None:
            return Figure(known, "speed and width from the text, what of it arrives: NCCL's "
                                 "constants (graph/topo.cc)")  # fmt: skip
        self.ledger.assume(
            f"PCIe links whose speed the text does not say are Gen{self.model.pcie} x16, as "
            f"{self.model.name} has", "--pcie"
        )  # fmt: skip
        source = pcie.SOURCE.format(f"Gen{self.model.pcie}", 16)
        return Figure(pcie.x16(self.model.pcie), source, assumed=True)

    def hidden_links(self) -> int:
        """Return the NVLinks per GPU into NVSwitches that a text leaves out altogether."""
        if self.host.peers_known or self.choices.nvlink == 0 or len(self.host.gpus) < 2:
            return 0
        links = self.model.switch_links
        if links:
            self.ledger.assume(
                f"the text leaves NVLink out; {links} links per GPU to NVSwitches, as boards with "
                f"{self.model.name} have", "--nvlink none"
            )  # fmt: skip
        else:
            self.ledger.assume("the text leaves NVLink out; there is none", "nvidia-smi topo -m")
        return links

    def peer_link(self, peer: PeerLink) -> Figure:
        """Return the bandwidth of all links to one peer together, each way."""
        kind, count = peer.kind, peer.count
        if peer.bandwidth is not None and self.choices.nvlink is None:
            return Figure(peer.bandwidth, "as the tool states it")
        links = count or 1
        if count is None:
            self.ledger.assume(
                f"{kind}: one link per pair, as the text gives no number", "--nvlink"
            )
        each, source, assumed = self._rate(kind)
        return Figure(
            each * links, f"{links} x {each / GIGA:g} GB/s, {source}", assumed or count is None
        )

    def _rate(self, kind: str) -> tuple[float, str, bool]:
        if self.choices.nvlink is not None:
            return self.choices.nvlink, "given by --nvlink", False
        if self.host.rate is not None:
            return self.host.rate, "as the tool states it", False
        rate = self.model.link
        if not rate:
            self.ledger.assume(f"{kind} links carry 20 GB/s each, as {self.model.name} has none "
                               "that is known", "--nvlink")  # fmt: skip
            return 20.0 * GIGA, "no rate known", True
        library = "RCCL" if kind == "xgmi" else "NCCL"
        return (
            rate * GIGA,
            f"{library}'s constant for {self.model.name} (graph/topo.h)",
            not self.exact,
        )

    def socket(self) -> tuple[Figure, float]:
        """Return the bandwidth between two processors, and the most that one flow gets."""
        if self.choices.socket is not None:
            return Figure(self.choices.socket, "given by --socket"), self.choices.socket
        if self.host.socket is not None:
            return Figure(
                self.host.socket, "what NCCL takes between the processors"
            ), self.host.socket
        generation = min(max(self._generation(), 3), 5)
        flow, total, source = SOCKET[generation]
        self.ledger.assume(
            f"between two processors one flow gets {flow:g} GB/s and all together {total:g} GB/s, "
            f"as on a PCIe Gen{generation} machine", "--socket"
        )  # fmt: skip
        return Figure(total * GIGA, source, assumed=True), flow * GIGA

    def _generation(self) -> int:
        known = [gpu.slot for gpu in self.host.gpus if gpu.slot is not None]
        return pcie.generation_of(max(known)) if known else self.model.pcie

    def port(self, known: float | None) -> Figure:
        """Return the bandwidth of one NIC port, each way."""
        if self.choices.nic is not None:
            return Figure(self.choices.nic, "given by --nic")
        if known is not None:
            return Figure(known, "port speed from the text")
        rate = NIC_RATE[min(max(self.model.pcie, 3), 5)]
        self.ledger.assume(
            f"a NIC port carries {rate * 8 / GIGA:g} Gb/s, as is usual beside {self.model.name}",
            "--nic",
        )
        return Figure(rate, f"usual beside {self.model.name}", assumed=True)

    def peer_access(self) -> bool:
        """Say whether GPUs reach each other over PCIe without host memory."""
        if self.choices.peer is not None:
            return self.choices.peer
        if self.host.access:
            return any(word == "OK" for word in self.host.access.values())
        if not self.model.peer:
            self.ledger.assume(f"no peer access over PCIe between {self.model.name}", "--peer on")
        elif len(self.host.gpus) > 1 and not _all_linked(self.host) and not self.hidden_links():
            self.ledger.assume("GPUs have peer access over PCIe", "--peer off")
        return self.model.peer


def _all_linked(host: Host) -> bool:
    """Say whether every pair has NVLink or XGMI, directly or through switches."""
    switched = [any(peer.target == SWITCH for peer in gpu.peers) for gpu in host.gpus]
    return all(switched) or all(len(gpu.peers) >= len(host.gpus) - 1 for gpu in host.gpus)


def figures_for(host: Host, choices: Choices, ledger: Ledger) -> Figures:
    """Find the GPU model, from the user, the text, or the number of NVLinks.

    Raises:
        TopologyError: the user names no known model.
    """
    if choices.gpu is not None:
        return Figures(host, models.by_name(choices.gpu), True, choices, ledger)
    found = {models.by_text(gpu.model) for gpu in host.gpus if gpu.model}
    known = [each for each in found if each is not None]
    if known:
        model, exact = sorted(known, key=lambda each: each[0].name)[0]
        if len({each[0].name for each in known}) > 1:
            names = ", ".join(sorted(each[0].name for each in known))
            ledger.assume(f"the GPUs are different models ({names}); all compute as {model.name}",
                          "--gpu")  # fmt: skip
        if not exact:
            told = _told(host.gpus)
            ledger.assume(f"the text says {told}; the GPUs are taken for {model.name}", "--gpu")
        return Figures(host, model, exact, choices, ledger)
    model = _usual(host)
    why = "no NVLink" if not _counts(host) else "NV" + "/NV".join(map(str, sorted(_counts(host))))
    if any(peer.kind == "xgmi" for gpu in host.gpus for peer in gpu.peers):
        why = "XGMI"
    told = _told(host.gpus)
    ledger.assume(
        f"the GPU model is not {'known: ' + told if told else 'in the text'}; the profile "
        f"{model.name} is assumed, a usual one with {why}", "--gpu"
    )  # fmt: skip
    return Figures(host, model, False, choices, ledger)


def _told(gpus: tuple[Gpu, ...]) -> str:
    return next((gpu.model for gpu in gpus if gpu.model), "")


def _counts(host: Host) -> set[int]:
    return {p.count or 1 for gpu in host.gpus for p in gpu.peers if p.kind == "nvlink"}


def _usual(host: Host) -> Model:
    """Return the model that usually has such links; the caller says that it is assumed."""
    kinds = {peer.kind for gpu in host.gpus for peer in gpu.peers}
    if "xgmi" in kinds:
        return models.by_name("mi300x" if len(host.gpus[0].peers) > 3 else "mi100")
    if any("rocm" in source or "amd-smi" in source for source in host.sources):
        return models.by_name("mi210")
    most = max(_counts(host), default=0)
    paired = most and len(host.gpus) > 2 and all(len(gpu.peers) <= 1 for gpu in host.gpus)
    if paired and not any(p.target == SWITCH for gpu in host.gpus for p in gpu.peers):
        return models.by_name({12: "a100-pcie", 4: "rtx-a6000"}.get(most, "v100-sxm"))
    if most >= 18 or (most == 6 and len(host.gpus) == 4):
        return models.by_name("h100-sxm")
    if 0 < most <= 3 or (most == 6 and len(host.gpus) > 4):
        return models.by_name("v100-sxm")
    return models.by_name({0: "a100-pcie", 8: "a800-sxm"}.get(most, "a100-sxm"))
