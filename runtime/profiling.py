"""Measures how fast a device computes, for a compute profile.

Each attention kernel is timed at several lengths, short ones first, for as long as there is time. A
kernel's fixed overhead is what one on a few tokens takes; it is taken off the others, as time is
FLOPs / rate + overhead in a profile.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from charm_sched.errors import RuntimeFailure
from charm_sched.runtime.backends.choice import choose_kernel
from charm_sched.runtime.kernels import Kernel, Need
from charm_sched.runtime.tiles import Tile

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32,
          "fp64": torch.float64}  # fmt: skip
TINY = 16  # tokens of the kernel whose time is the overhead
LEAST_SECONDS = 2e-3  # a timing goes over so many calls that it takes at least so long
TIMINGS = 5
_GROWTH = 4.5  # at most so many times as long takes a kernel of twice the length
_PRODUCTS = {"forward": 2, "backward": 5}
_MATRIX = {"cpu": 1024, "cuda": 8192}  # side of the matrices of the peak
_COPY = {"cpu": 1 << 27, "cuda": 1 << 31}  # bytes of the copy

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is measured.

    Attributes:
        device: Where.
        dtypes: Names.
        head_dims: Sizes of a head.
        lengths: Numbers of queries and keys, ascending.
        heads: Heads of a kernel, queries and keys alike.
        seconds: Time for everything together.
        backend: Name of the kernels; None to have them chosen as a run chooses them.
    """

    device: torch.device
    dtypes: tuple[str, ...]
    head_dims: tuple[int, ...]
    lengths: tuple[int, ...]
    heads: int
    seconds: float
    backend: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One kind of kernel."""

    dtype: str
    direction: str
    head_dim: int
    causal: bool


@dataclass(kw_only=True)
class Measured:
    """What was found; seconds, bytes per second and FLOP/s.

    Attributes:
        kernels: Name of the kernels of each dtype.
        peaks: FLOP/s of a large matrix product, by dtype.
        memory_bandwidth: Bytes per second read and written by a copy.
        overhead: Seconds of a kernel on a few tokens.
        rates: FLOP/s by kind of kernel and length.
        left_out: Lengths for which no time was left, by kind of kernel.
    """

    kernels: dict[str, str] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    memory_bandwidth: float = 0.0
    overhead: float = 0.0
    rates: dict[KernelCase, dict[int, float]] = field(default_factory=dict)
    left_out: dict[KernelCase, list[int]] = field(default_factory=dict)


def measure(question: Question, say: Say = lambda text: None) -> Measured:
    """Measure a device.

    Raises:
        RuntimeFailure: There is no such device, no kernel for a dtype, or time for nothing.
    """
    device = question.device
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeFailure("profile: expected a CUDA device, torch finds none; use --device cpu")
    end = time.monotonic() + question.seconds
    found = Measured()
    say("memory")
    found.memory_bandwidth = _copy_rate(device)
    for dtype in question.dtypes:
        say(f"{dtype} matrix product")
        found.peaks[dtype] = _product_rate(device, DTYPES[dtype])
    cases = list(_cases(question))
    kernels = {case: _kernel(question, case) for case in cases}
    for case, kernel in kernels.items():
        found.kernels.setdefault(case.dtype, kernel.name)
    tiny = [_seconds(_call(question, case, kernels[case], TINY), device) for case in cases
            if case.direction == "forward"]  # fmt: skip
    found.overhead = min(tiny)
    last: dict[KernelCase, tuple[int, float]] = {}
    for length in question.lengths:
        for case in cases:
            expected = _expected(last.get(case), length)
            if time.monotonic() + expected > end:
                found.left_out.setdefault(case, []).append(length)
                continue
            say(f"{case.direction} {case.dtype}, {case.head_dim}, {length} tokens")
            took = _seconds(_call(question, case, kernels[case], length), device)
            last[case] = (length, took)
            work = _flops(question, case, length) / max(took - found.overhead, took / 2)
            found.rates.setdefault(case, {})[length] = work
    if len(found.rates) < len(cases):
        raise RuntimeFailure(
            f"profile: expected time for one length of each kernel, found {question.seconds:g} s; "
            "give more --seconds, or fewer dtypes or head dimensions"
        )
    return found


def _cases(question: Question) -> Iterator[KernelCase]:
    for dtype in question.dtypes:
        for head_dim in question.head_dims:
            for direction in _PRODUCTS:
                for causal in (False, True):
                    yield KernelCase(
                        dtype=dtype, direction=direction, head_dim=head_dim, causal=causal
                    )


def _kernel(question: Question, case: KernelCase) -> Kernel:
    need = Need(
        device=question.device,
        dtype=DTYPES[case.dtype],
        head_dim=case.head_dim,
        value_dim=case.head_dim,
    )
    return choose_kernel(question.backend, need)


def _flops(question: Question, case: KernelCase, length: int) -> float:
    pairs = length * (length + 1) // 2 if case.causal else length * length
    return 2.0 * _PRODUCTS[case.direction] * pairs * case.head_dim * question.heads


def _expected(last: tuple[int, float] | None, length: int) -> float:
    """Give the seconds that the timings of a length will take, from those of a shorter one."""
    if last is None:
        return 0.0
    before, took = last
    once = took * _GROWTH ** math.log2(length / before)
    return max(once, LEAST_SECONDS) * (TIMINGS + 1)


def _call(
    question: Question, case: KernelCase, kernel: Kernel, length: int
) -> Callable[[], object]:
    """Make a call of a kernel, with its operands."""
    shape = (1, question.heads, length, case.head_dim)
    make = torch.Generator(device=question.device).manual_seed(0)
    q, k, v, dout = (
        torch.randn(shape, generator=make, device=question.device).to(DTYPES[case.dtype])
        for _ in range(4)
    )
    tile = Tile((0, length), (0, length), causal=case.causal)
    scale = float(case.head_dim**-0.5)
    if case.direction == "forward":
        return lambda: kernel.forward(q, k, v, tile=tile, scale=scale)
    out, lse = kernel.forward(q, k, v, tile=tile, scale=scale)
    delta: Tensor = (out.to(lse.dtype) * dout.to(lse.dtype)).sum(-1)
    return lambda: kernel.backward(q, k, v, dout, lse, delta, tile=tile, scale=scale)


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Give the least seconds of a call: other work on the machine makes a timing longer only."""
    once = _timed(call, 1, device)  # also what a first call does once
    once = min(once, _timed(call, 1, device)) if once < LEAST_SECONDS * 100 else once
    count = max(1, min(1000, math.ceil(LEAST_SECONDS / max(once, 1e-7))))
    return min(_timed(call, count, device) for _ in range(TIMINGS))


