"""Measure building, proving and simulating plans; print a Markdown table.

Run from a checkout: python docs/benchmarks/planning.py
"""

import sys
import time
from collections.abc import Mapping

from charm_sched import Workload
from charm_sched.partition import Partition
from charm_sched.planners import PLANNERS
from charm_sched.search import build
from charm_sched.verifier import verify

RANKS = (16, 64, 256, 1024)


def best(ranks: int, strategy: str, direction: str) -> tuple[int, float, float]:
    """Give operations, and the least seconds of building and of proving."""
    params: Mapping[str, object] = {}
    if strategy == "charm":
        params = {"domains": [list(range(i, i + 8)) for i in range(0, ranks, 8)]}
    work = Workload(seq_len=8 * ranks, mask="full")
    shards = Partition.zigzag(work.seq_len, ranks)
    times = []
    for _ in range(5 if ranks < 1024 else 2):
        start = time.perf_counter()
        plan = build(PLANNERS[strategy], strategy, work, shards, direction=direction, params=params)
        middle = time.perf_counter()
        verify(plan)
        times.append((middle - start, time.perf_counter() - middle))
    return len(plan), min(t[0] for t in times), min(t[1] for t in times)


def main() -> None:
    """Print the table."""
    out = sys.stdout.write
    out("| ranks | strategy | direction | operations | build | verify | both |\n")
    out("|---|---|---|---|---|---|---|\n")
    for ranks in RANKS:
        for strategy in ("ring", "charm"):
            for direction in ("forward", "backward"):
                ops, made, proved = best(ranks, strategy, direction)
                cells = (
                    ranks,
                    strategy,
                    direction,
                    f"{ops:,}",
                    *(
                        f"{1e3 * t:.1f} ms" if t < 1 else f"{t:.2f} s"
                        for t in (made, proved, made + proved)
                    ),
                )
                out("| " + " | ".join(map(str, cells)) + " |\n")


if __name__ == "__main__":
    main()
