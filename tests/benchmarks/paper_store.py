"""What was computed, kept per slice in a folder, and never mixed with that of other code.

Results lie under the digest of everything they depend on: the modules that planning and this
benchmark import, wherever they are imported, the machines' files, and the numerical libraries.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
LIBRARIES = ("networkx", "numpy", "scipy", "simpy")


class Store:
    """A folder of results.

    Attributes:
        digest: Of what results depend on.
    """

    def __init__(self, folder: Path, files: Iterable[Path]) -> None:
        self._files = tuple(files)
        self.digest = digest(self._files)
        self._folder = folder / self.digest
        self._folder.mkdir(parents=True, exist_ok=True)

    @property
    def current(self) -> bool:
        """Whether the files are still as they were."""
        return digest(self._files) == self.digest

    def read(self, name: str) -> list[dict[str, Any]] | None:
        """Give a result; None for one that is not there."""
        path = self._path(name)
        return json.loads(path.read_text()) if path.exists() else None

    def write(self, name: str, value: list[dict[str, Any]]) -> None:
        """Keep a result. A run that is ended meanwhile leaves nothing half-written."""
        path = self._path(name)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(value, allow_nan=False))
        partial.replace(path)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def digest(files: Iterable[Path]) -> str:
    """Give the digest of files, and of the libraries that numbers depend on."""
    lines = [sys.version, *(f"{name} {version(name)}" for name in LIBRARIES)]
    for path in files:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"{os.path.relpath(path, ROOT)} {content}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def sources(module: str) -> list[Path]:
    """List the files of a module and of all that it imports from this repository, sorted.

    Imports inside functions count, and packages above a module.
    """
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file(name)
        if name in found or path is None:
            continue
        found[name] = path
        waiting += [name.rpartition(".")[0], *_imported(path)]
    return sorted(found.values())


def _file(name: str) -> Path | None:
    """Give the file of a module of this repository; None for other modules."""
    path = ROOT.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if name and candidate.is_file():
            return candidate
    return None


def _imported(path: Path) -> list[str]:
    """List every module that a file imports, and every name, as it may be a module too."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names
