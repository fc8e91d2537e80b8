"""crl.pem: what an authority answers adds to it, and takes nothing away."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from fedrep.errors import CryptoError
from fedrep_identity.authority import CertificateAuthority, issue_credentials
from fedrep_identity.certificates import Credentials, Identity, Role, TrustStore
from fedrep_identity.enrolment_client import AuthorityRevocations, enrol, renew
from fedrep_identity.revocation_file import keep_revocations
from tests.harness.enrolment_desk import PASSPHRASE, invitation_for, serving


def refused(trust: TrustStore, chain: bytes) -> bool:
    try:
        trust.verify(chain)
    except CryptoError as error:
        return error.reason == "CERTIFICATE_REVOKED"
    return False


@pytest.mark.parametrize("way", ["fetch", "renewal"])
def test_a_stolen_intermediate_cannot_undo_its_own_revocation(way: str, authority: CertificateAuthority, tmp_path: Path) -> None:
    online = CertificateAuthority.create_intermediate(tmp_path / "online", authority, PASSPHRASE)
    minted = issue_credentials(online, tmp_path / "minted", Identity("hospital-z", Role.SILO, "demo"))
    (name,) = (issued.name for issued in authority.register.certificates() if issued.name.startswith("issuing-"))
    folder = tmp_path / "silo"

    async def scenario() -> None:
        async with serving(online) as server:
            await enrol(invitation_for(online, server).token(), folder)
            authority.revoke(name)
            (folder / "crl.pem").write_bytes((authority.folder / "crl.pem").read_bytes())  # by hand, as the page says
            assert refused(Credentials.load(folder).trust_store((folder / "crl.pem").read_bytes()), minted.chain)
            if way == "renewal":
                with pytest.raises(CryptoError, match="revoked"):
                    await renew(folder)
            else:
                address, load = f"127.0.0.1:{server.certificate_port}", lambda: Credentials.load(folder)
                source = AuthorityRevocations(address, load, keep=folder / "crl.pem")
                assert await source() is not None
                await source.close()

    asyncio.run(scenario())
    assert refused(Credentials.load(folder).trust_store((folder / "crl.pem").read_bytes()), minted.chain)


def test_each_authority_is_kept_with_its_newest_list(authority: CertificateAuthority, tmp_path: Path) -> None:
    online = CertificateAuthority.create_intermediate(tmp_path / "online", authority, PASSPHRASE)
    path, older = tmp_path / "crl.pem", (online.folder / "crl.pem").read_bytes()
    issue_credentials(online, tmp_path / "silo", Identity("hospital-a", Role.SILO, "demo"))
    online.revoke("hospital-a")
    for bundle in ((online.folder / "crl.pem").read_bytes(), older, authority.publish_revocations()):
        keep_revocations(path, bundle, authority.root)
    trust = TrustStore(authority.root)
    trust.update_revocations(path.read_bytes())
    assert len(trust.revoked.lists) == 2
    assert len(trust.revoked) == 1
    before = path.stat().st_mtime_ns
    keep_revocations(path, older, authority.root)
    assert path.stat().st_mtime_ns == before, "nothing new, nothing written"


def test_a_bundle_that_the_root_does_not_vouch_for_changes_nothing(authority: CertificateAuthority, tmp_path: Path) -> None:
    stranger = CertificateAuthority.create(tmp_path / "other", "demo", PASSPHRASE)
    path = tmp_path / "crl.pem"
    keep_revocations(path, authority.publish_revocations(), authority.root)
    before = path.read_bytes()
    with pytest.raises(CryptoError):
        keep_revocations(path, stranger.publish_revocations(), authority.root)
    assert path.read_bytes() == before


@pytest.mark.parametrize("left", ["of another federation", "garbage"])
def test_what_was_left_in_the_folder_by_others_is_replaced(left: str, authority: CertificateAuthority, tmp_path: Path) -> None:
    path = tmp_path / "crl.pem"
    stranger = CertificateAuthority.create(tmp_path / "other", "demo", PASSPHRASE)
    path.write_bytes((stranger.folder / "crl.pem").read_bytes() if left != "garbage" else b"-----BEGIN X509 CRL-----\nxx")
    keep_revocations(path, authority.publish_revocations(), authority.root)
    trust = TrustStore(authority.root)
    trust.update_revocations(path.read_bytes())
    assert len(trust.revoked.lists) == 1


def test_an_authority_restored_from_a_backup_can_still_revoke(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca", "demo", PASSPHRASE)
    silo = issue_credentials(authority, tmp_path / "silo", Identity("hospital-a", Role.SILO, "demo"))
    shutil.copytree(tmp_path / "ca", tmp_path / "backup")
    for _ in range(10):
        newest = authority.publish_revocations()
    server = silo.trust_store(newest)
    shutil.rmtree(tmp_path / "ca")
    shutil.copytree(tmp_path / "backup", tmp_path / "ca")
    restored = CertificateAuthority.open(tmp_path / "ca", PASSPHRASE)
    restored.revoke("hospital-a")
    server.update_revocations((restored.folder / "crl.pem").read_bytes())
    assert refused(server, silo.chain)


def test_a_list_that_could_not_be_kept_is_asked_for_again(
    authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "silo"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        async with serving(authority) as server:
            await enrol(invitation_for(authority, server).token(), folder)
            address = f"127.0.0.1:{server.certificate_port}"
            source = AuthorityRevocations(address, lambda: Credentials.load(folder), keep=folder / "crl.pem")
            with monkeypatch.context() as disk:
                disk.setattr("fedrep_identity.enrolment_client.keep_revocations", full)
                with pytest.raises(OSError, match="No space left"):
                    await source()
            assert await source() is not None
            source.believed()
            assert await source() is None, "now it is kept, and nothing has changed"
            await source.close()

    asyncio.run(scenario())
