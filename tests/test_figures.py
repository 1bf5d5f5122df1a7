"""Figures of the library: each has a source or is assumed, and what hangs together agrees."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from charm_sched.importers import pcie
from charm_sched.importers.models import MODELS, Model
from charm_sched.topology.graph import shipped_names
from charm_sched.topology.library import shipped_profile, shipped_profiles
from charm_sched.topology.profiles import ComputeProfile

FOLDER = Path(__file__).parent.parent / "topologies"
NUMBERS = {  # of an entry of a file: each needs a source of its own, or one for the whole entry
    "bandwidth", "latency", "flow_cap", "reverse", "ramp", "memory", "port", "price", "power",
    "electricity", "peak", "memory_bandwidth", "efficiency", "overhead", "interference", "rate",
}  # fmt: skip
DERIVED = re.compile(
    r"half of NCCL|shared out|a margin|no measurement|not published|within the \d|head dimension"
    r"|two (?:such )?flows of|x 0\.\d|fp32 / \d|as secondary|as public|for the host|none of the"
    r"|that of the|resellers|without switches"
)
CHECKABLE = re.compile(
    r"https?://|arXiv:\d|#\d|graph/topo|datasheet|data sheet|whitepaper|product (?:page|brief)"
    r"|\.(?:md|csv|xml|cpp)\b|github \w|DeepEP|measured"
)
RAW_NVLINK = {  # GB/s both ways together, as the makers' pages state it
    "a100-sxm": 600, "a100-sxm-40gb": 600, "a800-sxm": 400, "h100-sxm": 900, "h200-sxm": 900,
    "h800-sxm": 400, "h20": 900, "b200": 1800, "gb200": 1800, "v100-sxm": 300,
}  # fmt: skip


@dataclass(frozen=True)
class Chip:
    """What peaks follow from: compute units, their clock, and the pins of the memory.

    Attributes:
        units: SMs or CUs that are enabled; clock: MHz, boost.
        bf16, fp32, fp64: dense FLOPs per unit and clock; 0 where peaks are capped otherwise.
        bus: memory bits; pin: Gbit/s of each.
    """

    units: int
    clock: float
    bf16: int
    fp32: int
    fp64: int
    bus: int
    pin: float


# Units, clocks and buses: techpowerup.com/gpu-specs. FLOPs per unit and clock: the whitepapers of
# the architectures (P100, V100, A100, GA102, Ada, H100, Blackwell, CDNA 1 to 3); half the rate of
# the tensor cores on GeForce cards with fp32 accumulation, and on A10G and L20.
CHIPS = {
    "p100-sxm": Chip(56, 1480, 256, 128, 64, 4096, 1.43),
    "p100-pcie": Chip(56, 1329, 256, 128, 64, 4096, 1.43),
    "v100-sxm": Chip(80, 1530, 1024, 128, 64, 4096, 1.754),
    "v100-pcie": Chip(80, 1380, 1024, 128, 64, 4096, 1.754),
    "t4": Chip(40, 1590, 1024, 128, 4, 256, 10),
    "a100-sxm": Chip(108, 1410, 2048, 128, 128, 5120, 3.186),
    "a100-sxm-40gb": Chip(108, 1410, 2048, 128, 128, 5120, 2.43),
    "a100-pcie": Chip(108, 1410, 2048, 128, 128, 5120, 3.024),
    "a100-pcie-40gb": Chip(108, 1410, 2048, 128, 128, 5120, 2.43),
    "a800-sxm": Chip(108, 1410, 2048, 128, 128, 5120, 3.186),
    "a30": Chip(56, 1440, 2048, 128, 128, 3072, 2.43),
    "a10": Chip(72, 1695, 1024, 256, 4, 384, 12.5),
    "a10g": Chip(80, 1710, 512, 256, 4, 384, 12.5),
    "a40": Chip(84, 1740, 1024, 256, 4, 384, 14.5),
    "rtx-a6000": Chip(84, 1800, 1024, 256, 4, 384, 16),
    "rtx3090": Chip(82, 1695, 512, 256, 4, 384, 19.5),
    "l4": Chip(58, 2040, 1024, 256, 4, 192, 12.5),
    "l20": Chip(92, 2520, 512, 256, 4, 384, 18),
    "l40s": Chip(142, 2520, 1024, 256, 4, 384, 18),
    "rtx-6000-ada": Chip(142, 2505, 1024, 256, 4, 384, 20),
    "rtx4090": Chip(128, 2520, 512, 256, 4, 384, 21),
    "h100-sxm": Chip(132, 1980, 4096, 256, 256, 5120, 5.25),
    "h100-pcie": Chip(114, 1755, 4096, 256, 256, 5120, 3.2),
    "h100-nvl": Chip(132, 1785, 4096, 256, 256, 6016, 5.24),
    "h200-sxm": Chip(132, 1980, 4096, 256, 256, 6144, 6.37),
    "h200-nvl": Chip(132, 1785, 4096, 256, 256, 6144, 6.37),
    "h800-sxm": Chip(132, 1980, 4096, 256, 0, 5120, 5.25),
    "h20": Chip(78, 1980, 0, 0, 0, 6144, 5.25),
    "b200": Chip(148, 1965, 8192, 256, 128, 8192, 8),
    "gb200": Chip(148, 2070, 8192, 256, 128, 8192, 8),
    "rtx-pro-6000": Chip(188, 2617, 1024, 256, 4, 512, 25),
    "rtx5090": Chip(170, 2407, 512, 256, 4, 512, 28),
    "mi50": Chip(60, 1746, 256, 128, 64, 4096, 2),
    "mi60": Chip(64, 1800, 256, 128, 64, 4096, 2),
    "mi100": Chip(120, 1502, 1024, 256, 64, 4096, 2.4),
    "mi210": Chip(104, 1700, 1024, 256, 256, 4096, 3.2),
    "mi250x": Chip(110, 1700, 1024, 256, 256, 4096, 3.2),
    "mi300x": Chip(304, 2100, 2048, 256, 256, 8192, 5.2),
    "mi325x": Chip(304, 2100, 2048, 256, 256, 8192, 6),
    "mi300a": Chip(228, 2100, 2048, 256, 256, 8192, 5.2),
}
FILES = sorted([*FOLDER.glob("*.yaml"), *FOLDER.glob("profiles/*.yaml")])
EACH_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
EACH_MODEL = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)


def document(name: str) -> dict[str, Any]:
    found = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    assert isinstance(found, dict)
    return found


def entries(node: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Give every mapping of a file that states figures, with its place."""
    if isinstance(node, dict):
        if NUMBERS & node.keys():
            yield place, node
        for key, value in node.items():
            if key not in ("source", "peak", "by_length"):
                yield from entries(value, f"{place}/{key}")
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from entries(value, f"{place}/{i}")


