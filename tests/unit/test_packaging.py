"""What a wheel holds: every package with the data it reads, and no sources of the dashboard's pages."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from setuptools import find_namespace_packages

ROOT = Path(__file__).parents[2]
SETUPTOOLS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGES = find_namespace_packages(str(ROOT), **SETUPTOOLS["packages"]["find"])


def packed(package: str) -> set[Path]:
    folder = ROOT / package.replace(".", "/")
    patterns = [*SETUPTOOLS["package-data"]["*"], *SETUPTOOLS["package-data"].get(package, []), "*.py"]
    return {path for pattern in patterns for path in folder.glob(pattern)}


def test_the_sources_of_the_pages_stay_out() -> None:
    assert not [package for package in PACKAGES if package.startswith("dashboard.web") or "node_modules" in package]


@pytest.mark.parametrize(
    "pattern",
    [
        "fedrep/py.typed",
        "lab/presets.toml",
        "lab/experiments/*.toml",
        "lab/templates/*",
        "services/server/migrations/versions/0*.py",
    ],
)
def test_files_that_are_read_at_run_time_are_packed(pattern: str) -> None:
    read = set(ROOT.glob(pattern))
    assert read
    assert read <= {path for package in PACKAGES for path in packed(package)}


def test_built_pages_would_be_packed() -> None:
    assert {"static/*", "static/assets/*"} <= set(SETUPTOOLS["package-data"]["dashboard"])
