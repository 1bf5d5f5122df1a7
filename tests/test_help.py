"""The help texts, word for word, and that they come at once.

After a change that is meant, run ``python tests/test_help.py`` to write the golden files again.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import pytest

from charm_sched import cli, lab, run, topo
from charm_sched.masks.mask import MASK_FORMS
from charm_sched.workload import MODELS

GOLDEN = Path(__file__).parent / "golden"
HEAVY = (
    "defusedxml",
    "numpy",
    "networkx",
    "scipy",
    "torch",
    "simpy",
    "yaml",
    "rich",
    "charm_sched.plans.plan",
)
MAINS: dict[str, Callable[[Sequence[str]], int]] = {
    "charm-plan": cli.plan_main,
    "charm-sim": cli.sim_main,
    "charm-topo": topo.main,
    "charm-run": run.main,
    "charm-lab": lab.main,
}
COMMANDS = (
    "charm-plan", "charm-sim", "charm-topo", "charm-topo list", "charm-topo show",
    "charm-topo validate", "charm-topo schema", "charm-topo bound",
    "charm-topo import", "charm-topo probe", "charm-topo profile", "charm-topo detect",
    "charm-topo place", "charm-topo export", "charm-run", "charm-lab",
)  # fmt: skip


def help_text(command: str, columns: int = 80) -> str:
    name, *rest = command.split()
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(columns), "NO_COLOR": "1"}),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        MAINS[name]([*rest, "--help"])
    return printed.getvalue()


def golden_file(command: str) -> Path:
    return GOLDEN / f"{command.replace(' ', '-')}.help.txt"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_the_golden_one(command: str) -> None:
    assert help_text(command) == golden_file(command).read_text()


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_the_terminal(command: str, columns: int) -> None:
    assert max(map(len, help_text(command, columns).splitlines())) <= columns


def test_no_golden_file_is_left_over() -> None:
    assert {path.name for path in GOLDEN.glob("*.help.txt")} == {
        golden_file(command).name for command in COMMANDS
    }


def test_help_names_every_choice() -> None:
    text = " ".join(help_text("charm-plan").split())
    assert all(model in text for model in MODELS)
    assert MASK_FORMS in text


@pytest.mark.parametrize("main", ["cli.plan_main", "cli.sim_main", "topo.main", "run.main"])
def test_help_imports_nothing_heavy(main: str) -> None:
    code = f"""
import sys
from charm_sched import cli, lab, run, topo
try:
    {main}(["--help"])
except SystemExit as stop:
    assert stop.code == 0
print(*set({HEAVY!r}) & set(sys.modules), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.split() == []
    assert done.stdout.startswith("usage: ")


@pytest.mark.parametrize("main", MAINS.values(), ids=MAINS)
def test_version(main: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.split()[1] == "0.1.0"


if __name__ == "__main__":
    for each in COMMANDS:
        golden_file(each).write_text(help_text(each))
