"""`fedrep new`: each template's own test passes, and its files are what the other commands read."""

from __future__ import annotations

import errno
import json
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from fedrep.protocol.preflight import preflight
from fedrep_cli.main import main
from fedrep_cli.new import KINDS, Kind
from fedrep_runtime.run_config import RunConfig
from fedrep_runtime.settings import load_settings
from fedrep_silo.config import load_silo_settings

FILES = {"README.md", "client.toml", "run.toml", "test_trainer.py", "trainer.py"}
# One process for both, and none of the plugins that happen to be installed here: whoever has pytest alone has enough.
OWN_TEST_AND_SIZE = """
import sys, pytest
if pytest.main(["-q", "-p", "no:cacheprovider"]) != 0:
    sys.exit(1)
from trainer import build
from fedrep_trainers import TrainerSettings
print(build(TrainerSettings()).layout.size)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_a_new_folder_passes_its_own_test_and_its_run_can_work(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind is Kind.HUGGINGFACE_LORA and find_spec("peft") is None:
        pytest.skip("the extra huggingface is not installed")
    monkeypatch.chdir(tmp_path)
    assert main(["new", "first", "--template", kind.value, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    folder = tmp_path / "first"
    assert {path.name for path in folder.iterdir()} == set(result["files"]) == FILES
    assert result["next"] == "cd first && fedrep simulate"
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    done = subprocess.run([sys.executable, "-c", OWN_TEST_AND_SIZE], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    size = int(done.stdout.splitlines()[-1])
    config = load_settings(RunConfig, folder / "run.toml", "FEDREP_RUN")
    assert preflight(config.manifest(size, b"\0" * 32, b"\0" * 32)) == []
    settings = load_silo_settings(folder / "client.toml")
    assert (settings.run, settings.trainer.user_code, config.name) == ("first", "trainer:build", "first")
    assert KINDS[kind].install in (folder / "README.md").read_text()


def test_the_command_that_follows_can_be_typed_whatever_the_folder_is_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my models" / "first"
    assert main(["new", str(folder), "--template", "numpy", "--json"]) == 0
    assert shlex.split(json.loads(capsys.readouterr().out)["next"]) == ["cd", str(folder), "&&", "fedrep", "simulate"]


def test_a_folder_that_is_in_use_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "trainer.py").write_text("my work")
    assert main(["new", "mine"]) == 1
    assert "mine exists already" in capsys.readouterr().err
    assert (tmp_path / "mine" / "trainer.py").read_text() == "my work"


@pytest.mark.parametrize("is_there", [False, True])
def test_a_full_disk_leaves_nothing_behind_and_the_same_command_works_later(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, write = tmp_path / "mine", Path.write_text
    if is_there:
        folder.mkdir()

    def full(path: Path, text: str, **settings: Any) -> int:
        if path.name == "trainer.py":
            write(path, text[:100], **settings)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        assert main(["new", str(folder)]) == 1
    assert "the disk is full" in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == ([folder] if is_there else [])
    assert main(["new", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == FILES


def test_a_name_that_cannot_be_a_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", str(tmp_path / "my run")]) == 1
    assert "'my run' cannot name a run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", Kind)
def test_what_a_template_says_to_install_are_requirements(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "mine", "--template", kind.value]) == 0
    line = next(line for line in (tmp_path / "mine" / "README.md").read_text().splitlines() if "pip install" in line)
    words = shlex.split(line.partition("`pip install ")[2].partition("`")[0])
    assert "fedrep" in {Requirement(word).name for word in words}
