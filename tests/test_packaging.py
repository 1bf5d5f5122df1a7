"""The distribution: the wheel, built through the sdist, installs one import name and works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("simulator", "runtime", "topologies")

pytestmark = pytest.mark.packaging


def run(*command: str | Path, cwd: Path) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd, capture_output=True, text=True, timeout=300, env=kept,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel out of it, with the installed hatchling."""
    where = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", where, ROOT, cwd=where)
    return where


@pytest.fixture(scope="module")
def installed(archives: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a fresh environment that borrows this one's dependencies."""
    where = tmp_path_factory.mktemp("fresh")
    venv.create(where, with_pip=False)
    python = where / "bin" / "python"
    (wheel,) = archives.glob("*.whl")
    install = ("install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, *install, wheel, cwd=where)
    borrowed = Path(np.__file__).parent.parent
    (site(where) / "borrowed.pth").write_text(f"{borrowed}\n")
    return where


def site(where: Path) -> Path:
    (found,) = where.glob("lib/python*/site-packages")
    return found


def test_wheel_holds_every_source_file_once(archives: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = [name for name in archive.namelist() if ".dist-info/" not in name]
    sources = {
        path.relative_to(ROOT).as_posix()
        for folder in (ROOT / "charm_sched", *(ROOT / "charm_sched" / f for f in FOLDERS))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sorted(packed) == sorted(sources)
    for folder in FOLDERS:
        assert any(name.startswith(f"charm_sched/{folder}/") for name in packed)


def test_sdist_holds_real_folders(archives: Path) -> None:
    (sdist,) = archives.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert not [member.name for member in members if member.issym() or member.islnk()]
    names = {member.name.partition("/")[2] for member in members}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= names
    assert "charm_sched/topologies/dual_node_nvlink.yaml" in names


def test_installs_one_import_name(installed: Path) -> None:
    entries = {path.name for path in site(installed).iterdir()} - {"borrowed.pth", "__pycache__"}
    assert {name for name in entries if not name.endswith(".dist-info")} == {"charm_sched"}
    for folder in FOLDERS:
        assert (site(installed) / "charm_sched" / folder).is_dir()
        assert not (site(installed) / "charm_sched" / folder).is_symlink()


def test_imports_from_the_wheel_and_nowhere_else(installed: Path, tmp_path: Path) -> None:
    code = "import charm_sched.simulator as s; print(s.__file__)"
    found = run(installed / "bin" / "python", "-c", code, cwd=tmp_path)
    assert found.startswith(str(site(installed)))


@pytest.mark.parametrize("command", ["charm-plan", "charm-sim", "charm-topo", "charm-run"])
def test_commands_are_installed(command: str, installed: Path, tmp_path: Path) -> None:
    assert run(installed / "bin" / command, "--help", cwd=tmp_path).startswith("usage: ")


def test_shipped_machines_are_found(installed: Path, tmp_path: Path) -> None:
    shown = run(
        installed / "bin" / "charm-topo", "show", "dual_node_nvlink", "--json", cwd=tmp_path
    )
    assert json.loads(shown)["devices"] == 16


def test_licence_and_typing_marker_are_inside(archives: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "charm_sched/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
