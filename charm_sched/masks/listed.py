"""Masks listed in files: document lengths or blocks, one per line or as JSON.

Text: one entry per line; empty lines and what follows a ``#`` count for nothing. JSON: a list of
the same entries; lengths may be numbers. A block may be an object there, as in
``{"rows": [0, 128], "keys": [0, 256], "causal": true, "window": 512}``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias, TypeVar

from charm_sched.errors import WorkloadError
from charm_sched.masks.blocks import BLOCK_FORM, Block, parse_blocks
from charm_sched.masks.mask import Mask
from charm_sched.units import parse_tokens

Entry: TypeAlias = object
Value = TypeVar("Value")
KINDS = ("docs", "docs-full", "blocks")
MOST_BYTES = 64 << 20
_LENGTH_FORM = "a document length of 1 token or more, such as 1000 or 4K"


def read_listed(kind: str, path: str) -> Mask:
    """Read a mask from a file.

    Args:
        kind: One of `KINDS`.
        path: The file.

    Raises:
        WorkloadError: It cannot be read, or an entry is wrong; file and line are named.
    """
    text = _content(path)
    if text.lstrip().startswith(("[", "{")):
        entries = list(_json_entries(path, text))
    else:
        entries = list(_text_entries(path, text))
    if not entries:
        what = "blocks" if kind == "blocks" else "document lengths"
        raise WorkloadError(f"{path}: expected {what}, one per line or as a JSON list, found none")
    if kind == "blocks":
        form = f"a block {BLOCK_FORM}"
        blocks = tuple(_read(where, entry, _block, form) for where, entry in entries)
        try:
            return Mask(kind=kind, blocks=blocks)
        except WorkloadError as error:  # blocks that overlap
            raise WorkloadError(f"{path}: {error}") from error
    lengths = tuple(_read(where, entry, _length, _LENGTH_FORM) for where, entry in entries)
    return Mask(kind=kind, documents=lengths)


def _content(path: str) -> str:
    file = Path(path)
    try:
        if file.is_file() and file.stat().st_size > MOST_BYTES:
            raise WorkloadError(f"{path}: expected at most {MOST_BYTES >> 20} MiB")
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: expected text, found bytes that are no UTF-8") from error
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error


def _text_entries(path: str, text: str) -> Iterator[tuple[str, Entry]]:
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if entry:
            yield f"{path}:{number}", entry


def _json_entries(path: str, text: str) -> Iterator[tuple[str, Entry]]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise WorkloadError(
            f"{path}:{error.lineno}:{error.colno}: expected JSON: {error.msg}"
        ) from error
    if not isinstance(found, list):
        raise WorkloadError(f"{path}: expected a JSON list, found {type(found).__name__}")
    for number, entry in enumerate(found, 1):
        yield f"{path}: entry {number}", entry


def _read(where: str, entry: Entry, read: Callable[[Entry], Value], form: str) -> Value:
    try:
        return read(entry)
    except WorkloadError as error:
        raise WorkloadError(f"{where}: {error}") from error
    except (ValueError, TypeError, KeyError) as error:
        shown = entry if isinstance(entry, str) else json.dumps(entry)
        raise WorkloadError(f"{where}: expected {form}, found {str(shown)[:60]!r}") from error


def _length(entry: Entry) -> int:
    if isinstance(entry, bool) or not isinstance(entry, int | str):
        raise TypeError(entry)
    tokens = entry if isinstance(entry, int) else parse_tokens(entry)
    if tokens < 1:
        raise ValueError(entry)
    return tokens


def _block(entry: Entry) -> Block:
    if isinstance(entry, str):
        (block,) = parse_blocks(entry)
        return block
    if not isinstance(entry, dict) or set(entry) - {"rows", "keys", "causal", "window"}:
        raise TypeError(entry)
    causal, window = entry.get("causal", False), entry.get("window")
    whole = window is None or (isinstance(window, int) and not isinstance(window, bool))
    if not isinstance(causal, bool) or not whole:
        raise TypeError(entry)
    return Block(_range(entry["rows"]), _range(entry["keys"]), causal, window)


def _range(entry: Entry) -> tuple[int, int]:
    if not isinstance(entry, list) or not all(type(end) is int for end in entry):
        raise TypeError(entry)
    first, last = entry
    return first, last


__all__ = ["KINDS", "read_listed"]
