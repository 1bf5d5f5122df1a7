"""The cases of MagiAttention's H100 charts, and what was measured.

Read off the bars (10 TFLOP/s either way): SandAI-org/MagiAttention, blog "Long-Context Attention
Benchmark", 8K tokens per GPU, 64 query and 8 KV heads of 128, bf16, FlashAttention-3. The rate is
the FLOPs that the mask leaves over the time of the slowest rank and the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from charm_sched.workload import Workload
from tests.benchmarks.validation_documents import document_packs

ROOT = Path(__file__).parents[2]
GPUS, NODE, TOKENS = (8, 16, 32, 64), 8, 8192
HEADS, KV_HEADS, DIM = 64, 8, 128
STRATEGIES = ("ulysses", "ring", "all_gather", "usp", "loongtrain")
PACKS = 20

# TFLOP/s per GPU on 8, 16, 32 and 64 GPUs.
CHART: dict[str, dict[str, tuple[int, ...]]] = {
    "full forward": {
        "ulysses": (605, 573, 582, 620), "ring": (510, 535, 517, 512),
        "all_gather": (606, 594, 586, 583), "usp": (580, 603, 592, 605),
        "loongtrain": (577, 601, 596, 603),
    },
    "causal forward": {
        "ulysses": (602, 556, 580, 585), "ring": (421, 455, 451, 446),
        "all_gather": (602, 592, 592, 580), "usp": (592, 590, 594, 588),
        "loongtrain": (593, 586, 582, 589),
    },
    "causal backward": {
        "ulysses": (582, 560, 573, 585), "ring": (432, 475, 470, 457),
        "all_gather": (516, 525, 522, 523), "usp": (572, 569, 574, 571),
        "loongtrain": (567, 548, 546, 560),
    },
    "documents forward": {
        "ulysses": (278, 198, 186, 163), "ring": (89, 69, 48, 29),
        "all_gather": (288, 292, 240, 180), "usp": (260, 252, 255, 192),
        "loongtrain": (259, 252, 209, 193),
    },
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of a chart.

    Attributes:
        name: As in `CHART`.
        strategy: Theirs.
        ranks: GPUs.
        documents: Lengths of the documents, where the mask is of documents.
    """

    name: str
    strategy: str
    ranks: int
    documents: tuple[int, ...] = ()

    @property
    def direction(self) -> str:
        """``forward`` or ``backward``."""
        return self.name.split()[1]

    @property
    def rings(self) -> int:
        """Kernels one after the other in a ring, 1 where there is none."""
        if self.strategy == "ring":
            return self.ranks
        return self.ranks // NODE if self.strategy in ("usp", "loongtrain") else 1

    @property
    def workload(self) -> Workload:
        """What is computed."""
        mask = self.name.split()[0]
        if self.documents:
            mask = "docs:" + ",".join(map(str, self.documents))
        return Workload(
            seq_len=TOKENS * self.ranks, heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM,
            grad_dtype="bf16", mask=mask,
        )  # fmt: skip


def cases(name: str, strategy: str, ranks: int, packs: int = PACKS) -> list[Case]:
    """Give what one bar of a chart is the mean of."""
    head = Case(name=name, strategy=strategy, ranks=ranks)
    if not name.startswith("documents"):
        return [head]
    return [replace(head, documents=pack) for pack in document_packs(TOKENS * ranks, packs)]


def flops(case: Case) -> float:
    """Give what the mask leaves, all ranks together."""
    work = case.workload
    length = work.seq_len
    pairs = float(length**2)
    if not case.name.startswith("full"):
        pairs = sum(n * (n + 1) / 2 for n in case.documents or (length,))
    return pairs * HEADS * work.flops_per_pair(case.direction)
