"""The charts of attention rates: documents, the many rings, copies and tiles, single bars."""

from __future__ import annotations

import re

import pytest

from charm_sched.partition import Partition
from charm_sched.planners.strategies import build
from charm_sched.proof.verifier import verify
from charm_sched.simulator import simulate
from charm_sched.workload import Workload
from tests.benchmarks import validation_documents as documents
from tests.benchmarks.validation import PAGE
from tests.benchmarks.validation_attention import FITTED, machine, plan_of, predict, seconds
from tests.benchmarks.validation_cases import CHART, GPUS, STRATEGIES, Case, flops
from tests.benchmarks.validation_kernels import Constants, copies, length_factor, tile_excess
from tests.benchmarks.validation_rings import many_rings

FREE = Constants(full=1e15, causal=1e15, backward=1e15, scatter=1e30)


def test_packs_are_cut_out_of_the_shuffled_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the plain loop: fill a pack, carry over what does not fit."""
    monkeypatch.setattr(documents, "HISTOGRAM", ((5, 300), (70, 40), (350, 9)))
    documents.document_packs.cache_clear()
    packs = documents.document_packs(400, 10**6)
    documents.document_packs.cache_clear()
    assert all(sum(pack) == 400 and max(pack) <= 100 for pack in packs)
    assert len(packs) == (5 * 300 + 70 * 40 + 350 * 9) // 400
    generator = documents.np.random.default_rng(documents.SEED)
    samples = documents._cut(100.0)
    assert sorted(samples.tolist()) == sorted([5] * 300 + [70] * 40 + 9 * [100] * 3 + 9 * [50])
    generator.shuffle(samples)
    plain, pack = [], []
    for length in samples.tolist():
        while length:
            taken = min(length, 400 - sum(pack))
            pack.append(taken)
            length -= taken
            if sum(pack) == 400:
                plain.append(tuple(pack))
                pack = []
    generator.shuffle(plain)
    assert packs == tuple(plain)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_many_rings_is_attention_and_loads_all_cards_alike(mask: str, direction: str) -> None:
    work = Workload(seq_len=16 * 16, heads=8, kv_heads=8, head_dim=8, mask=mask)
    topology, rows = machine(2), Partition.contiguous(256, 16)
    plan = build(
        many_rings, "many_rings", work, rows, direction=direction, topology=topology,
        devices=topology.device_names,
    )  # fmt: skip
    verify(plan)
    if direction == "forward":
        shard = 16 * 8 * 8 * 2 * 2  # bytes of a rank's keys and values
        crossing = simulate(plan).link_bytes["network"]
        assert crossing == 2 * 2 * 15 * shard  # per node and end, what one ring carries


@pytest.mark.parametrize("name", CHART)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_plans_of_the_charts_are_attention(name: str, strategy: str) -> None:
    docs = (40_000, 3_000, 70_000, 18_072) if name.startswith("documents") else ()
    case = Case(name=name, strategy=strategy, ranks=16, documents=docs)
    verify(plan_of(case, machine(2)))


def test_a_bar_is_its_work_where_nothing_else_costs() -> None:
    case = Case(name="full forward", strategy="usp", ranks=8)
    assert length_factor(case) == 1
    bare = flops(case) / 8 / FREE.full
    once = copies(case)[0].seconds(FREE) + copies(case)[1].seconds(FREE)
    exchange = seconds(case, FREE) - bare - once
    moved = 7 / 8 * 302e6 / 370.8e9  # queries, keys, values and outputs of 8K tokens
    assert exchange == pytest.approx(moved, rel=0.02)


def test_tiles_cost_more_the_shorter_the_documents() -> None:
    def excess(length: int) -> float:
        docs = (length,) * (65536 // length)
        case = Case(name="documents forward", strategy="ulysses", ranks=8, documents=docs)
        return tile_excess(case) / flops(case) * 8

    # Two rows of keys on the diagonal are half full on average, and each tile costs 2.15 blocks.
    assert excess(65536) == pytest.approx((2.15 + 0.5) * 128 / 32768, rel=0.05)
    assert excess(65536) < excess(8192) < excess(1024) < excess(128)


@pytest.mark.parametrize(
    ("case", "strategy", "ranks"),
    [
        ("causal forward", "ulysses", 16),
        ("causal backward", "ring", 16),
        ("full forward", "usp", 32),
    ],
)
def test_the_page_has_what_is_predicted(case: str, strategy: str, ranks: int) -> None:
    text = PAGE.read_text()
    found = re.findall(r"^\| .* \| ([\d.]+) T\S+ \|$", text, re.M)
    rates = [1e12 * float(rate) for rate in found]
    constants = Constants(**dict(zip(FITTED, rates, strict=True)))
    chart = text.split(f"| {case} |")[1]
    (row,) = re.findall(rf"^\| {strategy} \| (.*) \|$", chart.split("\n\n")[0], re.M)
    cell = row.split(" | ")[GPUS.index(ranks)]
    measured, predicted = re.findall(r"(\d+) / (\d+),", cell)[0]
    assert int(measured) == CHART[case][strategy][GPUS.index(ranks)]
    assert predict(case, strategy, ranks, constants) == pytest.approx(int(predicted), rel=0.01)
