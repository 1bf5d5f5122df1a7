"""What a rank computes: attends and merges, on the contents that its memory gives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from charm_sched.runtime.kernels import Kernel
from charm_sched.runtime.layout import Fields, Layout
from charm_sched.runtime.memory import Memory, add
from charm_sched.runtime.numerics import merge_into
from charm_sched.runtime.program import Combine, Compute


def attend_forward(step: Compute, memory: Memory, kernel: Kernel, scale: float) -> None:
    """Attend, and contribute a partial (out, lse) to each query."""
    queries = [memory.load(source)[0] for source in step.queries]
    keys = [memory.load(source) for source in step.keys]
    for number, (sink, q) in enumerate(zip(step.query_sinks, queries, strict=True)):
        total: Fields | None = None
        for pair in step.pairs:
            if pair.query != number:
                continue
            k, v = keys[pair.key]
            for heads, kv_heads in pair.heads:
                for tile in pair.tiles:
                    rows, columns = slice(*tile.rows), slice(*tile.keys)
                    out, lse = kernel.forward(
                        q[:, heads, rows], k[:, kv_heads, columns], v[:, kv_heads, columns],
                        tile=tile, scale=scale,
                    )  # fmt: skip
                    if total is None and out.shape[1:3] == q.shape[1:3]:
                        total = (out.to(sink.layout.items[0][0].dtype), lse)
                        continue
                    if total is None:
                        total = _nothing(sink.layout, q.device)
                    merge_into(total[0][:, heads, rows], total[1][:, heads, rows], out, lse)
        memory.contribute(sink, total if total is not None else _nothing(sink.layout, q.device))


def attend_backward(step: Compute, memory: Memory, kernel: Kernel, scale: float) -> None:
    """Attend backwards, and contribute dq to each query and dkv to each key."""
    queries = [memory.load(source)[0] for source in step.queries]
    grads = [memory.load(source) for source in step.grads]
    keys = [memory.load(source) for source in step.keys]
    device = queries[0].device
    dqs = [_nothing(sink.layout, device)[0] for sink in step.query_sinks]
    dkvs = [_nothing(sink.layout, device) for sink in step.key_sinks]
    for pair in step.pairs:
        q, (dout, lse, delta) = queries[pair.query], grads[pair.query]
        (k, v), (dk, dv), dq = keys[pair.key], dkvs[pair.key], dqs[pair.query]
        for heads, kv_heads in pair.heads:
            for tile in pair.tiles:
                here = (slice(None), heads, slice(*tile.rows))
                there = (slice(None), kv_heads, slice(*tile.keys))
                more_dq, more_dk, more_dv = kernel.backward(
                    q[here], k[there], v[there], dout[here], lse[here], delta[here],
                    tile=tile, scale=scale,
                )  # fmt: skip
                dq[here] += more_dq
                dk[there] += more_dk
                dv[there] += more_dv
    for sink, gradient in zip(step.query_sinks, dqs, strict=True):
        memory.contribute(sink, (gradient,))
    for sink, gradients in zip(step.key_sinks, dkvs, strict=True):
        memory.contribute(sink, gradients)


def combine(step: Combine, memory: Memory) -> None:
    """Combine partial results into one, in the order of the operands."""
    inputs = [memory.load(source) for source in step.inputs]
    total = _nothing(step.sink.layout, inputs[0][0].device)
    for fields, window in zip(inputs, step.windows, strict=True):
        add(window, total, fields)
    memory.contribute(step.sink, total)


def _nothing(layout: Layout, device: torch.device) -> Fields:
    """Give the partial result of no keys: zeros, and a log-sum-exp of -inf."""
    return tuple(_empty(spec.shape, spec.dtype, device) for spec in layout.items[0])


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full(shape, 0.0 if len(shape) == 4 else -math.inf, dtype=dtype, device=device)
