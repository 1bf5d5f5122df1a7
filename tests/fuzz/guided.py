"""The same targets, driven by coverage: ``python tests/fuzz/guided.py TARGET [libFuzzer options]``.

It needs atheris (the extra ``fuzz``). What libFuzzer finds new ground with is mutated further, by
the mutations of this folder and by its own; a fault ends the run and leaves its input behind.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import atheris  # noqa: E402  (after the path)

with atheris.instrument_imports(include=["charm_sched"]):
    from campaign import fault_of
    from mutate import mutated
    from targets import targets

OWN = 0.7  # of the mutations; the rest are libFuzzer's


def main() -> None:
    """Run one target."""
    name = sys.argv.pop(1)
    target = targets()[name]

    def once(data: bytes) -> None:
        fault, _ = fault_of(target, bytes(data))
        if fault:
            raise AssertionError(fault)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        draw = random.Random(seed)
        if draw.random() > OWN:
            return bytes(atheris.Mutate(data, most))
        start = (bytes(data),) if data and target.form == "text" else target.seeds
        return mutated(draw, start, target.form)[:most]

    atheris.Setup([*sys.argv, "-max_len=65536"], once, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
