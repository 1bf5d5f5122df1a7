"""From texts to a file: what it holds, that it reads back, what two sources make of a machine."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
from foreign import Box, imported, links_of, machine, matrix, nccl_xml, source, topology_of
from hypothesis import given, settings
from hypothesis import strategies as st

from charm_sched import importers
from charm_sched.errors import TopologyError
from charm_sched.importers import models, smi_matrix
from charm_sched.importers import nccl_xml as xml_reader
from charm_sched.importers.choices import Choices
from charm_sched.importers.grouping import partitions
from charm_sched.importers.merge import differences
from charm_sched.topology.graph import load_topology
from charm_sched.topology.text import write_topology

MODULES = [
    f"charm_sched.importers.{module.name}" for module in pkgutil.iter_modules(importers.__path__)
]
boxes = st.builds(
    Box,
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=3),
    nv=st.sampled_from([0, 4, 18]),
    nics=st.integers(0, 1),
)


@given(box=boxes, style=st.sampled_from(["tabs", "aligned", "markdown"]))
@settings(max_examples=25)
def test_what_is_written_reads_back_as_the_same_machine(
    box: Box, style: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = imported(matrix(box, style))
    folder = tmp_path_factory.mktemp("made")
    (folder / "a.yaml").write_text(made.text)
    first = load_topology(folder / "a.yaml")
    write_topology(first, folder / "b.yaml")
    again = load_topology(folder / "b.yaml")
    assert again.digest == first.digest
    assert again.assumptions == first.assumptions
    assert len(first.devices) == sum(map(sum, box.processors))


@given(box=boxes)
@settings(max_examples=40)
def test_matrix_and_xml_of_one_machine_group_it_alike(box: Box) -> None:
    """Where NVLink hides the classes, a matrix still tells the processors."""
    seen = smi_matrix.read(source(matrix(box)))
    dumped = xml_reader.read(source(nccl_xml(box)))
    expected = {
        frozenset(f"gpu{i}" for i, (p, _) in enumerate(box.places()) if p == processor)
        for processor, switches in enumerate(box.processors)
    }
    assert partitions(seen)["processor"] == partitions(dumped)["processor"] == expected
    if box.nv != 4 or sum(map(sum, box.processors)) > 5:  # fewer with 4 links are a mesh
        found = differences(seen, dumped)
        assert [line for line in found if "direct link" not in line] == []


def test_two_sources_that_disagree_are_told_apart() -> None:
    seen, other = matrix(Box([[2, 2]])), nccl_xml(Box([[3, 1]]))
    made = imported(seen, other)
    assert any(
        "by PCIe switch: {0,1} {2,3} in text0" in doubt and "{0,1,2} in text1" in doubt
        for doubt in made.doubts
    )
    far = imported(seen, nccl_xml(Box([[2], [2]])))
    assert any("by processor: {0,1,2,3} in text0" in doubt for doubt in far.doubts)
    with pytest.raises(TopologyError, match=r"text1.*expected 4 GPUs as in text0.*found 3"):
        imported(seen, nccl_xml(Box([[3]])))


def test_two_sources_complete_each_other() -> None:
    legend = "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
    box = Box([[1], [1]], nv=18, nics=1)
    made = imported(matrix(box) + legend, nccl_xml(box))
    assert made.doubts == ()
    topology = topology_of(made)
    nics = [switch.name for switch in topology.switches if switch.kind == "nic"]
    assert nics == ["nic0", "nic1"]
    clustered = machine(matrix(box) + legend, nccl_xml(box), choices=Choices(nodes=2))
    assert links_of(clustered)[frozenset(("node1/nic0", "fabric"))] == 25  # from the XML


def test_numbers_are_those_of_the_text_the_user_or_a_named_profile() -> None:
    """H100: 18 links of 20.6 GB/s (NCCL), PCIe Gen5 x16 48 GB/s (NCCL)."""
    text = matrix(Box([[1, 1], [1]], nv=18, nics=1))
    topology = machine(text)
    links = links_of(topology)
    assert links[frozenset(("gpu0", "nvswitch"))] == pytest.approx(370.8)
    assert links[frozenset(("gpu0", "switch0"))] == 48
    given_ = machine(text, choices=Choices(gpu="h200-sxm", nvlink=25e9, pcie=40e9, socket=50e9))
    links = links_of(given_)
    assert links[frozenset(("gpu0", "nvswitch"))] == 450
    assert links[frozenset(("gpu0", "switch0"))] == 40
    assert links[frozenset(("numa0", "numa1"))] == 50
    assert given_.devices[0].memory == 141e9
    assert not any(link.assumed_keys not in (("latency",),) for link in given_.links)


def test_everything_assumed_is_listed_and_marked_and_strict_asks_for_it() -> None:
    text = matrix(Box([[2], [2]]))
    made = imported(text)
    topology = topology_of(made)
    assert set(made.assumptions) <= set(topology.assumptions)
    assert all(flag in " ".join(made.assumptions) for flag in ("--gpu", "--pcie", "--socket"))
    marked = [line for line in made.text.split("\n") if line.strip().startswith("# assumed: ")]
    kinds = {link.kind: link.assumed_keys for link in topology.links}
    for keys in kinds.values():
        for key in keys:
            assert any(line.strip().startswith(f"# assumed: {key}") for line in marked)
    with pytest.raises(TopologyError, match=r"--strict(.|\n)*give --gpu(.|\n)*give --socket"):
        imported(text, choices=Choices(strict=True))
    said = Choices(strict=True, gpu="a100-pcie", pcie=24e9, socket=36e9, peer=True)
    (left,) = imported(text, choices=said).assumptions  # nothing that a flag could say
    assert left.startswith("each PCIe switch has one link towards its processor")


def test_bridged_pairs_keep_their_links_and_the_bare_card_is_named() -> None:
    rows = [["X", "NV12", "SYS", "SYS"], ["NV12", "X", "SYS", "SYS"],
            ["SYS", "SYS", "X", "NODE"], ["SYS", "SYS", "NODE", "X"]]  # fmt: skip
    text = "\tGPU0\tGPU1\tGPU2\tGPU3\tNUMA Affinity\n" + "".join(
        f"GPU{i}\t" + "\t".join(row) + f"\t{i // 2}\n" for i, row in enumerate(rows)
    )
    made = imported(text)
    assert any("gpu2, gpu3: no NVLink, while gpu0, gpu1 have it" in doubt for doubt in made.doubts)
    assert links_of(topology_of(made))[frozenset(("gpu0", "gpu1"))] == 240  # 12 x 20 GB/s


def test_one_pair_without_nvlink_among_switched_gpus_is_a_fault() -> None:
    text = matrix(Box([[4]], nv=18))
    lines = text.split("\n")
    lines[1] = lines[1].replace("NV18\tNV18\tNV18", "NODE\tNV18\tNV18")
    lines[2] = lines[2].replace("NV18", "NODE", 1)
    with pytest.raises(TopologyError, match="gpu0 and gpu1: NODE, all others are joined"):
        imported("\n".join(lines))


def test_dual_port_cards_have_one_slot() -> None:
    """Two ports that are PIX to each other and to no GPU share what the card's slot carries."""
    text = (
        "\tGPU0\tNIC0\tNIC1\nGPU0\tX\tPHB\tPHB\nNIC0\tPHB\tX\tPIX\nNIC1\tPHB\tPIX\tX\n"
        "\nNIC Legend:\n\n  NIC0: rocep4s0f0\n  NIC1: rocep4s0f1\n"
    )
    topology = machine(text, choices=Choices(nodes=2, nic=12.5e9, pcie=24e9))
    links = links_of(topology)
    assert links[frozenset(("node0/nic0", "fabric"))] == 25  # both ports
    assert links[frozenset(("node0/nic0", "node0/switch0"))] == 24


def test_every_model_has_a_profile_and_is_found_by_its_own_name() -> None:
    for model in models.MODELS:
        profile = model.profile()
        assert profile.peak["bf16"] > 0
        assert profile.source
        assert models.by_name(model.name.upper()) is model
    assert {models.by_text(t)[0].name for t in ("NVIDIA H100 80GB HBM3", "0x2330 sm90")} == {
        "h100-sxm"
    }
    assert models.by_text("sm90") == (models.by_name("h100-sxm"), False)
    assert models.by_text("NVIDIA A100-PCIE-40GB")[0].name == "a100-pcie-40gb"
    assert models.by_text("Voodoo 2") is None
    with pytest.raises(TopologyError, match='did you mean "h100-sxm"'):
        models.by_name("h100-smx")


@pytest.mark.parametrize("module", MODULES)
def test_doctests(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0
