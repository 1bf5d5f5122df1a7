"""Devices as the system names them: CUDA's indices, UUIDs and PCI addresses."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from charm_sched.errors import TopologyError
from charm_sched.topology.graph import Topology

VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_UUID = re.compile(r"(?:GPU-)?[0-9a-fA-F]{4}[0-9a-fA-F-]*")


def resolved(topology: Topology, words: Sequence[str]) -> tuple[str, ...]:
    """Return the names of devices that are given by name, index, UUID or PCI address.

    A word may be the name of a device; the number that its name ends in, or else its position in
    the file, from 0; the beginning of its UUID, as CUDA allows it; or its PCI address.

    Raises:
        TopologyError: A word is none of these, or the beginning of several UUIDs.
    """
    known = set(topology.device_names)
    return tuple(word if word in known else _find(topology, word) for word in words)


def visible(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the words of CUDA_VISIBLE_DEVICES, as CUDA reads them: up to the first that is empty.

    Raises:
        TopologyError: No such variable is set, or it hides every device.
    """
    for variable in VARIABLES:
        text = environment.get(variable)
        if text is None:
            continue
        words: list[str] = []
        for part in text.split(","):
            if not part.strip() or part.strip() == "-1":
                break
            words.append(part.strip())
        if not words:
            raise TopologyError(f'{variable}: expected devices, found "{text}", which hides all')
        return tuple(words)
    raise TopologyError(f"--devices visible: expected {VARIABLES[0]} to be set, found it unset")


def numbers(topology: Topology) -> tuple[int, ...]:
    """Return the number of each device: that of its name, or its position in the file."""
    ends = [re.search(r"(\d{1,6})$", name) for name in topology.device_names]
    found = tuple(int(end[1]) for end in ends if end)
    whole = len(found) == len(ends) and len(set(found)) == len(found)
    return found if whole else tuple(range(len(ends)))


def _find(topology: Topology, word: str) -> str:
    names = topology.device_names
    if word.isascii() and word.isdigit() and len(word) < 7:
        of_number = dict(zip(numbers(topology), names, strict=True))
        if int(word) in of_number:
            return of_number[int(word)]
    elif _UUID.fullmatch(word) or ":" in word:
        same = [d.name for d in topology.devices if any(_means(word, one) for one in d.id.split())]
        if len(same) == 1:
            return same[0]
        if same:
            raise TopologyError(
                f"{topology.name}: expected the UUID or address of one device, found {word}, "
                f"which {len(same)} have ({', '.join(same[:4])}); name them"
            )
    return names[topology.device_index(word)]  # raises, with names that look like it


def _means(word: str, identity: str) -> bool:
    """Say whether a word is an address, or begins a UUID, with or without GPU- in front."""
    word, identity = word.lower(), identity.lower()
    if ":" in word:
        return identity in (word, f"0000:{word}")
    return identity.startswith("gpu-") and identity[4:].startswith(word.removeprefix("gpu-"))
