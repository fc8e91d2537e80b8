"""Settings: file and environment, every mistake at once, no secret repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from fedrep.errors import SettingsError
from fedrep_runtime.settings import load_settings


class Tls(BaseModel):
    model_config = ConfigDict(frozen=True)

    folder: Path = Path("certs")
    names: tuple[str, ...] = ()


class Example(BaseSettings):
    model_config = SettingsConfigDict(frozen=True)

    port: int = Field(8550, ge=1, le=65535)
    host: str = "0.0.0.0"
    password: int = 0
    retain: float | None = None
    tls: Tls = Tls()

    @model_validator(mode="after")
    def _together(self) -> Example:
        if self.host == "nowhere" and self.port == 1:
            raise ValueError("host nowhere and port 1 do not go together; change one of them")
        return self


class Strict(BaseModel):
    name: str


def write(folder: Path, text: str) -> Path:
    path = folder / "server.toml"
    path.write_text(text)
    return path


def test_the_environment_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, 'port = 1\nhost = "file"\n[tls]\nfolder = "/file"\nnames = ["a"]\n')
    environ = {"FEDREP_SERVER__PORT": "2", "FEDREP_SERVER__TLS__FOLDER": "/env", "FEDREP_SERVER__RETAIN": "1.5"}
    loaded = load_settings(Example, path, "FEDREP_SERVER", environ)
    assert (loaded.port, loaded.host, loaded.retain) == (2, "file", 1.5)
    assert loaded.tls == Tls(folder=Path("/env"), names=("a",))


def test_lists_in_the_environment_are_json() -> None:
    loaded = load_settings(Example, None, "FEDREP_SERVER__", {"FEDREP_SERVER__TLS__NAMES": '["a", "b"]'})
    assert loaded.tls.names == ("a", "b")
    with pytest.raises(SettingsError, match="JSON list"):
        load_settings(Example, None, "FEDREP_SERVER", {"FEDREP_SERVER__TLS__NAMES": "[a"})


def test_all_mistakes_are_shown_at_once_with_where_they_are(tmp_path: Path) -> None:
    path = write(tmp_path, 'port = "many"\nhots = "x"\n[tls]\nfoldr = "/x"\n')
    with pytest.raises(SettingsError) as refused:
        load_settings(Example, path, "FEDREP_SERVER", {"FEDREP_SERVER__RETAIN": "long", "FEDREP_SERVER__POTR": "1"})
    text = str(refused.value)
    assert "5 problems" in text
    assert "`port`" in text
    assert "'many'" in text
    assert str(path) in text
    assert "`hots`" in text
    assert "Did you mean `host`?" in text
    assert "Did you mean `folder`?" in text
    assert "environment variable FEDREP_SERVER__RETAIN" in text
    assert "environment variable FEDREP_SERVER__POTR" in text


def test_rules_over_several_settings_keep_their_own_sentence() -> None:
    with pytest.raises(SettingsError, match="do not go together; change one"):
        load_settings(Example, None, "X", {"X__HOST": "nowhere", "X__PORT": "1"})


def test_a_required_setting_says_how_to_give_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"`name` is required: set it .*as X__NAME"):
        load_settings(Strict, write(tmp_path, ""), "X", {})


def test_unknown_keys_are_refused_for_plain_models_too(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not a setting"):
        load_settings(Strict, write(tmp_path, 'name = "a"\nother = 1\n'), "X", {})


def test_a_wrong_secret_value_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(Example, None, "X", {"X__PASSWORD": "hunter2-hunter2"})
    assert "password" in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert refused.value.__context__ is None


def test_variables_that_kubernetes_makes_up_are_not_settings() -> None:
    environ = {"FEDREP_SERVER_PORT": "tcp://10.0.0.1:8550", "FEDREP_SERVER_SERVICE_HOST": "10.0.0.1"}
    assert load_settings(Example, None, "FEDREP_SERVER", environ).port == 8550


def test_a_file_that_is_missing_or_not_toml_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no settings file"):
        load_settings(Example, tmp_path / "none.toml", "X", {})
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_settings(Example, write(tmp_path, "port = = 1"), "X", {})


def test_a_section_given_twice_in_different_shapes_is_refused() -> None:
    with pytest.raises(SettingsError, match="Keep one of them"):
        load_settings(Example, None, "X", {"X__TLS": "x", "X__TLS__FOLDER": "y"})


def test_settings_are_frozen() -> None:
    loaded = load_settings(Example, None, "X", {})
    with pytest.raises(ValueError, match="frozen"):
        loaded.port = 1
