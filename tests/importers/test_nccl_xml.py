"""The topology XML of NCCL and RCCL, safe XML, and the graph files."""

from __future__ import annotations

import re

import pytest
from foreign import Box, imported, links_of, machine, matrix, nccl_xml, source

from charm_sched.errors import TopologyError
from charm_sched.importers import nccl_xml as reader
from charm_sched.importers import pcie, xml_tree
from charm_sched.importers.choices import Choices
from charm_sched.importers.grouping import partitions

SXM = 'vendor="0x10de" device="0x20b2"'


def test_gpus_nics_and_places_are_those_of_the_tree() -> None:
    text = nccl_xml(Box([[2, 2], [1]], nics=1), gpu=SXM)
    host = reader.read(source(text))
    assert [gpu.name for gpu in host.gpus] == [f"gpu{i}" for i in range(5)]
    assert [gpu.numa for gpu in host.gpus] == [(0,)] * 4 + [(1,)]
    assert {gpu.slot for gpu in host.gpus} == {24e9}
    assert [nic.speed for nic in host.nics] == [25e9] * 3
    groups = partitions(host)
    assert {len(group) for group in groups["processor"]} == {4, 1}
    made = links_of(machine(text))
    assert made[frozenset(("gpu0", "switch0"))] == 24
    assert made[frozenset(("switch0", "numa0"))] == 24


@pytest.mark.parametrize(
    ("speed", "width", "gigabytes"),
    [("8 GT/s", 16, 12.0), ("16.0 GT/s PCIe", 8, 12.0), ("32.0 GT/s PCIe", 16, 48.0)],
)
def test_bandwidth_follows_speed_and_width(speed: str, width: int, gigabytes: float) -> None:
    assert pcie.link_bandwidth(speed, width) == gigabytes * 1e9


def test_virtual_bridges_and_unknown_speeds_do_not_throttle() -> None:
    text = nccl_xml(Box([[2]]), gpu=SXM)
    bridge = text.replace('class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16"',
                          'class="0x060400" link_speed="2.5 GT/s PCIe" link_width="1"')  # fmt: skip
    made = imported(bridge)
    assert any("that is not believed" in note for note in made.notes)
    assert links_of(machine(bridge))[frozenset(("switch0", "numa0"))] == 24
    assert any("whose speed the text does not say are Gen4 x16" in a for a in made.assumptions)
    blank = text.replace(
        'link_speed="16.0 GT/s PCIe" link_width="16"', 'link_speed="" link_width="0"'
    )
    assert links_of(machine(blank))[frozenset(("gpu0", "switch0"))] == 24
    with pytest.raises(TopologyError, match=r'a link_speed such as .* found "fast"'):
        imported(text.replace("16.0 GT/s PCIe", "fast"))


def test_a_gpu_without_its_nvlink_is_a_fault_with_its_name() -> None:
    text = nccl_xml(Box([[4]], nv=18), gpu=SXM)
    lost = re.sub(r"<nvlink [^>]*/>", "", text, count=1)
    with pytest.raises(TopologyError, match="gpu0 has no NVLinks, its siblings have 18"):
        imported(lost)
    fewer = text.replace('count="18"', 'count="17"', 1)
    with pytest.raises(TopologyError, match="gpu0 has 17 NVLinks, its siblings have 18"):
        imported(fewer)
    made = imported(lost, choices=Choices(as_is=True))
    assert any("gpu0 has no NVLinks" in doubt for doubt in made.doubts)


def direct(*peers: tuple[int, str, int]) -> str:
    """Give three GPUs with these links: from, target address, count."""
    lines = ['<system version="1"><cpu numaid="-1">']
    for i in range(3):
        links = "".join(
            f'<nvlink target="{target}" count="{count}" tclass="0x030200"/>'
            for a, target, count in peers if a == i
        )  # fmt: skip
        lines.append(f'<pci busid="0000:0{i}:00.0" class="0x030200"><gpu dev="{i}" sm="70">'
                     f"{links}</gpu></pci>")  # fmt: skip
    return "".join([*lines, "</cpu></system>"])


def test_direct_links_are_named_by_both_ends_and_lead_somewhere() -> None:
    both = direct((0, "0000:01:00.0", 2), (1, "0000:00:00.0", 2))
    assert links_of(machine(both))[frozenset(("gpu0", "gpu1"))] == 40  # NCCL: 20 GB/s each
    with pytest.raises(TopologyError, match="gpu0 names 2 links to gpu1, gpu1 names 0 to gpu0"):
        imported(direct((0, "0000:01:00.0", 2)))
    absent = imported(direct((0, "0000:85:00.0", 2)))
    assert any("to 0000:85:00.0, which is not in this file" in note for note in absent.notes)
    itself = imported(direct((0, "0000:00:00.0", 2)))
    assert any("leads to itself" in doubt for doubt in itself.doubts)


