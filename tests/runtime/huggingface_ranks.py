"""Trains tiny models of Transformers on several processes: ``python huggingface_ranks.py FOLDER``.

Transformers is imported once and the ranks are forked. Every rank writes what it found to
``FOLDER/RANK.json``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2]))

import attention_cases as cases
from attention_cases import heard

from charm_sched.plans.plan import Schedule
from charm_sched.runtime import shard_batch
from charm_sched.runtime.integrations.huggingface import attach, inputs
from charm_sched.workload import Workload

ROOT = Path(__file__).parents[2]
RANKS, LENGTH, STEPS, FEW = 4, 61, 20, 5
WAIT = 60.0
DOCUMENTS = [0, 20, 27, 61]
SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip
DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


def make_model(kind: str, dtype: str, **other: Any) -> Any:
    torch.manual_seed(0)
    if kind == "mistral":
        config: Any = MistralConfig(**SHAPE, sliding_window=9, **other)
        return MistralForCausalLM(config).to(DTYPES[dtype])
    return LlamaForCausalLM(LlamaConfig(**SHAPE, **other)).to(DTYPES[dtype])


def make_schedule(dtype: str, batch: int, planner: str = "charm") -> Schedule:
    work = Workload(
        seq_len=LENGTH, batch=batch, heads=4, kv_heads=2, head_dim=8, dtype=dtype, mask="causal"
    )
    return cases.make_schedule(planner, work, "zigzag", RANKS)


def make_tokens(batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(64, (batch, LENGTH), generator=generator)


def train(
    model: Any, step: Callable[[], dict[str, Any]], steps: int, *, alone: bool
) -> list[float]:
    """Train for some steps; give the loss of the whole batch at each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        loss = model(**step()).loss
        loss.backward()
        total = loss.detach().clone()
        if not alone:
            dist.all_reduce(total)
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total))
    return losses


def on_one(
    kind: str, dtype: str, batch: int, documents: list[int] | None, steps: int
) -> list[float]:
    """Train in this process alone, with the attention and the masks of Transformers."""
    tokens = make_tokens(batch)
    labels, positions = tokens.clone(), torch.arange(LENGTH).expand(batch, -1).clone()
    for first in documents[:-1] if documents else [0]:
        labels[:, first] = -100
        positions[:, first:] = torch.arange(LENGTH - first)
    model = make_model(kind, dtype, attn_implementation="eager")
    given = {
        "input_ids": tokens, "labels": labels, "position_ids": positions, "use_cache": False,
    }  # fmt: skip
    return train(model, lambda: given, steps, alone=True)


def on_all(
    kind: str, dtype: str, batch: int, documents: list[int] | None, steps: int, **other: Any
) -> list[float]:
    """Train on all ranks."""
    tokens, schedule = make_tokens(batch), make_schedule(dtype, batch)
    model = make_model(kind, dtype)
    if other.get("recompute"):
        model.activation_checkpointing_enable({"use_reentrant": False})
        model.train()
    attach(model, schedule, timeout=WAIT)
    given: dict[str, Any] = {"cu_seqlens": documents}
    if other.get("by_positions") and documents:
        lengths = torch.tensor(documents).diff().tolist()
        given = {"position_ids": torch.cat([torch.arange(length) for length in lengths])}
    return train(model, lambda: inputs(shard_batch(tokens, schedule, **given)), steps, alone=False)


CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "dense fp64": (("llama", "fp64", 2, None, STEPS), {}),
    "dense fp32": (("llama", "fp32", 1, None, FEW), {}),
    "packed fp64": (("llama", "fp64", 2, DOCUMENTS, FEW), {}),
    "packed by positions fp32": (("llama", "fp32", 1, DOCUMENTS, STEPS), {"by_positions": True}),
    "recomputed fp64": (("llama", "fp64", 1, DOCUMENTS, FEW), {"recompute": True}),
    "window fp64": (("mistral", "fp64", 1, None, FEW), {}),
    "packed window fp64": (("mistral", "fp64", 1, DOCUMENTS, FEW), {}),
}


