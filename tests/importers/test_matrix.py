"""``nvidia-smi topo -m``: every way it is pasted, what can be recovered, what is refused."""

from __future__ import annotations

import pytest
from foreign import STYLES, Box, imported, machine, matrix, source

from charm_sched.errors import TopologyError
from charm_sched.importers import smi_matrix, smi_p2p
from charm_sched.importers.choices import Choices
from charm_sched.importers.formats import format_of
from charm_sched.importers.grouping import find_places, partitions, planes

TWO_SOCKETS = Box([[2, 2], [4]])


def groups(text: str, level: str = "processor") -> set[frozenset[str]]:
    return set(partitions(smi_matrix.read(source(text)))[level])


def gpus(*numbers: int) -> frozenset[str]:
    return frozenset(f"gpu{n}" for n in numbers)


@pytest.mark.parametrize("style", STYLES)
def test_every_style_of_paste_gives_the_same_groups(style: str) -> None:
    text = matrix(TWO_SOCKETS, style)
    assert format_of(source(text)).name == "topo-m"
    assert groups(text) == {gpus(0, 1, 2, 3), gpus(4, 5, 6, 7)}
    assert groups(text, "PCIe switch") == {gpus(0, 1), gpus(2, 3), gpus(4, 5, 6, 7)}


def test_the_column_gpu_numa_id_is_no_gpu() -> None:
    text = (
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tSYS\t0-7\t0\t\tN/A\nGPU1\tSYS\t X \t8-15\t2\t\t10\n"
    )
    host = smi_matrix.read(source(text))
    assert [gpu.name for gpu in host.gpus] == ["gpu0", "gpu1"]
    assert [gpu.numa for gpu in host.gpus] == [(0,), (2,)]
    assert [gpu.memory_node for gpu in host.gpus] == [None, 10]


def test_empty_affinity_cells_do_not_shift_the_others() -> None:
    """Positions decide: tabs where there are tabs, the header's columns where there are none."""
    tabs = (
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV4\t\t0\t\tN/A\nGPU1\tNV4\t X \t1\t1\t\tN/A\n"
    )
    read = smi_matrix.read(source(tabs)).gpus
    assert [(gpu.cpus, gpu.numa) for gpu in read] == [("", (0,)), ("1", (1,))]
    spaces = (
        "        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV4                                     N/A\n"
        "GPU1    NV4      X                      1               N/A\n"
    )
    read = smi_matrix.read(source(spaces)).gpus
    assert [(gpu.cpus, gpu.numa) for gpu in read] == [("", None), ("", (1,))]


def test_lost_tabs_are_recovered_exactly_or_the_row_is_refused() -> None:
    whole = matrix(TWO_SOCKETS)
    damaged = whole.replace("PIX\tNODE", "PIXNODE", 1)
    made = imported(damaged)
    assert any("line 2: PIXNODE was read as PIX NODE" in note for note in made.notes)
    assert machine(damaged).digest == machine(whole).digest
    with pytest.raises(TopologyError, match=r'text0:2:36: expected a class .* found "0-15"'):
        imported(whole.replace("PIX\tNODE", "NODE", 1))
    bare = matrix(TWO_SOCKETS, numa=False, cpus=False)
    with pytest.raises(TopologyError, match=r"text0:2:\d+: expected 8 classes in the row GPU0"):
        imported(bare.replace("PIX\tNODE", "NODE", 1))


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("GPU0\t X \tPIX", "GPU0\t X \tSPB", "text0:2:10", 'found "SPB"'),
        ("GPU0\t X \tPIX", "GPU0\tPIX\t X ", "text0:2", "X where row and column are GPU0"),
        ("GPU0\t X \tPIX", "GPU0\t X \tNODE", "text0:2", "the same class both ways"),
        ("\nGPU3\t", "\nGPU9\t", "text0:5", 'a row "GPU9"'),
        ("\tGPU3\tGPU4", "\tGPU2\tGPU4", "text0:1", "each column once"),
        ("\tGPU3\tGPU4", "\tGPU3\t?!4", "text0:1", "names of GPUs and NICs"),
    ],
)
def test_damage_is_refused_with_its_place(old: str, new: str, where: str, what: str) -> None:
    with pytest.raises(TopologyError, match=what) as caught:
        imported(matrix(TWO_SOCKETS).replace(old, new, 1))
    assert str(caught.value).startswith(f"{where}:")