@pytest.mark.parametrize("speed", ["200000000", "400000000"])
def test_a_slip_of_the_unit_is_not_believed(speed: str) -> None:
    text = nccl_xml(Box([[1]], nics=1), gpu=SXM).replace('speed="200000"', f'speed="{speed}"')
    made = imported(text)
    assert any(f"claims {speed} Mb/s" in doubt for doubt in made.doubts)
    assert reader.read(source(text)).nics[0].speed is None


def test_slow_ports_are_left_out_where_there_are_others() -> None:
    text = nccl_xml(Box([[1]], nics=2), gpu=SXM).replace('speed="200000"', 'speed="1000"', 1)
    made = imported(text)
    assert any("mlx5_0 has 1000 Mb/s: a management port?" in doubt for doubt in made.doubts)
    names = {switch.name for switch in machine(text).switches}
    assert "mlx5_1" in names
    assert "mlx5_0" not in names


def test_templates_have_gpus_by_class_or_none() -> None:
    text = re.sub(r"<gpu [^>]*>|</gpu>", "", nccl_xml(Box([[8]]), gpu=SXM))
    made = imported(text)
    assert any("12 links per GPU to NVSwitches, as boards with a100-sxm" in a
               for a in made.assumptions)  # fmt: skip
    assert machine(text).tiers == ("nvlink",)
    assert "nvlink" not in machine(text, choices=Choices(nvlink=0.0)).tiers
    with pytest.raises(TopologyError, match="no PCI device of class 0x0302"):
        imported('<system version="1"><cpu numaid="0"><pci busid="0000:00:16.0"/></cpu></system>')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<cpu numaid='0'/>", r"text0:1: expected the root element <system>, found <cpu>"),
        ("<system>\n<cpu numaid='0'>\n", r"text0:3:1: .* inside <cpu>"),
        ("<pci busid='0:0:0.0'/>\n<pci/>", r"text0:2:1: .* more behind <pci>"),
        ("<system><cpu numaid='x'/></system>", r"text0:1: expected a whole number"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><system>&b;</system>", "XML without entities"),
        ('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><system>&b;</system>',
         "XML without entities"),
        ("<system>" + "<pci>" * 100 + "</pci>" * 100 + "</system>", "64 deep"),
        ('<?xml version="1.0" encoding="rot13"?><system/>', "expected"),
    ],
)  # fmt: skip
def test_what_is_no_system_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        imported(text)


def test_two_gpus_at_one_address_and_two_hosts_are_refused() -> None:
    text = nccl_xml(Box([[2]]), gpu=SXM)
    bus = re.findall(r'busid="(\S+)" class="0x030200"', text)
    with pytest.raises(TopologyError, match="one GPU at each address"):
        imported(text.replace(bus[1], bus[0]))
    hosts = nccl_xml(Box([[1], [1]]), gpu=SXM)
    for number in ("1", "2"):
        hosts = hosts.replace("<cpu numaid", f'<cpu host_hash="0x{number}" numaid', 1)
    with pytest.raises(TopologyError, match="a second host_hash"):
        imported(hosts)


def test_two_ranks_of_one_gpu_are_one_device() -> None:
    text = nccl_xml(Box([[2]]), gpu=SXM)
    twice = re.sub(r"(<gpu [^>]*></gpu>)", r"\1\1", text, count=1)
    made = imported(twice)
    assert any("holds 2 ranks of the job; it is one device here" in note for note in made.notes)
    assert len(machine(twice).devices) == 2


def test_elements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml_tree, "MAX_ELEMENTS", 5)
    with pytest.raises(TopologyError, match="at most 5 elements"):
        imported(nccl_xml(Box([[8]])))


GRAPH = """<graphs version="1"><graph id="0" pattern="4" nchannels="2">
<channel><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/><gpu dev="3"/></channel>
<channel><gpu dev="0"/><gpu dev="2"/><gpu dev="1"/><gpu dev="3"/></channel></graph></graphs>"""


def test_a_graph_is_compared_with_the_machine_and_is_none_itself() -> None:
    with pytest.raises(TopologyError, match="an NCCL graph"):
        imported(GRAPH)
    notes = imported(matrix(Box([[2], [2]])), GRAPH).notes
    assert any("the ring 0 1 2 3 crosses between processors 2 times, 2 are needed" in n
               for n in notes)  # fmt: skip
    assert any("the ring 0 2 1 3 crosses between processors 4 times" in n for n in notes)