def trained(rank: int) -> dict[str, Any]:
    """Give the losses of every case, and on rank 0 those of one process."""
    found: dict[str, Any] = {}
    for name, (what, other) in CASES.items():
        found[name] = {"all": on_all(*what, **other)}
        if rank == 0:
            found[name]["one"] = on_one(*what)
        dist.barrier()
    return found


def refused(rank: int) -> dict[str, str]:
    """Give what this rank hears of calls that no plan serves."""
    schedule = make_schedule("fp32", 1)
    batch = inputs(shard_batch(make_tokens(1), schedule))
    model = make_model("llama", "fp32")
    said = {}
    model.set_attn_implementation("sdpa")
    attach(model, schedule, timeout=WAIT)
    tokens = batch["input_ids"].shape[1]
    padding = torch.ones(1, tokens)
    padding[0, 0] = 0
    said["padding"] = heard(lambda: model(**batch, attention_mask=padding))
    said["4d"] = heard(lambda: model(**batch, attention_mask=torch.ones(1, 1, tokens, tokens)))
    positions = torch.arange(tokens).unsqueeze(0)
    said["default positions"] = heard(lambda: model(batch["input_ids"], use_cache=False))
    said["positions"] = heard(lambda: model(**batch | {"position_ids": positions + rank}))
    said["weights"] = heard(lambda: model(**batch, output_attentions=True))
    said["softcap"] = heard(lambda: model(**batch, softcap=30.0))
    said["bias"] = heard(lambda: model(**batch, rel_bias=torch.zeros(1)))
    config = model.config
    config.is_causal = False
    for module in model.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    said["two-way"] = heard(lambda: model(**batch))
    chunked = make_model("llama", "fp32", attention_chunk_size=8)
    said["chunks"] = heard(lambda: attach(chunked, schedule))
    said["module"] = heard(lambda: attach(torch.nn.Linear(1, 1), schedule))
    unbound = make_model("llama", "fp32")
    unbound.set_attn_implementation("charm")
    said["unbound"] = heard(lambda: unbound(**batch))
    dropping = make_model("llama", "fp32", attention_dropout=0.1)
    dropping.train()
    attach(dropping, schedule, timeout=WAIT)
    said["dropout"] = heard(lambda: dropping(**batch))
    return said


def readme_block() -> str:
    fences = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    (block,) = (text for text in fences if "from transformers import" in text)
    return str(block)


def readme(rank: int) -> dict[str, Any]:
    """Run the program of README.md as it stands, without its set-up of the process group."""
    space: dict[str, Any] = {}
    setup = 'dist.init_process_group("gloo")'
    text = readme_block()
    assert text.count(setup) == 1
    exec(text.replace(setup, "pass"), space)
    found: dict[str, Any] = {"all": space["losses"]}
    if rank == 0:
        torch.manual_seed(0)
        model = LlamaForCausalLM(space["config"])
        model.set_attn_implementation("eager")
        tokens = torch.randint(256, (1, space["schedule"].forward.partition.seq_len))
        offsets = torch.tensor(space["documents"])
        labels = tokens.clone()
        labels[:, offsets[:-1]] = -100
        positions = torch.cat([torch.arange(n) for n in offsets.diff().tolist()]).unsqueeze(0)
        given = {"input_ids": tokens, "labels": labels, "position_ids": positions}
        optimizer = torch.optim.AdamW(model.parameters(), lr=space["rate"])
        found["one"] = []
        for _ in space["losses"]:
            loss = model(**given, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found["one"].append(loss.item())
    dist.barrier()
    return found


def one_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
    began = time.monotonic()
    report: dict[str, Any] = {}
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=RANKS
        )
        report = {"trained": trained(rank), "refused": refused(rank), "readme": readme(rank)}
    except Exception:
        report["error"] = traceback.format_exc()
    report["seconds"] = time.monotonic() - began
    (folder / f"{rank}.json").write_text(json.dumps(report))


def main() -> None:
    folder = Path(sys.argv[1])
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=one_rank, args=(rank, folder)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + 300
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0))
        if process.is_alive():
            process.kill()


if __name__ == "__main__":
    main()
