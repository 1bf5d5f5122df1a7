"""What machines cost: read strictly, no part of the digest, and shown per million tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from charm_sched import load_topology
from charm_sched.cli import plan_main
from charm_sched.errors import TopologyError
from charm_sched.topology.costs import RunningCost
from charm_sched.topology.graph import Topology

FULL = {
    "price": "36 USD/h", "power": "10.8 kW", "electricity": "0.2 USD/kWh", "assumed": ["power"],
    "source": {"price": "an offer", "power": "a guess"},
}  # fmt: skip


def document(costs: Any) -> dict[str, Any]:
    return {**load_topology("dual_numa_pcie").to_document(), "costs": costs}


def test_costs_are_read_and_written_again() -> None:
    machine = Topology.from_document(document(FULL))
    assert machine.costs == RunningCost(
        price=36.0, power=10800.0, electricity=0.2, currency="USD", assumed=("power",),
        source="price: an offer; power: a guess",
    )  # fmt: skip
    again = Topology.from_document(machine.to_document())
    assert again.costs == machine.costs
    assert machine.digest == load_topology("dual_numa_pcie").digest
    assert any(t.startswith("dual_numa_pcie: power 10.8 kW is assumed") for t in again.assumptions)


def test_shipped_machines_have_no_invented_price() -> None:
    assert load_topology("dual_node_nvlink").costs is None


def test_money_and_energy_per_million_tokens() -> None:
    cost = RunningCost(price=36.0, power=10_000.0, electricity=0.2, currency="USD")
    # one second for 1,000 tokens: 1,000 s for a million, 10 USD; 10 kW for 1,000 s
    energy = 10 * 1000 / 3600
    assert cost.energy(1.0, 1000) == pytest.approx(energy)
    assert cost.money(1.0, 1000) == pytest.approx(10 + 0.2 * energy)
    assert RunningCost(power=10_000.0).money(1.0, 1000) is None
    assert RunningCost(price=36.0, currency="EUR").energy(1.0, 1000) is None
    assert RunningCost(price=36.0, currency="EUR").money(1.0, 1000) == pytest.approx(10)


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ({"price": 36}, "expected a price such as"),
        ({"price": "36 USD"}, "expected a price such as"),
        ({"price": "36 USD/kWh"}, "expected a price such as"),
        ({"price": "36 dollars/h"}, "expected a price such as"),
        ({"power": "10"}, 'a number needs its unit (write "10 kW")'),
        ({"power": 10}, "expected a power"),
        ({"power": "0 W"}, "above zero"),
        ({"power": "1 kW", "electricity": "1 USD/h"}, '"0.12 USD/kWh"'),
        ({"electricity": "1 USD/kWh"}, 'the key "power" beside electricity'),
        (
            {"price": "1 EUR/h", "power": "1 kW", "electricity": "1 USD/kWh"},
            "one currency, EUR as the price",
        ),
        ({"rent": "1 EUR/h"}, 'the unknown key "rent"'),
        ({}, "expected price, power or electricity"),
        ({"source": "a list"}, "expected price, power or electricity"),
    ],
)
def test_wrong_costs_are_one_message(costs: Any, said: str) -> None:
    with pytest.raises(TopologyError) as error:
        Topology.from_document(document(costs), where="rack.yaml")
    assert said in str(error.value)
    assert str(error.value).startswith("rack.yaml")
    assert "costs" in str(error.value)


def test_machines_side_by_side_with_their_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    Path("rack.yaml").write_text(yaml.safe_dump({**document(FULL), "name": "rack"}))
    argv = ["rack.yaml", "dual_numa_pcie_gen5", "--seq-len", "1K", "--strategy", "ring"]
    assert plan_main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    first, second = found["machines"]
    assert second["cost"] is None
    assert (first["name"], first["ranks"], first["speed_vs_first"]) == ("rack", 8, 1)
    seconds = sum(first["makespan_s"].values())
    assert all(first["makespan_s"][d] >= first["bound_s"][d] for d in first["bound_s"])
    energy = 10.8 * seconds / 3600 / 1024 * 1e6
    assert first["cost"]["kwh_per_million_tokens"] == pytest.approx(energy)
    money = 36 * seconds / 3600 / 1024 * 1e6 + 0.2 * energy
    assert first["cost"]["per_million_tokens"] == pytest.approx(money)
    assert first["cost"] == found["reports"][0]["cost"]
    assert plan_main(argv) == 0
    text = capsys.readouterr().out
    table = text[text.index("The machines side by side") :]
    assert "per 1M tokens" in table
    assert f"{money:.3g} USD" in table
    assert "No price or power stands in the files of dual_numa_pcie_gen5." in table
    assert "What it costs" in text[: text.index("The machines side by side")]
