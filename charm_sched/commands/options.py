"""Workload flags: what they are, and the `Workload` that they add up to."""

from __future__ import annotations

import re
import textwrap
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from charm_sched.errors import WorkloadError
from charm_sched.masks.listed import KINDS as LISTED_KINDS
from charm_sched.masks.listed import read_listed
from charm_sched.masks.mask import MASK_FORMS, Mask, parse_mask
from charm_sched.partition import PARTITIONS
from charm_sched.units import format_tokens, parse_bytes, parse_tokens
from charm_sched.workload import DTYPE_BYTES, MODELS, Workload

if TYPE_CHECKING:
    from argparse import (
        Action,
        ArgumentParser,
        Namespace,
        _ArgumentGroup,
        _MutuallyExclusiveGroup,
    )
    from collections.abc import Iterable

DEFAULT_MODEL = "llama3-8b"
DEFAULT_LENGTH = 131072
HEAD_FLAGS = ("heads", "kv_heads", "head_dim", "v_head_dim")

MOST_DEVICES = 1_000_000
RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")

STRATEGY_HELP = (
    "auto: the best found (default); all: every strategy, also those that a bound shows to be "
    "slower, with the reason where one cannot serve; "
    "names such as ring,charm; or path/to/file.py:function"
)

Value = TypeVar("Value")


class Help(RawDescriptionHelpFormatter):
    """Keeps names such as charm-topo and docs-full in one piece, and to the terminal's width."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[Action],
        groups: Iterable[_MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        """Add the usage line, over several lines where it is too long for one."""
        label = " " * len("usage: ")
        lines = textwrap.wrap(usage or "", self._width - len(label), break_on_hyphens=False)
        super().add_usage(f"\n{label}".join(lines) or None, actions, groups, prefix)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Fill paragraphs; a line that begins with a blank is one of its own."""
        lines: list[str] = []
        for part in re.split(r"\n(?= )", text):
            begin = indent + part[: len(part) - len(part.lstrip())]
            flat = begin + " ".join(part.split())
            lines += textwrap.wrap(flat, width, subsequent_indent=begin, break_on_hyphens=False)
        return "\n".join(lines)


def add_workload_flags(
    parser: ArgumentParser,
    default: str = f"{DEFAULT_MODEL}, 128K tokens, batch 1, bf16, causal, all devices",
    mask: str = "causal",
) -> None:
    """Add the flags that describe what is computed, and by whom.

    Args:
        parser: Where.
        default: What holds without flags, for the help text.
        mask: The mask that holds without flags, likewise.
    """
    group = parser.add_argument_group("workload", f"default: {default}")
    group.add_argument(
        "--model",
        metavar="NAME",
        choices=tuple(MODELS),
        help=f"heads of a published model: {', '.join(MODELS)}",
    )
    for flag, what in zip(HEAD_FLAGS, _HEAD_HELP, strict=True):
        group.add_argument(f"--{flag.replace('_', '-')}", metavar="N", type=count, help=what)
    group.add_argument(
        "--seq-len",
        metavar="TOKENS",
        type=argument(parse_tokens),
        help="tokens in the sequence, such as 2999, 128K (K is 1024) or 1M",
    )
    group.add_argument("--batch", metavar="N", type=count, help="sequences (default: 1)")
    group.add_argument("--dtype", choices=tuple(DTYPE_BYTES), help="of q, k, v (default: bf16)")
    group.add_argument(
        "--grad-dtype",
        choices=tuple(DTYPE_BYTES),
        help="of gradients and partial results that travel (default: fp32)",
    )
    group.add_argument(
        "--mask",
        metavar="MASK",
        type=argument(read_mask),
        help=f"{MASK_FORMS}; window and docs are causal; docs:@FILE, docs-full:@FILE and "
        f"blocks:@FILE read lengths or blocks, one per line or as JSON (default: {mask})",
    )
    _add_placement(group)


_HEAD_HELP = (
    "query heads, instead of a model's",
    "key/value heads (default: as many as query heads)",
    "size of a query or key vector (default: 128)",
    "size of a value vector (default: as --head-dim)",
)