def test_a_wrapped_row_is_put_together() -> None:
    whole = matrix(TWO_SOCKETS)
    lines = whole.split("\n")
    cut = lines[3].index("SYS")
    lines[3:4] = [lines[3][:cut], lines[3][cut:]]
    made = imported("\n".join(lines))
    assert any("a wrapped row was put together" in note for note in made.notes)
    assert machine("\n".join(lines)).digest == machine(whole).digest


def test_missing_nic_rows_are_filled_and_missing_gpu_rows_are_not() -> None:
    whole = matrix(Box([[1], [1]], nics=1))
    lines = whole.rstrip("\n").split("\n")
    assert machine("\n".join(lines[:-2])).digest == machine(whole).digest
    cut = "\n".join(lines)[: -len("SYS\tPIX\tSYS\t X ") + 2]  # within the last row
    assert machine(cut).digest == machine(whole).digest
    with pytest.raises(TopologyError, match="a row for each GPU, found none for GPU1"):
        imported("\n".join(lines[:2]))


def test_old_labels_and_any_number_of_links() -> None:
    assert groups("\tGPU0\tGPU1\nGPU0\tX\tSOC\nGPU1\tSOC\tX\n") == {gpus(0), gpus(1)}
    host = smi_matrix.read(source(matrix(Box([[1], [1]], nv=5))))
    assert [(peer.target, peer.count) for peer in host.gpus[0].peers] == [("gpu1", 5)]


@pytest.mark.parametrize(
    ("gpus_", "links", "switched"), [(4, 4, False), (4, 6, False), (4, 12, True), (8, 8, True)]
)
def test_a_mesh_is_told_from_switches_by_the_links_it_would_take(
    gpus_: int, links: int, switched: bool
) -> None:
    """18 NVLinks are the most a GPU has: 3 x 6 make a mesh of four, 3 x 12 need switches."""
    host = smi_matrix.read(source(matrix(Box([[gpus_]], nv=links))))
    assert bool(planes(host)) == switched


def test_numa_decides_where_nvlink_hides_the_class() -> None:
    text = matrix(Box([[2], [2]], nv=18))
    assert groups(text) == {gpus(0, 1), gpus(2, 3)}
    assert groups(matrix(Box([[2], [2]], nv=18), numa=False)) == {gpus(0, 1), gpus(2, 3)}
    unknown = matrix(Box([[2], [2]], nv=18), numa=False, cpus=False)
    assert groups(unknown) == {gpus(0, 1, 2, 3)}
    assert any("is not known" in note for note in imported(unknown).notes)


def test_a_cut_list_of_cpus_still_names_its_processor() -> None:
    text = (
        "\tGPU0\tGPU1\tGPU2\tCPU Affinity\nGPU0\tX\tNV1\tNV1\t0-7,16-23\n"
        "GPU1\tNV1\tX\tNV1\t8-15,24-31\nGPU2\tNV1\tNV1\tX\t8-15,\n"
    )
    made = imported(text)
    assert any('CPU Affinity "8-15," is cut' in note for note in made.notes)
    assert groups(text) == {gpus(0), gpus(1, 2)}


def test_class_against_affinity_is_said_and_the_class_wins() -> None:
    sys_ = "\tGPU0\tGPU1\tNUMA Affinity\nGPU0\tX\tSYS\t1\nGPU1\tSYS\tX\t1\n"
    assert any("class SYS, though both" in doubt for doubt in imported(sys_).doubts)
    assert groups(sys_) == {gpus(0), gpus(1)}
    pix = "\tGPU0\tGPU1\tNUMA Affinity\nGPU0\tX\tPIX\t0\nGPU1\tPIX\tX\t1\n"
    assert any("class PIX, though the affinities" in doubt for doubt in imported(pix).doubts)
    assert groups(pix) == {gpus(0, 1)}
    nic = (
        "\tGPU0\tGPU1\tNIC0\tNUMA Affinity\nGPU0\tX\tNV4\tPIX\t0\nGPU1\tNV4\tX\tNODE\t1\n"
        "NIC0\tPIX\tNODE\tX\n"
    )
    assert any("nic0: class NODE to gpu1" in doubt for doubt in imported(nic).doubts)


