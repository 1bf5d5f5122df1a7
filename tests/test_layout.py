"""The shape of the code: which module imports which, symlinks, and budgets of size."""

from __future__ import annotations

import ast
import fnmatch
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import charm_sched

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "charm_sched"
FOLDERS = ("simulator", "runtime", "topologies")

# A module may import from its own layer and from those above it in this list. A longer pattern goes
# before a shorter one: a package lies where its name stands, except the modules that are named.
LAYERS = (
    ("arrays", "errors", "files", "units"),
    ("masks.*", "models", "partition", "topology", "topology.*", "workload"),
    ("detection", "detection.*", "importers", "importers.*", "launch", "launch.*"),
    ("plans.finals", "plans.items", "plans.ops", "plans.plan", "plans.symmetry*"),
    (
        "bounds", "bounds.*", "cost", "masks", "masks.areas", "masks.prefix_areas",
        "masks.rectangles", "plans", "plans.*", "probing", "probing.*", "proof", "proof.*",
        "testbed.host_cost", "timelines", "timelines.*", "topology.scaling",
    ),
    ("planners", "planners.*"),
    ("simulator", "simulator.*", "runtime", "runtime.*", "testbed", "testbed.*"),
    ("bounds.limits", "placement", "placement.*", "search", "search.*", "what_if", "what_if.*"),
    (
        "cli", "commands", "commands.*", "export", "export.*", "lab", "probing.report",
        "probing.write", "render",
        "render.*", "report", "report.*", "run", "testbed.experiment", "testbed.faults", "topo",
        "what_if.lengths", "what_if.machines", "what_if.sweep*",
    ),
)  # fmt: skip
IMPORTERS = {  # who may import a library at all
    "torch": ("runtime", "runtime.*"),
    "simpy": ("simulator", "simulator.*"),
    "yaml": ("topology.*", "importers.*"),
    "defusedxml": ("importers.*",),
    "rich": ("cli", "render.*", "run"),
    "plotly": ("export.page",),
    "google": ("export.chakra_schema",),
}
MAX_FILE, MAX_FUNCTION = 400, 60


def module_name(path: Path) -> str:
    """Give ``planners.ring`` for ``charm_sched/planners/ring.py``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def source_files() -> list[Path]:
    """List the package's files, through its symlinks."""
    folders = [PACKAGE, *(p for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__")]
    own = {path for folder in folders for path in folder.glob("*.py")}
    return sorted(own.union(*(folder.rglob("*.py") for folder in folders[1:])))


FILES = source_files()
MODULES = {module_name(path): path for path in FILES}


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Yield every imported name in full, with its line, wherever in the file it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the import in full"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def own_modules(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the modules of this package that a file imports."""
    for name, line in imported(path):
        head, _, rest = name.partition(".")
        if head != "charm_sched" or not rest:
            continue
        while rest and rest not in MODULES:
            rest = rest.rpartition(".")[0]
        if rest:
            yield rest, line


def matches(module: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(module, pattern) for pattern in patterns)


def layer(module: str) -> int:
    found = [
        (len(pattern), number)
        for number, patterns in enumerate(LAYERS)
        for pattern in patterns
        if fnmatch.fnmatchcase(module, pattern)
    ]
    assert found, f"{module}: say in LAYERS where it belongs"
    return max(found)[1]


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_one_way(path: Path) -> None:
    module = module_name(path)
    if not module:
        return  # the package itself names everything, and imports it lazily
    wrong = [
        f"{module}:{line} imports {other}"
        for other, line in own_modules(path)
        if layer(other) > layer(module)
    ]
    assert not wrong


@pytest.mark.parametrize("library", IMPORTERS)
def test_libraries_stay_where_they_belong(library: str) -> None:
    users = {
        module
        for module, path in MODULES.items()
        if any(name.split(".")[0] == library for name, _ in imported(path))
    }
    assert not {module for module in users if not matches(module, IMPORTERS[library])}


def test_the_import_walk_sees_something() -> None:
    """The guards above would pass on an empty list."""
    assert ("plans.plan", 27) not in own_modules(MODULES["errors"])
    assert "partition" in {name for name, _ in own_modules(MODULES["plans.plan"])}
    assert "numpy" in {name.split(".")[0] for name, _ in imported(MODULES["plans.plan"])}
    assert len(FILES) > 20


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_are_reached_by_symlink(folder: str) -> None:
    link = PACKAGE / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder).is_symlink()


def test_topologies_hold_no_code() -> None:
    assert list((ROOT / "topologies").glob("*.yaml"))
    assert not list((ROOT / "topologies").glob("**/*.py"))


@pytest.mark.parametrize("folder", ["simulator", "runtime"])
def test_bare_imports_are_refused(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert f"charm_sched.{folder}" in done.stderr.splitlines()[-1]


def test_no_module_is_named_like_a_public_name() -> None:
    """``from charm_sched import plan`` would give the module instead of the function."""
    assert not set(charm_sched.__all__) & {name.split(".")[0] for name in MODULES}


def test_public_names_resolve_and_are_sorted() -> None:
    assert list(charm_sched.__all__) == sorted(charm_sched.__all__)
    for name in charm_sched.__all__:
        assert getattr(charm_sched, name) is not None
    assert set(charm_sched.__all__) <= set(dir(charm_sched))
    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        charm_sched.plann  # noqa: B018


def test_typed_names_are_the_public_names() -> None:
    """What type checkers see is what the module gives at run time."""
    seen = {
        alias.name
        for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("charm_sched")
        for alias in node.names
    }
    assert seen == set(charm_sched.__all__) - {"__version__"}


def test_import_costs_next_to_nothing() -> None:
    """``import charm_sched`` loads none of its own modules and no library."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
before = set(sys.modules)
import charm_sched
print(*set(sys.modules) - before)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert set(done.stdout.split()) <= {"charm_sched", "__future__"}


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_sizes_stay_within_budget(path: Path) -> None:
    text = path.read_text()
    lines = text.count("\n")
    assert lines <= MAX_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION, f"{path.name}:{node.lineno} {node.name}"
