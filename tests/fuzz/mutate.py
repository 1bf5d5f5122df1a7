"""Damage that knows structure: lines, words, elements, JSON values, arrays; and bare bytes.

Everything is drawn from a `random.Random`, so that an input is given by its target and its number.
"""

from __future__ import annotations

import copy
import io
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

NUMBERS = (
    "-1", "0", "1", "2", "7", "255", "65536", "99999999999", "1e9", "1e400", "nan", "inf", "0x7",
    "007", "1.5", "-0.0", "\u0663", "9" * 40, "2147483648", "18446744073709551616",
)  # fmt: skip
SCRAPS = (
    "", " ", "\t", "\n", "\x00", "\x1b[4m", "\ufeff", "\u2028", "..", "/", "*a", "&a ", "<!--",
    "-->", "<![CDATA[", "]]>", "<?x?>", "&#0;", "&x;",
    "<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>",
    "- ", ": ", "{", "}", "[", "]", "!!python/object:os.system ", "%", "|", "\\", "'", '"', "@",
    "#",
    "[0-9999999]", "0..999999999", "N/A", "GPU0", "X", "NV18", "NV0", "SYS", "null", "true", "~",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, 1.5, -0.0, 1e308, "", "x", "0", [], {}, [[]],
    [0] * 50, {"a": 1}, "9" * 50, "kv[0:4]h0:1", "\x00",
)  # fmt: skip
TYPES = ("u1", "i2", "i4", "i8", "f8", "?", "U3", "c16")


def mutated(draw: random.Random, seeds: Sequence[bytes], form: str) -> bytes:
    """Return one input: a seed, or the mixture of two, with some damage."""
    data = draw.choice(seeds)
    if form == "npz" and draw.random() < 0.7:
        return _arrays(draw, data)
    if form == "json" and draw.random() < 0.7:
        return _json(draw, data)
    if form == "npz" or draw.random() < 0.1:
        return _bytes(draw, data)
    text = data.decode("utf-8", "replace")
    if draw.random() < 0.15:
        text = _spliced(draw, text, draw.choice(seeds).decode("utf-8", "replace"))
    for _ in range(1 + int(draw.expovariate(0.8))):
        text = draw.choice(_TEXT)(draw, text)
    return text.encode("utf-8", "surrogatepass")


def _span(draw: random.Random, text: str, most: int = 80) -> tuple[int, int]:
    first = draw.randint(0, len(text))
    return first, min(len(text), first + draw.randint(0, most))


def _cut(draw: random.Random, text: str) -> str:
    first, last = _span(draw, text)
    return text[:first] + text[last:]


def _end(draw: random.Random, text: str) -> str:
    return text[: draw.randint(0, len(text))]


def _copy(draw: random.Random, text: str) -> str:
    first, last = _span(draw, text, 300)
    at = draw.randint(0, len(text))
    return text[:at] + text[first:last] * draw.choice((1, 1, 2, 40)) + text[at:]


def _scrap(draw: random.Random, text: str) -> str:
    at = draw.randint(0, len(text))
    return text[:at] + draw.choice(SCRAPS) + text[at:]


def _words(draw: random.Random, text: str, pattern: str, replace: Callable[[str], str]) -> str:
    found = [m.span() for m in re.finditer(pattern, text)]
    if not found:
        return text
    first, last = draw.choice(found)
    return text[:first] + replace(text[first:last]) + text[last:]


def _number(draw: random.Random, text: str) -> str:
    return _words(draw, text, r"\d+(?:\.\d+)?", lambda old: draw.choice(NUMBERS))


def _near_number(draw: random.Random, text: str) -> str:
    return _words(draw, text, r"\d{1,6}", lambda old: str(int(old) + draw.choice((-1, 1, 2))))


def _word(draw: random.Random, text: str) -> str:
    words = re.findall(r"[^\s<>\"'=:,\[\]{}]+", text)
    return _words(draw, text, r"[^\s<>\"'=:,\[\]{}]+", lambda old: draw.choice([*words, *SCRAPS]))