def test_flattened_machines_are_named_and_regrouped_by_hand() -> None:
    text = "\tGPU0\tGPU1\tGPU2\tGPU3\tNUMA Affinity\n" + "".join(
        f"GPU{i}\t" + "\t".join("X" if i == j else "NODE" for j in range(4)) + "\t0\n"
        for i in range(4)
    )
    assert any("two sockets would not be seen" in doubt for doubt in imported(text).doubts)
    assert len(machine(text).domains().children) == 4
    split = machine(text, choices=Choices(numa=((0, 2), (1, 3))))
    assert [d.devices for d in split.domains().children] == [("gpu0", "gpu2"), ("gpu1", "gpu3")]
    with pytest.raises(TopologyError, match="--numa: expected each of the GPUs 0, 1, 2, 3 once"):
        imported(text, choices=Choices(numa=((0, 1), (1, 3))))


def test_pxb_is_a_switch_around_switches() -> None:
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPIX\tPXB\nGPU1\tPIX\tX\tPXB\nGPU2\tPXB\tPXB\tX\n"
    (processor,) = find_places(smi_matrix.read(source(text))).processors
    (outer,) = processor.inner
    assert outer.members == ("gpu2",)
    assert outer.inner[0].members == ("gpu0", "gpu1")


def test_topo_mp_says_nothing_about_nvlink() -> None:
    legend = "\nLegend:\n\n  X    = Self\n  PIX  = Connection traversing at most a single bridge\n"
    text = matrix(Box([[2], [2]]))
    assert smi_matrix.read(source(text)).peers_known
    assert smi_matrix.read(source(text + legend + "  NV#  = bonded NVLinks\n")).peers_known
    assert not smi_matrix.read(source(text + legend)).peers_known
    assert not smi_matrix.read(source("$ nvidia-smi topo -mp\n" + text)).peers_known
    made = imported(text + legend, choices=Choices(gpu="h100-sxm"))
    assert any("18 links per GPU to NVSwitches" in each for each in made.assumptions)


def test_the_word_numa_behind_a_row_is_its_affinity() -> None:
    text = "\tGPU0\tGPU1\nGPU0 X SYS NUMA 0\nGPU1 SYS X NUMA 2\n"
    assert [gpu.numa for gpu in smi_matrix.read(source(text)).gpus] == [(0,), (2,)]


P2P = " \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tGNS\tX\t\n"


def test_peer_access_comes_from_its_own_table() -> None:
    assert format_of(source(P2P)).name == "topo-p2p"
    assert smi_p2p.read(source(P2P)).access == {("gpu0", "gpu1"): "GNS", ("gpu1", "gpu0"): "GNS"}
    with pytest.raises(TopologyError, match="expected the paths between GPUs, found none"):
        imported(P2P)
    said = Choices(gpu="l40s", pcie=24e9)  # peer access, if no table says otherwise
    for text, rate in ((P2P, 12e9), (P2P.replace("GNS", "OK"), 24e9)):
        topology = machine(matrix(Box([[2]])), text, choices=said)
        route = topology.route("gpu0", "gpu1")
        assert min(topology.links[i].bandwidth for i in route.links) == rate
    made = imported(matrix(Box([[2]])), P2P)
    assert any("GNS (the GPU does not support it)" in doubt for doubt in made.doubts)


def test_without_peer_access_gpus_below_a_switch_share_its_uplink() -> None:
    """A byte between them goes up and comes down again: x16 of 24 GB/s for two make 12 each."""
    text = matrix(Box([[2], [2]]))
    near, far = (
        machine(text, choices=Choices(pcie=24e9, gpu="rtx4090", peer=peer))
        for peer in (True, False)
    )
    rates = {
        peer: min(topology.links[i].bandwidth for i in topology.route("gpu0", "gpu1").links)
        for peer, topology in ((True, near), (False, far))
    }
    assert rates == {True: 24e9, False: 12e9}
    assert machine(text, choices=Choices(pcie=24e9, gpu="rtx4090")).digest == far.digest
