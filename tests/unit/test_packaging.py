"""What a wheel holds: names that start with fedrep, every file that is read at run time, and all that each extra needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fedrep_cli.main import COMMANDS
from tests.harness.linked_environment import LinkedEnvironment

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "fedrep", "services", "dashboard/fedrep_dashboard", "lab")
TOP_LEVEL = {"fedrep"} | {
    f"fedrep_{part}" for part in ("cli", "dashboard", "identity", "lab", "runtime", "server", "silo", "simulator", "trainers")
}

# Whose modules can all be imported with an extra alone: besides these, the core, and the commands that name the extra as theirs.
PACKAGES = {
    "": (),
    "server": ("fedrep_server", "fedrep_identity", "fedrep_runtime"),
    "client": ("fedrep_silo", "fedrep_simulator", "fedrep_trainers", "fedrep_identity", "fedrep_runtime"),
    "client-light": ("fedrep_silo", "fedrep_identity", "fedrep_runtime"),
    "dashboard": ("fedrep_dashboard", "fedrep_identity", "fedrep_runtime"),
    "lab": ("fedrep_lab", "fedrep_trainers"),
}
# What would be a surprise to find there.
UNWANTED = {
    "": {"grpcio", "pydantic-settings", "safetensors", "sqlalchemy", "fastapi", "torch"},
    "server": {"torch", "scikit-learn", "fastapi", "matplotlib"},
    "client": {"sqlalchemy", "psycopg", "fastapi", "matplotlib"},
    "client-light": {"torch", "torchvision", "scikit-learn", "sqlalchemy", "fastapi", "matplotlib"},
    "dashboard": {"torch", "scikit-learn", "sqlalchemy", "psycopg", "matplotlib"},
    "lab": {"grpcio", "sqlalchemy", "fastapi"},
}
RUN_BY_ALEMBIC = "fedrep_server.migrations.env"


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
    assert {name.partition("/")[0].partition("-")[0] for name in wheel.namelist()} == TOP_LEVEL


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
        ("services/cli", "fedrep_cli/templates/*/*"),
        ("dashboard", "fedrep_dashboard/static/assets/*"),
    ],
)
def test_files_that_are_read_at_run_time_are_packed(wheel: zipfile.ZipFile, folder: str, pattern: str) -> None:
    read = {path.relative_to(ROOT / folder).as_posix() for path in (ROOT / folder).glob(pattern) if path.is_file()}
    if pattern.startswith("fedrep_dashboard") and not read:
        pytest.skip("the pages are not built: run make web first")
    assert read
    assert read <= set(wheel.namelist())


def modules_of(wheel: zipfile.ZipFile, extra: str) -> list[str]:
    files = [name.removesuffix(".py").removesuffix("/__init__") for name in wheel.namelist() if name.endswith(".py")]
    own = [target.partition(":")[0] for target, _, needs in COMMANDS.values() if needs in (None, extra)]

    def belongs(module: str) -> bool:
        top = module.partition(".")[0]
        if top == "fedrep":
            return "grpc" not in module or extra not in ("", "lab")  # they have no network
        return top in PACKAGES[extra] or any(module == command or module.startswith(f"{command}_") for command in own)

    return sorted(name for name in (file.replace("/", ".") for file in files) if belongs(name) and name != RUN_BY_ALEMBIC)


def test_a_silo_whose_trainer_is_numpy_needs_no_torch(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """The command that a silo's operator calls first, with the template that names this extra."""
    environment = LinkedEnvironment.create(tmp_path / "environment", wheel, "client-light")
    run = [str(environment.python), "-I", "-m", "fedrep_cli.main"]
    subprocess.run([*run, "new", "light", "--template", "numpy"], cwd=tmp_path, check=True)
    checked = subprocess.run([*run, "client", "check", "--json"], cwd=tmp_path / "light", capture_output=True, text=True)
    rows = {row["check"]: row for row in json.loads(checked.stdout)["findings"]}
    assert rows["one training"]["outcome"] == "ok"
    assert {row["outcome"] for name, row in rows.items() if name.startswith("trainer: ")} == {"ok"}
    assert checked.stderr == ""


@pytest.mark.parametrize("extra", PACKAGES, ids=lambda extra: extra or "no extra")
def test_an_extra_alone_brings_what_its_modules_and_commands_need_and_importing_them_changes_nothing(
    wheel: zipfile.ZipFile, tmp_path: Path, extra: str
) -> None:
    """In an environment that is as empty as a new one, made of links: see `tests.harness.linked_environment`."""
    environment = LinkedEnvironment.create(tmp_path / "environment", wheel, extra)
    assert {name for name in environment.unpacked if not name.endswith(".dist-info")} == TOP_LEVEL
    modules = modules_of(wheel, extra)
    assert {name.partition(".")[0] for name in modules} == {"fedrep", "fedrep_cli", *PACKAGES[extra]}
    helped = [[name, "--help"] for name, (_, _, needs) in COMMANDS.items() if needs in (None, extra)]
    done = subprocess.run(
        [environment.python, "-I", Path(__file__).with_name("imported_alone.py")],
        input=json.dumps([modules, [["--help"], ["--version"], *helped]]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ},  # what this process set is no default
        check=True,
    )
    report = json.loads(done.stdout)
    assert report["failed"] == {}
    assert report["changed"] == {}
    assert report["refused"] == {}
    assert set(report["distributions"]) == {"fedrep", *environment.distributions}
    assert not UNWANTED[extra] & environment.distributions
