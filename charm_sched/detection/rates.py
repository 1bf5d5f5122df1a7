"""How fast the processors of one NUMA node compute and copy: measured in a process of its own.

``python -m charm_sched.detection.rates 0,1`` binds itself to these processors first, so that the
threads of NumPy's products stay there, and prints one JSON document.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

SIZE = 1024  # rows of the square matrices
COPIED = 2**26  # bytes, more than caches hold of one node
REPEAT = 5
PATIENCE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What was measured on one node: FLOP/s of matrix products, and bytes copied per second."""

    fp32: float
    fp64: float
    copy: float


def measure_rates(cpus: Sequence[int]) -> Rates | None:
    """Measure the processors of one node; None where that does not work."""
    threads = {name: str(len(cpus)) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                                                 "MKL_NUM_THREADS")}  # fmt: skip
    command = [sys.executable, "-m", __name__, ",".join(map(str, cpus))]
    try:
        done = subprocess.run(
            command, env={**os.environ, **threads}, capture_output=True, timeout=PATIENCE,
            check=True,
        )  # fmt: skip
        found = json.loads(done.stdout)
        return Rates(fp32=found["fp32"], fp64=found["fp64"], copy=found["copy"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None


def _best(work: Callable[[], object]) -> float:
    """Return the least seconds of a few runs: other work only ever adds time."""
    work()
    taken = []
    for _ in range(REPEAT):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def measure_here() -> Rates:
    """Measure with the processors that this process may use."""
    import numpy as np

    products = []
    for dtype in ("float32", "float64"):
        a = np.ones((SIZE, SIZE), dtype)
        product = partial(np.matmul, a, a, out=np.empty_like(a))
        products.append(2 * SIZE**3 / _best(product))
    source, target = np.ones(COPIED, np.uint8), np.zeros(COPIED, np.uint8)
    copy = COPIED / _best(lambda: np.copyto(target, source))
    found = (*products, copy)
    fp32, fp64, copy = (float(f"{value:.3g}") for value in found)  # more digits would be noise
    return Rates(fp32=fp32, fp64=fp64, copy=copy)


def _main() -> None:
    with contextlib.suppress(OSError, AttributeError):  # not on every system
        os.sched_setaffinity(0, {int(cpu) for cpu in sys.argv[1].split(",")})
    found = measure_here()
    json.dump({"fp32": found.fp32, "fp64": found.fp64, "copy": found.copy}, sys.stdout)


if __name__ == "__main__":
    _main()