def _add_placement(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--partition",
        choices=("auto", *PARTITIONS),
        help="who owns which tokens; per-document needs a mask of documents (default: auto, the "
        "best for each strategy)",
    )
    who = group.add_mutually_exclusive_group()
    who.add_argument(
        "--ranks", metavar="N", type=count, help="N devices, spread evenly over the domains"
    )
    who.add_argument(
        "--devices",
        metavar="A,B,...",
        type=argument(device_names),
        help="these devices, in rank order: names (charm-topo show; gpu0..3 is gpu0 to gpu3), "
        "CUDA's indices, UUIDs, PCI addresses; visible: those of CUDA_VISIBLE_DEVICES",
    )


WORKLOAD_FLAGS = (
    "model", *HEAD_FLAGS, "seq_len", "batch", "dtype", "grad_dtype", "mask", "partition", "ranks",
    "devices",
)  # fmt: skip


def names_workload(args: Namespace) -> bool:
    """Say whether any workload flag was given."""
    return bool(given_flags(args))


def given_flags(args: Namespace) -> list[str]:
    """List the workload flags that were given, as they are written."""
    flags = [flag for flag in WORKLOAD_FLAGS if getattr(args, flag) is not None]
    return [f"--{flag.replace('_', '-')}" for flag in flags]


def workload_of(parser: ArgumentParser, args: Namespace) -> Workload:
    """Give the workload of the flags; what is wrong with them ends as a usage error."""
    try:
        return read_workload(args)
    except WorkloadError as error:
        parser.error(str(error))


def read_workload(args: Namespace) -> Workload:
    """Give the workload that the flags describe.

    Raises:
        WorkloadError: The flags contradict each other or a value is out of range.
    """
    given = {flag: getattr(args, flag) for flag in HEAD_FLAGS if getattr(args, flag) is not None}
    if given and args.model:
        flag = next(iter(given)).replace("_", "-")
        raise WorkloadError(f"--model {args.model} fixes the heads; leave out --{flag} or --model")
    shape = MODELS[args.model or DEFAULT_MODEL]
    heads = {flag: getattr(shape, flag) for flag in HEAD_FLAGS} | given
    if "heads" in given and "kv_heads" not in given:
        heads["kv_heads"] = heads["heads"]
    if "head_dim" in given and "v_head_dim" not in given:
        heads["v_head_dim"] = heads["head_dim"]
    if heads["heads"] % heads["kv_heads"]:
        raise WorkloadError(
            f"--kv-heads: expected a divisor of --heads {heads['heads']}, found {heads['kv_heads']}"
        )
    mask = args.mask or Mask(kind="causal")
    return Workload(
        seq_len=_sequence_length(args.seq_len, mask),
        batch=args.batch or 1,
        dtype=args.dtype or "bf16",
        grad_dtype=args.grad_dtype,
        mask=mask,
        **heads,
    )


def _sequence_length(given: int | None, mask: Mask) -> int:
    packed = sum(mask.documents)
    if packed and given not in (None, packed):
        raise WorkloadError(
            f"--mask {mask.kind}: the documents hold {format_tokens(packed)} tokens in all, but "
            f"--seq-len is {format_tokens(given or 0)}; leave --seq-len out or make them agree"
        )
    blocks = max((max(b.rows[1], b.keys[1]) for b in mask.blocks), default=0)
    return packed or given or blocks or DEFAULT_LENGTH


def read_mask(text: str) -> Mask:
    """Read a mask whose lengths may be written with K and M.

    >>> str(read_mask("docs:1K,2999"))
    'docs:1024,2999'

    Raises:
        ValueError: The text is no mask, or one that this release does not have.
    """
    kind, colon, lengths = text.strip().partition(":")
    if lengths.startswith("@") and kind in LISTED_KINDS:
        return read_listed(kind, lengths[1:])
    if not lengths or kind not in ("window", "docs", "docs-full"):
        return parse_mask(text)
    try:
        tokens = ",".join(str(parse_tokens(length)) for length in lengths.split(","))
    except ValueError as error:
        what = "a window" if kind == "window" else "documents"
        raise WorkloadError(
            f"mask: expected {what} of 1 token or more, such as {kind}:512 or {kind}:4K, "
            f"found {text!r}"
        ) from error
    return parse_mask(f"{kind}{colon}{tokens}")


