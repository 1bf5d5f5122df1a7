"""Many damaged inputs for every reader: ``make fuzz``, resumable, one line per target.

Input number i of a target is always the same, so a campaign goes on where it stopped, and a fault
is found again from its number. Each input has a limit of time and the process one of memory;
what ends otherwise than documented is written down with the input.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from mutate import mutated  # noqa: E402  (after the path)
from targets import Target, targets  # noqa: E402

SECONDS = 30.0  # of processor time for one input
MEMORY = 6 * 2**30  # bytes of address space


class TooLong(BaseException):
    """An input took longer than its limit; no ``except Exception`` may swallow it."""


@dataclass
class Tally:
    """What was done so far for one target."""

    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)

    def line(self, name: str) -> str:
        """Return the one line about a target."""
        return (
            f"{name:14} {self.inputs:>8} inputs, {self.accepted:>7} accepted, "
            f"{self.seconds:8.1f} s, slowest {self.slowest:6.3f} s, {len(self.faults)} faults"
        )


def make_input(target: Target, number: int) -> bytes:
    """Return an input of a target by its number."""
    return mutated(random.Random(f"{target.name}:{number}"), target.seeds, target.form)


def fault_of(target: Target, data: bytes) -> tuple[str, bool]:
    """Run one input; gives the fault, "" for none, and whether it was accepted."""
    try:
        target.run(data)
    except target.fine as error:
        text = str(error)
        if not text or "what comes out" in text:
            return f"a message that helps nobody: {text[:200]!r}", False
        if len(text) > 6000:
            return f"a message of {len(text)} characters from {_place(error)}", False
        return "", False
    except TooLong as error:
        return f"longer than {SECONDS:g} s at {_place(error)}", False
    except (Exception, RecursionError) as error:
        return f"{type(error).__name__} at {_place(error)}", False
    return "", True


def _place(error: BaseException) -> str:
    """Return where in the package something was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "charm_sched" in f.filename or "/simulator/" in f.filename]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "nowhere of ours"


def _alarm(number: int, frame: FrameType | None) -> None:
    raise TooLong


def run(target: Target, tally: Tally, until: int, stop: float, folder: Path | None) -> None:
    """Run inputs up to a number, or until a moment of the clock."""
    signal.signal(signal.SIGPROF, _alarm)
    while tally.inputs < until and time.monotonic() < stop:
        data = make_input(target, tally.inputs)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            fault, accepted = fault_of(target, data)
        except TooLong:
            fault, accepted = f"longer than {SECONDS:g} s", False
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        took = time.process_time() - began
        if fault and fault not in tally.faults:
            tally.faults[fault] = tally.inputs
            if folder is not None:
                (folder / f"{target.name}-{tally.inputs}").write_bytes(data)
        tally.inputs += 1
        tally.accepted += accepted
        tally.seconds += took
        tally.slowest = max(tally.slowest, took)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", help="names (default: all)")
    parser.add_argument("--inputs", type=int, default=100_000, help="per target")
    parser.add_argument("--state", type=Path, default=Path(".fuzz"), help="folder to resume from")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    args = parser.parse_args(argv)
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    args.state.mkdir(parents=True, exist_ok=True)
    known, faults = targets(), 0
    stop = time.monotonic() + args.seconds
    for name in args.targets or known:
        path = args.state / f"{name}.json"
        tally = Tally(**json.loads(path.read_text())) if path.exists() else Tally()
        run(known[name], tally, args.inputs, stop, args.state)
        path.write_text(json.dumps(vars(tally), indent=1))
        sys.stdout.write(tally.line(name) + "\n")
        for fault, number in tally.faults.items():
            sys.stdout.write(f"    {fault} (input {number})\n")
        sys.stdout.flush()
        faults += len(tally.faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
