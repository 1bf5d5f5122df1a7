"""Devices as the system names them, the best of them, and what another choice costs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charm_sched.errors import TopologyError
from charm_sched.placement.orders import best_order
from charm_sched.placement.pairs import Pairs
from charm_sched.placement.place import place
from charm_sched.placement.subsets import candidates
from charm_sched.search.planning import plan
from charm_sched.topo import main
from charm_sched.topology.calling import resolved, visible
from charm_sched.topology.file import parse_topology
from charm_sched.topology.graph import Topology, load_topology
from charm_sched.workload import Workload

WORK = Workload(seq_len=8192, heads=8, kv_heads=8, head_dim=128, dtype="bf16", mask="full")
PROFILE = (
    "p: {peak: {bf16: 900 TFLOP/s, fp16: 1 TFLOP/s, fp32: 1 TFLOP/s, fp64: 1 TFLOP/s}, "
    "efficiency: 1.0, overhead: 0 s, memory_bandwidth: 900 GB/s}"
)


def bridged(links: Sequence[tuple[int, int]], count: int, ids: bool = False) -> Topology:
    """Give GPUs on one slow switch, some pairs with a fast bridge."""
    lines = ["schema: charm-sched/topology", "version: 1", "name: box", "profiles:",
             f"  {PROFILE}", "devices:"]  # fmt: skip
    for i in range(count):
        own = f', id: "0000:{i:02x}:00.0 GPU-{i}{i}aa{i}{i}bb-0000"' if ids else ""
        lines.append(f"  - {{name: gpu{i}, profile: p, memory: 80 GB{own}}}")
    lines += ["switches:", "  - {name: root, kind: root_complex}", "links:"]
    lines += [f"  - {{from: gpu{i}, to: root, kind: pcie, bandwidth: 4 GB/s, latency: 1 us}}"
              for i in range(count)]  # fmt: skip
    lines += [f"  - {{from: gpu{a}, to: gpu{b}, kind: nvlink, bandwidth: 200 GB/s, latency: 1 us}}"
              for a, b in links]  # fmt: skip
    return parse_topology("\n".join(lines) + "\n", where="box")


def test_a_device_goes_by_every_name_that_it_has() -> None:
    box = bridged([], 3, ids=True)
    assert resolved(box, ["2", "gpu0", "GPU-11aa"]) == ("gpu2", "gpu0", "gpu1")
    assert resolved(box, ["0000:02:00.0", "00:00.0", "11aa11bb"]) == ("gpu2", "gpu0", "gpu1")
    numa = load_topology("dual_numa_pcie")
    assert resolved(numa, ["4", "0"]) == ("socket1/gpu0", "socket0/gpu0")
    for word in ("7", "GPU-77", "ff:00.0", "gpu9", "\u0663"):
        with pytest.raises(TopologyError, match="expected one of its 3 devices"):
            resolved(box, [word])


def test_an_index_is_the_number_of_the_name_where_some_are_left_out() -> None:
    box = bridged([(0, 2)], 3)
    document = box.to_document()
    document["devices"] = [d for d in document["devices"] if d["name"] != "gpu1"]
    document["links"] = [k for k in document["links"] if "gpu1" not in (k["from"], k["to"])]
    assert resolved(Topology.from_document(document), ["2"]) == ("gpu2",)


@pytest.mark.parametrize(
    ("text", "words"),
    [("2,0", ("2", "0")), (" 1 , GPU-ab ", ("1", "GPU-ab")), ("3,-1,2", ("3",)), ("1,,2", ("1",))],
)
def test_visible_devices_are_read_as_cuda_reads_them(text: str, words: tuple[str, ...]) -> None:
    assert visible({"CUDA_VISIBLE_DEVICES": text}) == words
    assert visible({"HIP_VISIBLE_DEVICES": text}) == words


@pytest.mark.parametrize("environment", [{}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_no_visible_devices_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(TopologyError, match="CUDA_VISIBLE_DEVICES"):
        visible(environment)


def test_plans_take_indices_in_their_order() -> None:
    box = load_topology("dual_numa_pcie")
    made = plan(box, WORK, strategy="ring", direction="forward", devices=["5", "0"])
    assert made.devices == ("socket1/gpu1", "socket0/gpu0")


def test_bridged_pairs_are_chosen_and_a_pair_without_a_bridge_is_costly() -> None:
    box = bridged([(0, 3), (1, 2)], 4)
    found = place(box, WORK, ranks=2, given=["gpu0", "gpu1"])
    assert set(found.best.devices) in ({"gpu0", "gpu3"}, {"gpu1", "gpu2"})
    assert found.cost > 1
    assert "better joined" in found.reason()
    assert found.exact


def test_the_order_follows_the_bridges() -> None:
    chain = bridged([(0, 2), (2, 1), (1, 3), (3, 0)], 4)
    found = place(chain, WORK, given=["gpu0", "gpu1", "gpu2", "gpu3"])
    steps = {frozenset(p) for p in itertools.pairwise([*found.best.devices, found.best.devices[0]])}
    assert steps == {frozenset((f"gpu{a}", f"gpu{b}")) for a, b in ((0, 2), (2, 1), (1, 3), (3, 0))}
    assert found.ring_cost > 0.5


def test_a_good_choice_costs_nothing() -> None:
    box = load_topology("dual_numa_pcie")
    best = place(box, WORK, ranks=4).best
    found = place(box, WORK, ranks=4, given=best.devices)
    assert found.best.devices == best.devices
    assert found.cost == 0
    assert found.reason() == ""


@given(
    order=st.permutations(range(6)),
    links=st.sets(
        st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda p: p[0] < p[1]), max_size=8
    ),
)
@settings(max_examples=25)
def test_small_orders_are_as_short_as_any(
    order: list[int], links: set[tuple[int, int]]
) -> None:  # fmt: skip
    box = bridged(sorted(links), 6)
    pairs = Pairs.of(box, box.device_names)
    found = pairs.ring(np.array([best_order(pairs, order)]))[0]
    every = pairs.ring(np.array([(0, *rest) for rest in itertools.permutations(range(1, 6))]))
    assert found <= every.min() * (1 + 1e-5)


def test_the_search_beyond_eight_devices_undoes_a_shuffle() -> None:
    box = bridged([(i, (i + 1) % 10) for i in range(10)], 10)
    pairs = Pairs.of(box, box.device_names)
    shuffled = [3 * i % 10 for i in range(10)]
    step = pairs.ring(np.array([shuffled, list(range(10)), best_order(pairs, shuffled)]))
    assert step[1] < step[0]
    assert step[2] <= step[1] * (1 + 1e-5)


def test_a_ring_step_shares_what_its_flows_cross() -> None:
    box = load_topology("dual_numa_pcie")
    pairs = Pairs.of(box, box.device_names)
    step = pairs.ring(np.array([range(8), [0, 4, 1, 5, 2, 6, 3, 7]]))
    assert step[0] == pytest.approx(1 / 18e9)  # one flow each way between the sockets, by its cap
    assert step[1] == pytest.approx(4 / 36e9)  # four each way


def test_sets_that_look_alike_are_one_kind() -> None:
    box = load_topology("dual_numa_pcie")
    sets, every = candidates(box, Pairs.of(box, box.device_names), 4)
    assert every
    assert len(sets) <= 4  # 4 + 0, 3 + 1 both ways at most, 2 + 2


def test_the_command_says_what_an_order_costs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,4,1,5,2,6,3,7")
    flags = ["--seq-len", "8K", "--mask", "full"]
    assert main(["place", "dual_numa_pcie", "--devices", "visible", *flags]) == 0
    said = capsys.readouterr().out
    assert "order 0,4,1,5,2,6,3,7 costs" in said
    assert "8 neighbours across upi, 2 are needed" in said
    assert main(["place", "dual_numa_pcie", "--ranks", "2", "--json", *flags]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["best"]["devices"]) == 2
    assert document["given"] is None
