"""``nvidia-smi nvlink -s``: product names, and the active NVLinks of each GPU with their rate."""

from __future__ import annotations

import re

from charm_sched.importers.facts import ANYWHERE, Gpu, Host, PeerLink
from charm_sched.importers.reading import MAX_GPUS, Source, has_line

_GPU = re.compile(r"\s*GPU (\d{1,4}): ([^(]{1,200}?)\s*(?:\(UUID: .*)?")
_LINK = re.compile(r"\s*Link (\d{1,3}): (?:(\d{1,6}(?:\.\d{1,6})?) GB/s|<?inactive>?)\s*", re.I)


def recognise(text: str) -> bool:
    """Say whether a product name is followed by links, or by word that there are none."""
    links = "all links are inActive" in text or has_line(text, r"\s*Link \d+: ")
    return links and has_line(text, r"\s*GPU \d+: ")


def read(source: Source) -> Host:
    """Read ``nvidia-smi nvlink -s``.

    Raises:
        TopologyError: a GPU twice, a link without a GPU, or links of different rates.
    """
    models: dict[int, str] = {}
    active: dict[int, int] = {}
    rates: set[float] = set()
    gpu = -1
    for number, line in enumerate(source.lines(), start=1):
        name, link = _GPU.fullmatch(line), _LINK.fullmatch(line)
        if name:
            gpu = int(name[1])
            if gpu in models or len(models) >= MAX_GPUS:
                source.fail(f"up to {MAX_GPUS} GPUs, each once", f"GPU {gpu}", line=number)
            models[gpu], active[gpu] = name[2], 0
        elif link and gpu < 0:
            source.fail("a GPU line before its links", line.strip(), line=number)
        elif link and link[2] and float(link[2]) > 0:
            active[gpu] += 1
            rates.add(float(link[2]))
    if len(rates) > 1:
        source.fail("one rate of all links", " and ".join(f"{r:g} GB/s" for r in sorted(rates)))
    return Host(
        sources=(f"{source.where} (nvidia-smi nvlink -s)",),
        gpus=tuple(
            Gpu(
                name=f"gpu{i}",
                model=model,
                peers=(PeerLink(kind="nvlink", target=ANYWHERE, count=active[i]),)
                if active[i]
                else (),
            )
            for i, model in models.items()
        ),
        links_known=False,
        rate=rates.pop() * 1e9 if rates else None,
    )
