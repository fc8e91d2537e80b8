"""From nothing to a federation: `fedrep init`, `fedrep up` and `fedrep join`, as people type them, interrupted and repeated."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from fedrep_cli.main import main
from fedrep_identity.authority import REGISTER_FILE, CertificateAuthority, certificate_request
from fedrep_identity.certificates import Credentials
from fedrep_identity.names import Role
from fedrep_identity.register import Register
from fedrep_identity.settings import PublicAddresses
from fedrep_silo.config import load_silo_settings
from tests.harness.ports import ports

ROOT = Path(__file__).parents[2]
PASSPHRASE = "an unusual sequence of words"
SILOS = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")
TRAINER = "from tests.harness.federation import StubTrainer\n\n\ndef build(settings):\n    return StubTrainer(parameters=400)\n"
MOST_COMMANDS = 12


class Terminals:
    """Commands typed in folders of their own; every one is counted. What they leave running ends with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.typed: list[list[str]] = []
        self.running: list[subprocess.Popen[str]] = []

    def folder(self, machine: str) -> Path:
        made = self._folder / machine
        made.mkdir(exist_ok=True)
        return made

    def start(self, machine: str, *words: str, variables: dict[str, str] | None = None) -> subprocess.Popen[str]:
        self.typed.append(list(words))
        with (self.folder(machine) / f"{words[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "fedrep_cli.main", *words, "--json"],
                cwd=self.folder(machine),
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.running.append(process)
        return process

    def answer(self, process: subprocess.Popen[str]) -> Any:
        """The first object that it prints; it may go on running."""
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "\n".join(log.read_text() for log in self._folder.rglob("*.log"))
        return json.loads(line)

    def type(self, machine: str, *words: str, variables: dict[str, str] | None = None) -> Any:
        process = self.start(machine, *words, variables=variables)
        said = self.answer(process)
        assert process.wait() == 0
        return said

    def end(self) -> None:
        for words, process in zip(self.typed, self.running, strict=True):
            process.terminate() if words[0] == "up" else process.kill()  # a silo would finish its round first
        for process in self.running:
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    made = Terminals(tmp_path)
    yield made
    made.end()


@pytest.mark.slow
def test_four_silos_are_set_up_up_to_an_applied_round_by_at_most_twelve_commands(terminals: Terminals, tmp_path: Path) -> None:
    secret = {"FEDREP_CA_PASSPHRASE": PASSPHRASE}
    invited = [word for name in SILOS for word in ("--silo", name)]
    terminals.type("consortium", "init", "lungs", *invited, *ports(), variables=secret)
    up = terminals.start("consortium", "up", variables=secret)
    assert terminals.answer(up)["running"] == ["authority", "server", "dashboard"]
    _only_the_authority_knows_the_passphrase(up.pid)

    (terminals.folder("consortium") / "hospital.py").write_text(TRAINER)
    terminals.type("consortium", "run", "model", "--trainer", "hospital:build")
    terminals.type("consortium", "run", "create")
    for name in SILOS:
        (terminals.folder(name) / "hospital.py").write_text(TRAINER)
    tokens = {name: terminals.folder("consortium") / "invitations" / f"{name}.token" for name in SILOS}
    joining = [terminals.start(name, "join", str(tokens[name]), "--trainer", "hospital:build") for name in SILOS]
    for process in joining:
        assert [step["state"] for step in terminals.answer(process)["steps"]] == ["done", "done", "done", "done"]

    watching = terminals.start("consortium", "run", "watch", "first-run")
    assert watching.stdout is not None
    assert any(json.loads(line)["kind"] == "round_applied" for line in watching.stdout), "the watch ended before"
    assert len(terminals.typed) <= MOST_COMMANDS
    for name in SILOS:
        _no_other_file_holds_the_key(terminals.folder(name), tmp_path)


def _no_other_file_holds_the_key(silo: Path, everything: Path) -> None:
    file = silo / "credentials" / "key.pem"
    assert file.stat().st_mode & 0o777 == 0o600
    key = load_pem_private_key(file.read_bytes(), None)
    number = key.private_numbers().private_value.to_bytes(32, "big")  # type: ignore[union-attr]
    forms = {
        file.read_bytes().splitlines()[1],
        key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        number,
        number.hex().encode(),
    }
    for other in everything.rglob("*"):
        if other.is_file() and other != file:
            content = other.read_bytes()
            assert not [form for form in forms if form in content], f"{other} holds the key of {silo.name}"


def _only_the_authority_knows_the_passphrase(parent: int) -> None:
    children = Path(f"/proc/{parent}/task/{parent}/children")
    if not children.exists():  # another system than Linux
        return
    knowing = 0
    for child in children.read_text().split():
        command, environment = (Path(f"/proc/{child}/{name}").read_bytes() for name in ("cmdline", "environ"))
        knows = PASSPHRASE.encode() in environment
        assert knows == (b"ca\0serve" in command)
        knowing += knows
    assert knowing == 1


class Killed(BaseException):
    """In place of SIGKILL: nothing of the command runs after it, except what removes temporary files."""


def interrupted(monkeypatch: pytest.MonkeyPatch, moment: int, arguments: list[str]) -> bool:
    """Whether the command was killed before its `moment`th change of a file's name, which is where files come into being."""
    seen = 0
    replace = os.replace

    def counting(source: Any, target: Any, **more: Any) -> None:
        nonlocal seen
        if seen == moment:
            raise Killed
        seen += 1
        replace(source, target, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", counting)
        patch.setattr(Path, "replace", lambda self, target: counting(self, target))
        try:
            assert main(arguments) == 0
        except Killed:
            return True
    return False


def keys_and_settings(folder: Path) -> dict[str, bytes]:
    """Keys by what they are, since a key changes its file's name on its way into place; settings by file."""
    keys = {file.read_bytes().hex(): b"" for file in folder.rglob("*key*") if file.is_file() and ".part" not in file.name}
    return keys | {str(file): file.read_bytes() for file in folder.rglob("*.toml")}


@pytest.fixture
def passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREP_CA_PASSPHRASE", PASSPHRASE)


@pytest.mark.slow
@pytest.mark.usefixtures("passphrase")
def test_init_killed_at_any_moment_goes_on_without_a_new_key_or_a_changed_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ports()
    for moment in range(1000):
        folder = tmp_path / str(moment)
        command = ["init", "lungs", "--silo", "hospital-b", "--folder", str(folder), *given]
        if not interrupted(monkeypatch, moment, command):
            break
        before = keys_and_settings(folder)
        capsys.readouterr()
        assert main([*command, "--json"]) == 0
        assert set(before.items()) <= set(keys_and_settings(folder).items()), f"killed at {moment}"
        assert not list(folder.rglob("next-*")), f"killed at {moment}: everything is in its place again"
        for place, role in (("credentials", Role.ADMIN), ("server/identity", Role.SERVER), ("dashboard", Role.ADMIN)):
            assert Credentials.load(folder / place).identity.role is role
        told = json.loads(capsys.readouterr().out)
        assert [step["what"] for step in told["steps"]][-1] == "run.toml"
        assert (folder / "invitations" / "hospital-b.token").read_text().startswith("fedrep1.")
    assert moment > 20, "every file that it writes was a moment"


@pytest.mark.usefixtures("passphrase")
def test_an_authority_whose_making_was_killed_at_any_moment_is_made_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    root = ["ca", "init", "lungs", "--address", "ca.example.org", "--folder"]
    assert main([*root, str(whole)]) == 0
    for kind, command in (("root", root), ("online", ["ca", "intermediate", "--folder", str(whole)])):
        for moment in range(100):
            folder = tmp_path / f"{kind}-{moment}"
            if not interrupted(monkeypatch, moment, [*command, str(folder)]):
                break
            assert main([*command, str(folder)]) == 0, f"{kind}: killed at {moment}"
            assert PublicAddresses.load(folder).enrolment == "ca.example.org:8551"
            lists = CertificateAuthority.open(folder, PASSPHRASE).trust_store().revoked.lists
            assert len(lists) == (1 if kind == "root" else 2)
        assert moment > 4, "every file that it writes was a moment"


@pytest.mark.usefixtures("passphrase")
def test_init_again_keeps_what_a_person_edited_and_invites_who_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["init", "lungs", "--silo", "hospital-a", "--folder", str(tmp_path), *ports()]) == 0
    (tmp_path / "server.toml").write_text("port = 9\n")
    token = (tmp_path / "invitations" / "hospital-a.token").read_text()
    monkeypatch.delenv("FEDREP_CA_PASSPHRASE")  # an invitation needs no signature
    capsys.readouterr()
    assert main(["init", "--silo", "hospital-a", "--silo", "hospital-b", "--folder", str(tmp_path), "--json"]) == 0
    steps = {step["what"]: step for step in json.loads(capsys.readouterr().out)["steps"]}
    assert (tmp_path / "server.toml").read_text() == "port = 9\n"
    assert (tmp_path / "invitations" / "hospital-a.token").read_text() == token
    assert [what for what, step in steps.items() if step["state"] == "done"] == ["invitations/hospital-b.token"]
    assert "does not list hospital-b" in steps["run.toml"]["text"]
    assert main(["init", "livers", "--folder", str(tmp_path)]) == 1
    assert "already holds the federation 'lungs'" in capsys.readouterr().err


@pytest.mark.usefixtures("passphrase")
def test_init_again_names_a_certificate_that_has_ended_and_signs_it_anew_unless_it_was_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "lungs", "--folder", str(tmp_path), *ports()]) == 0
    authority = CertificateAuthority.open(tmp_path / "ca", PASSPHRASE)
    held = Credentials.load(tmp_path / "dashboard")

    def end() -> None:
        chain = authority.sign(certificate_request(held.private_key), held.identity, days=-0.001)
        (tmp_path / "dashboard" / "cert.pem").write_bytes(chain)

    def again() -> dict[str, str]:
        capsys.readouterr()
        assert main(["init", "--folder", str(tmp_path), "--json"]) == 0
        steps: list[dict[str, str]] = json.loads(capsys.readouterr().out)["steps"]
        return next(step for step in steps if step["what"] == "dashboard/")

    end()
    step = again()
    assert step["state"] == "done"
    assert "its certificate ended on" in step["text"]
    renewed = Credentials.load(tmp_path / "dashboard")
    renewed.check()
    assert renewed.fingerprint == held.fingerprint
    end()
    authority.revoke("dashboard")
    step = again()
    assert step["state"] == "kept"
    assert "was revoked: move the folder away" in step["text"]


