"""The systemd units agree with the programs they start: commands, exit codes that need a person, time to leave."""

from __future__ import annotations

import configparser
import inspect
import shlex

from fedrep_cli import main as cli
from fedrep_cli.ca import serve
from fedrep_cli.client import LEAVE_SECONDS
from fedrep_silo.config import SiloSettings
from tests.deploy.chart import REPOSITORY


def service(name: str = "client") -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(REPOSITORY / "deploy" / "systemd" / f"fedrep-{name}.service")
    return unit["Service"]


def test_the_unit_starts_a_command_that_exists() -> None:
    program, command, option, config = shlex.split(service()["ExecStart"])
    assert program.endswith("/bin/fedrep")
    assert (command, option) == ("client", "--config")
    assert command in cli.COMMANDS
    assert config.startswith("/etc/fedrep/")


def test_it_is_not_started_again_when_a_person_is_needed_and_is_after_anything_else() -> None:
    assert service()["Restart"] == "on-failure"
    assert {int(code) for code in service()["RestartPreventExitStatus"].split()} == {cli.FAILED, cli.USAGE}


def test_it_has_time_to_finish_a_promised_round_and_leave() -> None:
    assert service()["KillSignal"] == "SIGTERM"
    assert int(service()["TimeoutStopSec"]) > SiloSettings().grace_seconds + LEAVE_SECONDS


def test_it_can_write_only_where_identity_and_state_live() -> None:
    assert service()["ProtectSystem"] == "strict"
    assert (service()["StateDirectory"], service()["StateDirectoryMode"]) == ("fedrep", "0700")
    guide = (REPOSITORY / "docs" / "silo.md").read_text()
    assert 'state = "/var/lib/fedrep/state"' in guide
    assert 'ledger = "/var/lib/fedrep/ledger"' in guide


def test_the_authoritys_unit_starts_a_command_that_exists_and_hides_its_passphrase() -> None:
    program, *arguments = shlex.split(service("ca")["ExecStart"])
    assert program.endswith("/bin/fedrep")
    assert arguments[:2] == ["ca", "serve"]
    given = dict(zip(arguments[2::2], arguments[3::2], strict=True))
    known = {parameter.name for parameter in inspect.signature(serve).parameters.values()}
    assert {option.removeprefix("--").replace("-", "_") for option in given} <= known
    assert given["--folder"] == f"/var/lib/{service('ca')['StateDirectory']}"
    assert service("ca")["LoadCredential"].startswith("passphrase:")
    assert given["--passphrase-file"] == "${CREDENTIALS_DIRECTORY}/passphrase"
    assert {int(code) for code in service("ca")["RestartPreventExitStatus"].split()} == {cli.FAILED, cli.USAGE}
