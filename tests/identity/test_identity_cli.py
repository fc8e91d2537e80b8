"""The four commands as an operator types them, as processes of their own, and what they leave in logs and files."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from fedrep.secagg.keys import SecretBytes
from fedrep_cli.main import main
from fedrep_identity.certificates import Credentials
from fedrep_identity.invitations import Invitation

PASSPHRASE = "an unusual sequence of words"


@dataclass
class Consortium:
    folder: Path
    process: subprocess.Popen[str]
    enrolment_port: int
    certificate_port: int

    @property
    def ca(self) -> str:
        return str(self.folder / "ca")


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consortium]:
    """`fedrep ca init` and a running `fedrep ca serve`, with its log in serve.log."""
    folder = tmp_path_factory.mktemp("consortium")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDREP_CA_PASSPHRASE", PASSPHRASE)
        assert main(["ca", "init", "lungs", "--folder", str(folder / "ca"), "--address", "127.0.0.1"]) == 0
    log = (folder / "serve.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "fedrep_cli.main", "ca", "serve", "--folder", str(folder / "ca")],
        stderr=log,
        stdout=log,
        text=True,
        env={
            **os.environ,
            "FEDREP_CA_PASSPHRASE": PASSPHRASE,
            "FEDREP_CA__ENROLMENT_PORT": "0",
            "FEDREP_CA__CERTIFICATE_PORT": "0",
            "FEDREP_CA__HOST": "127.0.0.1",
        },
    )
    try:
        started = _wait_for_line(folder / "serve.log", process, "authority_started")
        addresses = folder / "ca" / "addresses.json"
        said = json.loads(addresses.read_text())
        addresses.write_text(json.dumps({**said, "enrolment": f"127.0.0.1:{started['enrolment_port']}"}))
        yield Consortium(folder, process, started["enrolment_port"], started["certificate_port"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        log.close()


def _wait_for_line(path: Path, process: subprocess.Popen[str], event: str) -> dict[str, Any]:
    for _ in range(2400):
        for line in path.read_text().splitlines():
            if line.startswith("{") and json.loads(line)["event"] == event:
                return dict(json.loads(line))
        if process.poll() is not None:
            break
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(path.read_text())


@pytest.fixture(autouse=True)
def _passphrase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDREP_CA_PASSPHRASE", PASSPHRASE)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(list(arguments))
    return code, capsys.readouterr().err


def test_from_invitation_to_certificate_list_renewal_and_revocation(
    consortium: Consortium, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = answer(capsys, "silo", "invite", "hospital-a", "--folder", consortium.ca)["token"]
    own = answer(capsys, "enroll", token, "--folder", str(tmp_path / "a"))
    assert own["identity"] == "spiffe://lungs/silo/hospital-a"
    _point_at(tmp_path / "a", consortium)
    assert answer(capsys, "renew", "--folder", str(tmp_path / "a"))["fingerprint"] == own["fingerprint"]
    listed = answer(capsys, "ca", "list", "--folder", consortium.ca)
    mine = [entry for entry in listed["certificates"] if entry["name"] == "hospital-a"]
    assert [entry["status"] for entry in mine] == ["valid", "valid"]
    assert answer(capsys, "ca", "roster", "--folder", consortium.ca)["silos"]["hospital-a"] == own["fingerprint"]
    assert answer(capsys, "silo", "revoke", "hospital-a", "--folder", consortium.ca)["revoked"] == 2
    code, text = refusal(capsys, "renew", "--folder", str(tmp_path / "a"))
    assert code == 1
    assert "was revoked on" in text


def _point_at(folder: Path, consortium: Consortium) -> None:
    """The fixture's ports are not the ones written at `ca init`."""
    path = folder / "federation.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "certificates": f"127.0.0.1:{consortium.certificate_port}"}))


