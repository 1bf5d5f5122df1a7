"""What the user adds to a text, and the list of what had to be assumed."""

from __future__ import annotations

from dataclasses import dataclass, field

from charm_sched.errors import TopologyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The flags of ``charm-topo import``; None where the user says nothing.

    Attributes:
        gpu: name of a GPU model.
        nvlink, pcie, socket, nic: bytes per second: of one NVLink or XGMI link, of a device's PCIe
            link, between processors, of one NIC port.
        peer: whether GPUs reach each other over PCIe without host memory.
        numa: groups of GPU numbers that share a processor.
        nodes: how many alike machines a plain network joins.
        oversubscription: of each level of switches: bandwidth from below per bandwidth upwards.
        under: the switch whose hosts are taken, of a network.
        name: of the topology.
        strict: refuse instead of assuming.
        as_is: import a machine that looks broken.
    """

    gpu: str | None = None
    nvlink: float | None = None
    pcie: float | None = None
    socket: float | None = None
    nic: float | None = None
    peer: bool | None = None
    numa: tuple[tuple[int, ...], ...] = ()
    nodes: int | None = None
    oversubscription: float | None = None
    under: str | None = None
    name: str | None = None
    strict: bool = False
    as_is: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with where it comes from; assumed unless a text or the user says it."""

    value: float
    source: str
    assumed: bool = False


@dataclass(slots=True)
class Ledger:
    """What is not in the text and was assumed, with the flag that says it better."""

    entries: dict[str, str] = field(default_factory=dict)

    def assume(self, sentence: str, flag: str) -> None:
        """Note one assumption, once."""
        self.entries.setdefault(sentence, flag)

    def sentences(self) -> tuple[str, ...]:
        """Return one sentence per assumption."""
        return tuple(
            sentence + (f" ({flag} says otherwise)" if flag else "")
            for sentence, flag in self.entries.items()
        )

    def refuse(self, where: str) -> None:
        """Refuse if anything had to be assumed.

        Raises:
            TopologyError: it names every flag that is missing.
        """
        asked = [f"{sentence}: give {flag}" for sentence, flag in self.entries.items() if flag]
        if asked:
            raise TopologyError(
                f"{where}: expected everything to be said (--strict), found that\n  "
                + "\n  ".join(asked)
            )
