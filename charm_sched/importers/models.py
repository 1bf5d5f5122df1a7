"""GPU models: how they compute, which links they have, and by which names tools know them.

Peaks are dense matrix rates and come from the vendors' datasheets; where a shipped topology has the
model, its whole profile with measured attention rates is taken. Rates per NVLink and XGMI are the
constants of NCCL and RCCL (graph/topo.h).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace

from charm_sched.errors import TopologyError
from charm_sched.topology.profiles import ComputeProfile

TERA, GIGA = 1e12, 1e9
OVERHEAD = 5e-6
EFFICIENCY = 0.5
_REASONS = (
    "efficiency: no attention rate of this model is taken; "
    "overhead: 3 us for an empty kernel (developer forum thread 233645), and a margin"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One GPU model; rates in TFLOP/s, GB/s and GB as datasheets print them.

    Attributes:
        product, device, architecture: regular expressions of what tools call it: the product
            name, the PCI device ID, and the architecture, which stands for several models.
        bf16, fp16, fp32, fp64: peaks; bf16 0 where there are no such units.
        memory_rate, memory: of its own memory.
        pcie: generation.
        link: rate of one NVLink or XGMI link, one way; 0 where there are none.
        switch_links: NVLinks into the NVSwitches of boards with eight of them.
        peer: False where the driver gives no peer access over PCIe.
        shipped: a shipped topology that has the profile.
    """

    name: str
    product: str
    device: str = ""
    architecture: str = ""
    bf16: float = 0.0
    fp16: float = 0.0
    fp32: float = 0.0
    fp64: float = 0.0
    memory_rate: float = 0.0
    memory: float
    pcie: int
    link: float = 0.0
    switch_links: int = 0
    peer: bool = True
    shipped: str = ""

    @property
    def profile_name(self) -> str:
        """The name of its profile in a topology."""
        return self.name.replace("-", "_")

    def profile(self) -> ComputeProfile:
        """Return how it computes."""
        if self.shipped:
            from charm_sched.topology.graph import load_topology

            known = load_topology(self.shipped).devices[0].compute
            return replace(known, name=self.profile_name)
        peaks = {"bf16": self.bf16 or self.fp32, "fp16": self.fp16, "fp32": self.fp32,
                 "fp64": self.fp64}  # fmt: skip
        no_units = "" if self.bf16 else "; peak.bf16: no such units, the fp32 rate"
        assumed = ("efficiency", "overhead", *(() if self.bf16 else ("peak.bf16",)))
        return ComputeProfile(
            name=self.profile_name,
            peak={dtype: value * TERA for dtype, value in peaks.items()},
            rates=(),
            efficiency=EFFICIENCY,
            overhead=OVERHEAD,
            memory_bandwidth=self.memory_rate * GIGA,
            assumed=assumed,
            source=f"peak: datasheet{no_units}; memory_bandwidth: datasheet; {_REASONS}",
        )


def _model(
    name: str,
    product: str,
    device: str,
    architecture: str,
    peaks: str = "",
    *,
    memory: float,
    pcie: int,
    link: float = 0.0,
    switch_links: int = 0,
    peer: bool = True,
    shipped: str = "",
) -> Model:
    """Return a model; `peaks` holds bf16, fp16, fp32, fp64 and memory GB/s."""
    bf16, fp16, fp32, fp64, memory_rate = map(float, (peaks or "0 0 0 0 0").split())
    return Model(
        name=name,
        product=product,
        device=device,
        architecture=architecture,
        bf16=bf16,
        fp16=fp16,
        fp32=fp32,
        fp64=fp64,
        memory_rate=memory_rate,
        memory=memory,
        pcie=pcie,
        link=link,
        switch_links=switch_links,
        peer=peer,
        shipped=shipped,
    )


