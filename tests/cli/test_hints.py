"""Whoever stands in the wrong folder, or has left out a step, is told which command comes next."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedrep_cli.main import CANNOT_CONNECT, FAILED, OK, main
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.certificates import Identity, Role


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (["run", "create"], "fedrep run init"),
        (["client"], "fedrep join"),
        (["client", "status"], "There is no client.toml in this folder"),
        (["join", "../lost.token"], "There is no file ../lost.token"),
        (["enroll", "lost.token"], "There is no file lost.token"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_what_is_missing_is_named_with_the_command_that_makes_it(
    command: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == FAILED
    assert hint in capsys.readouterr().err


def test_a_run_without_a_model_is_told_how_to_make_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "init"]) == OK
    assert main(["run", "create"]) == FAILED
    assert "There is no init.safetensors. Write it with fedrep run model --trainer" in capsys.readouterr().err


@pytest.mark.parametrize("beside", [[], ["--config", "client.toml"]], ids=["alone", "beside settings of another trainer"])
def test_the_trainer_to_try_out_makes_a_model_too_and_is_named(beside: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("client.toml").write_text('run = "first-run"\n[trainer]\nuser_code = "mine:build"\n')
    assert main(["run", "model", "--trainer", "digits", "--json", *beside]) == OK
    said = json.loads(capsys.readouterr().out)
    assert said["file"] == "init.safetensors"
    assert "digits" in said["trainer"]
    assert Path("init.safetensors").exists()


def test_a_server_out_of_reach_is_no_riddle(in_an_empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = CertificateAuthority.create(in_an_empty_folder / "ca", "demo", "correct horse battery staple")
    issue_credentials(authority, in_an_empty_folder / "credentials", Identity("anna", Role.ADMIN, "demo"))
    assert main(["run", "list", "--server", "127.0.0.1:1"]) == CANNOT_CONNECT
    said = capsys.readouterr().err
    assert "the server cannot be reached" in said
    assert "fedrep doctor" in said
