"""The library of machines: each bound against the hand calculation that its file ends with."""

from __future__ import annotations

import ast
import math
import operator
import re
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import pytest

from charm_sched import Workload
from charm_sched.bounds.class_bound import class_bound
from charm_sched.importers.models import MODELS, Model
from charm_sched.topo import main as topo_main
from charm_sched.topology.costs import RunningCost
from charm_sched.topology.graph import load_topology, shipped_names
from charm_sched.topology.library import shipped_profiles
from charm_sched.topology.listing import GROUPS, Shipped, count_devices, shipped_machines
from charm_sched.topology.reader import Cursor
from charm_sched.topology.spec import read_document
from charm_sched.topology.yaml_tree import from_text

FOLDER = Path(__file__).parent.parent / "topologies"
BOUND = re.compile(r"^# bound by hand: ([\d.]+) us for (\d+) tokens$", re.MULTILINE)
STEP = re.compile(r"(\d[\d.]*(?: [x+/-] [\d.]+)+) = ([\d.]+)")
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
BEFORE = {  # machines that are older than the library; their bounds are tested elsewhere
    "cluster_1024_leaf_spine", "cluster_1024_rails", "cluster_8192_leaf_spine",
    "cluster_8192_rails", "dual_node_h800", "dual_node_nvlink", "dual_node_nvlink_4nic",
    "dual_numa_pcie", "dual_numa_pcie_gen5", "four_node_nvlink", "single_node_nvlink",
}  # fmt: skip


@pytest.fixture(scope="module")
def machines() -> tuple[Shipped, ...]:
    return shipped_machines()


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.yaml").read_text()


def each(without: Set[str] = frozenset()) -> list[Any]:
    """Give the shipped machines; of those with 8,192 devices the tests are slow."""
    return [
        pytest.param(name, marks=[pytest.mark.slow] if "8192" in name else [])
        for name in shipped_names()
        if name not in without
    ]


