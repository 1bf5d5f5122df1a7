"""The documentation is true: examples give their recorded output, links lead somewhere.

After a change that is meant, run ``python tests/test_docs.py`` to record outputs and
the pictures of README.md again.
"""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import charm_sched

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("topologies/*.md")])
MODULES = sorted(
    f"charm_sched.{path.relative_to(folder.parent).with_suffix('').as_posix().replace('/', '.')}"
    for folder in (ROOT / "charm_sched" / name for name in ("planners", "simulator"))
    for path in folder.glob("[a-z]*.py")
) + sorted(f"charm_sched.{path.stem}" for path in (ROOT / "charm_sched").glob("[a-z]*.py"))


def output_of(example: Path) -> str:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, str(example.relative_to(ROOT))],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "80", "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_gives_its_recorded_output(example: Path) -> None:
    assert output_of(example) == example.with_suffix(".out").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    local = [link for link in links if not link.startswith(("http://", "https://"))]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("module", MODULES)
def test_doctests(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def blocks(page: str, language: str = "") -> list[str]:
    """List the fenced blocks of one language on a page."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    return [text for found, text in fences if found == language]


def test_strategy_page_shows_the_example() -> None:
    (shown,) = blocks("docs/strategies.md", "python")
    function = shown[shown.index("def direct") :]
    assert function in (ROOT / "docs/examples/direct.py").read_text()
    assert len(function.splitlines()) <= 20
    assert (ROOT / "docs/examples/direct.out").read_text() in blocks("docs/strategies.md")


def careless_answer(folder: Path) -> str:
    """Give what the command on the strategies page answers to the mistake made there."""
    (shown,) = blocks("docs/strategies.md", "python")
    careless = re.sub(r"np\.where\(needed, (.*), -1\)", r"\1", shown)
    assert careless.count("= kv[near]") == careless.count("= dkv[near]") == 1
    (folder / "careless.py").write_text(careless)
    (command,) = (text for text in blocks("docs/strategies.md") if " careless.py" in text[10:])
    name, *argv = command.split()
    assert name == "charm-plan"
    code = "import sys; from charm_sched.cli import plan_main; sys.exit(plan_main(sys.argv[1:]))"
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_strategy_page_quotes_the_verifier(tmp_path: Path) -> None:
    assert careless_answer(tmp_path) in blocks("docs/strategies.md")


def record_answer(folder: Path) -> None:
    page = ROOT / "docs/strategies.md"
    (old,) = (text for text in blocks("docs/strategies.md") if text.startswith("error: "))
    page.write_text(page.read_text().replace(old, careless_answer(folder)))


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "docs/architecture.md"])
def test_pages_say_what_plans_run_on(page: str) -> None:
    flat = " ".join((ROOT / page).read_text().split())
    assert "gloo" in flat
    assert re.search(r"CUDA (tensors|devices).{0,200}not yet run on", flat)


def test_architecture_page_shows_real_operations() -> None:
    recorded = (ROOT / "docs/examples/ring_of_three.out").read_text()
    (shown,) = (block for block in blocks("docs/architecture.md") if block.startswith("attend"))
    *lines, dots = shown.splitlines(keepends=True)
    assert recorded.startswith("".join(lines))
    assert dots == "...\n"


PICTURES = (  # of README.md: the arguments of charm-plan, and the parts shown, from line to line
    (("--seq-len", "32K"), (("dual_node", "Backward:"), ("Every strategy", "Assumed,"))),
    ((), (("Forward by length", "Backward by length"),)),
)


def picture(argv: tuple[str, ...], parts: tuple[tuple[str, str], ...], folder: Path) -> str:
    code = "import sys; from charm_sched.cli import plan_main; sys.exit(plan_main(sys.argv[1:]))"
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", code, "dual_node_nvlink", *argv],
        cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "80"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = [done.stdout[done.stdout.index(a) : done.stdout.index(b)].rstrip() for a, b in parts]
    return "\n...\n".join(shown) + "\n"


def shown_pictures() -> list[str]:
    text = (ROOT / "README.md").read_text()
    return re.findall(r"^<!-- picture -->\n```\n(.*?)^```$", text, re.M | re.S)


@pytest.mark.parametrize("number", range(len(PICTURES)))
def test_readme_shows_real_output(number: int, tmp_path: Path) -> None:
    assert shown_pictures()[number] == picture(*PICTURES[number], tmp_path)


def record_pictures(folder: Path) -> None:
    text = (ROOT / "README.md").read_text()
    for old, (argv, parts) in zip(shown_pictures(), PICTURES, strict=True):
        text = text.replace(old, picture(argv, parts, folder))
    (ROOT / "README.md").write_text(text)


def test_readme_python_runs() -> None:
    code, *need_torch = blocks("README.md", "python")
    for block in need_torch:  # the one with Transformers runs in tests/runtime/test_huggingface.py
        compile(block, "README.md", "exec")
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_changelog_names_the_version() -> None:
    """A released version has its section; before the first release there is just Unreleased."""
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## \[([^]]+)\]", text, re.M)
    assert sections[0] == "Unreleased"
    assert len(sections) == 1 or charm_sched.__version__ in sections


if __name__ == "__main__":
    for each in EXAMPLES:
        each.with_suffix(".out").write_text(output_of(each))
    with tempfile.TemporaryDirectory() as temporary:
        record_pictures(Path(temporary))
        record_answer(Path(temporary))