def source(entry: dict[str, Any], key: str) -> str:
    """Give what an entry says about one of its figures."""
    texts = entry.get("source", "")
    if isinstance(texts, str):
        return texts
    return str(texts.get(key) or texts.get(key.partition(".")[0]) or "")


def is_assumed(entry: dict[str, Any], key: str) -> bool:
    marked = entry.get("assumed", [])
    return marked is True or key in (marked or []) or key.partition(".")[0] in (marked or [])


def figures(entry: dict[str, Any]) -> Iterator[str]:
    """Give the names of an entry's figures; each peak is one."""
    for key in NUMBERS & entry.keys():
        if key == "peak":
            yield from (f"peak.{dtype}" for dtype in entry["peak"])
        else:
            yield key


@EACH_FILE
def test_every_figure_names_a_source_that_can_be_looked_up_or_is_assumed(path: Path) -> None:
    seen = 0
    for place, entry in entries(yaml.safe_load(path.read_text())):
        for key in figures(entry):
            text, assumed = source(entry, key), is_assumed(entry, key)
            where = f"{path.name}{place}: {key}"
            assert text, f"{where}: no source"
            assert assumed or CHECKABLE.search(text), f"{where}: {text!r} names no document"
            if key != "ramp":  # told where it is in force
                found = DERIVED.search(text)
                assert assumed or not found, f"{where}: {text!r} is derived, but not marked"
            seen += 1
    assert seen


def test_the_marks_are_read_as_the_program_reads_them() -> None:
    """What the files mark is what a result lists."""
    profile = shipped_profile("l40s")
    listed = " ".join(profile.assumptions())
    marked = document("profiles/l40s")["assumed"]
    assert {key for key in marked if f"l40s: {key} " in listed} == set(marked)
    assert "peak.fp64" in marked


