"""What ``charm-topo profile`` does: measure a device, write its compute profile."""

from __future__ import annotations

import re
import statistics
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from charm_sched.commands.options import argument, count, positive
from charm_sched.errors import CharmSchedError, RuntimeFailure
from charm_sched.files import write_whole
from charm_sched.render.terminal import progress_line
from charm_sched.topology.profiles import DTYPES, ComputeProfile, KernelRate
from charm_sched.units import format_tokens, parse_tokens

if TYPE_CHECKING:
    from charm_sched.runtime.profiling import KernelCase, Measured, Question

DESCRIPTION = """\
Measure a compute profile on the machine at hand: matrix product, memory, overhead of a kernel,
and attention kernels forward and backward, full and causal, by head dimension and length. The
kernels are those that a run would use there. Needs PyTorch. On processors it has been run, on
GPUs not yet.

A topology uses the file as `profiles: {NAME: FILE}`; what is by length is in force under the
condition short_kernels."""
MARK = "charm-topo profile"
LENGTHS = {"cpu": (128, 256, 512, 1024, 2048), "cuda": tuple(512 << i for i in range(7))}
HEADS = {"cpu": 4, "cuda": 16}
DEFAULT_DTYPES = {"cpu": ("fp32", "bf16"), "cuda": ("bf16",)}
_LEAST, _MOST = 16, 1 << 20


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``charm-topo profile``."""
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path,
        help="where to write the profile (default: print it)",
    )  # fmt: skip
    parser.add_argument(
        "--device", metavar="WHERE", type=argument(_device),
        help="cpu, cuda or cuda:N (default: cuda where there is one)",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", metavar="A,B", type=argument(_dtypes),
        help="of the kernels (default: bf16; on processors fp32,bf16)",
    )  # fmt: skip
    parser.add_argument(
        "--head-dim", metavar="A,B", type=argument(_sizes), default=(64, 128),
        help="sizes of a head (default: 64,128)",
    )  # fmt: skip
    parser.add_argument(
        "--lengths", metavar="A,B", type=argument(_lengths),
        help="queries and keys of a kernel (default: 512 to 32K; on processors 128 to 2K)",
    )  # fmt: skip
    parser.add_argument(
        "--heads", metavar="N", type=count,
        help="heads of a kernel (default: 16; on processors 4)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", metavar="N", type=argument(positive), default=60.0,
        help="time for everything; long lengths are left out where it is short (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--backend", metavar="NAME", help="kernels to measure (default: as a run chooses them)"
    )
    parser.add_argument("--name", type=argument(_name), help="of the profile (default: the device)")


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", text):
        raise ArgumentTypeError(f"expected cpu, cuda or cuda:N, found {text!r}")
    return text


def _dtypes(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not set(names) <= set(DTYPES):
        raise ArgumentTypeError(f"expected some of {', '.join(DTYPES)}, found {text!r}")
    return names


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({count(size.strip()) for size in text.split(",")}))


def _lengths(text: str) -> tuple[int, ...]:
    found = tuple(sorted({parse_tokens(length) for length in text.split(",")}))
    if not all(_LEAST <= length <= _MOST for length in found):
        raise ArgumentTypeError(f"expected lengths from {_LEAST} to 1M, found {text!r}")
    return found


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", text):
        raise ArgumentTypeError(f"expected letters, digits and _ . -, found {text!r}")
    return text


def profile_command(parser: ArgumentParser, args: Namespace) -> None:
    """Run ``charm-topo profile``.

    Raises:
        CharmSchedError: There is no torch, no such device, or something else stands at the output.
    """
    if find_spec("torch") is None:
        raise RuntimeFailure("charm-topo profile needs PyTorch: pip install 'charm-sched[runtime]'")
    if args.output is not None:
        _check_output(args.output)
    from charm_sched.runtime import profiling

    question = _question(args)
    with progress_line("profile") as say:
        found = profiling.measure(question, say or (lambda text: None))
    text = profile_file(question, found, args.name)
    if args.output is None:
        sys.stdout.write(text)
        return
    write_whole(args.output, text.encode())
    sys.stderr.write(f"Saved {args.output}\n")


def _check_output(path: Path) -> None:
    from charm_sched.commands.output import check_folder

    check_folder(path)
    if path.exists() and (not path.is_file() or MARK not in path.read_text(errors="replace")):
        raise CharmSchedError(
            f"{path}: stands there already and is no profile that was measured, so it is left "
            "alone; choose another name with -o, or remove it"
        )


def _question(args: Namespace) -> Question:
    from charm_sched.runtime.profiling import Question, choose_device

    where = choose_device(args.device)
    return Question(
        device=where,
        dtypes=args.dtype or DEFAULT_DTYPES[where.type],
        head_dims=args.head_dim,
        lengths=args.lengths or LENGTHS[where.type],
        heads=args.heads or HEADS[where.type],
        seconds=args.seconds,
        backend=args.backend,
    )


def profile_file(question: Question, found: Measured, name: str | None) -> str:
    """Give the text of the profile file of a measurement."""
    from charm_sched.runtime import profiling
    from charm_sched.topology.library import profile_text

    device = profiling.describe(question.device)
    label = (
        f"measured by {MARK} on {date.today().isoformat()}: {device}; "
        f"{profiling.versions(list(found.kernels.values()))}; batch 1, {question.heads} heads"
    )
    short = re.sub(r"[^A-Za-z0-9]+", "_", device.partition(",")[0]).strip("_").lower()
    profile = profile_of(question, found, name or short or "device", label)
    left_out = sorted({n for lengths in found.left_out.values() for n in lengths})
    note = f"; no time was left for {', '.join(map(format_tokens, left_out))}" if left_out else ""
    return profile_text(profile, f"{device}, {label.partition(': ')[0]}{note}")


def profile_of(question: Question, found: Measured, name: str, label: str) -> ComputeProfile:
    """Give the profile of a measurement; ``label`` is the source of each number."""
    from charm_sched.runtime.profiling import memory_of

    parts = [table[max(table)] / found.peaks[case.dtype] for case, table in found.rates.items()]
    return ComputeProfile(
        name=name,
        peak={dtype: _rounded(found.peaks[dtype]) for dtype in DTYPES if dtype in found.peaks},
        rates=tuple(_rate(case, table, label) for case, table in found.rates.items()),
        efficiency=min(max(round(statistics.median(parts), 2), 0.01), 1.0),
        overhead=_rounded(found.overhead),
        memory_bandwidth=_rounded(found.memory_bandwidth),
        memory=float(memory_of(question.device)),
        assumed=("efficiency",),
        source=f"peak: {label}; efficiency: the median of the rates below over the peaks; "
        f"overhead: {label}; memory_bandwidth: {label}; memory: {label}",
    )


def _rate(case: KernelCase, table: dict[int, float], label: str) -> KernelRate:
    lengths = sorted(table)
    return KernelRate(
        direction=case.direction,
        head_dim=case.head_dim,
        causal=case.causal,
        dtypes=(case.dtype,),
        flops_per_second=_rounded(table[lengths[-1]]),
        by_length=tuple((length, _rounded(table[length])) for length in lengths),
        source=f"{label}, {format_tokens(lengths[-1])} tokens",
    )


def _rounded(value: float) -> float:
    """Keep four digits: no measurement is better than that."""
    return float(f"{value:.4g}")


__all__ = ["DESCRIPTION", "add_arguments", "profile_command", "profile_file", "profile_of"]
