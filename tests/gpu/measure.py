"""Measures one CUDA device in less than three minutes and prints JSON.

    python tests/gpu/measure.py [--seconds 150] > measured.json

* ``kernels``: seconds of PyTorch's fused attention, forward and backward, by length and kind of
  tile, with the achieved FLOP/s: what a device profile of a topology file needs.
* ``overlap``: how much longer a kernel takes while copies run on another stream, and the copies
  while it runs: whether transfers and kernels go on at the same time.
* ``runtime``: the ring of one rank through `charm_sched.runtime.attention`, against the same kernel
  called directly: what the executor adds on a device. ``null`` with a reason where it cannot run.

Everything is timed with events, the median of several runs after one that is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

sys.path.insert(0, str(Path(__file__).parents[2]))

HEADS, HEAD_DIM = 32, 128
LENGTHS = (1024, 2048, 4096, 8192, 16384)
COPY_BYTES = 256 << 20


def seconds(call: Callable[[], Any], repeat: int = 7) -> float:
    """Give the device seconds of a call."""
    call()
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def tensors(length: int, heads: int = HEADS) -> list[torch.Tensor]:
    shape = (1, heads, length, HEAD_DIM)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


def kernels(deadline: float) -> list[dict[str, Any]]:
    """Measure tiles until the deadline, short ones first."""
    found: list[dict[str, Any]] = []
    for length in LENGTHS:
        for causal in (False, True):
            if time.monotonic() > deadline:
                return found
            q, k, v, dout = tensors(length)
            inputs = [x.requires_grad_() for x in (q, k, v)]

            def forward(inputs: Any = inputs, causal: bool = causal) -> torch.Tensor:
                return F.scaled_dot_product_attention(*inputs, is_causal=causal)

            with torch.no_grad():
                ahead = seconds(forward)
            out = forward()
            back = seconds(
                lambda out=out, inputs=inputs, dout=dout: torch.autograd.grad(
                    out, inputs, dout, retain_graph=True
                )
            )
            flops = 4 * HEADS * HEAD_DIM * length**2 / (2 if causal else 1)
            found.append(
                {
                    "length": length, "causal": causal, "forward_s": ahead, "backward_s": back,
                    "forward_flop_per_s": flops / ahead, "backward_flop_per_s": 2.5 * flops / back,
                }
            )  # fmt: skip
    return found


def overlap() -> dict[str, float]:
    """Measure a kernel and copies, apart and at the same time on two streams."""
    q, k, v, _ = tensors(8192)
    source, target = (torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    beside = torch.cuda.Stream(priority=-1)
    copies = 8

    def kernel() -> None:
        for _ in range(4):
            F.scaled_dot_product_attention(q, k, v)

    def copy() -> None:
        for _ in range(copies):
            target.copy_(source)

    def both() -> None:
        begin = torch.cuda.current_stream().record_event()
        beside.wait_event(begin)
        with torch.cuda.stream(beside):
            copy()
            end = beside.record_event()
        kernel()
        torch.cuda.current_stream().wait_event(end)

    alone, moved, together = seconds(kernel), seconds(copy), seconds(both)
    return {
        "kernel_s": alone, "copies_s": moved, "together_s": together,
        "hidden": (alone + moved - together) / min(alone, moved),
    }  # fmt: skip


def runtime() -> dict[str, Any]:
    """Run a plan of one rank through the runtime, and its kernel directly."""
    import tempfile

    import torch.distributed as dist

    from charm_sched.partition import Partition
    from charm_sched.planners.ring import ring
    from charm_sched.plans.builder import Builder
    from charm_sched.runtime import attention
    from charm_sched.workload import Workload

    work = Workload(seq_len=4096, heads=HEADS, head_dim=HEAD_DIM, dtype="bf16", mask="full")
    builder = Builder(work, Partition.contiguous(work.seq_len, 1))
    ring(builder)
    plan = builder.build("ring")
    q, k, v, _ = tensors(work.seq_len)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/s", rank=0, world_size=1)
        try:
            with torch.no_grad():
                ours = seconds(lambda: attention(q, k, v, plan=plan))
                direct = seconds(lambda: F.scaled_dot_product_attention(q, k, v, scale=work.scale))
                out = attention(q, k, v, plan=plan)
                exact = F.scaled_dot_product_attention(q, k, v, scale=work.scale)
        finally:
            dist.destroy_process_group()
    return {
        "attention_s": ours, "kernel_s": direct,
        "largest_difference": float((out - exact).abs().max()),
    }  # fmt: skip


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=150.0, help="most time (default: 150)")
    deadline = time.monotonic() + parser.parse_args().seconds * 0.7
    if not torch.cuda.is_available():
        print("error: no CUDA device", file=sys.stderr)  # noqa: T201
        return 1
    properties = torch.cuda.get_device_properties(0)
    found: dict[str, Any] = {
        "device": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "heads": HEADS,
        "head_dim": HEAD_DIM,
        "dtype": "bf16",
    }
    for name, part in (
        ("overlap", overlap), ("runtime", runtime), ("kernels", lambda: kernels(deadline)),
    ):  # fmt: skip
        try:
            found[name] = part()
        except Exception as error:  # the others are still worth having
            found[name] = None
            found[f"{name}_reason"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found, indent=1))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