@EACH_MODEL
def test_peaks_follow_from_units_and_clocks(model: Model) -> None:
    """A sparse rate in place of a dense one, or another board's, is off by far more."""
    chip, profile = CHIPS[model.name], model.profile()
    dtype = "bf16" if profile.peak["bf16"] > profile.peak["fp32"] else "fp16"
    if model.name == "mi100":  # half the rate in bf16
        assert profile.peak["bf16"] * 2 == profile.peak["fp16"]
        dtype = "fp16"
    for name, per_clock in ((dtype, chip.bf16), ("fp32", chip.fp32), ("fp64", chip.fp64)):
        if per_clock:
            ceiling = chip.units * chip.clock * 1e6 * per_clock
            # Datasheets of H100 and later take a lower clock for the tensor cores.
            assert 0.85 <= profile.peak[name] / ceiling <= 1.025, name
    rate = chip.bus / 8 * chip.pin * 1e9
    assert 0.93 <= profile.memory_bandwidth / rate <= 1.03


def test_every_model_has_its_chip() -> None:
    assert {model.name for model in MODELS} == set(CHIPS)


@EACH_MODEL
def test_nvlinks_times_their_rate_stay_below_what_the_maker_states(model: Model) -> None:
    """The constants of NCCL are 70 to 85 % of the raw rate of one direction."""
    if model.switch_links:
        part = 2 * model.switch_links * model.link / RAW_NVLINK[model.name]
        assert 0.7 <= part <= 0.85
    else:
        assert model.name not in RAW_NVLINK


def test_boards_of_one_gpu_agree() -> None:
    """Cards of the same chip compute alike; only memory and links tell them apart."""
    for names in (
        ("a100_sxm_40gb", "a100_sxm_80gb", "a100_pcie_80gb", "a800_sxm_80gb"),
        ("v100_sxm2_16gb", "v100_sxm2_32gb", "v100_sxm3_32gb"),
        ("h100_sxm_80gb", "h200_sxm_141gb"),
    ):
        assert len({tuple(sorted(shipped_profile(name).peak.items())) for name in names}) == 1
    by_name = {model.name: model.profile() for model in MODELS}
    assert by_name["a100-pcie-40gb"].peak == by_name["a100-pcie"].peak
    assert by_name["h100-nvl"].peak == by_name["h200-nvl"].peak
    assert by_name["mi325x"].peak == by_name["mi300x"].peak
    for dtype in ("bf16", "fp16", "fp32"):
        assert by_name["h800-sxm"].peak[dtype] == by_name["h100-sxm"].peak[dtype]
    assert by_name["a800-sxm"].memory_bandwidth == by_name["a100-sxm"].memory_bandwidth
    assert by_name["h800-sxm"].memory_bandwidth == by_name["h100-sxm"].memory_bandwidth


def model_of(profile: str) -> Model | None:
    """Give the model that the importers know for a profile."""
    return next((model for model in MODELS if model.file == profile), None)


def profiles_of(machine: dict[str, Any]) -> set[str]:
    """Give the profiles that devices of a file name."""
    return {
        entry["profile"]
        for part in (machine, *machine.get("templates", {}).values())
        for entry in part.get("devices", [])
    }


COUNT = re.compile(r"(\d+) NVLinks? of ([\d.]+) GB/s")
GENERATION = re.compile(r"constant for PCIe Gen(\d) x16")
RAW = re.compile(r"([\d.]+) raw")
CARDS = re.compile(r"(\d+) x (\d+) W")
HOST = re.compile(r"and ([\d.]+) kW (?:for|and)")
WHOLE = re.compile(r"(\d+) x (?:that of a DGX \w+, )?([\d.]+)(?: kW)")
PRICE = re.compile(r"(\d+) x ([\d.]+)")


def test_sources_are_written_so_that_the_tests_below_read_them() -> None:
    links = " ".join(
        source(entry, "bandwidth")
        for name in shipped_names()
        for _, entry in entries(document(name).get("kinds", {}))
    )
    assert len(COUNT.findall(links)) >= 20
    assert len(GENERATION.findall(links)) >= 25
    assert len(RAW.findall(links)) >= 15
    costs = [document(name).get("costs", {}) for name in shipped_names()]
    powers = [source(entry, "power") for entry in costs]
    assert sum(bool(CARDS.search(text) and HOST.search(text)) for text in powers) >= 12
    assert sum(bool(WHOLE.match(text)) for text in powers) >= 12
    assert sum(bool(PRICE.match(source(entry, "price"))) for entry in costs) >= 12