def value_of(node: ast.expr) -> float:
    """Work out sums, differences, products and quotients of numbers."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](value_of(left), value_of(right))
    raise AssertionError(ast.dump(node))


def evaluated(text: str) -> float:
    """Work out what a step of a hand calculation says, such as "7 x 1024 x 16384".

    >>> evaluated("6 x 20 + 12")
    132
    """
    return value_of(ast.parse(text.replace("x", "*"), mode="eval").body)


def test_there_are_thirty_machines_and_more() -> None:
    assert set(shipped_names()) >= BEFORE
    assert len(set(shipped_names()) - BEFORE) >= 30


@pytest.mark.parametrize("name", sorted(set(shipped_names()) - BEFORE))
def test_the_hand_calculation_adds_up(name: str) -> None:
    block = text_of(name).partition("# By hand")[2]
    steps = STEP.findall(block)
    assert len(steps) >= 4
    for expression, result in steps:
        decimals = len(result.partition(".")[2])
        assert abs(evaluated(expression) - float(result)) <= 0.5001 * 10**-decimals, expression
    found = BOUND.search(text_of(name))
    assert found is not None
    assert steps[-1][1] == found.group(1)
    # What one step finds, a later one takes: nothing is put in by the way.
    used = re.findall(r"[\d.]+", " ".join(expression for expression, _ in steps))
    assert all(result in used for _, result in (steps[0], steps[1]))


@pytest.mark.parametrize("name", each(without=BEFORE))
def test_the_bound_is_that_of_the_hand_calculation(name: str) -> None:
    found = BOUND.search(text_of(name))
    assert found is not None
    topology = load_topology(name)
    work = Workload(
        seq_len=int(found.group(2)), heads=32, kv_heads=32, head_dim=128, dtype="fp16", mask="full"
    )
    limit = class_bound(topology, work, direction="forward", partition="contiguous")
    assert limit.cut is not None, limit.reason
    assert limit.seconds * 1e6 == pytest.approx(float(found.group(1)), abs=1.5e-3)


@pytest.mark.parametrize("name", sorted(set(shipped_names()) - BEFORE))
def test_price_and_power_are_those_of_the_whole_machine(name: str) -> None:
    node = from_text(text_of(name), where=name)
    document = read_document(Cursor(node, "", name), FOLDER)
    costs = document.costs
    assert isinstance(costs, RunningCost)
    assert costs.power is not None
    devices = count_devices(document)
    assert 100 <= costs.power / devices <= 2500
    if costs.price is not None:
        assert 0.5 <= costs.price / devices <= 15
        assert "price: " in costs.source
    assert "power: " in costs.source


@pytest.mark.parametrize("name", each())
def test_devices_are_counted_from_the_file(name: str, machines: tuple[Shipped, ...]) -> None:
    (counted,) = [machine for machine in machines if machine.name == name]
    topology = load_topology(name)
    assert counted.devices == len(topology.devices)
    assert counted.description == " ".join(topology.description.split())


def test_a_template_of_templates_is_counted_and_one_inside_itself_is_not_endless() -> None:
    text = """
        schema: charm-sched/topology
        version: 1
        name: nested
        profiles: {card: {peak: {bf16: 1 TFLOP/s}, efficiency: 0.5, overhead: 5 us,
          memory_bandwidth: 1 GB/s}}
        templates:
          node: {devices: [{name: gpu0..7, profile: card}, {name: spare, profile: card}]}
          rack: {parts: [{name: node0..3, template: node}, {name: rack, template: rack}]}
        parts: [{name: rack0..1, template: rack}]
        devices: [{name: login, profile: card}]
    """
    document = read_document(Cursor(from_text(text, where="here"), "", "here"))
    assert count_devices(document) == 2 * 4 * 9 + 1


def test_the_listing_is_grouped_and_holds_every_machine(machines: tuple[Shipped, ...]) -> None:
    assert sorted(machine.name for machine in machines) == list(shipped_names())
    groups = [machine.group for machine in machines]
    assert sorted(groups, key=GROUPS.index) == groups
    assert set(groups) == set(GROUPS)
    named = {machine.name: machine.group for machine in machines}
    assert named["hgx_h100"] == named["mi300x_node"] == named["power9_ac922"] == GROUPS[0]
    assert named["l40s_8gpu"] == named["rtx_4090_8gpu"] == GROUPS[1]
    assert named["dual_node_nvlink"] == GROUPS[2]
    assert named["azure_nc_a100_v4"] == GROUPS[3]
    assert named["cluster_256_rails"] == GROUPS[4]


def test_a_word_filters_names_and_descriptions() -> None:
    assert {m.name for m in shipped_machines("EPYC Milan")} == {
        "aws_g6_48xlarge", "azure_nc_a100_v4",
    }  # fmt: skip
    assert all("h100" in f"{m.name} {m.description}".lower() for m in shipped_machines("h100"))
    assert shipped_machines("no such machine") == ()


def test_the_command_lists_in_a_hundred_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert topo_main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 80 < max(map(len, lines)) <= 100
    assert [line for line in lines if line in GROUPS] == list(GROUPS)
    assert topo_main(["list", "gcp_a3"]) == 0
    text = capsys.readouterr().out
    assert "gcp_a3_megagpu_8g" in text
    assert "aws" not in text
    assert topo_main(["list", "no such machine"]) == 1
    assert 'found none with "no such machine"' in capsys.readouterr().err


def test_listing_takes_no_time() -> None:
    """Reading the files is all there is to it; graphs of 8,192 devices take seconds each."""
    began = time.process_time()
    assert all(isinstance(machine, Shipped) for machine in shipped_machines())
    assert time.process_time() - began < 1.0


def test_the_readme_has_a_row_for_every_machine_and_profile(
    machines: tuple[Shipped, ...],
) -> None:
    assert f"{len(machines)} machines" in (FOLDER.parent / "README.md").read_text()
    text = (FOLDER / "README.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z0-9_]+)` \| (\d[\d,]*) \|", text, re.MULTILINE))
    counted = {machine.name: machine.devices for machine in machines}
    assert {name: int(count.replace(",", "")) for name, count in rows.items()} == counted
    assert all(f"`{profile}`" in text for profile in shipped_profiles())


def test_shift_rings_on_two_switches_are_as_measured() -> None:
    """Eight cards on two Gen5 switches of one socket, each sending to the one `shift` further.

    Measured: github voipmonitor/rtx6kpro, average GB/s per card.
    """
    topology = load_topology("rtx_pro_6000_8gpu")
    names = topology.device_names
    measured = {1: 50.59, 2: 37.89, 3: 25.64, 4: 12.62}
    for shift, rate in measured.items():
        routes = [topology.route(names[i], names[(i + shift) % 8]) for i in range(8)]
        load: dict[int, int] = {}
        for route in routes:
            for capacity in route.capacities:
                load[capacity] = load.get(capacity, 0) + 1
        shares = [
            min(topology.capacities[c].bandwidth / load[c] for c in route.capacities)
            for route in routes
        ]
        assert math.fsum(shares) / 8e9 == pytest.approx(rate, rel=0.06)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_gpu_model_agrees_with_its_profile_file_or_names_a_document(model: Model) -> None:
    profile = model.profile()
    if model.file:
        assert model.file in shipped_profiles()
        assert profile.memory == model.memory * 1e9
        assert not model.source
    else:
        assert re.search(r"datasheet|whitepaper|product (?:page|brief)", model.source)
        assert profile.peak["fp16"] >= profile.peak["fp32"] > profile.peak["fp64"] > 0 or (
            profile.peak["fp32"] == profile.peak["fp64"]
        )
        assert profile.memory_bandwidth >= 500e9
    assert profile.name == model.profile_name
