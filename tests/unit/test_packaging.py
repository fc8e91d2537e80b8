"""What a wheel holds: names that start with fedrep, and every file that is read at run time."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "fedrep", "services", "dashboard/fedrep_dashboard", "lab")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from links to the sources, so that setuptools leaves nothing behind in the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        link = folder / "sources" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(ROOT / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*command, str(folder / "built"), str(folder / "sources")], check=True)
    return zipfile.ZipFile(next((folder / "built").glob("*.whl")))


def test_whatever_a_wheel_installs_at_top_level_starts_with_fedrep(wheel: zipfile.ZipFile) -> None:
    assert {name.partition("/")[0].partition("-")[0] for name in wheel.namelist()} == {
        "fedrep",
        "fedrep_cli",
        "fedrep_dashboard",
        "fedrep_identity",
        "fedrep_lab",
        "fedrep_runtime",
        "fedrep_server",
        "fedrep_silo",
        "fedrep_trainers",
    }


@pytest.mark.parametrize(
    ("folder", "pattern"),
    [
        (".", "fedrep/**/*.py"),
        (".", "fedrep/py.typed"),
        ("lab", "fedrep_lab/presets.toml"),
        ("lab", "fedrep_lab/experiments/*.toml"),
        ("lab", "fedrep_lab/templates/*"),
        ("services/server", "fedrep_server/migrations/versions/0*.py"),
        ("services/trainers", "fedrep_trainers/*.py"),
        ("dashboard", "fedrep_dashboard/static/assets/*"),
    ],
)
def test_files_that_are_read_at_run_time_are_packed(wheel: zipfile.ZipFile, folder: str, pattern: str) -> None:
    read = {path.relative_to(ROOT / folder).as_posix() for path in (ROOT / folder).glob(pattern) if path.is_file()}
    if pattern.startswith("fedrep_dashboard") and not read:
        pytest.skip("the pages are not built: run make web first")
    assert read
    assert read <= set(wheel.namelist())