def argument(read: Callable[[str], Value]) -> Callable[[str], Value]:
    """Make a reader's ValueError the message of a usage error."""

    def convert(text: str) -> Value:
        try:
            return read(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from error

    return convert


def count(text: str) -> int:
    """Read a whole number of 1 or more."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise ArgumentTypeError(f"expected a whole number of 1 or more, found {text!r}")
    return int(text)


def positive(text: str, what: str = "number") -> float:
    """Read a finite number above 0; ``what`` names it in the message."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"expected a positive {what}, found {text!r}")
    return value


def seconds(text: str) -> float:
    """Read a number of seconds above 0, such as 60 or "60 s"."""
    return positive(text.strip().removesuffix("s").strip(), "number of seconds such as 60")


def memory_size(text: str) -> float:
    """Read a size above 0, such as "40 GB".

    Raises:
        ValueError: No size, or none above 0.
    """
    value = parse_bytes(text)
    if not value > 0:
        raise ValueError(f'expected a memory size above zero, such as "40 GB", found {text!r}')
    return value


def device_names(text: str) -> tuple[str, ...]:
    """Read device names with ranges, as topology files have them.

    >>> device_names("node0..1/gpu0..1,spare")
    ('node0/gpu0', 'node0/gpu1', 'node1/gpu0', 'node1/gpu1', 'spare')

    Raises:
        ValueError: An empty name, a range that goes down, far too many names, or "visible" where
            CUDA_VISIBLE_DEVICES is not set.
    """
    if text.strip() == "visible":
        from charm_sched.topology.calling import visible

        return visible()
    patterns = tuple(name.strip() for name in text.split(","))
    if not all(patterns):
        raise ValueError(f"expected names such as gpu0,gpu1 or gpu0..3, found {text!r}")
    names: list[str] = []
    for pattern in patterns:
        names += _expand(pattern)
        if len(names) > MOST_DEVICES:
            raise ValueError(f"expected at most {MOST_DEVICES} names, found more in {text!r}")
    return tuple(names)


def _expand(pattern: str) -> list[str]:
    match = RANGE.search(pattern)
    if match is None:
        return [pattern]
    first, last = match.groups()
    if int(first) > int(last):
        raise ValueError(f"expected a range from a smaller to a larger number, found {pattern!r}")
    if int(last) - int(first) >= MOST_DEVICES:
        raise ValueError(f"expected at most {MOST_DEVICES} names, found more in {pattern!r}")
    width = len(first) if first.startswith("0") else 0
    heads = [f"{pattern[: match.start()]}{n:0{width}d}" for n in range(int(first), int(last) + 1)]
    tails = _expand(pattern[match.end() :])
    if len(heads) * len(tails) > MOST_DEVICES:
        raise ValueError(f"expected at most {MOST_DEVICES} names, found more in {pattern!r}")
    return [head + tail for head in heads for tail in tails]


def strategy_list(text: str) -> tuple[str, ...]:
    """Read names and files separated by commas."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"expected strategies such as ring,charm, found {text!r}")
    return names


def strategy_names(text: str) -> tuple[str, ...]:
    """Read ``auto``, ``all``, or names and files separated by commas."""
    names = strategy_list(text)
    if len(names) > 1 and {"auto", "all"} & set(names):
        raise ValueError(f"expected auto or all alone, found {text!r}")
    return names


def parameter(text: str) -> tuple[str, object]:
    """Read ``name=value``; the value is true, false, a number or a word."""
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals and value):
        raise ValueError(f"expected NAME=VALUE such as pieces=2, found {text!r}")
    if value in ("true", "false"):
        return name, value == "true"
    return name, int(value) if value.lstrip("-").isdecimal() else value


__all__ = [
    "add_workload_flags", "argument", "device_names", "given_flags", "names_workload",
    "parameter", "read_mask", "read_workload", "strategy_names", "workload_of",
]  # fmt: skip