@pytest.mark.parametrize("name", shipped_names())
def test_links_are_their_number_times_the_rate_of_each(name: str) -> None:
    machine = document(name)
    for place, entry in entries(machine.get("kinds", {})):
        text, value = source(entry, "bandwidth"), gigabytes(entry["bandwidth"])
        found = COUNT.search(text)
        if found:
            assert value == pytest.approx(int(found[1]) * float(found[2])), f"{name}{place}"
        stated = GENERATION.search(text)
        if stated:
            assert value * 1e9 == pcie.x16(int(stated[1])), f"{name}{place}"
        raw = RAW.search(text)
        if raw and "both ways" not in text:
            assert 0.5 * float(raw[1]) <= value < float(raw[1]), f"{name}{place}"
        if found:
            known = {model_of(p) for p in profiles_of(machine)} - {None}
            rates = {model.link for model in known if model is not None}
            assert not rates or float(found[2]) in rates, f"{name}{place}"


def gigabytes(text: str) -> float:
    """Give the GB/s that a file writes."""
    number, unit = text.split()
    return float(number) * {"GB/s": 1, "Gb/s": 1 / 8, "TB/s": 1000}[unit]


@pytest.mark.parametrize("name", shipped_names())
def test_price_and_power_are_what_their_sources_add_up_to(name: str) -> None:
    costs = document(name).get("costs", {})
    if "price" in costs:
        found = PRICE.match(source(costs, "price"))
        if found:
            product = int(found[1]) * float(found[2])
            assert float(costs["price"].split()[0]) == pytest.approx(product, rel=2e-4)
    if "power" not in costs:
        return
    text, value = source(costs, "power"), float(costs["power"].split()[0])
    cards, host = CARDS.search(text), HOST.search(text)
    if cards and host:
        nodes = int(outer[1]) if (outer := re.match(r"(\d+) x \(", text)) else 1
        total = nodes * (int(cards[1]) * int(cards[2]) / 1000 + float(host[1]))
        assert value == pytest.approx(total, rel=0.03)
    whole = WHOLE.match(text)
    if whole:
        assert value == pytest.approx(int(whole[1]) * float(whole[2]))


def test_one_board_has_one_power_in_every_file() -> None:
    powers: dict[str, set[int]] = {}
    for name in shipped_names():
        text = source(document(name).get("costs", {}), "power")
        for watts, board in re.findall(r"x (\d+) W \(([\w ]+?)(?: datasheet|[:)])", text):
            powers.setdefault(board, set()).add(int(watts))
    assert len(powers) >= 8
    assert {board: len(found) for board, found in powers.items() if len(found) > 1} == {}
    # techpowerup.com/gpu-specs, except where the maker's page states another (L40S) and where
    # nvidia-smi prints another limit (A10G).
    for board, watts in {
        "A100 PCIe": 300, "L4": 72, "T4": 70, "RTX A6000": 300, "MI300X": 750, "L40S": 350,
        "H200 NVL": 600, "A10G": 300,
    }.items():  # fmt: skip
        assert powers[board] == {watts}


@pytest.mark.parametrize("name", shipped_profiles())
def test_a_profile_says_the_same_as_its_model(name: str) -> None:
    profile, model = shipped_profile(name), model_of(name)
    assert isinstance(profile, ComputeProfile)
    assert profile.memory is not None
    if model is not None:
        assert profile.memory == model.memory * 1e9
        assert model.profile().peak == profile.peak
    assert profile.peak["fp16"] >= profile.peak["bf16"] or math.isclose(
        profile.peak["fp16"], profile.peak["bf16"]
    )


@EACH_MODEL
def test_a_derived_fp64_is_marked(model: Model) -> None:
    profile = model.profile()
    part = profile.peak["fp32"] / profile.peak["fp64"]
    if part > 30:  # cards whose documents state fp64 as a part of fp32, or not at all
        assert model.name in ("h20", "h800-sxm") or "peak.fp64" in profile.assumed
        assert part == pytest.approx(32 if model.name == "t4" else 64, rel=0.05) or (
            model.name in ("h20", "h800-sxm")
        )