def test_a_server_enrols_with_host_names_from_its_invitation(
    consortium: Consortium, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = refusal(capsys, "silo", "invite", "main", "--role", "server", "--folder", consortium.ca)
    assert code == 1
    assert "--dns or --ip" in text
    invite = ("silo", "invite", "main", "--role", "server", "--dns", "server.lungs", "--folder", consortium.ca)
    token = answer(capsys, *invite)["token"]
    assert answer(capsys, "enroll", token, "--folder", str(tmp_path / "s"))["role"] == "server"
    made = answer(capsys, "ca", "server-cert", "spare", "--ip", "::1", "--out", str(tmp_path / "t"), "--folder", consortium.ca)
    assert made["identity"] == "spiffe://lungs/server/spare"


def test_the_air_gapped_way_by_files(consortium: Consortium, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, request, bundle = str(tmp_path / "far"), str(tmp_path / "r.csr"), str(tmp_path / "b.pem")
    answer(capsys, "enroll", "--request", request, "--folder", folder)
    signed = answer(capsys, "ca", "sign", request, "--name", "far", "--out", bundle, "--folder", consortium.ca)
    code, text = refusal(capsys, "enroll", "--install", bundle, "--folder", folder)
    assert code == 1
    assert "--root-fingerprint" in text
    code, text = refusal(capsys, "enroll", "--install", bundle, "--root-fingerprint", "00" * 32, "--folder", folder)
    assert code == 1
    assert "fingerprint differs" in text
    fingerprint = signed["root_fingerprint"]
    own = answer(capsys, "enroll", "--install", bundle, "--root-fingerprint", fingerprint, "--folder", folder)
    assert own["identity"] == "spiffe://lungs/silo/far"
    answer(capsys, "enroll", "--request", request, "--replace", "--folder", folder)
    again = ("ca", "sign", request, "--name", "far", "--out", bundle, "--folder", consortium.ca)
    assert "confirm with --replace" in refusal(capsys, *again)[1]
    answer(capsys, *again, "--replace")
    newer = answer(capsys, "enroll", "--install", bundle, "--root-fingerprint", fingerprint, "--folder", folder)
    assert newer["fingerprint"] != own["fingerprint"]
    assert b"PRIVATE" not in Path(bundle).read_bytes() + Path(request).read_bytes()


def test_mistakes_are_one_sentence_and_the_right_exit_code(
    consortium: Consortium, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal(capsys, "enroll")[0] == 2
    assert "not an invitation" in refusal(capsys, "enroll", "nonsense", "--folder", str(tmp_path / "x"))[1]
    assert "no certificate authority" in refusal(capsys, "ca", "list", "--folder", str(tmp_path))[1]
    assert "already holds" in refusal(capsys, "ca", "init", "lungs", "--folder", consortium.ca)[1]
    assert refusal(capsys, "silo", "invite", "No Spaces", "--folder", consortium.ca)[0] == 1
    elsewhere = ("silo", "invite", "nowhere", "--ca", "127.0.0.1:1", "--folder", consortium.ca)
    token = answer(capsys, *elsewhere)["token"]
    code, text = refusal(capsys, "enroll", token, "--folder", str(tmp_path / "x"))
    assert code == 3
    assert "cannot be reached" in text
    monkeypatch.setenv("FEDREP_CA_PASSPHRASE", "not the passphrase at all")
    assert "does not open" in refusal(capsys, "silo", "revoke", "hospital-a", "--folder", consortium.ca)[1]
    capsys.readouterr()
    assert main(["doctor", "--folder", str(tmp_path / "x"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["healthy"] is False


def test_a_second_authority_process_on_the_folder_is_refused(consortium: Consortium) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "fedrep_cli.main", "ca", "serve", "--folder", consortium.ca],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "FEDREP_CA__ENROLMENT_PORT": "0", "FEDREP_CA__CERTIFICATE_PORT": "0"},
    )
    assert second.returncode == 1
    assert "in use by another process" in second.stderr


@pytest.mark.parametrize("which", ["enrolment_port", "certificate_port", "health_port"])
def test_a_port_in_use_is_one_sentence(tmp_path: Path, which: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder, settings = tmp_path / "ca", tmp_path / "ca.toml"
    assert main(["ca", "init", "hearts", "--folder", str(folder), "--address", "127.0.0.1"]) == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = {"enrolment_port": 0, "certificate_port": 0, which: port}
        settings.write_text("\n".join(['host = "127.0.0.1"', *(f"{name} = {number}" for name, number in ports.items())]) + "\n")
        code, complaint = refusal(capsys, "ca", "serve", "--folder", str(folder), "--config", str(settings))
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in complaint
    assert "Traceback" not in complaint


def test_neither_log_nor_register_nor_output_holds_a_secret(
    consortium: Consortium, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Enrols, renews, fails in every way that logs, then greps everything the authority wrote."""
    token = answer(capsys, "silo", "invite", "grepped", "--folder", consortium.ca)["token"]
    folder = tmp_path / "grepped"
    assert main(["enroll", token, "--folder", str(folder)]) == 0
    _point_at(folder, consortium)
    assert main(["renew", "--folder", str(folder)]) == 0
    guess = bytes(range(100, 132))
    guessed = dataclasses.replace(Invitation.from_token(token), secret=SecretBytes(guess)).token()
    for wrong in (token, guessed, token[:-4] + "AAAA"):
        assert main(["enroll", wrong, "--folder", str(tmp_path / "again")]) == 1
    assert main(["doctor", "--folder", str(folder), "--server", "127.0.0.1:1"]) == 1
    said = "".join(capsys.readouterr())
    secret = Invitation.from_token(token).secret.reveal()
    private = Credentials.load(folder).key_pem.decode().split("\n")[1]
    written = b"".join(path.read_bytes() for path in (consortium.folder / "ca").iterdir() if path.is_file())
    log = (consortium.folder / "serve.log").read_text()
    assert '"call": "Enrol"' in log
    assert '"outcome": "INVITATION_INVALID"' in log
    for form in (*_forms(secret), *_forms(guess), token, PASSPHRASE, private):
        assert form not in log
        assert form not in said
        assert form.encode() not in written
    assert secret not in written


def _forms(secret: bytes) -> list[str]:
    """How a secret could show up in text."""
    plain = base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
    return [secret.hex(), base64.b64encode(secret).decode(), plain, repr(secret)[2:-1], str(list(secret))[1:-1]]


def test_addresses_written_at_init_are_those_that_silos_can_dial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ("--folder", str(tmp_path / "ca"))
    code, text = refusal(capsys, "ca", "init", "lungs", "--address", "ca.example.org:9551", *folder)
    assert code == 1
    assert "give the host alone, and ports by --enrolment-port" in text
    code, text = refusal(capsys, "ca", "init", "lungs", "--server", "federation.example.org", *folder)
    assert code == 1
    assert "'federation.example.org' is not host:port" in text
    assert not (tmp_path / "ca").exists()
    answer(capsys, "ca", "init", "lungs", "--address", "ca.example.org", "--certificate-port", "9552", *folder)
    said = json.loads((tmp_path / "ca" / "addresses.json").read_text())
    assert said == {
        "enrolment": "ca.example.org:8551",
        "certificates": "ca.example.org:9552",
        "server": "localhost:8550",
    }


def test_an_ipv6_address_is_written_as_silos_can_dial_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, folder in (("::1", tmp_path / "bare"), ("[::1]", tmp_path / "in-brackets")):
        answer(capsys, "ca", "init", "lungs", "--address", given, "--folder", str(folder))
        assert json.loads((folder / "addresses.json").read_text())["enrolment"] == "[::1]:8551"


@pytest.mark.parametrize(
    "name", ["federation.example.org:8550", "https://x", "*.fedrep.internal", "föd.example.org", "10.0.0.1", ""]
)
def test_what_is_no_host_name_is_refused_before_anything_is_signed_or_invited(
    name: str, consortium: Consortium, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--folder", consortium.ca)
    for command in (
        ("ca", "server-cert", "third", "--out", str(tmp_path / "out")),
        ("silo", "invite", "third", "--role", "server"),
    ):
        code, text = refusal(capsys, *command, "--dns", name, *folder)
        assert code == 1
        assert "host name" in text or "--ip" in text
    assert not [entry for entry in answer(capsys, "ca", "list", *folder)["invitations"] if entry["name"] == "third"]
    if name != "10.0.0.1":
        assert refusal(capsys, "init", "lungs", "--host", name, "--folder", str(tmp_path / "new"))[0] == 1
        assert not (tmp_path / "new").exists()


def test_a_file_that_is_no_text_is_one_sentence(
    consortium: Consortium, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)))
    code, text = refusal(capsys, "enroll", str(binary), "--folder", str(tmp_path / "silo"))
    assert (code, "is not text" in text) == (1, True)
    code, text = refusal(capsys, "ca", "crl", "--passphrase-file", str(binary), "--folder", consortium.ca)
    assert (code, "is not text" in text) == (1, True)


def test_the_servers_certificate_is_made_by_fedrep_server_cert(
    consortium: Consortium, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = answer(capsys, "server", "cert", "second", "--dns", "server.lungs", "--out", str(tmp_path), "--folder", consortium.ca)
    assert made["identity"] == "spiffe://lungs/server/second"
    assert Credentials.load(tmp_path).identity.role.value == "server"


def test_only_an_intermediate_can_be_handed_to_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDREP_CA_PASSPHRASE", PASSPHRASE)
    root, online, out = str(tmp_path / "root"), str(tmp_path / "cluster"), tmp_path / "secret"
    assert main(["ca", "init", "lungs", "--folder", root]) == 0
    assert main(["ca", "issuer-secret", str(out), "--folder", root]) == 1
    assert "fedrep ca intermediate" in capsys.readouterr().err
    assert not out.exists()
    assert main(["ca", "intermediate", online, "--folder", root]) == 0
    assert main(["ca", "issuer-secret", str(out), "--folder", online]) == 0
    assert "shred" in capsys.readouterr().out
    key = serialization.load_pem_private_key((out / "tls.key").read_bytes(), None)
    signing, above = x509.load_pem_x509_certificates((out / "tls.crt").read_bytes())
    assert signing.public_key() == key.public_key()
    signing.verify_directly_issued_by(above)
    assert (out / "tls.key").stat().st_mode & 0o077 == 0
    assert main(["ca", "issuer-secret", str(out), "--folder", online]) == 1
    assert "not empty" in capsys.readouterr().err
