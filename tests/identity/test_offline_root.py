"""A root that lies in a safe: how long its revocation list is believed, and how a newer one gets to those who ask."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from fedrep_cli.main import main
from fedrep_identity.authority import CertificateAuthority, certificate_request
from fedrep_identity.authority_server import AuthorityServer
from fedrep_identity.certificates import Identity, Role, TrustStore
from fedrep_identity.revocation import RevocationList
from tests.harness.enrolment_desk import PASSPHRASE, with_server


def root_list(authority: CertificateAuthority) -> RevocationList:
    """As somebody knows it who asks `authority`."""
    trust = TrustStore(authority.root)
    trust.update_revocations((authority.folder / "crl.pem").read_bytes())
    return trust.revoked.lists[trust.root.subject.public_bytes()]


def life(known: RevocationList) -> dt.timedelta:
    return known.next_update - dt.datetime.now(dt.UTC)


def test_months_without_the_root_lock_nobody_out_and_do_not_count_as_old(authority: CertificateAuthority, tmp_path: Path) -> None:
    online = CertificateAuthority.create_intermediate(tmp_path / "online", authority, PASSPHRASE, unlisted_days=365)
    identity = Identity("hospital-a", Role.SILO, "demo")
    chain = online.sign(certificate_request(ec.generate_private_key(ec.SECP256R1())), identity, days=365)
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=300)
    trust = TrustStore(authority.root, needs_lists=True)
    trust.update_revocations((authority.folder / "crl.pem").read_bytes())
    assert trust.verify(chain, later).identity == identity
    assert not trust.revoked.overdue(later)
    authority.revoke(next(issued.name for issued in authority.register.certificates()))
    assert life(root_list(authority)) > dt.timedelta(days=300), "the list that revokes is brought by hand too"


def test_an_authority_that_serves_signs_for_a_week_whatever_it_has_made(authority: CertificateAuthority, tmp_path: Path) -> None:
    assert life(root_list(authority)) < dt.timedelta(days=8)
    CertificateAuthority.create_intermediate(tmp_path / "online", authority, PASSPHRASE)

    async def body(_server: AuthorityServer) -> None:
        assert life(root_list(authority)) < dt.timedelta(days=8)

    with_server(authority, body)


def test_a_serving_intermediate_says_in_time_that_the_roots_list_ends(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    monkeypatch.setattr("fedrep_identity.authority.OFFLINE_LIST_LIFETIME", dt.timedelta(days=59))
    online = CertificateAuthority.create_intermediate(tmp_path / "online", authority, PASSPHRASE)

    async def body(_server: AuthorityServer) -> None:
        assert [line["do"] for line in lines if line["event"] == "root_list_ending"]

    with_server(online, body)


def test_a_newer_list_of_the_root_is_brought_by_a_command_and_an_older_one_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDREP_CA_PASSPHRASE", PASSPHRASE)
    monkeypatch.chdir(tmp_path)
    assert main(["ca", "init", "demo", "--folder", "root"]) == 0
    assert main(["ca", "intermediate", "online", "--folder", "root"]) == 0
    online = CertificateAuthority.open(Path("online"), PASSPHRASE)
    old, carried = Path("root/crl.pem").read_bytes(), root_list(online)
    assert main(["ca", "crl", "--folder", "root"]) == 0
    capsys.readouterr()
    assert main(["ca", "crl", "--upper", "root/crl.pem", "--folder", "online", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["root_due"] > told["due"]
    assert root_list(online).number > carried.number
    Path("old.pem").write_bytes(old)
    assert main(["ca", "crl", "--upper", "old.pem", "--folder", "online"]) == 1
    assert "Sign a new one with the root" in capsys.readouterr().err
    Path("empty.pem").write_bytes(b"")
    assert main(["ca", "crl", "--upper", "empty.pem", "--folder", "online"]) == 1
    assert "no list of the root's" in capsys.readouterr().err
    assert main(["ca", "crl", "--upper", "root/crl.pem", "--folder", "root"]) == 1
    assert "without --upper" in capsys.readouterr().err


def test_an_authority_without_its_list_serves_and_signs_a_new_one(authority: CertificateAuthority) -> None:
    (authority.folder / "crl.pem").unlink()

    async def body(_server: AuthorityServer) -> None:
        assert authority.trust_store().revoked.lists

    with_server(authority, body)
