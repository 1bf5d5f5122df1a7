"""The other tools that look into one machine: rocm-smi, amd-smi, nvlink -s, hwloc, NCCL's log."""

from __future__ import annotations

import pytest
from foreign import Box, imported, links_of, machine, matrix, source

from charm_sched.errors import TopologyError
from charm_sched.importers import amd_smi, hwloc_xml, nccl_log, rocm_smi, smi_nvlink
from charm_sched.importers.choices import Choices
from charm_sched.importers.formats import format_of
from charm_sched.importers.grouping import partitions

PAIRS = [(i // 2 == j // 2) for i in range(4) for j in range(4)]


def table(title: str, near: str, far: str) -> str:
    """Print one matrix of rocm-smi for two hives of two."""
    rows = [f"===== {title} =====", "       " + "  ".join(f"GPU{i}" for i in range(4))]
    for i in range(4):
        cells = ["0" if i == j else near if PAIRS[4 * i + j] else far for j in range(4)]
        rows.append(f"GPU{i}   " + "   ".join(cells))
    return "\n".join([*rows, "", ""])


def rocm(weight: str = "72", near: str = "15", kind: str = "XGMI") -> str:
    numa = "".join(
        f"GPU[{i}]\t\t: (Topology) Numa Node: {i // 2}\n"
        f"GPU[{i}]\t\t: (Topology) Numa Affinity: {i // 2}\n"
        for i in range(4)
    )
    return (
        "==== ROCm System Management Interface ====\n"
        + table("Weight between two GPUs", near, weight)
        + table("Hops between two GPUs", "1", "3")
        + table("Link Type between two GPUs", kind, "PCIE")
        + "===== Numa Nodes =====\n" + numa
    )  # fmt: skip


def test_hives_are_joined_by_xgmi_and_processors_by_weight() -> None:
    topology = machine(rocm(), choices=Choices(gpu="mi100"))
    assert links_of(topology)[frozenset(("gpu0", "gpu1"))] == 24  # RCCL's constant for one link
    assert frozenset(("gpu1", "gpu2")) not in links_of(topology)
    assert topology.tiers == ("socket", "xgmi")
    near = machine(rocm("40"), choices=Choices(gpu="mi100"))  # 40: two PCIe segments, one node
    assert "socket" in {link.kind for link in near.links}  # the NUMA nodes still are two


def test_hops_of_one_are_no_direct_link_where_the_weight_says_two() -> None:
    assert not any(gpu.peers for gpu in rocm_smi.read(source(rocm(near="30"))).gpus)


def test_rocm_text_is_whole_or_refused() -> None:
    with pytest.raises(TopologyError, match=r"text0:7: expected the row GPU3 with 4 entries"):
        imported(rocm().replace("GPU3   72", "GPU7   72", 1))
    lines = rocm().split("\n")
    with pytest.raises(TopologyError, match="4 rows of weight, found 3"):
        imported("\n".join(lines[:6] + lines[7:]))
    with pytest.raises(TopologyError, match='link types XGMI or PCIE, found "MXLK"'):
        imported(rocm(kind="MXLK"))
    numa = "GPU[0]\t: (Topology) Numa Node: 0\nGPU[1]\t: (Topology) Numa Node: 1\n"
    with pytest.raises(TopologyError, match="expected the paths between GPUs, found none"):
        imported(numa)
    lost = imported(rocm().rsplit("GPU[3]", 2)[0])
    assert any("no NUMA node of GPU3" in note for note in lost.notes)


ADDRESSES = [f"0000:{b}:00.0" for b in ("c1", "c6", "c9", "ce")]


def amd(rates: str = "50000-100000") -> str:
    def part(title: str, own: str, near: str, far: str) -> str:
        rows = [f"{title} TABLE:", "             " + " ".join(ADDRESSES)]
        for i in range(4):
            cells = [own if i == j else near if PAIRS[4 * i + j] else far for j in range(4)]
            rows.append(f"{ADDRESSES[i]} " + "  ".join(f"{cell:11}" for cell in cells))
        return "\n".join([*rows, ""])

    return "\n".join((
        part("ACCESS", "ENABLED", "ENABLED", "ENABLED"), part("WEIGHT", "0", "15", "72"),
        part("HOPS", "0", "1", "3"), part("LINK TYPE", "SELF", "XGMI", "PCIE"),
        part("NUMA BW", "N/A", rates, "N/A"),
    ))  # fmt: skip


def test_amd_smi_states_the_rate_of_direct_links() -> None:
    assert format_of(source(amd())).name == "amd-smi"
    topology = machine(amd(), choices=Choices(gpu="mi250x"))
    assert links_of(topology)[frozenset(("gpu0", "gpu1"))] == 100
    assert amd_smi.read(source(amd())).gpus[3].bus == "0000:ce:00.0"
    with pytest.raises(TopologyError, match="4 rows of NUMA BW, found 3"):
        imported("\n".join(amd().rstrip().split("\n")[:-1]))
    with pytest.raises(TopologyError, match="a LINK TYPE TABLE, found none"):
        imported(amd().replace("LINK TYPE TABLE:", "OTHER TABLE:"))


def nvlink(*active: int, rate: str = "14.062") -> str:
    lines = []
    for i, count in enumerate(active):
        lines.append(f"GPU {i}: NVIDIA RTX A6000 (UUID: GPU-{i})")
        lines += [f"\t Link {j}: {rate} GB/s" for j in range(count)]
        if not count:
            lines.append("NVML: Unable to retrieve NVLink information as all links are inActive")
    return "\n".join(lines)


def test_nvlink_status_adds_model_and_rate_to_a_matrix() -> None:
    assert format_of(source(nvlink(4, 4))).name == "nvlink-s"
    text = matrix(Box([[1], [1]], nv=4))
    made = imported(text, nvlink(4, 4))
    assert not any("GPU model" in each for each in made.assumptions)
    assert links_of(machine(text, nvlink(4, 4)))[frozenset(("gpu0", "gpu1"))] == 4 * 14.062
    differing = imported(text, nvlink(3, 4))
    assert any("gpu0: 4 direct links in text0" in doubt and "3 in text1" in doubt
               for doubt in differing.doubts)  # fmt: skip
    with pytest.raises(TopologyError, match="expected the paths between GPUs"):
        imported(nvlink(0, 0))
    with pytest.raises(TopologyError, match="one rate of all links"):
        smi_nvlink.read(source(nvlink(1) + "\n" + nvlink(1, rate="25").replace("GPU 0", "GPU 1")))


LSTOPO = """<?xml version="1.0"?><!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="3.0"><object type="Machine" nodeset="0x00000003">
{packages}</object>
<distances2hetero nbobjs="3" kind="25" name="NVLinkBandwidth">
<indexes length="9">OSDev:10 OSDev:11 </indexes><indexes length="9">PCIDev:90 </indexes>
<u64values>0 0 75000 0 0 75000 75000 75000 0 </u64values></distances2hetero></topology>"""


def lstopo(version: str = "3.0") -> str:
    packages = ""
    for p in range(2):
        extra = (
            '<object type="NUMANode" subtype="GPUMemory" os_index="250" nodeset="0x1"/>'
            '<object type="PCIDev" gp_index="90" subtype="NVSwitch" pci_busid="0000:90:00.0" '
            'pci_type="0000 [0000:0000] [0000:0000] 00 00"/>'
        )
        packages += (
            f'<object type="Package" nodeset="0x0000000{p + 1}">'
            f'<object type="NUMANode" os_index="{p}" nodeset="0x0000000{p + 1}"/>'
            f'<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[{p}0-{p}f]">'
            f'<object type="Bridge" bridge_type="1-1" pci_busid="0000:{p}0:00.0" '
            'pci_type="0604 [8086:2030] [8086:0000] 04 00" pci_link_speed="15.753846">'
            f'<object type="PCIDev" gp_index="{p}" pci_busid="0000:{p}1:00.0" '
            'pci_type="0302 [10de:1db8] [10de:131d] a1 00" pci_link_speed="15.753846">'
            f'<object type="OSDev" gp_index="1{p}" name="nvml{p}" osdev_type="12"/></object>'
            f'<object type="PCIDev" pci_busid="0000:{p}2:00.0" '
            'pci_type="0207 [15b3:1017] [15b3:0000] 00 00" pci_link_speed="15.753846">'
            f'<object type="OSDev" name="mlx5_{p}" osdev_type="32"/></object>'
            f"</object></object>{extra if p else ''}</object>"
        )
    return LSTOPO.format(packages=packages).replace('version="3.0"', f'version="{version}"')


def test_hwloc_gives_places_rates_and_nvlink() -> None:
    assert format_of(source(lstopo())).name == "hwloc"
    host = hwloc_xml.read(source(lstopo()))
    assert [gpu.numa for gpu in host.gpus] == [(0,), (1,)]
    assert [cpu.numa for cpu in host.cpus] == [0, 1]  # 250 is the memory of a GPU
    topology = machine(lstopo())
    assert links_of(topology)[frozenset(("gpu0", "nvswitch"))] == 75
    assert links_of(topology)[frozenset(("gpu0", "switch0"))] == pytest.approx(12)  # Gen3 x16
    assert {switch.name for switch in topology.switches} >= {"mlx5_0", "mlx5_1"}
    with pytest.raises(TopologyError, match=r'version="2.0".* found <topology> version "1.0"'):
        imported(lstopo("1.0"))
    with pytest.raises(TopologyError, match="expected a GPU, found none"):
        imported(lstopo().replace("0302 [10de", "0200 [8086").replace("nvml", "eth"))
    with pytest.raises(TopologyError, match="9 whole numbers, found 8"):
        imported(lstopo().replace("0 0 75000 0", "0 75000 0", 1))


LOG = """host:1:2 [0] NCCL INFO === System : maxBw 48.0 totalBw 123.6 ===
host:1:2 [0] NCCL INFO CPU/0-0 (1/1/3)
host:1:2 [0] NCCL INFO + PCI[48.0] - PCI/0-115000
host:1:9 [1] NCCL INFO === System : maxBw 48.0 totalBw 123.6 ===
host:1:2 [0] NCCL INFO               + PCI[48.0] - GPU/0-118000 (0)
host:1:2 [0] NCCL INFO                             + NVL[123.6] - GPU/0-1b3000
host:1:2 [0] NCCL INFO               + PCI[24.0] - NIC/0-119000
host:1:2 [0] NCCL INFO                             + NET[25.0] - NET/0 (0/1/25.000000)
host:1:2 [0] NCCL INFO + SYS[10.0] - CPU/1
host:1:2 [0] NCCL INFO CPU/0-1 (1/1/3)
host:1:2 [0] NCCL INFO + PCI[48.0] - GPU/0-1b3000 (1)
host:1:2 [0] NCCL INFO               + NVL[123.6] - GPU/0-118000
host:1:2 [0] NCCL INFO ==========================================
"""


def test_a_log_is_a_tree_by_its_indentation() -> None:
    assert format_of(source(LOG)).name == "nccl-log"
    host = nccl_log.read(source(LOG))
    assert [gpu.bus for gpu in host.gpus] == ["0001:18:00.0", "0001:b3:00.0"]
    assert partitions(host)["processor"] == {frozenset({"gpu0"}), frozenset({"gpu1"})}
    topology = machine(LOG)
    assert links_of(topology)[frozenset(("gpu0", "gpu1"))] == 123.6
    assert links_of(topology)[frozenset(("numa0", "numa1"))] == 10
    assert any("2 processes print a system" in note for note in imported(LOG).notes)
    cut = LOG.rsplit("\n", 2)[0]
    assert any("ends inside the system" in doubt for doubt in imported(cut).doubts)


def test_a_log_without_indentation_is_refused() -> None:
    flat = "\n".join(" ".join(line.split()) for line in LOG.split("\n"))
    with pytest.raises(TopologyError, match=r"text0:6: .*the indentation is lost"):
        imported(flat)
    with pytest.raises(TopologyError, match="=== System"):
        imported(LOG.split("\n", 4)[4])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Machine (P#0 total=3GiB)\n  Package L#0 (P#0)\n", "lstopo's console text"),
        ("CA 'mlx5_0'\n\tCA type: MT4129\n", "ibstat"),
        ("schema: charm-sched/topology\nversion: 1\n", "a topology file of this project"),
        ('{"scheduling-policy": "LIFO"}', "an ASTRA-sim system file"),
        ("hello\n", 'a text that begins with "hello"'),
    ],
)
def test_strangers_are_named(text: str, what: str) -> None:
    with pytest.raises(TopologyError, match=what):
        imported(text)
