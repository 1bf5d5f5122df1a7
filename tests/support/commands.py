"""Commands run in this process: how they end, and what they print."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Outcome(NamedTuple):
    """Exit status, standard output and standard error."""

    status: int
    out: str
    err: str

    @property
    def flat(self) -> str:
        """The output with single spaces."""
        return " ".join(self.out.split())

    @property
    def document(self) -> Any:
        """The output read as JSON."""
        return json.loads(self.out)


Call = Callable[..., Outcome]


def caller(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
) -> Call:
    """Give a function that runs a command in a folder, as if piped."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(columns))

    def run(main: Callable[[Sequence[str]], int], *argv: str) -> Outcome:
        try:
            status = main(argv)
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return Outcome(status, out, err)

    return run
