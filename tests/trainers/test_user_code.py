"""A silo's own code: found beside its TOML, and every way in which it can be wrong named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedrep.errors import RefusedError, SettingsError
from fedrep_trainers.build import build_trainer
from fedrep_trainers.settings import TrainerSettings
from fedrep_trainers.user_code import load_function

GOOD = """
from fedrep_trainers.build import image_trainer
from fedrep_trainers.datasets import load_digits

def build(settings):
    return image_trainer(settings, load_digits(None, None))
"""


@pytest.fixture(autouse=True)
def path_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


def settings(folder: Path, name: str, source: str) -> TrainerSettings:
    """Each test needs a module name of its own, since Python keeps what it has imported."""
    (folder / f"{name}.py").write_text(source)
    return TrainerSettings(user_code=f"{name}:build", user_code_dir=folder, model="logistic", threads=1)


def test_the_function_gets_the_settings_and_returns_the_trainer(tmp_path: Path) -> None:
    assert build_trainer(settings(tmp_path, "silo_good", GOOD)).layout.size == 650


def test_user_code_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "silo_neighbour.py").write_text(GOOD)
    made = settings(tmp_path, "silo_importing", "from silo_neighbour import build")
    assert build_trainer(made).layout.size == 650


@pytest.mark.parametrize(
    ("name", "source", "text"),
    [
        ("silo_no_function", "x = 1", "no function 'build'"),
        ("silo_not_callable", "build = 3", "no function 'build'"),
        ("silo_import_fails", "import no_such_package_here", "'no_such_package_here', which is not installed"),
        ("silo_syntax", "def build(:", "SyntaxError"),
        ("silo_raises", "def build(settings):\n    return settings.options['folder']", "KeyError"),
        ("silo_no_trainer", "def build(settings):\n    return 3", "lacks layout, initial, train"),
    ],
)
def test_broken_user_code_is_explained(tmp_path: Path, name: str, source: str, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        build_trainer(settings(tmp_path, name, source))


def test_our_own_errors_pass_through_user_code(tmp_path: Path) -> None:
    source = "from fedrep.errors import RefusedError\ndef build(settings):\n    raise RefusedError('not today')"
    with pytest.raises(RefusedError, match="not today"):
        build_trainer(settings(tmp_path, "silo_refuses", source))


def test_a_missing_module_is_named_with_the_folder(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"no module 'silo_absent' in {tmp_path}"):
        load_function("silo_absent:build", tmp_path)


def test_a_reference_without_a_function_is_refused() -> None:
    with pytest.raises(SettingsError, match="module:function"):
        load_function("silo_good", None)