MODELS: tuple[Model, ...] = (
    _model("h100-sxm", r"H100.*(?:HBM3|SXM5?)", "0x2330", "sm90", memory=80, pcie=5, link=20.6,
           switch_links=18, shipped="single_node_nvlink"),
    _model("h100-pcie", r"H100 PCIe", "0x2331", "", "756 756 51 51 2000",
           memory=80, pcie=5, link=20.6),
    _model("h100-nvl", r"H100 NVL", "0x2321", "", "835 835 60 60 3900",
           memory=94, pcie=5, link=20.6),
    _model("h200-sxm", r"H200", "0x2335", "", "989 989 67 67 4800", memory=141, pcie=5, link=20.6,
           switch_links=18),
    _model("h800-sxm", r"H800", "0x2324", "", memory=80, pcie=5, link=20.6, switch_links=8,
           shipped="dual_node_h800"),
    _model("h20", r"H20", "0x2329", "", "148 148 44 1 4000", memory=96, pcie=5, link=20.6,
           switch_links=18),
    _model("b200", r"B200", "0x2901", "sm100", "2250 2250 75 37 7700",
           memory=180, pcie=5, link=40.1,
           switch_links=18),
    _model("gb200", r"GB200", "0x2941", "", "2500 2500 80 40 8000", memory=186, pcie=5, link=40.1,
           switch_links=18),
    _model("a100-sxm", r"A100-SXM4-80GB", "0x20b2", "sm80", memory=80, pcie=4, link=20.0,
           switch_links=12, shipped="dual_node_nvlink"),
    _model("a100-sxm-40gb", r"A100-SXM4-40GB", "0x20b0", "", "312 312 19.5 19.5 1555",
           memory=40, pcie=4,
           link=20.0, switch_links=12),
    _model("a100-pcie", r"A100 80GB PCIe|A100-PCIE-80GB", "0x20b5", "", memory=80, pcie=4,
           link=20.0, shipped="dual_numa_pcie"),
    _model("a100-pcie-40gb", r"A100-PCIE-40GB", "0x20f1", "", "312 312 19.5 19.5 1555",
           memory=40, pcie=4,
           link=20.0),
    _model("a800-sxm", r"A800", "", "", memory=80, pcie=4, link=20.0, switch_links=8,
           shipped="dual_node_nvlink"),
    _model("a30", r"A30", "0x20b7", "", "165 165 10.3 10.3 933", memory=24, pcie=4, link=20.0),
    _model("v100-sxm", r"V100-SXM[23][\w-]*", "0x1db[158]", "sm70", "0 125 15.7 7.8 900",
           memory=32, pcie=3,
           link=20.0, switch_links=6),
    _model("v100-pcie", r"V100-PCIE", "0x1db6", "", "0 112 14 7 900", memory=32, pcie=3),
    _model("p100-sxm", r"P100-SXM2[\w-]*", "0x15f9", "sm60", "0 21.2 10.6 5.3 732",
           memory=16, pcie=3,
           link=18.0),
    _model("p100-pcie", r"P100-PCIE", "0x15f8", "", "0 18.7 9.3 4.7 732", memory=16, pcie=3),
    _model("t4", r"Tesla T4|T4", "0x1eb8", "sm75", "0 65 8.1 0.25 320", memory=16, pcie=3),
    _model("a10", r"A10", "0x2236", "", "125 125 31.2 0.98 600", memory=24, pcie=4),
    _model("a40", r"A40", "0x2235", "", "149.7 149.7 37.4 0.58 696", memory=48, pcie=4, link=12.0),
    _model("rtx-a6000", r"RTX A6000", "0x2230", "sm86", "154.8 154.8 38.7 0.6 768",
           memory=48, pcie=4,
           link=12.0),
    _model("l4", r"L4", "0x27b8", "", "121 121 30.3 0.47 300", memory=24, pcie=4),
    _model("l20", r"L20", "", "", "119.5 119.5 59.8 0.93 864", memory=48, pcie=4),
    _model("l40s", r"L40S", "0x26b9", "sm89", "362 362 91.6 1.4 864", memory=48, pcie=4),
    _model("rtx-6000-ada", r"RTX 6000 Ada", "0x26b1", "", "364 364 91.1 1.4 960",
           memory=48, pcie=4),
    _model("rtx-pro-6000", r"RTX PRO 6000", "0x2bb[15]", "sm120", memory=96, pcie=5,
           shipped="dual_numa_pcie_gen5"),
    _model("rtx3090", r"RTX 3090", "0x2204", "", "71 71 35.6 0.56 936",
           memory=24, pcie=4, link=12.0,
           peer=False),
    _model("rtx4090", r"RTX 4090", "0x2684", "", "165 165 82.6 1.3 1008",
           memory=24, pcie=4, peer=False),
    _model("rtx5090", r"RTX 5090", "0x2b85", "", "209 209 104.8 1.6 1792",
           memory=32, pcie=5, peer=False),
    _model("mi50", r"MI50|MI60", "0x66a[01]", "gfx906", "0 26.5 13.3 6.6 1024", memory=32, pcie=4,
           link=24.0),
    _model("mi100", r"MI100", "0x738c", "gfx908", "92.3 184.6 46.1 11.5 1229", memory=32, pcie=4,
           link=24.0),
    _model("mi250x", r"MI250X?", "0x7408|0x740c", "gfx90a|gfx910", "191.5 191.5 47.9 47.9 1638",
           memory=64, pcie=4, link=36.0),
    _model("mi210", r"MI210", "0x740f", "", "181 181 45.3 45.3 1638", memory=64, pcie=4, link=36.0),
    _model("mi300x", r"MI300X", "0x74a1", "gfx942|gfx940", "1307 1307 163.4 163.4 5300", memory=192,
           pcie=5, link=48.0),
    _model("mi300a", r"MI300A", "0x74a0", "", "980.6 980.6 122.6 122.6 5300", memory=128, pcie=5,
           link=48.0),
)  # fmt: skip


def by_name(name: str) -> Model:
    """Return the model that a user names.

    Raises:
        TopologyError: none of that name.
    """
    names = [model.name for model in MODELS]
    key = name.lower().replace("_", "-").replace(" ", "-")
    for model in MODELS:
        if model.name == key:
            return model
    near = difflib.get_close_matches(key, names, n=1)
    raise TopologyError(
        f'--gpu: expected one of {", ".join(names)}, found "{name}"'
        + (f' (did you mean "{near[0]}"?)' if near else "")
    )


def by_text(text: str) -> tuple[Model, bool] | None:
    """Return the model that a text means, and whether it says so exactly.

    A product name or a PCI device ID is exact; an architecture ("sm90") stands for several models.

    >>> by_text("0x2330 sm90")[0].name
    'h100-sxm'
    """
    for model in MODELS:
        exact = "|".join(filter(None, (model.product, model.device)))
        if re.search(rf"(?<![\w-])(?:{exact})(?!\w)", text):
            return model, True
    for model in MODELS:
        if model.architecture and re.search(rf"\b(?:{model.architecture})\b", text):
            return model, False
    return None