def _timed(call: Callable[[], object], count: int, device: torch.device) -> float:
    _settle(device)
    start = time.perf_counter()
    for _ in range(count):
        call()
    _settle(device)
    return (time.perf_counter() - start) / count


def _settle(device: torch.device) -> None:
    """Wait for all that a device has queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    side = _MATRIX[device.type]
    a, b = (torch.ones((side, side), dtype=dtype, device=device) for _ in range(2))
    return 2.0 * side**3 / _seconds(lambda: a @ b, device)


def _copy_rate(device: torch.device) -> float:
    source = torch.ones(_COPY[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * len(source) / _seconds(lambda: target.copy_(source), device)


def choose_device(name: str | None) -> torch.device:
    """Give a device by its name; without one a CUDA device, where there is one."""
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def describe(device: torch.device) -> str:
    """Name a device."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"{_processor()}, {torch.get_num_threads()} threads"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else "a processor"


def memory_of(device: torch.device) -> int:
    """Give the bytes that a device has."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def versions(kernels: Sequence[str]) -> str:
    """Say what computed: torch, CUDA where it has that, and the kernels."""
    parts = [f"torch {torch.__version__}"]
    if torch.version.cuda:
        parts.append(f"CUDA {torch.version.cuda}")
    return ", ".join([*parts, *dict.fromkeys(kernels)])


__all__ = [
    "DTYPES", "KernelCase", "Measured", "Question", "choose_device", "describe", "measure",
    "memory_of", "versions",
]  # fmt: skip
