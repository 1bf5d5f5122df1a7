"""Workload flags: what they are, and the `Workload` that they add up to."""

from __future__ import annotations

import textwrap
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from charm_sched.errors import WorkloadError
from charm_sched.masks import MASK_FORMS, Mask, parse_mask
from charm_sched.partition import PARTITIONS
from charm_sched.units import format_tokens, parse_tokens
from charm_sched.workload import DTYPE_BYTES, MODELS, Workload

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _ArgumentGroup

DEFAULT_MODEL = "llama3-8b"
DEFAULT_LENGTH = 131072
HEAD_FLAGS = ("heads", "kv_heads", "head_dim", "v_head_dim")

Value = TypeVar("Value")


class Help(RawDescriptionHelpFormatter):
    """Keeps names such as charm-topo and docs-full in one piece."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def add_workload_flags(parser: ArgumentParser) -> None:
    """Add the flags that describe what is computed, and by whom."""
    group = parser.add_argument_group(
        "workload", f"default: {DEFAULT_MODEL}, 128K tokens, batch 1, bf16, causal, all devices"
    )
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
        help=f"{MASK_FORMS}; window and docs are causal (default: causal)",
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
        help="who owns which tokens (default: auto, the best for each strategy)",
    )
    who = group.add_mutually_exclusive_group()
    who.add_argument(
        "--ranks", metavar="N", type=count, help="N devices, spread evenly over the domains"
    )
    who.add_argument(
        "--devices",
        metavar="A,B,...",
        type=argument(_names),
        help="these devices, in rank order",
    )


WORKLOAD_FLAGS = (
    "model", *HEAD_FLAGS, "seq_len", "batch", "dtype", "grad_dtype", "mask", "partition", "ranks",
    "devices",
)  # fmt: skip


def names_workload(args: Namespace) -> bool:
    """Say whether any workload flag was given."""
    return any(getattr(args, flag) is not None for flag in WORKLOAD_FLAGS)


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
    return packed or given or DEFAULT_LENGTH


def read_mask(text: str) -> Mask:
    """Read a mask whose lengths may be written with K and M.

    >>> str(read_mask("docs:1K,2999"))
    'docs:1024,2999'

    Raises:
        ValueError: The text is no mask, or one that this release does not have.
    """
    kind, colon, lengths = text.strip().partition(":")
    if kind == "blocks" or lengths.startswith("@"):
        raise WorkloadError(
            f"mask: expected {MASK_FORMS}, found {text!r}; "
            "masks from a file are not in this release"
        )
    if not lengths:
        return parse_mask(text)
    tokens = ",".join(str(parse_tokens(length)) for length in lengths.split(","))
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


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"expected names such as gpu0,gpu1, found {text!r}")
    return names


__all__ = [
    "add_workload_flags", "argument", "names_workload", "read_mask", "read_workload",
]  # fmt: skip