def _lines(draw: random.Random, text: str) -> str:
    lines = text.split("\n")
    a, b = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(5):
        case 0:
            del lines[a]
        case 1:
            lines.insert(b, lines[a])
        case 2:
            lines[a], lines[b] = lines[b], lines[a]
        case 3:
            lines[a] = " " * draw.randint(0, 8) + lines[a].lstrip()
        case 4:
            lines[a : a + 2] = [draw.choice(("", " ", "\t")).join(lines[a : a + 2])]
    return "\n".join(lines)


def _element(draw: random.Random, text: str) -> str:
    """Remove, repeat or nest an XML element without children, or drop an attribute."""
    kind = draw.randrange(4)
    if kind == 0:
        return _words(draw, text, r'\s[\w:]+="[^"]*"', lambda old: "")
    if kind == 1:
        return _words(draw, text, r"<[^<>]*/>", lambda old: old * draw.choice((0, 2, 30)))
    if kind == 2:
        return _words(draw, text, r"</?[\w]+[^<>]*>", lambda old: draw.choice(("", old + old)))
    return _words(draw, text, r"<\w+[^<>]*/>", lambda old: f"<pci>{old}</pci>")


def _column(draw: random.Random, text: str) -> str:
    """Remove or repeat one cell of a row, as lost tabs do."""
    return _words(draw, text, r"[\t ]+\S+", lambda old: draw.choice(("", old + old, old.strip())))


_TEXT: tuple[Callable[[random.Random, str], str], ...] = (
    _cut, _end, _copy, _scrap, _number, _number, _near_number, _word, _word, _lines, _lines,
    _element, _column,
)  # fmt: skip


def _spliced(draw: random.Random, one: str, other: str) -> str:
    return one[: draw.randint(0, len(one))] + other[draw.randint(0, len(other)) :]


def _bytes(draw: random.Random, data: bytes) -> bytes:
    content = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        if not content:
            break
        at = draw.randrange(len(content))
        match draw.randrange(4):
            case 0:
                content[at] ^= 1 << draw.randrange(8)
            case 1:
                content[at] = draw.randrange(256)
            case 2:
                del content[at : at + draw.randint(1, 16)]
            case 3:
                content[at:at] = draw.randbytes(draw.randint(1, 8))
    return bytes(content)


def _json(draw: random.Random, data: bytes) -> bytes:
    document = json.loads(data)
    for _ in range(draw.randint(1, 2)):
        _change(draw, document)
    return json.dumps(document).encode()


def _change(draw: random.Random, document: Any) -> None:
    """Change one value somewhere inside."""
    at = document
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = draw.choice(keys)
        if isinstance(at[key], (dict, list)) and at[key] and draw.random() < 0.9:
            at = at[key]
            continue
        match draw.randrange(4):
            case 0:
                del at[key]
            case 1:
                at[key] = copy.deepcopy(draw.choice(VALUES))
            case 2 if isinstance(at, list):
                at.insert(draw.choice(keys), copy.deepcopy(at[key]))
            case 3 if isinstance(at[key], str) and at[key]:
                at[key] = draw.choice(_TEXT)(draw, at[key])
            case _:
                at[key] = copy.deepcopy(draw.choice(VALUES))
        return


def _arrays(draw: random.Random, data: bytes) -> bytes:
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    if draw.random() < 0.3:
        arrays["header"] = np.frombuffer(_json(draw, arrays["header"].tobytes()), np.uint8)
    else:
        name = draw.choice(sorted(arrays))
        changed = _array(draw, arrays[name].copy())
        if changed is None:
            del arrays[name]
        else:
            arrays[name] = changed
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    return content.getvalue()


def _array(draw: random.Random, array: Any) -> Any:
    match draw.randrange(6):
        case 0:
            return None
        case 1:
            return array[: draw.randint(0, len(array))]
        case 2:
            return array.astype(draw.choice(TYPES))
        case 3:
            return array.reshape(1, -1)
        case 4:
            return np.concatenate([array, array])
    if len(array):
        limit = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
        values = [0, 1, 2, 5] + ([limit.min, limit.max] if limit else [])
        array[draw.randrange(len(array))] = draw.choice(values)
    return array
