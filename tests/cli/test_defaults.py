"""What one command wrote is what the next one reads, without a word in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedrep_cli.dashboard import read_settings as dashboard_settings
from fedrep_cli.main import main
from fedrep_cli.server import read_settings as server_settings
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.folder import FederationAddresses
from fedrep_identity.names import Identity, Role
from fedrep_identity.settings import AuthoritySettings, PublicAddresses
from fedrep_silo.config import load_silo_settings

PASSPHRASE = "an unusual sequence of words"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an admin's identity as `fedrep enroll` leaves it; the server is elsewhere."""
    authority = CertificateAuthority.create(tmp_path / "ca", "lungs", PASSPHRASE)
    issue_credentials(authority, tmp_path / "credentials", Identity("eve", Role.ADMIN, "lungs"))
    FederationAddresses("lungs", "far.example.org:18550", "", "").save(tmp_path / "credentials")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_authority_listens_on_the_ports_that_its_invitations_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDREP_CA_PASSPHRASE", PASSPHRASE)
    folder = tmp_path / "ca"
    ports = ["--enrolment-port", "18551", "--certificate-port", "18552"]
    assert main(["ca", "init", "lungs", "--folder", str(folder), *ports]) == 0
    public = PublicAddresses.load(folder)
    listening = AuthoritySettings(folder=folder).listening(public)
    assert (listening.enrolment_port, listening.certificate_port) == (18551, 18552)
    behind_another = AuthoritySettings(folder=folder, enrolment_port=9000).listening(public)
    assert (behind_another.enrolment_port, behind_another.certificate_port) == (9000, 18552), "what is set wins"
    assert AuthoritySettings().listening(None).enrolment_port == 8551


def test_runs_are_asked_for_at_the_server_learned_at_enrolment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[str] = []

    class Deaf:
        def __init__(self, server: str, *_: Any) -> None:
            dialled.append(server)
            raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr("fedrep_cli.run.ObserverClient", Deaf)
    assert main(["run", "list"]) == 3
    assert main(["run", "list", "--server", "near:1"]) == 3
    (here / "credentials" / "federation.json").unlink()
    assert main(["run", "list"]) == 3
    assert dialled == ["far.example.org:18550", "near:1", "localhost:8550"]


def test_silo_server_and_dashboard_look_where_enrolment_wrote(here: Path) -> None:
    (here / "client.toml").write_text('run = "r"\n')
    silo = load_silo_settings(here / "client.toml", {})
    assert (silo.server, silo.credentials) == ("far.example.org:18550", here / "credentials")
    assert load_silo_settings(here / "client.toml", {"FEDREP_CLIENT__SERVER": "near:1"}).server == "near:1"
    assert server_settings(None).credentials == Path("credentials")
    dashboard = dashboard_settings(None)
    assert (dashboard.server, dashboard.credentials) == ("far.example.org:18550", Path("credentials"))


def test_server_and_dashboard_read_their_file_in_this_folder(here: Path) -> None:
    (here / "server.toml").write_text("port = 18550\n")
    (here / "dashboard.toml").write_text('port = 18080\nserver = "near:1"\n')
    assert server_settings(None).port == 18550
    assert (dashboard_settings(None).port, dashboard_settings(None).server) == (18080, "near:1")


def test_a_run_is_made_from_the_files_that_the_commands_before_it_write(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "init"]) == 0
    assert main(["run", "model", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["file"] == "init.safetensors"
    monkeypatch.setattr("fedrep_cli.run.ObserverClient", lambda *_: pytest.fail("reached the server"))
    with pytest.raises(pytest.fail.Exception, match="reached the server"):
        main(["run", "create"])
