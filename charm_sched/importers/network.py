"""A network that goes down to devices: what ASTRA-sim, SimAI, ns-3 and InfraGraph describe."""

from __future__ import annotations

from charm_sched import units
from charm_sched.importers import models
from charm_sched.importers.choices import Choices, Figure, Ledger
from charm_sched.importers.facts import Edge, Network
from charm_sched.importers.figures import LATENCY
from charm_sched.importers.naming import plain_name
from charm_sched.importers.sheet import Entry, Sheet

USUAL = "a100-sxm"


def device_network(sheet: Sheet, network: Network, choices: Choices, ledger: Ledger) -> None:
    """Lay out devices, switches and links as they are.

    Raises:
        TopologyError: an unknown GPU model.
    """
    if choices.gpu is None:
        ledger.assume(f"the text does not say what computes; {USUAL} is assumed", "--gpu")
    model = models.by_name(choices.gpu or USUAL)
    profile = model.profile()
    sheet.profiles[profile.name] = profile
    fields = {"profile": profile.name, "memory": units.format_bytes(model.memory * 1e9),
              "source": {"memory": f"{model.name} datasheet"}}  # fmt: skip
    assumed = {} if choices.gpu else {"assumed": ["memory"]}
    for name in network.devices:
        sheet.body.devices.append(Entry({"name": plain_name(name), **fields, **assumed}))
    for name, kind in network.switches.items():
        sheet.body.switches.append(Entry({"name": plain_name(name), "kind": kind}))
    for edge in network.edges:
        figure, latency = _figures(edge, choices, ledger)
        sheet.link(sheet.body, plain_name(edge.a), plain_name(edge.b), edge.kind, figure, latency,
                   count=edge.count)  # fmt: skip


def _figures(edge: Edge, choices: Choices, ledger: Ledger) -> tuple[Figure, Figure]:
    if edge.bandwidth is not None:
        figure = Figure(edge.bandwidth, "from the text")
    elif choices.nic is not None:
        figure = Figure(choices.nic, "given by --nic")
    else:
        ledger.assume("links whose speed the text does not say carry 400 Gb/s", "--nic")
        figure = Figure(400e9 / 8, "not in the text", assumed=True)
    if edge.latency is not None:
        return figure, Figure(edge.latency, "from the text")
    value, source = LATENCY["network"]
    return figure, Figure(value, source, assumed=True)