@pytest.mark.usefixtures("passphrase")
def test_a_server_on_another_machine_is_invited_and_its_key_is_made_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["init", "lungs", "--host", "ca.example.org", "--server-host", "far.example.org", "--folder", str(tmp_path)]
    assert main([*command, *ports()]) == 0
    assert main(["init", "--silo", "hospital-a", "--folder", str(tmp_path)]) == 0, "a repetition remembers that"
    assert (tmp_path / "invitations" / "server.token").exists()
    assert not (tmp_path / "server").exists()
    assert not (tmp_path / "server.toml").exists()
    open_for = {(entry.name, entry.role) for entry in Register(tmp_path / "ca" / REGISTER_FILE).invitations()}
    assert open_for == {("server", Role.SERVER), ("hospital-a", Role.SILO)}


@pytest.mark.usefixtures("passphrase")
def test_a_server_on_a_cluster_gets_a_key_to_carry_there_and_no_invitation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["init", "lungs", "--host", "ca.example.org", "--cluster", "--folder", str(tmp_path), *ports()]
    assert main(command) == 1
    assert "--server-host" in capsys.readouterr().err
    assert not (tmp_path / "ca").exists()
    assert main([*command, "--server-host", "far.example.org"]) == 0
    assert main(["init", "--silo", "hospital-a", "--folder", str(tmp_path)]) == 0, "a repetition remembers that"
    assert {path.stem for path in (tmp_path / "invitations").iterdir()} == {"hospital-a"}
    made = Credentials.load(tmp_path / "server" / "identity")
    assert made.identity.role is Role.SERVER
    names = made.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["far.example.org"]
    assert not (tmp_path / "server.toml").exists(), "the chart makes the settings"


