"""The machine at hand, from synthetic files of the kernel and outputs of tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trees import A100, BRIDGE, CARD, GPUS, PLACES, Tree, box, smi

from charm_sched.errors import TopologyError
from charm_sched.importers.choices import Choices
from charm_sched.topology.graph import Topology


def bandwidths(topology: Topology) -> dict[frozenset[str], float]:
    return {frozenset((k.src, k.dst)): k.bandwidth / 1e9 for k in topology.links}


def test_a_machine_of_two_sockets_is_found_whole(tmp_path: Path) -> None:
    tree = box(tmp_path / "n1")
    smi(tree)
    topology = tree.topology()
    assert topology.device_names == ("gpu0", "gpu1", "gpu2", "gpu3")
    assert [set(d.devices) for d in topology.domains().children] == [
        {"gpu0", "gpu1"}, {"gpu2", "gpu3"},
    ]  # fmt: skip
    links = bandwidths(topology)
    assert links[frozenset(("gpu0", "switch0"))] == 24
    assert links[frozenset(("switch1", "numa1"))] == 24
    assert links[frozenset(("mlx5_1", "switch1"))] == 24
    assert topology.devices[2].id == f"{GPUS[2]} GPU-00000002-1111-2222-3333-444444444444"
    assert topology.devices[0].compute.name.startswith("a100_pcie")
    cards = {switch.name: switch.id for switch in topology.switches if switch.kind == "nic"}
    assert cards["mlx5_0"] == "0000:45:00.0 ens0 mlx5_0"


def test_what_tools_say_is_put_beside_the_tree(tmp_path: Path) -> None:
    tree = box(tmp_path / "n1")
    smi(tree)
    rows = [["", "GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "NIC1", "CPU Affinity", "NUMA Affinity"]]
    classes = [
        "X NV12 SYS SYS PIX SYS", "NV12 X SYS SYS PIX SYS", "SYS SYS X NV12 SYS PIX",
        "SYS SYS NV12 X SYS PIX", "PIX PIX SYS SYS X SYS", "SYS SYS PIX PIX SYS X",
    ]  # fmt: skip
    for i, line in enumerate(classes):
        name = f"GPU{i}" if i < 4 else f"NIC{i - 4}"
        rows.append([name, *line.split(), *((["0-15", str(i // 2)]) if i < 4 else [])])
    legend = "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n"
    tree.tool("nvidia-smi topo -m", "\n".join("\t".join(row) for row in rows) + "\n" + legend)
    made = tree.made()
    assert made.doubts == ()
    links = bandwidths(tree.topology())
    assert links[frozenset(("gpu0", "gpu1"))] == 12 * 20
    assert links[frozenset(("gpu0", "switch0"))] == 24
    assert "mlx5_0" in made.text
    assert "nic0" not in made.text


def test_a_tool_that_is_not_understood_is_named_and_left_out(tmp_path: Path) -> None:
    tree = box(tmp_path / "n1")
    smi(tree)
    tree.tool("nvidia-smi topo -m", "\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tSYS\tX\n")
    assert any(d.startswith("not used: nvidia-smi topo -m:2") for d in tree.made().doubts)
    tree.tool("nvidia-smi topo -m", "\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tPIX\tX\n")
    assert any("expected 4 GPUs" in doubt for doubt in tree.made().doubts)


@pytest.mark.parametrize(
    ("change", "told", "rate"),
    [
        ({"current_link_width": "8"}, "trained down to x8 of 16 GT/s, both ends can x16", 12),
        ({"current_link_speed": "8.0 GT/s PCIe"}, "runs at 8 GT/s, both ends can x16 of 16", 12),
        ({"current_link_speed": "2.5 GT/s PCIe"}, "asleep while idle, or trained down", 24),
    ],
)
def test_links_below_what_they_could_be_are_named(
    tmp_path: Path, change: dict[str, str], told: str, rate: float
) -> None:
    tree = box(tmp_path / "n1")
    folder = next((tmp_path / "n1/sys/devices").rglob("0000:43:00.0"))
    for name, text in change.items():
        (folder / name).write_text(text)
    made = tree.made()
    assert [d for d in made.doubts if told in d and "gpu0 (0000:43:00.0)" in d]
    assert bandwidths(tree.topology())[frozenset(("gpu0", "switch0"))] == rate


def test_a_card_in_an_older_slot_is_not_called_broken(tmp_path: Path) -> None:
    gen5 = {**A100, "max_link_speed": "32.0 GT/s PCIe"}
    assert not [d for d in box(tmp_path / "n1", gpu=gen5).made().doubts if "trained" in d]


def test_an_unknown_numa_node_comes_from_neighbours_or_tools_or_is_doubted(tmp_path: Path) -> None:
    tree = box(tmp_path / "a", numa=(0, -1))
    assert any("gpu2: the kernel does not know its NUMA node" in d for d in tree.made().doubts)
    (next((tmp_path / "a/sys/devices").rglob("0000:c0:01.1")) / "numa_node").write_text("1")
    assert not any("NUMA node (numa_node is -1)" in d for d in tree.made().doubts)
    assert [len(d.devices) for d in tree.topology().domains().children] == [2, 2]
    other = box(tmp_path / "b", numa=(0, -1))
    smi(other)
    names = "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n"
    rows = "".join(
        f"GPU{i}\t" + "\t".join("X" if i == j else "PIX" if i // 2 == j // 2 else "SYS"
                                for j in range(4)) + f"\t0\t{i // 2}\n" for i in range(4)
    )  # fmt: skip
    other.tool("nvidia-smi topo -m", names + rows)
    doubts = [d for d in other.made().doubts if d.startswith("gpu")]
    assert not doubts
    alone = Tree(tmp_path / "c", nodes=1)
    alone.pci("0000:00:05.0", -1, **A100)
    assert alone.seen().host.gpus[0].numa == (0,)


def test_virtual_functions_count_only_without_their_card(tmp_path: Path) -> None:
    tree = box(tmp_path / "n1")
    virtual = f"{PLACES[0]}/0000:42:02.0/0000:45:00.2"
    tree.pci(virtual, 0, **CARD)
    tree.rdma("mlx5_7", virtual)
    tree.link(f"/sys/devices/pci0000:40/{virtual}/physfn", "../0000:45:00.0")
    made = tree.made()
    assert any("1 virtual functions (SR-IOV)" in note for note in made.notes)
    assert "mlx5_7" not in made.text
    inside = Tree(tmp_path / "vm", nodes=1)
    inside.pci("0000:00:05.0", 0, **A100)
    inside.pci("0000:00:06.0", 0, **CARD, physfn="x")
    inside.rdma("mlx5_0", "0000:00:06.0")
    assert "mlx5_0" in inside.made().text


def test_ports_that_are_down_are_left_out_and_named(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "n1", nodes=1)
    tree.pci("0000:00:05.0", 0, **A100)
    tree.pci("0000:00:06.0", 0, **CARD)
    tree.rdma("mlx5_0", "0000:00:06.0", state="1: DOWN")
    made = tree.made()
    assert any("mlx5_0, port 1 is DOWN" in note for note in made.notes)
    assert "mlx5_0, kind" not in made.text


def test_mig_is_left_out_or_refused_or_taken_as_it_is(tmp_path: Path) -> None:
    tree = box(tmp_path / "n1")
    smi(tree, mig=[1])
    assert [gpu.name for gpu in tree.seen().host.gpus] == ["gpu0", "gpu2", "gpu3"]
    assert any("gpu1: in MIG mode" in doubt for doubt in tree.made().doubts)
    assert len(tree.seen(as_is=True).host.gpus) == 4
    smi(tree, mig=range(4))
    with pytest.raises(TopologyError, match="found all of them in MIG mode"):
        tree.seen()


def test_a_container_sees_what_the_driver_lists(tmp_path: Path) -> None:
    tree = box(tmp_path / "n1")
    smi(tree, listed=[2, 3])
    assert tree.topology().device_names == ("gpu2", "gpu3")
    assert any(
        "2 GPUs on the PCI bus that the driver does not list" in n for n in tree.made().notes
    )


def test_a_virtual_machine_without_a_tree_goes_by_the_tool(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "vm", nodes=1)
    smi(tree, listed=[0, 1])
    with pytest.raises(TopologyError, match="expected the paths between GPUs, found none"):
        tree.made()
    tree.tool("nvidia-smi topo -m", "\tGPU0\tGPU1\nGPU0\tX\tPHB\nGPU1\tPHB\tX\n")
    made = tree.made()
    assert any("the PCI tree does not show every GPU" in doubt for doubt in made.doubts)
    assert len(tree.topology().devices) == 2


def test_without_a_driver_links_are_unknown_and_that_is_said(tmp_path: Path) -> None:
    made = box(tmp_path / "n1").made()
    assert any("nvidia-smi does not run here: 4 GPUs" in doubt for doubt in made.doubts)
    assert any("the text leaves NVLink out" in each for each in made.assumptions)


def test_amd_gpus_are_numbered_by_their_driver(tmp_path: Path) -> None:
    mi = {**A100, "vendor": "0x1002", "device": "0x74a1", "class": "0x120000"}
    tree = box(tmp_path / "n1", gpu=mi)
    tree.tool("rocm-smi --showbus", "".join(
        f"GPU[{i}]\t\t: PCI Bus: {bus.upper()}\n" for i, bus in enumerate(reversed(GPUS))
    ))  # fmt: skip
    topology = tree.topology()
    assert [device.id for device in topology.devices] == list(reversed(GPUS))
    assert topology.devices[0].compute.name == "mi300x"


def test_files_that_may_not_be_read_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = box(tmp_path / "n1")
    plain = Path.open

    def closed(self: Path, *args: Any, **more: Any) -> Any:
        if self.name == "current_link_width":
            raise PermissionError(13, "Permission denied", str(self))
        return plain(self, *args, **more)

    monkeypatch.setattr(Path, "open", closed)
    made = tree.made()
    assert any("no permission to read" in note for note in made.notes)
    assert any("whose speed the text does not say" in each for each in made.assumptions)


def test_a_root_port_sets_no_limit_of_its_own(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "n1", nodes=1)
    tree.pci("0000:40:01.1", 0, **{**BRIDGE, "current_link_width": "4"})
    tree.pci("0000:40:01.1/0000:41:00.0", 0, **A100)
    tree.pci("0000:40:02.1/0000:42:00.0", 0, **A100)
    assert bandwidths(tree.topology())[frozenset(("gpu0", "numa0"))] == 24


def test_no_command_and_no_file_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    tree = Tree(tmp_path / "empty", nodes=0)
    seen = tree.seen()
    assert seen.nodes[0].cpus == (0,)
    assert tree.topology(Choices()).device_names == ("cpu0",)