@pytest.mark.usefixtures("passphrase")
def test_a_taken_port_is_one_sentence_before_anything_is_written_or_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ports()
    with socket.create_server(("127.0.0.1", int(given[3]))):
        assert main(["init", "lungs", "--folder", str(tmp_path / "f"), *given]) == 1
        assert "Choose another with --enrolment-port" in capsys.readouterr().err
        assert not (tmp_path / "f").exists()
    assert main(["init", "lungs", "--folder", str(tmp_path / "f"), *given]) == 0
    with socket.create_server(("127.0.0.1", int(given[1]))):
        capsys.readouterr()
        assert main(["up", "--folder", str(tmp_path / "f")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "`port` in" in captured.err


def test_up_without_a_federation_says_how_to_make_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--folder", str(tmp_path)]) == 1
    assert "fedrep init NAME" in capsys.readouterr().err


@pytest.mark.usefixtures("passphrase")
def test_up_ends_and_says_why_when_a_part_of_it_ends(terminals: Terminals) -> None:
    apart = ["--server-host", "far.example.org", *ports()]
    terminals.type("consortium", "init", "lungs", *apart)
    (terminals.folder("consortium") / "dashboard.toml").unlink()
    up = terminals.start("consortium", "up")
    assert terminals.answer(up)["running"] == ["authority"]
    children = Path(f"/proc/{up.pid}/task/{up.pid}/children")
    if not children.exists():
        pytest.skip("only Linux tells whose children are whose")
    os.kill(int(children.read_text()), signal.SIGKILL)
    assert up.wait() == 1
    assert "authority ended with code -9" in (terminals.folder("consortium") / "up.log").read_text()


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder made by `fedrep init` whose authority serves; nothing else runs."""
    folder = tmp_path_factory.mktemp("consortium")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDREP_CA_PASSPHRASE", PASSPHRASE)
        patch.setenv("FEDREP_CA__ENROLMENTS_PER_SOURCE", "1000")
        assert main(["init", "lungs", "--folder", str(folder), *ports()]) == 0
        command = [sys.executable, "-m", "fedrep_cli.main", "ca", "serve", "--folder", str(folder / "ca")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert any("authority_started" in line for line in process.stderr)
            yield folder
            process.terminate()


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing_red(_settings: Any) -> list[Any]:
        return []

    monkeypatch.setattr("fedrep_cli.client_check.check_silo", nothing_red)


@pytest.mark.usefixtures("healthy")
def test_join_killed_at_any_moment_goes_on_without_a_new_key_or_a_changed_setting(
    consortium: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for moment in range(1000):
        name, folder = f"silo-{moment}", tmp_path / str(moment)
        assert main(["init", "--silo", name, "--folder", str(consortium)]) == 0
        token = str(consortium / "invitations" / f"{name}.token")
        command = ["join", token, "--folder", str(folder), "--trainer", "digits", "--no-start"]
        if not interrupted(monkeypatch, moment, command):
            break
        before = keys_and_settings(folder)
        capsys.readouterr()
        assert main(command) == 0, capsys.readouterr().err
        assert set(before.items()) <= set(keys_and_settings(folder).items()), f"killed at {moment}"
        assert not list(folder.rglob("next-*")), f"killed at {moment}: everything is in its place again"
        assert Credentials.load(folder / "credentials").identity.name == name
    assert moment > 6, "every file that it writes was a moment"


@pytest.mark.usefixtures("healthy")
def test_join_again_needs_no_invitation_and_keeps_edited_settings(
    consortium: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--silo", "north", "--silo", "south", "--folder", str(consortium)]) == 0
    tokens = consortium / "invitations"
    assert (
        main(["join", str(tokens / "north.token"), "--folder", str(tmp_path), "--trainer", "hospital:build", "--no-start"]) == 0
    )
    settings = tmp_path / "client.toml"
    settings.write_text(settings.read_text().replace('run = "*"', 'run = "spring"'))
    edited = settings.read_text()
    capsys.readouterr()
    assert main(["join", "--folder", str(tmp_path), "--trainer", "other:build", "--no-start", "--json"]) == 1
    assert "--trainer other:build where it has user_code = 'hospital:build'" in capsys.readouterr().err
    assert main(["join", "--folder", str(tmp_path), "--trainer", "hospital:build", "--no-start", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [step["state"] for step in told["steps"]] == ["kept", "kept", "kept", "done"]
    assert settings.read_text() == edited
    assert main(["join", str(tokens / "south.token"), "--folder", str(tmp_path), "--no-start"]) == 1
    assert "the invitation is for silo south" in capsys.readouterr().err


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize(
    ("given", "shard", "told"),
    [
        (["--trainer", "digits", "--part", "2/4"], (1, 4), "part 2 of 4 of what digits has"),
        (["--trainer", "trainer:build", "--part", "4/4"], (3, 4), "part 4 of 4 of what trainer:build has"),
        (
            ["--trainer", "digits"],
            (0, 1),
            "Silos that try out the same data all train on the same, unless each has its part: --part",
        ),
        (["--trainer", "trainer:build"], (0, 1), "whatever trainer:build loads on this machine"),
    ],
)
def test_join_says_what_the_silo_trains_on_and_takes_a_part_of_data_to_try_out(
    consortium: Path,
    tmp_path: Path,
    given: list[str],
    shard: tuple[int, int],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    name = f"part-{'-'.join(given)}".replace("/", "-").replace(":", "-").replace("--", "")
    assert main(["init", "--silo", name, "--folder", str(consortium)]) == 0
    capsys.readouterr()
    join = ["join", str(consortium / "invitations" / f"{name}.token"), "--folder", str(tmp_path), "--no-start", "--json"]
    assert main([*join, *given]) == 0
    steps = {step["what"]: step for step in json.loads(capsys.readouterr().out)["steps"]}
    assert told in steps["data"]["text"]
    trainer = load_silo_settings(tmp_path / "client.toml").trainer
    assert (trainer.shard_index, trainer.shard_count) == shard


@pytest.mark.parametrize("part", ["0/4", "5/4", "2", "2/0", "a/b"])
def test_what_is_no_part_is_refused_before_the_invitation_is_used(
    tmp_path: Path, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["join", "--folder", str(tmp_path), "--part", part]) == 1
    assert "2/4, for example, is the second of four" in capsys.readouterr().err


@pytest.mark.usefixtures("passphrase")
def test_every_role_joins_and_is_told_what_to_start(consortium: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedrep_cli.dashboard import read_settings as dashboard_settings

    assert main(["silo", "invite", "eve", "--role", "viewer", "--folder", str(consortium / "ca"), "--json"]) == 0
    token = json.loads(capsys.readouterr().out.splitlines()[-1])["token"]
    assert main(["join", token, "--folder", str(tmp_path / "eve"), "--json"]) == 0
    assert "fedrep dashboard --config" in json.loads(capsys.readouterr().out)["next"][-1]
    assert dashboard_settings(tmp_path / "eve" / "dashboard.toml").credentials == tmp_path / "eve" / "credentials"
    invite = ["silo", "invite", "far", "--role", "server", "--dns", "far.example.org", "--folder", str(consortium / "ca")]
    assert main([*invite, "--json"]) == 0
    token = json.loads(capsys.readouterr().out)["token"]
    assert main(["join", token, "--folder", str(tmp_path / "far"), "--json"]) == 0
    capsys.readouterr()
    assert main(["server", "--check", "--config", str(tmp_path / "far" / "server.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["identity"] == "server far"


@pytest.mark.parametrize("trainer", [[], ["--trainer", "digits"]])
def test_join_uses_no_invitation_before_it_knows_all_that_it_needs(
    consortium: Path, tmp_path: Path, trainer: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    name = f"east-{len(trainer)}"
    assert main(["init", "--silo", name, "--folder", str(consortium)]) == 0
    capsys.readouterr()
    code = main(["join", str(consortium / "invitations" / f"{name}.token"), "--folder", str(tmp_path), *trainer])
    captured = capsys.readouterr()
    assert code == 1
    if not trainer:
        assert "--trainer module:function" in captured.err
        assert not (tmp_path / "credentials").exists()
    else:
        assert (tmp_path / "client.toml").exists()
        assert "failed" in captured.out, "no server runs, and the check says so"
        assert "fedrep join" in captured.out.splitlines()[-1]
